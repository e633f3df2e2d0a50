"""Base classes of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from calibscale.formatting.naming import name_of, plain_name
from calibscale.results.declarations import Declared, Json, Size
from calibscale.results.exported import Plottable, Shown, Tabular


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult(Tabular, Shown, Declared):
    """Base of results, with time, versions and parameters of the run.

    `print` shows results as tables.
    """

    seconds: Size
    versions: dict[str, str]
    parameters: Json


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome(RunResult, Plottable):
    """Base of results that are drawn from their own numbers."""


_Part = TypeVar("_Part")


class Labelled(Generic[_Part]):
    """Result that is read like a sequence of its parts, or by their labels.

    `parts` names the field of the parts, and the attribute of a part that is its label.
    """

    parts: ClassVar[tuple[str, str]]
    forms: ClassVar[tuple[Callable[[str], str], ...]] = (str, name_of)

    def __getitem__(self, label: str) -> _Part:
        """Part with the given label, or else the first of an estimator with the given name.

        Raises
        ------
        KeyError
            If there is no such part.
        """
        labels = [getattr(part, self.parts[1]) for part in self]
        for form in self.forms:
            for candidate, part in zip(labels, self, strict=True):
                if form(candidate) == label:
                    return part
        if self.parts[1] == "estimator":  # names of models differ in case
            for candidate, part in zip(labels, self, strict=True):
                if plain_name(name_of(candidate)) == plain_name(label):
                    return part
        raise KeyError(not_there(label, labels))

    def __iter__(self) -> Iterator[_Part]:
        return iter(getattr(self, self.parts[0]))

    def __len__(self) -> int:
        return len(getattr(self, self.parts[0]))


def not_there(name: str, computed: Iterable[str]) -> str:
    """Message of the KeyError for the name of a result."""
    names = ", ".join(dict.fromkeys(computed)) or "none"
    return f"{name!r} was not computed; computed: {names}"
