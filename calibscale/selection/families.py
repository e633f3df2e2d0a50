"""Base classes of families of estimators, and sums over the rows of a fold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.data.derived_sources import TEST
from calibscale.errors import OptionError, require
from calibscale.kernels.landmarks import PointFeatures
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES
from calibscale.predictions.notions import NotionView, problems, views, width
from calibscale.results.estimate import EXACT, Approximation
from calibscale.selection.point_ranks import PointRanks
from calibscale.statistics.statistic import Statistic


class ResidualState(NamedTuple):
    """n, Σw, Σw² (0-d), D = Σwδδᵀ (J, e, e), and quartic = Σw²|δ|⁴ (J,)."""

    n: Floats
    weight: Floats
    weight2: Floats
    D: Floats
    quartic: Floats


@dataclass(frozen=True)
class FoldResiduals(Statistic):
    """Moments of δ, which the risks of all estimators share."""

    notion: str

    def zero(self, classes: int) -> ResidualState:
        J = problems(self.notion, classes)
        e = width(self.notion, classes)
        n, weight, weight2 = (np.zeros(()) for _ in range(3))
        return ResidualState(n, weight, weight2, np.zeros((J, e, e)), np.zeros(J))

    def accumulate(self, state: ResidualState, chunk: Chunk) -> ResidualState:
        return self.add(state, views(chunk, self.notion))

    @staticmethod
    def add(state: ResidualState, rows: Sequence[NotionView]) -> ResidualState:
        """Add rows to the state and return it."""
        state.n[...] += len(rows[0].rows)
        for j, view in enumerate(rows):
            w = view.weights
            if j == 0:
                # All problems have the same rows and weights.
                state.weight[...] += w.sum()
                state.weight2[...] += w @ w
            state.D[j] += view.delta.T @ (w[:, None] * view.delta)
            state.quartic[j] += (w * view.squares) @ (w * view.squares)
        return state


class SubsetState(NamedTuple):
    """Fields of the views of the kept rows, each with a leading axis J."""

    rows: Any
    points: Floats
    compositions: Floats
    logs: Floats
    delta: Floats
    weights: Floats

    @property
    def views(self) -> list[NotionView]:
        return [NotionView(*parts) for parts in zip(*self, strict=True)]


@dataclass(frozen=True)
class Subset(Statistic):
    """Rows kept in memory: rows with a counter hash below `share`, all rows if it is 1."""

    notion: str
    share: float
    seed: int = 0

    def zero(self, classes: int) -> SubsetState:
        J = problems(self.notion, classes)
        e = width(self.notion, classes)
        d = max(e, 2)
        return SubsetState(
            np.zeros((J, 0), np.int64),
            np.zeros((J, 0, e)),
            np.zeros((J, 0, d)),
            np.zeros((J, 0, d)),
            np.zeros((J, 0, e)),
            np.zeros((J, 0)),
        )

    def accumulate(self, state: SubsetState, chunk: Chunk) -> SubsetState:
        u = random_draws.of_rows(chunk.rows, self.seed, random_draws.SUBSET)
        sampled = views(chunk.take(u < self.share), self.notion)
        added = SubsetState(*(np.stack(parts) for parts in zip(*sampled, strict=True)))
        return self.merge(state, added)

    def merge(self, a: SubsetState, b: SubsetState) -> SubsetState:
        if not a.rows.shape[1]:
            return b  # an empty state does not know how many columns the points have
        if not b.rows.shape[1]:
            return a
        return SubsetState(*(np.concatenate(pair, axis=1) for pair in zip(a, b, strict=True)))


class RowSumState(NamedTuple):
    """Sums that need fitted functions, for H hyper-parameters, P of them of plug-in families.

    - diagonal = Σw²(|δ|² − h_ii)² (H,)
    - for plug-in functions A = Σwδr̂ᵀ and R = Σwr̂r̂ᵀ (P, J, e, e)
    - by training set, on the test part, estimates = Σwh_ii and products = Σw⟨δ, r̂⟩ (k, P)
    """

    diagonal: Floats
    A: Floats
    R: Floats
    estimates: Floats
    products: Floats


@dataclass(frozen=True)
class RowSums(Statistic):
    """Sums of fitted functions over rows that were not used to fit them.

    Functions fitted without a fold are evaluated on its rows.  All functions are evaluated on rows
    of the test part.  `fits` has a tuple of fitted families for each fold left out.
    """

    notion: str
    name: str
    fits: Sequence[Sequence[Any]] = field(compare=False, repr=False)

    def zero(self, classes: int) -> RowSumState:
        J = problems(self.notion, classes)
        e = width(self.notion, classes)
        H = sum(fit.size for fit in self.fits[0])
        P = sum(fit.size for fit in self.fits[0] if fit.plug_in)
        A, R = np.zeros((2, P, J, e, e))
        return RowSumState(np.zeros(H), A, R, *np.zeros((2, len(self.fits), P)))

    def accumulate(self, state: RowSumState, chunk: Chunk) -> RowSumState:
        if not len(chunk):
            return state
        assert chunk.fold is not None, "needs a pass by folds"
        rows = views(chunk, self.notion)
        if chunk.fold == TEST:
            return self.add_test(state, rows)
        return self.add_fold(state, chunk.fold, rows)

    def add_test(self, state: RowSumState, rows: Sequence[NotionView]) -> RowSumState:
        """Add rows of the test part to the state and return it."""
        for v, fits in enumerate(self.fits):
            p = 0
            for fit in fits:
                if not fit.plug_in:
                    continue
                # Columns of the plug-in families follow one another, in the order of `fits`.
                columns = slice(p, p + fit.size)
                for j, view in enumerate(rows):
                    r = fit.residuals(j, view)
                    w = view.weights
                    state.estimates[v, columns] += np.einsum("hce,hce->hc", r, r) @ w
                    state.products[v, columns] += np.einsum("hce,ce->hc", r, view.delta) @ w
                p += fit.size
        return state

    def add_fold(self, state: RowSumState, fold: int, rows: Sequence[NotionView]) -> RowSumState:
        """Add rows of a fold to the state and return it."""
        h = p = 0
        for fit in self.fits[fold]:
            if fit.plug_in:
                diagonal = np.empty((len(rows), fit.size, len(rows[0].rows)))
                for j, view in enumerate(rows):
                    r = fit.residuals(j, view)
                    weighted = view.weights[:, None] * r
                    state.A[p : p + fit.size, j] += view.delta.T @ weighted
                    state.R[p : p + fit.size, j] += r.transpose(0, 2, 1) @ weighted
                    diagonal[j] = np.einsum("hce,hce->hc", r, r)  # h(p, p) = |r̂(p)|²
                p += fit.size
            else:
                diagonal = fit.diagonal(rows)
            # Pairs of a row with itself, which the risk leaves out [GB eq. 20].
            for j, view in enumerate(rows):
                gap = view.weights * (view.squares - diagonal[j])
                state.diagonal[h : h + fit.size] += np.einsum("hc,hc->h", gap, gap)
            h += fit.size
        return state


# ---------------------------------------------------------------- Families


ROW_NOTIONS = ("top_label", "class_wise", "positive")  # notions with a scalar prediction


class FoldPart(NamedTuple):
    """Rows of one or several folds: their residual moments and the states that a family needs."""

    residuals: ResidualState
    states: tuple[Any, ...]


@dataclass(frozen=True)
class FamilyProfile:
    """Properties of the data that are available to families before the first pass.

    `features` is the default map of ridge regressions.  `subset` holds the views of the rows kept
    in memory, and `folds` (rows,) their folds.  `complete` states that these are all rows.
    `ranks` are the ranks of predictions of functionals, else None.  `shared` has objects that
    several families use.
    """

    notion: str
    classes: int
    features: PointFeatures | None
    subset: Sequence[NotionView]
    folds: Ints
    complete: bool
    ranks: PointRanks | None = None
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)

    def rows(self, fold: int) -> list[NotionView]:
        """Views of the rows of a fold that are kept in memory."""
        return [view.take(self.folds == fold) for view in self.subset]


class PairSums(NamedTuple):
    """Sums for the risk of a bilinear h on a part with moments S and C.

    `cross` and `square` (H,) are tr(C B Cᵀ) and tr(S B S B), summed over problems.  `diagonal` (J,
    H, c) is h(p_i, p_i).  `first` (H, c) is φ_iᵀ B S B φ_i − 2 δ_iᵀ C B φ_i, summed over problems.
    """

    cross: Floats
    square: Floats
    diagonal: Floats
    first: Floats

    @classmethod
    def zero(cls, size: int, rows: Sequence[NotionView]) -> PairSums:
        c = len(rows[0].rows)
        return cls(
            np.zeros(size), np.zeros(size), np.zeros((len(rows), size, c)), np.zeros((size, c))
        )


class FittedFamily(ABC):
    """A family fitted on the rows of all folds but one, for each of `size` hyper-parameters (H).

    `plug_in` means h(p, p') = ⟨r̂(p), r̂(p')⟩ with an r̂ that needs a pass over rows for its sums.
    `anywhere` means that the functions can be evaluated at every prediction.
    """

    size: int
    plug_in: ClassVar[bool]
    anywhere: ClassVar[bool] = True

    @abstractmethod
    def diagonal(self, rows: Sequence[NotionView]) -> Floats:
        """h(p_i, p_i), (J, H, c)."""

    @abstractmethod
    def residuals(self, j: int, view: NotionView) -> Floats:
        """r̂ of each row of problem j, (H, c, e): the estimate of E[δ | p]."""

    @abstractmethod
    def pick(self, h: int) -> FittedFamily:
        """Return the family with only hyper-parameter h."""


class PlugIn(FittedFamily):
    """h(p, p') = ⟨r̂(p), r̂(p')⟩ for a function r̂ of the prediction."""

    plug_in = True

    def diagonal(self, rows: Sequence[NotionView]) -> Floats:
        parts = [self.residuals(j, view) for j, view in enumerate(rows)]
        return np.stack([np.einsum("hce,hce->hc", r, r) for r in parts])


class Bilinear(FittedFamily):
    """h(p, p') = φᵀBφ': its pair sums follow from moments."""

    plug_in = False

    @abstractmethod
    def pair_sums(self, part: FoldPart, rows: Sequence[NotionView], complete: bool) -> PairSums:
        """Pair sums of a part, and the contributions of its rows that are kept in memory.

        `complete` states that these are all rows of the part.
        """

    @abstractmethod
    def estimates(self, part: FoldPart) -> Floats:
        """tr(B S)/Σw of a part [GB eq. 21], summed over problems, (H,)."""

    @abstractmethod
    def gains(self, part: FoldPart, h: int) -> tuple[float, float]:
        """Means of ⟨r̂, δ⟩ and |r̂|² over a part for one hyper-parameter, summed over problems."""


class FoldScores(NamedTuple):
    """Risks and estimates (H,) of every hyper-parameter of one family on one fold.

    - `projections` (H, c): mean loss over the pairs of each kept row of the fold, the first-order
      projection of the U-statistic
    - `smaller` (replicates, 2, H): risks and estimates with smaller feature maps
    - `risk_error`, `estimate_error` (H,): two standard errors of sums estimated from the kept rows,
      0 for sums over all rows
    - `gains` (2, 2, H) or None: means of ⟨r̂, δ⟩ and of |r̂|² over the fold and over the test part,
      for plug-in functions evaluated at every row
    """

    risk: Floats
    estimate: Floats
    projections: Floats
    smaller: Floats
    risk_error: Floats
    estimate_error: Floats
    gains: Floats | None = None


Errors = tuple[Approximation, Approximation]  # of a risk, and of an estimate


class Family(ABC):
    """Settings and hyper-parameter grid of a family of functions h, a frozen dataclass.

    `needs` are the statistics of the first pass.  `fit` takes their states in this order.
    `needs_features` says whether `resolve` takes the feature map of the profile.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Statistic, ...]] = ()
    needs_features: ClassVar[bool] = False
    judges: ClassVar[tuple[str, ...]] = (CLASSES,)  # claims that it judges, see `Target`
    # Largest number of columns of predictions without classes, or None for any.
    most_columns: ClassVar[int | None] = None
    notions: ClassVar[tuple[str, ...]] = ("top_label", "canonical", "class_wise", "positive")

    def resolve(self, profile: FamilyProfile) -> Self:
        """Return the family with its grid and feature map.  Other notions raise an OptionError."""
        if profile.notion not in self.notions:
            raise OptionError(
                f"{self.name} does not support the notion {profile.notion!r}; it supports "
                + ", ".join(self.notions)
            )
        return self

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        """The H points of the grid, an empty dictionary where nothing is chosen."""
        return [{}]

    def streamed(self, notion: str) -> bool:
        """Whether its functions are evaluated at every row, in a second pass."""
        return notion != "canonical"

    def fitted_parameters(self, fits: Sequence[Any]) -> dict[str, Any]:
        """Parameters fitted on each of the k training sets, for the result."""
        return {}

    def described_features(self, parts: Sequence[FoldPart]) -> dict[str, Any]:
        """Description of the feature map and its error on all parts, empty without a map."""
        return {}

    def smaller_fits(
        self, train: Sequence[FoldPart], evaluated: Sequence[FoldPart]
    ) -> Iterable[Bilinear]:
        """Fits with smaller feature maps, for `approximations`."""
        return ()

    def approximations(
        self, scores: Sequence[FoldScores], fits: Sequence[Any], parts: Sequence[FoldPart]
    ) -> Sequence[Errors]:
        """Errors of each hyper-parameter, besides the errors of sums over a subset of the rows."""
        return [(EXACT, EXACT)] * fits[0].size

    @abstractmethod
    def fit(self, train: Sequence[FoldPart], profile: FamilyProfile, excluded: int) -> FittedFamily:
        """Fit on the parts of the training folds, where `excluded` is the fold that is left out."""


