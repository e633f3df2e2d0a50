"""Results: estimates, the base classes of results, and one module for the results of each task.

A result is a frozen dataclass whose annotations declare its JSON object; this package imports no
other one than NumPy, so that reading a result loads neither compiler nor storage libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from inspect import get_annotations
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from calibscale.formatting.naming import name_of, plain_name
from calibscale.results.exported import Shown, Tabular

# ---------------------------------------------------------------- declarations


class Mark(NamedTuple):
    """Mark of the annotation of a field or property, for its member of the JSON object."""

    kind: str
    key: str = ""


class Bounds(NamedTuple):
    """Bounds of a number in JSON."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None


class Values(tuple[str, ...]):
    """Values that a text in JSON may have."""


class Having(tuple[str, ...]):
    """Keys that a JSON object has, besides others."""


class Object:
    """Declaration of a dictionary: types of its members by key, and a description."""

    def __init__(self, name: str, about: str = "", /, **types: Any) -> None:
        self.__name__, self.__doc__ = name, about
        self.members = tuple(_member(key, hint) for key, hint in types.items())


def key(name: str) -> Mark:
    """Mark of a member with another name than its attribute."""
    return Mark("key", name)


Json = dict[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_T = TypeVar("_T")
Hidden = Annotated[_T, Mark("hidden")]  # field that is no member
Computed = Annotated[_T, Mark("computed")]  # property that is a member
Omitted = Annotated[_T, Mark("omitted")]  # left out if None or empty
Later = Annotated[_T, Mark("later")]  # missing in results of earlier versions
Inline = Annotated[_T, Mark("inline")]  # its members are those of the object that has it

# A float in JSON is a number, or null where it is NaN or infinite; one with limits is a number.
Finite = Annotated[float, Bounds()]
Count = Annotated[int, Bounds(ge=0)]
Size = Annotated[float, Bounds(ge=0)]
Share = Annotated[float, Bounds(ge=0, le=1)]
Fraction = Annotated[float, Bounds(gt=0, lt=1)]
DAY = "day"
Day = Annotated[str, DAY]  # such as 2026-11-20, or a part of a day


class Member(NamedTuple):
    """Member of a JSON object: its key, attribute, type, and kinds of marks."""

    key: str
    attribute: str
    type: Any
    marks: frozenset[str]


@cache
def members(declared: Any) -> tuple[Member, ...]:
    """Members of the JSON object that a dataclass or `Object` declares.

    Members are the fields, then the properties that return a `Computed`, from base classes on.
    """
    if isinstance(declared, Object):
        return declared.members
    hints = get_type_hints(declared, include_extras=True)
    by_attribute: dict[str, Member] = {}
    names = {f.name for f in fields(declared)}
    for base in reversed(declared.__mro__):
        by_attribute |= {
            name: _member(name, hints[name]) for name in get_annotations(base) if name in names
        }
        for name, value in vars(base).items():
            if isinstance(value, property) and "return" in value.fget.__annotations__:
                member = _member(name, get_type_hints(value.fget, include_extras=True)["return"])
                if "computed" in member.marks:
                    by_attribute[name] = member
    return tuple(member for member in by_attribute.values() if "hidden" not in member.marks)


def _member(name: str, hint: Any) -> Member:
    marks: list[Mark] = []
    if get_origin(hint) is Annotated:
        plain, *data = get_args(hint)
        marks += [d for d in data if isinstance(d, Mark)]
        others = [d for d in data if not isinstance(d, Mark)]
        hint = Annotated[plain, *others] if others else plain
    named = [mark.key for mark in marks if mark.key]
    return Member(named[0] if named else name, name, hint, frozenset(m.kind for m in marks))


class Declared:
    """Dataclass whose fields and `Computed` properties declare a JSON object.

    The declaration gives `to_dict`, the published JSON Schema, and the validation of result files
    (`calibscale.results.schemas`).
    """

    schema: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON object; NaN and ∞ are null."""
        out: dict[str, Any] = {"schema": self.schema} if self.schema else {}
        for member in members(type(self)):  # type: ignore[arg-type]
            value = as_json(getattr(self, member.attribute))
            if "inline" in member.marks:
                out |= {name: item for name, item in value.items() if name not in out}
            elif value or value in (0, False) or "omitted" not in member.marks:
                out[member.key] = value
        return out

    @classmethod
    def from_dict(cls, value: dict[str, Any], **rest: Any) -> Self:
        """Result with the fields of a JSON object; objects in it stay dictionaries."""
        own = (m for m in members(cls) if "computed" not in m.marks)  # type: ignore[arg-type]
        there = (m for m in own if m.key in value or "omitted" not in m.marks)
        read = {m.attribute: value[m.key] for m in there}
        return cls(**read, **rest)


def as_json(value: Any) -> Any:
    """JSON value of a result, array or collection; NaN and ∞ become None."""
    if isinstance(value, Declared):
        return value.to_dict()
    if hasattr(value, "tolist"):  # NumPy arrays and numbers
        value = value.tolist()
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---------------------------------------------------------------- results


_PART = Object("PartOfSource", share=Finite, seed=Count, held=bool)
_FORECASTS = ("normal", "mixture", "ensemble", "quantiles", "histogram", "ordinal")
_KINDS = ("logits", "probabilities", *_FORECASTS)
_SOURCE = Object(
    "Source",
    "Description of a source; `parts` and `recalibrated` say how its rows were derived.",
    name=str, kind=Annotated[str, Values(_KINDS)], rows=Count,
    classes=Omitted[Annotated[int, Bounds(ge=2)]], binary=Omitted[bool], weighted=bool,
    parts=Omitted[list[_PART]],  # type: ignore[valid-type]
    recalibrated=Omitted[list[Json]], class_names=Omitted[list[str]], forecast=Omitted[Json],
    categories=Omitted[dict[str, list[str]]], event=Omitted[Json],
)  # fmt: skip
Source = Annotated[Json, _SOURCE]


@dataclass(frozen=True)
class Approximation(Declared):
    """Approximation error of a value.

    Attributes
    ----------
    kind : str
        ``exact``, or the approximation: ``random_features``, ``histogram_edges``, ``landmarks``,
        ``low_rank`` (landmarks to rounding), ``cells``, ``subset``, ``float32``,
        ``sampled_pairs``, ``blocks`` (only the pairs within blocks of rows).
    error : float or None
        Expected bound of the error; 0 if exact, None if unknown.
    corrected : float or None
        Value minus the estimated bias of the approximation.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> evaluate(source, "ece")["ece"].approximation.kind
    'exact'
    >>> evaluate(source, "jkce")["jkce"].approximation.kind
    'random_features'
    """

    kind: str = "exact"
    error: float | None = 0.0
    corrected: Omitted[float | None] = None


EXACT = Approximation()

# values of `Interval.covers`
POPULATION, THIS_N = "the population", "the expectation at this n"
BOTH = "the population and the expectation at this n"
_METHODS = Values(
    (
        "jackknife",
        "bootstrap",
        "wald",
        "clopper_pearson",
        "weighted_counts",
        "binned",
        "quadratic_form",
        "one_step",
    )
)


@dataclass(frozen=True)
class Interval(Declared):
    """Confidence interval.

    Attributes
    ----------
    method : str
        ``clopper_pearson``, ``weighted_counts``, ``binned`` or ``quadratic_form`` for estimators
        with limits in `calibscale.limits`, ``one_step`` in `select`, else ``jackknife``
        or ``bootstrap``.
    parts : int
        Number of groups of rows, rows or folds that were left out one at a time.
    standard_error : float
        Standard error of the jackknife or the one-step estimate, else the half-length divided by
        the normal quantile.
    covers : str
        Quantity covered: the population's value, the expectation of a biased estimate at this n, or
        both, from the lower limit of the first to the upper limit of the second.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> interval = evaluate(source, "accuracy", interval="jackknife")["accuracy"].interval
    >>> round(interval.low, 3), interval.high
    (0.982, 1.0)
    """

    low: float
    high: float
    level: Fraction
    method: Annotated[str, _METHODS]
    parts: Count
    standard_error: float
    covers: str


@dataclass(frozen=True)
class Floor(Declared):
    """Noise floor of an estimate: its values if labels were drawn from the same predictions.

    With clusters, or with soft labels, residuals with random signs are drawn instead.

    An estimate above `high` is larger than that of a calibrated model, but for a share 1 − `level`
    of data sets; one of the size of `mean` says nothing about miscalibration.

    Attributes
    ----------
    mean, high : float
        Mean, and quantile of order `level`, of the estimate over drawn labels.
    p_value : float
        Share of the draws with an estimate at least as large, (1 + #{T* ≥ T})/(1 + draws).
    null : str or None
        ``wild_cluster`` for residuals with one random sign a cluster, ``wild`` for those with one a
        row; None for labels.
    """

    mean: float
    high: float
    level: Fraction
    p_value: Share
    null: Later[Omitted[str | None]] = None

    @classmethod
    def of(cls, values: Sequence[float] | Floats, estimate: float, level: float = 0.95) -> Floor:
        """Floor from the values of drawn labels, at least one, and the estimate."""
        exceeded = int((np.asarray(values) >= estimate * (1.0 - 1e-12)).sum())
        p_value = (1 + exceeded) / (1 + len(values))
        return cls(float(np.mean(values)), float(np.quantile(values, level)), level, p_value)


@dataclass(frozen=True, repr=False)
class Estimate(Tabular, Declared):
    """Estimate of a calibration error or score, with its settings and errors.

    Attributes
    ----------
    value : float or None
        Value; None if undefined, for the given `reason`.
    squared : bool
        Whether `value` is a squared error; then `root` is its square root.
    parameters : dict
        All settings that the value depends on, with defaults resolved.
    details : dict
        Further results: the bin table, a value for each class, parts of a decomposition.
    n : int
        Number of rows used.
    interval : Interval or None
        Confidence interval, if requested and available.
    floor : Floor or None
        Noise floor of a biased estimate, if requested and available.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> estimate = evaluate(source, "tce2")["tce2"]
    >>> round(estimate.value, 4), round(estimate.root, 4), estimate.n
    (0.0375, 0.1936, 200)
    """

    estimator: str
    notion: str
    value: float | None
    squared: bool = False
    approximation: Approximation = EXACT
    parameters: dict[str, Any] = field(default_factory=dict)
    details: Omitted[dict[str, Any]] = field(default_factory=dict)
    n: Count = 0
    reason: Hidden[str | None] = None
    interval: Interval | None = None
    floor: Later[Omitted[Floor | None]] = None

    @property
    def root(self) -> Computed[float | None]:
        """√value of a squared error; None if negative, as unbiased estimates may be."""
        if not self.squared or self.value is None or self.value < 0:
            return None
        return math.sqrt(self.value)

    def __float__(self) -> float:
        if self.value is None:
            raise ValueError(f"{self.estimator} has no value: {self.reason}")
        return float(self.value)

    def with_note(self, note: str) -> Estimate:
        """Copy of the estimate with a note added to `details`."""
        notes = [*self.details.get("notes", ()), note]
        return replace(self, details={**self.details, "notes": notes})

    @property
    def why(self) -> Annotated[Computed[Omitted[str | None]], key("reason")]:
        """`reason`, or why `value` or `root` is null in JSON."""
        if self.reason is not None or self.value is None:
            return self.reason
        if not math.isfinite(self.value):
            return f"the value is {self.value}"
        return "a negative value has no root" if self.squared and self.root is None else None


@dataclass(frozen=True)
class ImpossibleRows(Declared):
    """Rows whose label or outcome has the predicted probability 0.

    Such a row refutes calibration, whatever the other rows are.

    Attributes
    ----------
    count, first_row : int
        Number of such rows, and number of the first of them in the source.
    decimals : int or None
        Number of decimals of all predicted probabilities, if it is 2 to 4: these seem rounded.
    """

    count: Count
    first_row: Count
    decimals: Later[Omitted[Count | None]] = None


def rounding_advice(decimals: int) -> str:
    """Sentence about probabilities of so few decimals that those of 0 may be rounded.

    >>> rounding_advice(4)
    'No predicted probability has more than 4 decimals, so that 0 may be a rounded probability ...'
    """
    largest = f"{0.5 * 10.0**-decimals:.{decimals + 1}f}"
    return (
        f"No predicted probability has more than {decimals} decimals, so that 0 may be a rounded "
        f"probability of at most {largest}: provide unrounded probabilities."
    )


@dataclass(frozen=True, kw_only=True)
class SourceRows(Declared):
    """Source of a result, and the numbers of its rows.

    Attributes
    ----------
    n, n_dropped, n_unlabelled : int
        Numbers of rows used (of positive weight), dropped as invalid (in `dropped` by column and
        fault, such as ``score is missing``), and not yet labelled.
    impossible : ImpossibleRows or None
        Rows whose label has the predicted probability 0; None if there are none.
    """

    source: Source
    n: Count
    n_unlabelled: Count
    dropped: dict[str, Count]
    impossible: Later[Omitted[ImpossibleRows | None]] = None

    @property
    def n_dropped(self) -> Computed[Count]:
        return sum(self.dropped.values())


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome(Tabular, Shown, Declared):
    """Base of results: time, versions and parameters of the run; `print` shows them as tables."""

    seconds: Size
    versions: dict[str, str]
    parameters: dict[str, Any]


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
            for known, part in zip(labels, self, strict=True):
                if form(known) == label:
                    return part
        if self.parts[1] == "estimator":  # names of models differ in case
            for known, part in zip(labels, self, strict=True):
                if plain_name(name_of(known)) == plain_name(label):
                    return part
        raise KeyError(not_there(label, labels))

    def __iter__(self) -> Iterator[_Part]:
        return iter(getattr(self, self.parts[0]))

    def __len__(self) -> int:
        return len(getattr(self, self.parts[0]))


def not_there(name: str, computed: Iterable[str]) -> str:
    """Message of the KeyError for the name of a result."""
    return f"{name!r} was not computed; computed: {', '.join(dict.fromkeys(computed)) or 'none'}"
