"""Lower confidence bounds of the calibration error, valid at every n."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import expit, logit

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.data.covariates import PARTS, axis_of
from calibscale.errors import OptionError, require
from calibscale.estimators.base import ScalarEstimator, bound_notion, set_names, without_rows
from calibscale.formatting.number_texts import rounded
from calibscale.kernels.data_profile import BANDWIDTH_ROWS, DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.results.estimate import Estimate
from calibscale.statistics.isotonic import isotonic_regression
from calibscale.statistics.ratios import ratio
from calibscale.statistics.statistic import Statistic, weights_of

GROUPS = 20  # groups of rows, in an order in which each is judged by models of those before it
# Borders and centres of the cells, which are 0.25 of log-odds wide from −7 to 7.
BORDERS = 1.0 / (1.0 + np.exp(-0.25 * np.arange(-28, 29)))
CENTRES = 1.0 / (1.0 + np.exp(-0.25 * np.arange(-28.5, 29.5)))
MODELS = ("isotonic", "bins", "temperature", "ukkr")
# Kernel ridge regression has a model for each of three values of `reg` from the grid of [GB].
REGS = {f"ukkr {reg}": reg for reg in (0.1, 0.01, 0.001)}
# Models of each setting `by`.
FITS = {"best": MODELS[:3], **{by: (by,) for by in MODELS}, "ukkr": (*REGS,)}
MAX_PARTS = 64  # parts of the covariates' values
SLOPES = tuple(2.5 ** (k / 12.0) for k in range(-12, 13) if k)  # 1/T of whole predictions
RANGE = 0.25  # largest max − min of d of a row
# Ranges of E[δ | p].
SIDES = {"both": (-np.inf, np.inf), "over": (0.0, np.inf), "under": (-np.inf, 0.0)}


class GroupCellState(NamedTuple):
    """Σ1, Σp, Σδ, Σδ² by group, problem and cell (4, G, J, cells), and rows of weight not 1."""

    sums: Floats
    weighted: Floats


@dataclass(frozen=True)
class GroupCells(Statistic):
    """Sums over rows by cell of p and by group, a hash of the row number.  J is 1, or K by class.

    With `cuts`, the position of each covariate and the inner edges of its parts, the cells of each
    combination of parts follow one another.
    """

    notion: str
    cuts: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def zero(self, classes: int) -> GroupCellState:
        problems = classes if self.notion == "class_wise" else 1
        shape = (4, GROUPS, problems, _parts(self.cuts) * len(CENTRES))
        return GroupCellState(np.zeros(shape), np.zeros(()))

    def accumulate(self, state: GroupCellState, chunk: Chunk) -> GroupCellState:
        w = weights_of(chunk)
        state.weighted[...] += np.count_nonzero((w != 1.0) & (w > 0))
        part = np.zeros(len(chunk), np.int64)
        for position, edges in self.cuts:
            assert chunk.covariates is not None
            # Combinations of parts are numbered with the last covariate fastest.
            codes = np.searchsorted(np.array(edges), chunk.covariates[:, position])
            part = part * (len(edges) + 1) + codes
        cells = state.sums.shape[-1]
        first = _groups(chunk) * cells + part * len(CENTRES)
        for j in range(state.sums.shape[2]):
            if self.notion == "class_wise":
                p, delta = chunk.q[:, j], chunk.delta[:, j]
            else:
                p, _, delta, _ = chunk.event(self.notion)
            places = first + np.searchsorted(BORDERS, p)  # group and cell of each row
            columns = (np.ones_like(p), p, delta, delta * delta)
            for total, values in zip(state.sums, columns, strict=True):
                group_sums = np.bincount(places, values * (w > 0), GROUPS * cells)
                total[:, j] += group_sums.reshape(GROUPS, cells)
        return state


@dataclass(frozen=True)
class GroupTemperatures(Statistic):
    """Σ1, Σ−log r_y, Σx, Σx², Σz, Σz² by group and slope, with r = softmax(slope·log q): (6, G, S).

    x is ⟨sign(d), δ⟩ with d = q − r, and z 2⟨d, δ⟩ − |d|² with d shrunk to a range of `RANGE`.
    """

    def zero(self, classes: int) -> GroupCellState:
        return GroupCellState(np.zeros((6, GROUPS, len(SLOPES))), np.zeros(()))

    def accumulate(self, state: GroupCellState, chunk: Chunk) -> GroupCellState:
        state.weighted[...] += np.count_nonzero(weights_of(chunk) != 1.0)
        groups = _groups(chunk)
        label_log_q = chunk.log_q[np.arange(len(chunk)), chunk.labels]
        for k, slope in enumerate(SLOPES):
            r = np.exp(slope * chunk.log_q)
            scale = r.sum(axis=1)
            # d guesses E[δ | q].  Any signs s(q) give E⟨s, δ⟩ ≤ E‖E[δ | q]‖₁, and any guess gives
            # E(2⟨d, δ⟩ − |d|²) ≤ E‖E[δ | q]‖².
            d = chunk.q - r / scale[:, None]
            x = np.einsum("ij,ij->i", np.sign(d), chunk.delta)
            shrunk = RANGE / np.maximum(d.max(axis=1) - d.min(axis=1), RANGE)
            z = 2.0 * shrunk * np.einsum("ij,ij->i", d, chunk.delta)
            z -= shrunk**2 * np.einsum("ij,ij->i", d, d)
            sums = (np.ones_like(x), np.log(scale) - slope * label_log_q, x, x * x, z, z * z)
            for total, values in zip(state.sums[:, :, k], sums, strict=True):
                total += np.bincount(groups, values, GROUPS)
        return state


def _parts(cuts: tuple[tuple[int, tuple[float, ...]], ...]) -> int:
    """Number of combinations of parts of the covariates."""
    return math.prod(len(edges) + 1 for _, edges in cuts)


def _groups(chunk: Chunk) -> Ints:
    """Group of each row (c,)."""
    u = random_draws.of_rows(chunk.rows, 0, random_draws.GROUPS)
    return np.minimum((u * GROUPS).astype(np.int64), GROUPS - 1)


@dataclass(frozen=True)
class CertifiedL1(ScalarEstimator):
    """Lower confidence bound of the L1 calibration error E|E[δ | p]|, valid at every n.

    Rows are independent and of any law.  The terms s·δ have a sign s for each of 58 cells of p from
    earlier groups of rows, so that their mean is at most the error [Braun et al. 2026].  The bound
    is (Σλx − Σψ(λ)x² − log 1/α) / Σλ, with ψ(λ) = −log(1 − λ) − λ and λ from earlier groups
    (Waudby-Smith & Ramdas 2023, Thm. 2).  It is not squared: 0.02 means that predictions are off by
    at least 2 points on average, and 0 claims nothing.  `details` has the one-step estimate, the
    mean of the terms, and its standard error.  ``class_wise`` sums over the classes, which is at
    most the canonical L1 error.  One pass.  Weights other than 0 are ignored.

    Parameters
    ----------
    notion : {"top_label", "positive", "class_wise", "canonical"}, optional
        Default: ``positive`` for two classes, else ``top_label``.  ``canonical`` is of the whole
        prediction, by the temperature of the smallest log loss in earlier groups.
    by : {"best", "isotonic", "bins", "temperature", "ukkr"}
        Model of E[δ | p]: isotonic regression, the means of the cells, shrunk for noise, a factor
        of the log-odds of p, kernel ridge regression (`UKKR`) with reg 0.1, 0.01 or 0.001, or in
        every group the model with the largest terms in earlier groups (``ukkr`` only with
        covariates).
    side : {"both", "over", "under"}
        Parts of the error: ``over`` counts predictions that are too high, with max(E[δ | p], 0)
        instead of |E[δ | p]|.  ``under`` counts predictions that are too low.
    level : float
        Confidence level.
    covariates : tuple of str
        Covariates x of the local error E|E[δ | p, x]|: the models are for each combination of their
        categories, values (at most 10) or fifths, at most 64.  The kernel of ``ukkr`` is a Gaussian
        on p times (1 + 1{same combination})/2.  The bound also holds for the error given all of x.

    See Also
    --------
    CertifiedL2 : Lower confidence bound of the squared L2 error.
    ECE : Mean distance of bins from calibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> p = [0.2, 0.7] * 500  # in fact 0.5, an error of 0.25
    >>> data = cs.from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 250, binary=True)
    >>> 0.18 < cs.evaluate(data, ["certified_l1"])["certified_l1"].value < 0.25
    True
    """

    notion: str | None = None
    by: str = "best"
    side: str = "both"
    level: float = 0.95
    covariates: tuple[str, ...] = ()
    cuts: tuple[tuple[int, tuple[float, ...]], ...] = field(default=(), repr=False)  # once bound
    name: ClassVar[str] = "certified_l1"
    squared: ClassVar[bool] = False
    by_default: ClassVar[bool] = False
    notions: ClassVar[tuple[str, ...]] = ("top_label", "positive", "class_wise", "canonical")
    no_interval: ClassVar[str | None] = "the value is the lower end of a confidence interval"
    no_floor: ClassVar[str | None] = no_interval

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = self.by in FITS and self.side in SIDES
        if not (valid and 0 < self.level < 1):
            models, sides = ", ".join(("best", *MODELS)), ", ".join(SIDES)
            raise OptionError(f"by is one of {models}, side of {sides}, and level in (0, 1)")
        set_names(self, "covariates")
        scales, canonical = self.by in ("best", "temperature"), self.notion == "canonical"
        fits = scales and self.side == "both" and not self.covariates
        require(not canonical or fits, "canonical: by temperature, no side and no covariates")

    def bind(self, profile: DataProfile) -> Self:
        bound = super().bind(profile)
        if not self.covariates or self.cuts:
            return bound
        return replace(bound, cuts=self._cuts_of(profile))

    def _cuts_of(self, profile: DataProfile) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Position and inner edges of the parts of each covariate, from a sample of the rows."""
        columns, source = profile.columns(self.covariates), profile.source
        covariates = np.concatenate(
            [np.asarray(b.covariates, np.float64) for b in source.sample(BANDWIDTH_ROWS)]
        )
        categorical = source.categorical(self.covariates)
        axes = [
            axis_of(column, name in categorical, covariates[:, column.position], PARTS)
            for name, column in columns.items()
        ]
        cuts = []
        for axis in axes:
            # A value is in the part up to the next edge, so that the last level needs no edge.
            edges = axis.edges if axis.levels is None else axis.levels[:-1]
            cuts.append((axis.position, tuple(map(float, edges))))
        if (parts := _parts(tuple(cuts))) > MAX_PARTS:
            counts = " × ".join(f"{len(axis)} of {axis.name}" for axis in axes)
            raise OptionError(f"{parts} combinations ({counts}) exceed {MAX_PARTS}: name fewer")
        return tuple(cuts)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        canonical = bound_notion(self) == "canonical"
        return (GroupTemperatures() if canonical else GroupCells(bound_notion(self), self.cuts),)

    def finalize(self, state: GroupCellState) -> Estimate:
        parameters = {"by": self.by, "side": self.side, "level": self.level}
        if self.covariates:
            parameters |= {"covariates": list(self.covariates), "parts": _parts(self.cuts)}
        rows = state.sums[0, :, 0]  # of each group and slope, or of each group and cell
        rows = rows if rows.ndim == 1 else rows.sum(axis=1)
        if not rows.sum() > 0:
            return without_rows(self, parameters, self.squared)
        bets = self._bets(state, rows)
        mean, error = bets.mean, bets.standard_error
        result = Estimate(
            self.name,
            bound_notion(self),
            bets.lower,
            self.squared,
            parameters=parameters,
            details={"estimate": mean, "standard_error": error},
            n=int(rows.sum()),
        )
        if mean is not None and error is not None:
            note = f"the one-step estimate is {rounded(mean, 4)} ± {rounded(error, 2)}"
            result = result.with_note(note)
        return result.with_note("weights other than 0 are ignored") if state.weighted else result

    def _bets(self, state: GroupCellState, rows: Floats) -> _Bets:
        """Bets on each group of rows, (G,) rows, by what the groups before it teach."""
        # The first group has no earlier groups to learn from, and only teaches the others.
        first, *judged = np.flatnonzero(rows)
        bets = _Bets(math.log(1.0 / (1.0 - self.level)), rows[first + 1 :].sum())
        canonical = bound_notion(self) == "canonical"
        models = (*MODELS[:3], *REGS) if self.by == "best" and self.covariates else FITS[self.by]
        totals = dict.fromkeys(models, 0.0)  # Σx of each model in earlier groups
        phi = np.empty((0, 0))
        if REGS.keys() <= totals.keys():
            phi = _features(state.sums[0].sum(axis=(0, 1)), _parts(self.cuts))
        for g in judged:
            past, sums = state.sums[:, :g].sum(axis=1), state.sums[:, g]
            if canonical:
                terms = self._temperature_terms(past, sums)
            else:
                direction = self._leader(past, sums, totals, phi)
                if not direction.slope.any():  # nothing is known to bet on
                    continue
                terms = _GroupTerms.of(direction, past, sums)
            bets.add(terms, rows[g], rows[:g].sum())
        return bets

    def _temperature_terms(self, past: Floats, sums: Floats) -> _GroupTerms:
        """Terms for the slope with the smallest log loss so far, from `GroupTemperatures`."""
        best = past[1].argmin()
        if self.squared:
            # z is at least −4·RANGE, as 2|⟨d, δ⟩| and |d|² ≤ max|d|·‖d‖₁ are at most 2·RANGE.
            first, second, bound = 4, 5, 4.0 * RANGE  # Σz and Σz²
        else:
            first, second, bound = 2, 3, 2.0  # Σx and Σx², where x is at least −2
        return _GroupTerms(sums[first, best], sums[second, best], past[second, best], bound)

    def _leader(
        self, past: Floats, sums: Floats, totals: dict[str, float], phi: Floats
    ) -> _Direction:
        """Terms of the model with the largest `totals` in earlier groups.

        `past` and `sums` (4, J, cells) are sums over earlier groups and over this group, and `phi`
        the features of `ukkr`.  The terms of this group are then added to the totals in place.
        """
        # The leader is chosen before the totals get this group's terms, which it is judged by.
        leader = max(totals, key=lambda model: totals[model])
        fits = {model: _residuals(past, model) for model in totals if model not in REGS}
        if phi.size:
            fits |= _ridge(past, phi)
        lowest, highest = SIDES[self.side]
        directions = {model: self._terms(np.clip(r, lowest, highest)) for model, r in fits.items()}
        for model, direction in directions.items():
            totals[model] += _moments(sums, direction).total
        return directions[leader]

    def _terms(self, r: Floats) -> _Direction:
        """Terms of residuals r (J, cells) that a model expects."""
        # |δ| ≤ 1 for a scalar, and Σ_k |δ_k| ≤ 2 over the classes.
        return _Direction(np.sign(r), np.zeros_like(r), float(min(len(r), 2)))


