"""JSON Schemas (draft 2020-12) of results: their names, and the files beside this module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibscale.errors import require

# Module and declarations of each result by its schema.  A result may have several forms.
RESULTS: dict[str, tuple[str, list[str]]] = {
    "calibscale.audit/1": ("audit", ["Audit"]),
    "calibscale.bias/1": ("bias", ["BiasMap"]),
    "calibscale.check/1": ("inference", ["Check"]),
    "calibscale.evaluation/1": ("evaluation", ["Evaluation"]),
    "calibscale.ledger/1": ("night", ["LedgerDays"]),
    "calibscale.nightly/1": ("night", ["Night"]),
    "calibscale.nightly_plan/1": ("night", ["NightPlan"]),
    "calibscale.plan/1": ("evaluation", ["Plan"]),
    "calibscale.power/1": ("inference", ["Power"]),
    "calibscale.ranking/1": ("comparison", ["Ranking"]),
    "calibscale.recalibration/1": ("audit", ["RecalibrationResult"]),
    "calibscale.reliability/1": ("evaluation", ["Reliability"]),
    "calibscale.selection/1": ("comparison", ["Selection"]),
    "calibscale.test/1": ("inference", ["CalibrationTests", "SingleTest"]),
}


def names() -> tuple[str, ...]:
    """Names of the schemas, such as ``calibscale.nightly/1``."""
    return tuple(RESULTS)


def schema(name: str) -> dict[str, Any]:
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
    require(name in RESULTS, f"unknown schema {name!r}; known schemas: {', '.join(names())}")
    return json.loads(path(name).read_text(encoding="utf-8"))


def path(name: str) -> Path:
    """File of a schema, such as ``nightly-1.json``."""
    return Path(__file__).with_name(name.removeprefix("calibscale.").replace("/", "-") + ".json")
