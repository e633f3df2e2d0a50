"""Intervals: values without some rows against evaluations of the other rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import t as student

import calibscale as cs
from calibscale.intervals.parts_of_rows import Parts, parts_of
from calibscale.intervals.resampling import Bootstrap, Grouped, Jackknife, resampling, total
from calibscale.kernels.pairwise import Pairwise
from calibscale.session import Session
from calibscale.statistics.score_sums import Totals
from tests.support.slow_cases import some_slow

ROWS = 160
GROUPS = 7
SEED = 3
FOURIER = cs.RandomFourier(n_features=12, bandwidth=0.6)
LOCAL = dict(prediction_bandwidth=0.3, covariate_bandwidth={"age": 1.5})
MIXED = dict(covariates=("age", "region"), categorical=("region",), **LOCAL)


@dataclass
class Data:
    q: np.ndarray
    y: np.ndarray
    x: np.ndarray
    w: np.ndarray | None = None

    def of(self, rows):
        return Data(
            self.q[rows], self.y[rows], self.x[rows], None if self.w is None else self.w[rows]
        )

    @property
    def source(self):
        return cs.from_arrays(
            probabilities=self.q,
            labels=self.y,
            covariates=self.x,
            covariate_names=["age", "region"],
            weights=self.w,
        )


def _data(classes=3, n=ROWS, weighted=False, seed=0):
    rng = np.random.default_rng([seed, classes])
    q = rng.dirichlet(np.full(classes, 0.7), n)
    y = ((0.7 * q + 0.3 / classes).cumsum(1) < rng.random((n, 1))).sum(1)
    x = np.column_stack([rng.normal(3, 2, n), rng.integers(0, 3, n)])
    return Data(q, y, x, rng.uniform(0.2, 3, n) if weighted else None)


def _evaluate(source, estimator, **options):
    return cs.evaluate(source, [estimator], scheduler="serial", **options).estimates[0]


def _value(data, estimator):
    result = _evaluate(data.source, estimator, floor=False).value
    return np.nan if result is None else result


def _parts(source, estimator, requested, **options):
    """Values with rows left out or resampled."""
    with Session.open(source, scheduler="serial", **options) as session:
        run = session.run([estimator])
        (fitted,) = run.chosen
        states = run.scan([*(requested.needs(fitted) or fitted.needs), Totals()]).groups[None]
        pairs = run.pairs() if isinstance(fitted, Pairwise) else None
        if isinstance(fitted, Pairwise):
            value = fitted.solve(pairs).value
        else:
            value = fitted.finalize(*(total(states[s]) for s in requested.needs(fitted))).value
        return parts_of(fitted, requested, states, pairs, value)


def _groups(rows):
    return Grouped(Totals(), GROUPS, SEED).of(np.asarray(rows))


CASES = {
    "ece": (cs.ECE(bins=8), 3),
    "ece equal-mass": (cs.ECE(bins=6, edges="equal-mass"), 3),
    "mce": (cs.MCE(bins=4), 3),
    "tce2": (cs.TCE2(bins=8, notion="positive"), 2),
    "tce2_debiased": (cs.TCE2Debiased(bins=8), 3),
    "cwce2": (cs.CWCE2(bins=5), 3),
    "simplex_ece": (cs.SimplexECE(), 3),
    "brier decomposition": (cs.BrierDecomposition(bins=6), 3),
    "nll decomposition": (cs.NLLDecomposition(bins=6), 3),
    "ckce": (cs.CKCE(FOURIER, ridge=0.05), 3),
    "ckce_centred": (cs.CKCECentred(FOURIER, ridge=0.05), 3),
    "cmmd": (cs.CMMD(FOURIER, ridge=0.05), 3),
    "jkce": (cs.JKCE(FOURIER), 3),
    "jkce gaussian": (cs.JKCE(FOURIER, kernel="gaussian"), 3),
    "jkce_biased": (cs.JKCEBiased(FOURIER), 3),
    "klce spectral": (cs.KLCE(method="spectral", **MIXED), 2),
    "klce spectral kernel_sum": (
        cs.KLCE(method="spectral", normalization="kernel_sum", **MIXED),
        2,
    ),
    "klce features": (cs.KLCE(method="features", n_features=10, **MIXED), 2),
    "klce features canonical": (cs.KLCE(method="features", n_features=10, **MIXED), 3),
    "accuracy": (cs.Accuracy(), 3),
    "brier": (cs.Brier(), 3),
    "nll": (cs.NLL(), 3),
    "confidence_gap": (cs.ConfidenceGap(), 3),
}
LIMITED = {  # cases with limits instead of a jackknife
    "accuracy": "clopper_pearson",
    "mce": "clopper_pearson",
    "confidence_gap": "weighted_counts",
    **dict.fromkeys(("ece", "ece equal-mass", "tce2", "tce2_debiased"), "binned"),
    **dict.fromkeys(("jkce", "jkce gaussian", "jkce_biased", "klce spectral"), "quadratic_form"),
}
every_case = pytest.mark.parametrize("case", CASES)
weights = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])


# ---------------------------------------------------------------- groups left out


@pytest.mark.long
@weights
@every_case
def test_jackknife__equals_evaluations_without_each_group(case, weighted):
    estimator, classes = CASES[case]
    data = _data(classes, weighted=weighted)
    requested = Jackknife(groups=GROUPS, seed=SEED)
    parts = _parts(data.source, estimator, requested, block_rows=33)
    groups = _groups(np.arange(ROWS))
    assert set(groups) == set(range(GROUPS))
    left_out = [_value(data.of(groups != g), estimator) for g in range(GROUPS)]
    # the box of a series depends on the rows: its tolerance is 1e-12
    np.testing.assert_allclose(parts.left_out, left_out, rtol=1e-9, atol=1e-13)
    result = _evaluate(data.source, estimator, block_rows=33, interval=requested)
    assert result.value == pytest.approx(_value(data, estimator), rel=1e-9, abs=1e-13)
    assert result.value == pytest.approx(parts.value, rel=1e-12, abs=1e-14)
    left_out = np.array(left_out)
    error = np.sqrt((GROUPS - 1) * np.mean((left_out - left_out.mean()) ** 2))
    half = student.ppf(0.975, GROUPS - 1) * error
    interval = parts.interval(requested, "")
    assert interval.standard_error == pytest.approx(error, rel=1e-7)
    assert interval.low == pytest.approx(parts.value - half, rel=1e-7, abs=1e-12)
    assert interval.high == pytest.approx(parts.value + half, rel=1e-7, abs=1e-12)
    assert (interval.method, interval.parts, interval.level) == ("jackknife", GROUPS, 0.95)
    if case in LIMITED:
        assert (result.interval.method, result.interval.parts) == (LIMITED[case], 0)
    else:  # at least as wide as drawn labels vary, and never below 0
        assert result.interval.standard_error >= interval.standard_error * (1 - 1e-9)
        assert (result.interval.method, result.interval.parts) == ("jackknife", GROUPS)
        assert not result.squared or result.interval.low >= 0


@weights
def test_jackknife__keeps_the_ridge_of_all_rows(weighted):
    data = _data(3, weighted=weighted)
    for kind in (cs.CKCE, cs.CMMD):
        parts = _parts(data.source, kind(FOURIER), Jackknife(groups=GROUPS, seed=SEED))
        w = np.ones(ROWS) if data.w is None else data.w
        with_ridge = kind(FOURIER, ridge=float((w.sum() ** 2 / (w**2).sum()) ** -0.25))
        groups = _groups(np.arange(ROWS))
        left_out = [_value(data.of(groups != g), with_ridge) for g in range(GROUPS)]
        np.testing.assert_allclose(parts.left_out, left_out, rtol=1e-9)


def test_groups__are_even_and_do_not_depend_on_the_chunk():
    grouped = Grouped(Totals(), 20, 5)
    result = grouped.of(np.arange(20_000))
    counts = np.bincount(result, minlength=20)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    np.testing.assert_array_equal(grouped.of(np.arange(777, 901)), result[777:901])
    assert (Grouped(Totals(), 20, 6).of(np.arange(100)) != result[:100]).any()


def test_covers__distinguishes_biased_estimates():
    data = _data()
    for estimator, covers in (
        (cs.ECE(), "the population and the expectation at this n"),
        (cs.JKCEBiased(FOURIER), "the population and the expectation at this n"),
        (cs.CKCE(FOURIER), "the expectation at this n"),
        (cs.JKCE(FOURIER), "the population"),
        (cs.Brier(), "the population"),
    ):
        assert _evaluate(data.source, estimator, interval="jackknife").interval.covers == covers


def test_level__is_the_quantile_of_t():
    data = _data()
    for groups, level in ((5, 0.5), (20, 0.9), (20, 0.99)):
        result = _evaluate(
            data.source, cs.Brier(), interval=Jackknife(groups=groups, confidence_level=level)
        )
        interval = result.interval
        half = student.ppf(0.5 + level / 2, groups - 1) * interval.standard_error
        assert interval.high - result.value == pytest.approx(half, rel=1e-12)
        assert result.value - interval.low == pytest.approx(half, rel=1e-12)


def test_standard_error__of_a_mean_is_the_usual_one():
    data = _data(n=4000)
    result = _evaluate(data.source, cs.Brier(), interval=Jackknife(groups=1000))
    scores = ((data.q - np.eye(3)[data.y]) ** 2).sum(1)
    usual = scores.std() / np.sqrt(4000)
    assert result.interval.standard_error == pytest.approx(usual, rel=0.1)  # 1000 groups: 2 %


# ---------------------------------------------------------------- rows left out


TILES = {
    "jkce": (cs.JKCE(FOURIER, method="tiles"), 3),
    "jkce gaussian": (cs.JKCE(FOURIER, kernel="gaussian", method="tiles", notion="positive"), 2),
    "jkce top_label": (cs.JKCE(FOURIER, method="tiles", notion="top_label"), 3),
    "jkce_biased": (cs.JKCEBiased(FOURIER, method="tiles"), 3),
    "klce": (cs.KLCE(method="tiles", **MIXED), 2),
    "klce canonical": (cs.KLCE(method="tiles", **MIXED), 3),
    "klce kernel_sum": (cs.KLCE(method="tiles", normalization="kernel_sum", **MIXED), 2),
    "klce linear": (
        cs.KLCE(
            prediction_kernel="linear+gaussian", method="tiles", normalization="kernel_sum", **MIXED
        ),
        3,
    ),
    "kce": (cs.KCE(prediction_bandwidth=0.3, method="tiles"), 3),
}


@pytest.mark.long
@pytest.mark.parametrize("weighted", some_slow([False, True], keep=[True]))
@pytest.mark.parametrize("case", TILES)
def test_tiles__leave_out_one_row_at_a_time(case, weighted):
    estimator, classes = TILES[case]
    n = 30
    data = _data(classes, n, weighted)
    for method in ("jackknife", "bootstrap"):
        parts = _parts(data.source, estimator, resampling(method))
        left_out = [_value(data.of(np.arange(n) != i), estimator) for i in range(n)]
        np.testing.assert_allclose(parts.left_out, left_out, rtol=1e-9, atol=1e-13)
        interval = parts.interval(resampling(method), "")
        assert (interval.method, interval.parts) == ("jackknife", n)
        error = np.sqrt((n - 1) * np.var(left_out))
        assert interval.standard_error == pytest.approx(error, rel=1e-7)
        half = student.ppf(0.975, n - 1) * error
        assert interval.high - interval.low == pytest.approx(2 * half, rel=1e-7)
        result = _evaluate(data.source, estimator, interval=method)
        divided = "kernel_sum" in case or case == "klce linear"
        assert result.interval.method == ("jackknife" if divided else "quadratic_form")
        assert 0 <= result.interval.low <= max(result.value, 0.0) <= result.interval.high


@pytest.mark.parametrize("kernel", ["gaussian", "linear+gaussian"])
def test_tiles__leave_out_rows_alike_in_every_call(kernel):
    """With their padding the rows are 256 for each label."""
    estimator, n = cs.JKCE(FOURIER, kernel=kernel, method="tiles"), 500
    data = _data(2, n)
    left_out = [_parts(data.source, estimator, resampling("jackknife")).left_out for _ in range(3)]
    for again in left_out[1:]:
        np.testing.assert_array_equal(again, left_out[0])
    chosen = [0, 123, n - 1]
    expected_values = [_value(data.of(np.arange(n) != i), estimator) for i in chosen]
    np.testing.assert_allclose(left_out[0][chosen], expected_values, rtol=1e-9)


def test_tiles__rows_without_weight_are_no_parts():
    data = _data(3, 12)
    w = np.ones(12)
    w[4:8] = 0
    heavy = data.of(w > 0)
    for case in ("jkce", "jkce_biased", "klce canonical", "klce linear"):
        estimator = TILES[case][0]
        a, b = (
            _parts(source, estimator, Jackknife())
            for source in (replace(data, w=w).source, heavy.source)
        )
        assert len(a.left_out) == len(b.left_out) == 8
        np.testing.assert_allclose(a.left_out, b.left_out, rtol=1e-9, atol=1e-13)
        x, y = (getattr(p.form, "size", None) for p in (a, b))
        assert x == y or x == pytest.approx(y, rel=1e-9)
        # draws depend on row numbers, so that the limits differ
        for interval in (
            _evaluate(s, estimator, interval="jackknife").interval
            for s in (replace(data, w=w).source, heavy.source)
        ):
            assert interval.low <= max(a.value, 0.0) <= interval.high


@pytest.mark.parametrize("case", TILES)
def test_tiles__two_rows_with_weights_leave_zero_possible(case):
    estimator, classes = TILES[case]
    data = _data(classes, 10)
    for rows in (data.of(slice(2)), replace(data, w=np.array([1.0, 2] + [0] * 8))):
        result = _evaluate(rows.source, estimator, interval="jackknife")
        assert result.value is not None
        assert result.interval is None or result.interval.low == 0 < result.interval.high


@pytest.mark.long
def test_tiles__of_float32_have_the_interval_of_float64():
    data = _data(3, 60)
    estimator = TILES["jkce"][0]
    double = _evaluate(data.source, estimator, interval="jackknife").interval
    single = _evaluate(data.source, replace(estimator, precision="float32"), interval="jackknife")
    assert single.interval.standard_error == double.standard_error


@pytest.mark.long
def test_tiles__of_several_estimators_share_a_checkpoint(tmp_path):
    source = _data(3, 1100).source  # two panels
    estimators = [TILES[case][0] for case in ("jkce", "klce canonical", "klce kernel_sum")]
    plain, first, again = (
        [
            (result.value, result.interval)
            for result in cs.evaluate(
                source, estimators, interval="jackknife", checkpoint=folder
            ).estimates
        ]
        for folder in (None, tmp_path, tmp_path)
    )
    assert plain == first == again


# ---------------------------------------------------------------- groups resampled


def _counts(resamples):
    rng = np.random.default_rng(SEED)
    return rng.multinomial(GROUPS, np.full(GROUPS, 1 / GROUPS), resamples)


@pytest.mark.long
@weights
@every_case
def test_bootstrap__weighs_rows_by_how_often_their_group_is_drawn(case, weighted):
    estimator, classes = CASES[case]
    data = _data(classes, weighted=weighted)
    requested = Bootstrap(groups=GROUPS, seed=SEED, resamples=19)
    parts = _parts(data.source, estimator, requested, block_rows=33)
    groups = _groups(np.arange(ROWS))
    w = np.ones(ROWS) if data.w is None else data.w
    for result, counts in zip(parts.resampled[:4], _counts(19), strict=False):
        drawn = replace(data, w=w * counts[groups])
        assert result == pytest.approx(_value(drawn, estimator), rel=1e-9, abs=1e-13)
        alone = _value(drawn.of(drawn.w > 0), estimator)
        assert result == pytest.approx(alone, rel=1e-9, abs=1e-13)
    spread = parts.resampled - parts.resampled.mean()
    spread *= parts.standard_error / spread.std()
    low, high = parts.value + np.quantile(spread, [0.025, 0.975])
    interval = parts.interval(requested, "")
    assert interval.low == pytest.approx(low, rel=1e-9, abs=1e-13)
    assert interval.high == pytest.approx(high, rel=1e-9, abs=1e-13)
    assert (interval.method, interval.parts) == ("bootstrap", GROUPS)
    assert interval.standard_error == parts.standard_error
    if case not in LIMITED:
        result = _evaluate(data.source, estimator, block_rows=33, interval=requested)
        assert result.interval.method == "bootstrap"
        assert result.interval.standard_error >= parts.standard_error * (1 - 1e-9)


@pytest.mark.long
def test_bootstrap__of_a_mean_is_as_wide_as_the_jackknife():
    data = _data(n=4000)
    requested = [
        resampling(method, groups=200, resamples=1999) for method in ("jackknife", "bootstrap")
    ]
    a, b = (_evaluate(data.source, cs.Brier(), interval=i).interval for i in requested)
    # 200 groups: 5 % of an error, and 2 % for its quantiles
    assert b.high - b.low == pytest.approx(a.high - a.low, rel=0.1)


# ---------------------------------------------------------------- how rows are cut


ONE_PASS = [
    cs.ECE(bins=8),
    cs.CWCE2(bins=5),
    cs.SimplexECE(),
    cs.CKCE(FOURIER),
    cs.JKCE(FOURIER),
    cs.JKCE(FOURIER, method="tiles"),
    cs.KLCE(method="features", n_features=10, **MIXED),
    cs.KLCE(method="spectral", notion="top_label", **MIXED),
    cs.Brier(),
]


@pytest.mark.long
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_intervals__do_not_depend_on_blocks_or_engines(method):
    source = _data(3, 500, weighted=True).source
    requested = resampling(method, resamples=49)

    def intervals(**options):
        result = cs.evaluate(source, ONE_PASS, interval=requested, **options).estimates
        return np.array([(e.value, e.interval.low, e.interval.high) for e in result])

    expected = intervals(scheduler="serial", block_rows=70)
    np.testing.assert_array_equal(intervals(scheduler="threads:2", block_rows=70), expected)
    for rows in (33, None):
        result = intervals(scheduler="serial", block_rows=rows)
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.long
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_group_by__has_the_intervals_of_each_value(method):
    data = _data(3, 300, weighted=True)
    requested = resampling(method, groups=6, resamples=29)
    estimators = [e for e in ONE_PASS if not isinstance(e, cs.KLCE)]
    result = cs.evaluate(
        data.source, estimators, group_by="region", interval=requested, block_rows=50
    )
    assert set(result.groups) == {0.0, 1.0, 2.0}
    for value, estimates in result.groups.items():
        # row numbers, and thus groups, are the same: the other rows have no label
        alone = replace(data, y=np.where(data.x[:, 1] == value, data.y, -1)).source
        for a, b in zip(
            estimates, cs.evaluate(alone, estimators, interval=requested).estimates, strict=True
        ):
            assert a.interval.parts == b.interval.parts
            assert a.interval.low == pytest.approx(b.interval.low, rel=1e-8, abs=1e-12)
            assert a.interval.high == pytest.approx(b.interval.high, rel=1e-8, abs=1e-12)
    ungrouped = cs.evaluate(data.source, estimators, interval=requested).estimates
    for a, b in zip(result.estimates, ungrouped, strict=True):
        assert a.interval.low == pytest.approx(b.interval.low, rel=1e-8, abs=1e-12)


# ---------------------------------------------------------------- few rows, undefined values


@pytest.mark.long
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_groups__without_rows_are_no_parts(method):
    data = _data(3, 12)
    groups = Grouped(Totals(), 20, 0).of(np.arange(12))
    filled = len(np.unique(groups))
    assert filled < 12
    requested = resampling(method, resamples=99)
    for estimator in (cs.ECE(), cs.Brier(), cs.JKCE(FOURIER), cs.CKCE(FOURIER, ridge=0.1)):
        parts = _parts(data.source, estimator, requested)
        assert np.isfinite(parts.left_out).sum() == filled
        left_out = [_value(data.of(groups != g), estimator) for g in np.unique(groups)]
        error = np.sqrt((filled - 1) * np.var(left_out))
        assert parts.standard_error == pytest.approx(error, rel=1e-9)
        result = _evaluate(data.source, estimator, interval=requested)
        assert result.interval.low <= max(result.value, 0.0) <= result.interval.high


@pytest.mark.long
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_values__that_are_undefined_have_no_interval(method):
    data = _data(3, 30, weighted=True)
    estimators = [e for e in ONE_PASS if not isinstance(e, cs.CKCE)]
    hidden = replace(data, y=np.full(30, -1))
    for source in (hidden.source, replace(data, w=np.zeros(30)).source, data.of([0]).source):
        for result in cs.evaluate(source, estimators, interval=method).estimates:
            assert result.interval is None or result.value is not None
            assert (result.value is None) == ("positive weight" in (result.reason or ""))
            if result.interval is not None:  # of one row, with lower limit 0
                assert result.estimator == "ece"
                assert result.interval.low == 0
    two = [e for e in estimators if e.name in ("jkce", "klce")]
    for result in cs.evaluate(data.of([0, 1]).source, two, interval=method).estimates:
        assert result.interval is None or result.interval.low <= max(result.value, 0)


@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_values__that_are_infinite_have_no_interval(method):
    data = _data(3, 30)
    data.q[4], data.y[4] = [1, 0, 0], 1
    result = cs.evaluate(data.source, [cs.NLL(), cs.Brier()], interval=method).estimates
    assert result[0].value == np.inf
    assert result[0].interval is None
    assert result[1].interval is not None


def test_estimates__that_are_unsupported_keep_their_reason():
    source = _data(3, 30).source
    estimators = [cs.ECE(notion="positive"), cs.Brier()]
    result = cs.evaluate(
        source, estimators, on_unsupported="report", interval="jackknife"
    ).estimates
    assert result[0].reason is not None
    assert result[0].interval is None
    assert result[1].interval is not None


@pytest.mark.parametrize(
    "estimator",
    [
        cs.KLCE(method="nystrom", n_features=10, **LOCAL, covariates=("age",)),
        cs.CKCE(FOURIER, method="exact"),
        cs.JKCE(FOURIER, method="blocks", block=20),
        cs.JKCE(FOURIER, method="pairs", n_pairs=100),
    ],
    ids=lambda e: e.method,
)
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_methods__without_values_of_parts_have_no_interval(estimator, method):
    result = _evaluate(_data(3, 60).source, estimator, interval=method)
    assert result.value is not None
    assert result.interval is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "normal"}, "interval must be one of jackknife, bootstrap"),
        ({"confidence_level": 0.0}, "confidence_level must be in"),
        ({"confidence_level": 1.0}, "confidence_level must be in"),
        ({"confidence_level": 95}, "confidence_level must be in"),
        ({"confidence_level": float("nan")}, "confidence_level must be in"),
        ({"groups": 1}, "groups must be in 2..1000"),
        ({"groups": 1001}, "groups must be in 2..1000"),
        ({"resamples": 18}, "resamples must be at least 19"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 2**64}, "seed must be in"),
    ],
)
def test_settings__invalid_values_are_reported(options, match):
    with pytest.raises(cs.OptionError, match=match):
        resampling(**{"method": "bootstrap", **options})


def test_interval__by_name():
    source = _data().source
    with pytest.raises(cs.OptionError, match="interval must be one of"):
        cs.evaluate(source, [cs.ECE()], interval="normal")
    named = _evaluate(source, cs.Brier(), interval="jackknife")
    assert named.interval == _evaluate(source, cs.Brier(), interval=Jackknife()).interval
    assert json.loads(json.dumps(named.to_dict()))["interval"]["parts"] == 20
    assert _evaluate(source, cs.Brier()).interval is None


# ---------------------------------------------------------------- differences


@pytest.mark.long
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_differences__of_models_are_paired(method):
    """The difference of two models' Brier scores is the score of the rows' differences."""
    data = _data(3, 400)
    shrunk = replace(data, q=0.5 * data.q + 0.5 / 3)
    requested = resampling(method, groups=GROUPS, seed=SEED)
    a, b = (_parts(d.source, cs.Brier(), requested) for d in (data, shrunk))
    gap = a - b
    assert gap.value == a.value - b.value
    one_hot = np.eye(3)[data.y]
    scores = ((data.q - one_hot) ** 2 - (shrunk.q - one_hot) ** 2).sum(1)
    groups = _groups(np.arange(400))
    left_out = [scores[groups != g].mean() for g in range(GROUPS)]
    np.testing.assert_allclose(gap.left_out, left_out, rtol=1e-9)
    error = np.sqrt((GROUPS - 1) * np.var(left_out))
    assert gap.standard_error == pytest.approx(error, rel=1e-9)
    interval = gap.interval(requested, "the difference")
    assert interval.low < gap.value < interval.high
    assert (interval.method, interval.covers) == (method, "the difference")
    if method == "bootstrap":
        counts = _counts(requested.resamples)[:, groups]
        resampled = (counts @ scores) / counts.sum(1)
        np.testing.assert_allclose(gap.resampled, resampled, rtol=1e-9, atol=1e-12)
    difference_of_one = a - a
    assert (difference_of_one.value, difference_of_one.standard_error) == (0.0, 0.0)


def test_parts__of_too_few_values_have_no_interval():
    few = Parts(1.0, np.array([np.nan, 2.0]), np.empty(0))
    assert np.isnan(few.standard_error)
    assert few.interval(Jackknife(), "") is None
    undefined = Parts(float("nan"), np.array([1.0, 2.0]), np.empty(0))
    assert undefined.interval(Jackknife(), "") is None
