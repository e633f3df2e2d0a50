"""Results restored from JSON: their JSON is the same, and their parts are dataclasses."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import pytest

import calibscale as cs
from calibscale.array_types import Floats
from calibscale.results.declarations import (
    Computed,
    Count,
    Declared,
    Hidden,
    Inline,
    Json,
    Later,
    Omitted,
    key,
)
from calibscale.results.evaluation_results import GroupEstimates
from calibscale.results.schemas.result_models import RESULTS, validated
from tests.support.report_results import KINDS, command_results, rows


def _restored(value: dict[str, Any]) -> Any:
    first, *further = RESULTS[value["schema"]]
    return (further[0] if further and "tests" not in value else first).from_dict(value)


# ---------------------------------------------------------------- declarations


class Pair(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class Part(Declared):
    value: float
    limit: float | None = None


@dataclass(frozen=True)
class Shared(Declared):
    n: Count
    note: Omitted[str | None] = None


@dataclass(frozen=True)
class Whole(Declared):
    schema: ClassVar[str] = "test.whole/1"

    shared: Inline[Shared]
    parts: Annotated[tuple[Part, ...], key("all_parts")]
    by_name: dict[str, Part]
    pair: Pair | None
    limits: tuple[int, float]
    values: Floats
    free: Json
    hidden: Hidden[tuple[float, ...]] = ()
    added: Later[Part | None] = None
    omitted: Omitted[tuple[str, ...]] = field(default=("default",))

    @property
    def count(self) -> Computed[int]:
        return len(self.parts)

    @cached_property
    def total(self) -> Computed[float]:
        return sum(self.hidden)


WHOLE = Whole(
    Shared(3, "a note"),
    (Part(1.0), Part(math.nan, 2.0)),
    {"first": Part(4.0, math.inf)},
    Pair(0.0, math.nan),
    (1, 2.5),
    np.array([1.0, np.nan]),
    {"list": [1, None]},
    hidden=(1.0, 2.0),
)


def test_from_dict__restores_nested_parts():
    value = json.loads(json.dumps(WHOLE.to_dict(), allow_nan=False))
    restored = Whole.from_dict(value)
    assert restored.shared == Shared(3, "a note")
    assert restored.parts[0] == Part(1.0)
    # Null is NaN for a number that is always there, and None for an optional one.
    assert math.isnan(restored.parts[1].value)
    assert restored.by_name == {"first": Part(4.0, None)}
    assert isinstance(restored.pair, Pair)
    assert math.isnan(restored.pair.high)
    assert restored.limits == (1, 2.5)
    assert restored.values.dtype == np.float64
    assert restored.values.tolist()[0] == 1.0
    assert np.isnan(restored.values[1])
    assert restored.free == {"list": [1, None]}
    assert restored.hidden == ()
    # The sum of the hidden values is the one of the JSON object.
    assert restored.total == 3.0
    assert json.loads(json.dumps(restored.to_dict(), allow_nan=False)) == value


def test_from_dict__takes_defaults_for_members_of_earlier_versions():
    value = WHOLE.to_dict()
    del value["added"], value["omitted"], value["note"]
    restored = Whole.from_dict(value)
    assert (restored.added, restored.omitted, restored.shared.note) == (None, ("default",), None)


def test_from_dict__has_none_for_missing_members_without_a_default():
    group = GroupEstimates.from_dict({"value": 1.0, "n": 0, "results": []})
    assert group == GroupEstimates(1.0, None, 0, ())


# ---------------------------------------------------------------- results


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_results__have_the_same_json_when_restored(kind):
    value = command_results()[kind]
    for read in (value, validated(value)):
        restored = _restored(read)
        again = json.loads(json.dumps(restored.to_dict(), allow_nan=False))
        assert _given(again) == _given(value)


def _given(value: Any) -> Any:
    """JSON value without the keys that are None."""
    if isinstance(value, dict):
        return {name: _given(item) for name, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def test_evaluation__is_restored_with_groups_intervals_and_reasons():
    evaluation = cs.evaluate(rows(200), ["ece", "tce2"], group_by="region", interval="jackknife")
    restored = cs.Evaluation.from_dict(json.loads(json.dumps(evaluation.to_dict())))
    assert restored.group_by == "region"
    assert restored.groups == evaluation.groups
    assert restored["ece"].interval == evaluation["ece"].interval
    assert [e.why for e in restored] == [e.why for e in evaluation]
    assert restored.reliability == evaluation.reliability
    assert restored.metrics() == evaluation.metrics()


def test_bias_map__is_restored_with_its_columns():
    bias_map = cs.local_bias(rows(200), ("region", "age"), at="rows", n_replicates=19)
    restored = cs.BiasMap.from_dict(json.loads(json.dumps(bias_map.to_dict())))
    for name, column in bias_map.columns().items():
        finite = np.isfinite(column) if np.asarray(column).dtype.kind == "f" else slice(None)
        assert np.array_equal(restored.columns()[name][finite], column[finite]), name
    assert restored.ranges == bias_map.ranges


def test_selection__is_restored_with_its_selected_candidate():
    selection = cs.select(rows(200), "top_label", ["bins"], folds=2)
    restored = cs.Selection.from_dict(json.loads(json.dumps(selection.to_dict())))
    assert restored.best == selection.best
    assert restored.selected == selection.selected
    unlisted = selection.to_dict() | {"candidates": []}
    with pytest.raises(cs.OptionError, match="selected is not one of the candidates"):
        cs.Selection.from_dict(unlisted)
