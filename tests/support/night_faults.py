"""Nights for tests of faults: days, what a night leaves, and processes to kill."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

import calibscale as cs
from calibscale.data.store import LogitStore
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support import ROOT
from tests.support.s3_server import BUCKET, S3Server

DAYS = [f"2026-03-{k:02}" for k in range(1, 8)]


LIMIT = 60.0  # seconds within which a process must have ended


JOB = """
model = "v1"
group_by = "region"
windows = ["day", "all"]
estimators = ["ece", "tce2_debiased", {name = "ckce", features = 20, bandwidth = 0.5, ridge = 0.1}]
[source]
path = "days/{date}.zarr"
[test]
statistics = ["ece", "ckce"]
replicates = 19
keep = true
[outputs]
json = "out/{date}.json"
prometheus = "out/night.prom"
"""


# the same rows as files of another program, which a night copies before it reads them
FILES = JOB.replace(
    '{date}.zarr"',
    """{date}.parquet"
format = "files"
[source.columns]
logits = "z"
labels = "y"
covariates = ["region", "age"]""",
)


# with one window and two estimators, since each of them has pictures in a report
BRIEF = FILES.replace('"day", "all"', '"all"').replace('"tce2_debiased", ', "")


TABLES = """
junit = "out/{date}.xml"
history = "out/history.csv"
"""


REPORT = """
junit = "out/{date}.xml"
history = "out/history.csv"
report = "out/report.html"
[report]
map = ["age"]
"""


def rows_of_day(
    k: int, rows: int, labelled: int | None = None, groups: int = 2, classes: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels, covariates of a day. Rows from `labelled` on have no labels."""
    # a seed for each day, so that days can be written in any order
    rng = np.random.default_rng([8, k])
    logits = 2 * rng.normal(size=(rows, classes))
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, classes - 1)
    labels[rows if labelled is None else labelled :] = -1
    return logits, labels, np.column_stack([rng.integers(0, groups, rows), rng.normal(50, 9, rows)])


def write_store(
    folder: Path, k: int, rows: int = 200, labelled: int | None = None, **changes: Any
) -> str:
    """Write the predictions of a day as a store. Return the day."""
    names = changes.pop("names", ("region", "age"))
    logits, labels, x = rows_of_day(k, rows, labelled, **changes)
    store = LogitStore.create(
        folder / "days" / f"{DAYS[k]}.zarr",
        classes=logits.shape[1],
        covariate_names=names,
        overwrite=True,
    )
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)
    return DAYS[k]


def write_parquet(
    folder: Path, k: int, rows: int, labelled: int | None = None, groups: int = 2
) -> str:
    """Write the predictions of a day as a parquet file. Return the day."""
    logits, labels, x = rows_of_day(k, rows, labelled, groups)
    columns = {f"z_{c}": logits[:, c].astype(np.float32) for c in range(3)}
    columns |= {"y": labels, "region": x[:, 0], "age": x[:, 1]}
    (folder / "days").mkdir(parents=True, exist_ok=True)
    place = folder / "days" / f"{DAYS[k]}.parquet"
    # many row groups, so that reading has many moments for faults
    pq.write_table(pa.table(columns), place, row_group_size=max(1, rows // 20))
    return DAYS[k]


def write_job(folder: Path, text: str = JOB) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.toml"
    path.write_text(text)
    return path


def _record(ledger: Ledger, day: str) -> dict[Any, Any]:
    """Everything that a ledger stores of a day, to the last bit."""
    record: dict[Any, Any] = {}
    # every group has an entry of its own
    for entry in ledger.entries:
        if entry.day != day:
            continue
        record[entry.group] = (entry.n, json.dumps(entry.info, sort_keys=True))
        for section in entry.sections:
            record[entry.group, section] = ledger.read(entry, section).tobytes()
    return record


def ledger_records(folder: Path) -> dict[str, Any]:
    """Records of every day. Fail if the ledger is damaged."""
    if not (folder / "ledger").exists():
        return {}
    ledger = Ledger.open(folder / "ledger")
    assert ledger.check() == []
    return {day: _record(ledger, day) for day in ledger.days()}


# the two members that differ between nights with the same data
def _timeless(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in ("created", "seconds")}


def read_output(path: Path) -> Any:
    """Contents of an output without the times of its run. Fail if it is truncated."""
    text = path.read_text()
    if path.suffix == ".json":
        # NaN and infinite numbers are no JSON
        return json.loads(text, parse_constant=pytest.fail, object_hook=_timeless)
    if path.suffix == ".prom":
        families = list(text_string_to_metric_families(text))
        # metrics of the run differ between nights
        return [f for f in families if f.name != "calibscale_run_timestamp_seconds"]
    if path.suffix == ".xml":
        root = ET.fromstring(text)
        for suite in root:
            del suite.attrib["time"], suite.attrib["timestamp"]
        return ET.tostring(root)
    if path.suffix == ".csv":
        return list(csv.reader(io.StringIO(text), strict=True))
    # the last line that a report has, so that it is whole
    assert text.endswith("</html>\n")
    return re.sub(
        r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\+00:00)?)?|[\d.]+(&nbsp;|[ \u00a0])?s\b", "", text
    )


