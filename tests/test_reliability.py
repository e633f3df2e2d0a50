"""Reliability diagrams: numbers, intervals, pictures, and the command."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binom, binomtest

from calibscale import ECE, LogitStore, TCE2Debiased, evaluate, from_arrays
from calibscale.cli.commands.reliability import reliability as command
from calibscale.errors import OptionError
from calibscale.evaluation.reliability import reliability
from calibscale.formatting.number_texts import number
from calibscale.intervals.proportions import consistency_interval, wilson_interval
from calibscale.output.pictures import check_format, plot_result, save_picture
from calibscale.output.plots.prediction_plots import plot_reliability
from calibscale.results.evaluation_results import Reliability

Z95 = 1.959963984540054


def binary(p: np.ndarray, y: np.ndarray, **settings: Any) -> Any:
    return from_arrays(probabilities=p, labels=y.astype(int), binary=True, **settings)


def calibrated(rng: np.random.Generator, rows: int, **settings: Any) -> Any:
    """Labels drawn from the predictions."""
    p = rng.random(rows)
    return binary(p, rng.random(rows) < p, **settings)


# ---------------------------------------------------------------- numbers


def naive(p: np.ndarray, event: np.ndarray, w: np.ndarray, borders: np.ndarray) -> list[dict]:
    """Bins (lo, hi] by loops over rows, with Wilson's interval by its formula."""
    result = []
    for b, (low, high) in enumerate(pairwise(borders)):
        rows = [i for i in range(len(p)) if low < p[i] <= high or (b == 0 and p[i] == 0)]
        weight = sum(w[i] for i in rows)
        row: dict[str, Any] = {"lower": low, "upper": high, "count": len(rows), "weight": weight}
        if rows:
            n = weight**2 / sum(w[i] ** 2 for i in rows)
            f = sum(w[i] * event[i] for i in rows) / weight
            middle = (f + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
            half = Z95 / (1 + Z95**2 / n) * np.sqrt(f * (1 - f) / n + Z95**2 / (4 * n**2))
            row |= {
                "effective_count": n,
                "mean_p": sum(w[i] * p[i] for i in rows) / weight,
                "frequency": f,
                "interval": (max(middle - half, 0.0), min(middle + half, 1.0)),
            }
        result.append(row)
    return result


def assert_bins(result: Reliability, expected: list[dict]) -> None:
    assert len(result.bins) == len(expected)
    for b, row in zip(result.bins, expected, strict=True):
        if row["count"] == 0:
            assert (b.mean_p, b.frequency, b.interval, b.consistency) == (None,) * 4
            assert (b.count, b.weight, b.effective_count, b.outside) == (0, 0.0, 0.0, False)
        for name, value in row.items():
            assert getattr(b, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("notion", ["top_label", "positive"])
def test_reliability__bins_are_those_of_loops_over_rows(rng, notion, weighted):
    n = 300
    q = rng.dirichlet([0.4, 0.4], n)
    y = (rng.random(n) < q[:, 1] ** 1.5).astype(int)
    w = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    source = from_arrays(probabilities=q, labels=y, weights=w if weighted else None)
    p = q.max(1) if notion == "top_label" else q[:, 1]
    event = (q.argmax(1) == y) if notion == "top_label" else y == 1
    result = reliability(source, bins=12, notion=notion)
    assert_bins(result, naive(p, event, w, np.linspace(0, 1, 13)))
    assert result.bins[0].count == 0 or notion == "positive"  # an empty bin is included
    gaps = [b.weight * abs(b.gap) for b in result.overall.filled]
    assert result.ece == pytest.approx(sum(gaps) / w.sum(), rel=1e-9)
    assert result.n == n


@pytest.mark.parametrize(
    "edges", ["equal-width", "equal-mass", "netcal", "torchmetrics", (0.0, 0.3, 0.55, 1.0)]
)
def test_reliability__has_the_bins_of_ece(source, edges):
    result = reliability(source, bins=9, edges=edges)
    ece, debiased = evaluate(source, [ECE(9, edges), TCE2Debiased(9, edges)]).estimates
    rows = [
        {name: getattr(b, name) for name in ("lower", "upper", "count", "mean_p", "frequency")}
        for b in result.bins
    ]
    expected = [{name: row[name] for name in rows[0]} for row in ece.details["bins"]]
    assert rows == expected
    assert (result.ece, result.overall.tce2_debiased) == (ece.value, debiased.value)


def test_reliability__one_class_is_the_positive_one_of_its_column(arrays):
    q = np.exp(arrays["logits"])
    q /= q.sum(1, keepdims=True)
    result = reliability(
        from_arrays(probabilities=q, labels=arrays["labels"], weights=arrays["weights"]),
        notion="class_wise",
        class_index=3,
        bins=6,
    )
    positive = reliability(
        binary(q[:, 3], arrays["labels"] == 3, weights=arrays["weights"]),
        notion="positive",
        bins=6,
    )
    for a, b in zip(result.bins, positive.bins, strict=True):
        assert a.count == b.count
        assert a.mean_p == pytest.approx(b.mean_p, rel=1e-9)
        assert a.interval == pytest.approx(b.interval, rel=1e-9)
        assert a.consistency == pytest.approx(b.consistency, rel=1e-9)


def test_reliability__groups_equal_separate_sources(source, arrays):
    result = reliability(source, bins=7, group_by="group", confidence_level=0.8)
    assert list(result.groups) == [0.0, 1.0, 2.0]
    for value, curve in result.groups.items():
        rows = arrays["covariates"][:, 0] == value
        part = from_arrays(logits=arrays["logits"][rows], labels=arrays["labels"][rows])
        alone = reliability(part, bins=7, confidence_level=0.8).overall
        assert (curve.n, curve.bins) == (alone.n, alone.bins)
        assert curve.ece == alone.ece
    assert sum(curve.n for curve in result.groups.values()) == result.n == 400


def test_reliability__equal_weights_change_no_interval(rng):
    p, y = rng.random(500), rng.integers(0, 2, 500)
    plain = reliability(binary(p, y), notion="positive")
    result = reliability(binary(p, y, weights=np.full(500, 0.1)), notion="positive")
    for a, b in zip(result.bins, plain.bins, strict=True):
        assert a.weight == pytest.approx(0.1 * b.weight)
        assert a.effective_count == pytest.approx(b.effective_count, rel=1e-9)
        assert a.interval == pytest.approx(b.interval, rel=1e-9)
        assert a.consistency == b.consistency


def test_reliability__unequal_weights_widen_both_intervals(rng):
    p, y = rng.uniform(0.4, 0.6, 400), rng.integers(0, 2, 400)
    few = np.where(np.arange(400) < 40, 1.0, 1e-6)  # equivalent to 40 rows
    (b,) = reliability(binary(p, y, weights=few), notion="positive", bins=1).bins
    (like,) = reliability(binary(p[:40], y[:40]), notion="positive", bins=1).bins
    assert b.effective_count == pytest.approx(40, rel=1e-4)
    # 360 weights of 1e-6 are 9e-6 of the others
    assert b.interval == pytest.approx(like.interval, rel=1e-3)
    assert b.consistency.lower < like.consistency.lower + 1e-4  # rounded outwards
    assert b.consistency.upper > like.consistency.upper - 1e-4
    assert b.consistency == pytest.approx(like.consistency, abs=1.001 / 40)


def test_reliability__of_no_row_is_none_and_of_one_row_is_defined():
    p = np.array([0.7])
    unlabelled = reliability(from_arrays(probabilities=p, labels=np.array([-1]), binary=True))
    assert (unlabelled.n, unlabelled.n_unlabelled) == (0, 1)
    assert (unlabelled.bins, unlabelled.ece) == ((), None)
    assert "no rows" in unlabelled.to_dict()["reason"]
    single = reliability(binary(p, np.array([0])), notion="positive", bins=2)
    empty, full = single.bins
    assert empty.frequency is None
    assert (full.mean_p, full.frequency, full.consistency) == (0.7, 0.0, (0.0, 1.0))
    assert full.interval == pytest.approx((0.0, Z95**2 / (1 + Z95**2)))


def test_reliability__certain_predictions_have_a_range_of_one_point():
    p, y = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 0])
    low, high = reliability(binary(p, y), notion="positive", bins=2).bins
    assert (low.consistency, low.outside) == ((0.0, 0.0), False)
    assert (high.consistency, high.frequency, high.outside) == ((1.0, 1.0), 0.5, True)


