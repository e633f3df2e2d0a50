"""What a ledger freezes when it is made, so that the states of its days add up."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from calibscale import local, products, spectral, statistics, wagers
from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.estimators import ESTIMATORS, KLCE, Estimator
from calibscale.features import OneHot, RandomFourier
from calibscale.ledger.parts import zero_parts
from calibscale.nulls import Null, Replicates, replicates_of
from calibscale.statistics import Statistic

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *ESTIMATORS.values(), RandomFourier, OneHot, products.ProductKernel, products.HoldOut,
        spectral.Factor, spectral.FourierSeries, local.Modes, local.LocalFeatures,
        statistics.Totals, statistics.ScalarScores, statistics.BinCounts, statistics.FineHistogram,
        statistics.SquaredResiduals, statistics.EventSums, statistics.SimplexCells,
        statistics.Moments, statistics.NoiseMoments, wagers.Wagers,
    )
}  # fmt: skip


def encode(value: Any) -> Any:
    """Settings as JSON: frozen dataclasses by name, tuples as lists.

    Raises
    ------
    OptionError
        If a setting is of a kind that no ledger knows.
    """
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if name not in _KINDS:
            raise OptionError(f"a ledger cannot keep {name}")
        settings = {f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"kind": name, "settings": settings}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {"mapping": {str(key): encode(item) for key, item in value.items()}}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise OptionError(f"a ledger cannot keep {type(value).__name__}")


def decode(value: Any) -> Any:
    """The settings again; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"number"}:
        return float(value["number"])
    if set(value) == {"mapping"}:
        return {key: decode(item) for key, item in value["mapping"].items()}
    if value["kind"] not in _KINDS:
        raise OptionError(f"a newer calibscale wrote {value['kind']!r}; upgrade this one")
    return _KINDS[value["kind"]](**{name: decode(item) for name, item in value["settings"].items()})


@dataclass(frozen=True)
class Recipe:
    """Everything that must be the same for the states of two days to merge.

    Parameters
    ----------
    classes : int
    estimators : tuple of Estimator
        Resolved and frozen: bandwidths, λ, edges, series and feature maps are values.
    wagers : tuple of Wagers
        Without what was learned, which is a day's own.
    covariates : tuple of str
        Names of the columns, in the order of the source.
    group_by : str, optional
        Column whose values have states of their own.
    tested : tuple of str
        Names of the estimators that are tested.
    replicates : int
        Of every test.
    keep : bool
        Whether the states of replicates are kept, so that windows can be tested.
    seed : int
        Of the replicates; that of a day is a hash of it and the day.
    parted : tuple of Statistic
        Those whose states are kept for parts of a day's rows as well.
    """

    classes: int
    estimators: tuple[Estimator, ...]
    wagers: tuple[wagers.Wagers, ...] = ()
    covariates: tuple[str, ...] = ()
    group_by: str | None = None
    tested: tuple[str, ...] = ()
    replicates: int = 0
    keep: bool = False
    seed: int = 0
    parted: tuple[Statistic, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {f.name: encode(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Recipe:
        return Recipe(**{name: decode(item) for name, item in value.items()})

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """What a day's state holds, in order."""
        return tuple(dict.fromkeys(s for e in self.estimators for s in e.needs))

    @property
    def under_test(self) -> list[Estimator]:
        """The estimators that are tested."""
        return [e for e in self.estimators if e.name in self.tested]

    def null(self, day: str = "") -> Null:
        """How labels of a day are drawn."""
        text = f"{self.seed} {day}".encode()
        return Null("labels", int.from_bytes(hashlib.sha256(text).digest()[:8], "little"))

    def replicated(self, day: str = "", count: int | None = None) -> dict[Statistic, Replicates]:
        """The first replicates, or all, of a day of every statistic that is tested."""
        count = self.replicates if count is None else count
        return replicates_of(self.under_test, self.null(day), 0, count) if count else {}

    @cached_property
    def _zeros(self) -> dict[str, list[Any]]:
        sections = {
            "states": self.statistics,
            "wagers": self.wagers,
            "replicates": tuple(self.replicated().values()) if self.keep else (),
        }
        found = {name: [s.zero(self.classes) for s in kinds] for name, kinds in sections.items()}
        return found | {"parts": [zero_parts(s, self.classes) for s in self.parted]}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many numbers each section of a day's record is; those that are empty are left out."""
        sizes = {
            name: sum(_count(field) for zero in zeros for field in zero)
            for name, zeros in self._zeros.items()
        }
        return {name: size for name, size in sizes.items() if size}

    def pack(self, states: Iterable[Any]) -> Floats:
        """The states of a section as one vector."""
        parts = [
            np.ascontiguousarray(field).reshape(-1).view(np.float64)
            for state in states
            for field in state
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def unpack(self, section: str, vector: Floats) -> list[Any]:
        """The states of a vector, or of a sum of vectors, of a section."""
        found, at = [], 0
        for zero in self._zeros[section]:
            arrays = []
            for field in zero:
                part = vector[at : at + _count(field)]
                at += _count(field)
                arrays.append(part.view(field.dtype).reshape(field.shape))
            found.append(zero._make(arrays) if hasattr(zero, "_make") else tuple(arrays))
        return found

    def states(self, vector: Floats) -> dict[Statistic, Any]:
        """Of a vector, or of a sum of vectors, of the section of states."""
        return dict(zip(self.statistics, self.unpack("states", vector), strict=True))


def open_ended(estimator: Estimator) -> Estimator:
    """The estimator fit for rows that nobody has seen yet.

    The box of a Fourier series is widened, and rows beyond it count as at its edge; values of a
    category that were never seen are one more category.
    """
    if not isinstance(estimator, KLCE):
        return estimator
    kernel, statistic = estimator.product, estimator.statistic
    assert kernel is not None
    kernel = replace(kernel, levels=tuple((*values, math.inf) for values in kernel.levels))
    if isinstance(statistic, local.LocalFeatures):
        return replace(estimator, product=kernel, statistic=replace(statistic, kernel=kernel))
    if not isinstance(statistic, local.Modes):
        raise OptionError(
            f"{estimator.name} by method={estimator.method!r} has no state that merges; use "
            "method='spectral' or 'features'"
        )
    first, *others = statistic.series.factors
    wide = [_widened(f) for f in others]
    kept = first if statistic.predictions else _widened(first)
    levels = tuple((*values, math.inf) for values in statistic.levels)
    couplings = tuple(_coupling(c) for c in statistic.couplings)
    series = replace(statistic.series, factors=(kept, *wide))
    statistic = replace(statistic, series=series, levels=levels, couplings=couplings, clipped=True)
    return replace(estimator, product=kernel, statistic=statistic)


def _widened(factor: spectral.Factor) -> spectral.Factor:
    """Half of its extent, and three bandwidths, more on either side."""
    margins = [
        (high - low) / 2 + 3 * bandwidth
        for low, high, bandwidth in zip(factor.low, factor.high, factor.bandwidths, strict=True)
    ]
    low = tuple(a - m for a, m in zip(factor.low, margins, strict=True))
    high = tuple(b + m for b, m in zip(factor.high, margins, strict=True))
    return replace(factor, low=low, high=high)


def _coupling(flat: tuple[float, ...]) -> tuple[float, ...]:
    """The kernel between levels, and one more that is like none of them."""
    size = math.isqrt(len(flat))
    out = np.eye(size + 1)
    out[:size, :size] = np.reshape(flat, (size, size))
    return tuple(out.ravel().tolist())


def _count(field: Any) -> int:
    """float64 numbers of an array."""
    return int(field.size * field.dtype.itemsize // 8)
