"""Results as data frames, files, metrics, plots, and pages of notebooks."""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest

import calibscale as cs
from calibscale.output.plots import plot_reliability
from calibscale.results.exported import Tabular
from calibscale.results.night_results import Night
from tests.support.report_results import night, rows

pytestmark = pytest.mark.long

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
polars = pytest.importorskip("polars", reason="polars is not installed")

PETS = ("cat", "dog", "fox", "owl")


@pytest.fixture(autouse=True)
def _close() -> Any:
    """Figures without a window, closed at the end."""
    matplotlib.use("agg")
    yield
    matplotlib.pyplot.close("all")


@cache
def binary() -> cs.ArraySource:
    rng = np.random.default_rng(3)
    p = rng.random(900)
    region = np.where(rng.random(900) < 0.5, "north", "south")
    # events are less frequent than predicted
    return cs.from_arrays(
        probabilities=p,
        labels=rng.random(900) < p**1.5,
        binary=True,
        class_names=("no", "yes"),
        covariates=pandas.DataFrame({"region": region, "age": rng.integers(20, 30, 900)}),
    )


def shifted() -> cs.ArraySource:
    """New rows of the model, without labels."""
    p = np.random.default_rng(4).beta(2.0, 1.0, 700)
    return cs.from_arrays(probabilities=p, labels=np.full(700, -1), class_names=("no", "yes"))


MAKE: dict[str, Callable[[], Any]] = {
    "evaluation": lambda: cs.evaluate(
        binary(), ["ece", "ece(bins=5)", "brier"], group_by="region", interval=True
    ),
    "reliability": lambda: cs.reliability(binary(), bins=5, group_by="region"),
    "tests": lambda: cs.calibration_test(binary(), ["ece", "tce2_debiased"], n_replicates=19),
    "selection": lambda: cs.select(binary(), estimators=[cs.selection.Bins((5, 10))]),
    "ranking": lambda: cs.rank({"old": binary(), "new model": binary()}, by="ece"),
    "murphy": lambda: cs.murphy_diagram({"old": binary(), "new": binary()}, thresholds=5),
    "concentration": lambda: cs.concentration_curve(binary()),
    "double lift": lambda: cs.double_lift(binary(), binary(), names=("old", "new"), bins=5),
    "label shift": lambda: cs.label_shift(binary(), shifted()),
    "audit": lambda: cs.audit(binary(), ["region"], n_replicates=19),
    "bias": lambda: cs.local_bias(binary(), ["region"]),
    "power": lambda: cs.power(
        binary(),
        cs.Miscalibration(shift=0.2),
        statistic="ece",
        trials=10,
        n_replicates=19,
        max_rows=1000,
    ),
    "plan": lambda: cs.plan(binary(), ["ece"]),
    "night": lambda: Night.from_dict(night(days=8), fresh=True),
}
result_of_kind = cache(lambda kind: MAKE[kind]())
KINDS = [
    *(kind for kind in MAKE if kind not in ("plan", "night")),
    pytest.param("night", marks=pytest.mark.long),
]
all_kinds = pytest.mark.parametrize("kind", ["plan", *KINDS])
shown = pytest.mark.parametrize("kind", KINDS)


def _counted(result: Any) -> int:
    """Number of rows of the tidy table, from the JSON object."""
    value = json.loads(json.dumps(result.to_dict()))
    kind = value["schema"].removeprefix("calibscale.").partition("/")[0]
    if kind == "nightly":
        windows = value["windows"]
        return sum(len(w["results"]) + sum(len(g["results"]) for g in w["groups"]) for w in windows)
    if kind == "bias":
        return len(value["points"]["bias"])
    if kind == "murphy":
        return len(value["thresholds"]) * (len(value["curves"]) + len(value["differences"]))
    if kind == "concentration":
        return len(value["share"])
    parts = {
        "evaluation": "results",
        "reliability": "bins",
        "test": "tests",
        "plan": "costs",
        "selection": "candidates",
        "ranking": "models",
        "audit": "groups",
        "power": "curve",
        "double_lift": "bins",
        "label_shift": "classes",
    }
    groups = value.get("groups") if kind in ("evaluation", "reliability") else None
    members = [value, *(groups["values"] if groups else ())]
    return sum(len(member[parts[kind]]) for member in members)


@pytest.mark.long
@all_kinds
def test_to_frame__has_the_same_rows_in_both_libraries(kind: str) -> None:
    result = result_of_kind(kind)
    frame, in_polars = result.to_frame(), result.to_frame("polars")
    assert len(frame) == _counted(result) == in_polars.height
    assert list(frame.columns) == in_polars.columns
    # NaN is the missing value of pandas, and None of polars
    for name in frame:
        plain = [None if value != value else value for value in frame[name].tolist()]
        assert plain == in_polars[name].to_list(), name


