"""Estimators as a job file names them."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from calibscale.errors import OptionError
from calibscale.estimators import ESTIMATORS, Estimator
from calibscale.features import RandomFourier
from calibscale.nightly.positions import Problems, hint, shown

MOST = 1_000_000  # bins, replicates and the like: what is above takes all memory, or for ever
_MOST_FEATURES = 10_000  # whose moments are a square of twice the size

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# the settings that estimators have, by their annotation
TYPES: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "float | None": (float, "a number"),
    "str": (str, "a text"),
    "str | None": (str, "a text"),
    "tuple[str, ...]": (tuple[str, ...], "a list of names"),
    "str | Sequence[float]": (str | tuple[float, ...], "a name, or a list of numbers"),
    "float | Mapping[str, float] | None": (
        float | dict[str, float], "a number, or a table of numbers by name",
    ),
}  # fmt: skip
_FEATURES = {"features": ("int", 100), "bandwidth": ("float | None", None), "seed": ("int", None)}
_DATA = ("features", "product", "statistic", "notes")  # objects, or filled in from the data
_LOCAL = ("covariates", "categorical", "covariate_bandwidth", "covariate_kernel")
_OF_PAIRS = ("block", "n_pairs", "precision", "within")
_METHODS = ("spectral", "features")  # whose sums merge; the first is of kce and klce
_WITH_PAIRS = ("auto", "tiles", "exact", "blocks", "pairs", "nystrom")
_NO_PAIRS = "visits pairs of rows, but a ledger needs sums that merge"


@cache
def allowed(name: str) -> dict[str, tuple[str, Any]]:
    """The settings of an estimator: annotation and default."""
    kind = ESTIMATORS[name]
    own = {f.name: f for f in fields(kind) if f.init}  # type: ignore[arg-type]
    hidden = {*_DATA, *_OF_PAIRS, *(_LOCAL if name == "kce" else ())}
    if name.startswith("jkce"):
        hidden.add("notion")  # others than canonical need pairs
    found = {
        key: (str(f.type), None if f.default is MISSING else f.default)
        for key, f in own.items()
        if key not in hidden
    }
    if "features" in own:
        found |= _FEATURES
    if "seed" in found:
        found["seed"] = ("int", None)  # that of the job
    if "method" in found:
        found["method"] = ("str", "spectral" if name in ("kce", "klce") else "features")
    return found


def resolved(table: dict[str, Any], index: int, seed: int, problems: Problems) -> dict[str, Any]:
    """The table of an estimator with its defaults, or what is wrong with it."""
    where = ("estimators", index)
    name = table.get("name")
    if not isinstance(name, str) or name not in ESTIMATORS:
        what = "name: missing" if name is None else f"there is no estimator {shown(name)}"
        problems.add(where, f"{what}; {hint(name, ESTIMATORS)}")
        return table
    known = allowed(name)
    settings = {key: default for key, (_, default) in known.items()}
    if "seed" in settings:
        settings["seed"] = seed
    for key, value in table.items():
        if key == "name":
            continue
        if key not in known:
            if key in {f.name for f in fields(ESTIMATORS[name])} & set(_OF_PAIRS):  # type: ignore[arg-type]
                problems.add((*where, key), f"is of a method that {_NO_PAIRS}")
            else:
                problems.add((*where, key), f"{name} has no such setting; {hint(key, known)}")
            continue
        annotation, _ = known[key]
        try:
            settings[key] = _adapter(annotation).validate_json(json.dumps(value))
        except ValidationError:
            problems.add((*where, key), f"must be {TYPES[annotation][1]}, not {shown(value)}")
            continue
        most = _MOST_FEATURES if key == "features" else MOST
        if annotation == "int" and key != "seed" and settings[key] > most:
            problems.add((*where, key), f"must be at most {most:,}, not {shown(value)}")
    _method(name, settings, index, problems)
    if not problems.under(*where):
        _check(name, settings, index, problems)
    return {"name": name, **settings}


@cache
def _adapter(annotation: str) -> TypeAdapter:
    return TypeAdapter(TYPES[annotation][0], config=ConfigDict(strict=True, allow_inf_nan=False))


def _method(name: str, settings: dict[str, Any], index: int, problems: Problems) -> None:
    known = _METHODS if name in ("kce", "klce") else _METHODS[1:]
    method = settings.get("method", "features")
    if method not in known:
        what = f"{method!r} {_NO_PAIRS}" if method in _WITH_PAIRS else f"no {shown(method)}"
        problems.add(("estimators", index, "method"), f"{what}; use {' or '.join(known)}")


def _check(name: str, settings: dict[str, Any], index: int, problems: Problems) -> None:
    if name == "klce" and not settings["covariates"]:
        what = "klce needs covariates = [...]; without covariates it is kce"
        problems.add(("estimators", index), what)
        return
    try:
        built(name, settings)
    except OptionError as error:
        problems.add(("estimators", index), f"{name}: {error}")


def built(name: str, settings: dict[str, Any]) -> Estimator:
    """The estimator of a resolved table, its defaults that depend on the data left open."""
    kind = ESTIMATORS[name]
    own = {f.name for f in fields(kind) if f.init}  # type: ignore[arg-type]
    given = dict(settings)
    if "features" in own:
        features = RandomFourier(given["features"], given.pop("bandwidth"), given["seed"])
        given["features"] = features
    return kind(**{key: value for key, value in given.items() if key in own})
