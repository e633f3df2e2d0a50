"""Rankings against naive computations, known orders, and themselves elsewhere."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import binom, kendalltau
from scipy.stats import t as student

from calibscale import (
    CKCE,
    CMMD,
    ECE,
    JKCE,
    KCE,
    KLCE,
    NLL,
    Accuracy,
    CKCECentred,
    ConfidenceGap,
    Intervals,
    LogitStore,
    OptionError,
    RandomFourier,
    SimplexECE,
    TCE2Debiased,
    evaluate,
    from_arrays,
)
from calibscale.cli import cli, main
from calibscale.cli.rank import rank as command
from calibscale.errors import InvalidDataError
from calibscale.intervals import Grouped, Parts
from calibscale.kernels import random
from calibscale.ranking import distinct_names, rank, subsets
from calibscale.ranking.orders import _adjusted, rank_probabilities, ranks
from calibscale.ranking.results import Difference
from calibscale.ranking.subsets import Plan, agreement
from calibscale.simulate import GENERATORS
from calibscale.statistics import Totals

N = 600


def _logits(rng, n=N, classes=3):
    """Logits of the true model, and labels drawn from it."""
    z = 1.5 * rng.normal(size=(n, classes))
    return z, (z + rng.gumbel(size=z.shape)).argmax(1)


def _q(z):
    heat = np.exp(z - z.max(1, keepdims=True))
    return heat / heat.sum(1, keepdims=True)


@pytest.fixture
def data(rng):
    z, y = _logits(rng)
    return {"bold": 2.5 * z, "true": z, "shy": 0.6 * z}, y


def _sources(models, y, **columns):
    return {name: from_arrays(logits=z, labels=y, **columns) for name, z in models.items()}


def _assert_alike(interval, other):
    """But for rounding."""
    assert (interval.method, interval.parts, interval.covers, interval.level) == (
        other.method, other.parts, other.covers, other.level,
    )  # fmt: skip
    for name in ("low", "high", "standard_error"):
        mine, theirs = getattr(interval, name), getattr(other, name)
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-12)


def _jackknife(left_out):
    G = len(left_out)
    return np.sqrt((G - 1) / G * np.sum((left_out - left_out.mean()) ** 2))


def _simulated(names, n, **sharpness):
    """Dirichlet(0.1) rows of 10 classes, and models that sharpen the truth."""
    true = GENERATORS["ms-true"].draw(1, 0, n)
    return {
        name: from_arrays(logits=sharpness.get(name, 1.0) * true.log_p, labels=true.labels)
        for name in names
    }


# ---------------------------------------------------------------- estimates and differences


@pytest.mark.parametrize(
    "by",
    [
        ECE(bins=8),
        TCE2Debiased(bins=8),
        SimplexECE(),
        NLL(),
        CKCE(RandomFourier(10, 0.8), ridge=N**-0.25),
        CKCECentred(RandomFourier(10, 0.8), ridge=N**-0.25),
        CMMD(RandomFourier(10, 0.8), ridge=0.1, level=1.5),
        JKCE(RandomFourier(10, 0.8)),
        KCE(prediction_bandwidth=0.2, notion="top_label", method="spectral"),
    ],
    ids=lambda by: by.name,
)  # fmt: skip
def test_rank__differences_are_those_of_groups_left_out_of_both(data, by):
    models, y = data
    found = rank(_sources(models, y), by, groups=7, seed=3)
    groups = Grouped(Totals(), 7, 3).of(np.arange(N))

    def value(z, keep):
        return evaluate(from_arrays(logits=z[keep], labels=y[keep]), [by]).estimates[0].value

    whole = {name: value(z, groups >= 0) for name, z in models.items()}
    left_out = {
        name: np.array([value(z, groups != g) for g in range(7)]) for name, z in models.items()
    }
    assert found.names == tuple(sorted(models, key=whole.__getitem__))
    factor = student.ppf(0.975, 6)
    for model in found.models:
        source = from_arrays(logits=models[model.name], labels=y)
        asked = Intervals(groups=7, seed=3)
        (expected,) = evaluate(source, [by], interval=asked).estimates
        assert model.value == pytest.approx(whole[model.name], rel=1e-9)
        _assert_alike(model.estimate.interval, expected.interval)
    assert len(found.differences) == 3
    for d in found.differences:
        error = _jackknife(left_out[d.worse] - left_out[d.better])
        value_ = whole[d.worse] - whole[d.better]
        assert d.paired
        assert d.value == pytest.approx(value_, rel=1e-7)
        assert d.interval.standard_error == pytest.approx(error, rel=1e-6)
        assert d.interval.high == pytest.approx(value_ + factor * error, rel=1e-6)
        assert d.t == pytest.approx(value_ / error, rel=1e-6)
        assert d.p_value == pytest.approx(2 * student.sf(value_ / error, 6), rel=1e-5)


@pytest.mark.parametrize(
    "by", [JKCE(RandomFourier(1, 0.7), method="tiles"), KCE(prediction_bandwidth=0.4)]
)
def test_rank__sums_over_pairs_leave_out_one_row_of_both(data, by):
    models, y = data
    models, y = {name: models[name][:40] for name in ("bold", "true")}, y[:40]

    def values(z):
        return np.array([
            evaluate(
                from_arrays(logits=np.delete(z, i, 0), labels=np.delete(y, i)), [by]
            ).estimates[0].value
            for i in range(40)
        ])  # fmt: skip

    found = rank(_sources(models, y), by)
    (d,) = found.differences
    error = _jackknife(values(models[d.worse]) - values(models[d.better]))
    assert d.interval.standard_error == pytest.approx(error, rel=1e-8)
    assert d.interval.parts == 40
    np.testing.assert_allclose(found.probabilities.sum(1), 1)


def test_rank__one_model_is_its_evaluation(data):
    models, y = data
    source = from_arrays(logits=models["bold"], labels=y)
    found = rank([source])
    (expected,) = evaluate(source, [CKCECentred()], interval="jackknife").estimates
    (model,) = found.models
    assert model.estimate.value == expected.value
    assert model.estimate.interval == expected.interval
    assert model.estimate.parameters["bandwidth"] == expected.parameters["bandwidth"]
    assert (model.rank, model.p_best, found.p_order) == (1, 1.0, 1.0)
    assert found.differences == ()
    scores = evaluate(source)
    for name in ("accuracy", "brier", "nll"):
        assert getattr(model, name) == pytest.approx(scores[name].value, rel=1e-12)


@pytest.mark.parametrize("by", [CKCE(), CKCECentred(), JKCE(), CKCE(method="exact")])
def test_rank__bandwidth_and_ridge_are_of_all_models(data, by):
    models, y = data
    found = rank(_sources(models, y), by)
    distances = np.concatenate([pdist(_q(z)) for z in models.values()])
    assert found.common["bandwidth"] == pytest.approx(np.median(distances), rel=1e-12)
    if not isinstance(by, JKCE):
        assert found.common["ridge"] == pytest.approx(N**-0.25, rel=1e-12)
    for model in found.models:
        settings = {"features": RandomFourier(bandwidth=found.common["bandwidth"])}
        alone = replace(by, **settings)
        source = from_arrays(logits=models[model.name], labels=y)
        assert model.value == pytest.approx(evaluate(source, [alone]).estimates[0].value, rel=1e-10)
    if by.pairwise:
        assert found.probabilities.size == 0
        assert any("no intervals" in note for note in found.notes)
        assert not any("more rows" in note for note in found.notes)


def test_rank__settings_given_are_kept(data):
    models, y = data
    found = rank(_sources(models, y), CKCE(RandomFourier(20, 0.3), ridge=0.02))
    assert (found.common["bandwidth"], found.common["ridge"]) == (0.3, 0.02)


def test_rank__a_constant_model_does_not_move_the_bandwidth(data):
    models, y = data
    alone = rank(_sources(models, y)).common["bandwidth"]
    found = rank(_sources({**models, "marginal": np.zeros((N, 3))}, y))
    assert found.common["bandwidth"] == alone
    assert rank(_sources({"marginal": np.zeros((N, 3))}, y)).common["bandwidth"] == 1.0


def test_rank__weights_set_the_ridge_and_their_scale_nothing(data, rng):
    models, y = data
    w = rng.uniform(0.2, 3.0, N)
    found = rank(_sources(models, y, weights=w))
    assert found.paired
    assert found.common["ridge"] == pytest.approx((w.sum() ** 2 / (w @ w)) ** -0.25, rel=1e-12)
    scaled = rank(_sources(models, y, weights=1e3 * w))
    assert scaled.names == found.names
    for a, b in zip(found.differences, scaled.differences, strict=True):
        assert a.t == pytest.approx(b.t, rel=1e-8)
    mixed = {
        "none": from_arrays(logits=models["bold"], labels=y),
        "ones": from_arrays(logits=models["true"], labels=y, weights=np.ones(N)),
        "others": from_arrays(logits=models["shy"], labels=y, weights=w),
    }
    pairs = {frozenset((d.better, d.worse)): d.paired for d in rank(mixed, ECE()).differences}
    assert pairs[frozenset(("none", "ones"))]
    assert not pairs[frozenset(("none", "others"))]


@pytest.mark.parametrize("method", ["auto", "spectral", "features", "nystrom"])
def test_rank__local_calibration_has_common_bandwidths(rng, method):
    x = rng.normal(size=(N, 2))
    p = 1 / (1 + np.exp(-x[:, 0]))
    y = (rng.random(N) < 1 / (1 + np.exp(-x[:, 0] - x[:, 1]))).astype(int)
    models = {"blind": p, "bold": p**2 / (p**2 + (1 - p) ** 2)}
    sources = {
        name: from_arrays(probabilities=q, labels=y, covariates=x, binary=True)
        for name, q in models.items()
    }
    found = rank(sources, KLCE(("x0", "x1"), method=method, n_features=50))
    assert found.notion == "positive"
    distances = np.concatenate([pdist(q[:, None]) for q in models.values()])
    assert found.common["prediction_bandwidth"] == pytest.approx(np.median(distances))
    spread = np.median(pdist(x / x.std(0))) * x.std(0)
    assert found.common["covariate_bandwidth"] == pytest.approx(
        {"x0": spread[0], "x1": spread[1]}, rel=1e-6
    )
    assert found.common["method"] == ("tiles" if method == "auto" else method)
    assert (found.probabilities.size == 0) == (method == "nystrom")


# ---------------------------------------------------------------- what it is for


@pytest.mark.parametrize("by", [CKCE(), CKCECentred(), JKCE(), ECE(), SimplexECE()])
def test_rank__finds_a_known_order(by):
    sources = _simulated(["over4", "true", "over2"], 5000, over2=2.0, over4=4.0)
    found = rank(sources, by)
    assert found.names == ("true", "over2", "over4")
    assert [model.rank for model in found.models] == [1, 2, 3]
    assert found.p_order > 0.99
    assert all(d.distinguishable for d in found.differences)
    assert (np.diag(found.probabilities) > 0.99).all()
    assert found["over4"].p_best < 0.01


def _calibrated(seed, n):
    """Two calibrated models of 10 classes: the truth, and its means over five of them."""
    rng = np.random.default_rng(seed)
    sharp = rng.dirichlet(np.full(10, 0.1), n)
    sharp /= sharp.sum(axis=1, keepdims=True)
    y = (sharp.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, 9)
    blunt = np.repeat(sharp.reshape(n, 2, 5).mean(axis=2), 5, axis=1)
    return {
        name: from_arrays(probabilities=q, labels=y)
        for name, q in (("sharp", sharp), ("blunt", blunt))
    }


def _told_apart(by, count, n):
    return sum(
        rank(_calibrated(seed, n), by, scheduler="serial").differences[0].distinguishable
        for seed in range(count)
    )


def test_rank__calibrated_models_of_unlike_sharpness_are_not_told_apart():
    few = RandomFourier(20)
    assert _told_apart(CKCECentred(few), 12, 300) <= binom.ppf(0.9999, 12, 0.05)
    assert _told_apart(CKCE(few), 12, 300) >= 9  # their noise is, which is not miscalibration


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 2000])
def test_rank__calibrated_models_of_unlike_sharpness_are_told_apart_by_chance_alone(n):
    assert _told_apart(None, 200, n) <= binom.ppf(0.9999, 200, 0.05)


def _ranked_right(n, trials):
    """How many of [MS]'s pairs of a calibrated model and another are in their order."""
    right = np.zeros(4, int)
    for trial in range(trials):
        values = {}
        for name in ("true", "marginal", "under", "over"):
            draw = GENERATORS[f"ms-{name}"].draw(9, trial * n, trial * n + n)
            source = from_arrays(logits=draw.logits, labels=draw.labels)
            values[name] = evaluate(source, CKCECentred(), scheduler="serial").estimates[0].value
        right += [
            values[good] < values[bad] for good in ("true", "marginal") for bad in ("under", "over")
        ]
    return right


