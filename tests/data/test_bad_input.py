"""Invalid rows and settings: a clear error that names the row and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibscale import (
    CKCE,
    ECE,
    JKCE,
    KLCE,
    TCE2,
    Accuracy,
    Brier,
    InvalidDataError,
    JKCEBiased,
    LogitStore,
    OptionError,
    RandomFourier,
    calibration_test,
    evaluate,
    from_arrays,
    plan,
    rank,
)
from tests.support.bad_rows import CLASSES, REMEDY, ROWS, columns, run, spoil
from tests.support.slow_cases import some_slow

# ---------------------------------------------------------------- each kind of bad row


# reason that is counted where rows are dropped, and sentence of the error
ANY = {
    "nan": ("KIND is missing", r"'KIND' is missing \(class 2\)"),
    "all nan": ("KIND is missing", r"'KIND' is missing\."),
    "+inf": ("KIND is infinite", r"'KIND' is inf, not a finite number \(class 1\)"),
    "label K": ("labels is not a class", r"'labels' is 4, outside 0\.\.3 \(−1: not yet known\)"),
    "label -2": ("labels is not a class", r"'labels' is -2"),
    "label huge": ("labels is not a class", r"'labels' is 4611686018427387904"),
    "negative weight": ("weights is out of range", r"'weights' is -0\.5"),
    "nan weight": ("weights is missing", r"'weights' is missing"),
    "inf weight": ("weights is out of range", r"'weights' is inf"),
    "no group": ("x0 is infinite", r"'x0' is inf"),
}


# faults of probabilities alone
SIMPLEX = {
    "-inf": ("KIND is infinite", r"'KIND' is -inf, not a finite number \(class 3\)"),
    "negative": (
        "KIND is negative",
        r"-0\.25, a negative .*; if these are logits, pass them as logits= \(ingest",
    ),
    "sum": ("KIND does not sum to 1", r"sum to 1\.01, further from 1 than the tolerance 0\.0001"),
    "zeros": ("KIND does not sum to 1", r"sum to 0, further from 1"),
}

CASES = [("logits", how) for how in ANY] + [("probabilities", how) for how in {**ANY, **SIMPLEX}]


@pytest.mark.parametrize(("kind", "how"), CASES)
@pytest.mark.parametrize("row", [0, 64, ROWS - 1])
def test_evaluate__a_bad_row_is_named_with_its_remedy(kind, how, row):
    data = columns(kind)
    spoil(data, how, row)
    reason, says = (text.replace("KIND", kind) for text in {**ANY, **SIMPLEX}[how])
    with pytest.raises(InvalidDataError, match=says) as caught:
        run(data, group_by="x0")
    assert caught.value.row == row
    assert str(caught.value).startswith(f"row {row} of arrays: ")
    assert REMEDY in str(caught.value)

    result = run(data, group_by="x0", on_invalid="drop")
    assert result.dropped == {reason: 1}
    assert (result.n, result.n_dropped, result.n_unlabelled) == (ROWS - 1, 1, 0)
    # the value is the one of the other rows
    good = np.delete(np.arange(ROWS), row)
    values = next(iter(data.values()))[good]
    w, hit = data["weights"][good], values.argmax(1) == data["labels"][good]
    assert result["accuracy"].value == pytest.approx(w @ hit / w.sum(), rel=1e-13)


def test_evaluate__drop_counts_every_reason_exactly():
    data = columns("probabilities")
    rng = np.random.default_rng(3)
    hows = ["nan", "negative", "sum", "label K", "negative weight", "no group", "+inf", "-inf"]
    # a different count for each fault, so that no two can be exchanged
    counts = dict(zip(hows, [3, 5, 7, 11, 13, 2, 1, 4], strict=True))
    # each row has one fault
    rows = iter(rng.permutation(ROWS))
    expected: dict[str, int] = {}
    bad = []
    for how, count in counts.items():
        for _ in range(count):
            bad.append(next(rows))
            spoil(data, how, bad[-1])
            reason = {**ANY, **SIMPLEX}[how][0].replace("KIND", "probabilities")
            expected[reason] = expected.get(reason, 0) + 1
    unlabelled = [next(rows) for _ in range(17)]
    data["labels"][unlabelled] = -1
    for scheduler in ("serial", "threads:3"):
        result = run(data, group_by="x0", on_invalid="drop", scheduler=scheduler)
        assert result.dropped == expected
        assert result.n_unlabelled == 17
        assert result.n == ROWS - sum(counts.values()) - 17
        assert result.to_dict()["n_dropped"] == sum(counts.values())


def test_evaluate__a_row_with_many_faults_is_counted_once():
    data = columns("probabilities")
    for how in ("nan", "label K", "negative weight", "no group"):
        spoil(data, how, 5)
    result = run(data, group_by="x0", on_invalid="drop")
    # the first fault in the order of checks
    assert result.dropped == {"probabilities is missing": 1}
    assert result.n == ROWS - 1


def test_evaluate__an_unlabelled_row_must_still_be_valid():
    # labels come later, and must not bring a bad prediction with them
    data = columns("probabilities")
    data["labels"][9] = -1
    spoil(data, "negative", 9)
    with pytest.raises(InvalidDataError, match="row 9"):
        run(data)
    data = columns()
    data["labels"][9] = -1
    spoil(data, "nan weight", 9)
    result = run(data, on_invalid="drop")
    assert result.n == ROWS - 1
    assert result.n_dropped + result.n_unlabelled == 1


def test_evaluate__faults_of_columns_that_are_not_used_do_not_matter():
    data = columns()
    spoil(data, "no group", 3)
    assert run(data).n == ROWS
    del data["weights"]
    assert run(data).n == ROWS


@pytest.mark.parametrize("label", [2**64 - 1, 2**63, 2**64 - 2])
def test_evaluate__unsigned_labels_do_not_wrap_around(label):
    data = columns()
    data["labels"] = data["labels"].astype(np.uint64)
    data["labels"][70] = label
    with pytest.raises(InvalidDataError, match=f"row 70 .*'labels' is {label}, outside"):
        run(data)


@pytest.mark.parametrize(
    ("p", "says"),
    [
        (1.25, r"is 1\.25, a probability above 1"),
        (-0.25, r"is -0\.25, a negative probability"),
        (1.001, r"1\.001, a .* above 1; if this is rounding, clip .* pass tolerance=0\.01 \("),
        (97.0, r"97\.0, a probability above 1; in percent\? pass percent=True"),
        (np.nan, "missing"),
        (np.inf, "inf"),
    ],
)
def test_evaluate__a_bad_binary_probability_is_reported_as_stored(p, says):
    rng = np.random.default_rng(0)
    column = rng.uniform(size=200)
    column[150] = p
    with pytest.raises(InvalidDataError, match=says) as caught:
        run(dict(probabilities=column, labels=rng.integers(0, 2, 200), binary=True))
    assert caught.value.row == 150
    assert "negative" not in str(caught.value) or p < 0


def test_evaluate__probabilities_may_miss_one_by_the_tolerance():
    data = columns("probabilities")
    # the default tolerance is 1e-4
    data["probabilities"] *= 1 + 0.9e-4
    assert run(data).n == ROWS
    with pytest.raises(InvalidDataError, match="row 0 "):
        run(data, tolerance=1e-5)
    data["probabilities"] *= 1.01
    assert run(data, tolerance=0.02).n == ROWS


@pytest.mark.parametrize("tolerance", [np.nan, -1e-4, np.inf])
def test_evaluate__impossible_tolerances_are_refused(tolerance):
    with pytest.raises(OptionError, match="tolerance"):
        run(columns("probabilities"), tolerance=tolerance)


def test_evaluate__unknown_settings_are_refused():
    with pytest.raises(OptionError, match="on_invalid must be 'raise' or 'drop', not 'ignore'"):
        run(columns(), on_invalid="ignore")
    with pytest.raises(OptionError, match="unknown scheduler 'quantum'"):
        run(columns(), scheduler="quantum")


# the cause of a sum is guessed from its size
@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (1.002, r"sum to 1 within 0\.002, .*: pass tolerance=0\.01 "),
        (100, r"sum to 100, .*; in percent\? pass percent=True"),
        (7, "sum to 7, .*; if these are logits, pass them as logits="),
        (0.5, r"0\.0001\. Fix"),
    ],
)
def test_evaluate__a_sum_that_is_not_one_gets_a_hint(factor, says):
    q = np.tile([0.75, 0.25], (9, 1))
    q[5] *= factor
    with pytest.raises(InvalidDataError, match=f"^row 5 of mine: .*{says}"):
        run(dict(probabilities=q, labels=np.zeros(9, int), name="mine"))


def test_evaluate__labels_counted_from_one_get_a_hint():
    with pytest.raises(
        InvalidDataError, match=r"not yet known\); counted from 1\? pass class_names=range\(1, 4\)"
    ):
        run(dict(logits=np.zeros((9, 3)), labels=np.arange(9) % 3 + 1))


def test_evaluate__logits_declared_as_probabilities_get_a_hint():
    data = columns()
    with pytest.raises(InvalidDataError, match="if these are logits, pass them"):
        run(dict(probabilities=data["logits"], labels=data["labels"]))


# ---------------------------------------------------------------- the first one


@pytest.fixture(scope="module")
def client():
    """Two worker processes."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Function that writes columns to a store with chunks of 64 rows."""
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 1)

    def write(data: dict[str, np.ndarray]) -> Any:
        store = LogitStore.create(tmp_path / "s.zarr", classes=CLASSES, overwrite=True)
        with store.writer() as writer:
            writer.append(data["logits"], data["labels"])
        return store

    return write


