"""Missing values at every door: the same result, or the same sentence."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import calibscale as cs
from calibscale.data.ingest.ingestion import ingest
from tests.support.doors import COLUMNS, DOORS, KINDS, Impossible, cells, disagreement

# doors that write stores or ledgers; each of the doors and of the readers is in the first ones
MARKS = {
    **dict.fromkeys(
        ("ingest parquet",),
        pytest.mark.long,
    ),
    # Other doors read the same formats in the full run.
    **dict.fromkeys(
        (
            "from_file csv",
            "from_file feather",
            "from_file jsonl",
            "job csv",
            "job parquet",
            "ingest csv",
            "evaluate jsonl",
        ),
        pytest.mark.slow,
    ),
}
MATRIX = [pytest.param(door, role, marks=MARKS.get(door, ())) for door in DOORS for role in COLUMNS]


# A null in parquet or JSON Lines stopped a job with on_invalid = "drop"; ingest had no option
@pytest.mark.long
@pytest.mark.parametrize(("door", "role"), MATRIX)
def test_missing_value__means_the_same_at_every_door(door, role, tmp_path):
    compared, different = 0, []
    for number, cell in enumerate(cell for cell in cells() if cell.role == role):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            difference = disagreement(door, cell, folder)
        except Impossible:
            continue
        compared += 1
        if difference is not None:
            different.append(f"{cell.kind}, {cell.on_invalid}: {difference}")
    assert not different, "\n".join(different)
    assert compared or (door, role) in NEVER


# columns that a door does not have
NEVER = {
    *(
        (door, role)
        for door in ("Accumulator", "metrics")
        for role in COLUMNS
        if "clusters" in role
    ),
    *(("metrics", role) for role in COLUMNS if "groups" in role),
    *((door, role) for door in ("job csv", "job parquet") for role in COLUMNS if "groups" in role),
}


def test_matrix__has_every_door_kind_and_column():
    assert len(DOORS) >= 8
    assert len(KINDS) == 7
    assert len({cell.role for cell in cells()}) >= 6


# ---------------------------------------------------------------- values that nobody named

P, Y = np.array([0.2, 0.9, 0.4, 0.6]), np.array([0, 1, 1, 0])


def dropped(source):
    result = cs.evaluate(source, "ece", on_invalid="drop")
    return result.n, result.n_unlabelled, result.dropped


@pytest.mark.parametrize(
    "column",
    [
        [0.2, "", 0.4, None],
        pd.array([0.2, None, 0.4, None], dtype="Float32"),
        pd.Series([0.2, None, 0.4, None], dtype=pd.ArrowDtype(pa.float32())),
        [0.2, pd.NaT, 0.4, float("nan")],
    ],
    ids=str,
)
def test_frame__takes_numbers_and_missing_values_of_any_type(column):
    frame = pd.DataFrame({"score": column, "y": Y})
    source = cs.from_frame(frame, probabilities="score", labels="y")
    assert dropped(source) == (2, 0, {"score is missing": 2})


def test_frame__columns_without_any_value_are_missing():
    empty = pa.nulls(4)
    scores = cs.from_frame(pa.table({"score": empty, "y": Y}), probabilities="score", labels="y")
    with pytest.raises(cs.InvalidDataError, match=r"score is missing \(4\)"):
        dropped(scores)
    labels = cs.from_frame(pa.table({"score": P, "y": empty}), probabilities="score", labels="y")
    assert dropped(labels) == (0, 4, {})


def test_json_lines__members_that_begin_late_are_columns(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = ['{"y": 1}'] * 1000 + ['{"score": 0.5, "y": 1}'] * 3
    path.write_text("\n".join(lines) + "\n")
    source = cs.from_file(path, probabilities="score", labels="y")
    assert dropped(source) == (3, 0, {"score is missing": 1000})
    with pytest.raises(cs.OptionError, match=r"there is no 'rate'; the file has y, score"):
        cs.from_file(path, probabilities="rate", labels="y")


def test_csv__a_word_for_a_number_names_what_is_missing(tmp_path):
    (tmp_path / "a.csv").write_text("score,y\n0.5,1\n--,1\n")
    says = r"line 3: 'score' is '--', not a number.* missing number is empty, NA, NaN or null"
    with pytest.raises(cs.InvalidDataError, match=says):
        cs.from_file(tmp_path / "a.csv", probabilities="score", labels="y")


def test_infinity__is_no_missing_value(tmp_path):
    p = P.copy()
    p[1] = np.inf
    source = cs.from_arrays(probabilities=p, labels=Y, binary=True)
    assert dropped(source) == (3, 0, {"probabilities is infinite": 1})


def test_rows__without_a_label_must_have_valid_weights():
    weights = np.array([1.0, np.nan, 1.0, 1.0])
    source = cs.from_arrays(probabilities=P, labels=[0, -1, 1, 0], weights=weights, binary=True)
    assert dropped(source) == (3, 0, {"weights is missing": 1})


def test_several_columns__name_the_column_of_the_first_missing_number():
    frame = pd.DataFrame({"p_cat": 1 - P, "p_dog": P, "y": Y})
    frame.loc[1, "p_dog"] = np.nan
    frame.loc[2, ["p_cat", "p_dog"]] = np.nan
    source = cs.from_frame(frame, probabilities="p_", labels="y")
    with pytest.raises(cs.InvalidDataError, match=r"^row 1 of frame: 'p_dog' is missing \(class 1"):
        cs.evaluate(source, "ece")
    assert dropped(source) == (2, 0, {"p_dog is missing": 1, "p_cat is missing": 1})


# ---------------------------------------------------------------- rounding


# "it has the probability 1, above 1", counted as "negative probability"
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("value", "exact"), [(1.0000001, 1.0), (-1e-8, 0.0)])
def test_rounding__outside_0_and_1_is_within_the_tolerance(dtype, value, exact):
    p, rounded = P.astype(dtype), P.astype(dtype)
    p[1], rounded[1] = exact, value
    names = ["ece", "brier", "accuracy", "jkce(bandwidth=0.5)"]
    for binary in (True, False):
        pairs = [event if binary else np.column_stack([1 - event, event]) for event in (p, rounded)]
        sources = [cs.from_arrays(probabilities=q, labels=Y, binary=binary) for q in pairs]
        true, from_rounded = (cs.evaluate(source, names) for source in sources)
        assert [e.value for e in from_rounded.estimates] == [e.value for e in true.estimates]
    assert cs.metrics.brier(Y, rounded) == cs.metrics.brier(Y, p)


@pytest.mark.parametrize(
    ("value", "seen", "fault"),
    [
        (1.0000001, "1.0000001, a probability above 1", "is above 1"),
        (1 + 2**-52, "1.0000000000000002, a probability above 1", "is above 1"),
        (-1e-8, "-1e-08, a negative probability", "is negative"),
    ],
)
def test_probabilities__beyond_the_tolerance_print_all_their_digits(value, seen, fault):
    p = P.copy()
    p[1] = value
    source = cs.from_arrays(probabilities=p, labels=Y, binary=True)
    with pytest.raises(cs.InvalidDataError, match=f"row 1 of arrays: 'probabilities' is {seen}"):
        cs.evaluate(source, "ece", tolerance=0)
    result = cs.evaluate(source, "ece", tolerance=0, on_invalid="drop")
    assert result.dropped == {f"probabilities {fault}": 1}


# ---------------------------------------------------------------- what was dropped is shown


def table_of(tmp_path):
    """File with a missing score and two labels that are no classes."""
    path = tmp_path / "a.csv"
    path.write_text("score,y\n0.5,1\n,1\n0.25,0\n0.5,7\n0.75,1\n0.5,9\n")
    return path


COLUMNS_OF = ("--probabilities", "score", "--labels", "y")


def test_ingest_command__says_what_it_dropped(run, tmp_path):
    path, place = table_of(tmp_path), tmp_path / "a.zarr"
    stopped = run("ingest", path, place, *COLUMNS_OF, "--binary")
    assert (stopped.code, place.exists()) == (4, False)
    for state in ("3 rows added", "already complete"):
        ran = run("ingest", path, place, *COLUMNS_OF, "--binary", "--on-invalid", "drop")
        assert ran.out.splitlines() == [
            f"{place}: 3 rows ({state})",
            "3 rows were dropped: y is not a class (2), score is missing (1)",
        ]
    assert "y is not a class" in run("info", place).out
    with pytest.raises(
        cs.InvalidDataError, match=r"row 1 of .*a\.csv \(line 3\): 'score' is missing"
    ):
        ingest(
            [path], tmp_path / "b.zarr", keys={"probabilities": "score", "labels": "y"}, binary=True
        )


@pytest.mark.long
@pytest.mark.parametrize("command", ["evaluate", "check", "reliability"])
def test_commands__say_what_they_dropped(run, tmp_path, command):
    ran = run(command, table_of(tmp_path), *COLUMNS_OF, "--on-invalid", "drop")
    assert ran.code == 0
    for fault, count in (("y is not a class", 2), ("score is missing", 1)):
        assert re.search(rf"^dropped: {fault} +{count}$", ran.out, re.MULTILINE)
