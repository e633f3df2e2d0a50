"""Files of fits with one changed value are refused, or recalibrate as before."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

import calibscale as cs
from calibscale.errors import InvalidDataError, OptionError
from calibscale.recalibration.boosting import MCBoost, PMCBoost
from calibscale.recalibration.hierarchical import Hierarchical
from calibscale.recalibration.nonparametric import LocalBias
from tests.support.overconfident import LOCAL, overconfident_rows, two_class_source

_CHANGES: dict[str, Any] = {
    "null": None,
    "true": True,
    "text": "x",
    "long text": "x" * 10_000,
    "empty list": [],
    "empty object": {},
    "nested": {"a": [[[1]]]},
    "deep": json.loads("[" * 300 + "]" * 300),
    "nan": math.nan,
    "infinite": -math.inf,
    "huge": 10**400,
    "large": 1e12,
    "larger": 1e308,
    "tiny": 1e-310,
    "negative": -1,
    "zero": 0,
    "one": 1,
    "half": 0.5,
    "many": 10**6,
}


def _fits() -> dict[str, tuple[cs.FittedRecalibration, dict[str, Any]]]:
    """A fit of every method, with predictions to recalibrate."""
    two = overconfident_rows()
    x = two["x"].copy()
    x[:, 0] = np.round(x[:, 0].clip(-1, 1))
    named = np.array(["low", "middle", "high"])[x[:, 0].astype(int) + 1]
    binary = two_class_source(two, covariates=x)
    rows = slice(0, 2000, 40)
    p = np.append(two["p"][rows], [0.0, 0.5, 1.0])
    at = np.vstack([x[rows], [[-1.0, 9.0], [7.0, np.nan], [0.0, 0.0]]])
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        name: (name, binary, {"probabilities": p}) for name in ("temperature", "platt", "isotonic")
    }
    for name in ("bbq", "histogram", "spline"):
        cases[name] = (name, binary, {"probabilities": p})
    cases["local_bias"] = (LOCAL, binary, {"probabilities": p, "covariates": at[:, 1:]})
    categories = LocalBias(("x1", "x2"), categorical=("x1",), covariate_bandwidth=0.8)
    cases["local_bias of categories"] = (categories, binary, {"probabilities": p, "covariates": at})
    constant = LocalBias(("x2",), covariate_bandwidth=0.5, prediction_kernel="none")
    cases["local_bias of x"] = (constant, binary, {"probabilities": p, "covariates": at[:, 1:]})
    for method in (MCBoost(("x1", "x2")), PMCBoost("x2", depth=(1,))):
        columns = at if len(method.covariates) == 2 else at[:, 1:]
        cases[method.name] = (method, binary, {"probabilities": p, "covariates": columns})
    groups = {"probabilities": p, "covariates": at[:, :1]}
    cases["hierarchical"] = (Hierarchical("x1"), binary, groups)
    names = two_class_source(two, covariates=named, covariate_names=["level"])
    frame = {"level": np.append(named[rows], ["low", "other", "high"])}
    cases["mc of names"] = (MCBoost("level"), names, {"probabilities": p, "covariates": frame})
    rng = np.random.default_rng(3)
    z = rng.normal(size=(500, 4)) * 3
    y = (softmax(z / 1.7, axis=1).cumsum(1) < rng.random((500, 1))).sum(1)
    many = cs.from_arrays(logits=z, labels=y)
    cases["temperature of four"] = ("temperature", many, {"logits": z[:20]})
    return {
        name: (cs.recalibrate(source, method), arguments)
        for name, (method, source, arguments) in cases.items()
    }


@pytest.fixture(scope="module")
def fits() -> dict[str, tuple[cs.FittedRecalibration, dict[str, Any]]]:
    return _fits()


def _places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to the values of a JSON object. Of long lists, three items are enough."""
    if where:
        yield where
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*where, key))
    elif isinstance(value, list):
        for i in sorted({0, len(value) // 2, len(value) - 1} & set(range(len(value)))):
            yield from _places(value[i], (*where, i))


def _changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of changes of one value."""
    for name, change in _CHANGES.items():
        yield name, copy.deepcopy(change)
    if isinstance(value, list) and value:
        yield "longer", value + value[-1:]
        yield "much longer", [value[0] for _ in range(5_000)]
        yield "shorter", value[:-1]
        yield "reversed", value[::-1]
        yield "wrapped", [value]
    if isinstance(value, int | float):
        yield "opposite", -value
        yield "as text", str(value)
        yield "more", value * 1.001 + 1e-3
    if isinstance(value, str):
        yield "cut", value[: len(value) // 2]
        yield "other text", value[::-1] + "."


def _mutations(intact: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], str, dict[str, Any]]]:
    """Path, name of the change, and the object with one changed or dropped value."""
    for where in _places(intact):
        holder: Any = intact
        for key in where[:-1]:
            holder = holder[key]
        changes = list(_changed(holder[where[-1]]))
        for name, change in [*changes, ("dropped", None)]:
            mutated = copy.deepcopy(intact)
            inside: Any = mutated
            for key in where[:-1]:
                inside = inside[key]
            if name == "dropped":
                del inside[where[-1]]
            else:
                inside[where[-1]] = change
            yield where, name, mutated


def _judge(path: Path, where: tuple[Any, ...], arguments: Any, expected: np.ndarray) -> str:
    """Whether a file is refused, equal or different. Other errors and wrong values fail."""
    try:
        fitted = cs.load_recalibration(path)
    except OptionError as error:
        text = str(error)
        assert text.startswith(f"{path}: ")
        assert len(text) < 600 + len(str(path))
        return "refused"
    str(fitted)
    json.dumps(fitted.to_dict(), allow_nan=False)
    try:
        after = fitted.transform(**arguments)
    except (OptionError, InvalidDataError):
        if where[0] in ("source", "parameters"):  # other classes or categories, a small tolerance
            return "refused for these rows"
        raise
    assert after.shape == expected.shape
    assert np.isfinite(after).all()
    assert after.min() >= 0.0
    assert after.max() <= 1.0
    if np.array_equal(after, expected):
        return "equal"
    raise AssertionError("other probabilities")


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), pytest.param(59, marks=pytest.mark.long)]
)
@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_files__with_one_changed_value_are_refused_or_recalibrate(fits, tmp_path, step):
    path, counts = tmp_path / "fit.json", Counter[str]()
    for name, (fitted, arguments) in fits.items():
        expected, intact = fitted.transform(**arguments), fitted.to_dict()
        here = Counter[str]()
        for where, change, mutated in islice(_mutations(intact), 0, None, step):
            path.write_text(json.dumps(mutated))
            try:
                here[_judge(path, where, arguments, expected)] += 1
            except Exception as error:
                raise AssertionError(f"{name}: {where} {change}") from error
        print(f"{name}: {sum(here.values())} mutations: {dict(here)}")
        counts += here
    print(f"{sum(counts.values())} mutations: {dict(counts)}")
    assert sum(counts.values()) >= 15_000 / step


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "where", "change", "message"),
    [
        ("platt", ("state", "slope"), None, "state.slope must be a number, not None"),
        ("platt", ("state", "errors"), [1.0], "state.errors must have at least 2 values, not 1"),
        ("platt", ("estimates", "slope"), 10**400, "estimates.slope must be a number below 1e308"),
        ("platt", ("state", "slope"), 2.0, "estimates.slope must be 2.0, as in state, not 0.5"),
        ("isotonic", ("state", "values"), [], "state.values must have at least 1 values, not 0"),
        ("isotonic", ("state", "knots"), [0.5, 0.1], "state: knots and values must be equally"),
        ("bbq", ("state", "edges"), [0.5, math.nan], r"state.edges\[1\] must be a finite number"),
        ("mc", ("settings", "score_bins"), 10**12, "more than 16,777,216 categories"),
        ("mc", ("state", "bits"), 99, "state.bits must be less than or equal to 40, not 99"),
        ("mc", ("settings", "depth"), "x", "settings.depth.* must be a whole number, not 'x'"),
        ("local_bias", ("state", "modes", 0), "AAAA", "modes of .* numbers have .* characters"),
        ("local_bias", ("source", "classes"), 4, "local_bias is for two classes; there are 4"),
        ("temperature", ("parameters", "tolerance"), "x", "parameters.tolerance must be a number"),
        ("temperature", ("state", "temperature"), 0, "state.temperature must be greater than 0"),
    ],
)
def test_files__errors_name_the_value(fits, tmp_path, name, where, change, message):
    mutated = copy.deepcopy(fits[name][0].to_dict())
    inside: Any = mutated
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = change
    (tmp_path / "fit.json").write_text(json.dumps(mutated))
    with pytest.raises(OptionError, match=f"fit.json: the recalibration is damaged: .*{message}"):
        cs.load_recalibration(tmp_path / "fit.json")


@pytest.mark.parametrize("where", [("state", "axes", 0, "edges"), ("settings", "score_bins")])
def test_files__without_a_key_are_refused(fits, where):
    mutated = copy.deepcopy(fits["pmc"][0].to_dict())
    inside: Any = mutated
    for key in where[:-1]:
        inside = inside[key]
    del inside[where[-1]]
    with pytest.raises(OptionError, match=f"has no '{where[-1]}'"):
        cs.FittedRecalibration.from_dict(mutated)