def test_ckce_centred__ranks_a_calibrated_model_first():
    assert _ranked_right(200, 6).sum() >= 23  # of 24: 99.9 % each


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share"), [(50, 0.84), (100, 0.97), (200, 0.995)])
def test_ckce_centred__ranks_few_rows_right(n, share):
    assert _ranked_right(n, 300).sum() >= binom.ppf(1e-3, 1200, share)


def _equally_bad(seed, n=800):
    """Two models, each overconfident on its half of the rows."""
    rng = np.random.default_rng(seed)
    z, y = _logits(rng, n)
    half = rng.integers(0, 2, n)[:, None]
    return _sources({"a": z * np.where(half, 2.5, 1), "b": z * np.where(half, 1, 2.5)}, y)


def test_rank__does_not_decide_between_equal_models():
    found = [rank(_equally_bad(seed), TCE2Debiased()) for seed in range(40)]
    claims = sum(r.differences[0].distinguishable for r in found)
    assert claims <= binom.ppf(0.9999, 40, 0.05)
    first = np.array([r["a"].p_best for r in found])
    # P(best) is near uniform: a quarter of them lie above 3/4
    low, high = binom.ppf([1e-4, 1 - 1e-4], 40, 0.25)
    assert low <= (first > 0.75).sum() <= high
    assert low <= (first < 0.25).sum() <= high


