"""Kernel density ratios with the Dirichlet kernel [GB eq. 11, 25], of any number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.kernels import attention
from calibscale.selection.cells import CellMasses, FittedCellKDE
from calibscale.selection.families import Family, Part, PlugIn, Setting, check_grid
from calibscale.splits import TEST
from calibscale.statistics import Statistic
from calibscale.views import View, problems, views, width

_CHECKED = 128  # rows at which compressed sums are compared with exact ones
_LEFT_OUT = 2000  # rows of a scalar whose density without themselves chooses a bandwidth
_TILE = 2**17  # kernel values worked on at once: a megabyte, in cache


def published_bandwidths() -> tuple[float, ...]:
    """The grid of [GB, App. B] as its code rounds it, to float32."""
    grid = np.concatenate([np.logspace(-5, -1, 15), np.linspace(0.2, 1.0, 5)])
    return tuple(np.unique(grid.astype(np.float32)).astype(float).tolist())


def log_normaliser(compositions: Floats, h: float) -> Floats:
    """log B(f/h + 1) of the Dirichlet density at each point f, (c,)."""
    alpha = compositions / h + 1.0
    return gammaln(alpha).sum(axis=1) - gammaln(alpha.sum(axis=1))


class KernelSumState(NamedTuple):
    """By problem, bandwidth and query: the largest log kernel value, and Σwk·[1, events]/e^that.

    top (J, H, Q); sums (J, H, Q, 1 + e).
    """

    top: Floats
    sums: Floats


@dataclass(frozen=True)
class KernelSums(Statistic):
    """Σ_i w_i k_dir(p; f_i)·[1, e_{y_i}] at the queries p, over the other rows: softmax attention.

    log k = ⟨f, log p⟩/h − log B(f/h + 1): queries log p / h, keys f, bias −log B.  The largest
    exponent is carried along, so that nothing overflows and nothing is 0/0.  `family` names whose
    queries they are.
    """

    family: str
    notion: str
    bandwidths: tuple[float, ...]
    queries: Sequence[View] = field(compare=False, repr=False)

    def zero(self, classes: int) -> KernelSumState:
        J, e = problems(self.notion, classes), width(self.notion, classes)
        shape = (J, len(self.bandwidths), len(self.queries[0].rows))
        return KernelSumState(np.full(shape, -np.inf), np.zeros((*shape, 1 + e)))

    def accumulate(self, state: KernelSumState, chunk: Chunk) -> KernelSumState:
        if chunk.fold == TEST:  # no function is fitted on those
            return state
        for j, view in enumerate(views(chunk, self.notion)):
            view = view.take(view.weights > 0)
            values = np.column_stack([np.ones(len(view.rows)), view.events])
            values *= view.weights[:, None]
            logs, rows = self.queries[j].logs, self.queries[j].rows
            at = np.searchsorted(rows, view.rows)
            own = np.flatnonzero(rows[np.minimum(at, len(rows) - 1)] == view.rows)
            step = max(1, _TILE // max(1, len(values)))
            for h, bandwidth in enumerate(self.bandwidths):
                keys = np.ascontiguousarray(view.compositions.T / bandwidth)
                bias = -log_normaliser(view.compositions, bandwidth)
                for low in range(0, len(logs), step):
                    part = slice(low, low + step)
                    tile = logs[part] @ keys
                    mine = own[(at[own] >= low) & (at[own] < low + step)]
                    tile[at[mine] - low, mine] = -np.inf
                    top = np.empty(len(tile))
                    attention.shifted_exp(tile, bias, top)
                    _absorb(state, (j, h, part), top, tile @ values)
        return state

    def merge(self, a: KernelSumState, b: KernelSumState) -> KernelSumState:
        _absorb(a, (slice(None),), b.top, b.sums)
        return a


def _absorb(state: KernelSumState, where: tuple, top: Floats, sums: Floats) -> None:
    """Add sums that were scaled by e^top."""
    before = state.top[where]
    after = np.maximum(before, top)
    finite = np.where(np.isfinite(after), after, 0.0)
    state.sums[where] *= np.exp(before - finite)[..., None]
    state.sums[where] += np.exp(top - finite)[..., None] * sums
    state.top[where] = after


class FittedKDE(PlugIn):
    """Ratios at the queries only: `fractions` (J, H, Q, e) estimates E[e_y | p]."""

    anywhere = False

    def __init__(
        self, queries: Sequence[View], fractions: Floats, bandwidths: Sequence[float]
    ) -> None:
        self.queries, self.fractions, self.bandwidths = queries, fractions, bandwidths
        self.size = fractions.shape[1]

    def picked(self, which: Sequence[int]) -> FittedKDE:
        """The same with some of the bandwidths."""
        chosen = list(which)
        return FittedKDE(
            self.queries, self.fractions[:, chosen], [self.bandwidths[h] for h in chosen]
        )

    def pick(self, h: int) -> FittedKDE:
        return self.picked([h])

    def residuals(self, j: int, view: View) -> Floats:
        at = np.searchsorted(self.queries[j].rows, view.rows)
        return view.points - self.fractions[j][:, at]


@dataclass(frozen=True)
class KDE(Family):
    """r̂(p) = p − Σ_i k_dir(p; f_i) e_{y_i}/Σ_i k_dir(p; f_i) [GB eq. 25].

    k_dir is the Dirichlet density with α = f_i/h + 1 at p (a Beta density of a scalar).  Canonical
    sums are exact, tile by tile, at the rows kept in memory; those of a scalar go over cells
    (`calibscale.selection.cells`) and are compared with exact ones at a few rows.

    Parameters
    ----------
    grid : sequence of float, optional
        Bandwidths h; default logspace(−5, −1, 15) and {0.2, 0.4, …, 1}.
    exact : bool
        Sum tile by tile for a scalar, too: at the rows kept in memory, in quadratic time.
    """

    grid: Sequence[float] | None = None
    exact: bool = False
    notion: str = "top_label"
    queries: Sequence[View] = field(default=(), compare=False, repr=False)
    name: ClassVar[str] = "kde"
    queried: ClassVar[int] = _CHECKED

    def __post_init__(self) -> None:
        if self.grid is not None:
            object.__setattr__(self, "grid", check_grid(self.name, self.grid))

    def resolve(self, setting: Setting) -> Self:
        super().resolve(setting)
        grid = published_bandwidths() if self.grid is None else self.grid
        queries = setting.subset
        if setting.notion != "canonical" and not self.exact:
            kept = len(queries[0].rows)
            few = np.arange(0, kept, max(1, kept // self.queried))
            queries = [view.take(few) for view in queries]
        return replace(self, grid=grid, notion=setting.notion, queries=queries)

    @property
    def compressed(self) -> bool:
        """Whether training points are compressed to cells, so that any row can be a query."""
        return self.notion != "canonical" and not self.exact

    @property
    def summed(self) -> tuple[float, ...]:
        """Bandwidths of the exact sums."""
        assert self.grid is not None
        return (min(self.grid),) if self.compressed else tuple(self.grid)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        assert self.grid is not None
        sums = KernelSums(self.name, self.notion, self.summed, self.queries)
        return (sums, CellMasses(self.notion, min(self.grid))) if self.compressed else (sums,)

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        assert self.grid is not None
        return [{"h": h} for h in self.grid]

    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> PlugIn:
        assert self.grid is not None
        return self._fit(train, setting, excluded, self._sums(train), self.grid)

    def _fit(
        self,
        train: Sequence[Part],
        setting: Setting,
        excluded: int,
        sums: KernelSumState,
        grid: Sequence[float],
    ) -> PlugIn:
        """Ratios for the bandwidths `grid`, at the queries or anywhere."""
        ratios = sums.sums[..., 1:] / sums.sums[..., :1]
        exact = FittedKDE(self.queries, ratios, self.summed)
        if not self.compressed:
            return exact.picked([self.summed.index(h) for h in grid])
        masses = self.needs[1]
        assert isinstance(masses, CellMasses)
        fitted = FittedCellKDE.fit(masses, [part.states[1] for part in train], grid)
        smallest = int(np.argmin(grid))
        alone = exact.picked([self.summed.index(h) for h in self.summed if h == grid[smallest]])
        if alone.size:
            unseen = ~self._trained(setting, excluded)
            rows = [view.take(unseen) for view in self.queries]
            gap = fitted.pick(smallest).diagonal(rows) - alone.diagonal(rows)
            fitted.error = float(np.abs(gap).sum(axis=0).max(initial=0.0))
        return fitted

    def _trained(self, setting: Setting, excluded: int) -> NDArray[np.bool_]:
        """Which queries are rows of the training set."""
        folds = setting.folds[np.searchsorted(setting.subset[0].rows, self.queries[0].rows)]
        return (folds >= 0) & (folds != excluded)

    def _sums(self, train: Sequence[Part]) -> KernelSumState:
        first = train[0].states[0]
        total = KernelSumState(np.full_like(first.top, -np.inf), np.zeros_like(first.sums))
        for part in train:
            _absorb(total, (slice(None),), part.states[0].top, part.states[0].sums)
        if not total.sums[..., 0].all():
            raise OptionError(f"{self.name}: a training set has no rows with a positive weight")
        return total


@dataclass(frozen=True)
class LeaveOneOutKDE(KDE):
    """`KDE` with one bandwidth: the most likely one of the training rows themselves.

    In each training set the h of the grid with the largest Σ_i log Σ_{j≠i} k_dir(f_i; f_j), over
    the rows kept in memory (some of them for a scalar), as in the published method.
    """

    name: ClassVar[str] = "kde_loo"
    queried: ClassVar[int] = _LEFT_OUT

    @property
    def summed(self) -> tuple[float, ...]:
        assert self.grid is not None
        return tuple(self.grid)

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        return [{}]

    def found(self, fits: Sequence[Any]) -> dict[str, Any]:
        return {"h": [fit.bandwidths[0] for fit in fits]}

    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> PlugIn:
        assert self.grid is not None
        sums = self._sums(train)
        density = sums.top + np.log(sums.sums[..., 0])
        trained = self._trained(setting, excluded)
        likelihood = sum(
            density[j][:, trained] @ view.weights[trained] for j, view in enumerate(self.queries)
        )
        h = self.grid[int(np.argmax(likelihood))]
        return self._fit(train, setting, excluded, sums, (h,))
