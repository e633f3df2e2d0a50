"""Ranks of predictions that are numbers, in which `select` compares them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.kernels.landmarks import PointFeatures

_KNOTS = 1024  # steps of equal mass, at the ends of which the ranks of a column are known


@dataclass(frozen=True)
class PointRanks:
    """Share of the kept rows with a smaller prediction, in [0, 1], column by column.

    Predictions of numbers have any unit and any tail.  Their ranks have neither, so that bins have
    equal mass, and one bandwidth suits all kinds.  Ranks increase with the predictions: a function
    of one is a function of the other.  Equal predictions have the middle of their ranks.

    Attributes
    ----------
    identity : str
        Digest of the knots, by which ranks are compared.
    knots, ranks : sequence of (q,)
        For each column, increasing predictions and their ranks, linear between them.
    """

    identity: str
    knots: Sequence[Floats] = field(compare=False, repr=False)
    ranks: Sequence[Floats] = field(compare=False, repr=False)

    @classmethod
    def of(cls, points: Floats, weights: Floats) -> Self:
        """Ranks among points (c, d) with weights (c,)."""
        columns = [_mid_ranks(points[:, column], weights) for column in range(points.shape[1])]
        digest = hashlib.sha256(b"".join(part.tobytes() for pair in columns for part in pair))
        knots, ranks = zip(*columns, strict=True)
        return cls(digest.hexdigest()[:16], knots, ranks)

    @property
    def width(self) -> int:
        """Number d of columns."""
        return len(self.knots)

    def __call__(self, points: Floats) -> Floats:
        """Ranks (c, d) of points (c, d)."""
        columns = zip(points.T, self.knots, self.ranks, strict=True)
        return np.stack([np.interp(x, knots, ranks) for x, knots, ranks in columns], axis=1)


def _mid_ranks(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Different values of a column in increasing order, and their ranks.

    Of many values, the ends of `_KNOTS` steps of equal mass are kept, and values with more mass
    than a step together with their neighbours, so that no mass is spread between values.
    """
    values, places = np.unique(x, return_inverse=True)
    mass = np.bincount(places, weights, len(values))
    above = np.cumsum(mass)
    ranks = (above - mass / 2.0) / above[-1]
    if len(values) > _KNOTS:
        ends = np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], _KNOTS + 1))
        heavy = np.flatnonzero(mass * _KNOTS > above[-1])
        chosen = np.unique(np.concatenate([ends, heavy - 1, heavy, heavy + 1]))
        chosen = chosen[(chosen >= 0) & (chosen < len(values))]
        values, ranks = values[chosen], ranks[chosen]
    return values, ranks


@dataclass(frozen=True)
class RankedFeatures:
    """Feature map of the ranks of points."""

    features: PointFeatures
    ranks: PointRanks

    @property
    def m(self) -> int:
        return self.features.m

    def __call__(self, points: Floats) -> Floats:
        return self.features(self.ranks(points))

    def describe(self) -> dict[str, object]:
        return {**self.features.describe(), "points": "ranks"}