def test_rank__a_model_and_itself_share_their_ranks(data):
    models, y = data
    found = rank(_sources({"one": models["bold"], "two": models["bold"]}, y))
    (d,) = found.differences
    assert (d.value, d.t, d.p_value, d.distinguishable) == (0.0, 0.0, 1.0, False)
    np.testing.assert_allclose(found.probabilities, 0.5, atol=0.01)
    assert [model["rank"] for model in found.to_dict()["models"]] == [1, 1]
    assert found.p_order == 1.0  # ties may be in any order
    three = rank(_sources({**dict.fromkeys("abc", models["bold"]), "best": models["true"]}, y))
    assert [(m.name == "best", m.rank) for m in three] == [(True, 1), *[(False, 2)] * 3]
    np.testing.assert_allclose(three.probabilities[1:, 1:], 1 / 3, atol=0.015)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([0.3], [1]),
        ([-0.1, -0.1, 0.2, 0.2, 0.3], [1, 1, 3, 3, 5]),
        ([0.1, 0.1 * (1 + 1e-12), 0.1 * (1 + 1e-6)], [1, 1, 3]),
        ([0.0, 0.0, 1e-300], [1, 1, 3]),
    ],
)
def test_ranks__are_shared_by_equal_values(values, expected):
    assert ranks(values) == expected


