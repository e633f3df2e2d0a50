"""Recipe by which the states of a ledger are computed, and its form as JSON."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.covariates import Axis
from calibscale.data.derived_sources import HoldOut
from calibscale.data.groups import Grouping
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.inference.e_process import BettingEProcess
from calibscale.inference.nulls import Replicates, replicates_of
from calibscale.intervals.resampling import Jackknife
from calibscale.kernels.features import OneHot, RandomFourier
from calibscale.kernels.fourier_series import Factor, FourierSeries
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.monitoring.ledger.day_parts import zero_parts
from calibscale.monitoring.ledger.group_keys import LedgerGroups
from calibscale.monitoring.ledger.stored_statistics import STATISTICS
from calibscale.predictions.classes import Classes
from calibscale.predictions.kinds import TARGETS
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.target import Target
from calibscale.registry import RegistryEntry
from calibscale.statistics.null_distributions import ClusterSigns, DrawnLabels, RandomSigns
from calibscale.statistics.statistic import Statistic


@runtime_checkable
class StoresParts(Protocol):
    """Settings of an estimator that do not determine the bound estimator without the data.

    Ledgers store the parts that are missing beside the settings.
    """

    @property
    def bound_fields(self) -> tuple[str, ...]:
        """Names of the parts, fields of the bound estimator, which may lack them."""
        ...

    def with_parts(self, **parts: Any) -> BoundEstimator:
        """Return the bound estimator with these parts."""
        ...


@cache
def _kinds() -> dict[str, RegistryEntry]:
    """Entry by class name of everything of this package that a ledger can store."""
    tables = (ESTIMATORS, STATISTICS, TARGETS)
    listed = [table.entry(name) for table in tables for name in table.built_in]
    kernels = (RandomFourier, OneHot, ProductKernel, Factor, FourierSeries)
    settings = (*kernels, HoldOut, Axis, Grouping, LedgerGroups)
    for kind in settings:
        listed.append(RegistryEntry(kind.__name__, f"{kind.__module__}:{kind.__name__}"))
    return {entry.path.rpartition(":")[2]: entry for entry in listed}


def _entry_of_other(value: Any) -> RegistryEntry | None:
    """Entry of another package with the class of an estimator, target or statistic, or None."""
    name = str(getattr(value, "name", ""))
    names = ((ESTIMATORS, name), (TARGETS, name), (STATISTICS, type(value).__name__))
    for table, name in names:
        if name in table and table[name] is type(value):
            return table.entry(name)
    return None


def _class_of_other(name: str, package: str) -> Any:
    """Class that a package has under a name.

    An OptionError names the package if it is not installed, or does not work.
    """
    for table in (ESTIMATORS, TARGETS, STATISTICS):
        if name in table and table.entry(name).package == package:
            return table[name]
    raise OptionError(
        f"the ledger has {name!r} of the package {package}, which is not installed here or no "
        f"longer has it: install {package}; `calibscale plugins` lists what is installed"
    )


# Names in ledgers and job files that differ from the names in the code.  Stored names never change,
# so that existing files can be read.
_STORED = {
    "BettingEProcess": "Wagers",
    "bandwidth_share": "choose",
    "conditional_on": "within",
}
_CURRENT = {stored: name for name, stored in _STORED.items()}


def stored_name(name: str) -> str:
    """Name of a class or a field in ledgers and job files."""
    return _STORED.get(name, name)


def current_name(stored: str) -> str:
    """Name in the code of a class or a field in ledgers and job files."""
    return _CURRENT.get(stored, stored)


def _stored_class(value: Any) -> dict[str, str]:
    """Class of a value as a ledger stores it: its name, and the package if it is another one."""
    name = type(value).__name__
    own = _kinds().get(name)
    if own is not None and own.load() is type(value):
        return {"kind": stored_name(name)}
    other = _entry_of_other(value)
    if other is None:
        raise OptionError(
            f"a ledger cannot store {name}, because no registry has its class: declare it as an "
            "entry point of calibscale.estimators or calibscale.statistics"
        )
    return {"kind": other.name, "package": other.package}


def encode(value: Any) -> Any:
    """Settings as JSON, with frozen dataclasses by name and tuples as lists.

    Raises
    ------
    OptionError
        If a setting has a type that ledgers cannot store.
    """
    if is_dataclass(value) and not isinstance(value, type):
        parts = {}
        if isinstance(value, BoundEstimator):
            bound, value = value, value.settings
            if isinstance(value, StoresParts):
                # An estimator that is its own settings has no such part, which is stored as null.
                parts = {key: getattr(bound, key, None) for key in value.bound_fields}
        stored_as = _stored_class(value)
        names = (f.name for f in fields(value) if f.init and f.compare)
        settings = {name: getattr(value, name) for name in names} | parts
        settings = {stored_name(key): encode(item) for key, item in settings.items()}
        return {**stored_as, "settings": settings}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {"mapping": {str(key): encode(item) for key, item in value.items()}}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
        return {"number": str(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise OptionError(f"a ledger cannot store {type(value).__name__}")


def decode(value: Any) -> Any:
    """Settings from their JSON form.  Lists become tuples."""
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"number"}:
        return float(value["number"])
    if set(value) == {"mapping"}:
        return {key: decode(item) for key, item in value["mapping"].items()}
    if "package" in value:
        kind = _class_of_other(value["kind"], value["package"])
    else:
        name = current_name(value["kind"])
        newer = f"{value['kind']!r} was written by a newer calibscale; upgrade it"
        require(name in _kinds(), newer)
        kind = _kinds()[name].load()
    settings = {current_name(key): decode(item) for key, item in value["settings"].items()}
    named = kind.bound_fields if isinstance(kind, StoresParts) else ()
    parts = {key: settings.pop(key) for key in named if key in settings}
    decoded = kind(**settings)
    return decoded.with_parts(**parts) if any(parts.values()) else decoded


@dataclass(frozen=True)
class Recipe:
    """Settings that must be equal for the states of two days to merge.

    Parameters
    ----------
    classes : int
    estimators : tuple of BoundEstimator
        Frozen estimators, in which bandwidths, λ, edges, series and feature maps are values.
    wagers : tuple of BettingEProcess
        Without learned bets, which belong to single days.
    covariates : tuple of str
        Names of the columns, in the order of the source.
    group_by : str, optional
        Covariate with separate states of its values, or its grouping as in the job.
    tested : tuple of str
        Names of the estimators that are tested.
    replicates : int
        Number of replicates of every test.
    keep : bool
        Whether the states of replicates are kept, so that windows can be tested.
    seed : int
        Seed of the replicates.  The seed of a day, also of the labels that its intervals draw, is a
        hash of it and the day.
    parted : tuple of Statistic
        Statistics with states that are also kept for parts of the rows of a day.
    cluster : str, optional
        Covariate that has one value for each cluster of dependent rows.
    forecast : Forecast, optional
        Kind of the predictions of other targets than classes, with the kernel on targets.
    groups : LedgerGroups, optional
        Grouping of all days by `group_by`.  Ledgers of earlier versions have none: their groups are
        the numbers of the column.
    """

    classes: int
    estimators: tuple[BoundEstimator, ...]
    wagers: tuple[BettingEProcess, ...] = ()
    covariates: tuple[str, ...] = ()
    group_by: str | None = None
    tested: tuple[str, ...] = ()
    replicates: int = 0
    keep: bool = False
    seed: int = 0
    parted: tuple[Statistic, ...] = ()
    cluster: str | None = None
    forecast: OutcomeTarget | None = None
    groups: LedgerGroups | None = None

    @property
    def target(self) -> Target:
        """What the predictions of all days claim."""
        return self.forecast or Classes(self.classes)

    def to_dict(self) -> dict[str, Any]:
        """JSON object of the recipe."""
        settings = {f.name: encode(getattr(self, f.name)) for f in fields(self)}
        for name in ("forecast", "groups"):  # unset fields are absent as in ledgers of old versions
            if settings[name] is None:
                del settings[name]
        return settings

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Recipe:
        return Recipe(**{name: decode(item) for name, item in value.items()})

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """Statistics of a day's state, in order."""
        return tuple(dict.fromkeys(s for e in self.estimators for s in e.needs))

    @property
    def under_test(self) -> list[BoundEstimator]:
        """The estimators that are tested."""
        return [e for e in self.estimators if e.name in self.tested]

    def notion_of(self, notion: str) -> str:
        """Notion of an estimate or test in results.  Without classes it is the forecast."""
        return self.target.named_notion(notion)

    def jackknife(self, confidence_level: float) -> Jackknife:
        """Request of intervals that leave out rows or clusters."""
        return Jackknife(
            confidence_level,
            clustered=self.cluster is not None,
            draws_responses=self.target.draws_responses,
        )

    def null(self, day: str = "") -> DrawnLabels | RandomSigns:
        """Null distribution of the labels of a day.  Clusters keep their signs on all days."""
        if self.cluster is not None:  # a cluster may have rows on several days
            return ClusterSigns(self.seed)
        # Days have seeds of their own, as equal draws would not be independent.
        text = f"{self.seed} {day}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
        return DrawnLabels(seed) if self.target.draws_responses else RandomSigns(seed)

    def replicated(self, day: str = "", count: int | None = None) -> dict[Statistic, Replicates]:
        """Replicates of a day by tested statistic: the first `count`, or all of them."""
        count = self.replicates if count is None else count
        return replicates_of(self.under_test, self.null(day), 0, count) if count else {}

    @cached_property
    def _zeros(self) -> dict[str, list[Any]]:
        sections = {
            "states": self.statistics,
            "wagers": self.wagers,
            "replicates": tuple(self.replicated().values()) if self.keep else (),
        }
        zeros = {name: [s.zero(self.classes) for s in kinds] for name, kinds in sections.items()}
        return zeros | {"parts": [zero_parts(s, self.classes) for s in self.parted]}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of float64 values in each section of a day's record, without empty sections."""
        sizes = {
            name: sum(field.nbytes // 8 for zero in zeros for field in zero)
            for name, zeros in self._zeros.items()
        }
        return {name: size for name, size in sizes.items() if size}

    def pack(self, states: Iterable[Any]) -> Floats:
        """States of a section as one vector."""
        # A complex number becomes two real numbers, so that sums of vectors are sums of states.
        parts = [
            np.ascontiguousarray(field).reshape(-1).view(np.float64)
            for state in states
            for field in state
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def unpack(self, section: str, vector: Floats) -> list[Any]:
        """States from a vector, or a sum of vectors, of a section."""
        states, at = [], 0
        for zero in self._zeros[section]:
            arrays = []
            for field in zero:
                part = vector[at : at + field.nbytes // 8]
                at += len(part)
                arrays.append(part.view(field.dtype).reshape(field.shape))
            states.append(zero._make(arrays) if hasattr(zero, "_make") else tuple(arrays))
        return states

    def states(self, vector: Floats) -> dict[Statistic, Any]:
        """States by statistic from a vector, or a sum of vectors, of the section "states"."""
        return dict(zip(self.statistics, self.unpack("states", vector), strict=True))
