"""The map of local calibration bias against dense sums, known biases, and itself elsewhere."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from scipy.special import expit
from scipy.stats import binom

from calibscale import LogitStore, from_arrays
from calibscale.bias import BiasMap, local_bias
from calibscale.bias.points import Points
from calibscale.bias.sums import PointSums, StrengthModes, Strengths
from calibscale.chunk import Rules, chunks
from calibscale.cli.bias import bias as command
from calibscale.errors import InvalidDataError, OptionError
from calibscale.excess import excess_deviate, excess_limits
from calibscale.local import Modes
from calibscale.products import ProductKernel
from calibscale.simulate import GENERATORS
from calibscale.spectral import Factor, FourierSeries

N = 1500
NAMES = ("age", "dose", "sex", "site")  # two continuous ones, one of two values, one of three

mapped = partial(local_bias, min_rows=2)


def _dense(data, at, bandwidths, kernel="gaussian"):
    """bias, standard error and effective rows at points (f', x'), with loops left to NumPy.

    `bandwidths` of the prediction and of each covariate: None is k = 1, 0 is equality.
    """
    w, d = data["weights"], data["p"] - data["y"]
    columns = [data["p"], *data["x"].T]
    K = np.ones((len(at[0]), len(w)))
    distance = np.zeros_like(K)
    for mine, theirs, b in zip(columns, [at[0], *np.transpose(at[1])], bandwidths, strict=True):
        gap = np.abs(np.asarray(theirs)[:, None] - mine[None, :])
        if b == 0:
            K *= gap == 0
        elif b is not None and (kernel == "gaussian" or mine is data["p"]):
            K *= np.exp(-0.5 * (gap / b) ** 2)
        elif b is not None:
            distance += (gap / b) ** 2
    K *= np.exp(-np.sqrt(distance))  # laplace
    total = K @ w
    with np.errstate(divide="ignore", invalid="ignore"):
        bias = -(K @ (w * d)) / total
        V = (K * w) ** 2
        rows = total**2 / V.sum(1)
        spread = (V * (d[None, :] + bias[:, None]) ** 2).sum(1) * rows / (rows - 1)
        null = V @ (data["p"] * (1 - data["p"]))
        return bias, np.sqrt(np.maximum(spread, null)) / total, rows


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x = np.column_stack([
        rng.normal(50, 10, N), rng.normal(0, 1, N), rng.integers(0, 2, N), rng.integers(1, 4, N),
    ]).astype(float)  # fmt: skip
    p = rng.random(N)
    y = (rng.random(N) < np.clip(p + 0.1 * x[:, 2] + 0.1 * x[:, 1], 0, 1)).astype(int)
    return {"p": p, "y": y, "x": x, "weights": rng.uniform(0.2, 3.0, N)}


def _source(data, **changes):
    return from_arrays(**{
        "probabilities": data["p"], "labels": data["y"], "covariates": data["x"],
        "covariate_names": NAMES, "weights": data["weights"], "binary": True, **changes,
    })  # fmt: skip


def _named(data, *names):
    return {**data, "x": data["x"][:, [NAMES.index(name) for name in names]]}


def _agrees(found: BiasMap, expected, tolerance=1e-10):
    bias, error, effective = expected
    few = effective < 2
    assert few.mean() < 0.2
    np.testing.assert_array_equal(found.masked, few)
    np.testing.assert_allclose(found.bias, np.where(few, np.nan, bias), rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        found.standard_error, np.where(few, np.nan, error), rtol=0, atol=tolerance
    )
    np.testing.assert_allclose(found.effective_rows, effective, rtol=10 * tolerance)


# ---------------------------------------------------------------- the formula


@pytest.mark.parametrize("method", ["spectral", "direct"])
def test_local_bias__is_positive_where_predictions_are_too_low(method):
    source = from_arrays(
        probabilities=np.full(40, 0.7), labels=np.ones(40, int), binary=True,
        covariates=np.arange(40.0)[:, None],
    )  # fmt: skip
    found = mapped(source, ["x0"], at=([0.7, 0.6], [[10.0], [20.5]]), method=method)
    np.testing.assert_allclose(found.bias, 0.3, atol=1e-12)
    # y − f does not vary, but calibrated labels would
    rows = found.effective_rows
    np.testing.assert_allclose(found.standard_error, np.sqrt(0.7 * 0.3 / rows), rtol=1e-9)
    assert (found.low < 0.3).all()
    np.testing.assert_allclose(found.high, 0.3, atol=1e-12)  # no more than every event


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize(
    ("names", "categorical", "bandwidths", "none"),
    [
        ((), (), (0.1,), False),
        (("age",), (), (0.1, 8.0), False),
        (("dose", "age"), (), (0.2, 0.5, 8.0), False),
        (("sex",), (), (0.1, 0.7), False),
        (("sex", "age"), (), (0.1, 0.7, 8.0), False),
        (("age", "site"), ("site",), (0.1, 8.0, 0), False),
        (("site", "sex", "dose"), ("site",), (0.2, 0, 0.7, 0.5), False),
        (("age",), (), (None, 8.0), True),
        (("site", "sex"), ("site",), (None, 0, 0.7), True),
    ],
)
def test_local_bias__is_the_dense_ratio_at_every_row(
    data, names, categorical, bandwidths, none, method
):
    scales = dict(zip(names, bandwidths[1:], strict=True))
    found = mapped(
        _source(data), names, categorical=categorical, method=method,
        prediction_bandwidth=None if none else bandwidths[0],
        covariate_bandwidth={name: b for name, b in scales.items() if b},
        prediction_kernel="none" if none else "gaussian",
    )  # fmt: skip
    here = _named(data, *names)
    _agrees(found, _dense(here, (data["p"], here["x"]), bandwidths))
    assert found.parameters["method"] == method
    np.testing.assert_array_equal(found.index, np.arange(N))
    np.testing.assert_array_equal(found.values, here["x"])


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("count", [3, 40])  # fewer values than levels, and more
def test_local_bias__values_between_the_levels_see_both(data, method, count):
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.uniform(-0.3, 1.3, count), rng.integers(1, 4, count)])
    at = rng.random(count), x
    found = mapped(
        _source(data), ("sex", "site"), at=at, categorical="site", method=method,
        prediction_bandwidth=0.1, covariate_bandwidth=0.6,
    )  # fmt: skip
    _agrees(found, _dense(_named(data, "sex", "site"), at, (0.1, 0.6, 0)))
    assert found.index is None


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__points_outside_the_data_do_not_see_its_other_end(data, method):
    ages = data["x"][:, 0]
    at = [0.5, 1.2, -0.1], [[ages.max() + 20.0], [50.0], [ages.min() - 12.0]]
    found = mapped(
        _source(data), ["age"], at=at, method=method, prediction_bandwidth=0.2,
        covariate_bandwidth=8.0,
    )  # fmt: skip
    _agrees(found, _dense(_named(data, "age"), at, (0.2, 8.0)), 1e-9)


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__is_masked_where_there_are_no_rows(data, method):
    at = [0.5, 0.5, 0.5, 0.5], [[50.0, 2], [5e3, 2], [-1e30, 2], [50.0, 7]]
    found = mapped(
        _source(data), ["age", "site"], at=at, categorical=["site"], method=method,
        covariate_bandwidth=2.0,
    )  # fmt: skip
    np.testing.assert_array_equal(found.masked, [False, True, True, True])
    assert np.isnan(found.bias[1:]).all()
    assert np.isnan(found.standard_error[1:]).all()
    np.testing.assert_array_equal(found.effective_rows[1:], 0)
    np.testing.assert_array_equal(found.most_biased(5), [0])


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__one_row_is_not_enough(method):
    x = np.array([0.0, 100.0, 100.0, 200.0])[:, None]
    source = from_arrays(
        probabilities=np.full(4, 0.4), labels=np.array([0, 1, 0, 1]), binary=True, covariates=x
    )
    found = mapped(source, ["x0"], covariate_bandwidth=1.0, method=method)
    np.testing.assert_array_equal(found.masked, [True, False, False, True])
    np.testing.assert_allclose(found.effective_rows, [1, 2, 2, 1], rtol=1e-6)
    np.testing.assert_allclose(found.bias[1:3], 0.1, atol=1e-9)


def test_local_bias__other_kernels_are_direct(data):
    found = mapped(
        _source(data), ("age", "dose"), covariate_kernel="laplace", prediction_bandwidth=0.2,
        covariate_bandwidth={"age": 8.0, "dose": 0.5},
    )  # fmt: skip
    here = _named(data, "age", "dose")
    assert found.parameters["method"] == "direct"
    _agrees(found, _dense(here, (data["p"], here["x"]), (0.2, 8.0, 0.5), "laplace"))
    with pytest.raises(OptionError, match="Gaussian"):
        mapped(_source(data), ("age",), covariate_kernel="laplace", method="spectral")


def test_local_bias__top_label_is_the_default_of_many_classes():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 4))
    y = rng.integers(-1, 4, 600)
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    keep = y >= 0
    top = {
        "p": q.max(1)[keep], "y": (q.argmax(1) == y)[keep], "x": np.empty((keep.sum(), 0)),
        "weights": np.ones(keep.sum()),
    }  # fmt: skip
    found = mapped(from_arrays(logits=logits, labels=y), (), prediction_bandwidth=0.1)
    _agrees(found, _dense(top, (top["p"], top["x"]), (0.1,)))
    assert found.parameters["notion"] == "top_label"
    assert (found.n, found.n_unlabelled) == (keep.sum(), 600 - keep.sum())
    np.testing.assert_array_equal(found.index, np.flatnonzero(keep))


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__leaves_out_bad_and_unlabelled_rows(data, method):
    x, y, w = data["x"].copy(), data["y"].copy(), data["weights"].copy()
    x[7, 0], y[9:12], w[20] = np.nan, -1, -1.0
    source = _source(data, covariates=x, labels=y, weights=w)
    settings = dict(prediction_bandwidth=0.1, covariate_bandwidth=8.0, method=method)
    with pytest.raises(InvalidDataError, match="row 7"):
        mapped(source, ["age"], **settings)
    found = mapped(source, ["age"], on_invalid="drop", **settings)
    keep = np.delete(np.arange(N), [7, 9, 10, 11, 20])
    np.testing.assert_array_equal(found.index, keep)
    kept = {name: values[keep] for name, values in _named(data, "age").items()}
    _agrees(found, _dense(kept, (kept["p"], kept["x"]), (0.1, 8.0)))
    assert (found.n, found.n_unlabelled) == (N - 5, 3)
    assert found.dropped == {"bad_weight": 1, "covariate_not_finite": 1}


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("at", ["rows", "grid"])
def test_local_bias__without_a_label_everything_is_masked(data, method, at):
    source = _source(data, labels=np.full(N, -1))
    found = mapped(source, ["age"], at=at, points=3, method=method)
    assert len(found) == (0 if at == "rows" else 9)
    assert found.masked.all()
    assert found.n == 0
    assert list(found.rows()) == [] or next(found.rows())[-1] is True


def test_local_bias__does_not_depend_on_the_scale_of_weights(data):
    settings = dict(prediction_bandwidth=0.1, method="spectral", at="grid", points=6)
    one = mapped(_source(data), ["age"], **settings)
    for scale in (2.0**-200, 2.0**200):
        other = mapped(_source(data, weights=scale * data["weights"]), ["age"], **settings)
        np.testing.assert_allclose(other.bias, one.bias, rtol=1e-9)
        np.testing.assert_allclose(other.standard_error, one.standard_error, rtol=1e-9)
        np.testing.assert_allclose(other.effective_rows, one.effective_rows, rtol=1e-9)


# ---------------------------------------------------------------- the grid


def test_local_bias__a_grid_has_percentiles_and_levels(data):
    found = mapped(
        _source(data), ("age", "sex", "site"), at="grid", points=4, categorical=("site",)
    )
    assert len(found) == 4 * 4 * 2 * 3
    np.testing.assert_allclose(np.unique(found.predictions), np.linspace(0, 1, 4))
    age, sex, site = found.values.T
    low, high = np.percentile(data["x"][:, 0], [1, 99])
    np.testing.assert_allclose(np.unique(age)[[0, -1]], [low, high], atol=5)
    np.testing.assert_array_equal(np.unique(sex), [0, 1])
    np.testing.assert_array_equal(np.unique(site), [1, 2, 3])
    assert len(np.unique(np.column_stack([found.predictions, found.values]), axis=0)) == 96
    blind = mapped(_source(data), ["sex"], at="grid", prediction_kernel="none")
    assert len(blind) == 2
    assert np.isnan(blind.predictions).all()


def test_local_bias__refuses_what_would_not_end(data):
    with pytest.raises(OptionError, match=r"fewer per axis"):
        mapped(_source(data), ("age", "dose"), at="grid", points=1000)
    rows = 200_000
    wide = from_arrays(
        probabilities=np.full(rows, 0.5), labels=np.zeros(rows, int), binary=True,
        covariates=np.zeros((rows, 1)),
    )  # fmt: skip
    with pytest.raises(OptionError, match="method='spectral'"):
        mapped(wide, ["x0"], method="direct")
    with pytest.raises(OptionError, match="no series"):
        mapped(wide, ["x0"], prediction_kernel="laplace")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at": "columns"}, "at must be"),
        ({"at": 3}, "at must be"),
        ({"at": ([0.5], [[1.0, 2.0]])}, r"\(m, 1\)"),
        ({"at": ([0.5, 0.6], [[1.0]])}, "as many predictions"),
        ({"at": (None, [[1.0]])}, "prediction_kernel is 'none'"),
        ({"at": ([np.nan], [[1.0]])}, "not finite"),
        ({"points": 1}, "points"),
        ({"method": "tiles"}, "method must be"),
        ({"notion": "canonical"}, "notion"),
        ({"categorical": ("site",)}, "not among"),
        ({"categorical": ("age",)}, "more than 64"),
        ({"covariate_kernel": "none"}, "covariate_kernel"),
        ({"covariate_bandwidth": -1.0}, "bandwidth"),
        ({"tolerance": 1.0, "method": "spectral"}, "tolerance"),
    ],
)
def test_local_bias__says_what_is_wrong_with_a_setting(data, settings, message):
    with pytest.raises(OptionError, match=message):
        mapped(_source(data), ("age",), **settings)


def test_local_bias__too_long_a_series_says_what_else(data):
    narrow = dict(prediction_bandwidth=1e-3, covariate_bandwidth=1e-3)
    with pytest.raises(OptionError, match="'direct'"):
        mapped(_source(data), ("age", "dose"), method="spectral", **narrow)


# ---------------------------------------------------------------- what it is for


def _missing(seed, rows):
    """Rows of a model blind to x2, with P(y = 1)."""
    draw = GENERATORS["missing"].draw(seed, 0, rows)
    truth = expit(draw.log_p[:, 1] - draw.log_p[:, 0])
    q = expit(draw.logits[:, 1] - draw.logits[:, 0])
    source = from_arrays(
        logits=draw.logits, labels=draw.labels, covariates=draw.covariates,
        covariate_names=["x1", "x2"],
    )  # fmt: skip
    return source, q, truth, draw.covariates


def test_local_bias__finds_the_bias_of_a_model_blind_to_a_covariate():
    source, *_ = _missing(0, 100_000)
    f, x = (v.ravel() for v in np.meshgrid([0.3, 0.5, 0.7], [-1.0, 0.0, 1.0]))
    found = mapped(
        source, ["x2"], at=(f, x[:, None]), prediction_bandwidth=0.05, covariate_bandwidth=0.1
    )
    assert found.parameters["method"] == "direct"
    known = expit(np.log(f / (1 - f)) + x) - f
    assert (np.abs(found.bias - known) < 4 * found.standard_error + 0.005).all()
    assert (found.standard_error < 0.02).all()


def test_local_bias__standard_errors_cover_as_they_say():
    at = np.array([0.25, 0.25, 0.5, 0.75, 0.75]), np.array([-1.0, 1.0, 0.0, -1.0, 1.0])
    inside = checks = 0
    for seed in range(80):
        source, q, truth, x = _missing(seed, 3000)
        found = mapped(
            source, ["x2"], at=(at[0], at[1][:, None]), prediction_bandwidth=0.1,
            covariate_bandwidth=0.3,
        )  # fmt: skip
        K = np.exp(-0.5 * ((q[:, None] - at[0]) / 0.1) ** 2)
        K *= np.exp(-0.5 * ((x[:, 1:] - at[1]) / 0.3) ** 2)
        expected = (truth - q) @ K / K.sum(0)  # what the labels' noise is around
        inside += int((np.abs(found.bias - expected) < 1.96 * found.standard_error).sum())
        checks += len(expected)
    low, high = binom.interval(0.999, checks, 0.95)
    assert low <= inside <= high


def _calibrated(seed, rows, draw):
    rng = np.random.default_rng(seed)
    p, x = draw(rng, rows), rng.normal(size=(rows, 1))
    labels = (rng.random(rows) < p).astype(int)
    return from_arrays(probabilities=p, labels=labels, binary=True, covariates=x), p, x


def test_local_bias__of_two_rows_is_not_shown():
    """Rare events: two rows near a point far from the others, and neither of the event."""
    source, *_ = _calibrated(1, 500, lambda rng, n: rng.beta(0.5, 12, n))
    found = local_bias(source, ["x0"], at="grid")
    assert (found.effective_rows[~found.masked] >= 10).all()
    assert (found.masked & (found.effective_rows > 2)).any()
    assert np.abs(found.z[found.most_biased(1)]) < 4
    shown = local_bias(source, ["x0"], at="grid", min_rows=2)
    few = ~shown.masked & (shown.effective_rows < 10)
    assert ((shown.low <= 0) & (shown.high >= 0))[few].mean() > 0.9
    with pytest.raises(OptionError, match="min_rows"):
        local_bias(source, ["x0"], min_rows=1)


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__limits_and_z_are_those_of_weighted_rows(data, method):
    at = np.array([0.2, 0.7]), np.array([[45.0], [60.0]])
    found = local_bias(
        _source(data), ["age"], at=at, method=method, prediction_bandwidth=0.1,
        covariate_bandwidth=8.0,
    )  # fmt: skip
    p, y = data["p"], data["y"]
    for i in range(2):
        v = data["weights"] * np.exp(-0.5 * ((p - at[0][i]) / 0.1) ** 2)
        v *= np.exp(-0.5 * ((data["x"][:, 0] - at[1][i, 0]) / 8.0) ** 2)
        terms = np.stack([v * p, v * (1 - p), (v * p) ** 2, v**2 * p * (1 - p), (v * (1 - p)) ** 2])
        low, high = excess_limits(terms @ (1 - y), terms @ y, 0.025)
        assert found.low[i] == pytest.approx(low / v.sum(), abs=1e-9)
        assert found.high[i] == pytest.approx(high / v.sum(), abs=1e-9)
        third = v**2 @ (p * (1 - p) * (1 - 2 * p)) * (v @ v / v.sum())
        z = excess_deviate(np.array([v @ (y - p)]), np.array([terms[3].sum()]), np.array([third]))
        assert found.z[i] == pytest.approx(z[0], rel=1e-6)


LAWS = {
    "rare": lambda rng, n: rng.beta(0.5, 60, n),
    "sure": lambda rng, n: 1 - rng.beta(0.5, 60, n),
    "uniform": lambda rng, n: rng.random(n),
}


def _beyond(draw, rows, runs):
    """Shares of shown points with |z| > 1.96, and of intervals without 0."""
    beyond = missed = points = 0
    for seed in range(runs):
        source, p, x = _calibrated(seed, rows, draw)
        found = local_bias(source, ["x0"], at=(p[:60], x[:60]), scheduler="serial")
        shown = ~found.masked
        points += shown.sum()
        beyond += (np.abs(found.z[shown]) > 1.96).sum()
        missed += ((found.low > 0) | (found.high < 0)).sum()
    return beyond / points, missed / points


@pytest.mark.parametrize("law", LAWS)
def test_local_bias__calibrated_points_are_rarely_far_from_0(law):
    # points of a data set are alike: 60 sets are worth a few hundred points
    beyond, missed = _beyond(LAWS[law], 500, 60)
    assert beyond < 0.12
    assert missed < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("rows", [500, 2000])
@pytest.mark.parametrize("law", LAWS)
def test_local_bias__z_is_beyond_two_in_a_twentieth_of_calibrated_points(law, rows):
    beyond, missed = _beyond(LAWS[law], rows, 400)
    assert 0.02 < beyond < 0.08
    assert missed < 0.07


# ---------------------------------------------------------------- everywhere the same bits


@pytest.fixture(scope="module")
def store(data, tmp_path_factory) -> Path:
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("bias") / "day.zarr"
    made = LogitStore.create(path, classes=2, dtype=np.float64, covariate_names=NAMES)
    p = data["p"]
    logits = np.column_stack([np.zeros(N), np.log(p / (1 - p))])
    with made.writer() as writer:
        writer.append(logits, np.where(rng.random(N) < 0.1, -1, data["y"]), covariates=data["x"])
    return path


def _bits(found: BiasMap) -> list[Any]:
    columns = (found.bias, found.standard_error, found.effective_rows, found.predictions)
    return [column.tobytes() for column in (*columns, found.values, found.masked)]


@pytest.fixture
def blocks(data, tmp_path, monkeypatch):
    """Arrays on disk, in eight blocks; some labels are not known yet."""
    monkeypatch.setattr("calibscale.source._BLOCK_NUMBERS", 512)
    labels = np.where(np.arange(N) % 10 == 3, -1, data["y"])
    arrays = {"p": data["p"][:, None], "y": labels, "x": data["x"], "w": data["weights"]}
    for name, array in arrays.items():
        on_disk = zarr.create_array(
            tmp_path / name, shape=array.shape, dtype=array.dtype, chunks=(200, *array.shape[1:])
        )
        on_disk[:] = array
        arrays[name] = on_disk
    p, y, x, w = arrays.values()
    source = _source(data, probabilities=p, labels=y, covariates=x, weights=w)
    assert -(-source.rows // source.block_rows) == 8
    assert not source.in_memory
    return source


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("at", ["rows", "grid"])
def test_local_bias__every_scheduler_gives_the_same_bits(blocks, method, at):
    settings: Any = dict(at=at, points=7, method=method, categorical=["site"])
    one = mapped(blocks, ["age", "site"], scheduler="serial", **settings)
    other = mapped(blocks, ["age", "site"], scheduler="threads:2", **settings)
    assert _bits(one) == _bits(other)
    if at == "rows":
        np.testing.assert_array_equal(one.index, np.flatnonzero(np.arange(N) % 10 != 3))


def test_local_bias__worker_processes_give_the_same_bits(blocks):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for method in ("direct", "spectral"):
            settings: Any = dict(at="rows", method=method)
            one = mapped(blocks, ["age", "sex"], scheduler="serial", **settings)
            other = mapped(blocks, ["age", "sex"], scheduler=client, **settings)
            assert _bits(one) == _bits(other)


def test_statistics__merge_to_what_one_chunk_gives(data):
    series = FourierSeries((Factor("gaussian", (0.1, 5.0), (0.0, 0.0), (1.0, 100.0)),), 1e-9)
    kernel = ProductKernel("gaussian", 0.1, "gaussian", (0,), (5.0,), (0.0,))
    source = _source(data)
    points = Points(data["p"][:50], data["x"][:50, :1])
    statistics = (
        *(
            StrengthModes(Modes("positive", series, True, (0,)), Strengths("positive"), squared)
            for squared in (False, True)
        ),
        PointSums(Strengths("positive"), kernel, (0,), points),
    )
    chunk, _ = next(chunks(source.read(0, 600, True), Rules("probabilities", 2, 1)))
    for statistic in statistics:
        whole = statistic.accumulate(statistic.zero(2), chunk)
        part = np.arange(len(chunk)) < 300
        halves = [
            statistic.accumulate(statistic.zero(2), chunk.take(rows)) for rows in (part, ~part)
        ]
        merged = statistic.merge(statistic.merge(statistic.zero(2), halves[0]), halves[1])
        for a, b in zip(merged, whole, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- what people see


def test_bias_map__json_and_rows_say_the_same(data):
    found = mapped(
        _source(data), ["age"], at=([0.5, 0.5], [[50.0], [1e4]]), covariate_bandwidth=2.0
    )
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["schema"] == "calibscale.bias/1"
    assert told["points"]["bias"][1] is None
    assert told["n_masked"] == 1
    assert told["points"]["covariates"] == {"age": [50.0, 1e4]}
    first, second = found.rows()
    row = dict(zip(found.header, first, strict=True))
    assert row["bias"] == told["points"]["bias"][0]
    assert row["masked"] is False
    assert second[-7:] == (None, None, None, None, None, 0.0, True)


def _run(*arguments: Any):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def test_bias__writes_a_map_that_python_would(store, tmp_path):
    sheet, full = tmp_path / "map.csv", tmp_path / "map.json"
    ran = _run(
        store, "--covariates", "age,site", "--categorical", "site", "--at", "grid",
        "--points", 4, "--covariate-bandwidth", "age=8", "--prediction-bandwidth", 0.2,
        "--method", "spectral", "-o", sheet, "--json", full, "--quiet",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert ran.output == ""
    made = mapped(
        store, ["age", "site"], at="grid", points=4, categorical=["site"], method="spectral",
        prediction_bandwidth=0.2, covariate_bandwidth={"age": 8.0},
    )  # fmt: skip
    assert json.loads(full.read_text())["points"] == made.to_dict()["points"]
    with sheet.open() as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == made.header
    assert [float(row["bias"]) for row in table] == made.bias.tolist()
    assert {row["masked"] for row in table} == {"0"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.csv", "map.json"]


def test_bias__the_table_has_the_most_biased_points(store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = _run(store, "--covariates", "age,sex", "--top", 3)
    assert ran.exit_code == 0, ran.output
    assert "…" not in ran.output.replace(" … ", "")
    made = mapped(store, ["age", "sex"])
    first = str(made.index[made.most_biased(1)[0]])
    lines = [line.split() for line in ran.output.splitlines()]
    (head,) = [i for i, words in enumerate(lines) if words[:2] == ["row", "prediction"]]
    assert lines[head + 1][0] == first
    assert len([words for words in lines[head + 1 :] if words and words[0].isdigit()]) == 3


def test_bias__standard_output_is_for_one(store):
    ran = _run(store, "--covariates", "age", "--at", "grid", "--points", 3, "-o", "-", "-q")
    assert ran.output.splitlines()[0] == (
        "prediction,age,bias,standard_error,low,high,z,effective_rows,masked"
    )
    assert len(ran.output.splitlines()) == 10
    assert _run(store, "-o", "-", "--json", "-").exit_code == 2