@pytest.mark.long
def test_reliability__dict_is_json_with_its_schema(source, arrays):
    logits = arrays["logits"].copy()
    logits[5] = np.nan
    bad = from_arrays(logits=logits, labels=arrays["labels"])
    requested = {"on_invalid": "drop", "tolerance": 0.01, "scheduler": "serial"}
    requested |= {"memory_limit": 20 * 10**9}
    result = json.loads(json.dumps(reliability(bad, **requested).to_dict(), allow_nan=False))
    assert result["schema"] == "calibscale.reliability/1"
    assert (result["n"], result["n_dropped"], result["dropped"]) == (
        399,
        1,
        {"logits is missing": 1},
    )
    assert {"source", "notion", "class", "level", "seconds", "versions", "ece"} <= set(result)
    requested |= {"bins": 15, "edges": "equal-width", "block_rows": bad.block_rows}
    assert result["parameters"] == requested
    assert result["bins"][0] == {
        "lower": 0.0,
        "upper": 1 / 15,
        "count": 0,
        "weight": 0.0,
        "effective_count": 0.0,
        "mean_p": None,
        "frequency": None,
        "interval": None,
        "consistency": None,
        "outside": False,
    }
    assert sum(b["count"] for b in result["bins"]) == 399
    grouped = reliability(source, group_by="group").to_dict()["groups"]
    assert grouped["column"] == "group"
    assert [g["value"] for g in grouped["values"]] == [0.0, 1.0, 2.0]
    assert all(g["n"] == sum(b["count"] for b in g["bins"]) for g in grouped["values"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"confidence_level": 0.0}, "confidence_level must be between 0 and 1"),
        ({"confidence_level": 1.0}, "confidence_level must be between 0 and 1"),
        ({"confidence_level": float("nan")}, "confidence_level must be between 0 and 1"),
        ({"bins": 0}, "at least 1"),
        ({"edges": "equal"}, "edges must be one of"),
        ({"notion": "canonical"}, "notion must be one of"),
        ({"notion": "positive"}, "two classes"),
        ({"class_index": 1}, "class_wise"),
        ({"notion": "class_wise", "class_index": 5}, "classes are 0..4"),
        ({"notion": "class_wise", "class_index": -1}, "classes are 0..4"),
        ({"notion": "class_wise", "class_index": 1, "edges": "equal-mass"}, "as numbers"),
        ({"group_by": "site"}, "site"),
    ],
)
def test_reliability__invalid_settings_are_reported(source, settings, words):
    with pytest.raises(OptionError, match=words):
        reliability(source, **settings)


