"""JSON objects of ledgers with a checksum, so that a changed digit is an error.

Objects of earlier versions have no checksum and are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c

SEAL = "checksum"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Object with a checksum of its other values."""
    return {**value, SEAL: _checksum(value)}


def unsealed(value: Any) -> dict[str, Any]:
    """Object without its checksum.

    A ValueError is raised if the checksum does not match, or if the value is no object.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"it is a {type(value).__name__}, not an object")
    content = {key: item for key, item in value.items() if key != SEAL}
    if SEAL in value and value[SEAL] != _checksum(content):
        raise ValueError("its checksum does not match")
    return content


def _checksum(value: Mapping[str, Any]) -> str:
    # The order of keys may change when a file is read and written again.
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return f"{google_crc32c.value(text.encode()):08x}"
