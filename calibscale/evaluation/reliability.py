"""`reliability`, which computes observed frequencies by bins of the prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Unpack

from calibscale.data.groups import listed_groups
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.estimators.base import Estimator
from calibscale.estimators.pit_distances import QuantileECE
from calibscale.evaluation.evaluate import evaluate
from calibscale.evaluation.reliability_curves import ReliabilityBins, curve_of_estimate
from calibscale.evaluation.response_bins import BINS, ResponseBins, response_curve
from calibscale.intervals.proportions import check_level
from calibscale.predictions.notions import default_notion
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Reliability, ReliabilityCurve
from calibscale.results.levels import Level
from calibscale.results.outcome import Outcome
from calibscale.results.source_rows import SourceRows
from calibscale.session import Session, SessionOptions, verb


@verb
def reliability(
    source: Any,
    *,
    bins: int | None = None,
    edges: str | Iterable[float] = "equal-width",
    notion: str | None = None,
    class_index: int | str | None = None,
    group_by: str | None = None,
    confidence_level: float = 0.95,
    **options: Unpack[SessionOptions],
) -> Reliability:
    """Compute observed frequencies by bins of the prediction, in one pass over a source.

    Each bin has two intervals: a confidence interval of the true frequency (`interval`), and the
    range of the observed frequency if the model is calibrated (`consistency`).  On average, at most
    1 − `confidence_level` of the bins of a calibrated model lies outside their `consistency`.

    For means, quantiles and other functionals, the bins have about as many rows each.  `mean_p` is
    the mean claim, `frequency` the mean response, and `place` the mean prediction, or the mean
    width of intervals.

    For forecasts, the bins are quantile levels.  `frequency` is the share of outcomes below the
    quantile, and `Reliability.overall.pit` is the histogram of PIT values, or of ranks in
    ensembles, see `QuantileECE`.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    bins, edges
        See `ECE`, by default 15 bins.  For forecasts, see `bins` of `QuantileECE`.
    notion : {"top_label", "positive", "class_wise"}, optional
        ``positive`` is class 1 of a binary source.  Default: ``positive`` for two classes, else
        ``top_label``.
    class_index : int or str, optional
        Class to judge, 0..K−1 or its name, for ``class_wise`` only.  Default: each class, with a
        curve in `Reliability.groups` and no curve of all rows.
    group_by : str, optional
        Groups of rows with a curve each, see `evaluate`.
    confidence_level : float
        Level of both intervals, in (0, 1).

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, with its number, its chunk and the remedy, if the data do not
        support a setting, or if they cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays
    >>> from calibscale import reliability
    >>> p = np.repeat([0.2, 0.8], 50)
    >>> y = np.arange(100) % 5 == 0  # one in five comes true at any prediction
    >>> source = from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    >>> diagram = reliability(source, bins=2, notion="positive")
    >>> [(round(b.frequency, 2), b.outside) for b in diagram.bins]
    [(0.2, False), (0.2, True)]
    """
    check_level(confidence_level)
    edges = edges if isinstance(edges, str) else tuple(edges)
    with Session.open(source, **options) as session:
        session.source.need_integer_labels("reliability")
        classes: list[Any] = [None]
        diagrams: list[Estimator] = [QuantileECE(bins=bins)]
        if session.source.target.has_classes:
            notion = notion or default_notion(session.source.classes)
            classes = _classes(session.source, notion, class_index, group_by)
            bins = 15 if bins is None else bins
            diagrams = [
                ReliabilityBins(bins, edges, notion, k if k is None else int(k)) for k in classes
            ]
        elif session.source.target.response is not None:
            diagrams = [ResponseBins(bins=BINS if bins is None else bins)]
        of_classes = notion or class_index is not None or edges != "equal-width"
        if of_classes and not session.source.target.has_classes:
            kind = session.source.target.in_words
            raise OptionError(f"{kind} have no notion=, class_index= and edges=")
        require(len(listed_groups(group_by)) < 2, "group_by takes one grouping", group_by)
        result = evaluate(session, diagrams, group_by=group_by)
        group_by = result.group_by
    run = {f.name: getattr(result, f.name) for f in (*fields(Outcome), *fields(SourceRows))}
    settings = {**result.estimates[0].parameters, **result.parameters}
    del settings["negligible"]  # a setting of the verdict of `evaluate`
    curves = [_curve(e, confidence_level) for e in result.estimates]
    groups = {
        value: _curve(estimates[0], confidence_level) for value, estimates in result.groups.items()
    }
    overall = curves[0]
    if len(classes) > 1:  # the curves of the classes are in place of groups
        overall = ReliabilityCurve(result.n, (), None, None, "each class has a curve of its own")
        groups = dict(zip(classes, curves, strict=True))
        group_by = "class"
    return Reliability(
        notion=notion or result.estimates[0].notion,
        class_index=None if len(classes) > 1 or classes[0] is None else int(classes[0]),
        level=confidence_level,
        overall=overall,
        group_by=group_by,
        groups=groups,
        **{**run, "parameters": settings},
    )


def _curve(estimate: Estimate, confidence_level: float) -> ReliabilityCurve:
    of_responses = estimate.notion == ResponseBins.notion
    return (response_curve if of_responses else curve_of_estimate)(estimate, confidence_level)


def _classes(
    source: ArraySource, notion: str, chosen: int | str | None, group_by: str | None
) -> list[Any]:
    """Classes to judge as numbers with their names, or [None] for other notions."""
    if notion != "class_wise":
        return [chosen]
    names = source.class_names or ()
    classes = [Level(k, names[k]) if names else k for k in range(source.classes)]
    require(chosen is not None or group_by is None, "group_by needs one class: give class_index")
    if chosen is None:
        return classes
    if isinstance(chosen, str) and chosen in names:
        return [names.index(chosen)]
    if isinstance(chosen, str) or chosen not in range(source.classes):
        message = f"there is no class {chosen!r}; classes are 0..{source.classes - 1}"
        if names:
            message += f", or by name {', '.join(names[:20])}"
        raise OptionError(message)
    return [chosen]