def night_outputs(folder: Path) -> dict[str, Any]:
    # hidden files are leftovers of killed writers, which `check_done` looks for
    places = [*(folder / "out").glob("[!.]*"), *(folder / "ledger" / "results").rglob("*.json")]
    return {str(place.relative_to(folder)): read_output(place) for place in places}


class Forks:
    """A process that forks commands, so that they start at once."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        # a new interpreter takes seconds to load, in which nothing can be disturbed
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fault_nights"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            # in the background, shells let processes ignore SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        assert self.process.stdout.readline() == b"ready\n", self.process.stderr.read()
        os.set_blocking(self.process.stderr.fileno(), False)
        self.process.stderr.read()  # messages of libraries as they load

    def start(self, *nights: tuple[Path, str], limit: int | None = None) -> list[int]:
        """Start nights, each of a job and a day. Return their process ids."""
        return self.begin(
            *(["nightly", str(job), "--date", day, "-q"] for job, day in nights), limit=limit
        )

    def begin(self, *commands: list[str], limit: int | None = None) -> list[int]:
        """Start commands, each given by its arguments. Return their process ids."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = [[limit, arguments] for arguments in commands]
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[list[int], str]:
        """Wait for the commands. Return their exit codes and messages."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        return codes, (self.process.stderr.read() or b"").decode()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        self.process.wait(LIMIT)
        # left open, they would be reported in whichever test their objects are collected
        self.process.stdout.close()
        self.process.stderr.close()


class Scene:
    """A night that can be undone and repeated."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        rows: int,
        groups: int,
        server: S3Server | None = None,
        outputs: str = REPORT,
    ) -> None:
        self.folder, self.rows, self.groups = folder, rows, groups
        self._server = server  # of the predictions; None: they are files of this machine
        self.job = write_job(folder, BRIEF + outputs)
        if server is not None:
            options = ", ".join(f'{name} = "{value}"' for name, value in server.options.items())
            place = f"s3://{BUCKET}/{folder.name}/{{date}}.parquet"
            text = self.job.read_text().replace("days/{date}.parquet", place)
            text = text.replace(
                "[source.columns]", f"storage_options = {{{options}}}\n[source.columns]"
            )
            self.job.write_text(text)
        self.day = self._write(1)
        # "late": the day was judged with half of its labels, and its labels have come since
        if kind != "first":
            night(self.job, self._write(0))
        if kind == "late":
            night(self.job, self._write(1, labelled=rows // 2))
            self._write(1)
        self.old_records, self.old = ledger_records(folder), night_outputs(folder)
        (folder / "before").mkdir()
        self._copy(folder, folder / "before")

    def _write(self, k: int, labelled: int | None = None) -> str:
        """Write the predictions of a day. Return the day."""
        day = write_parquet(self.folder, k, self.rows, labelled, self.groups)
        if self._server is not None:
            file = self.folder / "days" / f"{day}.parquet"
            self._server.put_file(self.folder.name, file.name, file.read_bytes())
        return day

    def _copy(self, start: Path, end: Path) -> None:
        for name in ("ledger", "out"):
            if (start / name).exists():
                shutil.copytree(start / name, end / name)

    def undo(self) -> None:
        # leftovers of killed nights lie beside the ledger, with names that begin with a dot
        for place in (*self.folder.glob(".ledger*"), self.folder / "ledger", self.folder / "out"):
            shutil.rmtree(place, ignore_errors=True)
        self._copy(self.folder / "before", self.folder)

    def measure(self, forks: Forks) -> None:
        """Run the night undisturbed, and store its results and its duration."""
        self.undo()
        began = time.time()
        forks.start((self.job, self.day))
        assert forks.end() == ([0], "")
        self.seconds = time.time() - began
        self.judged = (self.folder / "out" / f"{self.day}.json").stat().st_mtime - began
        self.keep_new()

    def keep_new(self) -> None:
        """Store the results of an undisturbed night."""
        self.new_records, self.new = ledger_records(self.folder), night_outputs(self.folder)
        assert self.new_records != self.old_records

    def stage(self) -> str:
        """Stage that a night has reached, by the files in its folder."""
        # the order of a night: copy the table, read it, write the ledger, judge, write outputs
        if ledger_records(self.folder) == self.new_records:
            outputs = {name for name in self.new if name.startswith("out")}
            fresh = self._fresh()
            if not fresh & outputs:
                return "judge"
            return "write" if not outputs <= fresh else "end"
        # a new ledger is made aside; an old one gets more slots
        if list(self.folder.glob(".ledger.*.new")) or self._slots() > self._slots("before/"):
            return "ledger"
        copies = list(self.folder.glob(".ledger.ingest/*.zarr"))
        if not copies:
            return "begin"
        with suppress(cs.StoreError):  # a copy that has just begun
            if LogitStore.open(copies[0]).finished:
                return "read"
        return "ingest"

    def _fresh(self) -> set[str]:
        """Outputs that were written since the night was undone."""
        return {
            name
            for name in self.new
            if (self.folder / name).exists()
            and not (
                (old := self.folder / "before" / name).exists()
                and old.read_bytes() == (self.folder / name).read_bytes()
            )
        }

    def _slots(self, where: str = "") -> int:
        return len(list(self.folder.glob(f"{where}ledger/*/c/*/0")))

    def check(self) -> None:
        """Check that each record and output is the old one or the one of an undisturbed night."""
        records = ledger_records(self.folder)
        for day in self.new_records:
            # a night is whole or absent, never half
            assert records.get(day) in (self.old_records.get(day), self.new_records[day])
        outputs = night_outputs(self.folder)
        assert outputs.keys() <= self.new.keys()
        for name, new in self.new.items():
            assert outputs.get(name) in (self.old.get(name), new), name

    def check_done(self) -> None:
        assert ledger_records(self.folder) == self.new_records
        assert night_outputs(self.folder) == self.new
        for name in ("ledger", "out"):
            assert list((self.folder / name).rglob(".*.tmp")) == []


def after_night(folder: Path, run: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Records and outputs of an undisturbed night, which is then undone."""
    copies = Path(tempfile.mkdtemp(dir=folder.parent))
    names = ("ledger", "out")
    for name in names:
        shutil.copytree(folder / name, copies / name)
    run()
    state = ledger_records(folder), night_outputs(folder)
    for name in names:
        shutil.rmtree(folder / name)
        shutil.copytree(copies / name, folder / name)
    return state
