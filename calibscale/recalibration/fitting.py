"""`recalibrate`: fit a method, or the one that is chosen, and say whether it helps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.errors import OptionError
from calibscale.estimators.scores import NLL
from calibscale.evaluation.evaluate import evaluate
from calibscale.predictions.claims import includes
from calibscale.recalibration.boosting import MCBoost
from calibscale.recalibration.choice import AUTO, Choice, chosen_method
from calibscale.recalibration.fits import FittedRecalibration, require_other_rows
from calibscale.recalibration.improvements import (
    NOT_JUDGED,
    improvement_by_cross_fits,
    improvement_on,
    require_groups,
)
from calibscale.recalibration.method_registry import METHODS, method_of
from calibscale.recalibration.nonparametric import LocalBias
from calibscale.recalibration.parametric import Identity
from calibscale.recalibration.prior_shift import PriorShiftFit, as_shifted
from calibscale.recalibration.recalibrated_sources import fingerprint_of, recalibrated
from calibscale.recalibration.recalibrator import FittedRecalibrator, RecalibrationMethod
from calibscale.results.audit_results import Improvement
from calibscale.session import Session, SessionOptions, unsuitable, verb


@verb
def recalibrate(
    source: Any,
    method: str | RecalibrationMethod = AUTO,
    *,
    covariates: str | Sequence[str] = (),
    validate: Any = True,
    group_by: str | Sequence[str] | None = None,
    cluster: str | None = None,
    **options: Unpack[SessionOptions],
) -> FittedRecalibration:
    """Fit a method of recalibration to the labelled rows of a source.

    A fit takes a few passes, and the choice among all methods for two classes about sixty.  The
    result says whether it helped on rows that the fit has not used: `improvement` has the changes
    of proper scores with paired intervals.  Rows are taken as independent unless
    `cluster` names the clusters.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    method : str or RecalibrationMethod
        ``temperature`` (Guo et al. 2017) and ``ensemble_temperature`` (Zhang et al. 2020), for any
        number of classes.  For three classes or more ``vector`` and ``matrix`` (Guo et al. 2017),
        ``dirichlet`` (Kull et al. 2019), ``structured`` (Berta et al. 2026), ``one_vs_rest``, a
        method for two classes for each class, and ``top_label_histogram`` (Gupta & Ramdas 2022),
        also with an `interval`.  For two classes ``platt`` (1999), ``beta`` (Kull et al. 2017),
        ``spline`` (Lucena 2018), ``isotonic`` (Zadrozny & Elkan 2002), ``venn_abers`` (Vovk & Petej
        2014) and ``histogram`` (Gupta & Ramdas 2021), both also with an `interval`, ``bbq`` (Naeini
        et al. 2015), ``local_bias`` [VF, eq. 7], ``hierarchical``, Platt scaling by groups with
        shrinkage [Breslow & Clayton 1993], ``mc`` (Hébert-Johnson et al. 2018), ``pmc`` (La Cava et
        al. 2023).  ``prior_shift`` maps to new shares of the classes, see `label_shift`.
        ``identity`` keeps the predictions.  Settings are written as in ``mc(depth=1)``.  Predictive
        distributions have ``affine`` [Gneiting et al. 2005], which moves their mean and spread,
        intervals and quantiles have ``conformal`` [Romano et al. 2019], means have ``balance``
        [Bühlmann & Straub 1970], and means and quantiles ``isotonic``.  `calibscale.recalibration`
        has the classes of the methods.  Default, ``auto``: the simplest of ``identity``,
        ``temperature``, ``platt``, ``beta``, ``spline`` and ``isotonic``, or for more than two
        classes of ``identity``, ``temperature``, ``vector`` and ``matrix`` (up to 20 classes), on
        whose cross-fitted log loss no more flexible one improves by more than one standard error,
        or half a standard error among ``temperature``, ``platt`` and ``beta``.  With up to 10,000
        labelled rows, each fifth is judged by a fit to the others, and with more rows each half by
        a fit to the other.  ``vector`` and ``matrix`` need 20 rows for each coefficient, ``spline``
        and ``isotonic`` 50 rows of the rarer class.  A note has the log losses.  The same rows
        choose and judge, so that the improvement of a chosen method is too good, most of all where
        no method helps.  Rows of ``validate`` judge it without bias.
    covariates : sequence of str
        Names of the covariates of ``local_bias``, ``mc`` and ``pmc``, and name of the one whose
        groups ``hierarchical``, ``conformal`` or ``balance`` adjusts.
    validate : source or bool
        Rows on which the fit is judged, such as those of the next month.  Default: each half of the
        rows is judged by a fit to the other half, which takes two more fits.  False leaves this
        out.
    group_by : str or several, optional
        Groups of the rows that judge the fit, as of `evaluate`, such as ``age:5``: `improvement`
        names the groups whose score became worse, by simultaneous intervals.  Default: the values
        of each categorical covariate.  The groups of each further covariate take another pass.
    cluster : str, optional
        Name of a covariate, numbers or texts.  Rows with equal values are one cluster, such as a
        patient, and may depend on each other.  All rows of a cluster are in the same half or fifth
        of the rows, and the intervals of `improvement` are by clusters.  Standard errors of
        parameters take rows as independent.  Default: the clusters of a session with clusters.

    Returns
    -------
    FittedRecalibration
        Parameters with standard errors, the log loss before and after, and its change on rows that
        the fit has not used.  `print` shows them, `transform` recalibrates arrays, `apply` and
        `write` sources, `judged_on` says whether the fit helps on other rows, and `save` writes it.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if the method does not suit the data, if the data do not determine
        the fit, or if the source cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> logits = np.tile([2.0, 0.0], (1000, 1))
    >>> labels = (np.arange(1000) % 4 == 0).astype(int)
    >>> fitted = calibscale.recalibrate(calibscale.from_arrays(logits=logits, labels=labels))
    >>> round(fitted.estimates["temperature"], 6)  # 2 / log 3
    1.820478
    """
    started = time.perf_counter()
    if isinstance(method, str) and method != AUTO:
        method = method_of(method, **({"covariates": covariates} if covariates else {}))
    elif covariates:
        raise OptionError("covariates= is for a method by its name, such as mc")
    if validate is None:
        raise OptionError("validate= must be a source, or True or False")
    with Session.open(source, **options) as session:
        data = session.source
        # Unknown groups are an error before the fits.
        cluster = session.cluster_column if cluster is None else cluster
        require_groups(data, None, cluster)
        judging = data if isinstance(validate, bool) else as_source(validate)
        require_groups(judging, group_by, cluster)
        choice: Choice | None = None
        if isinstance(method, str):
            _require_maps(data)
            choice = chosen_method(session, cluster)
            method = choice.method
        if isinstance(method, LocalBias | MCBoost):
            levels = data.categorical(method.covariates, method.categorical)
            method = replace(method, categorical=levels)
        fit = method.fit(session)
        improvement = _improvement(session, fit, validate, choice, group_by, cluster)
        losses: list[float | None] = [None, None]
        if data.target.has_classes:
            losses = log_losses(session, fit, _loss_before(improvement, fit))
        notes = [*fit.notes]
        if choice is not None:
            notes.append(choice.note)
        return fitted_result(session, fit, losses, improvement, notes, started)


def fitted_result(
    session: Session,
    fit: FittedRecalibrator,
    losses: list[float | None],
    improvement: Improvement | str | None,
    notes: Sequence[str],
    started: float,
) -> FittedRecalibration:
    """Result of a fit, with log losses before and after, and its improvement or why there is none.

    `started` is the clock at the start of the fit.
    """
    if isinstance(improvement, str):
        notes = [*notes, improvement]
    summary = fit.summary
    # Log losses of all labelled rows replace the log losses of the fit.
    values = summary["parameters"].items()
    fitted = FittedRecalibration(
        method=fit.method.name,
        settings=summary["settings"],
        passes=fit.passes,
        notes=tuple(notes),
        improvement=None if isinstance(improvement, str) else improvement,
        estimates={name: value for name, value in values if not name.startswith("log_loss")},
        standard_errors=fit.standard_errors,
        log_loss_before=losses[0],
        log_loss_after=losses[1],
        fingerprint=fingerprint_of(session.source),
        state=fit.state,
        **session.outcome(fit.counts, started),
    )
    return replace(fitted, checksum=fitted._digest())


def log_losses(
    session: Session, fit: FittedRecalibrator, before: float | None = None
) -> list[float | None]:
    """Mean log losses of the labelled rows before and after recalibration.

    Every method is judged by the same loss on the same rows, whatever loss its fit has minimised.
    `before` is the loss before, if it is known.
    """
    data = session.source

    def loss(version: ArraySource) -> float | None:
        if isinstance(fit, PriorShiftFit):
            # Rows with the old shares would say that new shares do harm.
            version = as_shifted(version, fit)
        return evaluate(session.on(version), [NLL()])["nll"].value

    if before is None:
        before = loss(data)
    return [before, loss(recalibrated(data, fit)) if fit.loss_of_rows is None else fit.loss_of_rows]


def _loss_before(improvement: Improvement | str | None, fit: FittedRecalibrator) -> float | None:
    """Log loss of the rows of a fit before recalibration, if its improvement has it."""
    if not isinstance(improvement, Improvement) or improvement.judged != "cross_fitted":
        return None
    losses = {change.score: change for change in improvement.changes}
    change = losses.get(NLL.name)
    # A row that is invalid after recalibration is in neither loss of the improvement.
    return None if change is None or change.n != fit.counts.used else change.before


def _require_maps(source: ArraySource) -> None:
    """Raise an OptionError for predictions that no method is for."""
    claims = tuple(dict.fromkeys(c for name in METHODS.built_in for c in METHODS[name].judges))
    if not includes(claims, source.target.claim):
        raise unsuitable("recalibrate", source, claims)


def _improvement(
    session: Session,
    fit: FittedRecalibrator,
    validate: Any,
    choice: Choice | None,
    group_by: Any,
    cluster: str | None,
) -> Improvement | str | None:
    """Improvement by a fit, why it is not known, or None if there is none to know.

    The predictions as they are improve nothing.
    """
    if validate is False or isinstance(fit.method, Identity):
        return None
    if validate is True and isinstance(fit, PriorShiftFit):
        return f"{NOT_JUDGED}: the rows of the fit have the old shares; judge labelled new rows"
    if validate is True:
        after = None if choice is None else choice.cross_fitted
        return improvement_by_cross_fits(session, fit, after, group_by, cluster)
    other = as_source(validate)
    require_other_rows(other, fingerprint_of(session.source))
    # The position of the clusters is that of the rows of the fit.
    unclustered = replace(session, rules=replace(session.rules, cluster=None))
    return improvement_on(unclustered.on(other), fit, cluster, group_by)
