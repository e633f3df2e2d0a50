"""Models of results, from which schemas are generated and results read from JSON validated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import cache, reduce
from inspect import cleandoc
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from calibscale.results.audit_results import Audit, RecalibrationResult
from calibscale.results.bias_results import BiasMap
from calibscale.results.comparison_results import Ranking, Selection
from calibscale.results.curve_results import ConcentrationCurve, DoubleLift, MurphyDiagram
from calibscale.results.declarations import (
    DAY,
    Bounds,
    Declared,
    Having,
    Json,
    Member,
    Object,
    Values,
    members,
)
from calibscale.results.evaluation_results import Evaluation, Plan, Reliability
from calibscale.results.inference_results import CalibrationTests, Check, Power, SingleTest
from calibscale.results.night_results import LedgerDays, Night, NightPlan
from calibscale.results.shift_results import LabelShift

# Declarations of each result by its schema.  A result may have several forms.
RESULTS: dict[str, list[Any]] = {
    "calibscale.audit/1": [Audit],
    "calibscale.bias/1": [BiasMap],
    "calibscale.check/1": [Check],
    "calibscale.concentration/1": [ConcentrationCurve],
    "calibscale.double_lift/1": [DoubleLift],
    "calibscale.evaluation/1": [Evaluation],
    "calibscale.label_shift/1": [LabelShift],
    "calibscale.ledger/1": [LedgerDays],
    "calibscale.murphy/1": [MurphyDiagram],
    "calibscale.nightly/1": [Night],
    "calibscale.nightly_plan/1": [NightPlan],
    "calibscale.plan/1": [Plan],
    "calibscale.power/1": [Power],
    "calibscale.ranking/1": [Ranking],
    "calibscale.recalibration/1": [RecalibrationResult],
    "calibscale.reliability/1": [Reliability],
    "calibscale.selection/1": [Selection],
    "calibscale.test/1": [CalibrationTests, SingleTest],
}


def validated(value: Json) -> Json:
    """Result with all keys of its schema.  Optional keys that are missing become None.

    Unknown keys, of a newer version, are left out.

    Raises
    ------
    pydantic.ValidationError
        If the value is malformed.
    """
    # A result of several forms is either of several tests or of a single test.
    first, *further = models(value["schema"])
    model = further[0] if further and "tests" not in value else first
    return model.model_validate(value).model_dump(mode="json", by_alias=True)


def models(name: str) -> list[type[BaseModel]]:
    """Models of the forms of a result, from which its schema is generated."""
    return [_model(form) for form in RESULTS[name]]


class _Object(BaseModel):
    """JSON object: in a file, unknown keys are ignored and omitted keys may be null."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        required = {f.alias: f.is_required() for f in cls.model_fields.values()}
        return {
            name: item
            for name, item in value.items()
            if name in required and (item is not None or required[name])
        }


@cache
def _model(declared: Any) -> type[BaseModel]:
    """Model of the JSON object that a dataclass or `Object` declares."""
    text = cleandoc(declared.__doc__ or "")
    descriptions = _descriptions(text)
    definitions: dict[str, Any] = {}
    name = getattr(declared, "schema", "")
    if name:
        definitions["schema"] = (Literal[name], Field(alias="schema"))
    for member in _flat(declared):
        kind = _json(member.type)
        omitted = "omitted" in member.marks
        if omitted:
            kind = _without_none(kind)
        settings: dict[str, Any] = {"default": None} if member.marks & _NOT_REQUIRED else {}
        about = descriptions.get(member.attribute)
        definitions[member.key] = (kind, Field(alias=member.key, description=about, **settings))
    return create_model(
        declared.__name__,
        __base__=_Object,
        __doc__=text.partition("\n")[0],
        **{f"{key}_": definition for key, definition in definitions.items()},
    )


_NOT_REQUIRED = {"omitted", "later"}


