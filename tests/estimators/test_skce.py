"""KLCE and KCE: dense sums, published values, three methods for the same number."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import calibscale as cs
from calibscale.estimators.skce import KCE, KLCE, SKCE
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from tests.support import naive
from tests.support.local_calibration import (
    RADIAL,
    ROWS,
    WIDE,
    assert_close,
    covariate_source,
    dense_klce,
    estimates_of,
    gram_of,
    wrong_in_a_corner,
)


@pytest.fixture
def data(rng):
    return wrong_in_a_corner(rng)


GOLDEN = ("heart_lr", "compas_rf", "homeownership_lr", "adult_lr")


@pytest.mark.parametrize("method", ["tiles", "spectral"])
@pytest.mark.parametrize("name", GOLDEN)
def test_golden__klce_and_kite_are_reproduced(name, method, data_folder):
    golden = json.loads((data_folder.parent / "golden" / "klce.json").read_text())[name]
    with np.load(data_folder / f"{name}.npz") as arrays:
        p, y, x = arrays["p"], arrays["y"], arrays["x"]
    source = cs.from_arrays(probabilities=p, labels=y, covariates=x, binary=True)
    requested = KLCE(
        tuple(f"x{i}" for i in range(x.shape[1])),
        prediction_bandwidth=golden["prob_width"] / np.sqrt(2),
        covariate_bandwidth=1 / np.sqrt(2 * golden["gamma"]),
        method=method,
        tolerance=1e-12,
    )
    ours, kite = estimates_of(source, requested, replace(requested, normalization="kernel_sum"))
    # double sums of up to 1.5e8 terms that cancel to a few parts in a million
    assert ours.value == pytest.approx(golden["eq4"], rel=1e-10)
    assert kite.value == pytest.approx(golden["kite_value"], rel=1e-10)
    if "kernel_sum" in golden:
        n = golden["n"]
        ratio = ours.value / kite.value * n * n  # ratio of the divisors: ΣK / n²
        assert ratio == pytest.approx(golden["kernel_sum"], rel=1e-9)


@pytest.mark.parametrize("covariate", RADIAL)
@pytest.mark.parametrize("prediction", [*RADIAL, "linear+gaussian", "none"])
def test_tiles__every_product_of_kernels_is_the_dense_one(data, prediction, covariate):
    p, y, x = data
    requested = KLCE(
        ("income", "age"),
        prediction_kernel=prediction,
        covariate_kernel=covariate,
        method="tiles",
        **WIDE,
    )
    result = estimates_of(covariate_source(p, y, x), requested)
    K = gram_of(p[:, None], x[:, [1, 0]], prediction, covariate, 0.15, [30.0, 1.5])
    assert_close(result, dense_klce(K, (p - y)[:, None]))
    assert result.parameters["covariate_bandwidth"] == {"income": 30.0, "age": 1.5}


@pytest.mark.long
@pytest.mark.parametrize("notion", ["canonical", "top_label"])
@pytest.mark.parametrize("prediction", [*RADIAL, "linear+gaussian"])
def test_tiles__of_several_classes_are_the_dense_ones(rng, prediction, notion):
    q = rng.dirichlet([0.5] * 4, 1300)
    y = rng.integers(0, 4, 1300)
    x = np.column_stack([rng.normal(size=1300), rng.random(1300), rng.integers(0, 3, 1300)])
    requested = KLCE(
        ("age", "region"), 0.4, {"age": 0.8}, ("region",), prediction, "matern32", notion, "tiles"
    )
    result = estimates_of(covariate_source(q, y, x), requested)
    points, d = naive.notion_problems(notion, q, y)[0]
    K = gram_of(points, x[:, :1], prediction, "matern32", 0.4, [0.8])
    assert_close(result, dense_klce(K * (x[:, 2:] == x[:, 2]), d))
    assert result.notion == notion


def test_notion__defaults_to_positive_for_two_classes(rng, data):
    assert estimates_of(covariate_source(*data), KLCE(("age",))).notion == "positive"
    q = rng.dirichlet([1, 1, 1], 50)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, 3, 50))
    assert estimates_of(source, KLCE()).notion == "canonical"
    with pytest.raises(cs.OptionError, match="for two classes"):
        estimates_of(source, KLCE(notion="positive"))


def test_kce__is_klce_without_covariates(data):
    p, y, x = data
    source = covariate_source(p, y, x)
    for method in ("tiles", "spectral"):
        local, global_ = estimates_of(
            source,
            KLCE(method=method, prediction_bandwidth=0.2),
            KCE(method=method, prediction_bandwidth=0.2),
        )
        assert local.value == global_.value
        expected = dense_klce(
            gram_of(p[:, None], None, "gaussian", None, 0.2, None), (p - y)[:, None]
        )
        assert_close(global_, expected, 1e-12)
    with pytest.raises(cs.OptionError, match="kce has no covariates"):
        KCE(("age",))


def test_skce__is_each_of_its_forms(data):
    p, y, x = data
    source = covariate_source(p, y, x)
    forms = [
        (cs.KLCE(("age",), 0.2, 1.0), SKCE(("age",), 0.2, 1.0)),
        (cs.KCE(prediction_bandwidth=0.2), SKCE(prediction_bandwidth=0.2)),
        (
            cs.JKCE(cs.RandomFourier(bandwidth=0.2), "gaussian", "tiles"),
            SKCE(prediction_bandwidth=0.2, notion="canonical", method="tiles"),
        ),
    ]
    for form, general in forms:
        named, unnamed = estimates_of(source, form, general)
        assert (named.estimator, unnamed.estimator) == (form.name, "skce")
        assert named.value == pytest.approx(unnamed.value, rel=1e-12)


@pytest.mark.parametrize("method", ["tiles", "spectral", "features"])
def test_rows__without_a_label_or_a_weight_are_ignored(rng, data, method):
    p, y, x = data
    w = rng.uniform(0.1, 2, ROWS)
    keep = rng.random(ROWS) < 0.8
    w[rng.random(ROWS) < 0.1] = 0
    hidden = np.where(keep, y, -1)
    requested = KLCE(("age", "region"), 0.2, 1.0, ("region",), method=method)
    keep &= w > 0
    # bandwidths are fixed, but the box of the series may differ: 1e-11 of the terms
    a = estimates_of(covariate_source(p, hidden, x, weights=w), requested)
    b = estimates_of(covariate_source(p[keep], y[keep], x[keep], weights=w[keep]), requested)
    assert a.n == b.n == keep.sum()
    assert a.value == pytest.approx(b.value, abs=1e-11)


def test_group_by__equals_the_dense_sum_of_the_group(data):
    p, y, x = data
    requested = [
        KLCE(("age", "region"), 0.2, 1.0, ("region",), method=method)
        for method in ("tiles", "spectral")
    ]
    result = cs.evaluate(covariate_source(p, y, x), requested, group_by="region")
    for key, actual in result.groups.items():
        rows = x[:, 2] == key
        K = gram_of(p[rows, None], x[rows, :1], "gaussian", "gaussian", 0.2, [1.0])
        for estimate in actual:
            assert_close(estimate, dense_klce(K, (p - y)[rows, None]), 1e-11)


@pytest.mark.long  # compiles the kernels of float32
def test_float32__states_its_rounding(data):
    p, y, x = data
    for normalization in ("pairs", "kernel_sum"):
        requested = KLCE(("age", "income"), normalization=normalization, method="tiles", **WIDE)
        double, single = estimates_of(
            covariate_source(p, y, x), requested, replace(requested, precision="float32")
        )
        assert double.value != single.value
        error = single.approximation.error
        # with few rows all pairs are computed in both precisions: the error is the difference
        assert abs(double.value - single.value) <= (1 + 1e-6) * error
        assert 0 < error < 1e-4 * abs(double.value)


@pytest.mark.long
def test_float32__states_the_rounding_of_the_divisor(rng):
    """The stated error includes the rounding of the divisor."""
    p = np.full(300, 0.5)
    y, x = np.arange(300) % 2, rng.normal(size=(300, 1))
    requested = KLCE(("x0",), 0.2, 0.7, normalization="kernel_sum", method="tiles")
    source = cs.from_arrays(probabilities=p, labels=y, covariates=x, binary=True)
    double, single = estimates_of(source, requested, replace(requested, precision="float32"))
    pairs = replace(requested, normalization="pairs", precision="float32")
    bare = estimates_of(source, pairs)
    relative = bare.approximation.error / abs(bare.value)
    assert abs(double.value - single.value) <= (1 + 1e-6) * single.approximation.error
    assert single.approximation.error > 1.01 * relative * abs(single.value)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("normalization", ["pairs", "kernel_sum"])
@pytest.mark.parametrize("method", ["tiles", "spectral"])
def test_normalizations__are_the_dense_ones(rng, data, method, normalization, weighted):
    p, y, x = data
    w = rng.uniform(0.1, 3, ROWS) if weighted else None
    result = estimates_of(
        covariate_source(p, y, x, weights=w),
        KLCE(("age", "income"), method=method, normalization=normalization, **WIDE),
    )
    K = gram_of(p[:, None], x[:, :2], "gaussian", "gaussian", 0.15, [1.5, 30.0])
    expected = dense_klce(K, (p - y)[:, None], w, normalization == "kernel_sum")
    assert_close(result, expected, 1e-13 if method == "tiles" else 1e-11)


COLUMNS = {  # covariates, categorical
    "none": ((), ()),
    "continuous": (("age", "income"), ()),
    "category": (("region",), ("region",)),
    "categories": (("region", "children"), ("children", "region")),
    "mixed": (("region", "age"), ("region",)),
    "few values": (("children",), ()),
    "few values of two": (("children", "age"), ()),
    "few values in a category": (("region", "children", "income"), ("region",)),
}


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["gaussian", "matern52"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_spectral__is_the_dense_sum(data, columns, kernel):
    p, y, x = data
    names, categorical = COLUMNS[columns]
    widths = {"age": 2.5, "income": 40.0, "region": 1.5, "children": 2.0}
    continuous = [name for name in names if name not in categorical]
    requested = KLCE(
        names,
        0.5,
        {name: widths[name] for name in continuous},
        categorical,
        kernel,
        kernel,
        tolerance=1e-12 if kernel == "gaussian" else 1e-5,
    )
    source = covariate_source(p, y, x)
    spectral, tiles = estimates_of(
        source, replace(requested, method="spectral"), replace(requested, method="tiles")
    )
    position = source.covariate_names.index
    here = [position(name) for name in continuous]
    K = gram_of(p[:, None], x[:, here], kernel, kernel, 0.5, [widths[n] for n in continuous])
    for name in categorical:
        K = K * (x[:, [position(name)]] == x[:, position(name)])
    expected = dense_klce(K, (p - y)[:, None])
    assert_close(tiles, expected)
    # stated error, and roundings of the NUFFT
    error = spectral.approximation.error
    assert abs(spectral.value - expected[0]) <= error + 1e-13 * expected[1]
    d = p - y
    assert error == pytest.approx(requested.tolerance * d @ d / (ROWS - 1), rel=1e-9)
    assert spectral.parameters["modes"] >= 1


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-7, 1e-12])
def test_spectral__error_is_below_what_it_states(data, tolerance):
    source = covariate_source(*data)
    requested = KLCE(("age", "income"), tolerance=tolerance, **WIDE)
    result, exact = estimates_of(
        source, replace(requested, method="spectral"), replace(requested, method="tiles")
    )
    assert abs(result.value - exact.value) <= result.approximation.error + 1e-14


FAMILIES = [
    ("gaussian", "gaussian"),
    ("laplace", "laplace"),
    ("matern32", "matern52"),
    ("none", "laplace"),
    ("matern52", "matern32"),
]


@pytest.mark.long
@pytest.mark.parametrize("families", FAMILIES, ids="-".join)
def test_features__are_unbiased_and_their_stated_error_covers(data, families):
    p, y, x = data
    K = gram_of(p[:, None], x[:, :2], *families, 0.15, [1.5, 30.0]) * (x[:, 2:3] == x[:, 2])
    expected, _ = dense_klce(K, (p - y)[:, None])
    _check_features(covariate_source(p, y, x), families, expected)


@pytest.mark.long
def test_features__of_several_classes_with_weights_are_within_stated_errors(rng):
    q = rng.dirichlet([0.5] * 4, ROWS)
    y, w = rng.integers(0, 4, ROWS), rng.uniform(0.1, 2, ROWS)
    x = np.column_stack([rng.normal(size=(ROWS, 2)) * [1, 20], rng.integers(0, 3, ROWS)])
    K = gram_of(q, x[:, :2], "laplace", "gaussian", 0.15, [1.5, 30.0]) * (x[:, 2:3] == x[:, 2])
    expected, _ = dense_klce(K, naive.residuals(q, y), w)
    _check_features(covariate_source(q, y, x, weights=w), ("laplace", "gaussian"), expected)


def _check_features(source, families, expected):
    """Of 100 seeds, the mean is within 4 standard errors, and 90 are within their stated errors."""
    requested = KLCE(
        ("age", "income", "region"),
        categorical=("region",),
        prediction_kernel=families[0],
        covariate_kernel=families[1],
        method="features",
        n_features=100,
        **WIDE,
    )
    result = estimates_of(source, *(replace(requested, seed=seed) for seed in range(100)))
    misses = np.array([estimate.value for estimate in result]) - expected
    stated = np.array([estimate.approximation.error for estimate in result])
    assert abs(misses.mean()) <= 4 * misses.std(ddof=1) / 10
    assert (np.abs(misses) <= stated).sum() >= 90
    assert np.median(stated) <= 3 * np.sqrt(np.mean(misses**2))
    assert result[0].approximation.kind == "random_features"


@pytest.mark.parametrize("method", ["tiles", "spectral", "features"])
def test_engines__give_the_same_bits(rng, method):
    source = covariate_source(*wrong_in_a_corner(rng, 5000))
    requested = KLCE(("age", "region"), 0.2, 1.0, ("region",), method=method)
    serial, threads = (
        estimates_of(source, requested, scheduler=scheduler, block_rows=700).to_dict()
        for scheduler in ("serial", "threads:2")
    )
    assert serial == threads


LAPLACE = dict(prediction_kernel="none", covariate_kernel="laplace")  # of the covariates alone


def _choice(n, estimator, classes=2, x=None):
    rng = np.random.default_rng(n)
    q = rng.dirichlet([1] * classes, n)
    x = rng.random((n, 2)) if x is None else x
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, classes, n), covariates=x)
    resolved = estimator.bind(DataProfile(source, Rules("probabilities", Classes(classes), 1)))
    return resolved.settings.method, resolved.notes[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "options", "classes", "method", "why"),
    [
        (3000, {}, 2, "tiles", "every pair of 3000 rows is quick"),
        (3001, {}, 2, "spectral", "a Fourier series of"),
        (3001, dict(prediction_kernel="laplace"), 2, "tiles", "no short Fourier series"),
        (3001, {}, 3, "tiles", "for scalar predictions"),
        (3001, dict(notion="top_label"), 3, "spectral", "a Fourier series of"),
        (50_001, {}, 3, "tiles", "for scalar predictions"),
        (70_001, {}, 3, "tiles", "for scalar predictions"),  # 991 landmarks take longer
        (130_001, {}, 3, "nystrom", "for scalar predictions"),
        (30_001, {}, 300, "tiles", "for scalar predictions"),  # 1,000 landmarks err
        (40_001, {}, 300, "nystrom", "for scalar predictions"),
        (70_001, dict(covariate_kernel="laplace"), 2, "tiles", "no short Fourier series"),
        (75_001, dict(covariate_kernel="laplace"), 2, "features", "no short Fourier series"),
        (60_001, LAPLACE, 2, "tiles", "no short Fourier series"),
        (80_001, LAPLACE, 2, "nystrom", "no short Fourier series"),
        (70_001, dict(prediction_kernel="linear+gaussian"), 2, "tiles", "linear"),
        (70_001, dict(normalization="kernel_sum"), 3, "tiles", "for scalar predictions"),
        (3001, dict(prediction_bandwidth=1e-9), 2, "tiles", "the Fourier series would need"),
        (3001, dict(method="tiles"), 2, "tiles", "as requested"),
        (100, dict(method="spectral"), 2, "spectral", "as requested"),
        (100, dict(method="features"), 2, "features", "as requested"),
    ],
)
def test_auto__selects_the_first_exact_and_fast_method(n, options, classes, method, why):
    result, note = _choice(n, KLCE(("x0", "x1"), **options), classes)
    assert result == method
    assert note.startswith(f"{method}: ")
    assert why in note


def test_auto__takes_few_landmarks_that_are_quick_and_precise():
    # Two probabilities that sum to 1 have a kernel on a line.
    assert _choice(70_001, KLCE((), notion="canonical"), 2)[0] == "nystrom"
    assert _choice(50_001, KLCE((), notion="canonical"), 2)[0] == "tiles"


@pytest.mark.parametrize(
    ("n", "options", "classes", "method"),
    [
        (3000, {}, 3, "tiles"),
        (4000, {}, 3, "features"),
        (4000, dict(method="tiles"), 3, "tiles"),
        (2001, {}, 300, "features"),
        (1500, {}, 300, "tiles"),  # fewer rows than features of a row
        (4000, {}, 2, "spectral"),
        (4000, dict(normalization="kernel_sum"), 3, "tiles"),
        (4000, dict(prediction_kernel="linear+gaussian"), 3, "tiles"),
    ],
)
def test_auto__tests_by_features_where_replicates_of_all_pairs_take_long(
    n, options, classes, method
):
    rng = np.random.default_rng(n)
    q = rng.dirichlet([1] * classes, n)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, classes, n))
    profile = DataProfile(source, Rules("probabilities", Classes(classes), 1))
    settings = KLCE((), **options)
    for_test = settings.bind(profile).for_test(profile)
    assert for_test.settings.method == method
    if method == "features":
        assert for_test.notes[-1] == "features: the replicates of the test are sums over features"
    # A bound of the p-value draws no replicates.
    assert settings.bind(profile).for_test(profile, draws=False).settings.method in (
        "tiles",
        "spectral",
    )


def test_features_of_a_test__have_about_the_p_value_of_all_pairs():
    rng = np.random.default_rng(8)
    q = rng.dirichlet([1.0, 2.0, 3.0, 4.0], 4000)
    drawn = (q.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    source = cs.from_arrays(probabilities=q**1.1 / (q**1.1).sum(axis=1)[:, None], labels=drawn)
    by_default, tiles = cs.calibration_test(source, ["kce", "kce(method=tiles)"])
    assert (by_default.parameters["method"], tiles.parameters["method"]) == ("features", "tiles")
    # The largest differences of 20 seeds were 4 % of the deviation of the null, and 0.02.
    deviation = tiles.null_distribution.deviation
    assert by_default.value == pytest.approx(tiles.value, abs=0.1 * deviation)
    assert by_default.p_value == pytest.approx(tiles.p_value, abs=0.05)


@pytest.mark.long
def test_tests__of_many_rows_have_no_replicates_of_all_pairs(rng):
    q = rng.dirichlet([1.0, 2.0, 3.0], 4000)
    labels = (q.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    source = cs.from_arrays(probabilities=q, labels=labels)
    several = cs.calibration_test(source, "kce", bandwidths=3, n_replicates=19)
    assert several["kce"].parameters["method"] == "features"
    bound = cs.calibration_test(source, "kce", null="hoeffding")
    assert bound["kce"].parameters["method"] == "tiles"
    assert bound["kce"].value == cs.evaluate(source, ["kce"])["kce"].value


def test_auto__notes_the_selected_method(data):
    result = estimates_of(covariate_source(*data), KLCE(("age", "children")))
    notes = result.details["notes"]
    assert notes[-1] == f"tiles: every pair of {ROWS} rows is quick"
    assert result.parameters["method"] == "tiles"
    assert "children has 6 values; categorical=('children',)" in notes[0]


def test_bandwidths__default_to_medians_of_standardised_distances(data):
    p, y, x = data
    result = estimates_of(covariate_source(p, y, x), KLCE(("age", "income")))

    def median(points):
        distances = cdist(points, points)
        return np.median(distances[distances > 0])

    spread = x[:, :2].std(axis=0)
    expected = spread * median(x[:, :2] / spread)
    bandwidths = result.parameters["covariate_bandwidth"]
    assert [bandwidths["age"], bandwidths["income"]] == pytest.approx(list(expected), rel=1e-12)
    assert result.parameters["prediction_bandwidth"] == pytest.approx(median(p[:, None]), rel=1e-12)


def test_bandwidths__may_be_given_for_some_columns(data):
    source = covariate_source(*data)
    default = estimates_of(source, KLCE(("age", "income"))).parameters["covariate_bandwidth"]
    result = estimates_of(source, KLCE(("age", "income"), covariate_bandwidth={"income": 5.0}))
    assert result.parameters["covariate_bandwidth"] == {"age": default["age"], "income": 5.0}


def test_bandwidths__do_not_depend_on_units(data):
    """Changing unit and origin of a column changes the default value only by rounding."""
    p, y, x = data
    a = estimates_of(covariate_source(p, y, x), KLCE(("age", "income")))
    b = estimates_of(
        covariate_source(p, y, x * [12.0, 0.001, 1, 1] + [500, -3, 0, 0]), KLCE(("age", "income"))
    )
    assert a.value == pytest.approx(b.value, rel=1e-9)