SCHEDULERS = ["serial", "threads:1", "threads:2", "threads:3", "threads:16", "cluster"]


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("first", some_slow([0, 65, 127, 300, ROWS - 1], keep=[127]))
def test_evaluate__the_first_bad_row_is_named_by_every_scheduler(request, stored, scheduler, first):
    data = columns()
    # later bad rows, which threads may find sooner
    for row in (first, *range(first + 1, ROWS, 23)):
        spoil(data, "nan", row)
    store = stored(data)
    where = request.getfixturevalue("client") if scheduler == "cluster" else scheduler
    arrays = from_arrays(logits=data["logits"], labels=data["labels"])
    messages = set()
    for source in (store, arrays):
        for block_rows in (1 if scheduler == "serial" else 16, 64, 200):
            with pytest.raises(InvalidDataError) as caught:
                evaluate(source, [Accuracy()], scheduler=where, block_rows=block_rows)
            assert caught.value.row == first
            messages.add(str(caught.value))
    # the message of a store has the chunk, too
    (of_store, of_arrays) = sorted(messages, key=len, reverse=True)
    place = f"{store.url} (chunk {first // 64} of 64 rows)"
    assert of_store == of_arrays.replace("arrays", place, 1)


@pytest.mark.long
def test_evaluate__the_first_bad_row_is_named_every_time_when_all_are_bad():
    data = columns()
    data["labels"][5:] = 99
    for _ in range(50):  # threads race; the result must not depend on it
        with pytest.raises(InvalidDataError) as caught:
            run(data, scheduler="threads:8", block_rows=8)
        assert caught.value.row == 5


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bad=st.sets(st.integers(0, ROWS - 1), max_size=12),
    block_rows=st.integers(1, ROWS + 1),
    threads=st.integers(1, 5),
)
def test_evaluate__bad_rows_anywhere_are_named_or_dropped(bad, block_rows, threads):
    data = columns()
    for row in bad:
        spoil(data, ["nan", "label K", "+inf"][row % 3], row)
    options = dict(block_rows=block_rows, scheduler=f"threads:{threads}")
    if bad:
        with pytest.raises(InvalidDataError) as caught:
            run(data, **options)
        assert caught.value.row == min(bad)
    result = run(data, on_invalid="drop", **options)
    assert result.n == ROWS - len(bad)
    expected = {
        "labels is not a class": sum(row % 3 == 1 for row in bad),
        "logits is infinite": sum(row % 3 == 2 for row in bad),
        "logits is missing": sum(row % 3 == 0 for row in bad),
    }
    assert result.dropped == {reason: count for reason, count in expected.items() if count}


