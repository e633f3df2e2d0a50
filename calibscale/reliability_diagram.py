"""Reliability diagrams: observed frequency as a function of the prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import numpy as np

from calibscale.data import SCALAR_NOTIONS, default_notion
from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator
from calibscale.estimators.binned import ECE, TCE2Debiased
from calibscale.evaluation import evaluate
from calibscale.inference.reliability_bins import check_level, curve_of_estimate
from calibscale.kernel_sums import DataProfile
from calibscale.results import Estimate
from calibscale.results.evaluation_results import Reliability, ReliabilityCurve
from calibscale.session import Session, SessionOptions, verb
from calibscale.statistics import States
from calibscale.statistics.bins import BinState, BinTable


@dataclass(frozen=True)
class _Diagram(TCE2Debiased):
    """Bins with effective counts and both errors; of column `class_index` if class-wise."""

    class_index: int | None = None
    name: ClassVar[str] = "reliability"
    notions: ClassVar[tuple[str, ...]] = (*SCALAR_NOTIONS, "class_wise")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.notion == "class_wise" and self.class_index is None:
            raise OptionError("notion 'class_wise' requires class_index")
        if self.notion != "class_wise" and self.class_index is not None:
            raise OptionError(f"class_index is for notion 'class_wise', not {self.notion!r}")
        if self.notion == "class_wise" and self.edges == "equal-mass":
            raise OptionError("one class cannot have equal-mass bins: give edges as numbers")

    def bind(self, setup: DataProfile) -> Self:
        if self.class_index is not None and not 0 <= self.class_index < setup.classes:
            raise OptionError(
                f"there is no class {self.class_index}; classes are 0..{setup.classes - 1}"
            )
        return super().bind(setup)

    def _bins(self, state: BinState, *others: Any) -> BinTable:
        if self.class_index is None:
            return super()._bins(state, *others)
        (squares,) = others
        k = self.class_index
        bins = BinTable(np.array(self.edge_values), *state.sums[k].T)
        return bins._replace(squares=squares.squares[k])

    def _estimate(self, bins: BinTable, *others: Any) -> Estimate:
        estimate = super()._estimate(bins)
        debiased = None if bins.squares is None else estimate.value
        details = {**estimate.details, "tce2_debiased": debiased}
        return replace(estimate, value=ECE()._value(bins), squared=False, details=details)


@verb
def reliability(
    source: Any,
    *,
    bins: int = 15,
    edges: str | Iterable[float] = "equal-width",
    notion: str | None = None,
    class_index: int | None = None,
    group_by: str | None = None,
    level: float = 0.95,
    **options: Unpack[SessionOptions],
) -> Reliability:
    """Compute observed frequencies by bins of the prediction, in one pass over a source.

    Each bin has two intervals: a confidence interval of the true frequency (`interval`), and the
    range of the observed frequency if the model is calibrated (`consistency`).  On average, at most
    a share 1 − `level` of the bins of a calibrated model lies outside their `consistency`.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    bins, edges
        See `ECE`.
    notion : {"top_label", "positive", "class_wise"}, optional
        ``positive`` is class 1 of a binary source.  Default: ``positive`` for two classes, else
        ``top_label``.
    class_index : int, optional
        Class to judge, 0..K−1; for ``class_wise`` only.
    group_by : str, optional
        Name of a covariate; a curve is also computed for each of its values.
    level : float
        Level of both intervals, in (0, 1).

    Returns
    -------
    Reliability

    Raises
    ------
    InvalidDataError
        At the first invalid row, with its number, its chunk and the remedy.
    OptionError, StoreError
        If the data do not support a setting, or cannot be read.

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
    check_level(level)
    edges = edges if isinstance(edges, str) else tuple(edges)
    with Session.open(source, **options) as session:
        notion = notion or default_notion(session.source.classes)
        diagram = _Diagram(bins, edges, notion, class_index)
        result = evaluate(session, [diagram], group_by=group_by)
    return Reliability(
        notion=notion,
        class_index=class_index,
        level=level,
        overall=curve_of_estimate(result[diagram.name], level),
        n=result.n,
        n_unlabelled=result.n_unlabelled,
        dropped=result.dropped,
        source=result.source,
        seconds=result.seconds,
        versions=result.versions,
        parameters={**diagram.parameters, **result.parameters},
        group_by=group_by,
        groups={
            value: curve_of_estimate(estimates[0], level)
            for value, estimates in result.groups.items()
        },
    )


def curve_of(estimator: BoundEstimator, states: States, level: float) -> ReliabilityCurve | None:
    """Bins of a binned error of a scalar notion, from states; None for other estimators."""
    if estimator.bin_settings is None or estimator.notion not in SCALAR_NOTIONS:
        return None
    diagram = _Diagram(*estimator.bin_settings, estimator.notion)
    available = [states[s] for s in diagram.needs if s in states]
    return curve_of_estimate(diagram.finalize(*available), level)
