"""JSON Schemas: every result is valid, and every schema describes the complete result."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from jsonschema.exceptions import best_match

import calibscale as cs
from calibscale.cli.commands.ledger import ledger
from calibscale.errors import OptionError
from calibscale.evaluation.reliability import reliability
from calibscale.inference.power import power
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.night import night
from calibscale.planning.cost_plan import plan
from calibscale.ranking.rank import rank
from calibscale.results.declarations import Declared
from calibscale.results.inference_results import Miscalibration
from calibscale.results.schemas.result_models import RESULTS, validated
from calibscale.results.schemas.schema_files import names, path, schema
from calibscale.selection.cross_validation import select
from tests.support.local_settings import audit, local_bias
from tests.support.nights import JOB, day_name, write_day, write_job
from tests.support.schema_files import text_of_schema

pytestmark = pytest.mark.long


@cache
def _validator(name: str) -> Any:
    kind = jsonschema.Draft202012Validator
    return kind(schema(name), format_checker=kind.FORMAT_CHECKER)


def _given(value: Any) -> Any:
    """JSON value without the keys that are None."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def _check(result: Any) -> None:
    """Assert that the JSON of a result is valid under its schema, and is the same in a file."""
    value = result
    if isinstance(result, Declared):
        value, members = result.to_dict(), json.loads(json.dumps(Declared.to_dict(result)))
        assert _given(members) == _given(validated(members))
    value = json.loads(json.dumps(value, allow_nan=False))
    validator = _validator(value["schema"])
    if not validator.is_valid(value):
        error = best_match(validator.iter_errors(value))
        raise AssertionError(f"{error.json_path}: {error.message}")


def _source(rng, rows=400, classes=2, heat=1.0, **changes):
    logits = rng.normal(size=(rows, classes)) * 2
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, classes - 1)
    labels[::40] = -1
    settings = {
        "logits": logits * heat,
        "labels": labels,
        "covariates": np.column_stack([rng.normal(40, 10, rows), rng.integers(0, 2, rows)]),
        "covariate_names": ("age", "sex"),
        "weights": rng.uniform(0.5, 2.0, rows),
    }
    return cs.from_arrays(**{**settings, **changes})


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("group_by", [None, "sex"])
def test_evaluation__is_valid_under_its_schema(rng, classes, group_by):
    result = cs.evaluate(_source(rng, classes=classes), group_by=group_by)
    assert len(result.estimates) > 10
    _check(result)


def test_evaluation__with_intervals_or_without_values_is_valid_under_its_schema(rng):
    source = _source(rng)
    _check(cs.evaluate(source, [cs.ECE(), cs.KLCE(("age",))], interval="jackknife"))
    few = cs.from_arrays(probabilities=np.array([[0.5, 0.5]]), labels=np.array([-1]))
    _check(cs.evaluate(few, [cs.ECE(), cs.Brier()]))


def test_tests__are_valid_under_their_schema(rng):
    ckce, several = cs.CKCE(), [cs.ECE(), cs.KLCE(("age",)), cs.CWCE2()]
    source = _source(rng)
    _check(cs.calibration_test(source, ckce, n_replicates=19))
    _check(cs.calibration_test(source, several, n_replicates=19))
    _check(cs.calibration_test(source, cs.KCE(), n_replicates=99, stop_after=2))
    _check(cs.calibration_test(_source(rng, weights=None), cs.KCE(), null="hoeffding"))


@pytest.mark.parametrize("group_by", [None, "sex"])
def test_reliability__is_valid_under_its_schema(rng, group_by):
    source = _source(rng, classes=3)
    _check(reliability(source, bins=40, group_by=group_by))
    _check(reliability(source, notion="class_wise", class_index=1))


@pytest.mark.parametrize("method", ["temperature", "platt", "isotonic", "bbq", "local_bias", "mc"])
def test_recalibration__is_valid_under_its_schema(rng, method):
    covariates = ("age",) if method == "mc" else ()
    _check(cs.recalibrate(_source(rng, heat=2.0), method, covariates=covariates))


@pytest.mark.parametrize(
    "method", ["vector", "matrix", "structured", "ensemble_temperature", "one_vs_rest"]
)
def test_recalibration_of_many_classes__is_valid_under_its_schema(rng, method):
    _check(cs.recalibrate(_source(rng, classes=3), method))


def test_selection__is_valid_under_its_schema(rng):
    source = _source(rng)
    _check(select(source, "positive", ["bins", "kkr"], folds=2))
    _check(select(source, "positive", folds=3, nested=True))


def test_curves__are_valid_under_their_schemas(rng):
    source = _source(rng)
    other = cs.from_arrays(logits=0.5 * source.values, labels=source.labels, weights=source.weights)
    _check(cs.murphy_diagram({"a": source, "b": other}))
    _check(cs.murphy_diagram(source, thresholds=3))
    _check(cs.concentration_curve(source))
    _check(cs.double_lift(source, other))
    _check(cs.label_shift(source, other))


def test_ranking__is_valid_under_its_schema(rng):
    shared = _source(rng)
    models = {
        "a": shared,
        "b": cs.from_arrays(logits=np.asarray(shared.values) * 2, labels=np.asarray(shared.labels)),
    }
    _check(rank(models, subset_size=[100], trials=5))


@pytest.mark.parametrize("at", ["rows", "grid"])
def test_bias__is_valid_under_its_schema(rng, at):
    _check(local_bias(_source(rng), ["age", "sex"], at=at, categorical=["sex"]))


def test_audit__is_valid_under_its_schema(rng):
    source = _source(rng)
    settings = {"categorical": ("sex",), "n_replicates": 19}
    result = audit(source, ("age", "sex"), recalibrate="all", against=source, **settings)
    assert result.recalibration
    assert result.against is not None
    _check(result)


