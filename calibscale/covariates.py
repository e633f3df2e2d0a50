"""What the columns of covariates hold: range, spread, and values where they are few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.chunk import Floats, place_of
from calibscale.errors import InvalidDataError, OptionError
from calibscale.source import ArraySource

MAX_LEVELS = 64
_QUIET = np.errstate(over="ignore", invalid="ignore")
_GLANCE = 1000  # values that show whether a column has few


@dataclass(frozen=True)
class Column:
    """One covariate over all rows with finite covariates.

    Attributes
    ----------
    name : str
    position : int
        Among the source's covariates.
    mean, deviation, low, high : float
    levels : tuple of float, or None
        Its sorted distinct values; None if there are more than 64.
    """

    name: str
    position: int
    mean: float
    deviation: float
    low: float
    high: float
    levels: tuple[float, ...] | None


class _State(NamedTuple):
    """n; mean, Σ(x − mean)², low, high (d,); the values of each column, or None if many."""

    n: int
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats
    levels: list[Floats | None]


@dataclass(frozen=True, eq=False)
class _Task:
    """The engine's task of one pass over the covariates alone."""

    source: ArraySource
    positions: tuple[int, ...]
    on_invalid: str
    block_rows: int
    blocks: int

    @property
    def state_bytes(self) -> int:
        return 8 * len(self.positions) * (MAX_LEVELS + 4)

    @property
    def block_bytes(self) -> int:
        return 3 * 8 * self.block_rows * len(self.source.covariate_names)

    @property
    def shared(self) -> None:
        return None

    def joined(self, shared: None) -> _Task:
        return self

    def part(self, first: int, last: int) -> _Task:
        if not self.source.in_memory:
            return self
        start, stop = first * self.block_rows, min(last * self.block_rows, self.source.rows)
        return replace(self, source=self.source.part(start, stop, covariates=True))

    @_QUIET  # what overflows is told when all are summed up
    def state(self, block: int) -> _State:
        start = block * self.block_rows - self.source.first_row
        stop = min(start + self.block_rows, self.source.rows)
        x = self.source.read_covariates(start, stop)[:, self.positions].astype(np.float64)
        finite = np.isfinite(x).all(axis=1)
        if not finite.all():
            if self.on_invalid == "raise":
                raise self._complaint(x, finite, start)
            x = x[finite]
        if not len(x):
            d = len(self.positions)
            none: list[Floats | None] = [np.empty(0)] * d
            return _State(
                0, np.zeros(d), np.zeros(d), np.full(d, np.inf), np.full(d, -np.inf), none
            )
        mean = x.mean(axis=0)
        return _State(
            len(x), mean, ((x - mean) ** 2).sum(axis=0), x.min(axis=0), x.max(axis=0),
            [_few(column) for column in x.T],
        )  # fmt: skip

    def _complaint(self, x: Floats, finite: Any, start: int) -> InvalidDataError:
        i = int(np.argmin(finite))
        row = self.source.first_row + start + i
        d = int(np.argmin(np.isfinite(x[i])))
        name = self.source.covariate_names[self.positions[d]]
        return InvalidDataError(
            f"{place_of(row, self.source.name, self.source.chunk_rows)}: "
            f"its covariate {name!r} is {x[i, d]}. Mend the row, or drop and count such rows with "
            "on_invalid='drop' (--on-invalid drop).",
            row,
        )

    @_QUIET
    def merge(self, a: _State, b: _State) -> _State:
        if a.n == 0 or b.n == 0:
            return b if a.n == 0 else a
        n = a.n + b.n
        step = b.mean - a.mean
        return _State(
            n,
            a.mean + step * (b.n / n),
            a.squares + b.squares + step * step * (a.n * b.n / n),
            np.minimum(a.low, b.low),
            np.maximum(a.high, b.high),
            [
                None if x is None or y is None else _few(np.concatenate([x, y]))
                for x, y in zip(a.levels, b.levels, strict=True)
            ],
        )


def _few(values: Floats) -> Floats | None:
    """The distinct values, or None if there are many."""
    if len(np.unique(values[:_GLANCE])) > MAX_LEVELS:
        return None
    found = np.unique(values)
    return None if len(found) > MAX_LEVELS else found


def summarise(
    source: ArraySource,
    names: tuple[str, ...],
    on_invalid: str = "raise",
    scheduler: Any = None,
) -> dict[str, Column]:
    """Read the covariates once; columns by name.

    Raises
    ------
    OptionError
        If there is no covariate of a name.
    InvalidDataError
        If a value is NaN or infinite and `on_invalid` is "raise", no row is left, or values are
        above 1e154.
    """
    if len(set(names)) != len(names):
        raise OptionError(f"a covariate is named twice: {', '.join(names)}")
    positions = tuple(source.covariate(name) for name in names)
    size = source.block_rows
    task = _Task(source, positions, on_invalid, size, -(-source.rows // size))
    found: _State = engine.fold(task, scheduler)
    if not found.n:
        raise InvalidDataError(f"{source.name}: no row has finite covariates {', '.join(names)}")
    deviation = np.sqrt(found.squares / found.n)
    for name, finite, low, high in zip(
        names, np.isfinite(deviation), found.low, found.high, strict=True
    ):
        if not finite:
            raise InvalidDataError(
                f"the values of the covariate {name!r}, {low:.3g} to {high:.3g}, are too large for "
                "distances between them: rescale it"
            )
    columns = {}
    for i, name in enumerate(names):
        levels = found.levels[i]
        categories = (
            None if levels is None else tuple(source.level(name, value) for value in levels)
        )
        columns[name] = Column(
            name, positions[i], float(found.mean[i]), float(deviation[i]), float(found.low[i]),
            float(found.high[i]), categories,
        )  # fmt: skip
    return columns
