"""Bad rows and hopeless data: a clear error that names the row, or a defined result."""

from __future__ import annotations

import json
import math
import re
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
    NLL,
    TCE2,
    Accuracy,
    Brier,
    InvalidDataError,
    JKCEBiased,
    LogitStore,
    OptionError,
    RandomFourier,
    StoreError,
    evaluate,
    from_arrays,
    plan,
    rank,
    test,
)
from calibscale.scan import MAX_GROUPS

ROWS, CLASSES, BLOCK = 700, 4, 64
REMEDY = "on_invalid='drop' (--on-invalid drop)"


def columns(kind: str = "logits", rows: int = ROWS) -> dict[str, np.ndarray]:
    """Good rows."""
    rng = np.random.default_rng(7)
    z = rng.normal(size=(rows, CLASSES))
    if kind == "probabilities":
        z = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return {
        kind: z,
        "labels": rng.integers(0, CLASSES, rows),
        "covariates": rng.integers(0, 3, (rows, 1)).astype(float),
        "weights": rng.uniform(0.5, 2.0, rows),
    }


FAST = (Accuracy(),)


def run(given: dict[str, Any], estimators: Any = FAST, **options: Any) -> Any:
    chosen = None if estimators is None else list(estimators)
    return evaluate(from_arrays(**given), chosen, **{"block_rows": BLOCK, **options})


def assert_json_is_clean(result: Any) -> dict:
    """No NaN or ∞ anywhere, and a reason beside every value that is null."""
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    everyone = list(found["results"])
    for group in found.get("groups", {}).get("values", []):
        everyone += group["results"]
    for estimate in everyone:
        assert estimate["interval"] is None
        if estimate["value"] is None or (estimate["squared"] and estimate["root"] is None):
            assert estimate["reason"], estimate["estimator"]
    return found


# ---------------------------------------------------------------- each kind of bad row


def spoil(given: dict[str, Any], how: str, row: int) -> None:
    """Break one row."""
    kind = "logits" if "logits" in given else "probabilities"
    q = given[kind][row]
    if how == "nan":
        q[2] = np.nan
    elif how == "all nan":
        q[:] = np.nan
    elif how == "+inf":
        q[1] = np.inf
    elif how == "-inf":
        q[3] = -np.inf
    elif how == "negative":
        q[0] = -0.25
    elif how == "sum":
        q *= 1.01
    elif how == "zeros":
        q[:] = 0.0
    elif how == "label K":
        given["labels"][row] = CLASSES
    elif how == "label -2":
        given["labels"][row] = -2
    elif how == "label huge":
        given["labels"][row] = 2**62
    elif how == "negative weight":
        given["weights"][row] = -0.5
    elif how == "nan weight":
        given["weights"][row] = np.nan
    elif how == "inf weight":
        given["weights"][row] = np.inf
    elif how == "no group":
        given["covariates"][row] = np.nan


ANY = {
    "nan": ("not_finite", r"contain nan \(class 2\)"),
    "all nan": ("not_finite", r"are NaN \(a missing chunk of a store reads like this\)"),
    "+inf": ("not_finite", r"contain inf \(class 1\)"),
    "-inf": ("not_finite", r"contain -inf \(class 3\)"),
    "label K": ("label_out_of_range", r"its label is 4, outside 0\.\.3 \(−1: not yet known\)"),
    "label -2": ("label_out_of_range", r"its label is -2"),
    "label huge": ("label_out_of_range", r"its label is 4611686018427387904"),
    "negative weight": ("bad_weight", r"its weight is -0\.5"),
    "nan weight": ("bad_weight", r"its weight is nan"),
    "inf weight": ("bad_weight", r"its weight is inf"),
    "no group": ("no_group", r"its group is NaN"),
}
SIMPLEX = {
    "negative": ("negative_probability", r"-0\.25; if these are logits, say so: logits= \(ingest"),
    "sum": ("off_simplex", r"sum to 1\.01, further from 1 than the tolerance 0\.0001"),
    "zeros": ("off_simplex", r"sum to 0, further from 1"),
}
CASES = [("logits", how) for how in ANY] + [("probabilities", how) for how in {**ANY, **SIMPLEX}]


