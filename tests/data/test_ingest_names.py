"""Labels, classes and categories of ingested files, and warnings of doubtful ones."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from calibscale import ECE, InvalidDataError, LogitStore, OptionError, audit, evaluate
from calibscale.data.ingest.ingestion import ingest
from calibscale.formatting.escapes import one_line
from calibscale.output.report import report
from tests.support.ingest_files import K, N, csv_file, failing, save_file, stored, write_table

# ---------------------------------------------------------------- labels


@pytest.mark.long
def test_labels__that_are_empty_or_null_are_not_yet_known(tmp_path):
    expected = [1, -1, 0, -1]
    files = csv_file(tmp_path, "logits_0,logits_1,labels\n0,0,1.0\n0,0,\n0,0,0\n0,0,-1\n")
    ingest(files, tmp_path / "csv.zarr")
    columns = {"logits_0": np.zeros(4), "logits_1": np.zeros(4)}
    for name, kind in (("i", pa.int8()), ("f", pa.float32()), ("u", pa.int64())):
        labels = pa.array([1, None, 0, -1], kind)
        pq.write_table(pa.table(columns | {"labels": labels}), tmp_path / f"{name}.parquet")
        ingest([tmp_path / f"{name}.parquet"], tmp_path / f"{name}.zarr")
    labels = np.array([1, np.nan, 0, -1])
    np.savez(tmp_path / "n.npz", logits=np.zeros((4, 2)), labels=labels)
    ingest([tmp_path / "n.npz"], tmp_path / "n.zarr")
    for name in ("csv", "i", "f", "u", "n"):
        assert stored(tmp_path / f"{name}.zarr")["labels"].tolist() == expected


@pytest.mark.parametrize("bad", [0.5, 2.0, -2.0, np.inf])
@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "safetensors"])
def test_labels__not_integers_in_range_are_refused(tmp_path, suffix, bad):
    file, labels = tmp_path / f"a.{suffix}", np.array([0.0, 1.0, bad, bad])
    if suffix in ("npz", "safetensors"):
        write = np.savez if suffix == "npz" else lambda path, **arrays: save_file(arrays, path)
        write(file, logits=np.zeros((4, 2)), labels=labels)
    else:
        write_table(file, {"logits_0": np.zeros(4), "logits_1": np.zeros(4), "labels": labels})
    shown = f"{bad:g}".replace("-", "−")
    says = rf"a\.{suffix}, {'line 4' if suffix == 'csv' else 'row 2'}: the label is {shown}"
    if abs(bad) == 2:  # a number of a class that does not exist
        line = r" \(line 4\)" if suffix == "csv" else ""
        says = rf"row 2 of .*a\.{suffix}{line}: 'labels' is {bad:g}, outside 0\.\.1"
    with pytest.raises(InvalidDataError, match=says) as caught:
        ingest([file], tmp_path / "s.zarr")
    assert caught.value.row == 2


def test_labels__of_unsigned_and_boolean_type_are_integers(tmp_path):
    for i, labels in enumerate([np.array([0, 1], np.uint64), np.array([False, True])]):
        np.savez(tmp_path / f"{i}.npz", logits=np.zeros((2, 2)), labels=labels)
        ingest([tmp_path / f"{i}.npz"], tmp_path / f"{i}.zarr")
        assert stored(tmp_path / f"{i}.zarr")["labels"].tolist() == [0, 1]


# ---------------------------------------------------------------- what is warned of

SURE = np.full((9, 2), 0.5)


DOUBTFUL = {
    "percent": ("probabilities", 100 * SURE, r"in percent\? pass percent=True"),
    "logits": (
        "probabilities",
        3 - 9 * SURE,
        "if these are logits, pass them as .*--logits NAME",
    ),
    "empty rows": ("probabilities", SURE * np.nan, "'probabilities' is missing"),
    "no number": ("logits", SURE * np.inf, "'logits' is inf"),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_predictions__doubtful_ones_are_refused_or_kept(tmp_path, monkeypatch, case):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 4)
    kind, values, says = DOUBTFUL[case]
    np.savez(tmp_path / "a.npz", **{kind: values}, labels=np.arange(9) % 2)
    with pytest.raises(InvalidDataError, match=rf"row 0 of .*a\.npz: .*{says}"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", on_invalid="keep").added == 9


@pytest.mark.parametrize(("kind", "warned"), [("logits", True), ("probabilities", False)])
def test_logits__that_look_like_probabilities_log_one_warning(
    tmp_path, monkeypatch, caplog, kind, warned
):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 4)
    np.savez(tmp_path / "a.npz", **{kind: SURE}, labels=np.arange(9) % 2)
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr").added == 9
    assert len(caplog.messages) == warned
    assert all("are these probabilities" in message for message in caplog.messages)


@pytest.mark.parametrize("labels", [[1, -1, 1, -1], [1, -1, 0, -1], [1, 1, 1, 1], [-1, -1, -1, -1]])
def test_labels__of_minus_one_and_one_are_refused_before_a_store_exists(
    tmp_path, monkeypatch, labels
):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 2)
    np.savez(tmp_path / "a.npz", logits=np.zeros(4), labels=labels)
    files, place = [tmp_path / "a.npz"], tmp_path / "s.zarr"
    if labels == [1, -1, 1, -1]:
        with pytest.raises(
            InvalidDataError, match=r"a\.npz: the labels are −1 and 1, .*--positive"
        ):
            ingest(files, place)
        assert not place.exists()
        ingest(files, place, positive=1)
        assert stored(place)["labels"].tolist() == [1, 0, 1, 0]
        ingest(files, place, ignore_index=-1, overwrite=True)
        assert stored(place)["labels"].tolist() == labels
        return
    with pytest.raises(KeyboardInterrupt):
        ingest(files, place, progress=failing(1))
    ingest(files, place)
    assert stored(place)["labels"].tolist() == labels


# ---------------------------------------------------------------- what is refused


def test_covariates__that_are_empty_or_null_are_nan(tmp_path):
    columns = {"logits_0": [0.0, 1.0], "logits_1": [0.0, 1.0], "labels": [0, 1]}
    pq.write_table(
        pa.table(columns | {"age": [None, 7], "old": [True, None]}), tmp_path / "a.parquet"
    )
    csv_file(tmp_path, "logits_0,logits_1,labels,age,old\n0,0,0,,1\n1,1,1,7,\n")
    for name in ("a.csv", "a.parquet"):
        ingest([tmp_path / name], tmp_path / f"{name}.zarr", keys={"covariates": "age,old"})
        expected = [[np.nan, 1.0], [7.0, np.nan]]
        np.testing.assert_array_equal(stored(tmp_path / f"{name}.zarr")["covariates"], expected)


# ---------------------------------------------------------------- classes and categories with names

NAMES = ("cat", "dog", "fox")

REGIONS = ["south", "north", "[red]a\x1b<b>"]


def named(n=N):
    """Probabilities in columns named after the classes, text labels and a text group."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(K), n)
    labels = rng.integers(0, K, n)
    regions = [REGIONS[k] for k in rng.integers(0, 3, n)]
    columns = {f"proba_{name}": p[:, k] for k, name in enumerate(NAMES)}
    columns |= {"animal": [NAMES[k] for k in labels], "region": regions}
    return p, labels, regions, columns | {"old": rng.random(n) < 0.5}