# ---------------------------------------------------------------- memory, schedulers


@pytest.mark.parametrize("limit", ["1 banana", "two GB", "", "-1GB", -5, 0, "1KB"])
def test_evaluate__impossible_memory_limits_are_refused(limit):
    with pytest.raises(OptionError, match="memory limit"):
        run(columns(), memory_limit=limit)


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", ["threads:0", "local:0", "threads:two", "", "serial:2"])
def test_evaluate__impossible_schedulers_are_refused(scheduler):
    with pytest.raises(OptionError, match="scheduler"):
        run(columns(), scheduler=scheduler)


def test_evaluate__a_foreign_store_of_unequal_lengths_is_invalid(tmp_path):
    z = zarr.create_array(tmp_path / "z", data=np.zeros((9, 3)))
    y = zarr.create_array(tmp_path / "y", data=np.zeros(8, int))
    with pytest.raises(InvalidDataError, match="9 rows of logits, but 8 of labels"):
        from_arrays(logits=z, labels=y)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (ECE, dict(bins=0)),
        (ECE, dict(bins=-3)),
        (ECE, dict(edges="quantile")),
        (ECE, dict(edges=(0.0, 0.5, 0.5, 1.0))),
        (ECE, dict(edges=(1.0, 0.0))),
        (ECE, dict(edges=(0.5,))),
        (ECE, dict(edges=())),
        (ECE, dict(edges=(0.0, np.nan, 1.0))),
        (ECE, dict(edges=(np.nan, np.nan))),
        (ECE, dict(edges=(-np.inf, 0.5, np.inf))),
        (ECE, dict(notion="canonical")),
        (RandomFourier, dict(n_features=0)),
        (RandomFourier, dict(bandwidth=0.0)),
        (RandomFourier, dict(bandwidth=np.nan)),
        (RandomFourier, dict(seed=-1)),
        (RandomFourier, dict(seed=2**64)),
        (CKCE, dict(ridge=-1.0)),
        (CKCE, dict(ridge=0.0)),  # which random frequencies cannot have
        (CKCE, dict(ridge=np.nan)),
        (JKCE, dict(kernel="laplace")),
        (JKCEBiased, dict(kernel="")),
    ],
    ids=str,
)
def test_estimators__impossible_numbers_are_refused(kind, numbers):
    with pytest.raises(OptionError):
        kind(**numbers)