@dataclass(frozen=True)
class CertifiedL2(CertifiedL1):
    """Lower confidence bound of the squared L2 calibration error E (E[δ | p])², valid at every n.

    The terms are 2rδ − r², with r from earlier groups.  The value is squared.  Otherwise see
    `CertifiedL1`.

    See Also
    --------
    CertifiedL1 : Lower confidence bound of the L1 error.
    TCE2Debiased : The squared binned error without the noise of the labels.

    Examples
    --------
    >>> import calibscale as cs
    >>> p = [0.2, 0.7] * 500  # an error of 0.3² and 0.2², 0.065 on average
    >>> data = cs.from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 250, binary=True)
    >>> 0.03 < cs.evaluate(data, ["certified_l2"])["certified_l2"].value < 0.065
    True
    """

    name: ClassVar[str] = "certified_l2"
    squared: ClassVar[bool] = True

    def _terms(self, r: Floats) -> _Direction:
        # −Σ_j (2 r_j δ_j − r_j²) is at most 2 max|r|·Σ|δ_j| + Σ r_j².
        largest = float(np.abs(r).max())
        bound = 2.0 * largest * min(len(r), 2) + len(r) * largest**2
        return _Direction(2.0 * r, r * r, bound)


class _Direction(NamedTuple):
    """Slope and offset (J, cells) of the terms x = Σ_j (slope·δ − offset), with x ≥ −`bound`."""

    slope: Floats
    offset: Floats
    bound: float


