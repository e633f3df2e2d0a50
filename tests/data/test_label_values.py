"""Meaning of labels and percentages: what every door takes, and what it says about other values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

import calibscale as cs
from calibscale import metrics
from calibscale.data.ingest.ingestion import ingest
from calibscale.data.label_values import WORDS, key_of
from calibscale.errors import CalibscaleError, InvalidDataError, OptionError
from calibscale.monitoring.night import night

RNG = np.random.default_rng(41)
N = 600
P = RNG.random(N).round(3)
Y = (RNG.random(N) < P).astype(int)
SIGNS = 2 * Y - 1
WIDE = RNG.dirichlet(np.ones(3), N)
CLASS = (WIDE.cumsum(1) < RNG.random((N, 1))).sum(1).clip(0, 2)


def brier(source) -> float:
    return cs.evaluate(source, "brier", floor=False)["brier"].value


EXPECTED = brier(cs.from_arrays(probabilities=P, labels=Y))
EXPECTED_WIDE = brier(cs.from_arrays(probabilities=WIDE, labels=CLASS))


def table(tmp_path: Path, ending: str, columns: dict) -> Path:
    path, frame = tmp_path / f"rows.{ending}", pd.DataFrame(columns)
    if ending == "csv":
        frame.to_csv(path, index=False)
    elif ending == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    return path


def zarr_arrays(tmp_path: Path, p, y) -> dict[str, Path]:
    places = {"probabilities": tmp_path / "p.zarr", "labels": tmp_path / "y.zarr"}
    for place, array in zip(places.values(), (p, y), strict=True):
        zarr.create_array(place, data=np.asarray(array), chunks=(100,))
    return places


def through(door: str, tmp_path: Path, p, y, **options) -> float:
    """Brier score of rows that pass a door."""
    if door == "from_arrays":
        return brier(cs.from_arrays(probabilities=p, labels=y, **options))
    if door == "dask":
        lazy_p, lazy_y = (da.from_array(np.asarray(array), chunks=100) for array in (p, y))
        return brier(cs.from_arrays(probabilities=lazy_p, labels=lazy_y, **options))
    if door == "open_arrays":
        return brier(cs.open_arrays(**zarr_arrays(tmp_path, p, y), **options))
    if door == "shards":
        cuts = [slice(0, 250), slice(250, N)]
        lists = {"probabilities": [p[c, None] for c in cuts], "labels": [y[c] for c in cuts]}
        return brier(cs.from_arrays(**lists, **options))
    if door == "from_frame":
        frame = pd.DataFrame({"p": p, "y": y})
        return brier(cs.from_frame(frame, probabilities="p", labels="y", **options))
    if door.startswith("from_file"):
        path = table(tmp_path, door.partition(" ")[2], {"p": p, "y": y})
        return brier(cs.from_file(path, probabilities="p", labels="y", **options))
    if door == "ingest":
        path, place = table(tmp_path, "csv", {"p": p, "y": y}), tmp_path / "rows.zarr"
        ingest([path], place, keys={"probabilities": "p", "labels": "y"}, **options)
        return brier(place)
    if door == "Accumulator":
        ignored = {k: options.pop(k) for k in ("ignore_index",) if k in options}
        running = cs.Accumulator("brier", classes=2, **options)
        for first in range(0, N, 150):
            rows = slice(first, first + 150)
            running.update(probabilities=p[rows], labels=y[rows], **ignored)
        return running.compute()["brier"].value
    assert door == "job"
    folder = tmp_path / "days"
    folder.mkdir()
    table(folder, "csv", {"p": p, "y": y}).rename(folder / "2026-11-20.csv")
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
    job = tmp_path / "job.toml"
    job.write_text(
        'estimators = ["brier"]\nwindows = ["day"]\nalarms = false\n[source]\n'
        f'path = "days/{{date}}.csv"\nformat = "files"\n{keys}'
        '[source.columns]\nprobabilities = "p"\nlabels = "y"\n'
    )
    return night(job, "2026-11-20").to_dict()["windows"][0]["results"][0]["value"]


DOORS = (
    "from_arrays",
    "dask",
    "open_arrays",
    "shards",
    "from_frame",
    "from_file csv",
    "from_file parquet",
    "from_file jsonl",
    "ingest",
    "Accumulator",
    pytest.param("job", marks=pytest.mark.long),
)


# ---------------------------------------------------------------- labels −1 and 1


@pytest.mark.long
@pytest.mark.parametrize("door", DOORS)
def test_signs__are_refused_with_the_labels_and_the_remedies(tmp_path, door):
    """−1 means "not yet known", so that no row may be lost in silence."""
    with pytest.raises(CalibscaleError, match=r"labels are −1 and 1, .*--positive 1.*-index -1"):
        through(door, tmp_path, P, SIGNS)


@pytest.mark.parametrize("door", DOORS)
def test_signs__are_classes_with_positive(tmp_path, door):
    assert through(door, tmp_path, P, SIGNS, positive=1) == pytest.approx(EXPECTED, rel=1e-12)


@pytest.mark.parametrize("door", DOORS)
def test_signs__are_rows_without_labels_with_ignore_index(tmp_path, door):
    labelled = Y == 1
    expected = brier(cs.from_arrays(probabilities=P[labelled], labels=Y[labelled]))
    value = through(door, tmp_path, P, SIGNS, ignore_index=-1)
    assert value == pytest.approx(expected, rel=1e-12)


def test_signs__far_behind_the_first_rows_are_refused():
    labels = np.ones(30_000, int)
    labels[29_000:] = -1
    p = np.full(30_000, 0.5)
    for signs in (labels, da.from_array(labels, chunks=1000)):
        with pytest.raises(InvalidDataError, match="−1 and 1"):
            cs.from_arrays(probabilities=p, labels=signs)


def test_minus_one__is_not_yet_known_beside_zero():
    labels = np.where(np.arange(N) % 5 == 0, -1, Y)
    for options in ({}, {"positive": 1}):
        result = cs.evaluate(cs.from_arrays(probabilities=P, labels=labels, **options), "brier")
        assert (result.n, result.n_unlabelled) == (N - N // 5, N // 5)


def test_signs__of_a_store_that_was_appended_to_are_a_warning(tmp_path):
    store = cs.LogitStore.create(tmp_path / "s.zarr", classes=2, kind="probabilities", binary=True)
    with store.writer() as writer:
        writer.append(P, SIGNS)
    (warning,) = cs.evaluate(store, "brier").warnings
    assert f"All {Y.sum()} known labels are 1" in warning
    assert f"{N - Y.sum()} rows have no label" in warning
    assert "positive=1" in warning


# ---------------------------------------------------------------- what is taken


TAKEN = {
    "booleans": (Y == 1, {}),
    "objects": ((Y == 1).astype(object), {}),
    "floats": (Y.astype(float), {}),
    "texts of numbers": (Y.astype(str), {}),
    "yes and no": (np.where(Y, "yes", "no"), {}),
    "words in any case": (np.where(Y, np.where(P > 0.5, "Yes", " yes"), "NO"), {}),
    "true and false": (np.where(Y, "True", "False"), {}),
    "letters of words": (np.where(Y, "Y", "N"), {}),
    "positive and negative": (np.where(Y, "positive", "negative"), {}),
    "names": (np.where(Y, "bad", "good"), {"positive": "bad"}),
    "names in order": (np.where(Y, "bad", "good"), {"class_names": ["good", "bad"]}),
    "one and two": (Y + 1, {"positive": 2}),
    "one and two by name": (Y + 1, {"class_names": [1, 2]}),
    "zero is the event": (1 - Y, {"positive": 0}),
    "uint8": (Y.astype(np.uint8), {}),
}


@pytest.mark.parametrize("door", ["from_arrays", "from_frame", "from_file csv", "ingest"])
@pytest.mark.parametrize("case", TAKEN)
def test_labels__of_two_classes_are_taken(tmp_path, door, case):
    labels, options = TAKEN[case]
    assert through(door, tmp_path, P, labels, **options) == pytest.approx(EXPECTED, rel=1e-12)


@pytest.mark.parametrize("kind", [pd.Categorical, pd.Series, list, np.array])
def test_labels__of_other_containers_are_taken(kind):
    labels = kind(np.where(Y, "yes", "no"))
    assert brier(cs.from_arrays(probabilities=P, labels=labels)) == EXPECTED


def test_labels__booleans_with_none_are_taken():
    labels = (Y == 1).astype(object)
    labels[::3] = None
    result = cs.evaluate(cs.from_arrays(probabilities=P, labels=labels), "brier")
    assert (result.n, result.n_unlabelled) == (N - N // 3, N // 3)


def test_labels__of_two_columns_may_be_texts():
    two_columns = np.column_stack([1 - P, P])
    source = cs.from_arrays(
        probabilities=two_columns,
        labels=np.where(Y, "dog", "cat"),
        class_names=np.array(["cat", "dog"]),
    )
    assert brier(source) == pytest.approx(EXPECTED, rel=1e-12)
    assert source.class_names == ("cat", "dog")


@pytest.mark.long
@pytest.mark.parametrize("door", ["from_arrays", "from_file csv"])
def test_labels__of_many_classes_count_from_one_or_have_letters(tmp_path, door):
    for labels, options in (
        (CLASS + 1, {"class_names": [1, 2, 3]}),
        (CLASS + 1, {"class_names": ["1", "2", "3"]}),
        (np.array(["A", "B", "C"])[CLASS], {}),
    ):
        if door == "from_arrays":
            source = cs.from_arrays(probabilities=WIDE, labels=labels, **options)
        else:
            columns = {f"p_{k}": WIDE[:, k] for k in range(3)} | {"y": labels}
            source = cs.from_file(
                table(tmp_path, "csv", columns), probabilities="p_", labels="y", **options
            )
        assert brier(source) == pytest.approx(EXPECTED_WIDE, rel=1e-12)


def test_labels__floats_of_lazy_arrays_are_taken():
    source = cs.from_arrays(probabilities=P, labels=da.from_array(Y.astype(float), chunks=70))
    assert brier(source) == EXPECTED


def test_keys__compare_numbers_and_texts():
    assert key_of(1) == key_of(1.0) == key_of("1") == key_of(" +1.0 ") == "1"
    assert key_of("−1") == key_of(-1) == "-1"
    assert {key_of(word.upper()) for word in WORDS} == WORDS.keys()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("labels", "options", "says"),
    [
        (np.where(Y, "dog", "cat"), {}, r"such as 'cat' and 'dog'; .*--positive dog"),
        (Y + 0.5, {}, r"row 0 of arrays: the label is \d\.5, not an integer"),
        (CLASS, {"positive": 1}, r"labels are 0 and 2, and two values are needed .*--positive 1"),
        (np.where(Y, "yes", "maybe"), {}, r"'maybe' and 'yes'"),
        (np.where(Y, 3.0, np.nan), {"positive": 1}, None),
        (Y, {"positive": 1, "class_names": ["a", "b"]}, "give only one of positive="),
        (Y, {"ignore_index": 0}, "is one of the 2 classes"),
    ],
)
def test_labels__without_a_meaning_name_the_values(labels, options, says):
    if says is None:  # one value that is not the event: all rows are of the other class
        assert cs.from_arrays(probabilities=P, labels=labels, **options).labels.max() == 0
        return
    with pytest.raises((InvalidDataError, OptionError), match=says):
        cs.from_arrays(probabilities=P, labels=labels, **options)


def test_positive__is_for_two_classes():
    with pytest.raises(OptionError, match=r"for two classes, not for 3.*--class-names"):
        cs.from_arrays(probabilities=WIDE, labels=CLASS, positive=1)


def test_labels__of_a_later_chunk_of_another_value_name_the_row():
    labels = np.where(np.tile(Y, 4), "yes", "no").astype(object)
    labels[2200] = "maybe"
    frame = pd.DataFrame({"p": np.tile(P, 4), "y": labels})
    source = cs.from_frame(frame, probabilities="p", labels="y")
    with pytest.raises(InvalidDataError, match="row 2200 of frame: the label is 'maybe'"):
        cs.evaluate(source, "brier")


def test_labels__of_a_later_chunk_of_another_type_are_not_cut():
    """Chunks of a dask array may have other types than the array declares."""
    parts = [da.from_array(Y[:300], chunks=300), da.from_array(Y[300:] + 0.5, chunks=300)]
    wrong = da.concatenate(parts).map_blocks(lambda part: part, dtype=int, meta=np.empty(0, int))
    with pytest.raises(InvalidDataError, match=r"row 300 of arrays: 'labels' is \d\.5"):
        brier(cs.from_arrays(probabilities=P, labels=wrong))


@pytest.mark.long
def test_labels__one_too_many_get_the_option_that_takes_them():
    with pytest.raises(InvalidDataError, match=r"counted from 1\? pass positive=2"):
        brier(cs.from_arrays(probabilities=P, labels=Y + 1))
    labels = np.where(np.arange(N) < 3, 255, Y).astype(np.uint8)
    with pytest.raises(InvalidDataError, match="pass ignore_index=255"):
        brier(cs.from_arrays(probabilities=P, labels=labels))
    lazy = da.from_array(labels, chunks=100)
    assert cs.evaluate(cs.from_arrays(probabilities=P, labels=lazy, ignore_index=255)).n == N - 3


def test_labels__of_many_classes_with_one_probability_get_a_hint():
    with pytest.raises(InvalidDataError, match="pass as labels whether it was right"):
        brier(cs.from_arrays(probabilities=WIDE.max(axis=1), labels=CLASS))


def test_labels__that_are_dates_are_refused():
    with pytest.raises(InvalidDataError, match="labels must be numbers, not datetime64"):
        cs.from_arrays(probabilities=P, labels=pd.date_range("2026-01-01", periods=N))


# ---------------------------------------------------------------- percent


@pytest.mark.parametrize("door", DOORS)
def test_percent__is_declared_at_every_door(tmp_path, door):
    value = through(door, tmp_path, 100 * P, Y, percent=True)
    assert value == pytest.approx(EXPECTED, rel=1e-12)


@pytest.mark.parametrize("door", ["from_arrays", "from_frame", "from_file csv", "ingest"])
def test_percent__of_texts_is_declared_or_refused_with_a_value(tmp_path, door):
    texts = np.array([f"{100 * p:.1f}%" for p in P])
    value = through(door, tmp_path, texts, Y, percent=True)
    assert value == pytest.approx(EXPECTED, rel=1e-12)
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(CalibscaleError, match=rf"'{re.escape(texts[0])}'; pass percent=True"):
        through(door, folder, texts, Y)


def test_percent__undeclared_names_the_option():
    with pytest.raises(InvalidDataError, match=r"in percent\? pass percent=True \(--percent\)"):
        brier(cs.from_arrays(probabilities=np.full(N, 63.0), labels=Y))
    with pytest.raises(InvalidDataError, match=r"int64; in percent\?"):
        cs.from_arrays(probabilities=np.full(N, 63), labels=Y)
    with pytest.raises(OptionError, match="percent= needs probabilities="):
        cs.from_arrays(logits=P, labels=Y, percent=True)
    with pytest.raises(InvalidDataError, match="row 1 of arrays: its probability is 'high'"):
        cs.from_arrays(probabilities=["5%", "high"], labels=[0, 1], percent=True)


def test_percent__null_is_missing(tmp_path):
    texts = [None if i % 50 == 0 else f"{100 * p:.1f}%" for i, p in enumerate(P)]
    source = cs.from_file(
        table(tmp_path, "jsonl", {"p": texts, "y": Y}), probabilities="p", labels="y", percent=True
    )
    with pytest.raises(InvalidDataError, match="row 0"):
        brier(source)
    result = cs.evaluate(source, "brier", on_invalid="drop")
    assert (result.n, sum(result.dropped.values())) == (N - N // 50, N // 50)


def test_metrics__take_the_same_options():
    expected = metrics.brier(Y, P)
    assert metrics.brier(SIGNS, P) == expected  # None and NaN mean "not yet known", not −1
    assert metrics.brier(SIGNS, P, positive=1) == expected
    assert metrics.brier(np.where(Y, "Yes", "no "), P) == expected
    assert metrics.brier(np.where(Y, "bad", "good"), P, positive="bad") == expected
    assert metrics.brier(Y, 100 * P, percent=True) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(InvalidDataError, match=r"such as '63%'; pass percent=True"):
        metrics.brier([0, 1], ["63%", "7%"])


# ---------------------------------------------------------------- arguments in the wrong place


SOURCE = cs.from_arrays(probabilities=P, labels=Y)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cs.evaluate(Y, P), r"evaluate takes a source .*evaluate\(calibscale.from_arrays"),
        (lambda: cs.evaluate(P, Y), r"evaluate takes a source .*probabilities=p, labels=y"),
        (lambda: cs.check(Y, P), r"check takes a source .*check\(calibscale.from_arrays\("),
        (lambda: cs.reliability(Y.tolist(), P), "reliability takes a source"),
        (lambda: cs.check(pd.DataFrame({"y": Y})), r"not a data frame: .*from_frame"),
        (lambda: cs.from_arrays(P, Y), "probabilities=p, labels=y.*the second .* are the labels"),
        (lambda: cs.from_arrays(Y, P), "probabilities=p, labels=y.*the first .* are the labels"),
        (
            lambda: cs.Accumulator(classes=2).update(P, Y),
            r"update takes its arguments by name: update\(probabilities=p, labels=y\)",
        ),
        (lambda: cs.check(SOURCE, "region"), "name the other arguments: group_by"),
    ],
)
def test_calls__with_arrays_in_the_wrong_place_say_the_right_call(call, says):
    """One sentence, and no TypeError of Python."""
    with pytest.raises(OptionError, match=says):
        call()


def test_calls__with_exchanged_arrays_say_so():
    with pytest.raises(InvalidDataError, match="labels= has the probabilities"):
        cs.from_arrays(probabilities=Y.astype(float), labels=P)
    with pytest.raises(InvalidDataError, match=r"exchange them, as in ece\(y, p\)"):
        metrics.ece(P, Y)
    hard = (P > 0.5).astype(int)  # predictions that are 0 and 1, too, cannot be told from labels
    assert metrics.ece(Y, hard) == metrics.ece(hard, Y)


# ---------------------------------------------------------------- warnings of results


def test_exchanged_classes__are_the_likely_cause():
    """`class_names` in another order than the columns."""
    p = RNG.beta(0.1, 8, 4000)
    labels = np.where(RNG.random(4000) < p, "bad", "good")
    two_columns = np.column_stack([1 - p, p])
    wrong = cs.from_arrays(probabilities=two_columns, labels=labels, class_names=["bad", "good"])
    (warning,) = cs.evaluate(wrong, "brier").warnings
    assert "“bad” and “good” may be exchanged: the accuracy is" in warning
    right = cs.from_arrays(probabilities=two_columns, labels=labels, class_names=["good", "bad"])
    assert cs.evaluate(right, "brier").warnings == ()


@pytest.mark.long
def test_exchanged_classes__of_three_are_named():
    names = ["cat", "dog", "fox"]
    source = cs.from_arrays(probabilities=WIDE[:, [1, 0, 2]], labels=CLASS, class_names=names)
    for result in (cs.evaluate(source, "brier"), cs.check(source, n_replicates=19)):
        (warning,) = result.warnings
        assert "“cat” and “dog” may be exchanged" in warning
        assert warning.split(":")[0] in str(result).replace("\n", " ")
        assert result.to_dict()["warnings"] == [warning]
    assert cs.evaluate(cs.from_arrays(probabilities=WIDE, labels=CLASS), "brier").warnings == ()


def test_weak_models__are_not_called_exchanged():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        source = cs.from_arrays(
            probabilities=rng.dirichlet(np.ones(3), 200), labels=rng.integers(0, 3, 200)
        )
        assert cs.evaluate(source, "brier", floor=False).warnings == ()


def test_one_class__is_a_warning():
    result = cs.evaluate(cs.from_arrays(probabilities=P, labels=np.ones(N)), "brier")
    assert result.warnings == (
        f"All {N} known labels are 1: errors of a single class say little about calibration.",
    )
    assert result.to_dict()["warnings"] == list(result.warnings)


def test_forecast_events__name_the_fault_of_the_forecast():
    """Not a missing chunk, but a standard deviation of 0."""
    deviation = np.ones(N)
    deviation[7] = 0.0
    forecasts = cs.from_arrays(
        predictions=(np.zeros(N), deviation), forecast="normal", labels=RNG.normal(size=N)
    )
    for event in ({"level": 0.5}, {"threshold": 1.0}):
        with pytest.raises(InvalidDataError, match="row 7 of arrays: its standard deviation is 0"):
            cs.evaluate(cs.forecast_events(forecasts, **event), "brier")


def test_percent__undeclared_and_dropped_is_said_in_the_error():
    source = cs.from_arrays(probabilities=np.full(N, 63.0), labels=Y)
    with pytest.raises(
        InvalidDataError,
        match=rf"no rows are left .*probabilities are above 1 \({N}\); declare percentages with "
        r"percent=True \(--percent\)",
    ):
        cs.evaluate(source, ["ece", "brier"], on_invalid="drop")