def test_rank__rounding_does_not_decide(data):
    """The same model in blocks of other lengths is off by rounding, and by nothing else."""
    models, y = data
    shifted = _sources({"one": models["bold"], "two": models["bold"] + 7.0}, y)
    found = rank(shifted, TCE2Debiased())
    assert found.differences[0].value < 1e-12
    assert not found.differences[0].distinguishable
    assert [model.rank for model in found] == [1, 1]
    np.testing.assert_allclose(found.probabilities, 0.5, atol=0.05)


# ---------------------------------------------------------------- probabilities


def _parts(left_out, value):
    return Parts(value, np.asarray(left_out, float), np.empty(0))


def test_rank_probabilities__of_two_models_are_the_t_test(data):
    models, y = data
    found = rank(_sources({"a": models["shy"], "b": models["true"] * 1.3}, y), ECE())
    (d,) = found.differences
    assert 0.3 < d.t < 6
    assert found.models[0].p_best == pytest.approx(student.cdf(d.t, 19), abs=0.006)
    np.testing.assert_allclose(found.probabilities.sum(0), 1)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    assert found.p_order == found.models[0].p_best


def test_rank_probabilities__of_independent_models(rng):
    parts = [_parts(v + 0.1 * rng.normal(size=20), v) for v in (0.0, 0.3)]
    matrix, order = rank_probabilities(parts, [0, 1], 0)
    errors = [_jackknife(part.left_out) for part in parts]
    # two independent t variables of 19 degrees of freedom, integrated
    u = (np.arange(4000) + 0.5) / 4000
    draws = student.ppf(u, 19)
    expected = student.cdf((0.3 + errors[1] * draws) / errors[0], 19).mean()
    assert matrix[0, 0] == pytest.approx(expected, abs=0.006)
    assert order == matrix[0, 0]