# ---------------------------------------------------------------- both intervals


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_wilson_interval__is_that_of_scipy(level):
    for n in (1, 2, 7, 40, 1000):
        hits = np.unique(np.linspace(0, n, 9).astype(int))
        lower, upper = wilson_interval(hits / n, np.full(len(hits), n), level)
        for k, low, high in zip(hits, lower, upper, strict=True):
            expected = binomtest(int(k), n).proportion_ci(level, method="wilson")
            assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_consistency_interval__ends_at_binomial_quantiles(level):
    p = np.array([0.0, 1e-300, 1e-9, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0])
    for n in (1, 2, 30, 1000, 10**9):
        lower, upper = consistency_interval(p, np.full(len(p), n), level)
        # quantiles are whole numbers, divided by n and multiplied again
        assert lower * n == pytest.approx(binom.ppf((1 - level) / 2, n, p), abs=1e-6)
        assert upper * n == pytest.approx(binom.ppf((1 + level) / 2, n, p), abs=1e-6)


def test_consistency_interval__of_weights_contains_that_of_rows():
    n, p = np.array([5.0, 12.0, 80.0, 900.0]), np.array([0.02, 0.4, 0.7, 0.999])
    inner, outer = (consistency_interval(p, n, whole=integers) for integers in (True, False))
    assert (outer[0] <= inner[0]).all()
    assert (outer[1] >= inner[1]).all()
    assert (np.subtract(inner[0], outer[0]) <= 1 / n).all()
    assert (np.subtract(outer[1], inner[1]) <= 1 / n + 1e-12).all()
    between = consistency_interval(0.4, [12.0, 12.5, 13.0], whole=False)
    assert np.diff(between[0] * [12.0, 12.5, 13.0]).min() > 0


