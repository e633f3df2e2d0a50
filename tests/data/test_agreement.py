"""Files with different columns: in order, in number, in type and in the case of their names."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import calibscale as cs
from calibscale import InvalidDataError, LogitStore
from calibscale.data.ingest.ingestion import ingest

N = 30
CLASSES = ("cat", "dog", "eel")
SUFFIXES = ("parquet", "feather", "csv", "jsonl")


def frame(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), N)
    columns = {f"p_{name}": p[:, k] for k, name in enumerate(CLASSES)}
    y = (p.cumsum(axis=1) > rng.random((N, 1))).argmax(axis=1)
    region = np.array(["north", "south"])[rng.integers(0, 2, N)]
    return pd.DataFrame({**columns, "label": np.array(CLASSES)[y], "region": region, "x": 1.5})


def save(path, rows):
    table = pa.Table.from_pandas(rows, preserve_index=False)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    elif path.suffix == ".csv":
        rows.to_csv(path, index=False)
    else:
        lines = (json.dumps(row) for row in table.to_pylist())
        path.write_text("\n".join(lines))
    return path


@pytest.fixture(params=SUFFIXES)
def two(tmp_path, request):
    """Function that writes two files and changes the second."""

    def write(change, first=lambda rows: rows):
        a = save(tmp_path / f"a.{request.param}", first(frame(0)))
        return [a, save(tmp_path / f"b.{request.param}", change(frame(1)))]

    return write


KEYS = {"probabilities": "p", "labels": "label", "covariates": "region,x"}


def read(files):
    return cs.from_file(files, labels="label", probabilities="p_", covariates=["region", "x"])


def through_store(files):
    ingest(files, f"{files[0]}.zarr", keys=KEYS, overwrite=True)
    return LogitStore.open(f"{files[0]}.zarr").source


def columns_of(source):
    names = [source.categories["region"][int(k)] for k in source.covariates[:][:, 0]]
    return np.asarray(source.values[:]), np.asarray(source.labels[:]), names


# A further class of the second file was ignored by from_file
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.assign(p_fox=0.0), r"b\.\w+ has 'p_fox' among its probabilities, which .*a\."),
        (lambda d: d.drop(columns="p_eel"), r"a\.\w+ has 'p_eel' among its probab.*b\.\w+ does"),
        (lambda d: d.rename(columns={"p_eel": "p_Eel"}), r"b\.\w+ has 'p_Eel' instead .*a\.\w+"),
        (lambda d: d.drop(columns="label"), r"b\.\w+ has no 'label', which .*a\.\w+ has"),
        (lambda d: d.rename(columns={"label": "Label"}), r"b\.\w+ has 'Label' instead of 'label'"),
        (lambda d: d.drop(columns="x"), r"b\.\w+ has no 'x', which .*a\.\w+ has"),
        (lambda d: d.assign(region=1.5), r"b\.\w+: 'region' has numbers, but texts in .*a\.\w+"),
        (lambda d: d.assign(x="north"), r"a\.\w+: 'x' has numbers, but texts in .*b\.\w+"),
        (lambda d: d.assign(label=0), r"b\.\w+: 'label' has numbers, but texts in .*a\.\w+"),
    ],
)
def test_columns__that_differ_are_named_with_both_files(two, change, message):
    files = two(change)
    for door in (read, through_store, lambda files: read(files[0].parent)):
        with pytest.raises(InvalidDataError, match=message):
            door(files)


@pytest.mark.long
def test_columns__in_another_order_are_matched_by_name(two):
    expected = columns_of(read(two(lambda rows: rows)))
    files = two(lambda rows: rows[rows.columns[::-1]])
    for door in (read, through_store):
        for column, values in zip(columns_of(door(files)), expected, strict=True):
            np.testing.assert_array_equal(column, values)


@pytest.mark.long
def test_columns__without_a_value_agree_with_each_type(two):
    for empty in (None, np.nan):
        for files in (
            two(lambda rows, empty=empty: rows.assign(region=empty, label=empty)),
            two(lambda rows: rows, lambda rows, empty=empty: rows.assign(region=empty)),
        ):
            for door in (read, through_store):
                source = door(files)
                assert source.categories["region"] == ("north", "south")
                assert cs.evaluate(source, "brier", group_by="region").n in (N, 2 * N)


def test_numbers__of_several_widths_keep_all_digits(tmp_path):
    narrow = frame(0).astype(dict.fromkeys(["p_cat", "p_dog", "p_eel"], np.float32))
    files = [save(tmp_path / "a.parquet", narrow.assign(x=1))]
    files += [save(tmp_path / "b.parquet", frame(1))]
    source = read(files)
    np.testing.assert_array_equal(source.values[N:][:, 0], frame(1)["p_cat"])
    np.testing.assert_array_equal(source.values[:N][:, 0], narrow["p_cat"].astype(np.float64))
    np.testing.assert_array_equal(source.covariates[:][:, 1], [1.0] * N + [1.5] * N)


def test_columns__that_have_no_role_may_differ(two):
    files = two(lambda rows: rows.assign(note=1), lambda rows: rows.assign(note="x", more=2))
    assert read(files).rows == 2 * N


def test_categories__and_dictionaries_are_texts(tmp_path):
    coded = frame(1).astype({"region": "category", "label": "category"})
    files = [save(tmp_path / "a.parquet", frame(0)), save(tmp_path / "b.parquet", coded)]
    text_files = [files[0], save(tmp_path / "c.parquet", frame(1))]
    for column, texts in zip(columns_of(read(files)), columns_of(read(text_files)), strict=True):
        np.testing.assert_array_equal(column, texts)


@pytest.mark.long
def test_commands__take_several_tables(two, run):
    files = two(lambda rows: rows)
    pattern = files[0].parent / f"?{files[0].suffix}"
    expected = cs.evaluate(read(files), "brier")["brier"].value
    for paths in (files, [pattern]):
        ran = run("evaluate", *paths, "--labels", "label", "-e", "brier", "--json", "-")
        assert ran.json["results"][0]["value"] == pytest.approx(expected, rel=1e-12)
    files = two(lambda rows: rows.assign(p_fox=0.0))
    ran = run("evaluate", *files, "--labels", "label")
    assert (ran.code, "'p_fox'" in ran.err) == (4, True)


def test_archives__are_one_table(tmp_path):
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(3), N), rng.integers(0, 3, N)
    for i, part in enumerate(np.split(np.arange(N), [7])):
        np.savez(tmp_path / f"part_{i}.npz", probabilities=p[part], labels=y[part])
    source = cs.from_file([tmp_path / "part_0.npz", tmp_path / "part_1.npz"])
    np.testing.assert_array_equal(source.values[:], p)
    np.savez(tmp_path / "part_2.npz", probabilities=np.eye(4), labels=np.arange(4))
    with pytest.raises(InvalidDataError, match=r"part_2\.npz: probabilities have 4 columns"):
        cs.from_file(tmp_path)
