"""Doors through which rows come in, and what each of them says about one missing value.

``python -m tests.support.doors`` prints the number of cells of doors, kinds of missing values,
columns and options, and those that disagree.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
from click.testing import CliRunner

import calibscale as cs
from calibscale.cli import cli
from calibscale.data.ingest.ingestion import ingest
from calibscale.monitoring.night import night

ROWS, ROW = 24, 5  # of the table, and the row with the missing value
REMEDY = "Fix the row, or pass on_invalid='drop' (--on-invalid drop) to skip and count such rows."

# name of the column of each role in tables; texts in the last two
COLUMNS = {
    "probabilities": "score",
    "labels": "y",
    "weights": "w",
    "covariates": "age",
    "groups": "site",
    "clusters": "patient",
    "named groups": "region",
    "named clusters": "clinic",
}
TEXTS = ("region", "clinic")
INVALID = ("probabilities", "weights", "covariates", "clusters", "named clusters")
KINDS = ("NaN", "None", "pd.NA", "NaT", "masked", "empty", "absent")
LOCAL = cs.KLCE(
    ("age",), method="features", n_features=8, prediction_bandwidth=0.3, covariate_bandwidth=10.0
)
LOCAL_TEXT = (
    "klce(method=features, n_features=8, prediction_bandwidth=0.3, covariate_bandwidth=10.0)"
)


def table() -> dict[str, list[Any]]:
    """Valid rows by the names of columns."""
    rng = np.random.default_rng(1)
    # three decimals, so that text files hold the same numbers as arrays
    p = rng.random(ROWS).round(3)
    # eight rows in each of the groups, of which one loses a row to the missing value
    return {
        "score": p.tolist(),
        "y": (rng.random(ROWS) < p).astype(int).tolist(),
        "w": rng.integers(1, 4, ROWS).astype(float).tolist(),
        "age": rng.integers(20, 60, ROWS).astype(float).tolist(),
        "site": (np.arange(ROWS) % 3).astype(float).tolist(),
        "patient": (np.arange(ROWS) // 2).tolist(),
        "region": ["north", "south", "west"] * (ROWS // 3),
        "clinic": [f"c{k // 2}" for k in range(ROWS)],
    }


class Cell(NamedTuple):
    """One missing value: its kind, the role of its column, and what is done with invalid rows."""

    kind: str
    role: str
    on_invalid: str

    @property
    def column(self) -> str:
        return COLUMNS[self.role]

    @property
    def names(self) -> list[str]:
        """Columns of the table that are passed."""
        return list(dict.fromkeys(["score", "y", self.column]))

    # weights, labels and predictions have an argument of their own
    @property
    def covariate(self) -> str | None:
        """Column that is passed as a covariate."""
        return None if self.role in ("probabilities", "labels", "weights") else self.column

    @property
    def estimators(self) -> list[Any]:
        # covariates are needed by KLCE alone, and a row is invalid only if an estimator needs it
        return [cs.ECE(), *([LOCAL] if self.role == "covariates" else [])]

    @property
    def options(self) -> dict[str, Any]:
        """Options of `evaluate`."""
        options: dict[str, Any] = {"on_invalid": self.on_invalid}
        if "groups" in self.role:
            options["group_by"] = self.column
        if "clusters" in self.role:
            options["cluster"] = self.column
        return options

    @property
    def roles(self) -> dict[str, str]:
        """Columns by the role that they have in a call."""
        roles = {"probabilities": "score", "labels": "y"}
        if self.role == "weights":
            roles["weights"] = "w"
        if self.covariate is not None:
            roles["covariates"] = self.covariate
        return roles


class Outcome(NamedTuple):
    """What a door said: the sentence of an error without its place, or a result."""

    row: int | None = None
    sentence: str | None = None
    n: int | None = None
    unlabelled: int | None = None
    dropped: dict[str, int] | None = None
    ece: float | None = None
    groups: dict[str, int] | None = None


class Impossible(Exception):
    """A kind of missing value that a door cannot have, with the reason."""


def expected(cell: Cell) -> Outcome:
    """Outcome by the table of docs/reference/guarantees.md, with a naive error."""
    data = {name: np.array(column, object) for name, column in table().items()}
    left = np.ones(ROWS, bool)
    if cell.role in INVALID:
        if cell.on_invalid == "raise":
            sentence = f"'{cell.column}' is missing"
            if "clusters" in cell.role:
                sentence += ", and it names the cluster of the row"
            elif cell.role == "covariates":
                sentence += (
                    ", and errors over covariates need all of their values (evaluate with "
                    "group_by= or --group-by has a group of such rows)"
                )
            return Outcome(row=ROW, sentence=f"{sentence}. {REMEDY}")
        left[ROW] = False
    if cell.role == "labels":
        left[ROW] = False
    dropped = {f"{cell.column} is missing": 1} if cell.role in INVALID else {}
    p, y = (data[name][left].astype(float) for name in ("score", "y"))
    w = data["w"][left].astype(float) if cell.role == "weights" else np.ones(len(p))
    groups = None
    if "groups" in cell.role:
        names = data[cell.column]
        levels = sorted(set(names))
        # numbers are named without decimals, as in tables of results
        groups = {f"{level:g}" if level in (0, 1, 2) else level: 8 for level in levels}
        lost = names[ROW] if isinstance(names[ROW], str) else f"{names[ROW]:g}"
        groups = groups | {lost: 7, "missing": 1}
    return Outcome(
        n=int(left.sum()),
        unlabelled=int(cell.role == "labels"),
        dropped=dropped,
        ece=naive_ece(p, y, w),
        groups=groups,
    )


def naive_ece(p: Any, y: Any, w: Any) -> float:
    """Expected calibration error of 15 bins of equal width."""
    # a score on an edge is in the bin below it
    bins = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
    gaps = [abs(np.sum(w[bins == k] * (p - y)[bins == k])) for k in range(15)]
    return float(sum(gaps) / w.sum())


# ---------------------------------------------------------------- missing values in columns


def held(cell: Cell, name: str) -> Any:
    """Column in memory. The column of the cell has its missing value."""
    values: list[Any] = table()[name]
    if name != cell.column:
        return np.array(values)
    text = name in TEXTS
    if cell.kind == "masked":
        mask = np.arange(ROWS) == ROW
        return np.ma.masked_array(np.array(values), mask)
    # texts, whole numbers and floats of pandas each have a type with missing values
    if cell.kind == "pd.NA":
        kind = "string" if text else "Int64" if isinstance(values[0], int) else "Float64"
        return pd.array([*values[:ROW], pd.NA, *values[ROW + 1 :]], dtype=kind)
    if cell.kind == "absent":
        return pa.array([*values[:ROW], None, *values[ROW + 1 :]])
    marks = {"NaN": np.nan, "None": None, "NaT": pd.NaT, "empty": ""}
    values[ROW] = marks[cell.kind]
    if cell.kind == "None":
        return values
    if cell.kind == "NaN" and not text:
        # an array of floats, as most programs hold them
        return np.array(values)
    # `np.array` would make an array of texts of a list with a text
    column = np.empty(ROWS, object)
    column[:] = values
    return column


def pandas_frame(cell: Cell) -> pd.DataFrame:
    columns = {}
    for name in cell.names:
        column = held(cell, name)
        if isinstance(column, pa.Array):
            column = pd.Series(column.to_pylist(), dtype=pd.ArrowDtype(column.type))
        columns[name] = pd.Series(column)
    return pd.DataFrame(columns)


def polars_frame(cell: Cell) -> pl.DataFrame:
    text = cell.column in TEXTS
    if cell.kind in ("pd.NA", "NaT", "masked") or (cell.kind == "NaN" and text):
        raise Impossible("polars has null, and NaN in columns of numbers")
    if cell.kind == "empty" and not text:
        raise Impossible("a column of numbers of polars has no empty texts")
    columns = {}
    for name in cell.names:
        column = held(cell, name)
        columns[name] = pl.from_arrow(column) if isinstance(column, pa.Array) else column
    return pl.DataFrame(columns, strict=False)


def arrow_table(cell: Cell) -> pa.Table:
    text = cell.column in TEXTS
    if cell.kind in ("pd.NA", "NaT"):
        raise Impossible("Arrow has null, and NaN in columns of numbers")
    if cell.kind in ("NaN", "empty") and (cell.kind == "NaN") == text:
        raise Impossible("texts have no NaN, and numbers no empty texts")
    columns = {name: held(cell, name) for name in cell.names}
    arrays = {
        name: pa.array(np.ma.getdata(column), mask=np.ma.getmaskarray(column))
        if isinstance(column, np.ma.MaskedArray)
        else pa.array(column)
        for name, column in columns.items()
    }
    return pa.table(arrays)


def cells_of_text(cell: Cell) -> list[dict[str, str]]:
    """Cells of the rows of a CSV file."""
    words = {"NaN": "NaN", "None": "None", "pd.NA": "<NA>", "NaT": "NaT", "empty": ""}
    words["absent"] = "null"
    if cell.kind == "masked":
        raise Impossible("a file of text has no masks")
    if cell.kind != "empty" and cell.column in TEXTS:
        raise Impossible("a word in a column of texts is a name")
    data = table()
    rows = [{name: str(data[name][i]) for name in cell.names} for i in range(ROWS)]
    rows[ROW][cell.column] = words[cell.kind]
    return rows


def csv_file(cell: Cell, path: Path) -> Path:
    rows = cells_of_text(cell)
    lines = [",".join(cell.names), *(",".join(row.values()) for row in rows)]
    path = path.with_suffix(".csv")
    path.write_text("\n".join(lines) + "\n")
    return path


def jsonl_file(cell: Cell, path: Path) -> Path:
    data = table()
    rows = [{name: data[name][i] for name in cell.names} for i in range(ROWS)]
    words = {"NaN": float("nan"), "None": None, "pd.NA": "<NA>", "NaT": "NaT", "empty": ""}
    if cell.kind == "masked":
        raise Impossible("a file of text has no masks")
    if cell.kind in ("NaN", "pd.NA", "NaT") and cell.column in TEXTS:
        raise Impossible("a word in a column of texts is a name")
    if cell.kind == "absent":
        del rows[ROW][cell.column]
    else:
        rows[ROW][cell.column] = words[cell.kind]
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet_file(cell: Cell, path: Path) -> Path:
    """File with a row group for each row, or as pandas writes it."""
    path = path.with_suffix(".parquet")
    if cell.kind in ("pd.NA", "None") and not (cell.kind == "None" and cell.column in TEXTS):
        pandas_frame(cell).to_parquet(path)
    else:
        # a row group for each row: readers must add up the rows before
        pq.write_table(arrow_table(cell), path, row_group_size=1)
    return path


def feather_file(cell: Cell, path: Path) -> Path:
    path = path.with_suffix(".feather")
    pyarrow.feather.write_feather(arrow_table(cell), path, chunksize=1)
    return path


# ---------------------------------------------------------------- doors


def _outcome(result: Any, cell: Cell, also: dict[str, int] | None = None) -> Outcome:
    """Outcome of an evaluation, after `also` were dropped."""
    grouped = result.groups is not None and "groups" in cell.role
    groups = (
        {f"{key:g}": estimates[0].n for key, estimates in result.groups.items()}
        if grouped
        else None
    )
    return Outcome(
        n=result.n,
        unlabelled=result.n_unlabelled,
        dropped=result.dropped | (also or {}),
        ece=result["ece"].value,
        groups=groups,
    )


def _evaluated(source: Any, cell: Cell, also: dict[str, int] | None = None) -> Outcome:
    result = cs.evaluate(source, cell.estimators, floor=False, **cell.options)
    return _outcome(result, cell, also)


def _arrays(cell: Cell) -> dict[str, Any]:
    """Arguments of `from_arrays`."""
    columns = {role: held(cell, name) for role, name in cell.roles.items()}
    return {**columns, "covariate_names": None if cell.covariate is None else [cell.covariate]}


def of_arrays(cell: Cell, folder: Path) -> Outcome:
    return _evaluated(cs.from_arrays(**_arrays(cell), binary=True), cell)


def of_pandas(cell: Cell, folder: Path) -> Outcome:
    return _evaluated(cs.from_frame(pandas_frame(cell), **cell.roles), cell)


def of_polars(cell: Cell, folder: Path) -> Outcome:
    return _evaluated(cs.from_frame(polars_frame(cell), **cell.roles), cell)


def of_lazy_polars(cell: Cell, folder: Path) -> Outcome:
    return _evaluated(cs.from_frame(polars_frame(cell).lazy(), **cell.roles), cell)


def of_arrow(cell: Cell, folder: Path) -> Outcome:
    return _evaluated(cs.from_frame(arrow_table(cell), **cell.roles), cell)


def _of_file(write: Callable[[Cell, Path], Path]) -> Callable[[Cell, Path], Outcome]:
    def door(cell: Cell, folder: Path) -> Outcome:
        return _evaluated(cs.from_file(write(cell, folder / "rows"), **cell.roles), cell)

    return door


def _of_store(write: Callable[[Cell, Path], Path]) -> Callable[[Cell, Path], Outcome]:
    def door(cell: Cell, folder: Path) -> Outcome:
        file, place = write(cell, folder / "rows"), folder / "rows.zarr"
        copied = {"keys": cell.roles, "binary": True, "on_invalid": cell.on_invalid}
        report = ingest([file], place, **copied, overwrite=True)
        return _evaluated(place, cell, report.dropped)

    return door


def of_accumulator(cell: Cell, folder: Path) -> Outcome:
    """Two batches, the first without the missing value."""
    if "cluster" in cell.options:
        raise Impossible("an Accumulator has no clusters")
    arrays = _arrays(cell)
    names = arrays.pop("covariate_names")
    categories = {}
    if cell.covariate in TEXTS:
        categories = {cell.covariate: sorted(set(table()[cell.covariate]))}
    options = cell.options
    accumulator = cs.Accumulator(
        cell.estimators, classes=2, covariate_names=names, categories=categories, **options
    )
    for rows in (slice(0, 2), slice(2, None)):
        accumulator.update(**{role: column[rows] for role, column in arrays.items()})
    return _outcome(accumulator.compute(), cell)


def of_metrics(cell: Cell, folder: Path) -> Outcome:
    """Value of a function of arrays, which counts nothing."""
    if "group" in cell.role or "cluster" in cell.role:
        raise Impossible("functions of arrays have no groups and no clusters")
    arrays = _arrays(cell)
    y, p = arrays["labels"], arrays["probabilities"]
    options: dict[str, Any] = {"on_invalid": cell.on_invalid}
    if cell.role == "covariates":
        numbers = {name: getattr(LOCAL, name) for name in ("method", "n_features")}
        numbers |= {"prediction_bandwidth": 0.3, "covariate_bandwidth": 10.0}
        frame = pd.DataFrame({"age": pd.Series(pandas_frame(cell)["age"])})
        value = cs.metrics.klce(y, p, covariates=frame, **numbers, **options)
        columns = {
            role: np.delete(np.array(table()[name]), ROW) for role, name in cell.roles.items()
        }
        # the value without the row, which an option to drop rows must give
        clean = cs.from_arrays(**columns, covariate_names=["age"], binary=True)
        assert value == cs.evaluate(clean, LOCAL)["klce"].value
        return Outcome(ece=expected(cell).ece)
    value = cs.metrics.ece(y, p, sample_weight=arrays.get("weights"), **options)
    return Outcome(ece=value)


def _of_command(write: Callable[[Cell, Path], Path]) -> Callable[[Cell, Path], Outcome]:
    def door(cell: Cell, folder: Path) -> Outcome:
        file = write(cell, folder / "rows")
        command = ["evaluate", str(file), "--on-invalid", cell.on_invalid, "--json", "-"]
        command += ["--probabilities", "score", "--labels", "y", "-e", "ece", "--quiet"]
        command += ["--weights", "w"] if cell.role == "weights" else []
        if cell.role == "covariates":
            command += ["-e", LOCAL_TEXT, "--covariates", "age"]
        for option in ("group_by", "cluster"):
            if option in cell.options:
                command += [f"--{option.replace('_', '-')}", cell.column]
        # errors of the package are printed; any other exception is a traceback for the user
        ran = CliRunner().invoke(cli, command)
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        assert ran.exit_code == 0, ran.output
        result = json.loads(ran.stdout)
        (ece,) = (entry for entry in result["results"] if entry["estimator"] == "ece")
        groups = None
        if "groups" in cell.role:
            values = result["groups"]["values"]
            groups = {_name(entry): entry["n"] for entry in values}
        return Outcome(
            n=result["n"],
            unlabelled=result["n_unlabelled"],
            dropped=result["dropped"],
            ece=ece["value"],
            groups=groups,
        )

    return door


def _name(group: dict[str, Any]) -> str:
    """Name of a group in JSON."""
    # groups of numbers have no name
    value = group["name"] if group.get("name") else group["value"]
    return value if isinstance(value, str) else f"{value:g}"


JOB = """
name = "doors"
windows = ["day"]
estimators = [ESTIMATORS]
GROUPS
[source]
path = "PATH"
format = "files"
binary = true
on_invalid = "OPTION"
[source.columns]
COLUMNS
"""


def _of_job(write: Callable[[Cell, Path], Path]) -> Callable[[Cell, Path], Outcome]:
    def door(cell: Cell, folder: Path) -> Outcome:
        if cell.role.startswith("named groups"):
            raise Impossible("a ledger groups by numbers")
        if cell.role == "groups":
            raise Impossible("a ledger has no group of missing values: such rows are invalid")
        file = write(cell, folder / "2026-01-01")
        estimators = '"ece"'
        if cell.role == "covariates":
            estimators += (
                ', {name = "klce", covariates = ["age"], method = "features", n_features = 8, '
                "prediction_bandwidth = 0.3, covariate_bandwidth = 10.0}"
            )
        columns = {
            role: f'["{n}"]' if role == "covariates" else f'"{n}"' for role, n in cell.roles.items()
        }
        texts = {
            "ESTIMATORS": estimators,
            "GROUPS": f'cluster = "{cell.column}"' if "cluster" in cell.options else "",
            "PATH": f"{{date}}{file.suffix}",
            "OPTION": cell.on_invalid,
            "COLUMNS": "\n".join(f"{role} = {names}" for role, names in columns.items()),
        }
        text = JOB
        for name, value in texts.items():
            text = text.replace(name, value)
        (folder / "job.toml").write_text(text)
        result = night(folder / "job.toml", "2026-01-01").to_dict()
        (ece,) = (e for e in result["windows"][0]["results"] if e["estimator"] == "ece")
        return Outcome(
            n=result["n"],
            unlabelled=result["n_unlabelled"],
            dropped=result["dropped"],
            ece=ece["value"],
        )

    return door


Door = Callable[[Cell, Path], Outcome]
DOORS: dict[str, Door] = {
    "from_arrays": of_arrays,
    "from_frame pandas": of_pandas,
    "from_frame polars": of_polars,
    "from_frame polars lazy": of_lazy_polars,
    "from_frame pyarrow": of_arrow,
    "from_file csv": _of_file(csv_file),
    "from_file jsonl": _of_file(jsonl_file),
    "from_file parquet": _of_file(parquet_file),
    "from_file feather": _of_file(feather_file),
    "ingest csv": _of_store(csv_file),
    "ingest parquet": _of_store(parquet_file),
    "Accumulator": of_accumulator,
    "metrics": of_metrics,
    "evaluate jsonl": _of_command(jsonl_file),
    "evaluate parquet": _of_command(parquet_file),
    "job csv": _of_job(csv_file),
    "job parquet": _of_job(parquet_file),
}
# names of columns where the arguments of a call are the columns
ARGUMENTS = {
    "from_arrays": {"score": "probabilities", "y": "labels", "w": "weights"},
    "Accumulator": {"score": "probabilities", "y": "labels", "w": "weights"},
    "metrics": {"score": "y_prob", "y": "y_true", "w": "sample_weight"},
}


def cells() -> Iterator[Cell]:
    """Every missing value with every option."""
    for role in COLUMNS:
        for kind in KINDS:
            for on_invalid in ("raise", "drop"):
                yield Cell(kind, role, on_invalid)


def outcome(door: str, cell: Cell, folder: Path) -> Outcome:
    """What a door says about a cell, in the names of the table."""
    try:
        observed = DOORS[door](cell, folder)
    except cs.InvalidDataError as error:
        place, _, sentence = str(error).partition(": ")
        row = re.match("row ([0-9]+) of", place)
        observed = Outcome(row=int(row[1]) if row else None, sentence=sentence)
        if error.row != observed.row:
            raise ValueError(f"{error}: its row is {error.row}") from error
    names = {door_name: name for name, door_name in ARGUMENTS.get(door, {}).items()}
    if observed.sentence:
        # the table's own names, where a call names its arguments
        observed = observed._replace(
            sentence=re.sub("^'(.*?)'", lambda m: f"'{names.get(m[1], m[1])}'", observed.sentence)
        )
    if observed.dropped:
        dropped = {}
        for fault, count in observed.dropped.items():
            column, _, fault_text = fault.partition(" ")
            dropped[f"{names.get(column, column)} {fault_text}"] = count
        observed = observed._replace(dropped=dropped)
    return observed


def disagreement(door: str, cell: Cell, folder: Path) -> str | None:
    """How a door differs from the expected outcome. Raise Impossible if it has no such value."""
    wanted, observed = expected(cell), outcome(door, cell, folder)
    if door == "metrics":  # a number alone
        wanted = Outcome(row=wanted.row, sentence=wanted.sentence, ece=wanted.ece)
    for name, value in wanted._asdict().items():
        actual = getattr(observed, name)
        equal = value == actual
        if name == "ece" and None not in (value, actual):
            # sums over the rows are in another order
            equal = abs(value - actual) < 1e-12
        if not equal:
            return f"{name}: {actual!r}, not {value!r} ({observed})"
    return None


def summary() -> tuple[int, dict[str, int], list[str]]:
    """Number of cells that were compared, of impossible ones by reason, and disagreements."""
    compared, impossible, different = 0, dict[str, int](), list[str]()
    for door in DOORS:
        for cell in cells():
            with tempfile.TemporaryDirectory() as folder, suppress_impossible(impossible):
                difference: str | None
                try:
                    difference = disagreement(door, cell, Path(folder))
                except Impossible:
                    raise
                except Exception as error:  # any other error is a disagreement
                    difference = f"{type(error).__name__}: {error}"
                compared += 1
                if difference is not None:
                    different.append(f"{door}, {' '.join(cell)}: {difference}")
    return compared, impossible, different


class suppress_impossible(suppress):
    """Count impossible cells by reason."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(Impossible)
        self.counts = counts

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is Impossible:
            self.counts[str(error)] = self.counts.get(str(error), 0) + 1
        return super().__exit__(kind, error, trace)


if __name__ == "__main__":
    compared, impossible, different = summary()
    for line in different:
        print(line)
    for reason, count in impossible.items():
        print(f"{count} cells cannot exist: {reason}")
    kinds = f"{len(DOORS)} doors, {len(KINDS)} kinds, {len(COLUMNS)} columns, 2 options"
    print(f"{kinds}: {compared} cells compared, {len(different)} disagreements")