def poisson_binomial(p: np.ndarray) -> np.ndarray:
    """P(X = k) of the number of events among independent rows of their own p."""
    result = np.ones(1)
    for probability in p:
        result = np.convolve(result, [1 - probability, probability])
    return result


@pytest.mark.long
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99])
def test_consistency_interval__holds_its_level_for_unequal_predictions(rng, level):
    for _ in range(100):
        n = rng.integers(1, 40)
        p = rng.beta(*10 ** rng.uniform(-2, 1, 2), n) ** rng.choice([0.01, 1.0, 4.0])
        lower, upper = consistency_interval([p.mean()], [n], level)
        k = np.arange(n + 1) / n
        inside = (k >= lower[0] - 1e-12) & (k <= upper[0] + 1e-12)
        assert poisson_binomial(p)[inside].sum() >= level


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["none", "uniform", "heavy"])
def test_reliability__both_intervals_cover(weights):
    rng = np.random.default_rng(3)
    rows, groups = 40_000, 100
    w = {"none": None, "uniform": rng.uniform(0.2, 3.0, rows), "heavy": rng.exponential(1, rows)}
    group = rng.integers(0, groups, (rows, 1)).astype(float)
    source = calibrated(rng, rows, weights=w[weights], covariates=group, covariate_names=["group"])
    result = reliability(source, notion="positive", bins=10, group_by="group")
    bins = [b for curve in result.groups.values() for b in curve.filled]
    assert len(bins) == 10 * groups
    covered = np.mean([b.interval.lower <= b.mean_p <= b.interval.upper for b in bins])
    inside = np.mean([not b.outside for b in bins])
    assert 0.93 <= covered <= 0.98
    assert 0.95 <= inside <= 0.99  # slightly conservative


def test_reliability__overconfidence_is_flagged(rng):
    p = rng.random(20_000)
    result = reliability(binary(p, rng.random(20_000) < 0.25 + p / 2), notion="positive", bins=10)
    low, high = result.bins[:4], result.bins[6:]
    assert all(b.outside and b.gap < 0 for b in low)
    assert all(b.outside and b.gap > 0 for b in high)


# ---------------------------------------------------------------- pictures


def texts(figure: Any) -> str:
    """All texts of a figure."""
    from matplotlib.text import Text

    return "\n".join(result.get_text() for result in figure.findobj(Text))


@pytest.mark.long
@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_save_picture__writes_the_file_atomically(source, tmp_path, suffix, start):
    path = tmp_path / f"day.{suffix}"
    path.write_bytes(b"of yesterday")
    save_picture(reliability(source), path)
    assert path.read_bytes().startswith(start)
    assert path.stat().st_size > 5000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.long
