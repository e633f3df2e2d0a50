"""Recalibration of groups and their intersections: multicalibration boosting, and proportional."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, TypeAdapter

from calibscale.array_types import Floats, Ints
from calibscale.data.covariates import MAX_LEVELS, Axis
from calibscale.errors import require
from calibscale.estimators.base import set_names
from calibscale.estimators.multicalibration import Multicalibration
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    NonNegative,
    Read,
    RecalibrationMethod,
    StoredFit,
    increasing,
    short_of_certainty,
)
from calibscale.statistics.ratios import ratio
from calibscale.statistics.segment_atoms import AtomState, SegmentAtoms

_AXES = TypeAdapter(tuple[Axis, ...])
_MAX_CATEGORIES = 2**24  # of a fit: groups times bins of p'


@dataclass(frozen=True)
class MCBoost(RecalibrationMethod):
    """Boosting until groups are calibrated in every bin of p' (Hébert-Johnson et al. 2018).

    For two classes.  Groups are all rows, the levels of covariates with few values, quantile bins
    of others, and their intersections.  A category is a group and a bin of p'.  In a round, one
    group after another, the mean of y − p' of each category where it exceeds `alpha` is added to
    p', which then is clipped to [0, 1].  Rounds end when nothing changes.  They are on the atoms of
    `SegmentAtoms`, which one pass counts.  All rows of an atom have the same p', so the bound holds
    for the rows of the fit.  After the last round, no p' is certain (see `short_of_certainty`), so
    that the log loss of new rows is finite; this moves a p' by at most 1/(rows + 2).

    Parameters
    ----------
    covariates, categorical : sequence of str
        Covariates that define groups, and the covariates with a group for each of up to 64 values.
    depth : int or tuple of int
        Largest number of covariates that groups intersect, or the numbers, where 0 means all rows.
    bins, score_bins, max_rounds : int
        Numbers of quantile bins of a covariate with more than ten values, and of equal bins of p',
        and the largest number of rounds.
    alpha : float
        Largest |mean of y − p'| that is left as it is.
    min_share, min_rows : float
        Groups have a larger share γ of the rows than `min_share`, and categories at least
        `min_rows` rows.
    z : float
        Means within z standard errors √(p'(1 − p')/rows) are left as they are.  Published
        algorithms have z = 0, and fit the noise of small categories.
    """

    covariates: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    depth: int | tuple[int, ...] = 2
    bins: int = 5
    score_bins: int = 10
    alpha: float = 0.01
    min_share: float = 0.01
    min_rows: float = 30
    z: float = 2.0
    max_rounds: int = 1000
    name: ClassVar[str] = "mc"
    rho: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        set_names(self, "covariates", "categorical")
        if not isinstance(self.depth, int):
            object.__setattr__(self, "depth", tuple(self.depth))
        count, depths = len(self.covariates), self.depths
        names = set(self.covariates)
        require(
            set(self.categorical) <= names and len(names) == count,
            "covariates must be different names, and categorical some of them",
        )
        require(
            depths and 0 <= min(depths) <= max(depths) <= count,
            f"depth must be at least 0, and at most {count}, the number of covariates",
            self.depth,
        )
        require(0 <= self.min_share < 1, "min_share must be in [0, 1)", self.min_share)
        require(self.rho is None or 0 < self.rho <= 1, "rho must be in (0, 1]", self.rho)
        lowest = {"bins": 2, "score_bins": 1, "alpha": 1e-9, "z": 0, "max_rounds": 1, "min_rows": 1}
        for option, least in lowest.items():
            require(getattr(self, option) >= least, f"{option} must be at least {least:g}")

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of covariates that groups intersect."""
        if isinstance(self.depth, int):
            return tuple(range(min(self.depth, len(self.covariates)) + 1))
        return self.depth

    @classmethod
    def fit_class(cls) -> type[MCBoostFit]:
        return MCBoostFit

    def _fit(self, setup: DataProfile, read: Read) -> MCBoostFit:
        segmentation = Multicalibration(
            self.covariates, 2, self.categorical, self.bins, notion="positive"
        )
        atoms = segmentation.bind(setup).atoms
        result = read(atoms, covariates=self.covariates)
        state = result.groups[None][atoms]
        weight, p, delta = state.sums[[1, 3, 4]]  # Σw, Σwp and Σwδ of the atoms
        # In units of rows, in which `min_rows` is.
        scaled = weight * (result.counts.used / weight.sum())
        return MCBoostFit(
            axes=tuple(replace(axis, position=i) for i, axis in enumerate(atoms.axes)),
            bits=int(state.bits),
            updates=np.empty((0, 3)),
            groups=0,
            errors=np.zeros(2),
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=1,
        ).boosted(state.keys, scaled, ratio(p - delta, weight))


