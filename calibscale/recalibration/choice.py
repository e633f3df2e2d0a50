"""Choice of a recalibration method by the log loss of rows that the fits have not used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from calibscale.array_types import Floats
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError
from calibscale.formatting import number_texts
from calibscale.predictions.claims import includes
from calibscale.ranking.rank import rank
from calibscale.recalibration.affine_maps import Affine
from calibscale.recalibration.balance import Balance
from calibscale.recalibration.class_maps import MatrixScaling, VectorScaling
from calibscale.recalibration.conformal import Conformal
from calibscale.recalibration.improvements import cross_fitted
from calibscale.recalibration.logistic import Beta, Platt
from calibscale.recalibration.nonparametric import Isotonic
from calibscale.recalibration.parametric import Identity, TemperatureScaling
from calibscale.recalibration.recalibration_texts import IN_WORDS
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
    Affine,
    Conformal,
    Balance,
    Isotonic,
)
_MAX_MATRIX = 20  # classes up to which a matrix is a candidate: 420 coefficients
_ROWS_PER_COEFFICIENT = 20
_CURVES = (Spline, Isotonic)
_EVENTS_OF_CURVES = 50  # rows of the rarer class, about ten for each effective parameter
_ROWS_OF_CURVES = 2 * _EVENTS_OF_CURVES  # of means and quantiles
# Half-length of the interval of their mean score, relative to the score, up to which a curve is a
# candidate.  If few rows determine the score, its standard error does not tell which curve is best.
_MOST_UNCERTAIN = 0.5
# A fit to four fifths of the rows is nearer to the fit to all rows than a fit to half of them is.
# With many rows both are near enough, and the passes over the rows take long.
_FIFTHS, _HALVES = 5, 2
_MOST_ROWS_OF_FIFTHS = 10_000
# Standard errors by which a method must improve on a simpler one.  Less is enough for Platt's and
# beta calibration, which have a coefficient or two more than a temperature, and so do little harm
# where it is right.
_ENOUGH = 1.0
_ENOUGH_OF_LINES = 0.5
_LINES = (Platt, Beta)


@dataclass(frozen=True)
class Choice:
    """Chosen method and a sentence about the candidates.

    `cross_fitted` are its predictions by fits to halves, if these were compared.
    """

    method: RecalibrationMethod
    cross_fitted: ArraySource | None
    note: str


def chosen_method(session: Session, cluster: str | None = None) -> Choice:
    """Simplest method on whose cross-fitted score no more flexible one clearly improves.

    The score is the log loss of classes, the CRPS of predictive distributions, the score of
    intervals and quantiles, and the squared error of means.  Candidates are the predictions as they
    are, and an affine map of distributions, the conformal adjustment of intervals and quantiles, or
    the balance correction of means.  With 100 rows, isotonic regression of means and quantiles is a
    candidate as well, unless a few rows determine the score: the half-length of its interval must
    be at most 50 % of it, which needs more rows if most outcomes are 0.

    The candidates of classes are the predictions as they are, a temperature, for two classes
    Platt's and beta calibration, and with 50 rows of the rarer class a spline and isotonic
    regression, and for more classes vector scaling, and matrix scaling up to 20 classes, each with
    20 rows for each coefficient.  Histogram binning is for its guarantee, and no candidate: its log
    loss is larger than with isotonic regression.  A method that the rows outside of a fold do not
    determine, or that does not suit the predictions, is no candidate.

    Each fifth of the rows is judged by the fit to the others, or with more than 10,000 rows each
    half by the fit to the other.  A method improves on a simpler one if its score is smaller by
    more than one standard error of the paired difference [Hastie, Tibshirani & Friedman 2009,
    §7.10], or half a standard error among a temperature, Platt's and beta calibration.

    With the covariate `cluster`, folds and the groups of the error consist of whole clusters.

    An OptionError is raised if no candidate has a finite score.
    """
    data = session.source
    (score, *_) = listed(data.target.recalibration_scores)
    versions: dict[str, ArraySource] = {}
    left_out: dict[str, str] = {}  # reasons by method
    methods = {kind.name: kind() for kind in _suitable(data)}
    counts = _RowsByLabel.of(session)
    folds = _FIFTHS if counts.labelled <= _MOST_ROWS_OF_FIFTHS else _HALVES
    too_large = [name for name, method in methods.items() if counts.are_too_few(method)]
    for name, method in methods.items():
        if name in too_large:
            continue
        if isinstance(method, Identity):
            versions[name] = data
            continue
        try:
            versions[name] = cross_fitted(session, method, folds, cluster=cluster)
        except OptionError as error:
            reason, *_ = re.split("[;,]", str(error).removeprefix(f"{name}: "))
            left_out[name] = reason
    models = {name: session.on(version) for name, version in versions.items()}
    ranking = rank(models, score, cluster=cluster)
    noun = IN_WORDS[score.name]
    losses = {model.name: model.value for model in ranking.models if model.value is not None}
    if not losses:
        reason = ranking.models[0].estimate.reason
        others = [name for name in methods if name != Identity.name]
        raise OptionError(
            f"{data.name}: no method can be chosen by the {noun}: {reason}; name a method, such as "
            f"{others[-1]}"
        )
    if not data.target.has_classes and _is_uncertain(ranking):
        curves = [name for name in losses if isinstance(methods[name], _CURVES)]
        too_large += curves
        losses = {name: loss for name, loss in losses.items() if name not in curves}
    chosen = _chosen(ranking, [method for name, method in methods.items() if name in losses])
    in_words = ", ".join(f"{name} {number_texts.number(loss)}" for name, loss in losses.items())
    note = f"chosen by the {noun} of rows that a fit has not used: {in_words}"
    infinite = [name for name in versions if name not in losses and name not in too_large]
    if infinite:
        note += f" (infinite: {', '.join(infinite)})"
    for name, reason in left_out.items():
        note += f"; {name} is no candidate: {reason}"
    if too_large:
        note += f" (too few rows for {', '.join(too_large)})"
    return Choice(chosen, versions[chosen.name] if folds == _HALVES else None, note)


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


@dataclass(frozen=True)
class _RowsByLabel:
    """Number of labelled rows of a source, and of each class (K,), of classes."""

    labelled: int
    by_class: Floats | None
    classes: int

    @classmethod
    def of(cls, session: Session) -> Self:
        # Unlabelled rows do not count, so that the number of rows of the source is not enough.
        classes = session.source.classes
        if not session.source.target.has_classes:
            return cls(session.scan([]).counts.used, None, classes)
        table = LabelTable()
        result = session.scan([table])
        return cls(result.counts.used, result.groups[None][table].counts.sum(axis=0), classes)

    def are_too_few(self, method: RecalibrationMethod) -> bool:
        """Whether there are too few rows for a method to be a candidate."""
        if isinstance(method, VectorScaling | MatrixScaling):
            coefficients = method.coefficient_rows(self.classes) * self.classes
            return self.labelled < _ROWS_PER_COEFFICIENT * coefficients
        if not isinstance(method, _CURVES):
            return False
        if self.by_class is None:
            return self.labelled < _ROWS_OF_CURVES
        return float(self.by_class.min()) < _EVENTS_OF_CURVES


def _is_uncertain(ranking: Ranking) -> bool:
    """Whether few rows determine the score of the predictions as they are."""
    (before,) = (model.estimate for model in ranking.models if model.name == Identity.name)
    if before.interval is None or before.value is None:
        return True
    half = 0.5 * (before.interval.high - before.interval.low)
    return half > _MOST_UNCERTAIN * abs(before.value)


def _chosen(ranking: Ranking, methods: list[RecalibrationMethod]) -> RecalibrationMethod:
    """First method on which no later one improves, in an order from simple to flexible."""
    return next(
        method
        for position, method in enumerate(methods)
        if not any(_improves(ranking, other, method) for other in methods[position + 1 :])
    )


def _improves(ranking: Ranking, method: RecalibrationMethod, simpler: RecalibrationMethod) -> bool:
    """Whether the score of a method is smaller than that of a simpler one beyond its error."""
    names = {method.name, simpler.name}
    (difference,) = (d for d in ranking.differences if {d.better, d.worse} == names)
    enough = _ENOUGH
    if isinstance(method, _LINES) and not isinstance(simpler, Identity):
        enough = _ENOUGH_OF_LINES
    error = 0.0 if difference.interval is None else difference.interval.standard_error
    return difference.better == method.name and difference.value > enough * error