def test_plot_reliability__shows_every_bin_that_has_rows(source):
    result = reliability(source, bins=10)
    upper = plot_reliability(result)
    (lower,) = upper.child_axes
    points = {
        (x, y)
        for line in upper.lines
        if line.get_marker() == "o"
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert points == {(b.mean_p, b.frequency) for b in result.overall.filled}
    assert [bar.get_height() for bar in lower.patches] == [b.count for b in result.overall.filled]
    title = " ".join(text.get_text() for text in plot_result(result).subfigs[0].texts)
    assert "400 rows of" in title
    assert "top label" in title


def test_plot_reliability__counts_are_logarithmic_beyond_two_decades():
    p = np.append(np.full(300, 0.1), [0.9] * 2)
    y = np.zeros(302)
    for keep, scale in ((slice(None), "log"), (slice(200, None), "linear")):
        ax = plot_reliability(reliability(binary(p[keep], y[keep]), notion="positive"))
        assert ax.child_axes[0].get_yscale() == scale


def test_plot_reliability__rare_events_fill_the_axes():
    p = np.linspace(0, 0.02, 500)
    axis = plot_reliability(reliability(binary(p, p > 0.019), notion="positive"))
    assert axis.get_xlim()[1] < 0.1
    assert axis.get_ylim()[0] < 0.0 < 0.02 < axis.get_ylim()[1]  # the diagonal is visible


@pytest.mark.long
def test_plot_reliability__draws_the_twelve_largest_groups(rng):
    group = np.repeat(np.arange(15), np.arange(15) + 5)
    source = calibrated(
        rng, len(group), covariates=group[:, None].astype(float), covariate_names=["$site$"]
    )
    figure = plot_result(reliability(source, notion="positive", group_by="$site$"))
    parts = figure.subfigs[1:]  # the first one is the title
    titles = [part.get_suptitle().replace("\u00a0", " ") for part in parts]
    assert titles == ["All rows", *(f"$site$ = {g}" for g in range(14, 2, -1))]


@pytest.mark.long
@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
@pytest.mark.parametrize(
    "case", ["no row", "one row", "one bin", "100 bins", "a group without weight"]
)
def test_save_picture__draws_unusual_data(rng, tmp_path, case):
    y, p = np.array([0]), np.array([0.7])
    settings: dict[str, Any] = {"notion": "positive"}
    if case == "no row":
        source = from_arrays(probabilities=p, labels=np.array([-1]), binary=True)
    elif case == "a group without weight":
        group = np.array([[0.0], [1.0]])
        source = binary(
            np.array([0.2, 0.7]),
            np.array([0, 1]),
            weights=np.array([0.0, 1.0]),
            covariates=group,
            covariate_names=["site"],
        )
        settings["group_by"] = "site"
    elif case == "one row":
        source = binary(p, y)
    else:
        source = calibrated(rng, 3000)
        settings["bins"] = int(case.split()[0].replace("one", "1"))
    result = reliability(source, **settings)
    if case == "no row":
        assert "no rows" in texts(plot_reliability(result).figure)
    if case == "a group without weight":  # its row is not counted
        assert set(result.groups) == {1.0}
    save_picture(result, tmp_path / "odd.png")
    assert (tmp_path / "odd.png").stat().st_size > 5000


def test_check_format__reports_the_supported_formats():
    with pytest.raises(OptionError, match=r"\.png, \.svg, \.pdf"):
        check_format("day.jpeg")


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    rng = np.random.default_rng(8)
    z = 3 * rng.normal(size=(900, 3))
    y = np.where(rng.random(900) < 0.7, z.argmax(1), rng.integers(0, 3, 900))
    path = tmp_path_factory.mktemp("reliability") / "day.zarr"
    created = LogitStore.create(path, classes=3, dtype=np.float64, covariate_names=["site"])
    with created.writer() as writer:
        writer.append(z, y, covariates=rng.integers(0, 2, (900, 1)).astype(float))
    return path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(command, [str(a) for a in arguments], env={"COLUMNS": "80"})


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("--bins 7 --confidence 0.8", {"bins": 7, "confidence_level": 0.8}),
        ("--edges equal-mass", {"edges": "equal-mass"}),
        ("--edges 0,0.5,1 --group-by site", {"edges": (0, 0.5, 1), "group_by": "site"}),
        (
            "--on-invalid drop --tolerance 0.01 --scheduler serial --memory-limit 20GB",
            dict(on_invalid="drop", tolerance=0.01, scheduler="serial", memory_limit="20GB"),
        ),
        ("--class 2", {"notion": "class_wise", "class_index": 2}),
        ("--notion class_wise --class 0", {"notion": "class_wise", "class_index": 0}),
    ],
)
def test_command__json_is_what_python_returns(store, options, settings):
    ran = run(store, "--json", "-", *options.split())
    assert ran.exit_code == 0, ran.output
    expected = json.loads(json.dumps(reliability(store, **settings).to_dict()))
    assert without_time(json.loads(ran.stdout)) == without_time(expected)


@pytest.mark.long
def test_command__writes_the_picture_and_a_table_of_the_bins(store, tmp_path):
    picture, numbers = tmp_path / "day.png", tmp_path / "day.json"
    ran = run(store, "-o", picture, "--json", numbers, "--group-by", "site", "--bins", 8)
    assert ran.exit_code == 0, ran.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "…" not in " ".join(ran.stdout.split()).replace(" … ", "")
    result = reliability(store, bins=8, group_by="site")
    assert len(json.loads(numbers.read_text())["bins"]) == 8
    lines = ran.stdout.splitlines()
    for b in result.overall.filled:
        (line,) = [x for x in lines if x.startswith(f"{b.lower:.3g} – {b.upper:.3g} ")]
        cells = line.split()
        assert cells[3:6] == [str(b.count), number(b.mean_p), number(b.frequency)]
        assert line.rstrip().endswith("outside" if b.outside else "in")
    assert any(b.outside for b in result.bins)
    for value, curve in result.groups.items():
        cells = ["site", "=", f"{value:g}", str(curve.n), number(curve.ece)]
        assert cells in [x.split()[:5] for x in lines]