@dataclass(frozen=True)
class PMCBoost(MCBoost):
    """Multicalibration relative to the frequency of events (La Cava, Lett & Wan 2023).

    As `MCBoost`, with |mean of y − p'| divided by max(mean of y, `rho`).
    """

    rho: float = 0.1  # type: ignore[misc]
    name: ClassVar[str] = "pmc"


_Index = Annotated[float, Field(ge=0.0, multiple_of=1.0)]


class StoredMCBoost(StoredFit):
    """State of `MCBoostFit`."""

    axes: tuple[Axis, ...]
    bits: Annotated[int, Field(ge=5, le=40)]
    updates: list[tuple[_Index, _Index, Annotated[float, Field(ge=-1e3, le=1e3)]]]
    groups: Annotated[int, Field(ge=1)]
    errors: Annotated[list[NonNegative], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, eq=False, kw_only=True)
class MCBoostFit(FittedRecalibrator):
    """Updates of p' in cells of `bits` bits of the score.

    `updates` (u, 3) are round, category and the term added to p'.  `groups` is the number of groups
    that are large enough, `errors` the largest |mean of y − p'| of their categories before and
    after, divided by max(mean of y, rho) if proportional.
    """

    method: MCBoost
    axes: tuple[Axis, ...]
    bits: int
    updates: Floats
    groups: int
    errors: Floats
    stored: ClassVar[type[StoredFit]] = StoredMCBoost

    @property
    def parameters(self) -> dict[str, Any]:
        counts = {"groups": self.groups, "updates": len(self.updates)}
        return counts | {"error_before": float(self.errors[0]), "error": float(self.errors[1])}

    @property
    def state(self) -> dict[str, Any]:
        return super().state | {"axes": _AXES.dump_python(self.axes, mode="json")}

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        fitted = super().restored(state, **common)
        fitted = replace(fitted, updates=np.reshape(fitted.updates, (-1, 3)))
        fitted._require_axes()
        places = fitted.updates[:, :2].tolist()
        require(increasing(places), "state.updates must be in order of rounds and categories")
        require(
            not places or places[-1][0] < fitted.method.max_rounds,
            f"state.updates must be of one of {fitted.method.max_rounds:,} rounds",
        )
        require(
            not places or max(place[1] for place in places) < fitted.categories,
            f"state.updates must be of one of {fitted.categories:,} categories",
        )
        require(
            fitted.groups * fitted.method.score_bins <= fitted.categories,
            f"state.groups must be at most {fitted.categories // fitted.method.score_bins:,}",
            fitted.groups,
        )
        return fitted

    @property
    def categories(self) -> int:
        """Number of categories: groups of all sets of covariates, times bins of p'."""
        sizes = SegmentAtoms(self.axes, "positive").sizes
        groups = sum(
            math.prod(sizes[i] for i in axes)
            for depth in self.method.depths
            for axes in combinations(range(len(sizes)), depth)
        )
        return groups * self.method.score_bins

    def _require_size(self) -> None:
        require(
            self.categories <= _MAX_CATEGORIES,
            f"groups and bins of p' make more than "
            f"{_MAX_CATEGORIES:,} categories: use fewer covariates, bins or score_bins",
        )

    def _require_axes(self) -> None:
        """Raise an OptionError unless the axes of a file match its settings."""
        method = self.method
        require(
            tuple(axis.name for axis in self.axes) == method.covariates,
            "state.axes must have the names of settings.covariates",
        )
        for place, axis in enumerate(self.axes):
            require(axis.position == place, f"state.axes[{place}].position must be {place}")
            cuts = axis.edges if axis.levels is None else axis.levels
            names = (self.source or {}).get("categories", {}).get(axis.name)
            require(
                names is None or (axis.levels and max(axis.levels) < len(names)),
                f"source.categories.{axis.name} must have a name for each level",
            )
            require(increasing(cuts), f"state.axes[{place}] must have increasing levels and edges")
            most = method.bins - 1 if axis.levels is None else MAX_LEVELS
            require(
                len(cuts) <= most, f"state.axes[{place}] must have at most {most} levels or edges"
            )
        self._require_size()

    def _numbered(self, crossings: Ints) -> Iterator[tuple[int, int, Ints]]:
        """First group of each set of covariates, their number, and group of each crossing."""
        sizes, first = SegmentAtoms(self.axes, "positive").sizes, 0
        parts = np.unravel_index(crossings, sizes) if sizes else ()
        for depth in self.method.depths:
            for axes in combinations(range(len(sizes)), depth):
                group, count = np.zeros(len(crossings), np.int64), 1
                for i in axes:  # groups of unknown values have no rows in the fit
                    group, count = group * sizes[i] + parts[i], count * sizes[i]
                yield first, count, group
                first += count

    def _start(self, keys: Ints) -> tuple[Ints, Floats]:
        """Crossings, and p in the middle of the cells of the score, of atoms or rows."""
        state = AtomState(keys, np.empty((6, 0)), np.array(self.bits))
        # Cells are equal in t, with p = t²/(t² + (1 − t)²), so that they are finer near 0 and 1.
        t = ((state.cell >> (40 - self.bits)) + 0.5) / 2.0**self.bits
        p = t * t / (t * t + (1.0 - t) ** 2)
        # The last cells round to 1, which has no complement.
        return state.crossing, np.minimum(p, 1.0 - 2.0**-53)

    def _bins(self, p: Floats) -> Ints:
        """Bin of each p: intervals closed on the right, whatever the rounding errors of sums."""
        count = self.method.score_bins
        return np.searchsorted(np.arange(1, count) / count, np.round(p, 9))

    def boosted(self, keys: Ints, weight: Floats, frequency: Floats) -> Self:
        """Fit to atoms, with weights that sum to the number of rows."""
        self._require_size()
        crossings, p = self._start(keys)
        method, bins, updates, errors = self.method, self.method.score_bins, [self.updates], [0.0]
        for number in range(method.max_rounds + 1):  # the last one only measures the error
            start, place, error, groups, before = p, self._bins(p), 0.0, 0, len(updates)
            for first, count, group in self._numbered(crossings):
                large = np.bincount(group, weight, count) > method.min_share * weight.sum()
                groups += int(large.sum())
                category, length = group * bins + place, count * bins
                rows = np.bincount(category, weight, length)
                used = np.flatnonzero(np.repeat(large, bins) & (rows >= method.min_rows))
                # Means of y, of p' at the start of the round, and of p' after the groups before
                # this one.
                y, then, now = (
                    np.bincount(category, weight * quantity, length)[used] / rows[used]
                    for quantity in (frequency, start, p)
                )
                unit = np.ones(len(y)) if method.rho is None else np.maximum(y, method.rho)
                # The guarantee is for the p' of whole rounds: categories are bins of p' at the
                # start.
                error = max(error, np.max(np.abs(y - then) / unit, initial=0.0))
                # The standard error of a mean of rows with probability p' is √(p'(1 − p')/rows).
                noise = method.z * np.sqrt(np.clip(now * (1.0 - now), 0.0, None) / rows[used])
                far = np.flatnonzero(np.abs(y - now) > np.maximum(method.alpha * unit, noise))
                if len(far) and number < method.max_rounds:
                    used, delta = used[far], (y - now)[far]
                    updates.append(np.stack([0 * far + number, first * bins + used, delta], 1))
                    p = p + np.bincount(used, delta, length)[category]
            errors.append(error)
            p = np.clip(p, 0.0, 1.0)
            if len(updates) == before:
                break
        require(
            groups,
            f"no group has more than min_share={method.min_share:g} of the rows: lower "
            "it, or use fewer covariates or bins",
        )
        notes: tuple[str, ...] = ()
        if number == method.max_rounds and errors[-1] > method.alpha:
            notes = (f"the error is {errors[-1]:.3g} after {number} rounds: raise max_rounds",)
        ends = np.array([errors[1], errors[-1]])
        changes = np.concatenate(updates)
        return replace(self, updates=changes, groups=groups, errors=ends, notes=notes)

    def predictions(self, chunk: Chunk) -> Floats:
        if not len(self.updates):
            return chunk.q  # and not the means of its cells
        crossings, original = self._start(SegmentAtoms(self.axes, "positive").located(chunk)[0])
        p = original
        groups = list(self._numbered(crossings))
        bins = self.method.score_bins
        table = np.zeros(sum(groups[-1][:2]) * bins)
        # Replay the fit: within a round bins do not change, and p' is clipped after it.
        for updates in np.split(self.updates, np.flatnonzero(np.diff(self.updates[:, 0])) + 1):
            table[:] = 0.0
            table[updates[:, 1].astype(int)] = updates[:, 2]
            place = self._bins(p)
            for first, _, group in groups:
                p = p + table[(first + group) * bins + place]
            p = np.clip(p, 0.0, 1.0)
        p = short_of_certainty(p, original, self.counts.used)
        return np.column_stack([1.0 - p, p])
