"""Parts of results as JSON objects, for sections that read them."""

from __future__ import annotations

from typing import Any

from calibscale.formatting.escapes import printed
from calibscale.results.declarations import Declared


class _Completed(dict[str, Any]):
    """JSON object in which optional keys are None where they are missing."""

    def __missing__(self, key: str) -> None:
        return None


def completed(part: Declared) -> dict[str, Any]:
    """JSON object of a part of a result."""
    return printed(part.to_dict(), str, _Completed)