@pytest.mark.parametrize(("kind", "how"), CASES)
@pytest.mark.parametrize("row", [0, 64, ROWS - 1])
def test_evaluate__a_bad_row_is_named_with_its_remedy(kind, how, row):
    given = columns(kind)
    spoil(given, how, row)
    reason, says = {**ANY, **SIMPLEX}[how]
    with pytest.raises(InvalidDataError, match=says) as caught:
        run(given, group_by="x0")
    assert caught.value.row == row
    assert str(caught.value).startswith(f"row {row} of arrays: ")
    assert REMEDY in str(caught.value)

    result = run(given, group_by="x0", on_invalid="drop")
    assert result.dropped == {reason: 1}
    assert (result.n, result.n_dropped, result.n_unlabelled) == (ROWS - 1, 1, 0)
    good = np.delete(np.arange(ROWS), row)
    values = next(iter(given.values()))[good]
    w, hit = given["weights"][good], values.argmax(1) == given["labels"][good]
    assert result["accuracy"].value == pytest.approx(w @ hit / w.sum(), rel=1e-13)


def test_evaluate__drop_counts_every_reason_exactly():
    given = columns("probabilities")
    rng = np.random.default_rng(3)
    hows = ["nan", "negative", "sum", "label K", "negative weight", "no group", "+inf", "-inf"]
    counts = dict(zip(hows, [3, 5, 7, 11, 13, 2, 1, 4], strict=True))
    rows = iter(rng.permutation(ROWS))
    expected: dict[str, int] = {}
    bad = []
    for how, count in counts.items():
        for _ in range(count):
            bad.append(next(rows))
            spoil(given, how, bad[-1])
            reason = {**ANY, **SIMPLEX}[how][0]
            expected[reason] = expected.get(reason, 0) + 1
    unlabelled = [next(rows) for _ in range(17)]
    given["labels"][unlabelled] = -1
    for scheduler in ("serial", "threads:3"):
        result = run(given, group_by="x0", on_invalid="drop", scheduler=scheduler)
        assert result.dropped == expected
        assert result.n_unlabelled == 17
        assert result.n == ROWS - sum(counts.values()) - 17
        assert result.to_dict()["n_dropped"] == sum(counts.values())


def test_evaluate__a_row_with_many_faults_is_counted_once():
    given = columns("probabilities")
    for how in ("nan", "label K", "negative weight", "no group"):
        spoil(given, how, 5)
    result = run(given, group_by="x0", on_invalid="drop")
    assert result.dropped == {"not_finite": 1}
    assert result.n == ROWS - 1


def test_evaluate__an_unlabelled_row_must_still_be_sound():
    given = columns("probabilities")
    given["labels"][9] = -1
    spoil(given, "negative", 9)
    with pytest.raises(InvalidDataError, match="row 9"):
        run(given)
    given = columns()
    given["labels"][9] = -1
    spoil(given, "nan weight", 9)
    result = run(given, on_invalid="drop")
    assert result.n == ROWS - 1
    assert result.n_dropped + result.n_unlabelled == 1


def test_evaluate__faults_of_columns_that_are_not_used_do_not_matter():
    given = columns()
    spoil(given, "no group", 3)
    assert run(given).n == ROWS
    del given["weights"]
    assert run(given).n == ROWS


@pytest.mark.parametrize("label", [2**64 - 1, 2**63, 2**64 - 2])
def test_evaluate__unsigned_labels_do_not_wrap_around(label):
    given = columns()
    given["labels"] = given["labels"].astype(np.uint64)
    given["labels"][70] = label
    with pytest.raises(InvalidDataError, match=f"row 70 .*its label is {label}, outside"):
        run(given)


@pytest.mark.parametrize(
    ("p", "says"),
    [
        (1.25, r"its probability is 1\.25|probability 1\.25, above 1"),
        (-0.25, r"negative probability -0\.25"),
        (1.00001, "above 1; if this is rounding, clip it"),
        (97.0, r"probability 97, above 1; in percent\? divide by 100"),
        (np.nan, "NaN"),
        (np.inf, "inf"),
    ],
)
def test_evaluate__a_bad_binary_probability_is_told_as_it_stands(p, says):
    rng = np.random.default_rng(0)
    column = rng.uniform(size=200)
    column[150] = p
    with pytest.raises(InvalidDataError, match=says) as caught:
        run(dict(probabilities=column, labels=rng.integers(0, 2, 200), binary=True))
    assert caught.value.row == 150
    assert "negative probability 1.25" not in str(caught.value)


