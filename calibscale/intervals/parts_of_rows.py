"""Values of an estimator with rows left out or resampled, for the jackknife and the bootstrap."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri, stdtrit

from calibscale.array_types import Floats
from calibscale.intervals.resampling import (
    Bootstrap,
    Estimated,
    Jackknife,
    Resampling,
    SquaredNorm,
    frozen_by,
    group_of,
    groups_of,
    noise_replicates,
    norm_p_values,
    parted_of,
    total,
)
from calibscale.intervals.squared_norms import Noise, noise_of_gram
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.pairwise import PairSummed, Pairwise
from calibscale.results.estimate import Interval
from calibscale.statistics.null_distributions import largest_term
from calibscale.statistics.one_pass import States

if TYPE_CHECKING:
    from calibscale.kernels.pair_sums import Pairs
    from calibscale.kernels.tile_layout import Panels

_ROUNDING = 1e-9  # relative deviation of resamples below which they differ by rounding alone


@dataclass(frozen=True, eq=False)
class Parts:
    """Value of an estimator, and its values with rows left out or resampled.

    The difference of two `Parts` of the same rows belongs to the difference of the estimates.

    - `left_out` (parts,): value without each group, or each row of positive weight.  It is NaN for
      a group without rows, or where the value of the remaining rows is undefined.
    - `resampled` (resamples,): value of each resample of the groups, empty for the jackknife.
    - `form`: squared norm of a sum over pairs, which gives tighter limits than the jackknife.
    - `least_error`: lower bound of the standard error, the standard deviation of the estimate over
      labels drawn from the predictions, or 0 if none were drawn.
    - `error` and `freedom`: standard error and its degrees of freedom, unless they follow from the
      jackknife of groups of equal size.
    """

    value: float
    left_out: Floats
    resampled: Floats = field(default_factory=lambda: np.empty(0))
    form: SquaredNorm | None = None
    least_error: float = 0.0
    error: float | None = None
    freedom: float | None = None

    @property
    def count(self) -> int:
        """Number of defined values with rows left out."""
        return int(np.isfinite(self.left_out).sum())

    def __sub__(self, subtrahend: Parts) -> Parts:
        return Parts(
            self.value - subtrahend.value,
            self.left_out - subtrahend.left_out,
            self.resampled - subtrahend.resampled,
            freedom=self.freedom if self.error is None else None,
        )

    @property
    def standard_error(self) -> float:
        """Standard error of the jackknife, NaN without degrees of freedom."""
        values = self.left_out[np.isfinite(self.left_out)]
        G = len(values)
        if G < 2 or (self.freedom is not None and self.freedom <= 0):
            return float("nan")
        if self.error is not None:
            return self.error
        # The jackknife's variance is (G − 1)/G Σ_g (θ₋g − θ̄)².
        return float(np.sqrt((G - 1) / G * np.sum((values - values.mean()) ** 2)))

    def interval(self, request: Resampling, covers: str) -> Interval | None:
        """Interval that covers the quantity `covers`, or None where it is undefined."""
        error = max(self.standard_error, self.least_error)
        if not np.isfinite(self.value) or not np.isfinite(self.standard_error):
            return None
        if isinstance(request, Jackknife) or not len(self.resampled):
            freedom = self.count - 1 if self.freedom is None else self.freedom
            half = float(stdtrit(freedom, 0.5 + request.confidence_level / 2)) * error
            low = self.value - half
            high = self.value + half
            method = "jackknife"
        else:
            tails = [0.5 - request.confidence_level / 2, 0.5 + request.confidence_level / 2]
            # The bias of resamples differs from the bias of the data, so that only their deviations
            # from the mean are used.
            spread = self.resampled - np.nanmean(self.resampled)
            deviation = float(np.nanstd(spread))
            if deviation > _ROUNDING * np.nanmax(np.abs(self.resampled), initial=abs(self.value)):
                # Resamples of few groups, and squares of noise, understate the deviation.
                spread *= error / deviation
            else:  # all groups have the same rows, and resamples differ by rounding alone
                spread = error * ndtri((np.arange(len(spread)) + 0.5) / len(spread))
            low, high = (self.value + np.nanquantile(spread, tails)).tolist()
            method = "bootstrap"
        return Interval(low, high, request.confidence_level, method, self.count, error, covers)


def parts_of(
    estimator: Estimated,
    request: Resampling,
    states: States,
    pairs: Pairs | None,
    value: float,
) -> Parts | None:
    """Values with rows left out or resampled, or None if the statistics do not determine them.

    `states` contains the states of `Resampling.needs`.
    """
    if not np.isfinite(value):
        return None
    if isinstance(estimator, Pairwise):
        if pairs is None or not (isinstance(estimator, PairSummed) and estimator.rows_left_out):
            return None
        if request.clustered:
            return _clusters_left_out(estimator, request, pairs)
        return _rows_left_out(estimator, request, pairs, value)
    parted = parted_of(estimator)
    needed = request.needs(parted)
    if not needed or any(s not in states for s in needed):
        return None
    totals = [total(states[s]) for s in needed]
    fixed = frozen_by(parted, *totals)
    moved = 0.0
    if parted is not estimator:
        # The cells of the parted estimator differ slightly, and change all values alike.
        moved = value - fixed.value(*totals)
    left_out = np.full(request.groups, np.nan)
    for g in range(request.groups):
        if any(np.any(field[g]) for s in needed for field in states[s]):
            left_out[g] = fixed.value(*(total(states[s], skip=g) for s in needed)) + moved
    resampled: list[float] = []
    if isinstance(request, Bootstrap):
        rng = np.random.default_rng(request.seed)
        even = np.full(request.groups, 1 / request.groups)
        # A resample multiplies the sums of each group by the number of times that it was drawn.
        for counts in rng.multinomial(request.groups, even, request.resamples).astype(np.float64):
            with np.errstate(invalid="ignore"):  # 0·∞ where an infinite log loss is drawn 0 times
                drawn = [s.statistic.weighted_total(states[s], counts) for s in needed]
            resampled.append(fixed.value(*drawn))
    parts = Parts(value, left_out, np.array(resampled))
    if not request.clustered:
        return parts
    (sizes,) = request.sizes
    weights = states[sizes].weight  # Σw of each group (groups,)
    if largest_term(estimator) is None:  # not a mean over pairs
        return of_clusters(parts, weights, estimator.unbiased)
    values_of_groups = np.array(
        [fixed.value(*(group_of(states[s], g) for s in needed)) for g in range(request.groups)]
    )
    return _pairs_of_clusters(parts, values_of_groups, weights, states[sizes].weight2)


def _pairs_of_clusters(
    parts: Parts, values_of_groups: Floats, weights: Floats, weights2: Floats
) -> Parts:
    """Parts of a mean over pairs, without the pairs of rows in the same group of clusters.

    All arrays have the shape (groups,): the value within each group, Σw and Σw².
    """
    # A mean over pairs times its divisor (Σw)² − Σw² is the sum over pairs of different rows.
    own_pairs = np.nan_to_num(values_of_groups) * (weights * weights - weights2)
    all_pairs = [
        parts.value * (weights.sum() ** 2 - weights2.sum()),
        *parts.left_out * (_of_others(weights) ** 2 - _of_others(weights2)),
    ]
    return _across(np.array(all_pairs), own_pairs, weights)


def _of_others(values: Floats) -> Floats:
    """Sum of the values of all other groups (groups,)."""
    return values.sum() - values


def _across(all_pairs: Floats, own_pairs: Floats, w: Floats) -> Parts:
    """Means over the pairs of rows in different groups of clusters, and without each group.

    `all_pairs` has the sum over all pairs, then the sums without each group (1 + groups,).
    `own_pairs` has the sums over pairs within each group, and `w` the weights of the groups
    (groups,).
    """
    within = np.array([own_pairs.sum(), *_of_others(own_pairs)])
    scales = np.array([w.sum() ** 2 - (w * w).sum(), *_of_others(w) ** 2 - _of_others(w * w)])
    means = np.full(len(scales), np.nan)
    np.divide(all_pairs - within, scales, out=means, where=scales > 1e-12 * w.sum() ** 2)
    return of_clusters(Parts(float(means[0]), np.where(w > 0, means[1:], np.nan)), w, False)


def of_clusters(parts: Parts, w: Floats, correct: bool) -> Parts:
    """Parts of groups of clusters with different weights `w` (groups,).

    Σ (1 − w_g/Σw)² (θ₋g − θ)² G/(G − 1) estimates the variance for any weights.  The values without
    a group are scaled so that the jackknife of equal groups gives it, with 1/Σ(w_g/Σw)² − 1 degrees
    of freedom.  With `correct`, the noise of clusters is removed from the value by the jackknife's
    estimate of bias [Busing, Meijer & van der Leeden, Statistics and Computing 9 (1999)].
    """
    share = w / w.sum()
    G = int(np.isfinite(parts.left_out).sum())
    steps = (1.0 - share) * (parts.left_out - parts.value)
    left_out = parts.value + steps * (G / max(G - 1, 1))
    value = parts.value - float(np.nansum(steps)) if correct else parts.value
    freedom = 1.0 / float(share @ share) - 1.0
    return Parts(value, left_out + (value - parts.value), parts.resampled, freedom=freedom)


def _clusters_left_out(estimator: PairSummed, request: Resampling, pairs: Pairs) -> Parts:
    """Values of a sum over pairs without each group of clusters, from sums between groups."""
    spec = estimator.pair_sum
    G = request.groups
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        parts = [panels[index].rows for index in range(len(panels))]
        rows = NotionRows.join(parts)
        # Weight of each row in its group, and 0 in all others (n, G, 1).
        is_member = groups_of(rows.rows, G, request.seed)[:, None] == np.arange(G)
        member = (is_member * rows.weights[:, None])[:, :, None]
        # One vector Kv for each group gives the sums between all pairs of groups.  The vectors
        # (n, G, e + 1) are the weighted residuals, then the weights.
        vectors = np.concatenate([member * rows.delta[:, None], member], axis=2)
        columns = vectors.reshape(len(rows), -1)
        products = _product(pairs, panels, parts, columns, "groups").reshape(vectors.shape)
    # Sums over the pairs of rows of two groups (G, G).
    sums = np.einsum("iae,ibe->ab", vectors[..., :-1], products[..., :-1], optimize=True)
    kernel_sums = np.einsum("ia,ib->ab", vectors[..., -1], products[..., -1], optimize=True)
    w = member.sum(axis=(0, 2))

    def value(included: Any, noise: bool = False) -> float:
        """Value of the included groups, or its standard deviation over signs of the groups."""
        weights = w[included]
        between = sums[np.ix_(included, included)]
        part = state._replace(
            weight=weights.sum(),
            weight2=(weights * weights).sum(),
            kernel_pairs=np.zeros(()),
            kernel_diagonal=kernel_sums[np.ix_(included, included)].sum(),
        )
        if estimator.undefined(part):
            return float("nan")
        # Pairs within a group depend on each other, and are left out like a row with itself.
        within = float(np.trace(between))
        if noise:
            # Var Σ_{a≠b} s_a s_b h_ab = 2 Σ_{a≠b} h_ab² for independent signs s.
            np.fill_diagonal(between, 0.0)
            return estimator.from_sums(float(np.sqrt(2 * np.vdot(between, between))), 0.0, part)
        return estimator.from_sums(float(between.sum()), within, part)

    groups = np.arange(G)
    left_out = [value(groups[groups != g]) if w[g] > 0 else np.nan for g in groups]
    parts_of_groups = of_clusters(Parts(value(groups), np.array(left_out)), w, False)
    return replace(parts_of_groups, least_error=value(groups, noise=True))


def _product(
    pairs: Pairs, panels: Panels, parts: list[NotionRows], vectors: Floats, name: str
) -> Floats:
    """Product of the kernel matrix with vectors (n, k) over the rows of all panels, `parts`."""
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return np.concatenate(pairs.product(panels, np.split(vectors, ends), name))


def _rows_left_out(estimator: PairSummed, request: Resampling, pairs: Pairs, value: float) -> Parts:
    """Values without each row of a sum over pairs, from the row's sum over all others."""
    spec = estimator.pair_sum
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        parts = [panels[index].rows for index in range(len(panels))]
        rows = NotionRows.join(parts)
        w = rows.weights
        drawn = _drawn_residuals(rows, request)
        # One product Kv has the sums of the weighted residuals (e columns), of the weights (1), and
        # of the weighted drawn residuals (B·e).
        vectors = np.hstack([rows.delta * w[:, None], w[:, None], drawn * w[:, None]])
        products = _product(pairs, panels, parts, vectors, pairs.name("rows"))
    e = rows.delta.shape[1]
    # By row i (n,): w_i Σ_j w_j ⟨δ_i, δ_j⟩ κ_ij and w_i Σ_j w_j κ_ij, then the terms of j = i.
    by_row = np.einsum("ij,ij->i", vectors[:, :e], products[:, :e])
    kernels = w * products[:, e]
    kappa = spec.kernel.diagonal(rows)
    squares = w * w * np.einsum("ij,ij->i", rows.delta, rows.delta)
    own_pairs = squares * kappa
    own_kernel = w * w * kappa
    all_pairs = by_row.sum()
    diagonal = own_pairs.sum()
    kernel_sum = kernels.sum()
    # Without row i, a symmetric sum loses twice the row's sum, less its pair with itself.
    left_out = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        remaining = state._replace(
            weight=state.weight - w[i],
            weight2=state.weight2 - w[i] ** 2,
            kernel_pairs=np.zeros(()),
            kernel_diagonal=kernel_sum - 2 * kernels[i] + own_kernel[i],
        )
        if not estimator.undefined(remaining):
            left_out[i] = estimator.from_sums(
                float(all_pairs - 2 * by_row[i] + own_pairs[i]),
                float(diagonal - own_pairs[i]),
                remaining,
            )
    form = None
    if estimator.sum_scaled:
        # Weighted residuals of the replicates, and their sums over the kernel (n, B, e).
        shape = (len(rows), -1, e)
        drawn_residuals = vectors[:, e + 1 :].reshape(shape)
        drawn_products = products[:, e + 1 :].reshape(shape)
        # Inner products of the replicates v* of the sum over rows, and their products with v,
        # determine the noise of |v|².
        gram = np.einsum("iae,ibe->ab", drawn_residuals, drawn_products, optimize=True)
        with_observed = np.einsum("iae,ie->a", drawn_residuals, products[:, :e], optimize=True)
        p_value, least_p_value = norm_p_values(np.diag(gram), all_pairs)
        calibrated, observed = _noise_of_rows(gram, with_observed, by_row, diagonal)
        event_sums = _event_sums(rows)
        if not request.draws_responses:
            event_sums = np.zeros_like(event_sums)  # there are no events to count
        form = SquaredNorm(
            size=float(all_pairs),
            own=float(diagonal),
            squares=float(squares.sum()),
            scale=float(state.weight) ** 2,
            calibrated=calibrated,
            observed=observed,
            events=event_sums,
            p_value=p_value,
            least_p_value=least_p_value,
        )
    return Parts(value, left_out[w > 0], form=form)