def test_command__prints_bins_without_an_output(store):
    ran = run(store)
    assert ran.exit_code == 0
    assert "confidence  accuracy" in ran.stdout


def test_command__prints_rare_events_with_significant_digits(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 2000, 2000)
    created = LogitStore.create(
        tmp_path / "rare.zarr", classes=2, kind="probabilities", binary=True, dtype=np.float64
    )
    with created.writer() as writer:
        writer.append(p, np.zeros(2000, int))
    ran = run(tmp_path / "rare.zarr", "--notion", "positive", "--edges", "equal-mass", "--bins", 4)
    bins = [line.split()[0] for line in ran.stdout.splitlines() if " – " in line]
    assert len(set(bins[:4])) == 4
    assert float(bins[1].replace("−", "-")) == pytest.approx(np.quantile(p, 0.25), rel=0.1)


@pytest.mark.long
def test_command__draws_several_stores_and_each_class(store, tmp_path):
    ran = run(store, store, "-o", tmp_path / "both.svg")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.count("Reliability of ") == 2
    assert (tmp_path / "both.svg").read_text().count(
        f", ECE {number(reliability(store).ece, 3)}"
    ) == 2
    ran = run(store, "--notion", "class_wise", "-o", tmp_path / "classes.svg")
    assert ran.exit_code == 0, ran.output
    assert "predicted P(y = 2)" in (tmp_path / "classes.svg").read_text()


def test_command__is_silent_with_q(store):
    ran = run(store, "--json", "-", "-q")
    assert ran.stdout.count("\n") == 1
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "/nowhere/day.png"], "there is no folder /nowhere"),
        (["-o", "day.svg", "--json", "./day.svg"], "--output and --json cannot both be"),
        (["second.zarr", "--json", "-"], "--json is for one STORE"),
        (
            ["--json", "-", "--notion", "top_label", "--class", "1"],
            "--class needs --notion class_wise",
        ),
        (["-o", "/"], "is a folder"),
        (["-o", "day.jpeg"], "names of pictures end in"),
        (["--json", "-", "--edges", "wide"], "neither numbers nor one of"),
        (["--json", "-", "--confidence", "95"], "'--confidence': 95.0 is not in the range"),
        (["--json", "-", "--class", "3"], "no class 3"),
        (["--json", "-", "--group-by", "age"], "age"),
    ],
)
def test_command__mistakes_are_reported(store, arguments, words):
    ran = run(store, *arguments)
    assert ran.exit_code != 0
    assert words in ran.stderr or words in str(ran.exception)
    assert ran.exception is None or isinstance(ran.exception, OptionError | SystemExit)


@pytest.mark.parametrize("option", ["-o", "--json"])
def test_command__outputs_that_cannot_be_written_fail_before_the_work(option):
    ran = run("no-such.zarr", option, "/nowhere/day.png")
    assert ran.exit_code == 2
    assert "cannot be written" in ran.stderr


def test_verdict__contains_the_number_expected_by_chance(rng):
    p = rng.random(400)
    result = reliability(binary(p, rng.random(400) < p), notion="positive", bins=8)
    expected = "of 8 bins outside the band (at most 0.4 expected by chance)"
    assert result.verdict.endswith(expected)
    from calibscale.output.documents.evaluation_documents import reliability as reported

    message = reported(result).verdict
    assert "outside the band; at most 0.4 expected by chance; ECE 0.0" in message


def test_reliability__judges_the_positive_one_of_two_classes_by_default(rng):
    p = rng.random(300)
    source = binary(p, rng.random(300) < p)
    result = reliability(source)
    assert result.notion == "positive"
    assert result.bins == reliability(source, notion="positive").bins
    assert result.bins != reliability(source, notion="top_label").bins