def _flat(declared: Any) -> list[Member]:
    """Members, with the members of inline members in their place."""
    direct = members(declared)
    names = {member.key for member in direct}
    out: list[Member] = []
    for member in direct:
        if "inline" in member.marks:
            out += [m for m in _flat(member.type) if m.key not in names]
        else:
            out.append(member)
    return out


def _descriptions(text: str) -> dict[str, str]:
    """Descriptions of attributes in a docstring."""
    _, _, attributes = text.partition("Attributes\n----------\n")
    out = {}
    for entry in re.split(r"\n(?=\S)", attributes.partition("\n\n")[0]):
        line, _, about = entry.partition("\n")
        for name in line.partition(" : ")[0].split(", "):
            out[name] = " ".join(about.split()).rstrip(".")
    return {name: about for name, about in out.items() if about}


def _json(hint: Any) -> Any:
    """Type of the JSON values of an annotation."""
    alias = getattr(get_origin(hint), "__value__", None)  # NDArray since NumPy 2.5
    hint = hint if alias is None else alias[get_args(hint)]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if isinstance(hint, type) and hasattr(hint, "_fields"):  # NamedTuple
        return _pair(list(get_type_hints(hint, include_extras=True).values()))
    if isinstance(hint, Object) or (isinstance(hint, type) and issubclass(hint, Declared)):
        return _model(hint)  # type: ignore[arg-type]
    if hint is float:
        return _NUMBER | None
    if hint is int:
        return _WHOLE
    if origin is np.ndarray:
        return list[_json(_SCALARS[get_args(arguments[1])[0]])]  # type: ignore[misc]
    if origin in (list, tuple) and (origin is list or arguments[-1] is Ellipsis):
        return list[_json(arguments[0])]  # type: ignore[misc]
    if origin is tuple:
        return _pair(arguments)
    if origin is dict:
        return dict[str, _json(arguments[1])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return reduce(or_, map(_json, arguments))
    return hint


_SCALARS = {np.float64: float, np.int64: int, np.bool_: bool}


def _pair(hints: Sequence[Any]) -> Any:
    """Type of a list with a fixed number of values."""
    size, item = len(hints), reduce(or_, map(_json, hints))
    return Annotated[list[item], Field(min_length=size, max_length=size)]  # type: ignore[valid-type]


def _annotated(plain: Any, marks: tuple[Any, ...]) -> Any:
    """Type of the JSON values of ``Annotated[plain, *marks]``, by the first mark that has one."""
    for mark in marks:
        # A dictionary with the members of a result, such as ``Annotated[Json, Selection]``.
        if isinstance(mark, Object | type):
            return _model(mark)
        # A dictionary of which only some keys are declared.
        if isinstance(mark, Having):
            return Annotated[plain, Field(json_schema_extra={"required": [*mark]})]
        if isinstance(mark, Values):
            return Literal[*mark]
        if isinstance(mark, Bounds):
            limits = {name: limit for name, limit in mark._asdict().items() if limit is not None}
            # A bounded number is never null, unlike a float without bounds.
            if plain is int:
                return Annotated[int, Field(**limits), BeforeValidator(_whole)]
            return Annotated[float, Field(allow_inf_nan=False, **limits)]
        if mark == DAY:
            return Annotated[str, Field(pattern=_DAY), AfterValidator(_day)]
    return _json(plain)


def _without_none(kind: Any) -> Any:
    """Type of the values other than null."""
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, [part for part in get_args(kind) if part is not NoneType])
    return kind


def _whole(value: Any) -> Any:
    """Whole number for a float such as 3.0, as JSON does not tell them apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_DAY = "^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9A-Za-z_.:+-]{1,20})?$"
_NUMBER = Annotated[float, Field(allow_inf_nan=False)]
_WHOLE = Annotated[int, BeforeValidator(_whole)]


def _day(text: str) -> str:
    """Text of a day or of a part of a day, if its date exists."""
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        raise PydanticCustomError("day", "a day such as 2026-11-20") from None
    return text
