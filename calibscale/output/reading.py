"""Results read from JSON: they are validated and made safe to print before a report is written."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from calibscale.errors import OptionError
from calibscale.formatting.escapes import clean, printed
from calibscale.output.documents.articles import DOCUMENTS
from calibscale.results.declarations import Declared
from calibscale.results.night_results import Night
from calibscale.results.schemas.malformed import message_of
from calibscale.results.schemas.result_models import RESULTS, validated

_SCHEMA = re.compile(r"calibscale\.([a-z_]+)/(\d+)")


def read(value: Any, where: str = "the result") -> Declared:
    """Restore a result from its JSON object, with texts that are safe to print.

    Raises
    ------
    OptionError
        If the value is not a result, has a newer schema or one without a report, or is malformed.
    """
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        raise OptionError(f"{where}: not a result of calibscale: it has no schema")
    schema = value["schema"]
    match = _SCHEMA.fullmatch(schema)
    if match is None:
        raise OptionError(f"{where}: {schema[:80]!r} is not a schema of calibscale")
    name, version = match[1], int(match[2])
    if name not in DOCUMENTS:
        kinds = ", ".join(sorted(DOCUMENTS))
        raise OptionError(f"{where}: no report can be made of {schema}; use one of: {kinds}")
    if version != 1:
        newer = "was written by a newer calibscale: upgrade this version, which reads"
        cause = newer if version > 1 else "is unknown; this version of calibscale reads"
        raise OptionError(f"{where}: {schema} {cause} {name}/1")
    try:
        out = validated(printed(value, clean))
    except ValidationError as error:
        raise OptionError(message_of(error, where)) from None
    _check_lengths(out, where)
    form, *_ = RESULTS[schema]  # restores other forms, too
    try:
        if form is Night:
            return Night.from_dict(out, fresh=False)
        return form.from_dict(out)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None


_SERIES = (
    *("values", "low", "high", "x", "bias", "standard_error", "z", "masked", "prediction"),
    *("score", "difference", "band_low", "band_high"),
    *("share", "concentration", "lorenz", "ideal"),
)
_BY_DAY = {"series", "processes"}  # lists in objects whose lists have an item for each day
_FREE = ("parameters", "details", "fitted", "hyperparameter", "features", "versions")


def _check_lengths(value: Any, where: str, days: int | None = None) -> None:
    """Require series and coordinates of equal lengths, and one value of a series for each day."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            _check_lengths(item, f"{where}[{i}]", days)
    if not isinstance(value, dict):
        return
    lists = {key: len(item) for key, item in value.items() if isinstance(item, list)}
    series = {key: length for key, length in lists.items() if key in _SERIES}
    if len(set(series.values())) > 1:
        lengths = ", ".join(f"{key} {length:,}" for key, length in series.items())
        raise OptionError(f"{where}: lists of different lengths: {lengths}")
    # Lists of a series inside of this object have an item for each of these days.
    days = lists.get("days") if lists.keys() & _BY_DAY else days
    for key in ("n", "values", "log_evidence"):
        if days is not None and lists.get(key, days) != days:
            raise OptionError(f"{where}: {lists[key]:,} {key} for {days:,} days")
    for key, item in value.items():
        if isinstance(item, dict | list) and key not in _FREE:
            _check_lengths(item, f"{where}.{key}", days)
