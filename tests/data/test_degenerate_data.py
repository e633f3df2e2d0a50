"""Data with little to estimate from: a defined result or a reason, never a wrong number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale import (
    ECE,
    JKCE,
    NLL,
    Accuracy,
    InvalidDataError,
    OptionError,
    StoreError,
    evaluate,
    from_arrays,
)
from calibscale.statistics.one_pass import MAX_GROUPS
from tests.support.bad_rows import CLASSES, ROWS, assert_json_is_clean, columns, run, spoil

# ---------------------------------------------------------------- little or nothing to go by


@pytest.mark.long
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_evaluate__one_row_gives_values_or_reasons(kind):
    data = columns(kind, rows=1)
    result = run(data, None, group_by="x0")
    assert_json_is_clean(result)
    z = data[kind][0]
    q = z if kind == "probabilities" else np.exp(z) / np.exp(z).sum()
    y = data["labels"][0]
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


@pytest.mark.long
@pytest.mark.parametrize("present", [0, 3])
def test_evaluate__one_class_present_is_valid(present):
    data = columns("probabilities")
    data["labels"][:] = present
    result = run(data, None)
    assert_json_is_clean(result)
    assert result.source["classes"] == CLASSES  # from the shape, not from the labels
    w, q = data["weights"], data["probabilities"]
    expected = w @ ((q - np.eye(CLASSES)[present]) ** 2).sum(1) / w.sum()
    assert result["brier"].value == pytest.approx(expected, rel=1e-13)
    assert len(result["cwce2"].details["by_class"]) == CLASSES


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 150])
def test_evaluate__every_estimator_gives_a_value_or_a_reason(classes):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(50, classes))
    result = evaluate(from_arrays(logits=z, labels=rng.integers(0, classes, 50)))
    document = assert_json_is_clean(result)
    missing = {e["estimator"]: e["reason"] for e in document["results"] if e["value"] is None}
    assert set(missing) == ({"simplex_ece"} if classes == 150 else set())


@pytest.mark.parametrize("nothing", ["unlabelled", "either", "weightless"])
@pytest.mark.parametrize("group_by", [None, "x0"])
@pytest.mark.parametrize("rows", [1, 5, 1500])
def test_evaluate__nothing_left_is_a_defined_result(nothing, group_by, rows):
    data = columns(rows=rows)
    unlabelled = {"unlabelled": rows, "either": rows // 2}.get(nothing, 0)
    if nothing == "either" and not unlabelled:
        pytest.skip("a single row is not in both states")
    dropped = rows - unlabelled if nothing == "either" else 0
    data["labels"][:unlabelled] = -1
    data["logits"][rows - dropped :] = np.nan
    if nothing == "weightless":
        data["weights"][:] = 0.0
    result = run(data, None, group_by=group_by, on_invalid="drop")
    assert (result.n_unlabelled, result.n_dropped) == (unlabelled, dropped)
    assert result.n == 0
    document = assert_json_is_clean(result)
    assert {estimate["value"] for estimate in document["results"]} == {None}


@pytest.mark.parametrize("verb", [cs.evaluate, cs.check, cs.calibration_test, cs.reliability])
def test_verbs__refuse_rows_that_were_all_dropped(verb):
    """A table without values is no result."""
    data = columns(rows=5)
    data["logits"][:] = np.nan
    with pytest.raises(
        InvalidDataError,
        match=r"no rows are left \(n = 0\); 5 rows were dropped: logits are missing \(5\)",
    ):
        verb(from_arrays(**data), on_invalid="drop")


def test_accumulator__refuses_rows_that_were_all_dropped():
    data = columns(rows=5)
    data["logits"][:] = np.nan
    accumulator = cs.Accumulator("ece", classes=CLASSES, on_invalid="drop")
    accumulator.update(**{name: data[name] for name in ("logits", "labels")})
    with pytest.raises(InvalidDataError, match="no rows are left"):
        accumulator.compute()


@pytest.mark.long
def test_evaluate__rows_of_weight_zero_count_as_if_absent():
    data = columns("probabilities")
    data["weights"][::3] = 0.0
    weighted = {name: array[data["weights"] > 0] for name, array in data.items()}
    a, b = run(data, None), run(weighted, None)
    assert a.n == b.n == len(weighted["labels"])
    for with_zeros, without_zeros in zip(a.estimates, b.estimates, strict=True):
        assert with_zeros.value == pytest.approx(without_zeros.value, rel=1e-9), (
            with_zeros.estimator
        )
        assert with_zeros.n == without_zeros.n == a.n, with_zeros.estimator
        assert with_zeros.parameters == without_zeros.parameters  # the default bandwidth among them
        bins = [
            [row["count"] for row in e.details.get("bins", ())] for e in (with_zeros, without_zeros)
        ]
        assert bins[0] == bins[1]


def test_bandwidth__depends_on_rows_with_weight_only(rng):
    """Predictions of the 2 % of 20,000 rows that have weight are closer together."""
    n = 20_000
    weights = (rng.random(n) < 0.02).astype(float)
    p = np.where(weights > 0, rng.uniform(0.4, 0.6, n), rng.random(n))
    sources = [
        from_arrays(
            probabilities=p[keep],
            labels=np.ones(keep.sum(), int),
            weights=weights[keep],
            binary=True,
        )
        for keep in (weights >= 0, weights > 0)
    ]
    bandwidths = [evaluate(s, JKCE()).estimates[0].parameters["bandwidth"] for s in sources]
    # both are medians over samples of rows
    assert bandwidths[0] == pytest.approx(bandwidths[1], rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("scale", [1e-60, 1e-3, 1e60])
def test_evaluate__the_scale_of_weights_does_not_matter(scale):
    data = columns("probabilities")
    a = run(data, None)
    b = run({**data, "weights": data["weights"] * scale}, None)
    for small, large in zip(a.estimates, b.estimates, strict=True):
        assert small.value == pytest.approx(large.value, rel=1e-9), small.estimator


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_evaluate__weights_whose_squares_overflow_never_give_a_wrong_number():
    data = columns("probabilities")
    sane = run(data, None)
    for factor in (1e90, 1e-90):
        result = run({**data, "weights": data["weights"] * factor}, None)
        assert_json_is_clean(result)
        for estimate, expected in zip(result.estimates, sane.estimates, strict=True):
            assert estimate.value == pytest.approx(expected.value, rel=1e-9), estimate.estimator
    for factor in (1e300, 1e-300):
        with pytest.raises(InvalidDataError, match=r"row 0 .* neither 0 nor in 1e-100\.\.1e\+100"):
            run({**data, "weights": data["weights"] * factor}, None)


@pytest.mark.parametrize("size", [1e3, 1e15, 1e300])
def test_evaluate__huge_logits_are_valid(size):
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
    document = assert_json_is_clean(result)
    nll = next(e for e in document["results"] if e["estimator"] == "nll")
    assert nll["value"] is None
    assert "inf" in nll["reason"]
    assert result["brier"].value == pytest.approx((2.0 + 0.5 + 0.0) / 3)


def test_evaluate__equal_predictions_have_a_bandwidth():
    data = dict(probabilities=np.full((100, 4), 0.25), labels=np.arange(100) % 4)
    result = run(data, None)
    assert_json_is_clean(result)
    assert result["ckce"].parameters["bandwidth"] == 1.0
    assert result["brier"].value == pytest.approx(0.75)
    assert result["ece"].value == pytest.approx(0.0, abs=1e-15)  # argmax of equals: the first
    assert result["accuracy"].value == 0.25


def test_evaluate__without_estimators_still_checks_and_counts():
    data = columns()
    data["labels"][3] = -1
    result = run(data, [])
    assert (result.n, result.n_unlabelled, result.estimates) == (ROWS - 1, 1, ())
    spoil(data, "nan", 7)
    with pytest.raises(InvalidDataError, match="row 7 "):
        run(data, [])


def test_evaluate__the_same_estimator_twice_is_two_equal_results():
    result = run(columns(), [ECE(), Accuracy(), ECE(), ECE(bins=3)])
    assert [e.estimator for e in result.estimates] == ["ece", "accuracy", "ece", "ece(bins=3)"]
    assert result.estimates[0] == result.estimates[2] != result.estimates[3]


# ---------------------------------------------------------------- groups


def test_evaluate__groups_equal_results_of_their_rows_alone():
    data = columns("probabilities")
    for value in (0.0, -1.5, np.inf, 1e300):
        data["covariates"][np.random.default_rng(int(value == 0)).integers(0, ROWS, 60)] = value
    result = run(data, [Accuracy(), NLL(), ECE()], group_by="x0")
    column = data["covariates"][:, 0]
    assert list(result.groups) == sorted(set(column.tolist()))
    for value, estimates in result.groups.items():
        rows = column == value
        w, hit = data["weights"][rows], data["probabilities"][rows].argmax(1)
        expected = w @ (hit == data["labels"][rows]) / w.sum()
        assert estimates[0].value == pytest.approx(expected, rel=1e-12)
        assert estimates[0].n == rows.sum()
    assert_json_is_clean(result)


@pytest.mark.long
def test_evaluate__more_than_the_maximum_number_of_groups_are_refused():
    rows = MAX_GROUPS + 1
    rng = np.random.default_rng(0)
    data = dict(
        logits=rng.normal(size=(rows, 3)),
        labels=rng.integers(0, 3, rows),
        covariates=np.minimum(np.arange(rows), MAX_GROUPS - 1)[:, None],
    )
    assert len(run(data, group_by="x0").groups) == MAX_GROUPS
    data["covariates"] = np.arange(rows)[:, None]
    for block_rows in (10, 10**6):  # too many in one block, and too many all together
        for scheduler in ("serial", "threads:3"):
            with pytest.raises(OptionError, match=f"{MAX_GROUPS}.*group by a column with few"):
                run(data, group_by="x0", block_rows=block_rows, scheduler=scheduler)


def test_evaluate__an_unknown_group_column_is_refused_before_reading():
    class Untouchable:
        shape, dtype = (10, 3), np.dtype(float)

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("read")

    data = dict(logits=Untouchable(), labels=np.zeros(10, int), covariates=np.zeros((10, 1)))
    with pytest.raises(OptionError, match="there is no covariate 'sex'; the source has: x0"):
        run(data, group_by="sex")
    with pytest.raises(OptionError, match="there is no covariate 'sex'; the source has: x0"):
        run(data, None, group_by="sex")


def test_open__error_for_a_table_names_the_ingest_command(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"is a file.*calibscale ingest .*x\.parquet .*x\.zarr"):
        evaluate(path)