def _noise_of_rows(
    gram: Floats, with_observed: Floats, by_row: Floats, diagonal: float
) -> tuple[Noise, Noise]:
    """Noise of a sum v over rows with drawn labels, and with the observed labels.

    `gram` has the inner products ⟨v*, v*⟩ of replicates (B, B), `with_observed` ⟨v*, v⟩ (B,),
    `by_row` ⟨v_i, v⟩ (n,), which has the sum |v|², and `diagonal` is Σ_i |v_i|².
    """
    size = max(by_row.sum(), 1e-300)  # |v|², as a divisor
    calibrated = noise_of_gram(gram, with_observed / np.sqrt(size))
    # tr Σ² is as if the noise of the observed rows had the shape of the noise of a calibrated
    # model.
    square = 0.0
    if calibrated.trace > 0:
        square = calibrated.square * (diagonal / calibrated.trace) ** 2
    along = by_row @ by_row / size
    return calibrated, Noise(float(diagonal), float(square), float(along))


def _drawn_residuals(rows: NotionRows, request: Resampling) -> Floats:
    """Residuals of drawn labels or signs (n, B·e), replicate by replicate."""
    count = noise_replicates(rows.delta.shape[1])
    return request.null.residuals("", rows, 0, count).reshape(len(rows), -1)


def _event_sums(rows: NotionRows) -> Floats:
    """Sums of `EventSums` (7, 2) of a scalar prediction or of the top label, 0 for forecasts."""
    if not rows.target.has_classes:
        return np.zeros((7, 2))
    top = rows.points.argmax(axis=1)[:, None]
    p = np.take_along_axis(rows.points, top, 1)[:, 0]
    delta = np.take_along_axis(rows.delta, top, 1)[:, 0]
    happened = p - delta > 0.5  # p − δ is the label, 0 or 1
    w = rows.weights
    expected = w * p
    complement = w * (1.0 - p)
    terms = np.array(  # in the order of `EventSums`
        [
            w,
            w * w,
            expected,
            complement,
            expected * expected,
            expected * complement,
            complement * complement,
        ]
    )
    return np.column_stack([terms[:, ~happened].sum(axis=1), terms[:, happened].sum(axis=1)])
