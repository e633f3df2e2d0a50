"""Every result is as its JSON Schema says, and a schema says all of it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from jsonschema.exceptions import best_match

import calibscale as cs
from calibscale.auditing import audit
from calibscale.bias import local_bias
from calibscale.cli.nightly import ledger
from calibscale.detection import Bias, power
from calibscale.diagram import reliability
from calibscale.errors import OptionError
from calibscale.nightly.run import dry_run, night
from calibscale.planning import plan
from calibscale.ranking import rank
from calibscale.schemas import names, schema
from calibscale.selection import select
from calibscale.testing import test as tested
from tests.nights import JOB, day_name, write_day, write_job


def _validator(name: str) -> Any:
    kind = jsonschema.Draft202012Validator
    return kind(schema(name), format_checker=kind.FORMAT_CHECKER)


def _check(result: dict[str, Any]) -> None:
    """Raise unless the result, as JSON, is as its schema says."""
    told = json.loads(json.dumps(result, allow_nan=False))
    error = best_match(_validator(told["schema"]).iter_errors(told))
    assert error is None, f"{error.json_path}: {error.message}"


def _source(rng, rows=400, classes=2, heat=1.0, **changes):
    logits = rng.normal(size=(rows, classes)) * 2
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, classes - 1)
    labels[::40] = -1
    given = {
        "logits": logits * heat, "labels": labels,
        "covariates": np.column_stack([rng.normal(40, 10, rows), rng.integers(0, 2, rows)]),
        "covariate_names": ("age", "sex"), "weights": rng.uniform(0.5, 2.0, rows),
    }  # fmt: skip
    return cs.from_arrays(**{**given, **changes})


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("group_by", [None, "sex"])
def test_evaluation__is_as_its_schema_says(rng, classes, group_by):
    found = cs.evaluate(_source(rng, classes=classes), group_by=group_by)
    assert len(found.estimates) > 10
    _check(found.to_dict())


def test_evaluation__with_intervals_and_without_values_is_as_its_schema_says(rng):
    source = _source(rng)
    _check(cs.evaluate(source, [cs.ECE(), cs.KLCE(("age",))], interval="jackknife").to_dict())
    few = cs.from_arrays(probabilities=np.array([[0.5, 0.5]]), labels=np.array([-1]))
    _check(cs.evaluate(few, [cs.ECE(), cs.Brier()]).to_dict())


def test_tests__are_as_their_schema_says(rng):
    one, several = cs.CKCE(), [cs.ECE(), cs.KLCE(("age",)), cs.CWCE2()]
    source = _source(rng)
    _check(tested(source, one, replicates=19).to_dict())
    _check(tested(source, several, replicates=19).to_dict())
    _check(tested(source, cs.KCE(), replicates=99, stop_after=2).to_dict())
    _check(tested(_source(rng, weights=None), cs.KCE(), null="hoeffding").to_dict())


@pytest.mark.parametrize("group_by", [None, "sex"])
def test_reliability__is_as_its_schema_says(rng, group_by):
    source = _source(rng, classes=3)
    _check(reliability(source, bins=40, group_by=group_by).to_dict())
    _check(reliability(source, notion="class_wise", class_index=1).to_dict())


def test_selection__is_as_its_schema_says(rng):
    source = _source(rng)
    _check(select(source, "positive", ["bins", "kkr"], folds=2).to_dict())
    _check(select(source, "positive", folds=3, nested=True).to_dict())


def test_ranking__is_as_its_schema_says(rng):
    shared = _source(rng)
    models = {
        "a": shared,
        "b": cs.from_arrays(logits=np.asarray(shared.values) * 2, labels=np.asarray(shared.labels)),
    }
    _check(rank(models, subset_size=[100], trials=5).to_dict())


@pytest.mark.parametrize("at", ["rows", "grid"])
def test_bias__is_as_its_schema_says(rng, at):
    _check(local_bias(_source(rng), ["age", "sex"], at=at, categorical=["sex"]).to_dict())


def test_audit__is_as_its_schema_says(rng):
    source = _source(rng)
    settings = {"categorical": ("sex",), "replicates": 19}
    found = audit(source, ("age", "sex"), recalibrate="all", against=source, **settings)
    assert found.recalibration
    assert found.against is not None
    _check(found.to_dict())


def test_power__is_as_its_schema_says(rng):
    settings = {"most": 400, "trials": 10, "replicates": 19}
    _check(power(_source(rng), Bias(0.1), cs.KCE(), **settings).to_dict())
    _check(power(_source(rng), Bias(0.1, where=("sex", 1.0)), cs.KCE(), **settings).to_dict())


def test_plan__is_as_its_schema_says(rng):
    _check(plan(_source(rng), [cs.ECE(), cs.JKCE(method="tiles")]).to_dict())


# ---------------------------------------------------------------- nights

RANKED = """
[ranking]
models = ["v1", "v2"]
by = "ece"
window = "7d"
"""


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Results with all that a night can say, of the days and of two models."""
    folder = tmp_path_factory.mktemp("nights")
    job = write_job(folder, JOB + RANKED)
    found = []
    for model in ("v2", "v1"):
        write_job(folder, (JOB + RANKED).replace('model = "v1"', f'model = "{model}"'))
        for k in range(4):
            write_day(folder, k, heat=3.0 if k == 3 else 1.0, model=model)
            found.append(night(job, day_name(k)).result)
    return found