@pytest.mark.parametrize("make", [list, np.array])
def test_estimators__edges_may_be_any_sequence(make):
    data = columns()
    edges = (0.0, 0.4, 0.8, 1.0)
    assert run(data, [ECE(edges=make(edges))])["ece"] == run(data, [ECE(edges=edges)])["ece"]


@pytest.mark.parametrize(
    "verb", [evaluate, calibration_test, plan, rank], ids=lambda verb: verb.__name__
)
@pytest.mark.parametrize("estimators", ["eec", ["ece", "eec(bins=3)"], [ECE, 3], 3], ids=str)
def test_estimators__other_values_are_refused(verb, estimators):
    source = from_arrays(**columns())
    with pytest.raises(OptionError, match=r"an estimator is needed|no estimator 'eec'"):
        verb([source] if verb is rank else source, estimators)


def test_results__can_be_iterated():
    source = from_arrays(**columns())
    estimators = [ECE(), Brier()]
    for results in (
        evaluate(source, estimators),
        calibration_test(source, [ECE(), TCE2()], n_replicates=9),
    ):
        assert len(results) == len(list(results)) == 2
        assert next(iter(results)) is results["ece"]
    ranking = rank({"a": source, "b": source}, ECE())
    assert [model.name for model in ranking] == list(ranking.names)
    assert len(ranking) == 2


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_covariates__too_large_for_distances_are_named():
    data = columns() | {"covariate_names": ("x",)}
    data["covariates"] = data["covariates"] * 1e300
    with pytest.raises(InvalidDataError, match=r"'x', 0 to 2e.300, are too large"):
        run(data, [KLCE(covariates=("x",))])
