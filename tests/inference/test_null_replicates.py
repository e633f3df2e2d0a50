"""Replicates of the nulls: naive values, evaluations of drawn labels, blocks and passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.derived_sources import HoldOut
from calibscale.inference import monte_carlo
from calibscale.inference.testable import has_centred_null
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.soft_labels import SoftLabels
from calibscale.session import Run
from calibscale.statistics import statistic
from calibscale.statistics.null_distributions import DrawnLabels
from tests.support.null_values import (
    BOTH,
    CASES,
    DRAWS,
    FOURIER,
    LOCAL,
    MIXED,
    ONE_PASS,
    ROWS,
    SEED,
    B,
    SimulatedRows,
    assert_same,
    drawn_residuals,
    klce_value,
    labelled_rows,
    notion_of,
    resolved_for,
    rounding_scale,
    run_test,
)
from tests.support.slow_cases import some_slow

every_case = pytest.mark.parametrize("case", CASES)


@pytest.mark.long
@pytest.mark.parametrize("weighted", some_slow([False, True], keep=[True]))
@pytest.mark.parametrize("kind", DRAWS)
@every_case
def test_replicates__are_the_naive_values_of_drawn_residuals(case, kind, weighted):
    requested, naive_value, classes = CASES[case]
    data = labelled_rows(classes, weighted)
    (result,) = run_test(data.source(), requested, null=kind)
    e = resolved_for(requested, data.source())
    if getattr(e.settings, "method", "") == "nystrom":
        e = resolved_for(replace(requested, method="features"), data.source())
    drawn = drawn_residuals(kind, data, notion_of(e))
    expected = [naive_value(e, data, delta) for delta in drawn]
    # an unbiased value is a difference of sums: 1e-13 of their size; spectral: to its tolerance
    digits = 1e-11 if "spectral" in case else 1e-12
    atol = digits * rounding_scale(e, data, naive_value)
    np.testing.assert_allclose(result.null_values, expected, rtol=1e-9, atol=atol)
    observed = naive_value(e, data, data.notion(notion_of(e))[1])
    assert result.value == pytest.approx(observed, rel=1e-9, abs=atol)
    assert (result.replicates, result.n, result.null) == (B, ROWS, kind)
    assert result.notion == getattr(e, "notion", "canonical")
    if not (kind == "permute" and has_centred_null(e)):
        count = (np.array(expected) >= observed - 1e-9 * abs(observed)).sum()
        assert result.exceedances == count
        assert result.p_value == (1 + count) / (B + 1)


@pytest.mark.long
@every_case
def test_labels__replicates_equal_evaluations_of_drawn_labels(case):
    requested, _, classes = CASES[case]
    if "nystrom" in case:
        requested = replace(requested, method="features")
    data = labelled_rows(classes, weighted=True)
    (result,) = run_test(data.source(), requested)
    labels = DrawnLabels(SEED).labels(np.arange(ROWS), data.q, 0, B)
    if isinstance(requested, cs.CKCECentred):  # its noise term is that of the observed labels
        (raw,) = run_test(data.source(), cs.CKCE(FOURIER))
        np.testing.assert_allclose(raw.null_values - result.null_values, raw.value - result.value)
        assert (result.p_value, result.exceedances) == (raw.p_value, raw.exceedances)
        return
    values = [cs.evaluate(data.source(y), [requested]).estimates[0].value for y in labels]
    digits = 1e-11 if "spectral" in case else 1e-13
    np.testing.assert_allclose(result.null_values, values, rtol=1e-9, atol=digits)
    assert result.value == cs.evaluate(data.source(), [requested], block_rows=33).estimates[0].value


def test_draws__follow_their_nulls():
    data = labelled_rows(4)
    delta = data.notion("canonical")[1]
    for drawn in drawn_residuals("labels", data, "canonical"):
        assert (((data.q - drawn) == 0) | np.isclose(data.q - drawn, 1)).all()
        np.testing.assert_allclose((data.q - drawn).sum(1), 1)
    for drawn in drawn_residuals("wild", data, "canonical"):
        assert ((drawn == delta) | (drawn == -delta)).all()
        assert len(np.unique(drawn[:, 0] / delta[:, 0])) == 2
    for drawn in drawn_residuals("permute", data, "canonical"):
        assert (drawn != delta).any()
        np.testing.assert_array_equal(np.sort(drawn[:, 0]), np.sort(delta[:, 0]))
    for drawn in drawn_residuals("residual", data, "canonical"):
        assert np.isin(drawn[:, 0], delta[:, 0]).all()
        assert len(np.unique(drawn[:, 0])) < ROWS


@pytest.mark.long
def test_rows__without_a_label_or_finite_values_do_not_change_draws():
    """Draws of a row depend on its number, not on the other rows."""
    data = labelled_rows(2, weighted=True)
    q, y, x = data.q.copy(), data.y.copy(), data.x.copy()
    y[::5] = -1
    q[3::7] = np.nan
    x[4::11, 0] = np.inf
    valid = (y >= 0) & np.isfinite(q).all(1) & np.isfinite(x).all(1)
    source = SimulatedRows(q, y, x, data.w).source()
    hidden = data.source(np.where(valid, data.y, -1))
    requested = [
        cs.ECE(bins=8),
        cs.CKCE(FOURIER),
        cs.JKCE(FOURIER, method="tiles"),
        cs.KLCE(BOTH, method="tiles", **LOCAL),
        cs.KLCE(**MIXED, method="features", n_features=10),
    ]
    for kind in DRAWS:
        dropped = cs.calibration_test(
            source, requested, null=kind, n_replicates=B, on_invalid="drop"
        )
        alone = cs.calibration_test(hidden, requested, null=kind, n_replicates=B)
        assert dropped.n == alone.n == valid.sum()
        assert dropped.n_dropped + dropped.n_unlabelled == (~valid).sum()
        for a, b in zip(dropped.results, alone.results, strict=True):
            assert (a.n, a.p_value) == (valid.sum(), b.p_value)
            np.testing.assert_allclose(a.null_values, b.null_values, rtol=1e-9, atol=1e-15)
    with pytest.raises(cs.InvalidDataError, match=r"row 4 .*'age' is inf"):
        cs.calibration_test(source, requested, n_replicates=B)


@pytest.fixture(scope="module")
def expected():
    data = labelled_rows(4, weighted=True, n=300)
    return {kind: run_test(data.source(), *ONE_PASS, null=kind, n_replicates=31) for kind in DRAWS}


@pytest.mark.long
@pytest.mark.parametrize("kind", DRAWS)
def test_p_values__do_not_depend_on_blocks_or_engines(expected, kind):
    source = labelled_rows(4, weighted=True, n=300).source()
    for options in (
        {"block_rows": 100},
        {"block_rows": None},
        {"block_rows": 100, "memory_limit": "8GB"},
    ):
        result = run_test(source, *ONE_PASS, null=kind, n_replicates=31, **options)
        assert_same(result, expected[kind], 1e-9)
    threads = run_test(source, *ONE_PASS, null=kind, n_replicates=31, scheduler="threads:2")
    assert_same(threads, expected[kind], 0.0)


@pytest.mark.long
@pytest.mark.parametrize("kind", DRAWS)
def test_p_values__do_not_depend_on_passes(expected, kind, monkeypatch):
    source = labelled_rows(4, weighted=True, n=300).source()
    for name, value in (("_MAX_BATCH", 4), ("_STATE_BYTES", 2**17)):
        with monkeypatch.context() as patched:
            patched.setattr(monte_carlo, name, value)
            # six replicates of all pairs
            patched.setattr("calibscale.inference.nulls._DRAWN", 300 * 4 * 6)
            result = run_test(source, *ONE_PASS, null=kind, n_replicates=31)
        assert_same(result, expected[kind], 1e-9)
    with monkeypatch.context() as patched:
        patched.setattr(statistic, "_DRAWN", 1)  # a chunk is drawn in parts
        patched.setattr("calibscale.statistics.fourier_modes._DRAWN", 1)
        assert_same(run_test(source, *ONE_PASS, null=kind, n_replicates=31), expected[kind], 1e-9)


@pytest.mark.slow
@pytest.mark.cluster
def test_p_values__are_those_of_dask_workers(expected):
    source = labelled_rows(4, weighted=True, n=300).source()
    kind = "permute"  # sends the residuals of all rows to the workers
    result = run_test(source, *ONE_PASS, null=kind, n_replicates=31, scheduler="local:2")
    assert_same(result, expected[kind], 0.0)


def test_replicates__more_of_them_continue_fewer():
    source = labelled_rows(4).source()
    few, many = (run_test(source, *ONE_PASS, n_replicates=count) for count in (5, 8))
    for a, b in zip(few, many, strict=True):
        np.testing.assert_allclose(b.null_values[:5], a.null_values, rtol=1e-12)
    reseeded = run_test(source, *ONE_PASS, n_replicates=5, seed=SEED + 1)
    for a, b in zip(few, reseeded, strict=True):
        assert a.value == b.value
        assert (a.null_values != b.null_values).any()


def _counted_passes(monkeypatch):
    """List that gets an entry for each pass over the data from now on."""
    passes = []
    scan = Run.scan

    def counted(run, needed):
        passes.append(run)
        return scan(run, needed)

    monkeypatch.setattr(Run, "scan", counted)
    return passes


@pytest.mark.parametrize(
    ("estimator", "options", "expected"),
    [
        (cs.ECE(), {}, 999),
        (cs.ECE(), {"memory_limit": "1GB"}, 250),  # four passes of about 256
        (cs.SmoothECE(), {}, 32),  # 8 MB, as chunks are large, and so are their drawn labels
        (cs.ECE(edges="sweep"), {}, 64),  # 32 MB, as each replicate has 2^16 cells
    ],
)
def test_batch__is_smaller_where_replicates_take_much_memory(
    monkeypatch, estimator, options, expected
):
    # The memory of other tests in this process does not count.
    monkeypatch.setattr("calibscale.engine.memory.resident_bytes", lambda: 0)
    source = labelled_rows(4, n=300).source()
    with cs.Session.open(source, **options) as session:
        run = session.run([estimator])
        assert monte_carlo.batch_of(run, 999) == expected


@pytest.mark.parametrize(("replicates", "expected"), [(0, 1024), (199, 1038), (10**6, 512)])
def test_chunks__have_more_rows_for_replicates_with_drawn_labels(replicates, expected):
    rules = Rules("logits", Classes(10), features=2000, replicates=replicates)
    assert rules.compute_rows == expected
    # Other outcomes are not drawn as labels.
    assert replace(rules, target=SoftLabels(10)).compute_rows == 1024


@pytest.mark.long
def test_memory_limit__makes_passes_of_fewer_replicates(monkeypatch):
    """Several passes keep statistics with large states below the limit."""
    source = labelled_rows(4, n=300).source()
    # A sweep chooses its bins by the labels, so that each replicate has the sums of 2^16 cells.
    requested = [cs.ECE(edges="sweep"), cs.TCE2(edges="sweep"), cs.MCE(edges="netcal")]
    plain = run_test(source, *requested, n_replicates=40)
    passes = _counted_passes(monkeypatch)
    monkeypatch.setattr("calibscale.engine.memory.resident_bytes", lambda: 0)
    small = run_test(source, *requested, n_replicates=40, memory_limit=150_000_000)
    assert_same(small, plain, 1e-12)
    assert len(passes) > 1


@pytest.mark.long
@pytest.mark.parametrize("cluster", [None, "group"])
def test_equal_mass__replicates_of_few_sums_have_the_values_of_all_cells(monkeypatch, cluster):
    """The bins are known after the first pass, and a second pass draws all replicates."""
    rng = np.random.default_rng(3)
    n = 500
    # Several cells end at ½, so that edges alone do not say in which bin ½ is.
    p = rng.choice([0.1, 0.25, 0.5, 0.5, 0.75, 0.8], n)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(n) < 0.9 * p).astype(int),
        weights=rng.random(n),
        covariates=rng.integers(0, 150, (n, 1)).astype(float),
        covariate_names=["group"],
        binary=True,
    )
    requested = [
        kind(edges=edges, bins=3)
        for kind in (cs.ECE, cs.MCE, cs.TCE2, cs.TCE2Debiased)
        for edges in ("equal-mass", "cube-root")
    ]
    passes = _counted_passes(monkeypatch)
    merged = run_test(source, *requested, n_replicates=60, cluster=cluster)
    assert len(passes) == 2
    for kind in (cs.ECE, cs.MCE, cs.TCE2, cs.TCE2Debiased):
        monkeypatch.setattr(kind, "has_smaller_replicates", False)
    assert_same(merged, run_test(source, *requested, n_replicates=60, cluster=cluster), 1e-12)


def test_factors_of_signed_residuals__do_not_depend_on_the_batch(monkeypatch):
    """They come from 64 replicates, for which a batch of ten takes a further pass."""
    rng = np.random.default_rng(6)
    p = rng.random(300)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(300) < p).astype(int),
        covariates=(np.arange(300.0) // 3)[:, None],
        covariate_names=["cluster"],
        binary=True,
    )
    requested = [cs.ECE(bins=6), cs.TCE2Debiased(bins=4)]
    plain = run_test(source, *requested, n_replicates=99, cluster="cluster")
    passes = _counted_passes(monkeypatch)
    monkeypatch.setattr(monte_carlo, "_MAX_BATCH", 10)
    reports = []
    small = run_test(
        source,
        *requested,
        n_replicates=99,
        cluster="cluster",
        progress=lambda done, total: reports.append((done, total)),
    )
    assert_same(small, plain, 1e-12)
    assert len(passes) == 11
    assert reports[-1][0] == reports[-1][1]


@pytest.mark.long
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("method", ["tiles", "spectral", "features"])
def test_hold_out__is_no_part_of_the_test(method, kind):
    data = labelled_rows(2, n=400)
    requested = cs.KLCE(BOTH, method=method, bandwidth_share=0.3, n_features=20, tolerance=1e-9)
    (result,) = run_test(data.source(), requested, null=kind, block_rows=57)
    (again,) = run_test(data.source(), requested, null=kind, block_rows=None)
    assert_same([result], [again], 1e-8)
    tested = ~HoldOut(0.3).holds(np.arange(400))
    assert result.n == tested.sum() < 400
    e = resolved_for(requested, data.source())
    drawn = drawn_residuals(kind, data, "positive")
    alone = SimulatedRows(data.q[tested], data.y[tested], data.x[tested], None)
    expected = [klce_value(e, alone, delta[tested]) for delta in drawn]
    np.testing.assert_allclose(result.null_values, expected, rtol=1e-6, atol=1e-10)
