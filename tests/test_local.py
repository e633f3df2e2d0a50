"""KLCE and KCE: dense sums, published values, three ways to the same number, bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import calibscale as cs
from calibscale.chunk import Rules
from calibscale.estimators.local import KCE, KLCE
from calibscale.evaluation import DataSetup
from tests import naive

RADIAL = {
    "gaussian": lambda r: np.exp(-(r**2) / 2),
    "laplace": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "matern52": lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
}
GOLDEN = ("heart_lr", "compas_rf", "homeownership_lr", "adult_lr")
ROWS = 700


# ---------------------------------------------------------------- dense references


def _kernel(points, x, prediction, covariate, width, widths):
    """k(f, f')·l(x, x') of every pair; x in `widths`."""
    if prediction == "none":
        K = np.ones((len(points), len(points)))
    elif prediction == "linear+gaussian":
        K = RADIAL["gaussian"](cdist(points, points) / width) + points @ points.T
    else:
        K = RADIAL[prediction](cdist(points, points) / width)
    if x is not None and x.shape[1]:
        K = K * RADIAL[covariate](cdist(x / widths, x / widths))
    return K


def _klce(K, d, w=None, kernel_sum=False):
    """The value, and the mean size of the terms, which is what roundings are relative to."""
    w = np.ones(len(K)) if w is None else w
    terms = np.outer(w, w) * K * (d @ d.T)
    np.fill_diagonal(terms, 0.0)
    count = w.sum() ** 2 - w @ w
    if kernel_sum:
        count *= (w @ K @ w) / w.sum() ** 2
    return terms.sum() / count, np.abs(terms).sum() / count


def _assert_close(estimate, expected, digits=1e-13):
    """Random roundings of n² terms: 1e-13 of their mean size is 450 eps."""
    value, scale = expected
    assert abs(estimate.value - value) <= digits * scale


def _data(rng, n=ROWS):
    """A binary classifier that is wrong in a corner of its covariates."""
    x = np.column_stack(
        [rng.normal(3.0, 2.0, n), rng.random(n) * 100, rng.integers(0, 3, n), rng.integers(0, 6, n)]
    )
    p = 1 / (1 + np.exp(-rng.normal(size=n) * 1.5))
    true = np.clip(p + 0.2 * (x[:, 0] > 4) * (x[:, 2] == 1), 0, 1)
    y = (rng.random(n) < true).astype(int)
    return p, y, x


def _source(p, y, x, **options):
    names = ["age", "income", "region", "children"][: x.shape[1]]
    return cs.from_arrays(
        probabilities=p, labels=y, covariates=x, covariate_names=names, binary=p.ndim == 1,
        **options,
    )  # fmt: skip


@pytest.fixture
def data(rng):
    return _data(rng)


def _ask(source, *estimators, **options):
    found = cs.evaluate(source, estimators, **options).estimates
    return found[0] if len(found) == 1 else found


WIDE = dict(prediction_bandwidth=0.15, covariate_bandwidth={"age": 1.5, "income": 30.0})


# ---------------------------------------------------------------- published values


@pytest.mark.parametrize("method", ["tiles", "spectral"])
@pytest.mark.parametrize("name", GOLDEN)
def test_golden__klce_and_kite(name, method, data_folder):
    golden = json.loads((data_folder.parent / "golden" / "klce.json").read_text())[name]
    with np.load(data_folder / f"{name}.npz") as arrays:
        p, y, x = arrays["p"], arrays["y"], arrays["x"]
    source = cs.from_arrays(probabilities=p, labels=y, covariates=x, binary=True)
    asked = KLCE(
        tuple(f"x{i}" for i in range(x.shape[1])),
        prediction_bandwidth=golden["prob_width"] / np.sqrt(2),
        covariate_bandwidth=1 / np.sqrt(2 * golden["gamma"]),
        method=method,
        tolerance=1e-12,
    )
    ours, kite = _ask(source, asked, replace(asked, normalization="kernel_sum"))
    # double sums of up to 1.5e8 terms that cancel to a few parts in a million
    assert ours.value == pytest.approx(golden["eq4"], rel=1e-10)
    assert kite.value == pytest.approx(golden["kite_value"], rel=1e-10)
    if "kernel_sum" in golden:
        n = golden["n"]
        ratio = ours.value / kite.value * n * n  # of the divisors: ΣK / n²
        assert ratio == pytest.approx(golden["kernel_sum"], rel=1e-9)


# ---------------------------------------------------------------- tiles


@pytest.mark.parametrize("covariate", RADIAL)
@pytest.mark.parametrize("prediction", [*RADIAL, "linear+gaussian", "none"])
def test_tiles__every_product_of_kernels_is_the_dense_one(data, prediction, covariate):
    p, y, x = data
    asked = KLCE(
        ("income", "age"), prediction_kernel=prediction, covariate_kernel=covariate,
        method="tiles", **WIDE,
    )  # fmt: skip
    found = _ask(_source(p, y, x), asked)
    K = _kernel(p[:, None], x[:, [1, 0]], prediction, covariate, 0.15, [30.0, 1.5])
    _assert_close(found, _klce(K, (p - y)[:, None]))
    assert found.parameters["covariate_bandwidth"] == {"income": 30.0, "age": 1.5}


@pytest.mark.parametrize("notion", ["canonical", "top_label"])
@pytest.mark.parametrize("prediction", [*RADIAL, "linear+gaussian"])
def test_tiles__of_several_classes_are_the_dense_ones(rng, prediction, notion):
    q = rng.dirichlet([0.5] * 4, 1300)
    y = rng.integers(0, 4, 1300)
    x = np.column_stack([rng.normal(size=1300), rng.random(1300), rng.integers(0, 3, 1300)])
    asked = KLCE(
        ("age", "region"), 0.4, {"age": 0.8}, ("region",), prediction, "matern32", notion, "tiles"
    )
    found = _ask(_source(q, y, x), asked)
    points, d = naive.notion_problems(notion, q, y)[0]
    K = _kernel(points, x[:, :1], prediction, "matern32", 0.4, [0.8])
    _assert_close(found, _klce(K * (x[:, 2:] == x[:, 2]), d))
    assert found.notion == notion


def test_notion__defaults_to_positive_of_two_and_canonical_of_more(rng, data):
    assert _ask(_source(*data), KLCE(("age",))).notion == "positive"
    q = rng.dirichlet([1, 1, 1], 50)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, 3, 50))
    assert _ask(source, KLCE()).notion == "canonical"
    with pytest.raises(cs.OptionError, match="for two classes"):
        _ask(source, KLCE(notion="positive"))


def test_kce__is_klce_without_covariates(data):
    p, y, x = data
    source = _source(p, y, x)
    for method in ("tiles", "spectral"):
        local, global_ = _ask(
            source, KLCE(method=method, prediction_bandwidth=0.2),
            KCE(method=method, prediction_bandwidth=0.2),
        )  # fmt: skip
        assert local.value == global_.value
        expected = _klce(_kernel(p[:, None], None, "gaussian", None, 0.2, None), (p - y)[:, None])
        _assert_close(global_, expected, 1e-12)
    with pytest.raises(cs.OptionError, match="kce has no covariates"):
        KCE(("age",))


@pytest.mark.parametrize("method", ["tiles", "spectral", "features"])
def test_rows__without_a_label_or_a_weight_count_nothing(rng, data, method):
    p, y, x = data
    w = rng.uniform(0.1, 2, ROWS)
    keep = rng.random(ROWS) < 0.8
    w[rng.random(ROWS) < 0.1] = 0
    hidden = np.where(keep, y, -1)
    asked = KLCE(("age", "region"), 0.2, 1.0, ("region",), method=method)
    keep &= w > 0
    # bandwidths are given; the box of the series may be another: 1e-11 of the terms
    a = _ask(_source(p, hidden, x, weights=w), asked)
    b = _ask(_source(p[keep], y[keep], x[keep], weights=w[keep]), asked)
    assert a.n == b.n == keep.sum()
    assert a.value == pytest.approx(b.value, abs=1e-11)


def test_group_by__is_that_of_the_groups_rows(data):
    p, y, x = data
    asked = [
        KLCE(("age", "region"), 0.2, 1.0, ("region",), method=method)
        for method in ("tiles", "spectral")
    ]
    result = cs.evaluate(_source(p, y, x), asked, group_by="region")
    for key, found in result.groups.items():
        rows = x[:, 2] == key
        K = _kernel(p[rows, None], x[rows, :1], "gaussian", "gaussian", 0.2, [1.0])
        for estimate in found:
            _assert_close(estimate, _klce(K, (p - y)[rows, None]), 1e-11)


def test_float32__states_its_rounding(data):
    p, y, x = data
    for normalization in ("pairs", "kernel_sum"):
        asked = KLCE(("age", "income"), normalization=normalization, method="tiles", **WIDE)
        double, single = _ask(_source(p, y, x), asked, replace(asked, precision="float32"))
        assert double.value != single.value
        error = single.approximation.error
        # of few rows every pair is known in both precisions: the error is the difference
        assert abs(double.value - single.value) <= (1 + 1e-6) * error
        assert 0 < error < 1e-4 * abs(double.value)


def test_float32__states_the_rounding_of_the_divisor(rng):
    """Beside that of the sum that is divided."""
    p = np.full(300, 0.5)
    y, x = np.arange(300) % 2, rng.normal(size=(300, 1))
    asked = KLCE(("x0",), 0.2, 0.7, normalization="kernel_sum", method="tiles")
    source = cs.from_arrays(probabilities=p, labels=y, covariates=x, binary=True)
    double, single = _ask(source, asked, replace(asked, precision="float32"))
    pairs = replace(asked, normalization="pairs", precision="float32")
    bare = _ask(source, pairs)
    relative = bare.approximation.error / abs(bare.value)
    assert abs(double.value - single.value) <= (1 + 1e-6) * single.approximation.error
    assert single.approximation.error > 1.01 * relative * abs(single.value)


# ---------------------------------------------------------------- three ways to one number


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("normalization", ["pairs", "kernel_sum"])
@pytest.mark.parametrize("method", ["tiles", "spectral"])
def test_normalizations__are_the_dense_ones(rng, data, method, normalization, weighted):
    p, y, x = data
    w = rng.uniform(0.1, 3, ROWS) if weighted else None
    found = _ask(
        _source(p, y, x, weights=w),
        KLCE(("age", "income"), method=method, normalization=normalization, **WIDE),
    )
    K = _kernel(p[:, None], x[:, :2], "gaussian", "gaussian", 0.15, [1.5, 30.0])
    expected = _klce(K, (p - y)[:, None], w, normalization == "kernel_sum")
    _assert_close(found, expected, 1e-13 if method == "tiles" else 1e-11)


COLUMNS = {  # covariates, categorical, their kernels
    "none": ((), ()),
    "continuous": (("age", "income"), ()),
    "category": (("region",), ("region",)),
    "categories": (("region", "children"), ("children", "region")),
    "mixed": (("region", "age"), ("region",)),
    "few values": (("children",), ()),
    "few values of two": (("children", "age"), ()),
    "few values in a category": (("region", "children", "income"), ("region",)),
}


@pytest.mark.parametrize("kernel", ["gaussian", "matern52"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_spectral__is_the_dense_sum(data, columns, kernel):
    p, y, x = data
    names, categorical = COLUMNS[columns]
    widths = {"age": 2.5, "income": 40.0, "region": 1.5, "children": 2.0}
    continuous = [name for name in names if name not in categorical]
    asked = KLCE(
        names, 0.5, {name: widths[name] for name in continuous}, categorical, kernel, kernel,
        tolerance=1e-12 if kernel == "gaussian" else 1e-5,
    )  # fmt: skip
    source = _source(p, y, x)
    spectral, tiles = _ask(
        source, replace(asked, method="spectral"), replace(asked, method="tiles")
    )
    position = source.covariate_names.index
    here = [position(name) for name in continuous]
    K = _kernel(p[:, None], x[:, here], kernel, kernel, 0.5, [widths[n] for n in continuous])
    for name in categorical:
        K = K * (x[:, [position(name)]] == x[:, position(name)])
    expected = _klce(K, (p - y)[:, None])
    _assert_close(tiles, expected)
    # what it states, and roundings of the NUFFT
    error = spectral.approximation.error
    assert abs(spectral.value - expected[0]) <= error + 1e-13 * expected[1]
    d = p - y
    assert error == pytest.approx(asked.tolerance * d @ d / (ROWS - 1), rel=1e-9)
    assert spectral.parameters["modes"] >= 1


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-7, 1e-12])
def test_spectral__error_is_below_what_it_states(data, tolerance):
    source = _source(*data)
    asked = KLCE(("age", "income"), tolerance=tolerance, **WIDE)
    found, exact = _ask(source, replace(asked, method="spectral"), replace(asked, method="tiles"))
    assert abs(found.value - exact.value) <= found.approximation.error + 1e-14


FAMILIES = [
    ("gaussian", "gaussian"),
    ("laplace", "laplace"),
    ("matern32", "matern52"),
    ("none", "laplace"),
    ("matern52", "matern32"),
]


@pytest.mark.parametrize("families", FAMILIES, ids="-".join)
def test_features__are_unbiased_and_their_stated_error_covers(data, families):
    p, y, x = data
    K = _kernel(p[:, None], x[:, :2], *families, 0.15, [1.5, 30.0]) * (x[:, 2:3] == x[:, 2])
    expected, _ = _klce(K, (p - y)[:, None])
    _check_features(_source(p, y, x), families, expected)


def test_features__of_several_classes_with_weights(rng):
    q = rng.dirichlet([0.5] * 4, ROWS)
    y, w = rng.integers(0, 4, ROWS), rng.uniform(0.1, 2, ROWS)
    x = np.column_stack([rng.normal(size=(ROWS, 2)) * [1, 20], rng.integers(0, 3, ROWS)])
    K = _kernel(q, x[:, :2], "laplace", "gaussian", 0.15, [1.5, 30.0]) * (x[:, 2:3] == x[:, 2])
    expected, _ = _klce(K, naive.residuals(q, y), w)
    _check_features(_source(q, y, x, weights=w), ("laplace", "gaussian"), expected)


def _check_features(source, families, expected):
    """100 seeds: the mean is within 4 standard errors; 90 are within what they state."""
    asked = KLCE(
        ("age", "income", "region"), categorical=("region",), prediction_kernel=families[0],
        covariate_kernel=families[1], method="features", n_features=100, **WIDE,
    )  # fmt: skip
    found = _ask(source, *(replace(asked, seed=seed) for seed in range(100)))
    misses = np.array([estimate.value for estimate in found]) - expected
    stated = np.array([estimate.approximation.error for estimate in found])
    assert abs(misses.mean()) <= 4 * misses.std(ddof=1) / 10
    assert (np.abs(misses) <= stated).sum() >= 90
    assert np.median(stated) <= 3 * np.sqrt(np.mean(misses**2))
    assert found[0].approximation.kind == "random_features"


@pytest.mark.parametrize("method", ["tiles", "spectral", "features"])
def test_engines__give_the_same_bits(rng, method):
    source = _source(*_data(rng, 5000))
    asked = KLCE(("age", "region"), 0.2, 1.0, ("region",), method=method)
    serial, threads = (
        _ask(source, asked, scheduler=scheduler, block_rows=700).to_dict()
        for scheduler in ("serial", "threads:2")
    )
    assert serial == threads


# ---------------------------------------------------------------- auto


def _choice(n, estimator, classes=2, x=None):
    rng = np.random.default_rng(n)
    q = rng.dirichlet([1] * classes, n)
    x = rng.random((n, 2)) if x is None else x
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, classes, n), covariates=x)
    resolved = estimator.resolve(DataSetup(source, Rules("probabilities", classes, 1)))
    return resolved.method, resolved.notes[-1]


@pytest.mark.parametrize(
    ("n", "options", "classes", "method", "why"),
    [
        (3000, {}, 2, "tiles", "every pair of 3000 rows is quick"),
        (3001, {}, 2, "spectral", "a Fourier series of"),
        (3001, dict(prediction_kernel="laplace"), 2, "tiles", "no short Fourier series"),
        (3001, {}, 3, "tiles", "for scalar predictions"),
        (3001, dict(notion="top_label"), 3, "spectral", "a Fourier series of"),
        (50_001, dict(covariate_kernel="laplace"), 2, "features", "no short Fourier series"),
        (50_001, {}, 3, "nystrom", "for scalar predictions"),
        (50_001, dict(prediction_kernel="linear+gaussian"), 2, "tiles", "linear"),
        (50_001, dict(normalization="kernel_sum"), 3, "tiles", "for scalar predictions"),
        (3001, dict(prediction_bandwidth=1e-9), 2, "tiles", "the Fourier series would need"),
        (3001, dict(method="tiles"), 2, "tiles", "as asked for"),
        (100, dict(method="spectral"), 2, "spectral", "as asked for"),
        (100, dict(method="features"), 2, "features", "as asked for"),
    ],
)
def test_auto__takes_the_first_that_is_exact_and_quick(n, options, classes, method, why):
    found, note = _choice(n, KLCE(("x0", "x1"), **options), classes)
    assert found == method
    assert note.startswith(f"{method}: ")
    assert why in note


def test_auto__says_in_the_result_what_it_chose(data):
    found = _ask(_source(*data), KLCE(("age", "children")))
    notes = found.details["notes"]
    assert notes[-1] == f"tiles: every pair of {ROWS} rows is quick"
    assert found.parameters["method"] == "tiles"
    assert "children has 6 values; categorical=('children',)" in notes[0]


# ---------------------------------------------------------------- defaults


def test_bandwidths__default_to_medians_of_standardised_distances(data):
    p, y, x = data
    found = _ask(_source(p, y, x), KLCE(("age", "income")))

    def median(points):
        distances = cdist(points, points)
        return np.median(distances[distances > 0])

    spread = x[:, :2].std(axis=0)
    expected = spread * median(x[:, :2] / spread)
    mine = found.parameters["covariate_bandwidth"]
    assert [mine["age"], mine["income"]] == pytest.approx(list(expected), rel=1e-12)
    assert found.parameters["prediction_bandwidth"] == pytest.approx(median(p[:, None]), rel=1e-12)


def test_bandwidths__may_be_given_for_some_columns(data):
    source = _source(*data)
    default = _ask(source, KLCE(("age", "income"))).parameters["covariate_bandwidth"]
    some = _ask(source, KLCE(("age", "income"), covariate_bandwidth={"income": 5.0}))
    assert some.parameters["covariate_bandwidth"] == {"age": default["age"], "income": 5.0}


def test_bandwidths__do_not_depend_on_units(data):
    """Another unit and another origin of a column change the default value by roundings only."""
    p, y, x = data
    a = _ask(_source(p, y, x), KLCE(("age", "income")))
    b = _ask(_source(p, y, x * [12.0, 0.001, 1, 1] + [500, -3, 0, 0]), KLCE(("age", "income")))
    assert a.value == pytest.approx(b.value, rel=1e-9)


# ---------------------------------------------------------------- bad input

METHODS = pytest.mark.parametrize("method", ["auto", "tiles", "spectral", "features"])


@METHODS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_covariate__is_named_or_dropped_and_counted(data, bad, method):
    p, y, x = data
    x[[123, 400], 1] = bad
    source = _source(p, y, x)
    asked = KLCE(("age", "income"), method=method, **WIDE)
    with pytest.raises(cs.InvalidDataError, match=r"row 123 .*'income'") as caught:
        _ask(source, asked)
    assert caught.value.row == 123
    result = cs.evaluate(source, [asked], on_invalid="drop")
    assert result.dropped == {"covariate_not_finite": 2}
    assert result["klce"].n == result.n == ROWS - 2
    keep = np.isfinite(x[:, 1])
    alone = _ask(_source(p[keep], y[keep], x[keep]), asked)
    assert result["klce"].value == pytest.approx(alone.value, abs=1e-12)


def test_bad_covariate__matters_only_where_it_is_asked_for(data):
    p, y, x = data
    expected = _ask(_source(p, y, x), KLCE(("age",), 0.2, 1.0)).value
    x[5, 1] = np.nan
    assert _ask(_source(p, y, x), KLCE(("age",), 0.2, 1.0)).value == expected


def test_bad_covariate__of_every_row_leaves_nothing(data):
    p, y, x = data
    x[:, 0] = np.nan
    with pytest.raises(cs.InvalidDataError, match="no row has finite covariates"):
        _ask(_source(p, y, x), KLCE(("age",)), on_invalid="drop")


@METHODS
@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, -1e-300])
def test_constant_column__changes_nothing(data, method, value):
    p, y, x = data
    x[:, 0] = value
    source = _source(p, y, x)
    found, without = _ask(
        source,
        KLCE(("age", "income"), 0.15, method=method),
        KLCE(("income",), 0.15, method=method),
    )
    assert "age is constant: it changes nothing" in found.details["notes"]
    if method != "features":  # other frequencies
        assert found.value == pytest.approx(without.value, abs=1e-12)
    (only,) = cs.evaluate(source, [KLCE(("age",), 0.15, method=method)]).estimates
    assert np.isfinite(only.value)


@METHODS
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bandwidth__must_be_positive_and_finite(data, method, bad):
    source = _source(*data)
    for options in (
        dict(prediction_bandwidth=bad),
        dict(covariate_bandwidth=bad),
        dict(covariate_bandwidth={"age": bad}),
    ):
        with pytest.raises(cs.OptionError, match="bandwidth must be positive and finite"):
            _ask(source, KLCE(("age",), method=method, **options))


def test_bandwidth__so_small_that_the_series_is_long_offers_tiles(rng):
    p, y, x = _data(rng, 3100)
    asked = KLCE(("age", "income"), 1e-7, {"age": 1e-7, "income": 1e-7})
    source = _source(p, y, x)
    with pytest.raises(cs.OptionError, match="or use method='tiles'"):
        _ask(source, replace(asked, method="spectral"))
    auto, tiles = _ask(source, asked, replace(asked, method="tiles"))
    assert auto.value == tiles.value
    assert abs(auto.value) < 1e-300  # no two rows are near one another
    assert "the Fourier series would need" in auto.details["notes"][-1]


def test_series__of_too_many_dimensions_offers_tiles(data):
    p, y, x = data
    x = np.column_stack([x[:, 0], x[:, 1], x[:, 0] ** 2])
    with pytest.raises(cs.OptionError, match='method="tiles"'):
        _ask(_source(p, y, x), KLCE(("age", "income", "region"), method="spectral"))


@pytest.mark.parametrize("method", ["tiles", "spectral"])
def test_duplicates__count_as_rows(rng, data, method):
    """m copies of each row: the pairs of copies come to what rows weigh with themselves."""
    p, y, x = (array[:60] for array in data)
    copies = rng.integers(1, 6, 60)
    many = _source(np.repeat(p, copies), np.repeat(y, copies), np.repeat(x, copies, axis=0))
    found = _ask(many, KLCE(("age", "income"), method=method, **WIDE))
    K = _kernel(p[:, None], x[:, :2], "gaussian", "gaussian", 0.15, [1.5, 30.0])
    d, w, n = p - y, copies.astype(float), copies.sum()
    expected = ((w * d) @ K @ (w * d) - w @ (d * d)) / (n * (n - 1))
    assert found.value == pytest.approx(expected, abs=1e-13 if method == "tiles" else 1e-11)


@METHODS
def test_equal_rows__are_one_point(method):
    n = 80
    y = np.arange(n) % 4 == 0
    source = _source(np.full(n, 0.4), y.astype(int), np.ones((n, 2)))
    found = _ask(source, KLCE(("age", "income"), method=method))
    d = 0.4 - y
    expected = (d.sum() ** 2 - d @ d) / (n * (n - 1))
    assert found.value == pytest.approx(expected, abs=1e-12)


@METHODS
@pytest.mark.parametrize("n", [0, 1])
def test_few_rows__have_a_reason(data, method, n):
    p, y, x = (array[:5].copy() for array in data)
    y[n:] = -1
    found = _ask(_source(p, y, x), KLCE(("age",), method=method))
    assert found.value is None
    assert "two rows" in found.reason
    assert found.n == n
    json.dumps(found.to_dict())


@METHODS
def test_few_rows__two_are_enough(data, method):
    p, y, x = (array[:2] for array in data)
    found = _ask(_source(p, y, x), KLCE(("age",), 0.5, 2.0, method=method))
    K = _kernel(p[:, None], x[:, :1], "gaussian", "gaussian", 0.5, [2.0])
    expected = float(np.prod(p - y) * K[0, 1])
    error = found.approximation.error if method == "features" else 1e-12
    assert abs(found.value - expected) <= max(error, 1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(covariates=("age", "age")), "named twice: age, age"),
        (dict(covariates=("age",), categorical=("region",)), "region is not among the covariates"),
        (dict(method="dense"), "method must be one of"),
        (dict(normalization="n"), "normalization must be one of"),
        (dict(prediction_kernel="rbf"), "prediction_kernel must be one of"),
        (dict(covariate_kernel="linear+gaussian"), "covariate_kernel must be one of"),
        (dict(precision="float16"), "precision must be one of"),
        (dict(notion="class_wise"), "notion must be"),
        (dict(n_features=1), "at least 2"),
    ],
)
def test_settings__impossible_ones_are_refused(options, match):
    with pytest.raises(cs.OptionError, match=match):
        KLCE(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(covariates=("wealth",)), "no covariate 'wealth'; the source has: age, income"),
        (dict(covariate_bandwidth={"wealth": 1.0}), "bandwidth is given for wealth"),
        (dict(covariate_bandwidth={"region": 1.0}), "bandwidth is given for region"),
        (dict(categorical=("age",), covariate_bandwidth={"age": 1.0}), "more than 64 values"),
        (dict(categorical=("age",)), "'age' has more than 64 values"),
        (dict(method="features", normalization="kernel_sum"), "needs method='spectral' or 'tiles'"),
        (dict(method="features", prediction_kernel="linear+gaussian"), "needs method='tiles'"),
        (dict(method="spectral", prediction_kernel="linear+gaussian"), "tiles"),
        (dict(method="spectral", prediction_kernel="laplace"), "tiles"),
        (dict(method="spectral", notion="canonical"), "tiles"),
        (dict(method="spectral", tolerance=0.0), "tolerance must be"),
    ],
)  # fmt: skip
def test_settings__what_does_not_fit_the_data_is_refused(data, options, match):
    with pytest.raises(cs.OptionError, match=match):
        _ask(_source(*data), KLCE(**{"covariates": ("age",), **options}))


@METHODS
def test_probabilities__above_one_by_their_tolerance_are_taken(rng, method):
    n = 400
    p = rng.random(n)
    q = np.column_stack([1 - p, p])
    q[:20] = [2e-5, 1.00006]
    q[20:40] = [1.00006, 2e-5]
    y, x = rng.integers(0, 2, n), rng.random((n, 1))
    for notion in ("positive", "top_label"):
        source = cs.from_arrays(probabilities=q, labels=y, covariates=x)
        found = _ask(source, KLCE(("x0",), 0.3, 0.5, notion=notion, method=method))
        points = q[:, 1] if notion == "positive" else q.max(1)
        event = y == 1 if notion == "positive" else q.argmax(1) == y
        K = _kernel(points[:, None], x, "gaussian", "gaussian", 0.3, [0.5])
        expected, _ = _klce(K, (points - event)[:, None])
        error = found.approximation.error if method == "features" else 1e-12
        assert abs(found.value - expected) <= 2 * error


@METHODS
def test_offset__of_a_covariate_costs_no_digits(data, method):
    """1e9 + noise of 0.01, whose own digits end at 1e-7."""
    p, y, x = data
    x[:, 0] = 1e9 + 0.01 * x[:, 0]
    centred = x[:, :1] - 1e9  # exact
    source = _source(p, y, x)
    found = _ask(source, KLCE(("age",), 0.2, 0.015, method=method))
    K = _kernel(p[:, None], centred, "gaussian", "gaussian", 0.2, [0.015])
    expected = _klce(K, (p - y)[:, None])
    if method == "features":
        assert abs(found.value - expected[0]) <= 2 * found.approximation.error
    else:
        _assert_close(found, expected, 1e-13 if method != "spectral" else 1e-11)
    default = _ask(source, KLCE(("age",))).parameters["covariate_bandwidth"]["age"]
    distances = cdist(centred, centred)
    # the deviation is of values rounded to 1e-7 of 0.02
    assert default == pytest.approx(np.median(distances[distances > 0]), rel=1e-5)
