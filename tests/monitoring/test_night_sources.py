"""Sources of a night: stores, files, arrays, URLs, covariates and groups."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support.ten_nights import (
    CLASSES,
    FILES,
    JOB,
    ROWS,
    day_name,
    day_rows,
    run_again,
    write_day,
    write_job,
)

pytestmark = pytest.mark.long

# every kind of statistics, over one window and without tests
SHORT = """
group_by = "region"
windows = ["day"]
estimators = ["ece", {name = "ckce", features = 20}, {name = "klce", covariates = ["age"]}]
[source]
path = "days/{date}.zarr"
"""


def test_rows__without_a_group_are_a_group(folder):
    logits, labels, x = day_rows(10)
    # seven rows have no region
    x[:7, 0] = np.nan
    store = cs.LogitStore.create(
        str(folder / "days" / f"{day_name(10)}.zarr"),
        classes=CLASSES,
        dtype="float64",
        covariate_names=("region", "age"),
    )
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)
    result = run_again(folder, 10).to_dict()
    # they are neither invalid nor dropped
    assert (result["n"], result["n_dropped"]) == (ROWS, 0)
    groups = {g["group"]: g["n"] for g in result["windows"][0]["groups"]}
    assert [*groups] == [0.0, 1.0, "missing"]
    assert (groups["missing"], sum(groups.values())) == (7, ROWS)


@pytest.mark.parametrize("run", [dry_run, night])
def test_first_night__reports_missing_covariates(tmp_path, run):
    text = JOB.replace('"region"', '"regoin"').replace('["age"]', '["aeg"]')
    job = write_job(tmp_path, text + '[report]\nmap = ["age", "aged"]\n')
    write_day(tmp_path, 0)
    with pytest.raises(cs.OptionError) as caught:
        run(job, day_name(0))
    # a refused night leaves no ledger
    assert not (tmp_path / "ledger").exists()
    problems = [line.split(": ")[1:] for line in str(caught.value).split("\n")]
    problem = f"{tmp_path}/days/{day_name(0)}.zarr has no "
    assert problems == [
        ["group_by", problem + "'regoin'; did you mean 'region'?"],
        ["estimators[5].covariates", problem + "'aeg'; did you mean 'age'?"],
        ["report.map[1]", problem + "'aged'; did you mean 'age'?"],
    ]


@pytest.mark.parametrize("run", [dry_run, night])
@pytest.mark.parametrize(
    ("later", "message"),
    [
        (True, "'region' has names, but the groups of the ledger are numbers"),
        (False, r"report\.map\[0\]: 'region' of .* is text, whose numeric"),
    ],
)
def test_text__is_refused_as_a_point_of_a_map_and_among_numbered_groups(
    tmp_path, run, later, message
):
    text = 'estimators = ["ece"]\ngroup_by = "region"\n[source]\npath = "days/{date}.zarr"\n'
    if later:
        job = write_job(tmp_path, text)
        write_day(tmp_path, 0)
        night(job, day_name(0))
    else:
        job = write_job(tmp_path, text + '[report]\nmap = ["region"]\n')
    logits, labels, x = day_rows(1)
    store = cs.LogitStore.create(
        tmp_path / "days" / f"{day_name(1)}.zarr",
        classes=CLASSES,
        covariate_names=("region", "age"),
        categories={"region": ("east", "north")},
    )
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)
    with pytest.raises((cs.OptionError, cs.InvalidDataError), match=message):
        run(job, day_name(1))
    # the ledger stays as it was
    assert (tmp_path / "ledger").exists() == later
    if later:
        assert Ledger.open(tmp_path / "ledger").days() == [day_name(0)]


def test_flags__are_accepted_as_groups(tmp_path):
    job = write_job(
        tmp_path, 'estimators = ["ece"]\ngroup_by = "new"\n[source]\npath = "{date}.zarr"\n'
    )
    logits, labels, x = day_rows(0)
    store = cs.LogitStore.create(
        tmp_path / f"{day_name(0)}.zarr",
        classes=CLASSES,
        covariate_names=("new",),
        categories={"new": ("false", "true")},
    )
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x[:, :1])
    (window,) = night(job, day_name(0)).to_dict()["windows"][:1]
    assert [group["group"] for group in window["groups"]] == ["false", "true"]


# another night starts between creation and the first record
def test_first_nights__at_once_are_refused(tmp_path, monkeypatch):
    """The second one begins when the first has created the ledger but not yet written to it."""
    create = Ledger.create

    def slow(*arguments, **notes):
        ledger = create(*arguments, **notes)
        with pytest.raises(cs.StoreError, match="locked by another writer"):
            night(job, day_name(0))
        assert list(tmp_path.glob(".ledger.ingest/*.zarr"))  # the copy of the first night
        return ledger

    monkeypatch.setattr(Ledger, "create", slow)
    job = write_job(tmp_path, FILES)
    (tmp_path / f"{day_name(0)}.csv").write_text("p,y,a,g\n" + "0.4,0,1,2\n0.6,1,1,2\n" * 20)
    assert night(job, day_name(0)).to_dict()["n"] == 40


def test_night__in_a_read_only_folder_needs_only_the_ledger(folder):
    lock = folder / ".ledger.lock"
    lock.unlink()
    lock.mkdir()  # cannot be opened for writing, even by root
    write_day(folder, 10)
    assert night(folder / "job.toml", day_name(10)).fresh
    shutil.rmtree(folder / "ledger")
    with pytest.raises(cs.StoreError, match=rf"{folder}/ledger: .*directory"):
        night(folder / "job.toml", day_name(10))


def test_day__whose_rows_are_all_invalid_is_an_error_and_its_record_stays(tmp_path):
    job = write_job(tmp_path, FILES.replace("[source]", '[source]\non_invalid = "drop"'))
    file, text = tmp_path / f"{day_name(0)}.csv", "p,y,a,g\n" + "0.4,0,1,2\n0.6,1,1,2\n" * 20
    for first in (True, False):
        file.write_text(text.replace("0.", "60."))  # percent
        with pytest.raises(cs.InvalidDataError, match=r"40 rows were dropped: p is above 1 \(40"):
            night(job, day_name(0))
        assert first or [e.n for e in Ledger.open(tmp_path / "ledger").entries] == [1]
        # one row of forty is valid
        file.write_text(text.replace("0.", "60.", 39))
        assert night(job, day_name(0)).to_dict()["n"] == 1
    file.write_text(text.replace("0.", "60.", 39).replace(",1,1,2\n", ",-1,1,2\n"))
    assert night(job, day_name(0)).to_dict()["n"] == 0  # one valid row waits for its label


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz", "zarr"])
def test_source__may_be_files_or_foreign_arrays(tmp_path, kind):
    """The results equal the results of a store of the same rows."""
    logits, labels, x = day_rows(0)
    place = tmp_path / "days"
    place.mkdir()
    write_job(tmp_path, SHORT)
    write_day(tmp_path, 0)
    expected = night(tmp_path / "job.toml", day_name(0)).to_dict()
    shutil.rmtree(tmp_path / "ledger")
    columns = 'logits = "q"\nlabels = "y"\ncovariates = ["region", "age"]'
    layout, suffix = "files", f".{kind}"
    table = {f"q_{k}": logits[:, k] for k in range(CLASSES)}
    table |= {"y": labels, "region": x[:, 0], "age": x[:, 1]}
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        suffix = ""  # a folder of files
        (place / day_name(0)).mkdir()
        for part, rows in enumerate((slice(0, 250), slice(250, None))):
            cut = {key: value[rows] for key, value in table.items()}
            pq.write_table(pa.table(cut), place / day_name(0) / f"part-{part}.parquet")
    elif kind == "csv":
        rows = zip(*(column.tolist() for column in table.values()), strict=True)
        lines = [",".join(table), *(",".join(map(repr, row)) for row in rows)]
        (place / f"{day_name(0)}.csv").write_text("\n".join(lines) + "\n")
    elif kind == "npz":
        np.savez(place / f"{day_name(0)}.npz", q=logits, y=labels, x=x, names=["region", "age"])
        columns = 'logits = "q"\nlabels = "y"\ncovariates = "x"'
    else:
        import zarr

        layout, suffix = "zarr", ".foreign"
        group = zarr.open_group(place / f"{day_name(0)}.foreign", mode="w")
        for name, array in (("q", logits), ("y", labels), ("x", x)):
            group.create_array(name, data=array)
        columns = 'logits = "q"\nlabels = "y"\ncovariates = "x"\n'
        columns += 'covariate_names = ["region", "age"]'
    text = SHORT.replace(
        'path = "days/{date}.zarr"',
        f'path = "days/{{date}}{suffix}"\nformat = "{layout}"\n[source.columns]\n{columns}',
    )
    if kind == "npz":
        # covariates in a file of NumPy have no names
        text = text.replace('"region"', '"x0"').replace('["age"]', '["x1"]')
    job = write_job(tmp_path, text)
    outcome = night(job, day_name(0)).to_dict()
    for a, b in zip(
        outcome["windows"][0]["results"], expected["windows"][0]["results"], strict=True
    ):
        assert a["value"] == pytest.approx(b["value"], rel=1e-9, abs=1e-14), a["estimator"]
    # copies of files are removed after the night
    assert not list(tmp_path.glob(".ledger.ingest/*"))
    assert not night(job, day_name(0)).fresh


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{date}.csv", "{date}.npz", "5: source.binary: .* binary is declared"),
        (
            '"p"',
            '"q"',
            "8: source.columns.probabilities: .*csv: there is no 'q'; .*y, p, a, g$",
        ),
        (
            '"y"',
            '"z"',
            "7: source.columns.labels: .*csv: there is no 'z'; .*y, p, a, g$",
        ),
        (
            '"a", "g"',
            '"b", "g"',
            "9: source.columns.covariates: .*csv: there is no 'b'; .*y, p",
        ),
        (
            '"y"',
            '"y"\nweights = "w"',
            "8: source.columns.weights: .*csv: there is no 'w'; .*y, p",
        ),
    ],
)
def test_files__that_are_not_as_the_job_says_name_its_keys(tmp_path, old, new, message):
    (tmp_path / f"{day_name(0)}.csv").write_text("y,p,a,g\n1,0.5,3,1\n0,0.2,4,1\n")
    np.savez(tmp_path / f"{day_name(0)}.npz", y=[0, 1], p=np.full((2, 3), 1 / 3))
    text = FILES.replace(old, new)
    # the file of NumPy has no covariates
    job = write_job(tmp_path, text.split("covariates")[0] if "npz" in new else text)
    with pytest.raises(cs.OptionError) as caught:  # exit code 2
        night(job, day_name(0))
    assert re.search(rf"^{re.escape(str(job))}:{message}", str(caught.value))
    assert "--binary" not in str(caught.value)


def test_source__may_be_a_url(tmp_path):
    """Days are in a memory file system. A day is read again when one of its files has changed."""
    import fsspec

    where = f"memory://{tmp_path.name}"
    logits, labels, x = day_rows(0)

    def write(labels):
        store = cs.LogitStore.create(
            f"{where}/{day_name(0)}.zarr",
            classes=CLASSES,
            dtype="float64",
            covariate_names=("region", "age"),
        )
        with store.writer() as writer:
            writer.append(logits, labels, covariates=x)

    write(np.where(np.arange(ROWS) < 10, -1, labels))
    job = write_job(tmp_path, SHORT.replace("days/{date}.zarr", f"{where}/{{date}}.zarr"))
    assert night(job, day_name(0)).to_dict()["n"] == ROWS - 10
    assert not night(job, day_name(0)).fresh
    memory = fsspec.filesystem("memory")
    memory.rm(f"/{tmp_path.name}", recursive=True)
    write(labels)
    assert night(job, day_name(0)).to_dict()["n"] == ROWS
    memory.rm(f"/{tmp_path.name}", recursive=True)
    missing = night(job, day_name(1))
    assert missing.incomplete_days.missing == (day_name(1),)
