"""Table files as sources: formats, columns with usual names, and files that are deleted."""

from __future__ import annotations

import gc
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import calibscale as cs
from calibscale import InvalidDataError, OptionError
from tests.support.ingest_files import write_table

N = 300


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), n)
    names = np.array(["cat", "dog", "eel"])
    columns = {f"p_{name}": p[:, k] for k, name in enumerate(names)}
    y = np.array([rng.choice(3, p=row) for row in p])
    region = np.array(["north", "south", "west"])[rng.integers(0, 3, n)]
    return {**columns, "y": names[y], "region": region, "w": rng.random(n)}


def save(path, columns):
    if path.suffix == ".feather":
        pyarrow.feather.write_feather(pa.table(columns), path)
    elif path.suffix == ".arrow":
        frame = pa.table(columns)
        with pa.ipc.new_stream(path, frame.schema) as stream:
            stream.write_table(frame)
    elif path.suffix == ".jsonl":
        lists = [np.asarray(column).tolist() for column in columns.values()]
        lines = [
            json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*lists, strict=True)
        ]
        path.write_text("\n".join(lines))
    else:
        write_table(path, columns)
    return path


def expected(columns):
    return cs.from_arrays(
        probabilities=np.column_stack([columns[f"p_{c}"] for c in ("cat", "dog", "eel")]),
        labels=columns["y"],
        class_names=("cat", "dog", "eel"),
        covariates=columns["region"],
        covariate_names=["region"],
        weights=columns["w"],
    )


FILES = ("a.parquet", "a.feather", "a.arrow", "a.csv", "a.jsonl")


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_files__are_read_with_names_of_classes_and_groups(tmp_path, name):
    columns = table()
    path = save(tmp_path / name, columns)
    source = cs.from_file(path, probabilities="p_", labels="y", covariates="region", weights="w")
    reference = expected(columns)
    assert source.class_names == reference.class_names
    assert source.name == str(path)
    result, in_memory = (
        cs.evaluate(s, ["ece", "brier"], group_by="region") for s in (source, reference)
    )
    assert [e.value for e in result] == pytest.approx([e.value for e in in_memory], rel=1e-12)
    groups = result.to_dict()["groups"]["values"]
    assert [(g["name"], g["n"]) for g in groups] == [
        (g["name"], g["n"]) for g in in_memory.to_dict()["groups"]["values"]
    ]
    assert "region = north" in str(result)


def test_folders__are_read_in_the_order_of_names(tmp_path):
    for name, seed in (("part-2", 2), ("part-10", 10), ("part-1", 1)):
        save(tmp_path / f"{name}.parquet", table(20, seed))
    # systems write such markers into folders of tables
    (tmp_path / "_SUCCESS").write_text("")
    source = cs.from_file(tmp_path, labels="y")
    # part-10 is after part-2
    joined = np.concatenate([table(20, seed)["p_cat"] for seed in (1, 2, 10)])
    np.testing.assert_array_equal(source.values[0:60][:, 0], joined)
    (tmp_path / "more.csv").write_text("y\n")
    with pytest.raises(OptionError, match=r"several formats \(\.csv, \.parquet\)"):
        cs.from_file(tmp_path)


def test_columns__have_usual_names_unless_there_are_several(tmp_path):
    p = np.linspace(0.1, 0.9, 9)
    path = tmp_path / "a.csv"
    write_table(path, {"prob": p, "label": np.arange(9) % 2})
    source = cs.from_file(path)
    assert (source.binary, source.kind) == (True, "probabilities")
    np.testing.assert_array_equal(source.values[:].ravel(), p)
    # two usual names at once are no choice
    write_table(path, {"prob": p, "p": p, "label": np.arange(9) % 2})
    with pytest.raises(OptionError, match=r"several: prob, p; the columns are: prob, p, label"):
        cs.from_file(path)
    write_table(path, {"u": p, "v": np.arange(9) % 2})
    with pytest.raises(OptionError, match=r"labels= \(--labels\); the columns are: u, v"):
        cs.from_file(path)
    assert cs.from_file(path, probabilities="u", labels="v").binary
    with pytest.raises(OptionError, match=r"no 'x'.*--probabilities"):
        cs.from_file(path, probabilities="x", labels="v")


def test_lists__of_columns_and_texts_with_class_names(tmp_path):
    columns = table(40)
    for name in ("a.parquet", "a.csv"):
        path = save(tmp_path / name, columns)
        source = cs.from_file(
            path,
            probabilities=["p_eel", "p_cat", "p_dog"],
            labels="y",
            class_names=["eel", "cat", "dog"],
        )
        np.testing.assert_array_equal(source.values[0:40][:, 1], columns["p_cat"])
        assert source.labels[0:40].tolist() == [
            ["eel", "cat", "dog"].index(y) for y in columns["y"]
        ]


