"""JSON Schemas (draft 2020-12) of results: their names, and the files beside this module."""

from __future__ import annotations

import json
from pathlib import Path

from calibscale.errors import require
from calibscale.results.declarations import Json

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Names of the schemas, such as ``calibscale.nightly/1``."""
    stems = (file.stem.replace("-", "/") for file in _FOLDER.glob("*.json"))
    return tuple(sorted(f"calibscale.{stem}" for stem in stems))


def schema(name: str) -> Json:
    """JSON Schema of a result.

    Parameters
    ----------
    name : str
        Value of ``schema`` in the result, such as ``calibscale.nightly/1``.

    Raises
    ------
    OptionError
        If there is no schema of this name.

    Examples
    --------
    >>> schema("calibscale.test/1")["title"]
    'calibscale.test/1'
    """
    require(name in names(), f"unknown schema {name!r}; known schemas: {', '.join(names())}")
    return json.loads(path(name).read_text(encoding="utf-8"))


def path(name: str) -> Path:
    """File of a schema, such as ``nightly-1.json``."""
    return _FOLDER / f"{name.removeprefix('calibscale.').replace('/', '-')}.json"