class _Moments(NamedTuple):
    """Σx over rows, and Σx² or an upper bound of it."""

    total: float
    squares: float


class _GroupTerms(NamedTuple):
    """Σx and Σx² of a group, Σx² of the groups before it, and b with x ≥ −b."""

    total: float
    squares: float
    earlier_squares: float
    bound: float

    @classmethod
    def of(cls, direction: _Direction, past: Floats, sums: Floats) -> _GroupTerms:
        """Terms from the sums of earlier groups and of this group (4, J, cells)."""
        earlier_squares = _moments(past, direction).squares
        return cls(*_moments(sums, direction), earlier_squares, direction.bound)


@dataclass
class _Bets:
    """Bets on the terms x of groups of rows, and the lower bound of E x that follows from them.

    For every stake λ that earlier rows determine, the product of exp(λ(x − E x) − ψ(λ)x²) is a
    supermartingale.  Ville's inequality bounds it by 1/α, so that Σλ·E x is at least `gain` =
    Σλx − Σψ(λ)x² − log 1/α (Waudby-Smith & Ramdas 2023, Thm. 2).

    `price` is log 1/α, and `rows_to_judge` the number of rows of all groups that are bet on.
    """

    price: float
    rows_to_judge: float
    gain: float = field(init=False)
    stakes: float = 0.0  # Σλ
    rows: float = 0.0
    total: float = 0.0  # Σx
    squares: float = 0.0  # Σx²

    def __post_init__(self) -> None:
        self.gain = -self.price

    def add(self, terms: _GroupTerms, rows: float, earlier_rows: float) -> None:
        """Bet on the terms of a group of rows."""
        # Terms are divided by their bound, so that they are at least −1.  The stake
        # √(2 log(1/α)/(n·spread)) minimises the width for a variance that earlier groups estimate.
        bound = terms.bound
        spread = max(terms.earlier_squares / earlier_rows / bound**2, 1e-12)
        stake = min(0.5, math.sqrt(2.0 * self.price / (self.rows_to_judge * spread)))
        psi = -math.log1p(-stake) - stake
        self.gain += stake * terms.total / bound - psi * terms.squares / bound**2
        self.stakes += stake * rows / bound
        self.rows += rows
        self.total += terms.total
        self.squares += terms.squares

    @property
    def lower(self) -> float:
        """Lower confidence bound of E x, at least 0."""
        return max(float(self.gain / self.stakes), 0.0) if self.stakes else 0.0

    @property
    def mean(self) -> float | None:
        """Mean of the terms, the one-step estimate, or None if nothing was bet on."""
        return float(self.total / self.rows) if self.rows else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of `mean`."""
        if self.mean is None:
            return None
        return math.sqrt(max(self.squares / self.rows - self.mean**2, 0.0) / self.rows)


def _residuals(past: Floats, model: str) -> Floats:
    """Mean residual E[δ | cell] (J, cells) by a model, from earlier groups' sums (4, J, cells)."""
    n, p, delta, squares = past.reshape(4, -1, len(CENTRES))  # a row for each problem and part
    mean = ratio(delta, n)
    forecast = ratio(p, n)
    if model == "bins":  # shrunk for noise
        mean = mean * np.maximum(1.0 - ratio(squares, delta**2), 0.0)
    elif model == "temperature":
        scaled = [
            _scaled(rows, p, residual) for rows, p, residual in zip(n, forecast, mean, strict=True)
        ]
        mean = forecast - np.array(scaled)
    else:
        frequency = forecast - mean  # of events, as δ is the prediction minus the event
        for j, occupied in enumerate(n > 0):
            fit = isotonic_regression(frequency[j, occupied], weights=n[j, occupied])
            mean[j, occupied] = forecast[j, occupied] - fit.x
    return mean.reshape(past.shape[1:])


