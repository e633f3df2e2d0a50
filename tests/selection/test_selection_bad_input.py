"""Degenerate data and invalid settings of a selection: a clear error or a defined result."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import calibscale as cs
from calibscale.predictions.notions import NOTIONS
from calibscale.selection.kernel_features import KernelFeatures
from tests.support import naive
from tests.support.selections import SCORE_FAMILIES

pytestmark = pytest.mark.long

ROWS = 120
ALL = ["bins", "bins_debiased", "kde", "kkr", "ukkr", "temperature", *SCORE_FAMILIES]
SCALAR = ["bins", "kde", "kkr", "ukkr", "temperature"]
CANONICAL = ["kde", "kkr", "ukkr", "temperature"]
NUMBERS = ("risk", "risk_error", "difference", "difference_error", "estimate", "estimate_error")

every_notion = pytest.mark.parametrize("notion", NOTIONS)


def good(rows=ROWS, classes=3):
    rng = np.random.default_rng(21)
    q = rng.dirichlet(np.ones(classes), rows)
    return q, (q.cumsum(1) < rng.random((rows, 1))).sum(1).clip(0, classes - 1)


def rows_of(notion):
    return good(classes=2 if notion == "positive" else 3)


def run(q, y, notion="top_label", estimators=None, weights=None, **options):
    source = cs.from_arrays(probabilities=q, labels=y, weights=weights)
    options.setdefault("folds", 3)
    return cs.select(source, notion, estimators, **options)


def assert_defined(selection):
    """Check that every number is finite or has a reason, and that the JSON is strict."""
    for c in selection.candidates:
        values = [getattr(c, name) for name in NUMBERS] + [*c.risk_folds, *c.estimate_folds]
        if c.interval is not None:
            values.extend([c.interval.low, c.interval.high])
        if not all(map(math.isfinite, values)):
            assert c.reason, (c.estimator, c.hyperparameter, values)
    assert math.isfinite(selection.selected.risk)
    assert math.isfinite(selection.selected.estimate)
    json.loads(json.dumps(selection.to_dict(), allow_nan=False))


def defined_or_refused(word, *arguments, **options):
    """Check that the result is defined, or that the error message contains the word."""
    try:
        selection = run(*arguments, **options)
    except cs.OptionError as error:
        message = str(error)
    else:
        message = word
        assert_defined(selection)
    assert word in message


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("folds", [1, 0, -3, 100_000, 2.5, float("nan"), None, "five"])
def test_folds__invalid_numbers_are_refused(folds):
    with pytest.raises(cs.OptionError, match="folds"):
        run(*good(), folds=folds)


BAD_FOLDS = {
    "too short": (np.arange(ROWS - 1) % 4 - 1, "120 integers"),
    "too long": (np.arange(ROWS + 1) % 4 - 1, "120 integers"),
    "floats": (np.arange(ROWS) % 4 - 1.0, "integers"),
    "booleans": (np.arange(ROWS) % 2 == 0, "integers"),
    "text": (np.array(["0"] * ROWS), "integers"),
    "a table": (np.zeros((ROWS, 1), int), "integers"),
    "below −1": (np.arange(ROWS) % 4 - 2, "−1"),
    "huge": (np.where(np.arange(ROWS) == 7, 10**12, np.arange(ROWS) % 3 - 1), "k ≤ 1000"),
    "an empty fold": (np.where(np.arange(ROWS) % 4 == 2, 3, np.arange(ROWS) % 4) - 1, "fold 1"),
    "no test part": (np.arange(ROWS) % 4, "test part"),
    "only a test part": (np.full(ROWS, -1), "fold"),
    "one fold": (np.arange(ROWS) % 2 - 1, "fold"),
}


@pytest.mark.parametrize("name", BAD_FOLDS)
def test_folds__invalid_arrays_are_refused(name):
    folds, message = BAD_FOLDS[name]
    with pytest.raises(cs.OptionError, match=message):
        run(*good(), folds=folds)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64, ">i4"])
def test_folds__any_integer_type_is_accepted(dtype):
    q, y = good()
    folds = np.arange(ROWS) % 4 - 1
    if np.dtype(dtype).kind == "u":  # no −1 in unsigned numbers: there is no test part
        with pytest.raises(cs.OptionError, match="test part"):
            run(q, y, estimators="bins", folds=(folds + 1).astype(dtype))
        return
    expected = run(q, y, estimators="bins", folds=folds.tolist())
    assert run(q, y, estimators="bins", folds=folds.astype(dtype)).candidates == expected.candidates


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trace_tolerance": float("nan")}, "trace_tolerance"),
        ({"trace_tolerance": 2.0}, "trace_tolerance"),
        ({"kind": "random", "kernel": cs.selection.Laplacian()}, "Gaussian"),
    ],
)
def test_kernel_features__errors_name_the_invalid_setting(settings, message):
    with pytest.raises(cs.OptionError, match=message):
        KernelFeatures(**settings)


BAD_OPTIONS = {
    "notion": ({"notion": "local"}, "notion must be one of"),
    "test_fraction 0": ({"test_fraction": 0.0}, "test_fraction"),
    "test_fraction 1": ({"test_fraction": 1.0}, "test_fraction"),
    "test_fraction nan": ({"test_fraction": float("nan")}, "test_fraction"),
    "seed": ({"seed": -1}, "seed"),
    "rank": ({"features": 0}, "rank"),
    "subset_rows": ({"subset_rows": 1}, "subset_rows"),
    "features": ({"features": "fourier"}, "features must be"),
    "unknown": (
        {"estimators": ["bins", "splines"]},
        "unknown estimator 'splines'; available: bins",
    ),
    "none": ({"estimators": []}, "at least one"),
    "nested": ({"nested": True, "folds": 2}, "three folds"),
    "on_invalid": ({"on_invalid": "mend"}, "on_invalid"),
    "block_rows": ({"block_rows": 0}, "block_rows"),
    "positive": ({"notion": "positive"}, "two classes; there are 3"),
    "bins": ({"notion": "canonical", "estimators": ["bins"]}, "bins does not support the notion"),
    "debiased": (
        {"notion": "canonical", "estimators": ["bins_debiased"]},
        "bins_debiased does not support the notion",
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options__invalid_values_are_refused(name):
    options, message = BAD_OPTIONS[name]
    with pytest.raises(cs.OptionError, match=message):
        run(*good(), **options)


@pytest.mark.parametrize("family", [cs.selection.Bins, cs.DebiasedBins, cs.KDE, cs.KKR, cs.UKKR])
@pytest.mark.parametrize("grid", [(), (0,), (-1,), (5, np.nan), (np.inf,), (5, -np.inf)])
def test_grid__invalid_values_are_refused(family, grid):
    with pytest.raises(cs.OptionError, match="grid of " + family.name.split("_")[0]):
        family(grid)


@pytest.mark.parametrize("grid", [(2.5,), (10**6,), (1e300,)])
def test_grid__bins_are_whole_numbers(grid):
    with pytest.raises(cs.OptionError, match="whole numbers"):
        cs.selection.Bins(grid)


def test_grid__repetitions_count_once():
    selection = run(*good(), estimators=[cs.selection.Bins((5, 10, 5.0))])
    assert [c.hyperparameter for c in selection.candidates] == [{"bins": 5}, {"bins": 10}]


@pytest.mark.parametrize("kernel", [cs.selection.Gaussian, cs.selection.Laplacian])
@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.nan, np.inf])
def test_kernel__invalid_bandwidths_are_refused(kernel, bandwidth):
    with pytest.raises(cs.OptionError, match="bandwidth"):
        kernel(bandwidth)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_names__select_their_family(name):
    selection = run(*good(), estimators=name)
    assert selection.estimators == (name,)
    assert_defined(selection)


# Very large and very small positive numbers.
@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e-12, 1e30, 1e300])
@pytest.mark.parametrize("family", [cs.KDE, cs.KKR, cs.UKKR])
@pytest.mark.parametrize("notion", ["top_label", "canonical"])
def test_grid__extreme_values_give_numbers_or_an_error(size, family, notion):
    defined_or_refused(family.name, *good(), notion, [family((size,)), cs.selection.Temperature()])


# ---------------------------------------------------------------- degenerate data


def test_labels__a_fold_without_labels_is_named():
    q, y = good()
    folds = np.arange(ROWS) % 4 - 1
    for fold, message in ((1, "fold 1 has no labelled rows"), (-1, "test part has no labelled")):
        with pytest.raises(cs.OptionError, match=message):
            run(q, np.where(folds == fold, -1, y), folds=folds)


def test_labels__unlabelled_data_are_an_error():
    q, _ = good()
    with pytest.raises(
        cs.OptionError, match=r"no labelled rows with a positive weight \(0 in all\)"
    ):
        run(q, np.full(ROWS, -1))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("folds", [2, 5])
def test_few_rows__are_an_error_that_names_the_part(rows, folds):
    q, y = good(rows)
    with pytest.raises(cs.OptionError, match=r"fold|test part"):
        run(q, y, folds=folds)


def test_few_rows__two_in_each_part_are_enough():
    q, y = good(6)
    for notion in ("top_label", "class_wise", "canonical"):
        assert_defined(run(q, y, notion, folds=np.array([-1, -1, 0, 0, 1, 1])))


def test_few_rows__a_fold_of_one_is_an_error():
    q, y = good(6)
    with pytest.raises(cs.OptionError, match="fold 1 has 1 rows"):
        run(q, y, folds=np.array([-1, -1, 0, 0, 0, 1]))


@every_notion
@pytest.mark.parametrize("label", [0, 1])
def test_labels__all_of_one_class_give_defined_results(notion, label):
    q, y = rows_of(notion)
    assert_defined(run(q, np.full_like(y, label), notion))


@every_notion
def test_predictions__all_equal(notion):
    q, y = rows_of(notion)
    selection = run(np.tile(q[:1], (ROWS, 1)), y, notion)
    assert_defined(selection)
    # one point: kernel ratios are the training frequencies for any bandwidth
    kde = [c for c in selection.candidates if c.estimator == "kde"]
    fits = {tuple(np.round(c.estimate_folds, 12)) for c in kde}
    assert len(fits) == 1


@every_notion
def test_predictions__that_are_uniform_give_defined_results(notion):
    q, y = rows_of(notion)
    assert_defined(run(np.full_like(q, 1 / q.shape[1]), y, notion))


@every_notion
def test_rows__all_repeated_give_defined_results(notion):
    """The rank of the kernel matrix is a tenth of the number of rows."""
    q, y = rows_of(notion)
    q, y = np.repeat(q[:12], 10, axis=0), np.repeat(y[:12], 10)
    selection = run(q, y, notion, features=100)
    assert_defined(selection)
    assert selection.features["rank"] <= (12 if notion == "canonical" else 100)


@every_notion
@pytest.mark.parametrize("right", [True, False])
def test_predictions__all_zero_or_one_give_defined_results(notion, right):
    """Vertices of the simplex: log 0 everywhere, with no errors or with every third row wrong."""
    _, y = rows_of(notion)
    K = 2 if notion == "positive" else 3
    labels = y if right else np.where(np.arange(ROWS) % 3 == 0, (y + 1) % K, y)
    selection = run(np.eye(K)[y], labels, notion)
    assert_defined(selection)
    if right:  # δ = 0: the best function is 0
        assert selection.selected.risk == pytest.approx(0.0, abs=1e-12)
        for c in selection.candidates:
            if c.estimator in ("bins", "ukkr", "kkr", "temperature"):
                assert c.estimate == pytest.approx(0.0, abs=1e-12)


@every_notion
def test_predictions__some_zero_or_one_give_defined_results(notion):
    q, y = rows_of(notion)
    q = np.where((np.arange(ROWS) % 5 < 2)[:, None], np.eye(q.shape[1])[(y + 1) % 2], q)
    assert_defined(run(q, y, notion))


@every_notion
def test_logits__that_are_very_large_give_defined_results(notion):
    _, y = rows_of(notion)
    z = np.random.default_rng(1).normal(size=(ROWS, 2 if notion == "positive" else 3)) * 1e4
    assert_defined(cs.select(cs.from_arrays(logits=z, labels=y), notion, folds=3))


@pytest.mark.long
@every_notion
def test_features__random_features_of_equal_predictions(notion):
    q, y = rows_of(notion)
    equal = np.tile(q[:1], (ROWS, 1))
    for rank in (1, 2, 30):
        assert_defined(
            run(equal, y, notion, ["kkr", "ukkr"], features=KernelFeatures("random", rank=rank))
        )


# ---------------------------------------------------------------- weights, invalid rows


def test_weights__a_fold_of_zeros_is_named():
    q, y = good()
    folds = np.arange(ROWS) % 4 - 1
    for fold, name in ((2, "fold 2"), (-1, "the test part")):
        with pytest.raises(
            cs.OptionError, match=f"{name} has no labelled rows with a positive weight"
        ):
            run(q, y, weights=np.where(folds == fold, 0.0, 1.0), folds=folds)


def test_weights__all_zero_is_an_error():
    with pytest.raises(cs.OptionError, match="no labelled rows with a positive weight"):
        run(*good(), weights=np.zeros(ROWS))


@every_notion
@pytest.mark.parametrize("heavy", [1e8, 1e90])
def test_weights__with_one_dominant_row_give_defined_results_or_an_error(notion, heavy):
    q, y = rows_of(notion)
    weights = np.ones(ROWS)
    weights[17] = heavy
    defined_or_refused("weight", q, y, notion, weights=weights)


@pytest.mark.parametrize("heavy", [1e6, 1e16])
def test_weights__one_dominant_row_leaves_the_risk_correct(heavy):
    """(Σw)² − Σw² cancels where one row has nearly all the weight. The sum over pairs does not."""
    q, y = good(30, 2)
    weights, folds = np.ones(30), np.arange(30) % 3 - 1
    weights[10] = heavy  # in fold 0
    ((p, d),) = naive.notion_problems("positive", q, y)
    risks, _, _ = naive.select(
        [(p, d)], folds, lambda p, d, w: naive.bin_function(p, d, w, 5), weights
    )
    try:
        selection = run(q, y, "positive", [cs.selection.Bins((5,))], weights, folds=folds)
    except cs.OptionError as error:
        assert "weight" in str(error)  # noqa: PT017  (an error or the exact number)
    else:
        # 16 digits minus the 5 by which 1e12 exceeds 2e7
        assert selection.selected.risk_folds == pytest.approx(risks, rel=1e-8)


@every_notion
def test_weights__rows_with_zero_weight_are_ignored(notion):
    """The result is the same as without the labels of these rows."""
    q, y = rows_of(notion)
    weights = np.where(np.arange(ROWS) % 3 == 0, 0.0, 1.0)
    folds = np.random.default_rng(2).integers(-1, 3, ROWS)
    families = [cs.KDE((0.1,)), cs.KKR((0.1,)), cs.UKKR((0.1,))]
    first = run(q, y, notion, families, weights, folds=folds)
    second = run(q, np.where(weights == 0, -1, y), notion, families, weights, folds=folds)
    assert second.n_unlabelled == 40
    for a, b in zip(first.candidates, second.candidates, strict=True):
        # other landmarks for the same kernel, to 1e-13 over λ
        assert b.risk == pytest.approx(a.risk, rel=1e-9)
        assert b.estimate == pytest.approx(a.estimate, rel=1e-9)
        assert b.difference_error == pytest.approx(a.difference_error, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_invalid_rows__raise_or_are_dropped(value):
    q, y = good()
    z = np.log(q)
    z[[30, 77], 1] = value
    source = cs.from_arrays(logits=z, labels=y)
    with pytest.raises(cs.InvalidDataError, match="row 30 ") as caught:
        cs.select(source, folds=3)
    assert caught.value.row == 30
    folds = np.arange(ROWS) % 4 - 1
    families = [cs.selection.Bins((5,)), cs.KDE((0.1,)), cs.KKR((0.1,)), cs.UKKR((0.1,))]
    selection = cs.select(source, estimators=families, folds=folds, on_invalid="drop")
    fault = "logits is missing" if np.isnan(value) else "logits is infinite"
    assert (selection.n, selection.dropped) == (ROWS - 2, {fault: 2})
    assert_defined(selection)
    valid = np.isfinite(z).all(1)
    clean = cs.select(
        cs.from_arrays(logits=z[valid], labels=y[valid]), estimators=families, folds=folds[valid]
    )
    for a, b in zip(selection.candidates, clean.candidates, strict=True):
        assert b.risk_folds == pytest.approx(a.risk_folds, rel=1e-12)  # the same sums


def test_invalid_rows__a_bad_label_is_named():
    q, y = good()
    y[55] = 3
    with pytest.raises(cs.InvalidDataError, match="row 55 "):
        run(q, y)


# ---------------------------------------------------------------- risks and subsets


@pytest.mark.parametrize("n", [0, 1])
def test_plug_in_risk__needs_two_rows(n):
    with pytest.raises(cs.OptionError, match="two rows"):
        cs.plug_in_risk(np.ones((n, 2)), np.ones((n, 2)))


def test_plug_in_risk__needs_two_weights():
    with pytest.raises(cs.OptionError, match="two rows"):
        cs.plug_in_risk(np.ones((3, 2)), np.ones((3, 2)), np.array([0.0, 1.0, 0.0]))


@pytest.mark.parametrize(("n", "pairs"), [(1, 100), (0, 100), (5, 1), (5, 0)])
def test_sampled_risk__needs_two_rows_and_pairs(n, pairs):
    with pytest.raises(cs.OptionError, match="two pairs"):
        cs.sampled_risk(np.ones((n, 1)), lambda a, b: a[:, 0], np.ones((n, 1)), pairs)


def test_best_of__an_estimator_that_was_not_requested_is_a_key_error():
    with pytest.raises(KeyError):
        run(*good(), estimators="bins").best_of("kde")


@pytest.mark.parametrize("family", [cs.KKR((0.1, 1e-30)), cs.UKKR((0.1, 1e-300))])
@pytest.mark.parametrize(
    "draw", [lambda rng: np.full(400, 0.3), lambda rng: rng.integers(0, 2, 400)]
)
def test_ridge__a_tiny_ridge_on_singular_moments_is_the_pseudo_inverse(family, draw, rng):
    """The null space has rounding errors only, which a tiny ridge must not amplify."""
    p = draw(rng).astype(float)
    y = (rng.random(400) < 0.4).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    moderate, tiny = cs.select(source, "positive", [family]).candidates
    # the moderate ridge shrinks residuals by a few per cent: λ = reg·n^(-1/4) or n^(-1/2) of S
    assert tiny.risk == pytest.approx(moderate.risk, rel=0.02)
    assert tiny.estimate == pytest.approx(moderate.estimate, rel=0.2)


def test_subset__of_mostly_unlabelled_data_has_all_labelled_rows(rng):
    p = rng.random(20_000)
    y = np.where(rng.random(20_000) < 0.03, (rng.random(20_000) < p).astype(int), -1)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    selection = cs.select(source, "positive", ["bins"], subset_rows=5000)
    assert selection.parameters["subset_rows"] == selection.n == np.sum(y >= 0)


def test_seed__is_checked_with_explicit_folds(rng):
    p = rng.random(100)
    source = cs.from_arrays(probabilities=p, labels=rng.integers(0, 2, 100), binary=True)
    with pytest.raises(cs.OptionError, match="seed"):
        cs.select(source, "positive", folds=np.arange(100) % 3 - 1, seed=-1)


def test_folds__too_many_are_refused_by_name(rng):
    p = rng.random(5000)
    source = cs.from_arrays(probabilities=p, labels=rng.integers(0, 2, 5000), binary=True)
    with pytest.raises(cs.OptionError, match="folds"):
        cs.select(source, "positive", folds=1500)


@pytest.mark.long
def test_landmarks__of_sorted_rows_come_from_all_rows(rng):
    y = np.sort(rng.integers(0, 5, 3000))
    z = 3 * np.eye(5)[y] + rng.normal(size=(3000, 5))
    source = cs.from_arrays(logits=z, labels=y)
    shuffled = rng.permutation(3000)
    mixed = cs.from_arrays(logits=z[shuffled], labels=y[shuffled])
    a, b = (cs.select(s, "canonical", ["ukkr"], features=60).features for s in (source, mixed))
    # 480 of 3,000 candidates: equally good in either order
    assert a["trace_residual"] == pytest.approx(b["trace_residual"], rel=0.5)