KEYS = {"probabilities": "proba", "labels": "animal", "covariates": "region,old"}


def write_named(form, folder, columns):
    path = folder / f"a.{form.split()[0]}"
    table = pa.table(columns)
    if form == "csv":
        named = zip(table.column_names, table.columns, strict=True)
        write_table(path, {name: column.to_pylist() for name, column in named})
        return path
    if form == "parquet dictionary":
        for name in ("animal", "region"):
            place = table.column_names.index(name)
            table = table.set_column(place, name, table[name].dictionary_encode())
    (feather.write_feather if form == "feather" else pq.write_table)(table, path)
    return path


@pytest.mark.parametrize("form", ["parquet", "parquet dictionary", "feather", "csv"])
@pytest.mark.parametrize("key", ["proba", "proba_", ",".join(f"proba_{name}" for name in NAMES)])
def test_names__of_classes_and_categories_are_kept(tmp_path, form, key, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    p, labels, regions, columns = named()
    if form == "csv":  # which has no booleans of its own
        columns["old"] = np.where(columns["old"], "true", "false")
    path = write_named(form, tmp_path, columns)
    ingest([path], tmp_path / "s.zarr", keys=KEYS | {"probabilities": key})
    store = LogitStore.open(tmp_path / "s.zarr")
    assert store.class_names == NAMES
    assert store.categories == {"region": tuple(sorted(REGIONS)), "old": ("false", "true")}
    block = store.source.read(0, N, covariates=True)
    np.testing.assert_array_equal(block.values, p)
    np.testing.assert_array_equal(block.labels, labels)
    assert [sorted(REGIONS)[int(k)] for k in block.covariates[:, 0]] == regions
    assert store.info()["categories"]["region"] == sorted(REGIONS)


def test_names__empty_cells_are_missing_and_not_yet_known(tmp_path):
    columns = {"p_a": [0.5, 0.5, 0.5], "p_b": [0.5, 0.5, 0.5]}
    columns |= {"labels": ["b", None, "a"], "covariates": [None, "x", "x"]}
    write_named("parquet", tmp_path, columns)
    ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr", keys={"probabilities": "p"})
    block = LogitStore.open(tmp_path / "s.zarr").source.read(0, 3, covariates=True)
    np.testing.assert_array_equal(block.labels, [1, -1, 0])
    np.testing.assert_array_equal(block.covariates[:, 0], [-1, 0, 0])  # −1: missing


def test_names__mismatched_ones_are_an_error_with_a_remedy(tmp_path):
    numbered = {"p0": [0.5, 0.5], "p1": [0.5, 0.5], "labels": ["cow", "yak"]}
    path = write_named("parquet", tmp_path, numbered)
    keys = {"probabilities": "p"}
    with pytest.raises(OptionError, match=r"texts, such as 'cow' and 'yak'; name .*--class-names"):
        ingest([path], tmp_path / "s.zarr", keys=keys)
    with pytest.raises(InvalidDataError, match=r"row 1: the label is 'yak', .* among 'cow', 'gnu'"):
        ingest([path], tmp_path / "s.zarr", keys=keys, class_names=["cow", "gnu"])
    ingest([path], tmp_path / "s.zarr", keys=keys, class_names=["cow", "yak"], overwrite=True)
    assert LogitStore.open(tmp_path / "s.zarr").class_names == ("cow", "yak")

    struct = {"q": [{"cat": 0.5, "dog": 0.5}], "labels": [0]}
    path = write_named("parquet", tmp_path, struct)
    with pytest.raises(InvalidDataError, match=r"'q' is a struct; flatten it .*q\.cat, q\.dog"):
        ingest([path], tmp_path / "t.zarr", keys={"probabilities": "q"})
    pq.write_table(pa.table(struct).flatten(), path)
    ingest([path], tmp_path / "t.zarr", keys={"probabilities": "q."})
    assert LogitStore.open(tmp_path / "t.zarr").class_names == ("cat", "dog")


@pytest.mark.long
def test_names__of_categories_are_used_for_groups(tmp_path):
    path = write_named("parquet dictionary", tmp_path, named()[-1])
    ingest([path], tmp_path / "s.zarr", keys=KEYS)
    result = evaluate(tmp_path / "s.zarr", [ECE()], group_by="region", scheduler="serial")
    assert [f"{value:g}" for value in result.groups] == list(map(one_line, sorted(REGIONS)))
    for copy in (result, pickle.loads(pickle.dumps(result))):
        assert all(name in str(copy) for name in ("north", "south", "[red]a"))
    document = json.loads(json.dumps(result.to_dict()))
    assert [g["name"] for g in document["groups"]["values"]] == sorted(REGIONS)
    assert [g["value"] for g in document["groups"]["values"]] == [0, 1, 2]
    assert document["source"]["class_names"] == list(NAMES)
    page = report([document])
    assert "region\u00a0=\u00a0north" in page
    assert "<b>" not in page


@pytest.mark.long
def test_names__of_categories_are_used_by_audits(tmp_path):
    path = write_named("parquet", tmp_path, named(300)[-1])
    ingest([path], tmp_path / "s.zarr", keys=KEYS)
    result = audit(
        tmp_path / "s.zarr", ["region"], n_replicates=9, confidence_level=0.9, scheduler="serial"
    )
    assert result.categorical == ("region",)
    assert {g.name for g in result.groups} == {f"region = {one_line(name)}" for name in REGIONS}
    assert "region = north" in report([json.loads(json.dumps(result.to_dict()))])