def _features(n: Floats, parts: int) -> Floats:
    """Features of the kernel of `ukkr` at the centres of the cells of n rows (cells, m)."""
    p = np.tile(CENTRES, parts)
    bandwidth = math.sqrt(max(float(np.cov(p, fweights=n.astype(np.int64), ddof=0)), 1e-12))
    values, vectors = np.linalg.eigh(np.exp(-0.5 * ((CENTRES[:, None] - CENTRES) / bandwidth) ** 2))
    used = values > 1e-8 * values[-1]  # the kernel matrix has a low numerical rank
    # Rows of these features have the inner product (1 + 1{same part})/2.
    shared = np.hstack([np.ones((parts, 1)), np.eye(parts)]) * math.sqrt(0.5)
    return np.kron(shared if parts > 1 else [[1.0]], vectors[:, used] * np.sqrt(values[used]))


def _ridge(past: Floats, phi: Floats) -> dict[str, Floats]:
    """Mean residuals by (S + λnI)⁻¹Cᵀ with λ = reg·n^(−1/4), kernel ridge regression (J, cells)."""
    n, _, delta, _ = past
    S, C = (phi.T * n[:, None]) @ phi, (delta @ phi)[..., None]
    ridge = n[0].sum() ** 0.75 * np.eye(phi.shape[1])
    return {name: np.linalg.solve(S + reg * ridge, C)[..., 0] @ phi.T for name, reg in REGS.items()}