def test_power__is_valid_under_its_schema(rng):
    settings = {"max_rows": 400, "trials": 10, "n_replicates": 19}
    _check(power(_source(rng), Miscalibration(0.1), cs.KCE(), **settings))
    _check(
        power(_source(rng), Miscalibration(0.1, where=("sex", 1.0)), cs.KCE(), **settings).to_dict()
    )


def test_plan__is_valid_under_its_schema(rng):
    _check(plan(_source(rng), [cs.ECE(), cs.JKCE(method="tiles")]))


# ---------------------------------------------------------------- nights

RANKED = """
[ranking]
models = ["v1", "v2"]
by = "ece"
window = "7d"
"""


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Results of nights of two models, with every optional part."""
    folder = tmp_path_factory.mktemp("nights")
    job = write_job(folder, JOB + RANKED)
    results = []
    for model in ("v2", "v1"):
        write_job(folder, (JOB + RANKED).replace('model = "v1"', f'model = "{model}"'))
        for k in range(3):
            write_day(folder, k, heat=3.0 if k == 2 else 1.0, model=model)
            results.append(night(job, day_name(k)))
    return results


def test_nights__are_valid_under_their_schema(nights):
    for result in nights:
        _check(result)
    last = nights[-1].to_dict()
    for part in ("windows", "thresholds", "drift", "alarms", "ranking", "selection", "bias"):
        assert last[part], part
    assert last["windows"][1]["groups"]
    assert last["windows"][1]["tests"]
    assert last["windows"][1]["reliability"]
    assert last["ranking"]["differences"]


def test_night__without_alarms_tests_and_rows_is_valid_under_its_schema(tmp_path):
    write_day(tmp_path, 0)
    write_day(tmp_path, 1, rows=0)
    text = 'model = "v1"\nalarms = false\nestimators = ["ece"]\nsource.path = "{model}/{date}.zarr"'
    job = write_job(tmp_path, text)
    for k in range(2):
        _check(night(job, day_name(k)))


def test_dry_run_and_list_of_days__are_valid_under_their_schemas(tmp_path):
    write_day(tmp_path, 0)
    job = write_job(tmp_path)
    _check(dry_run(job, day_name(0)))
    night(job, day_name(0))
    _check(dry_run(job, day_name(0)))
    path = str(tmp_path / "days.json")
    ran = CliRunner().invoke(ledger, ["list", str(tmp_path / "ledger"), "--json", path])
    assert ran.exit_code == 0, ran.output
    listed = json.loads(Path(path).read_text())
    assert [day["day"] for day in listed["days"]] == [day_name(0)]
    _check(listed)


# ---------------------------------------------------------------- schemas


def test_every_result__has_a_schema():
    text = "".join(path.read_text() for path in Path(cs.__file__).parent.rglob("*.py"))
    assert set(re.findall(r'"(calibscale\.[a-z_]+/[0-9]+)"', text)) == set(names())


@pytest.mark.parametrize("name", names())
def test_schema__is_valid_and_strict(name):
    document = schema(name)
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for table in _objects(document):
        if "properties" in table:
            assert set(table.get("required", ())) <= set(table["properties"])
            assert table["additionalProperties"] is False


def _objects(part: Any) -> Any:
    """Every object schema of a schema."""
    if isinstance(part, dict):
        if "object" in str(part.get("type")):
            yield part
        for member in part.values():
            yield from _objects(member)
    elif isinstance(part, list):
        for member in part:
            yield from _objects(member)


def test_schema_files__are_those_of_the_declared_results():
    assert names() == tuple(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_schema_file__equals_the_declarations(name):
    """The difference shows what a change of a declaration changes in the published schemas."""
    text = path(name).read_text(encoding="utf-8")
    assert text == text_of_schema(name), "if intended: python -m tests.support.schema_files"


def test_every_command__publishes_the_definitions_of_embedded_results():
    definitions = schema("calibscale.nightly/1")["$defs"]
    for part, name in (("Selection", "selection"), ("BiasMap", "bias")):
        document = schema(f"calibscale.{name}/1")
        for key in ("properties", "required", "additionalProperties"):
            assert definitions[part][key] == document[key]


def test_schema__rejects_missing_unknown_and_mistyped_keys(nights):
    """Every required key of a night is removed, renamed and replaced by another type."""
    validator = _validator("calibscale.nightly/1")
    result = _shortened(nights[-1].to_dict())
    assert validator.is_valid(result)
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


def _shortened(value: Any) -> Any:
    """The value with the first item of each list, and both of a pair."""
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return (
        [_shortened(item) for item in value[: max(1, 2 * (len(value) == 2))]]
        if isinstance(value, list)
        else value
    )


def _places(value: Any, part: dict[str, Any], at: tuple[Any, ...] = (), root: Any = None) -> Any:
    """Paths of the required keys of every object. Only the first item of a list is visited."""
    root = root or part
    if "anyOf" in part:
        part = part["anyOf"][0]
    if "$ref" in part:
        part = root["$defs"][part["$ref"].rsplit("/", 1)[1]]
    if isinstance(value, dict) and "properties" in part:
        for key in part["required"]:
            yield (*at, key)
            yield from _places(value[key], part["properties"][key], (*at, key), root)
    elif isinstance(value, list) and value and part.get("items"):
        yield from _places(value[0], part["items"], (*at, 0), root)


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
    """Replace the value by a value of a type that no key allows."""
    table = _parent(value, where)
    table[where[-1]] = [{"no": "such"}]


def test_schema__unknown_name_lists_the_schemas():
    with pytest.raises(
        OptionError, match=r"unknown schema 'x'; known schemas: .*calibscale\.nightly/1"
    ):
        schema("x")