def test_evaluate__probabilities_may_miss_one_by_the_tolerance():
    given = columns("probabilities")
    given["probabilities"] *= 1 + 0.9e-4
    assert run(given).n == ROWS
    with pytest.raises(InvalidDataError, match="row 0 "):
        run(given, tolerance=1e-5)
    given["probabilities"] *= 1.01
    assert run(given, tolerance=0.02).n == ROWS


@pytest.mark.parametrize("tolerance", [np.nan, -1e-4, np.inf])
def test_evaluate__impossible_tolerances_are_refused(tolerance):
    with pytest.raises(OptionError, match="tolerance"):
        run(columns("probabilities"), tolerance=tolerance)


def test_evaluate__unknown_settings_are_refused():
    with pytest.raises(OptionError, match="on_invalid must be 'raise' or 'drop', not 'ignore'"):
        run(columns(), on_invalid="ignore")
    with pytest.raises(OptionError, match="unknown scheduler 'quantum'"):
        run(columns(), scheduler="quantum")


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (1.002, r"sum to 1 within 0\.002, .*: pass tolerance=0\.01 "),
        (100, r"sum to 100, .*; in percent\? divide by 100"),
        (7, "sum to 7, .*; if these are logits, say so: logits="),
        (0.5, r"0\.0001\. Mend"),
    ],
)
def test_evaluate__a_sum_that_is_not_one_says_what_it_may_be(factor, says):
    q = np.tile([0.75, 0.25], (9, 1))
    q[5] *= factor
    with pytest.raises(InvalidDataError, match=f"^row 5 of mine: .*{says}"):
        run(dict(probabilities=q, labels=np.zeros(9, int), name="mine"))


def test_evaluate__labels_counted_from_one_are_noticed():
    with pytest.raises(InvalidDataError, match=r"not yet known\); counted from 1\? subtract 1"):
        run(dict(logits=np.zeros((9, 3)), labels=np.arange(9) % 3 + 1))


def test_evaluate__logits_declared_as_probabilities_are_noticed():
    given = columns()
    with pytest.raises(InvalidDataError, match="if these are logits, say so"):
        run(dict(probabilities=given["logits"], labels=given["labels"]))


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
    """Writes columns into a store with chunks of 64 rows."""
    monkeypatch.setattr("calibscale.source._BLOCK_NUMBERS", 1)

    def write(given: dict[str, np.ndarray]) -> Any:
        store = LogitStore.create(tmp_path / "s.zarr", classes=CLASSES, overwrite=True)
        with store.writer() as writer:
            writer.append(given["logits"], given["labels"])
        return store

    return write


SCHEDULERS = ["serial", "threads:1", "threads:2", "threads:3", "threads:16", "cluster"]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("first", [0, 65, 127, 300, ROWS - 1])
def test_evaluate__the_first_bad_row_is_named_by_every_scheduler(request, stored, scheduler, first):
    given = columns()
    for row in (first, *range(first + 1, ROWS, 23)):
        spoil(given, "nan", row)
    store = stored(given)
    where = request.getfixturevalue("client") if scheduler == "cluster" else scheduler
    arrays = from_arrays(logits=given["logits"], labels=given["labels"])
    messages = set()
    for source in (store, arrays):
        for block_rows in (1 if scheduler == "serial" else 16, 64, 200):
            with pytest.raises(InvalidDataError) as caught:
                evaluate(source, [Accuracy()], scheduler=where, block_rows=block_rows)
            assert caught.value.row == first
            messages.add(str(caught.value))
    (of_store, of_arrays) = sorted(messages, key=len, reverse=True)
    place = f"{store.url} (chunk {first // 64} of 64 rows)"
    assert of_store == of_arrays.replace("arrays", place, 1)