@pytest.mark.long
def test_temporary_stores__are_deleted_with_the_last_source(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = save(tmp_path / "a.csv", table(20))
    source = cs.from_file(path, labels="y")
    part = cs.Session.open(source)
    with part as session:
        del source
        gc.collect()
        assert cs.evaluate(session, "brier").n == 20
    # the session still reads the store
    assert list((tmp_path / "temporary").iterdir())
    del session, part
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())
    path.write_text("p_a,p_b,y\n0.5,0.5,a\n0.5,zero,b\n")
    with pytest.raises(InvalidDataError, match=r"line 3: 'p_b' is 'zero'"):
        cs.from_file(path)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"p": [0.5, 0.5], "y": 0}\n{"p": [0.5], "y": 0}\n', r"line 2: 'p' must have 2 numbers"),
        ('{"p": [0.5, 0.5], "y": 0}\n\n{"p": [1, 0], "y": 0.5}\n', "line 3: the label is 0.5"),
        ('{"p": [0.5, 0.5], "y": 0}\n[1]\n', "line 2: not a JSON object"),
        ('{"p": [0.5, 0.5], "y": 0}\n{"p": [0.5, 0.5], "y"', "line 2: not a JSON object"),
        ('{"p": [0.5, 0.5], "y": 0}\n' * 150 + '{"p": 0.5, "y": 0}', "line 151: 'p' is 0.5"),
        ('{"p_a": 0.2, "p_b": "x", "y": 0}\n', "must be numbers, not text"),
    ],
)
def test_json_lines__errors_name_the_line(tmp_path, text, message):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidDataError, match=message):
        cs.from_file(path)


def test_json_lines__inner_objects_are_columns(tmp_path):
    path = tmp_path / "a.ndjson"
    lines = [{"p": {"cat": 0.25 * k, "dog": 1 - 0.25 * k}, "label": "cat"} for k in range(4)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    source = cs.from_file(path, probabilities="p.")
    assert source.class_names == ("cat", "dog")
    np.testing.assert_array_equal(source.values[:][:, 0], [0, 0.25, 0.5, 0.75])


@pytest.mark.long
def test_parquet__is_not_held(tmp_path):
    """Memory of Arrow while 1,000,000 rows are evaluated. Their columns take 88 MB."""
    p = np.random.default_rng(0).dirichlet(np.ones(10), 1000)
    columns = pa.table({**{f"p_{k}": p[:, k] for k in range(10)}, "label": np.arange(1000) % 10})
    with pq.ParquetWriter(tmp_path / "a.parquet", columns.schema) as writer:
        for _ in range(16):
            writer.write_table(pa.concat_tables([columns] * 63), row_group_size=2**16)
    source = cs.from_file(tmp_path / "a.parquet")
    in_memory = cs.from_arrays(probabilities=p, labels=np.arange(1000) % 10)
    before, peaks = pa.total_allocated_bytes(), []
    result = cs.evaluate(
        source,
        "brier",
        progress=lambda *progress: peaks.append(pa.total_allocated_bytes() - before),
    )
    assert result.n == 1_008_000
    expected = cs.evaluate(in_memory, "brier")["brier"].value
    assert result["brier"].value == pytest.approx(expected, rel=1e-12)
    assert max(peaks) < 50e6


@pytest.mark.long
def test_commands__take_tables(tmp_path, run):
    path = save(tmp_path / "a.parquet", table())
    named = ("--labels", "y", "--probabilities", "p_")
    result = run("evaluate", path, *named, "--group-by", "region", "--json", "-").json
    assert [g["name"] for g in result["groups"]["values"]] == ["north", "south", "west"]
    assert run("reliability", path, *named, "--group-by", "region", "--json", "-").code == 0
    listed = run("test", path, "--probabilities", "p_cat,p_dog,p_eel", "--labels", "y", "-b", 9)
    assert (listed.code, "a.parquet" in listed.out) == (0, True)
    refused = run("evaluate", path, *named, "--binary")
    assert (refused.code, "binary is declared, but probabilities are 3" in refused.err) == (4, True)
    missing = run("evaluate", path, "--labels", "nope", "--probabilities", "p_")
    assert (missing.code, "the columns are: p_cat" in missing.err) == (2, True)
    options = ["--covariates", "region", "--at", "grid", "--points", "3"]
    audited = run("bias", path, *named, *options, "-o", tmp_path / "map.csv")
    assert audited.code == 0, audited.err
    assert "north" in (tmp_path / "map.csv").read_text()
    with pytest.raises(cs.StoreError, match=r"calibscale evaluate .* --labels NAME.*from_file"):
        cs.evaluate(Path(path))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_from_file__names_the_function_of_an_option_of_evaluations(tmp_path, name):
    path = save(tmp_path / name, table(20))
    with pytest.raises(
        TypeError, match=r"from_file\(\) has no .*pass it to evaluate\(source, on_i"
    ):
        cs.from_file(path, labels="animal", on_invalid="drop")
    with pytest.raises(TypeError, match=r"from_file\(\) has no parameter 'label'$"):
        cs.from_file(path, label="animal")


def test_from_file__shows_that_a_column_has_no_name(tmp_path):
    (tmp_path / "a.csv").write_text(",score,y\n0,0.5,1\n")
    with pytest.raises(OptionError, match=r"the columns are: '', score, y$"):
        cs.from_file(tmp_path / "a.csv")


def test_check__of_a_table_that_does_not_exist_says_so(tmp_path, run):
    ran = run("check", tmp_path / "a.parquet", "--labels", "y", "--probabilities", "p")
    assert ran.code == 2
    assert ran.err.strip() == f"error: {tmp_path / 'a.parquet'}: there is no such file"
