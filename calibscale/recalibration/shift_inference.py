"""Standard errors, intervals and tests of new shares of the classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc, ndtri

from calibscale.array_types import Floats
from calibscale.results.evaluation_results import Range
from calibscale.results.shift_results import ShiftTest
from calibscale.statistics.shift_sums import CELLS, LIKELIHOOD, LabelledShiftState, ShiftState

_CELL_ROWS = 25.0  # effective rows of a cell, in the sparser of both periods
_MOST_CELLS = 10  # cells of the confidence in a test
_RANK = 1e-10  # of variances, below which a difference is determined by the others
# Share of the variance of a cell's difference that remains after the fit of the class shares.
# Differences with less are nearly fitted ones, with errors of second order as large as their first.
_REMAINING = 0.02


class Means(NamedTuple):
    """Means of a period, their covariance (m, m), and the effective number of rows."""

    values: Floats
    covariance: Floats
    rows: float


def means_of_new(state: ShiftState, ratios: Floats, kind: str) -> Means:
    """Means of the row vectors of new rows, and their covariance for independent rows."""
    weight, K = float(state.weight), len(ratios)
    values = state.sums / weight
    # Σw²x follows from Σw²xxᵀ, because the responses of a row sum to 1, those of `likelihood` in
    # the proportions of the ratios.
    unit = ratios if kind == LIKELIHOOD else np.ones(K)
    sums2 = state.products2[:, :K] @ unit
    covariance = _covariance(state.products2, sums2, values, float(state.weight2), weight)
    return Means(values, covariance, weight**2 / float(state.weight2))


def means_of_old(state: LabelledShiftState, ratios: Floats) -> Means:
    """Means of (v_y x, e_y) over old rows, with the ratio v_y of the label, and their covariance.

    The m row vectors come first, then the K indicators of the label.
    """
    weight, weight2 = state.weights.sum(axis=1)
    values = np.append(ratios @ state.sums[0], state.weights[0]) / weight
    sums2 = np.append(ratios @ state.sums[1], state.weights[1])
    mixed = (ratios[:, None] * state.sums[1]).T
    products = np.block([[state.products, mixed], [mixed.T, np.diag(state.weights[1])]])
    covariance = _covariance(products, sums2, values, weight2, weight)
    return Means(values, covariance, weight**2 / weight2)


def _covariance(
    products2: Floats, sums2: Floats, means: Floats, weight2: float, weight: float
) -> Floats:
    """Covariance of means, Σw²(x − x̄)(x − x̄)ᵀ/(Σw)², with the correction n/(n − 1)."""
    mixed = np.outer(sums2, means)
    centred = products2 - mixed - mixed.T + weight2 * np.outer(means, means)
    rows = weight**2 / weight2
    return centred / weight**2 * (rows / max(rows - 1.0, 1.0))


# ---------------------------------------------------------------- tests


def mean_test(difference: Floats, old: Means, new: Means) -> ShiftTest | None:
    """Test that the expectations of two means are equal [Hotelling 1931, for two samples].

    `old` and `new` have the parts of the covariance that their rows cause.  The degrees of freedom
    of the covariance are those of Welch, averaged over the differences.  None for too few rows.
    """
    covariance = old.covariance + new.covariance
    scale = np.sqrt(np.diag(covariance).clip(0.0))
    varies = scale > 0.0
    scale = scale[varies]
    if not len(scale):
        return None
    pick = np.ix_(varies, varies)
    scaled = covariance[pick] / np.outer(scale, scale)
    # Mean probabilities sum to 1, so that one difference follows from the others.
    values, vectors = np.linalg.eigh(scaled)
    kept = values > _RANK * values[-1]
    axes = vectors[:, kept] / np.sqrt(values[kept])
    z = (difference[varies] / scale) @ axes
    degrees = int(kept.sum())
    # Share of each period in the variance of the differences, all of which have variance 1.
    by_old = old.covariance[pick] / np.outer(scale, scale)
    share = float(np.einsum("ik,ij,jk->", axes, by_old, axes)) / degrees
    inverse = share**2 / max(old.rows - 1.0, 1.0) + (1.0 - share) ** 2 / max(new.rows - 1.0, 1.0)
    return f_test(float(z @ z), degrees, 1.0 / inverse)


def f_test(statistic: float, degrees: int, rows: float) -> ShiftTest | None:
    """Test by a quadratic form whose covariance has `rows` degrees of freedom."""
    remaining = rows - degrees + 1.0
    # With fewer rows, the covariance of so many differences is too uncertain for a test.
    if remaining < max(10.0, degrees):
        return None
    p_value = float(fdtrc(degrees, remaining, statistic * remaining / (rows * degrees)))
    return ShiftTest(statistic, degrees, float(rows), p_value)


# ---------------------------------------------------------------- shares


@dataclass(frozen=True, eq=False)
class ShareErrors:
    """Errors of estimated shares, from the sums of both periods at the estimated ratios.

    The ratios v solve E_new h(v) = b(v).  For EM, h = q/⟨v, q⟩, and b are the old shares, if the
    predictions are calibrated as they are.  If they have been recalibrated by the labels of the old
    rows, the means E_old[v_y h] take the part of b in the errors: their equation holds for any
    map under label shift, so that errors of the map do not matter, and a fit by these labels
    nearly solves it.  For BBSE, h = q, and b = E_old[v_y h].

    Parameters
    ----------
    old, new : sums of both periods, with cells
    ratios : (K,)
        Estimated ratios of the shares.
    kind : str
        Responses of the equation, see `RowVectors`.
    inverse : (K, K)
        Derivatives of the ratios by the means of h.
    by_labels : bool
        Whether b are means of v_y h over the old rows, or else the old shares.
    """

    old: LabelledShiftState
    new: ShiftState
    ratios: Floats
    kind: str
    inverse: Floats
    by_labels: bool

    @property
    def classes(self) -> int:
        return len(self.ratios)

    @cached_property
    def old_means(self) -> Means:
        return means_of_old(self.old, self.ratios)

    @cached_property
    def new_means(self) -> Means:
        return means_of_new(self.new, self.ratios, self.kind)

    @property
    def old_shares(self) -> Floats:
        return self.old_means.values[-self.classes :]

    @cached_property
    def _by_new(self) -> Floats:
        """Derivatives of the ratios by the means of new rows (K, m)."""
        return np.hstack([self.inverse, np.zeros((self.classes, self._cells))])

    @cached_property
    def _by_old(self) -> Floats:
        """Derivatives of the ratios by the means of old rows (K, m + K)."""
        K = self.classes
        derivatives = np.zeros((K, K + self._cells + K))
        # The columns are those of `old_means`: responses, cells, and labels.
        place = slice(0, K) if self.by_labels else slice(K + self._cells, None)
        derivatives[:, place] = -self.inverse
        return derivatives

    @property
    def _cells(self) -> int:
        return len(self.new.sums) - self.classes

    def covariance(self) -> Floats:
        """Covariance of the new shares (K, K)."""
        by_new = self.old_shares[:, None] * self._by_new
        by_old = self.old_shares[:, None] * self._by_old
        # A share is the ratio times the old share, which has its own error.
        by_old[:, -self.classes :] += np.diag(self.ratios)
        return by_new @ self.new_means.covariance @ by_new.T + (
            by_old @ self.old_means.covariance @ by_old.T
        )

    def calibration_test(self) -> ShiftTest | None:
        """Test that the old predictions are calibrated as EM needs it: E_old[v_y h] = old shares.

        After a recalibration by the same labels, the test rejects less often than its level.  The
        degrees of freedom of the covariance are the harmonic mean of the rows of the classes: with
        50 rows of a class and ratios of 4, those of all rows rejected 10 % of calibrated data sets
        at 5 %, and these 6.5 %.
        """
        K = self.classes
        to_difference = np.hstack([-np.eye(K), np.zeros((K, self._cells)), np.eye(K)])
        covariance = to_difference @ self.old_means.covariance @ to_difference.T
        by_class = self.old.weights[0] ** 2 / self.old.weights[1]
        rows = len(by_class) / float((1.0 / by_class).sum())
        old = Means(self.old_shares - self.old_means.values[:K], covariance, rows)
        fixed = Means(np.zeros(K), np.zeros((K, K)), np.inf)
        return mean_test(old.values, old, fixed)

    def _rows_by_ratio(self) -> float:
        """Effective number of old rows with the ratios of their labels as weights."""
        weight2 = float(self.ratios**2 @ self.old.weights[1])
        return float(self.ratios @ self.old.weights[0]) ** 2 / weight2

    def pure_shift_test(self) -> ShiftTest | None:
        """Test that the numbers of new rows in cells follow from the old rows of each class.

        Without other changes, the share of new rows in a cell is E_old[v_y·1(cell)].  The equations
        of BBSE hold for predictions that are not calibrated, too, so that with its ratios a
        rejection is no sign of miscalibration.
        """
        K = self.classes
        # Expected shares of new rows by class and cell, and their derivative by the ratios.
        expected = self.old.sums[0][:, K:] / self.old.weights[0].sum()
        differences = self.new_means.values[K:] - self.old_means.values[K:-K]
        to_cells = np.hstack([np.zeros((self._cells, K)), np.eye(self._cells)])
        labels = np.zeros((self._cells, K))
        by_new = to_cells - expected.T @ self._by_new
        by_old = -np.hstack([to_cells, labels]) - expected.T @ self._by_old
        groups = self._groups()
        # `plain` leaves out that the shares are estimated from the same rows.
        parts, plain = [], []
        for period, derivatives, rows in (
            (self.old_means, by_old, self._rows_by_ratio()),
            (self.new_means, by_new, self.new_means.rows),
        ):
            covariance = groups @ derivatives @ period.covariance @ derivatives.T @ groups.T
            parts.append(Means(period.values, covariance, rows))
            cells = period.covariance[K : K + self._cells, K : K + self._cells]
            plain.append(groups @ cells @ groups.T)
        axes = _remaining_axes(parts[0].covariance + parts[1].covariance, plain[0] + plain[1])
        if not axes.shape[1]:
            return None
        rotated = [part._replace(covariance=axes.T @ part.covariance @ axes) for part in parts]
        return mean_test(axes.T @ (groups @ differences), *rotated)

    def _groups(self) -> Floats:
        """Indicators of joined cells (g, cells), without the last ones, which the others give."""
        K = self.classes
        # Rows of different ratios count as rows of different weights, (Σw)²/Σw².
        rows = np.full(self._cells, np.inf)
        for sums, squares in (
            (self.ratios @ self.old.sums[0][:, K:], np.diag(self.old.products)[K:]),
            (self.new.sums[K:], np.diag(self.new.products2)[K:]),
        ):
            of_period = np.divide(sums**2, squares, np.zeros_like(sums), where=squares > 0.0)
            rows = np.minimum(rows, of_period)
        least = max(_CELL_ROWS, rows[:CELLS].sum() / _MOST_CELLS)
        groups, row, count = [], np.zeros(len(rows)), 0.0
        for cell in range(CELLS):
            row[cell] = 1.0
            count += rows[cell]
            if count >= least:
                groups.append(row)
                row, count = np.zeros(len(rows)), 0.0
        # The cells after the last group join it, and its share follows from the others.
        groups = groups[:-1]
        tops = [k for k in range(CELLS, len(rows)) if rows[k] >= _CELL_ROWS]
        groups += [np.eye(1, len(rows), k)[0] for k in tops[:-1]]
        return np.array(groups).reshape(len(groups), len(rows))


def _remaining_axes(covariance: Floats, plain: Floats) -> Floats:
    """Axes of differences that the fit of the shares leaves free (g, axes).

    `plain` is the covariance without the fit.
    """
    if not len(plain):
        return np.zeros((0, 0))
    values, vectors = np.linalg.eigh(plain)
    kept = values > _RANK * max(values[-1], 1e-300)
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    shares, axes = np.linalg.eigh(whitening.T @ covariance @ whitening)
    # In the axes of `plain`, the eigenvalues are the shares of its variance that remain.
    return whitening @ axes[:, shares > _REMAINING]


def share_interval(share: float, error: float, rows: float, level: float) -> Range:
    """Confidence interval of a share with a standard error, by the score of Wilson (1927).

    The variance of an estimate of the share s has the part s(1 − s)/n of n new rows, as if their
    labels were known, and another part τ² that hardly depends on s.  The limits solve
    (s − estimate)² = z²(τ² + s(1 − s)/n).  Intervals that are symmetric about the estimate of a
    rare class miss above too often.
    """
    z2 = float(ndtri(0.5 + level / 2.0)) ** 2
    inside = min(max(share, 0.0), 1.0)
    fixed = max(error**2 - inside * (1.0 - inside) / rows, 0.0)
    # The roots of a quadratic in s with the coefficients 1 + z²/n, −2·half and the constant.
    first = 1.0 + z2 / rows
    half = share + z2 / (2.0 * rows)
    root = math.sqrt(max(half**2 - first * (share**2 - z2 * fixed), 0.0))
    lower, upper = (half - root) / first, (half + root) / first
    return Range(min(max(lower, 0.0), 1.0), max(min(upper, 1.0), 0.0))


# ---------------------------------------------------------------- black-box shift estimation


class BlackBoxShares(NamedTuple):
    """Ratios (K,), derivatives by the mean predictions (K, K), and the factor of the penalty."""

    ratios: Floats
    inverse: Floats
    regularization: float


def black_box_ratios(
    confusion: Floats, predicted: Floats, rows: tuple[float, float], regularization: float | None
) -> BlackBoxShares:
    """Ratios v of the shares by C v = μ [Lipton, Wang & Smola, ICML 2018, eq. 2].

    With a penalty, |D⁻½(μ − C v)|² + λ Σ old_k (v_k − 1)² is minimal, D the diagonal of the mean
    old predictions [as Azizzadenesheli et al., ICLR 2019, with the square of the norm].  The
    singular values of D⁻½ C diag(old)⁻½ are the correlations of predictions and labels, at most 1,
    and have errors of about √(K/n).  The penalty is only used if the smallest one is below √λ, λ =
    K(1/n_old + 1/n_new), so that the rows would say less than the penalty about its direction.

    Parameters
    ----------
    confusion : (K, K)
        C, means of prediction j (row) and label k (column) over the old rows.
    predicted : (K,)
        μ, mean predictions of the new rows.
    rows : (float, float)
        Effective numbers of old and new rows.
    regularization : float, optional
        Penalty λ, by default 0 or the value above.
    """
    old_shares, old_predicted = confusion.sum(axis=0), confusion.sum(axis=1)
    # The column sums of C are the old shares, and its row sums the mean old predictions.
    # A class that is never predicted gives no equation.
    row_scale = np.divide(
        1.0, np.sqrt(old_predicted), np.zeros_like(old_predicted), where=old_predicted > 0.0
    )
    scaled = row_scale[:, None] * confusion / np.sqrt(old_shares)
    left, correlations, right = np.linalg.svd(scaled)
    noise = len(old_shares) * (1.0 / rows[0] + 1.0 / rows[1])
    penalty = regularization
    if penalty is None:
        penalty = noise if correlations[-1] ** 2 < noise else 0.0
    factors = correlations / (correlations**2 + penalty)
    inverse = (right.T * factors) @ left.T
    inverse = inverse * row_scale / np.sqrt(old_shares)[:, None]
    ratios = 1.0 + inverse @ (predicted - old_predicted)
    return BlackBoxShares(ratios, inverse, penalty)


def nearest_shares(shares: Floats) -> Floats:
    """Shares of at least 0 with the smallest squared distance (K,) [Duchi et al. 2008]."""
    if (shares >= 0.0).all():
        return shares
    descending = np.sort(shares)[::-1]
    excess = (np.cumsum(descending) - 1.0) / np.arange(1, len(shares) + 1)
    above = int(np.flatnonzero(descending > excess)[-1])
    return np.maximum(shares - excess[above], 0.0)


def condition(matrix: Floats) -> float:
    """Ratio of the largest to the smallest eigenvalue of a symmetric matrix, scaled to ones."""
    scale = np.sqrt(np.diag(matrix))
    if not (scale > 0.0).all():
        return math.inf
    values = np.linalg.eigvalsh(matrix / np.outer(scale, scale))
    return math.inf if values[0] <= 0.0 else float(values[-1] / values[0])
