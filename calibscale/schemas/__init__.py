"""JSON Schema (draft 2020-12) of every result."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from calibscale.errors import OptionError

_END = ".schema.json"


def names() -> tuple[str, ...]:
    """What results call their schema, such as ``calibscale.nightly/1``."""
    found = (each.name for each in files(__name__).iterdir() if each.name.endswith(_END))
    return tuple(sorted("calibscale." + "/".join(f[: -len(_END)].rsplit(".", 1)) for f in found))


def schema(name: str) -> dict[str, Any]:
    """The schema of a result.

    Parameters
    ----------
    name : str
        As it stands in the result: ``calibscale.nightly/1``.

    Raises
    ------
    OptionError
        If there is none of that name.

    Examples
    --------
    >>> schema("calibscale.test/1")["title"]
    'The result of calibscale test'
    """
    if name not in names():
        raise OptionError(f"there is no schema {name!r}; there are {', '.join(names())}")
    file = name.removeprefix("calibscale.").replace("/", ".") + _END
    return json.loads((files(__name__) / file).read_text(encoding="utf-8"))
