"""Maps of local calibration bias against dense sums, on every scheduler."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from calibscale import from_arrays
from calibscale.errors import InvalidDataError, OptionError
from calibscale.kernels.fourier_series import Factor, FourierSeries, NoSeries
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.results.bias_results import BiasMap
from calibscale.statistics.fourier_modes import Modes
from calibscale.statistics.smoother import Points, PointSums, StrengthModes, Strengths
from tests.support.biased_rows import NAMES, N, biased_rows, biased_source
from tests.support.local_settings import mapped
from tests.support.zarr_arrays import zarr_arrays


def _dense(data, at, bandwidths, kernel="gaussian"):
    """Bias, standard error and effective rows at points (f', x'), by dense sums.

    `bandwidths` of the prediction and of each covariate: None means k = 1, 0 means equality.
    """
    w, d = data["weights"], data["p"] - data["y"]
    columns = [data["p"], *data["x"].T]
    K = np.ones((len(at[0]), len(w)))
    distance = np.zeros_like(K)
    for column, queries, b in zip(columns, [at[0], *np.transpose(at[1])], bandwidths, strict=True):
        gap = np.abs(np.asarray(queries)[:, None] - column[None, :])
        if b == 0:
            K *= gap == 0
        elif b is not None and (kernel == "gaussian" or column is data["p"]):
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
    return biased_rows()


def _named(data, *names):
    return {**data, "x": data["x"][:, [NAMES.index(name) for name in names]]}


def _agrees(bias_map: BiasMap, expected, tolerance=1e-10):
    bias, error, effective = expected
    few = effective < 2
    assert few.mean() < 0.2
    np.testing.assert_array_equal(bias_map.masked, few)
    np.testing.assert_allclose(bias_map.bias, np.where(few, np.nan, bias), rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        bias_map.standard_error, np.where(few, np.nan, error), rtol=0, atol=tolerance
    )
    # effective rows are (Σv)² / Σv², so that relative errors of several sums add up
    np.testing.assert_allclose(bias_map.effective_rows, effective, rtol=10 * tolerance)


# ---------------------------------------------------------------- the formula


@pytest.mark.parametrize("method", ["spectral", "direct"])
def test_local_bias__is_positive_where_predictions_are_too_low(method):
    source = from_arrays(
        probabilities=np.full(40, 0.7),
        labels=np.ones(40, int),
        binary=True,
        covariates=np.arange(40.0)[:, None],
    )
    bias_map = mapped(source, ["x0"], at=([0.7, 0.6], [[10.0], [20.5]]), method=method)
    np.testing.assert_allclose(bias_map.bias, 0.3, atol=1e-12)
    # y − f is constant, but calibrated labels would vary
    rows = bias_map.effective_rows
    np.testing.assert_allclose(bias_map.standard_error, np.sqrt(0.7 * 0.3 / rows), rtol=1e-9)
    assert (bias_map.low < 0.3).all()
    np.testing.assert_allclose(bias_map.high, 0.3, atol=1e-12)  # no more than every event


@pytest.mark.long
@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize(
    ("names", "categorical", "bandwidths", "without_predictions"),
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
def test_local_bias__equals_the_dense_ratio_at_every_row(
    data, names, categorical, bandwidths, without_predictions, method
):
    scales = dict(zip(names, bandwidths[1:], strict=True))
    bias_map = mapped(
        biased_source(data),
        names,
        categorical=categorical,
        method=method,
        prediction_bandwidth=None if without_predictions else bandwidths[0],
        covariate_bandwidth={name: b for name, b in scales.items() if b},
        prediction_kernel="none" if without_predictions else "gaussian",
    )
    here = _named(data, *names)
    _agrees(bias_map, _dense(here, (data["p"], here["x"]), bandwidths))
    assert bias_map.parameters["method"] == method
    np.testing.assert_array_equal(bias_map.index, np.arange(N))
    np.testing.assert_array_equal(bias_map.values, here["x"])


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("count", [3, 40])  # fewer values than levels, and more
def test_local_bias__values_between_levels_use_both(data, method, count):
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.uniform(-0.3, 1.3, count), rng.integers(1, 4, count)])
    at = rng.random(count), x
    bias_map = mapped(
        biased_source(data),
        ("sex", "site"),
        at=at,
        categorical="site",
        method=method,
        prediction_bandwidth=0.1,
        covariate_bandwidth=0.6,
    )
    _agrees(bias_map, _dense(_named(data, "sex", "site"), at, (0.1, 0.6, 0)))
    assert bias_map.index is None


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__points_outside_the_data_do_not_use_the_opposite_end(data, method):
    ages = data["x"][:, 0]
    at = [0.5, 1.2, -0.1], [[ages.max() + 20.0], [50.0], [ages.min() - 12.0]]
    bias_map = mapped(
        biased_source(data),
        ["age"],
        at=at,
        method=method,
        prediction_bandwidth=0.2,
        covariate_bandwidth=8.0,
    )
    _agrees(bias_map, _dense(_named(data, "age"), at, (0.2, 8.0)), 1e-9)


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__is_masked_where_there_are_no_rows(data, method):
    at = [0.5, 0.5, 0.5, 0.5], [[50.0, 2], [5e3, 2], [-1e30, 2], [50.0, 7]]
    bias_map = mapped(
        biased_source(data),
        ["age", "site"],
        at=at,
        categorical=["site"],
        method=method,
        covariate_bandwidth=2.0,
    )
    np.testing.assert_array_equal(bias_map.masked, [False, True, True, True])
    assert np.isnan(bias_map.bias[1:]).all()
    assert np.isnan(bias_map.standard_error[1:]).all()
    np.testing.assert_array_equal(bias_map.effective_rows[1:], 0)
    np.testing.assert_array_equal(bias_map.most_biased(5), [0])


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__masks_points_near_one_row_only(method):
    x = np.array([0.0, 100.0, 100.0, 200.0])[:, None]
    source = from_arrays(
        probabilities=np.full(4, 0.4), labels=np.array([0, 1, 0, 1]), binary=True, covariates=x
    )
    bias_map = mapped(source, ["x0"], covariate_bandwidth=1.0, method=method)
    np.testing.assert_array_equal(bias_map.masked, [True, False, False, True])
    # the spectral method has an error of its tolerance in the kernel of distant rows
    np.testing.assert_allclose(bias_map.effective_rows, [1, 2, 2, 1], rtol=1e-6)
    np.testing.assert_allclose(bias_map.bias[1:3], 0.1, atol=1e-9)


@pytest.mark.long
def test_local_bias__kernels_without_a_series_use_direct_sums(data):
    bias_map = mapped(
        biased_source(data),
        ("age", "dose"),
        covariate_kernel="laplace",
        prediction_bandwidth=0.2,
        covariate_bandwidth={"age": 8.0, "dose": 0.5},
    )
    here = _named(data, "age", "dose")
    assert bias_map.parameters["method"] == "direct"
    _agrees(bias_map, _dense(here, (data["p"], here["x"]), (0.2, 8.0, 0.5), "laplace"))
    with pytest.raises(OptionError, match="Gaussian"):
        mapped(biased_source(data), ("age",), covariate_kernel="laplace", method="spectral")


def test_local_bias__top_label_is_the_default_of_many_classes():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 4))
    y = rng.integers(-1, 4, 600)
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    keep = y >= 0
    top = {
        "p": q.max(1)[keep],
        "y": (q.argmax(1) == y)[keep],
        "x": np.empty((keep.sum(), 0)),
        "weights": np.ones(keep.sum()),
    }
    bias_map = mapped(from_arrays(logits=logits, labels=y), (), prediction_bandwidth=0.1)
    _agrees(bias_map, _dense(top, (top["p"], top["x"]), (0.1,)))
    assert bias_map.parameters["notion"] == "top_label"
    assert (bias_map.n, bias_map.n_unlabelled) == (keep.sum(), 600 - keep.sum())
    np.testing.assert_array_equal(bias_map.index, np.flatnonzero(keep))


@pytest.mark.long
@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__leaves_out_bad_and_unlabelled_rows(data, method):
    x, y, w = data["x"].copy(), data["y"].copy(), data["weights"].copy()
    x[7, 0], y[9:12], w[20] = np.nan, -1, -1.0
    source = biased_source(data, covariates=x, labels=y, weights=w)
    settings = dict(prediction_bandwidth=0.1, covariate_bandwidth=8.0, method=method)
    with pytest.raises(InvalidDataError, match="row 7"):
        mapped(source, ["age"], **settings)
    bias_map = mapped(source, ["age"], on_invalid="drop", **settings)
    keep = np.delete(np.arange(N), [7, 9, 10, 11, 20])
    np.testing.assert_array_equal(bias_map.index, keep)
    valid = {name: values[keep] for name, values in _named(data, "age").items()}
    _agrees(bias_map, _dense(valid, (valid["p"], valid["x"]), (0.1, 8.0)))
    assert (bias_map.n, bias_map.n_unlabelled) == (N - 5, 3)
    assert bias_map.dropped == {"age is missing": 1, "weights is out of range": 1}


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("at", ["rows", "grid"])
def test_local_bias__without_a_label_everything_is_masked(data, method, at):
    source = biased_source(data, labels=np.full(N, -1))
    bias_map = mapped(source, ["age"], at=at, points=3, method=method)
    assert len(bias_map) == (0 if at == "rows" else 9)
    assert bias_map.masked.all()
    assert bias_map.n == 0
    assert set(bias_map.columns()["masked"].tolist()) <= {True}


@pytest.mark.long
def test_local_bias__does_not_depend_on_the_scale_of_weights(data):
    settings = dict(prediction_bandwidth=0.1, method="spectral", at="grid", points=6)
    unscaled = mapped(biased_source(data), ["age"], **settings)
    for scale in (2.0**-200, 2.0**200):
        scaled = mapped(biased_source(data, weights=scale * data["weights"]), ["age"], **settings)
        np.testing.assert_allclose(scaled.bias, unscaled.bias, rtol=1e-9)
        np.testing.assert_allclose(scaled.standard_error, unscaled.standard_error, rtol=1e-9)
        np.testing.assert_allclose(scaled.effective_rows, unscaled.effective_rows, rtol=1e-9)


# ---------------------------------------------------------------- the grid


def test_local_bias__a_grid_has_percentiles_and_levels(data):
    bias_map = mapped(
        biased_source(data), ("age", "sex", "site"), at="grid", points=4, categorical=("site",)
    )
    assert len(bias_map) == 4 * 4 * 2 * 3
    np.testing.assert_allclose(np.unique(bias_map.predictions), np.linspace(0, 1, 4))
    age, sex, site = bias_map.values.T
    low, high = np.percentile(data["x"][:, 0], [1, 99])
    np.testing.assert_allclose(np.unique(age)[[0, -1]], [low, high], atol=5)
    np.testing.assert_array_equal(np.unique(sex), [0, 1])
    np.testing.assert_array_equal(np.unique(site), [1, 2, 3])
    assert len(np.unique(np.column_stack([bias_map.predictions, bias_map.values]), axis=0)) == 96
    blind = mapped(biased_source(data), ["sex"], at="grid", prediction_kernel="none")
    assert len(blind) == 2
    assert np.isnan(blind.predictions).all()


def test_local_bias__refuses_too_many_points_or_pairs(data):
    with pytest.raises(OptionError, match=r"fewer per axis"):
        mapped(biased_source(data), ("age", "dose"), at="grid", points=1000)
    rows = 200_000
    wide = from_arrays(
        probabilities=np.full(rows, 0.5),
        labels=np.zeros(rows, int),
        binary=True,
        covariates=np.zeros((rows, 1)),
    )
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
        ({"at": ([0.5, 0.6], [[1.0]])}, "points need"),
        ({"at": (None, [[1.0]])}, "prediction_kernel is 'none'"),
        ({"at": ([np.nan], [[1.0]])}, "must be finite"),
        ({"points": 1}, "points"),
        ({"method": "tiles"}, "method must be"),
        ({"notion": "canonical"}, "notion"),
        ({"categorical": ("site",)}, "not among"),
        ({"categorical": ("age",)}, "more than 64"),
        ({"covariate_kernel": "none"}, "covariate_kernel"),
        ({"covariate_bandwidth": -1.0}, "bandwidth"),
        ({"series_tolerance": 1.0, "method": "spectral"}, "series_tolerance"),
    ],
)
def test_local_bias__errors_name_the_invalid_setting(data, settings, message):
    with pytest.raises(OptionError, match=message):
        mapped(biased_source(data), ("age",), **settings)


def test_local_bias__error_of_a_long_series_names_the_direct_method(data):
    narrow = dict(prediction_bandwidth=1e-3, covariate_bandwidth=1e-3)
    with pytest.raises(OptionError, match="'direct'"):
        mapped(biased_source(data), ("age", "dose"), method="spectral", **narrow)


def test_local_bias__error_without_a_series_has_the_reason_as_it_is(data, monkeypatch):
    reason = "no tiles: a reason with words of the remedy"

    def fitting(*arguments: Any) -> None:
        raise NoSeries(reason, "use method='{pairs}'")

    monkeypatch.setattr("calibscale.statistics.smoother.Spectral.fitting", fitting)
    with pytest.raises(OptionError) as error:
        mapped(biased_source(data), ("age",), method="spectral")
    assert str(error.value) == f"{reason}: use method='direct'"
    monkeypatch.setattr("calibscale.statistics.smoother._FEW_PAIRS", 0)
    notes = mapped(biased_source(data), ("age",), at=([0.5], [[50.0]])).notes
    assert f"direct: {reason}: use method='direct'" in notes


def test_no_series__is_pickled_with_its_remedy():
    error = pickle.loads(pickle.dumps(NoSeries("too long", "use {pairs}")))
    assert (str(error), error.advice("direct")) == ("too long: use tiles", "too long: use direct")


# ---------------------------------------------------------------- everywhere the same bits


def _bits(bias_map: BiasMap) -> list[bytes]:
    names = ("bias", "standard_error", "effective_rows", "predictions", "values", "masked")
    return [getattr(bias_map, name).tobytes() for name in names]


@pytest.fixture
def blocks(data, tmp_path, monkeypatch):
    """Arrays on disk in eight blocks. Some labels are unknown."""
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 512)
    labels = np.where(np.arange(N) % 10 == 3, -1, data["y"])
    arrays = {"p": data["p"][:, None], "y": labels, "x": data["x"], "w": data["weights"]}
    p, y, x, w = zarr_arrays(tmp_path, arrays).values()
    source = biased_source(data, probabilities=p, labels=y, covariates=x, weights=w)
    assert -(-source.rows // source.block_rows) == 8
    assert not source.in_memory
    return source


@pytest.mark.long
@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("at", ["rows", "grid"])
def test_local_bias__every_scheduler_gives_the_same_bits(blocks, method, at):
    settings: Any = dict(at=at, points=7, method=method, categorical=["site"])
    serial = mapped(blocks, ["age", "site"], scheduler="serial", **settings)
    threaded = mapped(blocks, ["age", "site"], scheduler="threads:2", **settings)
    assert _bits(serial) == _bits(threaded)
    if at == "rows":
        np.testing.assert_array_equal(serial.index, np.flatnonzero(np.arange(N) % 10 != 3))


@pytest.mark.slow
@pytest.mark.cluster
def test_local_bias__worker_processes_give_the_same_bits(blocks):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for method in ("direct", "spectral"):
            settings: Any = dict(at="rows", method=method)
            serial = mapped(blocks, ["age", "sex"], scheduler="serial", **settings)
            distributed = mapped(blocks, ["age", "sex"], scheduler=client, **settings)
            assert _bits(serial) == _bits(distributed)


def test_statistics__merged_chunks_equal_one_chunk(data):
    series = FourierSeries((Factor("gaussian", (0.1, 5.0), (0.0, 0.0), (1.0, 100.0)),), 1e-9)
    kernel = ProductKernel("gaussian", 0.1, "gaussian", (0,), (5.0,), (0.0,))
    source = biased_source(data)
    points = Points(data["p"][:50], data["x"][:50, :1])
    statistics = (
        *(
            StrengthModes(Modes("positive", series, True, (0,)), Strengths("positive"), squared)
            for squared in (False, True)
        ),
        PointSums(Strengths("positive"), kernel, (0,), points),
    )
    chunk, _ = next(chunks(source.read(0, 600, True), Rules("probabilities", Classes(2), 1)))
    for statistic in statistics:
        expected = statistic.accumulate(statistic.zero(2), chunk)
        part = np.arange(len(chunk)) < 300
        halves = [
            statistic.accumulate(statistic.zero(2), chunk.take(rows)) for rows in (part, ~part)
        ]
        merged = statistic.merge(statistic.merge(statistic.zero(2), halves[0]), halves[1])
        for a, b in zip(merged, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