def test_evaluate__the_first_bad_row_is_named_every_time_when_all_are_bad():
    given = columns()
    given["labels"][5:] = 99
    for _ in range(50):  # threads race; the answer must not
        with pytest.raises(InvalidDataError) as caught:
            run(given, scheduler="threads:8", block_rows=8)
        assert caught.value.row == 5


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bad=st.sets(st.integers(0, ROWS - 1), max_size=12),
    block_rows=st.integers(1, ROWS + 1),
    threads=st.integers(1, 5),
)
def test_evaluate__bad_rows_anywhere(bad, block_rows, threads):
    given = columns()
    for row in bad:
        spoil(given, ["nan", "label K", "+inf"][row % 3], row)
    options = dict(block_rows=block_rows, scheduler=f"threads:{threads}")
    if bad:
        with pytest.raises(InvalidDataError) as caught:
            run(given, **options)
        assert caught.value.row == min(bad)
    result = run(given, on_invalid="drop", **options)
    assert result.n == ROWS - len(bad)
    expected = {
        "label_out_of_range": sum(row % 3 == 1 for row in bad),
        "not_finite": sum(row % 3 != 1 for row in bad),
    }
    assert result.dropped == {reason: count for reason, count in expected.items() if count}


# ---------------------------------------------------------------- little or nothing to go by


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_evaluate__one_row_gives_values_or_reasons(kind):
    given = columns(kind, rows=1)
    result = run(given, None, group_by="x0")
    assert_json_is_clean(result)
    z = given[kind][0]
    q = z if kind == "probabilities" else np.exp(z) / np.exp(z).sum()
    y = given["labels"][0]
    assert result.n == 1
    assert result["accuracy"].value == float(q.argmax() == y)
    assert result["nll"].value == pytest.approx(-math.log(q[y]))
    gap = abs(q.max() - float(q.argmax() == y))
    assert result["ece"].value == pytest.approx(gap)
    assert result["mce"].value == pytest.approx(gap)
    assert result["tce2"].value == pytest.approx(gap**2)
    assert result["tce2_debiased"].value == 0.0
    assert result["jkce"].value is None
    assert "two rows" in result["jkce"].reason
    assert result["jkce_biased"].value > 0


@pytest.mark.parametrize("present", [0, 3])
def test_evaluate__one_class_present_is_no_trouble(present):
    given = columns("probabilities")
    given["labels"][:] = present
    result = run(given, None)
    assert_json_is_clean(result)
    assert result.source["classes"] == CLASSES  # from the shape, not from the labels
    w, q = given["weights"], given["probabilities"]
    expected = w @ ((q - np.eye(CLASSES)[present]) ** 2).sum(1) / w.sum()
    assert result["brier"].value == pytest.approx(expected, rel=1e-13)
    assert len(result["cwce2"].details["by_class"]) == CLASSES


@pytest.mark.parametrize("classes", [2, 150])
def test_evaluate__every_estimator_gives_a_value_or_a_reason(classes):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(50, classes))
    result = evaluate(from_arrays(logits=z, labels=rng.integers(0, classes, 50)))
    found = assert_json_is_clean(result)
    missing = {e["estimator"]: e["reason"] for e in found["results"] if e["value"] is None}
    assert set(missing) == ({"simplex_ece"} if classes == 150 else set())