def test_nights__are_as_their_schema_says(nights):
    for each in nights:
        _check(each)
    last = nights[-1]
    for part in ("windows", "thresholds", "drift", "alarms", "ranking", "selection", "bias"):
        assert last[part], part
    assert last["windows"][1]["groups"]
    assert last["windows"][1]["tests"]
    assert last["windows"][1]["reliability"]
    assert last["ranking"]["differences"]


def test_night__without_alarms_tests_and_rows_is_as_its_schema_says(tmp_path):
    write_day(tmp_path, 0)
    write_day(tmp_path, 1, rows=0)
    text = 'model = "v1"\nalarms = false\nestimators = ["ece"]\nsource.path = "{model}/{date}.zarr"'
    job = write_job(tmp_path, text)
    for k in range(2):
        _check(night(job, day_name(k)).result)


def test_dry_run_and_list_of_days__are_as_their_schemas_say(tmp_path):
    write_day(tmp_path, 0)
    job = write_job(tmp_path)
    _check(dry_run(job, day_name(0)).to_dict())
    night(job, day_name(0))
    _check(dry_run(job, day_name(0)).to_dict())
    path = str(tmp_path / "days.json")
    ran = CliRunner().invoke(ledger, ["list", str(tmp_path / "ledger"), "--json", path])
    assert ran.exit_code == 0, ran.output
    told = json.loads(Path(path).read_text())
    assert [day["day"] for day in told["days"]] == [day_name(0)]
    _check(told)


# ---------------------------------------------------------------- schemas


def test_every_result__has_a_schema():
    text = "".join(path.read_text() for path in Path(cs.__file__).parent.rglob("*.py"))
    assert set(re.findall(r'"(calibscale\.[a-z_]+/[0-9]+)"', text)) == set(names())


@pytest.mark.parametrize("name", names())
def test_schema__is_a_schema_and_strict(name):
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for table in _objects(found):
        if "properties" in table:
            assert set(table.get("required", ())) <= set(table["properties"])
            others = table["properties"] == {"estimator": {"type": "string"}}  # its settings
            assert "additionalProperties" in table or others


def _objects(found: Any) -> Any:
    """Every object schema of a schema."""
    if isinstance(found, dict):
        if "object" in str(found.get("type")):
            yield found
        for each in found.values():
            yield from _objects(each)
    elif isinstance(found, list):
        for each in found:
            yield from _objects(each)


def test_schemas__say_the_same_of_the_same_parts():
    """Each file stands alone, so parts are copied: the copies agree."""
    known: dict[str, tuple[str, Any]] = {}
    for name in names():
        for part, said in schema(name).get("$defs", {}).items():
            first, same = known.setdefault(part, (name, said))
            assert said == same, f"{part} of {name} and {first}"
    for part in ("selection", "bias"):
        whole = schema(f"calibscale.{part}/1")
        head = ("$schema", "$id", "title", "$defs")
        assert known[part][1] == {k: v for k, v in whole.items() if k not in head}


def test_schema__refuses_what_is_not_so(nights):
    """Any key left out, added, or of another type is noticed, wherever the schema names it."""
    validator = _validator("calibscale.nightly/1")
    result = nights[-1]
    changes = 0
    for where in _places(result, schema("calibscale.nightly/1")):
        for change in (_without, _renamed, _other):
            wrong = copy.deepcopy(result)
            change(wrong, where)
            if wrong == result:
                continue
            changes += 1
            assert not validator.is_valid(wrong), (where, change.__name__)
    assert changes > 300


def _places(value: Any, said: dict[str, Any], at: tuple[Any, ...] = (), whole: Any = None) -> Any:
    """The required keys of every object, first items of lists only."""
    whole = whole or said
    if "anyOf" in said:
        said = said["anyOf"][0]
    if "$ref" in said:
        said = whole["$defs"][said["$ref"].rsplit("/", 1)[1]]
    if isinstance(value, dict) and "properties" in said:
        for key in said["required"]:
            yield (*at, key)
            yield from _places(value[key], said["properties"][key], (*at, key), whole)
    elif isinstance(value, list) and value and said.get("items"):
        yield from _places(value[0], said["items"], (*at, 0), whole)


def _parent(value: Any, where: tuple[Any, ...]) -> Any:
    for key in where[:-1]:
        value = value[key]
    return value


def _without(value: Any, where: tuple[Any, ...]) -> None:
    del _parent(value, where)[where[-1]]


def _renamed(value: Any, where: tuple[Any, ...]) -> None:
    table = _parent(value, where)
    table[f"{where[-1]}x"] = table.pop(where[-1])


def _other(value: Any, where: tuple[Any, ...]) -> None:
    """A value of a type that no key has."""
    table = _parent(value, where)
    table[where[-1]] = [{"no": "such"}]


def test_schema__of_an_unknown_name_lists_the_known():
    with pytest.raises(OptionError, match=r"no schema 'x'; there are .*calibscale\.nightly/1"):
        schema("x")