def test_to_frame__names_groups_and_ends_of_intervals() -> None:
    result = result_of_kind("evaluation")
    frame = result.to_frame()
    rows_of = frame[(frame.group == "south") & (frame.estimator == "ece")]
    south = next(estimates for key, estimates in result.groups.items() if key.name == "south")
    assert rows_of[["value", "low", "high", "n"]].values.tolist() == [
        [south[0].value, south[0].interval.low, south[0].interval.high, south[0].n]
    ]
    assert rows_of.covariate.tolist() == ["region"]
    # estimates of all rows have no group
    assert frame.group.isna().sum() == len(result.estimates)


def test_to_frame__explains_unknown_and_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cs.OptionError, match="pandas or polars, not 'arrow'"):
        result_of_kind("plan").to_frame("arrow")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(cs.OptionError, match="pip install polars"):
        result_of_kind("plan").to_frame("polars")


@all_kinds
def test_metrics__have_names_that_trackers_accept(kind: str) -> None:
    metrics = result_of_kind(kind).metrics()
    assert metrics
    # characters that MLflow accepts
    for name, value in metrics.items():
        assert re.fullmatch(r"[\w/.\- ]+", name), name
        assert type(value) is float
        assert math.isfinite(value), name


def test_metrics__are_the_values_and_limits_of_estimates() -> None:
    result, metrics = result_of_kind("evaluation"), result_of_kind("evaluation").metrics()
    ece = result["ece"]
    assert metrics["ece"] == float(ece) == ece.value
    assert (metrics["ece/low"], metrics["ece/high"]) == (ece.interval.low, ece.interval.high)
    assert metrics["ece_bins_5"] == result["ece(bins=5)"].value
    assert {"ece/region/north", "ece/region/south/low"} <= metrics.keys()
    tests = result_of_kind("tests")
    assert tests.metrics()["ece/p_value"] == tests["ece"].p_value
    ranks = {model.name: model.value for model in result_of_kind("ranking").models}
    assert result_of_kind("ranking").metrics()["ece/new model"] == ranks["new model"]


def test_float__of_an_estimate_without_a_value_has_the_reason() -> None:
    result = cs.evaluate(rows(), "kce", on_unsupported="report")
    estimate = cs.Estimate("kce", "positive", None, reason="it needs two classes")
    with pytest.raises(ValueError, match="it needs two classes"):
        float(estimate)
    assert result.metrics().keys() <= {"kce"}


@all_kinds
def test_save__writes_what_the_suffix_names(kind: str, tmp_path: Path) -> None:
    result = result_of_kind(kind)
    for suffix in ("json", "csv", "parquet"):
        result.save(tmp_path / f"new/result.{suffix}")
    frame, csv = result.to_frame(), pandas.read_csv(tmp_path / "new/result.csv")
    assert json.loads((tmp_path / "new/result.json").read_text()) == result.to_dict()
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "new/result.parquet"), frame)
    assert list(csv.columns) == list(frame.columns)
    # the parser of pandas may round the last digit
    numbers = frame.select_dtypes("number")
    assert np.allclose(csv[numbers.columns].to_numpy(float), numbers, rtol=1e-15, equal_nan=True)
    with pytest.raises(cs.OptionError, match=r"\.json, \.csv, \.parquet"):
        result.save(tmp_path / "result.xlsx")


@pytest.mark.long
def test_save__writes_the_report_and_plots(tmp_path: Path) -> None:
    result = result_of_kind("reliability")
    result.save(tmp_path / "a.html")
    result.save(tmp_path / "a.png")
    assert "<title>Reliability of arrays</title>" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(cs.OptionError, match="of Plan end in"):
        result_of_kind("plan").save(tmp_path / "plan.html")


@all_kinds
def test_print__is_short(kind: str) -> None:
    result = result_of_kind(kind)
    assert len(str(result).splitlines()) <= 25
    assert len(repr(result)) < 1000


@pytest.mark.long
def test_print__names_the_function_for_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, last = cs.as_text(result_of_kind("night")), str(result_of_kind("night")).splitlines()[-1]
    # 24 lines and this one are shown
    assert last == f"… {len(text.splitlines()) - 24} more lines: calibscale.as_text(result)"


