"""Choice of a recalibration method by the log loss of rows that the fits have not used."""

from __future__ import annotations

import re
from dataclasses import dataclass

from calibscale.data.source import ArraySource
from calibscale.errors import OptionError
from calibscale.formatting import number_texts
from calibscale.predictions.claims import includes
from calibscale.ranking.rank import rank
from calibscale.recalibration.affine_maps import Affine
from calibscale.recalibration.balance import Balance
from calibscale.recalibration.class_maps import MatrixScaling, VectorScaling
from calibscale.recalibration.conformal import Conformal
from calibscale.recalibration.improvements import IN_WORDS, cross_fitted
from calibscale.recalibration.logistic import Beta, Platt
from calibscale.recalibration.nonparametric import Isotonic
from calibscale.recalibration.parametric import Identity, TemperatureScaling
from calibscale.recalibration.recalibrator import RecalibrationMethod
from calibscale.recalibration.spline_map import Spline
from calibscale.results.comparison_results import Ranking
from calibscale.session import Session, listed
from calibscale.statistics.label_table import LabelTable

AUTO = "auto"  # name of the choice in place of a method
# From the simplest to the most flexible.
_CANDIDATES: tuple[type[RecalibrationMethod], ...] = (
    Identity,
    TemperatureScaling,
    VectorScaling,
    MatrixScaling,
    Platt,
    Beta,
    Spline,
    Isotonic,
    Affine,
    Conformal,
    Balance,
)
_MAX_MATRIX = 20  # classes up to which a matrix is a candidate: 420 coefficients
_ROWS_PER_COEFFICIENT = 10  # in half of the rows


@dataclass(frozen=True)
class Choice:
    """Chosen method, its cross-fitted predictions, and a sentence about the candidates."""

    method: RecalibrationMethod
    cross_fitted: ArraySource
    note: str


def chosen_method(session: Session) -> Choice:
    """Simplest method with a cross-fitted score within one standard error of the smallest.

    The score is the log loss of classes, the CRPS of predictive distributions, the score of
    intervals and quantiles, and the squared error of means.  Candidates are the predictions as they
    are, and an affine map of distributions, the conformal adjustment of intervals and quantiles, or
    the balance correction of means.

    The candidates of classes are the predictions as they are, a temperature, for two classes
    Platt's and beta calibration, a spline and isotonic regression, and for more classes vector
    scaling, and matrix scaling up to 20 classes, each where half of the rows are ten for each
    coefficient.  Each half of the rows is judged by the fit to the other half, and differences are
    paired [Hastie, Tibshirani & Friedman 2009, §7.10].  Histogram binning is for its
    guarantee, and no candidate: its log loss is larger than with isotonic regression.  A method
    that half of the rows does not determine, or that does not suit the predictions, is no
    candidate.

    An OptionError is raised if no candidate has a finite score.
    """
    data = session.source
    (score, *_) = listed(data.target.recalibration_scores)
    versions: dict[str, ArraySource] = {}
    left_out: dict[str, str] = {}  # reasons by method
    methods = {kind.name: kind() for kind in _suitable(data)}
    too_large = _too_large(session, methods)
    for name, method in methods.items():
        if name in too_large:
            continue
        if isinstance(method, Identity):
            versions[name] = data
            continue
        try:
            versions[name] = cross_fitted(session, method)
        except OptionError as error:
            reason, *_ = re.split("[;,]", str(error).removeprefix(f"{name}: "))
            left_out[name] = reason
    ranking = rank({name: session.on(version) for name, version in versions.items()}, score)
    noun = IN_WORDS[score.name]
    losses = {model.name: model.value for model in ranking.models if model.value is not None}
    if not losses:
        reason = ranking.models[0].estimate.reason
        others = [name for name in methods if name != Identity.name]
        raise OptionError(
            f"{data.name}: no method can be chosen by the {noun}: {reason}; name a method, such as "
            f"{others[-1]}"
        )
    best = min(losses, key=lambda name: losses[name])
    simplest = next(name for name in methods if name in losses and _is_near(ranking, name, best))
    in_words = ", ".join(f"{name} {number_texts.number(loss)}" for name, loss in losses.items())
    note = f"chosen by the {noun} of rows that a fit has not used: {in_words}"
    infinite = [name for name in versions if name not in losses]
    if infinite:
        note += f" (infinite: {', '.join(infinite)})"
    for name, reason in left_out.items():
        note += f"; {name} is no candidate: {reason}"
    if too_large:
        note += f" (too few rows for {', '.join(too_large)})"
    return Choice(methods[simplest], versions[simplest], note)


def _suitable(source: ArraySource) -> list[type[RecalibrationMethod]]:
    """Candidates for the predictions of a source, from the simplest to the most flexible."""
    judging = [kind for kind in _CANDIDATES if includes(kind.judges, source.target.claim)]
    if not source.target.has_classes:
        return judging
    suitable = [kind for kind in judging if kind.unsuitable(source.classes) is None]
    # With more classes, two fits of a matrix for the choice alone take too long.
    if source.classes > _MAX_MATRIX and MatrixScaling in suitable:
        suitable.remove(MatrixScaling)
    return suitable


def _too_large(session: Session, methods: dict[str, RecalibrationMethod]) -> list[str]:
    """Names of the methods with too many coefficients for half of the labelled rows."""
    sizes = {
        name: method.coefficient_rows(session.source.classes) * session.source.classes
        for name, method in methods.items()
        if isinstance(method, VectorScaling | MatrixScaling)
    }
    if not sizes:
        return []
    # Unlabelled rows do not count, so that the number of rows of the source is not enough.
    rows = session.scan([LabelTable()]).counts.used
    return [name for name, size in sizes.items() if rows < 2 * _ROWS_PER_COEFFICIENT * size]


def _is_near(ranking: Ranking, name: str, best: str) -> bool:
    """Whether the score of a model is within one standard error of the smallest one."""
    if name == best:
        return True
    (difference,) = (d for d in ranking.differences if {d.better, d.worse} == {name, best})
    error = 0.0 if difference.interval is None else difference.interval.standard_error
    return difference.value <= error