@pytest.mark.parametrize("nothing", ["dropped", "unlabelled", "either", "weightless"])
@pytest.mark.parametrize("group_by", [None, "x0"])
@pytest.mark.parametrize("rows", [1, 5, 1500])
def test_evaluate__nothing_left_is_a_defined_result(nothing, group_by, rows):
    given = columns(rows=rows)
    unlabelled = {"unlabelled": rows, "either": rows // 2}.get(nothing, 0)
    dropped = {"dropped": rows, "either": rows - rows // 2}.get(nothing, 0)
    given["labels"][:unlabelled] = -1
    given["logits"][rows - dropped :] = np.nan
    if nothing == "weightless":
        given["weights"][:] = 0.0
    result = run(given, None, group_by=group_by, on_invalid="drop")
    assert (result.n_unlabelled, result.n_dropped) == (unlabelled, dropped)
    assert result.n == 0
    found = assert_json_is_clean(result)
    assert {estimate["value"] for estimate in found["results"]} == {None}


def test_evaluate__rows_of_weight_zero_count_as_if_absent():
    given = columns("probabilities")
    given["weights"][::3] = 0.0
    kept = {name: array[given["weights"] > 0] for name, array in given.items()}
    a, b = run(given, None), run(kept, None)
    assert a.n == b.n == len(kept["labels"])
    for one, other in zip(a.estimates, b.estimates, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-9), one.estimator
        assert one.n == other.n == a.n, one.estimator
        assert one.parameters == other.parameters  # the default bandwidth among them
        bins = [[row["count"] for row in e.details.get("bins", ())] for e in (one, other)]
        assert bins[0] == bins[1]


def test_bandwidth__is_that_of_rows_with_weight_where_they_are_few(rng):
    """2 % of 20,000 rows, whose predictions lie closer together than those of the others."""
    n = 20_000
    weights = (rng.random(n) < 0.02).astype(float)
    p = np.where(weights > 0, rng.uniform(0.4, 0.6, n), rng.random(n))
    sources = [
        from_arrays(probabilities=p[keep], labels=np.ones(keep.sum(), int), weights=weights[keep],
                    binary=True)
        for keep in (weights >= 0, weights > 0)
    ]  # fmt: skip
    found = [evaluate(s, JKCE()).estimates[0].parameters["bandwidth"] for s in sources]
    assert found[0] == pytest.approx(found[1], rel=0.05)


@pytest.mark.parametrize("scale", [1e-60, 1e-3, 1e60])
def test_evaluate__the_scale_of_weights_does_not_matter(scale):
    given = columns("probabilities")
    a = run(given, None)
    b = run({**given, "weights": given["weights"] * scale}, None)
    for one, other in zip(a.estimates, b.estimates, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-9), one.estimator


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_evaluate__weights_whose_squares_overflow_never_give_a_wrong_number():
    given = columns("probabilities")
    sane = run(given, None)
    for factor in (1e90, 1e-90):
        result = run({**given, "weights": given["weights"] * factor}, None)
        assert_json_is_clean(result)
        for found, expected in zip(result.estimates, sane.estimates, strict=True):
            assert found.value == pytest.approx(expected.value, rel=1e-9), found.estimator
    for factor in (1e300, 1e-300):
        with pytest.raises(InvalidDataError, match=r"row 0 .* neither 0 nor in 1e-100\.\.1e\+100"):
            run({**given, "weights": given["weights"] * factor}, None)


@pytest.mark.parametrize("size", [1e3, 1e15, 1e300])
def test_evaluate__huge_logits_are_no_trouble(size):
    rng = np.random.default_rng(0)
    z, y = size * rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    result = evaluate(from_arrays(logits=z, labels=y))
    assert_json_is_clean(result)
    hit = z.argmax(1) == y
    assert result["accuracy"].value == np.mean(hit)
    top = np.partition(z, 1, axis=1)
    assert (top[:, 2] - top[:, 1]).min() > 1  # so that all predictions are nearly one-hot
    nll = np.where(hit, 0.0, z.max(1) - z[np.arange(300), y])
    assert result["nll"].value == pytest.approx(np.mean(nll), rel=1e-2)


def test_evaluate__an_impossible_event_that_happened_is_infinite_with_a_reason():
    q = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    result = evaluate(from_arrays(probabilities=q, labels=np.array([1, 0, 1])))
    found = assert_json_is_clean(result)
    nll = next(e for e in found["results"] if e["estimator"] == "nll")
    assert nll["value"] is None
    assert "inf" in nll["reason"]
    assert result["brier"].value == pytest.approx((2.0 + 0.5 + 0.0) / 3)


def test_evaluate__equal_predictions_have_a_bandwidth():
    given = dict(probabilities=np.full((100, 4), 0.25), labels=np.arange(100) % 4)
    result = run(given, None)
    assert_json_is_clean(result)
    assert result["ckce"].parameters["bandwidth"] == 1.0
    assert result["brier"].value == pytest.approx(0.75)
    assert result["ece"].value == pytest.approx(0.0, abs=1e-15)  # argmax of equals: the first
    assert result["accuracy"].value == 0.25


def test_evaluate__no_estimators_still_check_and_count():
    given = columns()
    given["labels"][3] = -1
    result = run(given, [])
    assert (result.n, result.n_unlabelled, result.estimates) == (ROWS - 1, 1, ())
    spoil(given, "nan", 7)
    with pytest.raises(InvalidDataError, match="row 7 "):
        run(given, [])


def test_evaluate__the_same_estimator_twice_is_two_equal_results():
    result = run(columns(), [ECE(), Accuracy(), ECE(), ECE(bins=3)])
    assert [e.estimator for e in result.estimates] == ["ece", "accuracy", "ece", "ece"]
    assert result.estimates[0] == result.estimates[2] != result.estimates[3]


# ---------------------------------------------------------------- groups


def test_evaluate__groups_are_what_their_rows_alone_give():
    given = columns("probabilities")
    for value in (0.0, -1.5, np.inf, 1e300):
        given["covariates"][np.random.default_rng(int(value == 0)).integers(0, ROWS, 60)] = value
    result = run(given, [Accuracy(), NLL(), ECE()], group_by="x0")
    column = given["covariates"][:, 0]
    assert list(result.groups) == sorted(set(column.tolist()))
    for value, estimates in result.groups.items():
        rows = column == value
        w, hit = given["weights"][rows], given["probabilities"][rows].argmax(1)
        expected = w @ (hit == given["labels"][rows]) / w.sum()
        assert estimates[0].value == pytest.approx(expected, rel=1e-12)
        assert estimates[0].n == rows.sum()
    assert_json_is_clean(result)


def test_evaluate__as_many_groups_as_allowed_and_one_more():
    rows = MAX_GROUPS + 1
    rng = np.random.default_rng(0)
    given = dict(
        logits=rng.normal(size=(rows, 3)),
        labels=rng.integers(0, 3, rows),
        covariates=np.minimum(np.arange(rows), MAX_GROUPS - 1)[:, None],
    )
    assert len(run(given, group_by="x0").groups) == MAX_GROUPS
    given["covariates"] = np.arange(rows)[:, None]
    for block_rows in (10, 10**6):  # too many in one block, and too many all together
        for scheduler in ("serial", "threads:3"):
            with pytest.raises(OptionError, match=f"{MAX_GROUPS}.*group by a column with few"):
                run(given, group_by="x0", block_rows=block_rows, scheduler=scheduler)


def test_evaluate__an_unknown_group_column_is_refused_before_reading():
    class Untouchable:
        shape, dtype = (10, 3), np.dtype(float)

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("read")

    given = dict(logits=Untouchable(), labels=np.zeros(10, int), covariates=np.zeros((10, 1)))
    with pytest.raises(OptionError, match="there is no covariate 'sex'; the source has: x0"):
        run(given, group_by="sex")
    with pytest.raises(OptionError, match="there is no covariate 'sex'; the source has: x0"):
        run(given, None, group_by="sex")


# ---------------------------------------------------------------- memory, schedulers


@pytest.mark.parametrize("limit", ["1 banana", "two GB", "", "-1GB", -5, 0, "1KB"])
def test_evaluate__impossible_memory_limits_are_refused(limit):
    with pytest.raises(OptionError, match="memory limit"):
        run(columns(), memory_limit=limit)


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
    given = columns()
    edges = (0.0, 0.4, 0.8, 1.0)
    assert run(given, [ECE(edges=make(edges))])["ece"] == run(given, [ECE(edges=edges)])["ece"]


@pytest.mark.parametrize("verb", [evaluate, test, plan, rank], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("given", ["ece", ["ece"], [ECE, 3], 3], ids=str)
def test_estimators__are_no_names(verb, given):
    source = from_arrays(**columns())
    with pytest.raises(OptionError, match="an estimator is needed, such as ECE"):
        verb([source] if verb is rank else source, given)


def test_results__can_be_gone_through():
    source = from_arrays(**columns())
    asked = [ECE(), Brier()]
    for found in (evaluate(source, asked), test(source, [ECE(), TCE2()], replicates=9)):
        assert len(found) == len(list(found)) == 2
        assert next(iter(found)) is found["ece"]
    ranking = rank({"a": source, "b": source}, ECE())
    assert [model.name for model in ranking] == list(ranking.names)
    assert len(ranking) == 2


@pytest.mark.filterwarnings("error")
def test_covariates__too_large_for_distances_are_named():
    given = columns() | {"covariate_names": ("x",)}
    given["covariates"] = given["covariates"] * 1e300
    with pytest.raises(InvalidDataError, match=r"'x', 0 to 2e.300, are too large"):
        run(given, [KLCE(covariates=("x",))])


# ---------------------------------------------------------------- what networks give


class BFloat16:
    """A tensor of a type that NumPy does not have."""

    shape, dtype = (4, 3), "torch.bfloat16"

    def __array__(self, *arguments: Any) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_bfloat16__is_an_error_that_says_what_to_call(tmp_path):
    labels = np.zeros(4, int)
    with pytest.raises(InvalidDataError, match=r"logits is of bfloat16.*array\.float\(\)"):
        from_arrays(logits=BFloat16(), labels=labels)
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with (
        pytest.raises(InvalidDataError, match=r"bfloat16.*array\.float\(\)"),
        store.writer() as writer,
    ):
        writer.append(BFloat16(), labels)


def test_masked_logits__may_be_large_negative_numbers(rng):
    logits = rng.normal(size=(50, 4))
    logits[:, 2] = -np.inf
    labels = rng.integers(0, 2, 50)
    with pytest.raises(InvalidDataError, match=r"np\.maximum\(logits, -1e4\)\.$"):
        evaluate(from_arrays(logits=logits, labels=labels), [NLL()])
    mended = from_arrays(logits=np.maximum(logits, -1e4), labels=labels)
    without = from_arrays(logits=np.delete(logits, 2, axis=1), labels=labels)
    expected = evaluate(without, [NLL()])["nll"].value
    assert evaluate(mended, [NLL()])["nll"].value == pytest.approx(expected, rel=1e-12)


def test_images__are_pixels_by_the_remedy(rng, tmp_path):
    logits = rng.normal(size=(2, 3, 4, 5))
    labels = rng.integers(0, 3, (2, 4, 5))
    labels[0, 0] = 255
    told = r"np\.moveaxis\(predictions, 1, -1\)\.reshape\(-1, K\).*label −1"
    with pytest.raises(InvalidDataError, match=told):
        from_arrays(logits=logits, labels=labels)
    flat = np.moveaxis(logits, 1, -1).reshape(-1, 3)
    with pytest.raises(InvalidDataError, match=told):
        from_arrays(logits=flat, labels=labels)
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with pytest.raises(InvalidDataError, match=told), store.writer() as writer:
        writer.append(logits, labels)
    mine = labels.reshape(-1)
    with pytest.raises(InvalidDataError, match=r"labels\[labels == 255\] = -1"):
        evaluate(from_arrays(logits=flat, labels=mine), [Accuracy()])
    mine[mine == 255] = -1
    found = evaluate(from_arrays(logits=flat, labels=mine), [Accuracy()])
    assert (found.n, found.n_unlabelled) == (35, 5)


def test_several_labels_a_row__are_judged_one_by_one(rng):
    p = rng.random((30, 4))
    y = (rng.random((30, 4)) < p).astype(int)
    with pytest.raises(InvalidDataError, match=r"several labels a row\?.*binary=True") as told:
        from_arrays(probabilities=p, labels=y)
    assert "argmax" not in str(told.value)
    one = from_arrays(probabilities=p[:, 1], labels=y[:, 1], binary=True)
    assert evaluate(one, [Accuracy()]).n == 30


def test_float16_probabilities__say_how_far_their_sums_are_from_one(rng):
    p = rng.dirichlet(np.ones(1000), 200).astype(np.float16)
    source = from_arrays(probabilities=p, labels=rng.integers(0, 1000, 200))
    with pytest.raises(InvalidDataError, match=r"sum to 1 within .* tolerance=") as told:
        evaluate(source, [Accuracy()], tolerance=1e-5)
    assert "drop" not in str(told.value)
    tolerance = float(re.search(r"tolerance=([\d.e-]+)", str(told.value))[1])
    assert evaluate(source, [Accuracy()], tolerance=tolerance).n == 200


def test_open__a_table_names_the_command_that_makes_a_store(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"is a file.*calibscale ingest .*x\.parquet .*x\.zarr"):
        evaluate(path)
