"""Classes by name: tables of this package, to which other installed packages add names.

A package with an estimator names its class as an entry point in its pyproject.toml:

    [project.entry-points."calibscale.estimators"]
    overconfidence = "own_package.estimators:Overconfidence"

Names of this package come first.  Entry points are read when a name is in no table of this package,
or when all names are listed, because reading them takes as long as the start of a short command.

A class of another package may have the number `protocol`, the version of the base class that it was
written for.  A registry has the present version, which increases when classes of older versions
would no longer work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from calibscale.errors import OptionError
from calibscale.formatting.naming import joined, plain_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

OWN_PACKAGE = "calibscale"
GROUPS = "calibscale."  # beginning of the groups of entry points

T = TypeVar("T")


@dataclass(frozen=True)
class RegistryEntry:
    """One name of a registry.

    Attributes
    ----------
    name : str
    path : str
        Import path of the class, its module and name, such as ``package.module:Class``.
    summary : str
        One line for listings, empty for classes of other packages.
    package, version : str
        Package that has the class.
    value : object
        The class itself if a program has registered it, otherwise None.
    """

    name: str
    path: str
    summary: str = ""
    package: str = OWN_PACKAGE
    version: str = ""
    value: Any = None

    @property
    def origin(self) -> str:
        """Package and version."""
        return f"{self.package} {self.version}".strip()

    @property
    def description(self) -> str:
        """Summary for listings, which need not import the class."""
        return self.summary or f"from the package {self.origin}"

    def load(self) -> Any:
        """Class of the entry, imported on first use."""
        return imported(self.path) if self.value is None else self.value


def imported(path: str) -> Any:
    """Object at an import path such as ``package.module:Class``."""
    module, _, names = path.partition(":")
    value = import_module(module)
    for name in filter(None, names.split(".")):
        value = getattr(value, name)
    return value


@cache
def _entry_points() -> EntryPoints:
    """Entry points of all installed packages, read once."""
    # The module loads tens of others, and most programs need no entry point.
    from importlib.metadata import entry_points

    # Before Python 3.12 a call without a group returns a dictionary, which has `select`, too.
    return entry_points()  # type: ignore[return-value]


@cache
def installed_entries(group: str) -> tuple[RegistryEntry, ...]:
    """Entries of a group that other installed packages have, sorted by package and name."""
    entries: dict[tuple[str, str], RegistryEntry] = {}
    for point in _entry_points().select(group=group):
        distribution = point.dist
        package = (distribution and distribution.name) or "another package"
        version = (distribution and distribution.version) or ""
        path = point.value.partition("[")[0].replace(" ", "")  # without the extras it needs
        entry = RegistryEntry(point.name, path, package=package, version=version)
        # One package may be found twice on the path.  Python imports the first one.
        entries.setdefault((package, point.name), entry)
    return tuple(entries[key] for key in sorted(entries))


def installed_groups() -> tuple[str, ...]:
    """Groups of entry points of installed packages that begin as the groups of registries."""
    return tuple(sorted(name for name in _entry_points().groups if name.startswith(GROUPS)))


def forget_installed() -> None:
    """Read entry points again at their next use, because packages were installed or removed."""
    _entry_points.cache_clear()
    installed_entries.cache_clear()


class Registry(Mapping[str, T], Generic[T]):
    """Classes of one kind by name, each imported when it is needed.

    The mapping has the names of this package in the order of its table, the names that a program
    has registered, and the names that other packages have as entry points.

    Parameters
    ----------
    kind : str
        Noun for messages, such as “estimator”.
    entries : iterable of RegistryEntry
        Table of this package.
    group : str, optional
        Group of entry points, without which other packages can add no names.
    base : str, optional
        Class from which classes of other packages are derived, such as ``calibscale:Estimator``.
    protocol : int
        Present version of the base class.
    synonyms : iterable of str, optional
        Further names of this package in the form of `plain_name`.

    Examples
    --------
    >>> from calibscale.registry import RegistryEntry, Registry
    >>> functions = Registry("function", [RegistryEntry("root", "math:sqrt", "square root")])
    >>> functions["root"](9.0), "length" in functions, list(functions)
    (3.0, False, ['root'])
    >>> functions.register("length", "math:hypot")
    >>> functions["length"](3.0, 4.0)
    5.0
    """

    def __init__(
        self,
        kind: str,
        entries: Iterable[RegistryEntry],
        *,
        group: str | None = None,
        base: str | None = None,
        protocol: int = 1,
        synonyms: Iterable[str] = (),
    ) -> None:
        self.kind, self.group, self.base, self.protocol = kind, group, base, protocol
        self._table = {entry.name: entry for entry in entries}
        self._registered: dict[str, RegistryEntry] = {}
        self._synonyms = frozenset(synonyms)
        self._plain = {plain_name(name): name for name in self._table}

    # ------------------------------------------------------------ names

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of this package, in the order of its table."""
        return tuple(self._table)

    @property
    def summaries(self) -> dict[str, str]:
        """Summary of each name of this package."""
        return {entry.name: entry.summary for entry in self._table.values()}

    @property
    def entries(self) -> tuple[RegistryEntry, ...]:
        """Entries of all names, in the order of the mapping."""
        return (*self._table.values(), *self.others)

    @property
    def others(self) -> tuple[RegistryEntry, ...]:
        """Entries of programs and other packages whose names this package does not have."""
        installed = (entry for entry in self.installed if not self.has_name(entry.name))
        known: dict[str, RegistryEntry] = {**self._registered}
        for entry in installed:
            known.setdefault(entry.name, entry)
        return tuple(known.values())

    @property
    def installed(self) -> tuple[RegistryEntry, ...]:
        """Entries that other packages have as entry points, also those that are refused."""
        return () if self.group is None else installed_entries(self.group)

    def has_name(self, name: Any) -> bool:
        """Whether a name, compared without case and separators, belongs to this package."""
        plain = plain_name(name)
        return plain in self._plain or plain in self._synonyms

    def spelt(self, name: Any) -> str | None:
        """Name of this registry that is equal to a name without case and separators, or None."""
        plain = plain_name(name)
        if plain in self._plain:
            return self._plain[plain]
        if plain in self._synonyms:
            return None
        return next((e.name for e in self.others if plain_name(e.name) == plain), None)

    def entry(self, name: str) -> RegistryEntry:
        """Entry of a name.

        Raises
        ------
        KeyError
            If there is none.
        OptionError
            If several packages have the name.
        """
        entry = self._table.get(name) or self._registered.get(name)
        if entry is not None:
            return entry
        for entry in self.others:
            if entry.name == name:
                rivals = self._rivals(entry)
                if rivals:
                    packages = joined([entry.origin, *rivals])
                    raise OptionError(
                        f"the {self.kind} {name!r} is provided by {packages}; uninstall all of "
                        "these packages but one"
                    )
                return entry
        raise KeyError(name)

    def _rivals(self, entry: RegistryEntry) -> list[str]:
        """Other packages that have the name of an entry of another package."""
        plain = plain_name(entry.name)
        return [
            other.origin
            for other in (*self._registered.values(), *self.installed)
            if plain_name(other.name) == plain and other.path != entry.path
        ]

    # ------------------------------------------------------------ the mapping

    def __getitem__(self, name: str) -> T:
        entry = self.entry(name)
        if name in self._table:
            return entry.load()
        reason = self.fault(entry)
        if reason is not None:
            raise OptionError(f"the {self.kind} {name} of {entry.origin} {reason}")
        return entry.load()

    def __contains__(self, name: object) -> bool:
        if name in self._table or name in self._registered:
            return True
        return any(entry.name == name for entry in self.others)

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self.entries])

    def __len__(self) -> int:
        return len(self.entries)

    # ------------------------------------------------------------ other packages

    def fault(self, entry: RegistryEntry) -> str | None:
        """Reason why a class of another package does not work, after its package, or None.

        The class is imported.
        """
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:  # the package may fail in any way
            return f"cannot be imported: {type(error).__name__}: {error}"
        protocol = getattr(value, "protocol", self.protocol)
        if protocol != self.protocol:
            remedy = f"upgrade {entry.package}"
            if isinstance(protocol, int) and protocol > self.protocol:
                remedy = f"upgrade {OWN_PACKAGE}"
            return f"was written for protocol {protocol!r}, and this is {self.protocol}: {remedy}"
        if self.base is None:
            return None if callable(value) else "is not callable"
        base = imported(self.base)
        if not (isinstance(value, type) and issubclass(value, base) and is_dataclass(value)):
            return f"is not a dataclass derived from {self.base.replace(':', '.')}"
        missing: list[str] = sorted(getattr(value, "__abstractmethods__", ()))
        if missing:
            return f"does not define {joined(missing)}"
        declared = getattr(value, "name", value.__name__)
        if declared != entry.name:
            return f"has the name {declared!r} in its class: use one name for both"
        return None

    def state(self, entry: RegistryEntry) -> str:
        """“works”, or the reason why an entry of another package does not."""
        if self.has_name(entry.name):
            return f"clashes with {OWN_PACKAGE}, which has this name or synonym"
        rivals = self._rivals(entry)
        if rivals:
            return f"clashes with {joined(rivals)}"
        return self.fault(entry) or "works"

    def register(self, name: str, value: T | str, *, summary: str = "") -> None:
        """Add a class of the running program, or of a package, to this registry.

        Other processes, such as workers on other machines, do not know the name.  A package
        declares it as an entry point instead.

        Parameters
        ----------
        name : str
        value : class, or str
            The class, or its module and name such as ``own_package.estimators:Overconfidence``.
        summary : str
            One line for listings.

        Raises
        ------
        OptionError
            If this package or another one has the name, or the class does not fit.
        """
        if isinstance(value, str):
            entry = RegistryEntry(name, value, summary, value.partition(".")[0].partition(":")[0])
        else:
            module = getattr(value, "__module__", "__main__")
            qualified_name = getattr(value, "__qualname__", name)
            package = module.partition(".")[0]
            entry = RegistryEntry(name, f"{module}:{qualified_name}", summary, package, value=value)
        owners = [OWN_PACKAGE] if self.has_name(name) else self._rivals(entry)
        if owners:
            raise OptionError(
                f"{entry.package} cannot register the {self.kind} {name!r}, a name of "
                f"{joined(owners)}"
            )
        reason = None if isinstance(value, str) else self.fault(entry)
        if reason is not None:
            raise OptionError(f"the {self.kind} {name} of {entry.origin} {reason}")
        # A notebook may run a cell again, which defines the class anew.
        self._registered[name] = entry