def test_rank_probabilities__are_of_the_seed(rng):
    parts = [_parts(rng.normal(size=20), 0.1 * i) for i in range(4)]
    one, again, other = (rank_probabilities(parts, [0] * 4, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() < 0.01
    assert not np.array_equal(one, other)


def test_adjusted__are_holms_steps():
    p = [0.04, 0.001, 0.03, None, 0.2]
    found = _adjusted([Difference("a", "b", 1.0, True, p_value=value) for value in p], 0.05)
    assert [d.p_adjusted for d in found] == pytest.approx([0.09, 0.004, 0.09, None, 0.2])
    assert [d.distinguishable for d in found] == [False, True, False, False, False]


# ---------------------------------------------------------------- rows that are not the same


def test_rank__other_labels_are_not_paired(data, rng):
    models, y = data
    swapped = y.copy()
    swapped[5] = (y[5] + 1) % 3
    sources = _sources(models, y)
    sources["bold"] = from_arrays(logits=models["bold"], labels=swapped)
    found = rank(sources, ECE())
    assert not found.paired
    assert len(found.notes) == (2 if found.names[0] == "bold" else 1)
    assert "labels or weights differ" in found.notes[0]
    groups = Grouped(Totals(), 20, 0).of(np.arange(N))
    of = {}
    for name, z in models.items():
        labels = swapped if name == "bold" else y
        kept = [groups != g for g in range(20)]
        parts = [from_arrays(logits=z[keep], labels=labels[keep]) for keep in kept]
        left_out = [evaluate(part, [ECE()], scheduler="serial")["ece"].value for part in parts]
        of[name] = _jackknife(np.array(left_out))
    for d in found.differences:
        errors = [of[name] for name in (d.better, d.worse)]
        assert d.paired == ("bold" not in (d.better, d.worse))
        if not d.paired:
            assert d.interval.standard_error == pytest.approx(np.hypot(*errors), rel=1e-9)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)


def test_rank__rows_dropped_in_one_model(data):
    models, y = data
    bad = models["bold"].copy()
    bad[10:14] = np.nan
    sources = {**_sources(models, y), "bold": from_arrays(logits=bad, labels=y)}
    with pytest.raises(InvalidDataError, match="row 10"):
        rank(sources)
    found = rank(sources, on_invalid="drop")
    assert not found.paired
    assert found["bold"].dropped == {"not_finite": 4}
    assert (found["bold"].n, found["true"].n) == (N - 4, N)
    assert any("596 and 600" in n or "600 and 596" in n for n in found.notes)
    # λ of the fewest rows for all
    assert found.common["ridge"] == pytest.approx((N - 4) ** -0.25, rel=1e-12)
    both = {name: from_arrays(logits=np.where(np.isnan(bad), np.nan, z), labels=y)
            for name, z in models.items()}  # fmt: skip
    assert rank(both, on_invalid="drop").paired


def test_rank__leaves_out_unlabelled_rows(data):
    models, y = data
    y = y.copy()
    y[::5] = -1
    found = rank(_sources(models, y), ECE())
    assert found.paired
    for model in found.models:
        assert (model.n, model.n_unlabelled) == (480, 120)
        source = from_arrays(logits=models[model.name], labels=y)
        assert model.value == pytest.approx(evaluate(source, [ECE()]).estimates[0].value)
    fewer = y.copy()
    fewer[1] = -1
    sources = {**_sources(models, y), "bold": from_arrays(logits=models["bold"], labels=fewer)}
    assert not rank(sources, ECE()).paired


@pytest.mark.parametrize("by", [CKCE(), JKCE(), ECE(), KCE(method="tiles")])
def test_rank__without_a_label_there_is_no_rank(data, by):
    models, y = data
    nothing = np.full(N, -1)
    sources = {**_sources(models, y), "new": from_arrays(logits=models["bold"], labels=nothing)}
    found = rank(sources, by)
    new = found.models[-1]
    assert (new.name, new.rank, new.value, new.probabilities) == ("new", None, None, ())
    assert new.accuracy is None
    assert any("new has no rank" in note and "label" in note for note in found.notes)
    assert found.probabilities.shape == (3, 3)
    empty = rank(_sources(models, nothing), by)
    assert [model.rank for model in empty.models] == [None] * 3
    assert empty.p_order is None
    json.dumps([found.to_dict(), empty.to_dict()], allow_nan=False)


def test_rank__one_row_is_too_few_for_intervals():
    found = rank({"one": from_arrays(logits=np.eye(2)[:1], labels=[0])}, ECE())
    assert found.notes == ("intervals and probabilities of ranks need more rows",)


def test_rank__shared_features_err_alike():
    """Two nearly equal models: what their difference is off by is less than what they are."""
    sources = _simulated(["a", "b"], 1000, a=2.0, b=2.05)
    by = CKCE(RandomFourier(8, 1.0), ridge=0.1, method="exact")
    truth = rank(sources, by).differences[0].value
    few = [rank(sources, CKCE(RandomFourier(8, 1.0, s), ridge=0.1)) for s in range(8)]
    inside = sum(
        abs(r.differences[0].value - truth) <= r.differences[0].approximation_error for r in few
    )
    assert inside >= 6
    for r in few:
        alone = [model.estimate.approximation.error for model in r.models]
        assert r.differences[0].approximation_error < 0.3 * np.hypot(*alone)


def test_rank__says_when_features_are_too_few():
    z, y = _logits(np.random.default_rng(1), 3000)
    sources = _sources({"true": z, "bold": 2.5 * z}, y)
    found = rank(sources, JKCE(RandomFourier(2, 0.3), kernel="gaussian"))
    (d,) = found.differences
    assert d.distinguishable
    assert d.value < d.approximation_error
    assert any("error of the approximation" in note for note in found.notes)
    enough = rank(sources, JKCE(RandomFourier(100, 0.3), kernel="gaussian"))
    assert enough.notes == ()
    one = rank(sources, CKCE(RandomFourier(1, 0.3)))
    assert one.differences[0].approximation_error is None


# ---------------------------------------------------------------- subsets


def test_rank__subsets_are_rows_of_a_hash(data):
    models, y = data
    by = CKCE(RandomFourier(5, 0.8))
    found = rank(_sources(models, y), by, subset_size=[100, 250], trials=9, seed=4)
    single = rank(_sources(models, y), by, subset_size=np.int64(250), trials=9, seed=4)
    np.testing.assert_array_equal(single.agreement[0].values, found.agreement[1].values)
    for part in found.agreement:
        values = np.empty((9, 3))
        disjoint = N // part.size
        for trial in range(9):
            ((_, _, key),) = Plan(part.size, part.size / N, trial + 1, 1, 4).passes[trial]
            u = np.empty(N)
            random.uniform_at(np.uint64(key), np.uint64(random.SUBSET), np.arange(N), u)
            keep = np.floor(u * N / part.size) == trial % disjoint
            assert abs(keep.sum() - part.size) < 5 * np.sqrt(part.size)
            alone = replace(by, ridge=part.size**-0.25)
            for m, name in enumerate(part.names):
                source = from_arrays(logits=models[name][keep], labels=y[keep])
                values[trial, m] = evaluate(source, [alone]).estimates[0].value
        np.testing.assert_allclose(part.values, values, rtol=1e-8)
        whole = [found[name].value for name in part.names]
        taus = [kendalltau(whole, row).statistic for row in values]
        assert part.tau == pytest.approx(np.mean(taus))
        assert part.same == np.mean(np.argsort(values, axis=1) == np.arange(3), axis=1).tolist(
        ).count(1.0) / 9  # fmt: skip
        assert part.same_best == np.mean(values.argmin(1) == 0)


def test_plan__draws_disjoint_subsets_before_it_draws_again():
    plan = Plan(100, 0.1, 25, 8, 0)
    flat = [draw for draws in plan.passes for draw in draws]
    assert [sum(count for _, count, _ in draws) for draws in plan.passes] == [8, 8, 8, 1]
    keys = list(dict.fromkeys(key for _, _, key in flat))
    taken = {key: [] for key in keys}
    for first, count, key in flat:
        taken[key] += range(first, first + count)
    assert [taken[key] for key in keys] == [[*range(10)], [*range(10)], [*range(5)]]


@pytest.mark.parametrize("by", [ECE(), SimplexECE(), JKCE(RandomFourier(10))])
def test_rank__subsets_do_not_depend_on_passes(data, monkeypatch, by):
    models, y = data
    settings = dict(subset_size=100, trials=20)
    one = rank(_sources(models, y), by, **settings).agreement[0]
    monkeypatch.setattr(subsets, "_STATE_BYTES", 1)
    other = rank(_sources(models, y), by, **settings).agreement[0]
    np.testing.assert_allclose(other.values, one.values, rtol=1e-9, atol=1e-15)


def test_agreement__counts_subsets_without_a_value():
    values = np.array([[1.0, 2.0], [2.0, 1.0], [np.nan, 1.0], [1.0, 3.0]])
    found = agreement(5, ["a", "b"], values, [0.1, 0.2])
    assert (found.trials, found.undefined) == (4, 1)
    assert found.same == found.same_best == pytest.approx(2 / 3)
    assert found.tau == pytest.approx(1 / 3)
    assert found.to_dict()["values"]["a"]["mean"] == pytest.approx(4 / 3)
    none = agreement(5, ["a", "b"], values[2:3], [0.1, 0.2])
    assert (none.same, none.tau, none.to_dict()["values"]) == (None, None, {})


def test_rank__agreement_grows_with_the_subsets():
    sources = _simulated(["true", "over"], 4000, over=1.5)
    small, large = rank(sources, subset_size=[40, 1000], trials=40).agreement
    assert small.same < large.same
    assert large.same > 0.9


# ---------------------------------------------------------------- elsewhere, otherwise


def _numbers(found):
    told = found.to_dict()
    for name in ("seconds", "parameters"):
        told.pop(name)
    return told


@pytest.mark.parametrize("by", [CKCE(RandomFourier(10)), ECE()])
def test_rank__does_not_depend_on_where(data, by):
    models, y = data
    sources = _sources(models, y)
    settings = dict(subset_size=150, trials=6, block_rows=100)
    one = rank(sources, by, scheduler="serial", **settings)
    threads = rank(sources, by, scheduler="threads:3", memory_limit="4GB", **settings)
    assert _numbers(threads) == _numbers(one)
    whole = rank(sources, by, **{**settings, "block_rows": None})
    for a, b in zip(one.models, whole.models, strict=True):
        assert (a.name, a.value) == (b.name, pytest.approx(b.value, rel=1e-10))
    np.testing.assert_allclose(
        one.agreement[0].values, whole.agreement[0].values, rtol=1e-9, atol=1e-15
    )


def test_rank__does_not_depend_on_the_order_of_models(data):
    models, y = data
    sources = _sources(models, y)
    one = rank(sources)
    other = rank(dict(reversed(sources.items())))
    assert other.names == one.names
    assert other.differences == one.differences
    np.testing.assert_array_equal(other.probabilities, one.probabilities)


def test_rank__progress_ends(data):
    models, y = data
    seen = []
    rank(_sources(models, y), ECE(), subset_size=100, trials=5, block_rows=100,
         progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert seen == sorted(seen)
    assert seen[-1] == (600, 600)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": Accuracy()}, "not the size"),
        ({"by": ConfidenceGap()}, "not the size"),
        ({"by": KCE(choose=0.2)}, "chosen by power"),
        ({"by": KCE(method="tiles"), "subset_size": 100}, "another method"),
        ({"by": ECE(notion="positive")}, "two classes"),
        ({"subset_size": 1}, "at least 2"),
        ({"subset_size": N + 1}, "more than the 600"),
        ({"subset_size": 100, "trials": 0}, "trials"),
        ({"level": 1.0}, "level"),
        ({"groups": 1}, "groups"),
        ({"seed": -1}, "seed"),
    ],
)
def test_rank__says_what_is_wrong_with_a_setting(data, settings, message):
    models, y = data
    with pytest.raises(OptionError, match=message):
        rank(_sources(models, y), **settings)