def _scaled(n: Floats, p: Floats, mean: Floats) -> Floats:
    """Predictions of cells with the log-odds times a factor that minimises the log loss.

    The cells have n rows, the mean prediction p and the mean residual `mean`.
    """
    x = logit(np.clip(p, 1e-12, 1.0 - 1e-12))
    frequency = p - mean  # of events, as δ is the prediction minus the event
    factor = 1.0
    for _ in range(20):  # Newton's method
        q = expit(factor * x)
        # Derivatives of the log likelihood, which is concave in the factor.
        slope = float(n @ ((frequency - q) * x))
        curvature = float(n @ (q * (1.0 - q) * x * x))
        step = slope / max(curvature, 1e-300)
        # The factor at most halves or doubles in a step, so that flat likelihoods cannot throw it
        # off.
        factor = min(max(factor + step, 0.5 * factor), 2.0 * factor)
    return np.where(n > 0, expit(factor * x), p)


def _moments(sums: Floats, direction: _Direction) -> _Moments:
    """Σx and J·Σ_j of the squares, at least Σx², over the rows of `sums` (4, J, cells)."""
    n, _, delta, squares = sums
    slope, offset, _ = direction
    first = np.sum(slope * delta - offset * n)
    # (Σ_j x_j)² ≤ J Σ_j x_j², as sums by problem do not have the products of problems.
    second = np.sum(slope**2 * squares - 2.0 * slope * offset * delta + offset**2 * n)
    return _Moments(float(first), float(len(n) * second))