@dataclass(frozen=True)
class GridFamily(Family):
    """Family with a grid of one hyper-parameter.  None is the default grid, set by `resolve`."""

    grid: Sequence[float] | None = None
    notion: str = field(default="top_label", kw_only=True)
    hyperparameter: ClassVar[str]

    def __post_init__(self) -> None:
        if self.grid is None:
            return
        # Repeated values are left out, in the order of the grid.
        values = tuple(dict.fromkeys(float(value) for value in self.grid))
        require(values, f"the grid of {self.name} is empty")
        for value in values:
            if not (np.isfinite(value) and value > 0):
                raise OptionError(
                    f"the grid of {self.name} has {value}; values must be positive and finite"
                )
        object.__setattr__(self, "grid", values)

    @staticmethod
    @abstractmethod
    def published(notion: str) -> tuple[float, ...]:
        """Default grid, from the published code of [GB]."""

    def resolve(self, profile: FamilyProfile) -> Self:
        super().resolve(profile)
        grid = self.published(profile.notion) if self.grid is None else self.grid
        return replace(self, grid=grid, notion=profile.notion)

    @property
    def values(self) -> tuple[float, ...]:
        """The grid of a resolved family."""
        assert self.grid is not None
        return tuple(self.grid)

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        return [{self.hyperparameter: value} for value in self.values]