def test_rank__needs_models_of_the_same_classes(data):
    models, y = data
    with pytest.raises(OptionError, match="no model"):
        rank({})
    wide = from_arrays(logits=np.zeros((N, 4)), labels=y)
    with pytest.raises(OptionError, match="a has 3, b has 4"):
        rank({"a": from_arrays(logits=models["true"], labels=y), "b": wide})


def test_distinct_names__show_as_much_of_a_path_as_they_must():
    assert distinct_names(["/x/a.zarr", "y/b"]) == ["a", "b"]
    assert distinct_names(["/x/m/p.zarr", "/y/m/p.zarr/", "q"]) == ["x/m/p", "y/m/p", "q"]
    assert distinct_names(["arrays", "arrays", "arrays"]) == ["arrays", "arrays (2)", "arrays (3)"]
    assert distinct_names(["/x/a.zarr", "/x/a", "/a.zarr"]) == ["x/a", "x/a (2)", "/a"]
    assert distinct_names(["a (2)", "a", "a"]) == ["a (2)", "a", "a (3)"]


def test_rank__groups_are_those_of_intervals(data):
    models, y = data
    source = from_arrays(logits=models["shy"], labels=y)
    asked = Intervals(groups=9, level=0.8, seed=5)
    (expected,) = evaluate(source, [ECE()], interval=asked).estimates
    found = rank({"shy": source}, ECE(), groups=9, level=0.8, seed=5)
    _assert_alike(found["shy"].estimate.interval, expected.interval)


