"""Null distributions of calibration tests: what residuals become when nothing is miscalibrated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.errors import OptionError
from calibscale.kernels import draws as kernel_draws
from calibscale.products import Rows
from calibscale.statistics import Statistic
from calibscale.views import views, width

if TYPE_CHECKING:
    from calibscale.estimators import Estimator

NULLS = ("labels", "wild", "residual", "permute", "hoeffding")
MAX_POOL = 2**27  # residuals kept in memory: 1 GB
_DRAWN = 2**21  # draws of a chunk held at once: 16 MB

Labels = NDArray[np.int32]


class Pool(NamedTuple):
    """Row numbers (n,) and residuals (n, e) of all rows, in the order of the rows."""

    rows: Ints
    delta: Floats


@dataclass(frozen=True)
class Residuals(Statistic):
    """The residuals of all rows of a notion, which two of the nulls draw from."""

    notion: str

    def zero(self, classes: int) -> Pool:
        return Pool(np.empty(0, np.int64), np.empty((0, width(self.notion, classes))))

    def accumulate(self, state: Pool, chunk: Chunk) -> Pool:
        (view,) = views(chunk, self.notion)
        return self.merge(state, Pool(view.rows, view.delta))

    def merge(self, a: Pool, b: Pool) -> Pool:
        found = Pool(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))
        if found.delta.size > MAX_POOL:
            raise OptionError(
                f"the nulls 'residual' and 'permute' keep every residual, of which there are more "
                f"than {MAX_POOL:,} here; use null='labels'"
            )
        return found


@dataclass(frozen=True)
class Null:
    """How residuals are drawn; a draw depends on (seed, row, replicate) alone.

    Parameters
    ----------
    kind : {"labels", "wild", "residual", "permute"}
        ``labels``: y* ~ Cat(q), exact.  ``wild``: δ* = ±δ.  ``residual``: δ* any row's residual,
        with replacement [VF, Algorithm 1].  ``permute``: the residuals permuted (KiTE).
    seed : int
    pools : dict
        Of the last two: the residuals of all rows by notion.
    """

    kind: str
    seed: int = 0
    pools: dict[str, Pool] = field(default_factory=dict, compare=False, repr=False)

    @property
    def moves(self) -> bool:
        """Whether a replicate has predictions of its own, too: those of `moved`."""
        return False

    @property
    def most(self) -> int | None:
        """How many replicates there are; None where as many as are asked for."""
        return None

    def moved(self, notion: str, rows: Rows, first: int, last: int) -> Iterator[Rows]:
        """The rows as each replicate has them, predictions and residuals."""
        raise NotImplementedError(type(self).__name__)

    def _positions(self, pool: Pool, rows: Ints, first: int, last: int) -> Ints:
        """Which residual of a pool each of the rows takes (B, c)."""
        out = np.empty((last - first, len(rows)), np.int64)
        n = len(pool.rows)
        if self.kind == "residual":
            kernel_draws.resampled(np.uint64(self.seed), rows, first, n, out)
        else:
            ranks = np.searchsorted(pool.rows, rows)
            kernel_draws.permuted(np.uint64(self.seed), ranks, first, n, out)
        return out

    def labels(self, rows: Ints, q: Floats, first: int, last: int) -> Labels:
        """Drawn labels (B, c)."""
        out = np.empty((last - first, len(rows)), np.int32)
        kernel_draws.labels(np.uint64(self.seed), rows, q, first, out)
        return out

    def scalars(
        self, notion: str, rows: Ints, p: Floats, delta: Floats, first: int, last: int
    ) -> Floats:
        """δ* of a scalar notion (B, c), from predictions and residuals (c,)."""
        if self.kind in ("residual", "permute"):
            pool = self.pools[notion]
            return pool.delta[:, 0][self._positions(pool, rows, first, last)]
        out = np.empty((last - first, len(rows)))
        if self.kind == "labels":
            kernel_draws.events(np.uint64(self.seed), rows, p, first, out)
        else:
            kernel_draws.signs(np.uint64(self.seed), rows, first, out)
            out *= delta
        return out

    def vectors(
        self, rows: Ints, q: Floats, delta: Floats, first: int, last: int
    ) -> Iterator[Floats]:
        """δ* (c, K) of one replicate after the other."""
        if self.kind == "labels":
            for drawn in self.labels(rows, q, first, last):
                found = q.copy()
                found[np.arange(len(rows)), drawn] -= 1.0
                yield found
        elif self.kind == "wild":
            signs = np.empty((last - first, len(rows)))
            kernel_draws.signs(np.uint64(self.seed), rows, first, signs)
            for sign in signs:
                yield delta * sign[:, None]
        else:
            pool = self.pools["canonical"]
            for positions in self._positions(pool, rows, first, last):
                yield pool.delta[positions]


@dataclass(frozen=True)
class Replicates(Statistic):
    """The part of a statistic's state that depends on the labels, for replicates of a null.

    A state is a tuple of arrays whose first axis is the replicates; `Statistic.with_drawn` puts
    one of them in the place of what was observed.
    """

    statistic: Statistic
    null: Null
    first: int
    last: int

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def zero(self, classes: int) -> Any:
        return self.statistic.zero_drawn(classes, self.last - self.first)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        # a statistic that wants large chunks draws part after part of the replicates itself
        step = len(chunk) if self.large_chunks else max(256, _DRAWN // len(self))
        for low in range(0, len(chunk), step):
            part = chunk if step >= len(chunk) else chunk.take(slice(low, low + step))
            self.statistic.draw(state, part, self)
        return state

    def __len__(self) -> int:
        return self.last - self.first

    # ---------------------------------------------------------------- what statistics ask for

    def labels(self, chunk: Chunk) -> Labels:
        """Drawn labels (B, c); made once for a chunk."""
        key = f"labels drawn with {self.null.seed}: {self.first}..{self.last}"
        if key not in chunk.views:
            chunk.views[key] = self.null.labels(chunk.rows, chunk.q, self.first, self.last)
        return chunk.views[key]

    def scalars(self, notion: str, rows: Ints, p: Floats, delta: Floats) -> Floats:
        """δ* of a scalar notion (B, c)."""
        return self.null.scalars(notion, rows, p, delta, self.first, self.last)

    def some_scalars(
        self, notion: str, rows: Ints, p: Floats, delta: Floats, most: int
    ) -> Iterator[tuple[slice, Floats]]:
        """The same, so many replicates at a time, with which they are."""
        for low in range(self.first, self.last, most):
            high = min(self.last, low + most)
            here = slice(low - self.first, high - self.first)
            yield here, self.null.scalars(notion, rows, p, delta, low, high)

    def moved(self, notion: str, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """The rows as each replicate of a null that moves predictions has them."""
        return enumerate(self.null.moved(notion, rows, self.first, self.last))

    def vectors(self, chunk: Chunk) -> Iterator[tuple[int, Floats]]:
        """δ* (c, K) of each replicate."""
        return self.vectors_of(chunk.rows, chunk.q, chunk.delta)

    def vectors_of(self, rows: Ints, q: Floats, delta: Floats) -> Iterator[tuple[int, Floats]]:
        """δ* (c, K) of each replicate, from predictions and residuals."""
        return enumerate(self.null.vectors(rows, q, delta, self.first, self.last))


def redraws(statistic: Statistic) -> bool:
    """Whether a statistic depends on the labels."""
    return type(statistic).draw is not Statistic.draw


def replicates_of(
    estimators: Iterable[Estimator], null: Null | None, first: int, last: int
) -> dict[Statistic, Replicates]:
    """The replicates of every statistic that depends on the labels; none of no null."""
    if null is None:
        return {}
    needed = dict.fromkeys(s for e in estimators for s in e.needs if redraws(s))
    return {s: Replicates(s, null, first, last) for s in needed}