@pytest.mark.long
@shown
def test_repr_html__is_a_short_page_without_scripts(kind: str) -> None:
    page = result_of_kind(kind)._repr_html_()
    assert page.count("<svg") == 1
    assert page.count("<tbody>") == 2  # the table, and the numbers of the plot
    first = page[page.index("<tbody>") : page.index("</tbody>")]
    assert first.count("<tr>") <= 16
    assert "<script" not in page
    assert "<html" not in page


@shown
def test_plot__draws_on_the_axes(kind: str) -> None:
    figure = matplotlib.figure.Figure(layout="constrained")
    ax = figure.subplots()
    assert result_of_kind(kind).plot(ax) is ax
    # axes of an inset have the data of some plots
    assert ax.has_data() or any(inner.has_data() for inner in ax.child_axes)
    # axes that were passed open no window
    assert matplotlib.pyplot.get_fignums() == []
    result_of_kind(kind).plot()
    assert len(matplotlib.pyplot.get_fignums()) == 1


def test_plot_reliability__several_models_share_the_axes() -> None:
    small, large = cs.reliability(rows(300), bins=5), cs.reliability(rows(), bins=10)
    ax = plot_reliability([small, large.to_dict()], names=["small", "$large"])
    lines = {line.get_label().partition(",")[0]: line for line in ax.get_lines()}
    for name, result in (("small", small), ("$large", large)):
        # empty bins have no point
        points = [(b.mean_p, b.frequency) for b in result.bins if b.frequency is not None]
        assert lines[name].get_xydata().tolist() == [list(point) for point in points]
    assert f"ECE {small.ece:.3g}" in lines["small"].get_label()
    with pytest.raises(cs.OptionError, match="2 results need as many names, not 1"):
        plot_reliability([small, large], names=["one"])


@pytest.mark.long
def test_reliability__of_each_class_is_that_of_single_classes() -> None:
    source = rows(400)
    source = cs.from_arrays(logits=source.values, labels=source.labels, class_names=PETS)
    result = cs.reliability(source, notion="class_wise", bins=4)
    # one curve of each class
    assert [key.name for key in result.groups] == list(PETS)
    for k, curve in enumerate(result.groups.values()):
        single = cs.reliability(source, notion="class_wise", bins=4, class_index=PETS[k])
        assert single.class_index == k
        assert curve == single.overall
    filled = sum(len(curve.filled) for curve in result.groups.values())
    assert f"of {filled} bins outside" in result.verdict
    assert f"of {filled} bins outside" in str(result)
    (outer,) = [ax for ax in result.plot().figure.axes if len(ax.child_axes) == 4]
    assert [inner.child_axes[0].get_xlabel() for inner in outer.child_axes] == [
        f"predicted P(y = {name})" for name in PETS
    ]
    with pytest.raises(cs.OptionError, match=r"no class 'pig'.*cat, dog, fox, owl"):
        cs.reliability(source, notion="class_wise", class_index="pig")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: cs.ECE(bins="auto"), "bins must be a whole number such as 15, not 'auto'"),
        (lambda: cs.evaluate(binary(), interval=0.9), "True or a name or Jackknife"),
        (lambda: cs.evaluate(binary(), progress="yes"), "progress must be True or a function"),
        (lambda: cs.evaluate(binary(), group_by=[3]), "the name of one covariate, not int"),
        (lambda: cs.reliability(binary(), notion="class_wise", group_by="age"), "give class_index"),
    ],
)
def test_options__of_a_wrong_type_are_explained(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(cs.OptionError, match=re.escape(message)):
        wrong()


def test_evaluate__interval_and_progress_may_be_true() -> None:
    result = cs.evaluate(binary(), "brier", interval=True, progress=True)
    expected = cs.evaluate(binary(), "brier", interval=cs.Jackknife())
    assert result["brier"].interval == expected["brier"].interval
    cs.rank({"a": binary(), "b": binary()}, by="ece", progress=True)


RESULTS = [
    value
    for value in (getattr(cs, name) for name in dir(cs))
    if isinstance(value, type) and issubclass(value, Tabular)
]


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_results__have_methods_with_the_signatures_of_their_bases(kind: type) -> None:
    """A function that takes any result calls its methods by the signatures of the base class."""
    changed = []
    for base in kind.__mro__[1:]:
        # other libraries' base classes have signatures of their own
        if not base.__module__.startswith("calibscale."):
            continue
        for name, method in vars(base).items():
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            overriding = getattr(kind, name)
            expected = [*inspect.signature(method).parameters]
            parameters = [*inspect.signature(overriding).parameters]
            if parameters[: len(expected)] != expected:
                changed.append(f"{base.__name__}.{name}{inspect.signature(overriding)}")
    assert changed == []