# ---------------------------------------------------------------- the command


@pytest.fixture
def run(capsys, monkeypatch):
    """(code, out, err) of a command in this process."""
    monkeypatch.setitem(cli.commands, "rank", command)
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: Any, width: int = 80) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        code: Any = 0
        try:
            main(["rank", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
        return (code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def stores(data, tmp_path):
    models, y = data
    paths = []
    for name in ("bold", "true"):
        paths.append(tmp_path / f"{name}.zarr")
        store = LogitStore.create(paths[-1], classes=3, dtype=np.float64)
        with store.writer() as writer:
            writer.append(models[name], y)
    return paths


def test_rank__paths_are_called_after_their_files(stores):
    assert set(rank(stores, ECE()).names) == {"bold", "true"}
    assert rank(str(stores[0]), ECE()).names == ("bold",)
    assert rank([LogitStore.open(stores[1])], ECE()).names == ("true",)


def test_cli__ranks_two_stores(run, stores, data, tmp_path):
    models, y = data
    path = tmp_path / "r.json"
    code, out, err = run(*stores, "--json", path, "--subset-size", 100, "--trials", 10)
    assert code == 0, err
    told = json.loads(path.read_text())
    expected = rank(
        _sources({name: models[name] for name in ("bold", "true")}, y), subset_size=100, trials=10
    ).to_dict()
    assert told["schema"] == "calibscale.ranking/1"
    for name in ("common", "differences", "agreement", "p_order", "paired"):
        assert told[name] == expected[name]
    assert [model["name"] for model in told["models"]] == ["true", "bold"]
    assert [model["rank_probabilities"] for model in told["models"]] == [
        model["rank_probabilities"] for model in expected["models"]
    ]
    lines = out.splitlines()
    assert lines[0].startswith("2 models by ckce_centred, on the same 600 rows of 3 classes")
    assert lines[2].split()[:2] == ["1", "true"]
    assert lines[3].split()[:2] == ["2", "bold"]
    assert "10 random subsets of 100 rows" in out
    assert err == ""


@pytest.mark.parametrize("width", [80, 120])
def test_cli__tables_fit_the_screen(run, stores, width):
    names = ["--name", "a network of many layers", "--name", "another_network_of_many_more_layers"]
    code, out, _ = run(*stores, *names, "--subset-size", 200, "--trials", 4, width=width)
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out.replace(" … ", "")


def test_cli__options_reach_the_estimator(run, stores):
    code, out, err = run(
        *stores, "--by", "cmmd", "--bandwidth", 0.5, "--ridge", 0.1, "--level", 2, "--features",
        30, "--seed", 7, "--json", "-",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    assert told["estimator"] == "cmmd"
    assert told["parameters"]["seed"] == 7
    common = {name: told["common"][name] for name in ("bandwidth", "ridge", "level", "features")}
    assert common == {"bandwidth": 0.5, "ridge": 0.1, "level": 2.0, "features": 30}
    assert run(*stores, "--by", "ece", "--bins", 9, "--seed", 7, "--quiet")[:2] == (0, "")


def test_cli__says_what_is_wrong(run, stores, tmp_path, data):
    assert run()[0] == 2
    assert run(*stores, "--name", "a")[0] == 2
    assert run(*stores, "--name", "a", "--name", "a")[0] == 2
    assert run(*stores, "--by", "accuracy")[0] == 2
    assert run(*stores, "--by", "ece", "--ridge", 0.1)[0] == 2
    assert run(*stores, "--subset-size", 10_000)[0] == 2
    assert "'--confidence': 95.0 is not in" in run(*stores, "--confidence", 95)[2]
    assert run(stores[0], tmp_path / "none.zarr")[0] == 1
    wide = LogitStore.create(tmp_path / "wide.zarr", classes=4, dtype=np.float64)
    with wide.writer() as writer:
        writer.append(np.zeros((5, 4)), np.zeros(5, int))
    code, _, err = run(stores[0], tmp_path / "wide.zarr")
    assert code == 2
    assert "different numbers of classes" in err


def test_cli__one_rank_is_no_order(run, stores, tmp_path):
    empty = LogitStore.create(tmp_path / "empty.zarr", classes=3, dtype=np.float64)
    with empty.writer() as writer:
        writer.append(np.zeros((5, 3)), np.full(5, -1))
    code, out, _ = run(stores[0], tmp_path / "empty.zarr", "--by", "ece")
    assert code == 0
    assert "empty has no rank" in out
    assert "whole order" not in out


def test_cli__says_that_rows_differ(run, stores, data):
    with LogitStore.open(stores[1]).writer() as writer:
        writer.append(data[0]["true"][:3], np.array([0, -1, 1]))
    code, out, _ = run(*stores, "--by", "ece")
    assert code == 0
    assert "600 to 602 rows" in out
    assert "1 row without a label" in out
    names = ("--name", "a", "--name", "b[/x][red]")  # to be told, not obeyed
    code, out, _ = run(*stores, "--by", "ece", *names)
    assert code == 0
    assert "b[/x][red]: 1 row without a label" in out
    assert "independent samples" in out.replace("\n", " ")


def test_cli__models_that_are_the_same_share_a_rank(run, stores):
    code, out, _ = run(stores[0], stores[0], stores[1], "--json", "-")
    assert code == 0
    assert [model["rank"] for model in json.loads(out)["models"]] == [1, 2, 2]
    code, out, _ = run(stores[0], stores[0], stores[1])
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["1", "2", "2"]


def test_cli__many_models_show_their_neighbours(run, stores):
    code, out, _ = run(*stores, *stores, *stores, "--by", "ece")
    assert code == 0
    assert "of all 15 pairs" in out
    assert out.count("true (2)") == 3  # its own line, and its two neighbours
