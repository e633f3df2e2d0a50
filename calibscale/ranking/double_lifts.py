"""`double_lift`, the mean predictions of two models and outcomes by the ratio of predictions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from scipy.special import stdtrit

from calibscale.array_types import Floats, Ints
from calibscale.data.joined_models import functional_source, joined
from calibscale.errors import require
from calibscale.evaluation.concentration import require_means
from calibscale.intervals.mean_limits import mean_error, student_half
from calibscale.intervals.proportions import check_level
from calibscale.ranking.model_estimates import named_models
from calibscale.results.curve_results import DoubleLift, LiftBin
from calibscale.results.evaluation_results import Range
from calibscale.session import Session, SessionOptions, source_of_argument, verb
from calibscale.statistics.ordered_sums import OrderedState, RatioState, RatioSums

# Effective number of rows with an outcome below which Student's intervals miss too often: those of
# rare events and of heavy tails are skewed.
FEWEST_OUTCOMES = 30.0


@verb
def double_lift(
    first: Any,
    second: Any,
    *,
    names: Sequence[str] | None = None,
    bins: int = 10,
    confidence_level: float = 0.95,
    **options: Unpack[SessionOptions],
) -> DoubleLift:
    """Compare two models of positive means by bins of the ratio of their predictions, in one pass.

    Rows are put in the order of second/first, and cut into bins of about equal exposure, which is
    the weight.  Where the models differ most, at both ends, the mean outcome of a bin says which
    mean prediction is nearer [Goldburd, Khare, Tevet & Guller, Generalized Linear Models for
    Insurance Rating (2020), §7.2.2].

    The advantage of the second model in a bin is (ȳ − ā)² − (ȳ − b̄)² = (b̄ − ā)(2ȳ − ā − b̄), with
    the mean outcome ȳ and the mean predictions ā and b̄.  It is linear in the outcomes, so that
    their noise does not bias it.  `DoubleLift.advantage` is its mean over bins, weighted by their
    exposures, and the verdict follows from its interval.  Student's intervals are for independent
    rows, and hold the predictions fixed.  They are wider than necessary where the expected excess
    of an outcome over both predictions varies within a bin.

    Sums are kept by ratio, and with more than 65,536 different ratios in cells of a relative width
    of 2⁻¹² or more.  Bins consist of whole cells, so that their means are exact.

    Parameters
    ----------
    first, second : source
        Models for the same rows, as in `evaluate`.  Predictions are positive means.
    names : (str, str), optional
        Names of the models.  Default: names of their sources.
    bins : int
        Number of bins, 1 to 1,000.  There are fewer if many rows have the same ratio.
    confidence_level : float
        Level of the intervals, in (0, 1).
    **options
        See `evaluate`.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if the models have different labels or numbers of rows, if a
        prediction is not positive or no mean, or if data cannot be read.

    See Also
    --------
    murphy_diagram : Comparison of models by all consistent scores.
    concentration_curve : Order of the outcomes by the predictions of one model.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.gamma(2.0, size=2000)
    >>> y = mean * rng.exponential(size=2000)
    >>> true, flat = (
    ...     calibscale.from_arrays(predictions=x, forecast="mean", labels=y)
    ...     for x in (mean, np.full(2000, 2.0))
    ... )
    >>> chart = calibscale.double_lift(flat, true, names=("flat", "true"))
    >>> chart.advantage_interval.lower > 0
    True
    """
    started = time.perf_counter()
    check_level(confidence_level)
    whole = isinstance(bins, int | np.integer)
    require(whole and 1 <= bins <= 1000, "bins must be a number in 1..1000", bins)
    arguments = [first, second]
    if names is not None:
        # A text would be a sequence of letters.
        names = () if isinstance(names, str) else tuple(map(str, names))
        require(len(set(names)) == 2 == len(names), "names must be two different names")
    sources = [
        functional_source(source_of_argument(argument), "double_lift") for argument in arguments
    ]
    # Both are checked before either is read.
    for source in sources:
        require_means(source.target, "double_lift")
    models = dict(zip(names, sources, strict=True)) if names else named_models(sources)
    source = joined(models)
    statistic = RatioSums(0)
    with Session.open(first, **options) as opened:
        session = opened.on(source)
        result = session.scan([statistic], covariates=source.covariate_names)
        state: OrderedState = result.groups[None][statistic]
        outcome = session.outcome(result.counts, started, bins=bins, level=confidence_level)
    first_name, second_name = models
    starts = _starts(state, bins)
    sums = _binned(state, starts)
    with np.errstate(over="ignore", invalid="ignore"):  # intervals beyond float64 are None
        advantage, interval = _total_advantage(sums, confidence_level)
        parts = _bins(state, starts, sums, confidence_level)
    return DoubleLift(
        first=first_name,
        second=second_name,
        level=confidence_level,
        bins=parts,
        advantage=advantage,
        advantage_interval=interval,
        **outcome,
    )


def _starts(state: OrderedState, bins: int) -> Ints:
    """First cell of each bin: a cell is in the bin that has the middle of its exposure."""
    weight = state.sums[1]
    # A cell of many tied rows goes to the bin of most of them, and may leave others empty.
    middles = np.cumsum(weight) - 0.5 * weight
    numbers = np.minimum((middles / weight.sum() * bins).astype(np.int64), bins - 1)
    _, starts = np.unique(numbers, return_index=True)
    return np.asarray(starts, np.int64)


def _binned(state: OrderedState, starts: Ints) -> RatioState:
    """Sums of each bin."""
    if not len(starts):
        return RatioState(*state.sums)
    return RatioState(*np.add.reduceat(state.sums, starts, axis=1))


def _gaps(sums: RatioState) -> tuple[Floats, Floats]:
    """Twice the difference b̄ − ā of the mean predictions of each bin, and the mean excess ē.

    The advantage of the second model is their product.
    """
    return 2.0 * (sums.second - sums.first) / sums.weight, sums.excess / sums.weight


def _errors(sums: RatioState) -> tuple[Floats, Floats, Floats]:
    """Effective rows of each bin, and standard errors of its mean outcome and mean excess."""
    rows = sums.weight**2 / sums.weight2
    columns = (
        (sums.responses, sums.responses2, sums.squared_responses),
        (sums.excess, sums.excess2, sums.squared_excess),
    )
    of_outcome, of_excess = (
        mean_error(total / sums.weight, sums.weight, sums.weight2, total2, squares)
        for total, total2, squares in columns
    )
    return rows, of_outcome, of_excess


def _bins(state: OrderedState, starts: Ints, sums: RatioState, level: float) -> tuple[LiftBin, ...]:
    """Bins with their intervals."""
    if not len(starts):
        return ()
    gap, excess = _gaps(sums)
    rows, of_outcome, of_excess = _errors(sums)
    enough = (rows >= 2.0) & (_outcomes(sums.responses, sums.squared_responses) >= FEWEST_OUTCOMES)
    ends = np.append(starts[1:], len(state.keys)) - 1
    lower, upper = state.least_numbers()[starts], state.largest_numbers()[ends]
    bins = []
    for k in range(len(starts)):
        mean, advantage = float(sums.responses[k] / sums.weight[k]), float(gap[k] * excess[k])
        interval = advantage_interval = None
        if enough[k]:
            half = student_half(float(of_outcome[k]), float(rows[k]), level)
            interval = _range(mean, half)
            # The predictions are fixed, so that the advantage varies with the excess alone.
            half = abs(float(gap[k])) * student_half(float(of_excess[k]), float(rows[k]), level)
            advantage_interval = _range(advantage, half)
        bins.append(
            LiftBin(
                lower=float(lower[k]),
                upper=float(upper[k]),
                count=int(sums.rows[k]),
                weight=float(sums.weight[k]),
                effective_count=float(rows[k]),
                first=float(sums.first[k] / sums.weight[k]),
                second=float(sums.second[k] / sums.weight[k]),
                outcome=mean,
                interval=interval,
                advantage=advantage,
                advantage_interval=advantage_interval,
            )
        )
    return tuple(bins)


def _total_advantage(sums: RatioState, level: float) -> tuple[float | None, Range | None]:
    """Mean advantage of the second model over all bins, and its interval."""
    if not len(sums.weight):
        return None, None
    gap, excess = _gaps(sums)
    rows, _, of_excess = _errors(sums)
    shares = sums.weight / sums.weight.sum()
    advantage = float(shares @ (gap * excess))
    # Without the error of a bin there is no error of the mean of all bins.
    seen = _outcomes(sums.responses.sum(), sums.squared_responses.sum())
    if not (rows >= 2.0).all() or seen < FEWEST_OUTCOMES:
        return advantage, None
    # Bins are independent, and each of them estimates one mean.
    errors = np.abs(shares * gap * of_excess) * np.sqrt(rows / (rows - 1.0))
    # Relative to the largest, because powers of huge or tiny units would overflow or vanish.
    largest = float(errors.max())
    relative = (errors / largest) ** 2 if largest > 0 else np.ones(len(errors))
    # Degrees of freedom of Welch and Satterthwaite.
    freedom = float(relative.sum()) ** 2 / float((relative**2 / (rows - 1.0)).sum())
    error = largest * float(np.sqrt(relative.sum()))
    return advantage, _range(advantage, float(stdtrit(freedom, 0.5 + level / 2.0)) * error)


def _outcomes(responses: Any, squared_responses: Any) -> Any:
    """Effective number of rows with an outcome: (Σwr)²/Σw²r², which is small for rare events."""
    roots = np.sqrt(squared_responses)
    return np.divide(responses, roots, np.zeros_like(roots), where=roots > 0) ** 2


def _range(value: float, half: float) -> Range | None:
    """Interval around a value, or None if its numbers are beyond float64."""
    ends = value - half, value + half
    return Range(*ends) if np.isfinite(ends).all() else None
