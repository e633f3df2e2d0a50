"""Faults of a night: what is killed, full, read-only, lost, damaged, late, empty or at once."""

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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

import calibscale as cs
from calibscale.errors import ClusterError
from calibscale.ledger.days import Ledger
from calibscale.nightly.job import read_job
from calibscale.nightly.run import night
from calibscale.store import LogitStore
from tests.test_cli import run  # noqa: F401
from tests.test_cluster import Cluster, _At

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
FILES = JOB.replace(
    '{date}.zarr"',
    """{date}.parquet"
format = "files"
[source.columns]
logits = "z"
labels = "y"
covariates = ["region", "age"]""",
)
REPORT = """
junit = "out/{date}.xml"
history = "out/history.csv"
report = "out/report.html"
[report]
map = ["age"]
"""


def _rows(
    k: int, rows: int, labelled: int | None = None, groups: int = 2, classes: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels, covariates of a day; from row `labelled` on there are no labels."""
    rng = np.random.default_rng([8, k])
    logits = 2 * rng.normal(size=(rows, classes))
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, classes - 1)
    labels[rows if labelled is None else labelled :] = -1
    return logits, labels, np.column_stack([rng.integers(0, groups, rows), rng.normal(50, 9, rows)])


def _store(folder: Path, k: int, rows: int = 200, labelled: int | None = None, **other: Any) -> str:
    """The store of a day; its name is the day's."""
    names = other.pop("names", ("region", "age"))
    logits, labels, x = _rows(k, rows, labelled, **other)
    made = LogitStore.create(
        folder / "days" / f"{DAYS[k]}.zarr", classes=logits.shape[1], covariate_names=names,
        overwrite=True,
    )  # fmt: skip
    with made.writer() as writer:
        writer.append(logits, labels, covariates=x)
    return DAYS[k]


def _parquet(folder: Path, k: int, rows: int, labelled: int | None = None, groups: int = 2) -> str:
    """The same as a file."""
    logits, labels, x = _rows(k, rows, labelled, groups)
    columns = {f"z_{c}": logits[:, c].astype(np.float32) for c in range(3)}
    columns |= {"y": labels, "region": x[:, 0], "age": x[:, 1]}
    (folder / "days").mkdir(parents=True, exist_ok=True)
    place = folder / "days" / f"{DAYS[k]}.parquet"
    pq.write_table(pa.table(columns), place, row_group_size=max(1, rows // 20))
    return DAYS[k]


def _job(folder: Path, text: str = JOB) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.toml"
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job, whose ledger has the first day."""
    _store(tmp_path, 0)
    night(_job(tmp_path), DAYS[0])
    return tmp_path


# ---------------------------------------------------------------- what a night leaves


def _record(ledger: Ledger, day: str) -> dict[Any, Any]:
    """All that a ledger keeps of a day, to the last bit."""
    found: dict[Any, Any] = {}
    for entry in ledger.entries:
        if entry.day != day:
            continue
        found[entry.group] = (entry.n, json.dumps(entry.info, sort_keys=True))
        for section in entry.sections:
            found[entry.group, section] = ledger.read(entry, section).tobytes()
    return found


def _records(folder: Path) -> dict[str, Any]:
    """Of every day; raises if the ledger is damaged."""
    if not (folder / "ledger").exists():
        return {}
    ledger = Ledger.open(folder / "ledger")
    assert ledger.check() == []
    return {day: _record(ledger, day) for day in ledger.days()}


def _timeless(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in ("created", "seconds")}


def _output(path: Path) -> Any:
    """What an output says, but for the time at which it was written; raises if it is cut."""
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text, parse_constant=pytest.fail, object_hook=_timeless)
    if path.suffix == ".prom":
        families = list(text_string_to_metric_families(text))
        return [f for f in families if f.name != "calibscale_run_timestamp_seconds"]
    if path.suffix == ".xml":
        root = ET.fromstring(text)
        for suite in root:
            del suite.attrib["time"], suite.attrib["timestamp"]
        return ET.tostring(root)
    if path.suffix == ".csv":
        return list(csv.reader(io.StringIO(text), strict=True))
    assert text.endswith("</html>\n")
    return re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\+00:00)?)?|[\d.]+(&nbsp;| )?s\b", "", text)


def _outputs(folder: Path) -> dict[str, Any]:
    places = [*(folder / "out").glob("[!.]*"), *(folder / "ledger" / "results").rglob("*.json")]
    return {str(place.relative_to(folder)): _output(place) for place in places}


# ---------------------------------------------------------------- processes


class Forks:
    """A process that forks nights, so that they begin at once."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault_nights"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parent.parent,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        assert self.process.stdout.readline() == b"ready\n", self.process.stderr.read()
        os.set_blocking(self.process.stderr.fileno(), False)
        self.process.stderr.read()  # what libraries say as they load

    def start(self, *nights: tuple[Path, str], limit: int | None = None) -> list[int]:
        """Begin nights, each of a job and a day; their process ids."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = [[limit, ["nightly", str(job), "--date", day, "-q"]] for job, day in nights]
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[list[int], str]:
        """Exit codes of the nights, and what they complained of."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        return codes, (self.process.stderr.read() or b"").decode()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(LIMIT)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


class Scene:
    """A night that is done, undone, and done again."""

    def __init__(self, folder: Path, kind: str, rows: int, groups: int) -> None:
        self.folder, self.rows = folder, rows
        self.job = _job(folder, FILES + REPORT)
        self.day = _parquet(folder, 1, rows, groups=groups)
        if kind != "first":
            night(self.job, _parquet(folder, 0, rows, groups=groups))
        if kind == "late":
            night(self.job, _parquet(folder, 1, rows, labelled=rows // 2, groups=groups))
            _parquet(folder, 1, rows, groups=groups)
        self.old_records, self.old = _records(folder), _outputs(folder)
        (folder / "before").mkdir()
        self._copy(folder, folder / "before")

    def _copy(self, start: Path, end: Path) -> None:
        for name in ("ledger", "out"):
            if (start / name).exists():
                shutil.copytree(start / name, end / name)

    def undo(self) -> None:
        for place in (*self.folder.glob(".ledger*"), self.folder / "ledger", self.folder / "out"):
            shutil.rmtree(place, ignore_errors=True)
        self._copy(self.folder / "before", self.folder)

    def measure(self, forks: Forks) -> None:
        """A night that nothing disturbs: what it leaves, and the seconds it takes."""
        self.undo()
        began = time.time()
        forks.start((self.job, self.day))
        assert forks.end() == ([0], "")
        self.seconds = time.time() - began
        self.judged = (self.folder / "out" / f"{self.day}.json").stat().st_mtime - began
        self.new_records, self.new = _records(self.folder), _outputs(self.folder)
        assert self.new_records != self.old_records

    def stage(self) -> str:
        """How far a night has come, by the files that are there."""
        if _records(self.folder) == self.new_records:
            outputs = {name for name in self.new if name.startswith("out")}
            fresh = self._fresh()
            if not fresh & outputs:
                return "judge"
            return "write" if not outputs <= fresh else "end"
        if list(self.folder.glob(".ledger.*.new")) or self._slots() > self._slots("before/"):
            return "ledger"
        copies = list(self.folder.glob(".ledger.ingest/*.zarr"))
        if not copies:
            return "begin"
        with suppress(cs.StoreError):
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
        """Each part is that of before, or of an undisturbed night, as a whole."""
        for day in self.new_records:
            assert _records(self.folder).get(day) in (
                self.old_records.get(day),
                self.new_records[day],
            )
        found = _outputs(self.folder)
        assert found.keys() <= self.new.keys()
        for name, new in self.new.items():
            assert found.get(name) in (self.old.get(name), new), name

    def check_done(self) -> None:
        assert _records(self.folder) == self.new_records
        assert _outputs(self.folder) == self.new
        for name in ("ledger", "out"):
            assert list((self.folder / name).rglob(".*.tmp")) == []


# ---------------------------------------------------------------- kills


@pytest.fixture(scope="module")
def scene(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The night of a day whose labels came late."""
    made = Scene(tmp_path_factory.mktemp("scene"), "late", rows=1000, groups=2)
    made.measure(forks)
    return made


def _kills(
    scene: Scene, forks: Forks, least: int, stages: set[str], early: bool = False
) -> None:  # fmt: skip
    """SIGKILL at moments of a whole night, until there were enough of them, in every stage.

    Every other one before the outputs if `early`, for the report takes most of a small night.
    """
    seconds = scene.seconds
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    found: Counter[str] = Counter()
    late = 0
    while found.total() < least or not stages <= found.keys():
        scene.undo()
        moment = rng.uniform(0, scene.judged if early and found.total() % 2 else seconds)
        (process,) = forks.start((scene.job, scene.day))
        time.sleep(moment)
        os.kill(process, signal.SIGKILL)
        codes, _ = forks.end()
        if codes != [-signal.SIGKILL]:  # it was done a little sooner
            late += 1
            seconds = min(seconds, moment)
            continue
        found[scene.stage()] += 1
        scene.check()
        if found.total() % 5:
            assert night(scene.job, scene.day).status == "fine"
        else:
            forks.start((scene.job, scene.day))
            assert forks.end() == ([0], "")
        scene.check_done()
    print(f"{found.total()} kills in {scene.seconds:.2f} s, {late} too late: {dict(found)}")


def test_kills__leave_the_old_state_or_the_new(forks: Forks, scene: Scene) -> None:
    _kills(scene, forks, 8, set(), early=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("late", 50), ("day", 25), ("first", 25)])
def test_kills__at_fifty_moments_of_every_stage(
    forks: Forks, tmp_path: Path, kind: str, least: int
) -> None:
    """Over ingest, reading, the ledger, judging and the outputs, the report among them."""
    stages = {"ingest", "read", "ledger", "judge", "write"}
    scene = Scene(tmp_path, kind, rows=10_000, groups=12)
    scene.measure(forks)
    _kills(scene, forks, least, stages)


# ---------------------------------------------------------------- disks and folders


@contextmanager
def _mounted(place: Path, *options: str) -> Iterator[None]:
    """What `mount` makes there, for a while."""
    place.mkdir(exist_ok=True)
    mount = ["mount", *options, str(place)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _after(folder: Path, again: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Records and outputs as a night leaves them that nothing disturbs, which then is undone."""
    kept = Path(tempfile.mkdtemp(dir=folder.parent))
    names = ("ledger", "out")
    for name in names:
        shutil.copytree(folder / name, kept / name)
    again()
    found = _records(folder), _outputs(folder)
    for name in names:
        shutil.rmtree(folder / name)
        shutil.copytree(kept / name, folder / name)
    return found


def test_full_disk__is_told_and_the_night_goes_on_when_there_is_room(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Of less and less room, from what is enough for all to what is enough for nothing."""
    disk = tmp_path / "disk"
    with _mounted(disk, "-t", "tmpfs", "-o", "size=6m", "tmpfs"):
        job = _job(disk, FILES + REPORT)
        night(job, _parquet(disk, 0, 600))
        _parquet(disk, 1, 600)
        old_records, old = _records(disk), _outputs(disk)
        new_records, new = _after(disk, lambda: night(job, DAYS[1]))
        told = []
        for room in (0, 16, 32, 64, 96, 128, 192, 256, 400):
            filler = disk / "filler"
            filler.write_bytes(b"")
            free = shutil.disk_usage(disk).free - 1024 * room
            filler.write_bytes(bytes(free))
            ran = run("nightly", job, "--date", DAYS[1], "-q")
            if ran.code == 0:
                break
            assert ran.code == 1
            assert ran.err.startswith(f"error: {disk}")
            assert "No space left" in ran.err
            told.append(ran.err)
            assert _records(disk).get(DAYS[1]) in (None, new_records[DAYS[1]])
            assert _records(disk)[DAYS[0]] == old_records[DAYS[0]]
            found = _outputs(disk)
            assert all(found.get(name) in (old.get(name), new[name]) for name in new)
        assert len({re.sub(r"\d+", "", message) for message in told}) > 2  # of other parts
        filler.unlink()
        assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
        assert (_records(disk), _outputs(disk)) == (new_records, new)


@pytest.mark.parametrize("limit", [0, 60_000])
def test_file_limit__is_told_and_leaves_the_old_night(
    forks: Forks, scene: Scene, limit: int
) -> None:
    """No file may be larger: the copy of the rows fails, or an output."""
    scene.undo()
    forks.start((scene.job, scene.day), limit=limit)
    codes, told = forks.end()
    assert codes == [1]
    assert told.startswith(f"error: {scene.folder}")
    assert "File too large" in told
    scene.check()
    night(scene.job, scene.day)
    scene.check_done()


def test_file__in_the_place_of_the_folder_of_outputs(
    run: Any,  # noqa: F811
    folder: Path,
) -> None:
    shutil.rmtree(folder / "out")
    (folder / "out").write_text("mine")
    _store(folder, 1)
    ran = run("nightly", folder / "job.toml", "--date", DAYS[1], "-q")
    assert ran.code == 1
    assert f"{folder / 'out' / DAYS[1]}.json: cannot be written" in ran.err
    assert (folder / "out").read_text() == "mine"
    (folder / "out").unlink()
    assert run("nightly", folder / "job.toml", "--date", DAYS[1], "-q").code == 0
    assert len(_outputs(folder)) == 4


def test_file__in_the_place_of_the_ledger(run: Any, tmp_path: Path) -> None:  # noqa: F811
    _store(tmp_path, 0)
    (tmp_path / "ledger").write_text("mine")
    ran = run("nightly", _job(tmp_path), "--date", DAYS[0], "-q")
    assert ran.code == 1
    assert ran.err.startswith(f"error: {tmp_path / 'ledger'}: ")
    assert (tmp_path / "ledger").read_text() == "mine"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that other users may enter."""
    place = Path(tempfile.mkdtemp(prefix="calibscale-faults-"))
    place.chmod(0o755)
    yield place
    for path in place.rglob("*"):
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(place)


@contextmanager
def _nobody(*owned: Path) -> Iterator[None]:
    """The rights of a user who owns nothing else, if we are root."""
    root = os.geteuid() == 0
    if root:
        for top in owned:
            for path in (top, *top.rglob("*")):
                os.chown(path, 65534, 65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("shut", ["out", "ledger"])
def test_folder__that_is_read_only_is_told(
    run: Any,  # noqa: F811
    open_folder: Path,
    shut: str,
) -> None:
    _store(open_folder, 0)
    job = _job(open_folder)
    night(job, DAYS[0])
    _store(open_folder, 1)
    old_records, old = _records(open_folder), _outputs(open_folder)
    place = open_folder / shut
    with _nobody(open_folder):
        for path in (place, *place.rglob("*")):
            if path.is_dir():
                path.chmod(0o500)
        ran = run("nightly", job, "--date", DAYS[1], "-q")
        assert ran.code == 1, ran.err
        assert ran.err.startswith(f"error: {place}")
        assert "Permission denied" in ran.err
        found = _records(open_folder)
        assert found.keys() == old_records.keys() | ({DAYS[1]} if shut == "out" else set())
        assert {**found, **old_records} == found
        assert _outputs(open_folder) == old
        for path in (place, *place.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
        assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    assert len(_outputs(open_folder)) == 2 + 3


def test_disk__that_is_read_only_is_told(run: Any, folder: Path) -> None:  # noqa: F811
    """As a disk becomes after an error."""
    _store(folder, 1)
    old = _records(folder), _outputs(folder)
    with _mounted(folder / "ledger", "--bind", str(folder / "ledger")):
        again = ["mount", "-o", "remount,ro,bind", str(folder / "ledger")]
        subprocess.run(again, check=True)
        ran = run("nightly", folder / "job.toml", "--date", DAYS[1], "-q")
    assert ran.code == 1
    assert ran.err.startswith(f"error: {folder / 'ledger'}")
    assert "Read-only file system" in ran.err
    assert (_records(folder), _outputs(folder)) == old
    assert run("nightly", folder / "job.toml", "--date", DAYS[1], "-q").code == 0


# ---------------------------------------------------------------- a cluster


def test_cluster__whose_worker_and_then_scheduler_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker takes over from one that is killed; without its scheduler a night ends."""
    monkeypatch.setattr("calibscale.source._BLOCK_NUMBERS", 1)  # short blocks
    (tmp_path / "cluster").mkdir()
    for k in range(3):
        _store(tmp_path, k, rows=1500)
    job = _job(tmp_path, JOB)
    night(job, DAYS[0])
    expected = []
    for day in DAYS[1:3]:
        expected.append(_after(tmp_path, lambda day=day: night(job, day)))
    cluster = Cluster(tmp_path / "cluster")
    try:
        there = read_job(job)
        file = there.file
        there = replace(there, run=replace(there.run, scheduler=cluster.address))
        object.__setattr__(there, "file", file)
        first = cluster.worker()
        other = []

        def swap() -> None:
            other.append(cluster.slow_worker())
            first.kill()

        night(there, DAYS[1], progress=_At(swap))
        assert first.wait(LIMIT) == -signal.SIGKILL
        assert other[0].poll() is None
        assert _records(tmp_path) == expected[0][0]
        kill = _At(cluster.scheduler.kill)
        with pytest.raises(ClusterError, match=f"scheduler at {cluster.address} was lost"):
            night(there, DAYS[2], progress=kill)
        assert time.monotonic() - kill.acted < LIMIT
    finally:
        cluster.stop()
    assert _records(tmp_path) == expected[0][0]
    night(job, DAYS[2])
    assert _records(tmp_path)[DAYS[2]][None][0] == 1500


# ---------------------------------------------------------------- damage


def _damage(folder: Path, day: str, section: str, group: float | None) -> None:
    """Flip a bit of a record."""
    ledger = Ledger.open(folder / "ledger")
    (entry,) = ledger.select(day, day, group=group)
    file = folder / "ledger" / section / "c" / str(entry.slot) / "0"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 4
    file.write_bytes(bytes(stored))


@pytest.mark.parametrize("group", [None, 1.0])
@pytest.mark.parametrize("section", ["states", "wagers", "replicates"])
def test_damaged_day__is_named_the_others_are_used_and_it_is_mended(
    run: Any,  # noqa: F811
    folder: Path,
    section: str,
    group: float | None,
) -> None:
    if (section, group) in {("wagers", None), ("replicates", 1.0)}:
        return  # there are none
    job = folder / "job.toml"
    night(job, _store(folder, 1))
    night(job, _store(folder, 2))
    whole = _records(folder)
    _damage(folder, DAYS[1], section, group)
    ran = run("ledger", "check", folder / "ledger")
    assert ran.code == 1
    assert f"the record of {DAYS[1]} (v1) is damaged" in ran.err
    assert "1 damaged" in ran.out
    _store(folder, 3)
    ran = run("nightly", job, "--date", DAYS[3])
    assert ran.code == 0, ran.err
    result = json.loads((folder / "out" / f"{DAYS[3]}.json").read_text())
    every = result["windows"][1]
    told = [*every["damaged"], *result["notes"]]
    assert any(DAYS[1] in message for message in told), told
    assert DAYS[1] in ran.out
    if (section, group) == ("states", None):
        assert every["days"] == [DAYS[0], DAYS[2], DAYS[3]]
    assert all(found["value"] is not None for found in every["results"])
    # the same day again: its predictions are as they were, its record is not
    assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    found = _records(folder)
    del found[DAYS[3]]
    assert found == whole
    assert run("ledger", "check", folder / "ledger").code == 0


def test_damaged_index__is_told(run: Any, folder: Path) -> None:  # noqa: F811
    index = folder / "ledger" / "index.json"
    index.write_text(index.read_text()[:-20])
    cut = index.read_bytes()
    ran = run("nightly", folder / "job.toml", "--date", DAYS[0], "-q")
    assert ran.code == 1
    assert f"{folder / 'ledger'}: its index is damaged" in ran.err
    assert index.read_bytes() == cut


def test_damaged_result__of_a_night_is_made_again(run: Any, folder: Path) -> None:  # noqa: F811
    old = _outputs(folder)
    (kept,) = (folder / "ledger" / "results").rglob("*.json")
    kept.write_text(kept.read_text()[:500])
    assert run("nightly", folder / "job.toml", "--date", DAYS[0], "-q").code == 0
    assert _outputs(folder) == old


# ---------------------------------------------------------------- clocks


def _evidence(folder: Path, day: str) -> list[float]:
    found = night(folder / "job.toml", day).result
    assert found["day"] == found["windows"][1]["last"] == day
    return found["alarms"]["log_evidence"]


def test_clock__that_goes_back_changes_no_evidence(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Days two apart, bets of the day before: none learns from another."""
    logs = []
    for name, order in (("forth", (0, 2, 4)), ("back", (0, 4, 2))):
        folder = tmp_path / name
        _job(folder, JOB + "[alarms]\nlearn_days = 1\n")
        for k in (0, 2, 4):
            _store(folder, k)
        for k in order:
            night(folder / "job.toml", DAYS[k])
        logs.append([_evidence(folder, DAYS[k]) for k in (2, 4)])
    assert logs[0] == logs[1]
    result = night(tmp_path / "back" / "job.toml", DAYS[2]).result
    assert result["windows"][1]["days"] == [DAYS[0], DAYS[2]]
    assert any(f"later days, up to {DAYS[4]}" in note for note in result["notes"])
    ran = run("nightly", tmp_path / "back" / "job.toml", "--date", DAYS[2], "--again")
    assert "later days" in " ".join(ran.out.split())


def test_clock__bets_of_a_day_learn_only_from_days_before_it(tmp_path: Path) -> None:
    _job(tmp_path)
    for k in (0, 2, 1):
        night(tmp_path / "job.toml", _store(tmp_path, k, rows=2000))
    ledger = Ledger.open(tmp_path / "ledger")
    bets = {e.day: e.info["bets"] for e in ledger.select()}
    other = tmp_path / "other"
    _job(other)
    for k in (0, 1):
        night(other / "job.toml", _store(other, k, rows=2000))
    assert bets[DAYS[1]] == Ledger.open(other / "ledger").select()[1].info["bets"]


def test_clock__yesterday_by_default_before_days_of_the_future(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The clock was years ahead, and of files as well; now it is right."""
    job = _job(tmp_path)
    yesterday = (datetime.now(UTC).date() - timedelta(1)).isoformat()
    place = Path(tmp_path / "days" / f"{_store(tmp_path, 0)}.zarr")
    for day in ("2099-01-01", yesterday):
        shutil.copytree(place, place.with_name(f"{day}.zarr"))
        for path in place.with_name(f"{day}.zarr").rglob("*"):
            os.utime(path, (4e9, 4e9))
    assert run("nightly", job, "--date", "2099-01-01", "-q").code == 0
    for path in (*(tmp_path / "ledger").rglob("*"), *(tmp_path / "out").iterdir()):
        os.utime(path, (4e9, 4e9))
    ran = run("nightly", job)
    today = (datetime.now(UTC).date() - timedelta(1)).isoformat()
    if today == yesterday:  # not just at midnight
        assert ran.code == 0
        assert f"v1, {yesterday}: fine" in ran.out
    assert run("nightly", job, "--date", "2099-01-01", "-q").code == 0  # a day came before it
    assert "nothing has changed" in run("nightly", job, "--date", "2099-01-01").out


# ---------------------------------------------------------------- rows and labels that are missing


@pytest.mark.parametrize("kind", ["store", "files"])
def test_day_without_rows__is_kept_as_one(run: Any, tmp_path: Path, kind: str) -> None:  # noqa: F811
    """On the first night, and on a later one; then rows come."""
    text, made = (JOB, _store) if kind == "store" else (FILES, _parquet)
    job = _job(tmp_path, text)
    made(tmp_path, 0, 0)
    ran = run("nightly", job, "--date", DAYS[0])
    assert ran.code == 0, ran.err
    assert not (tmp_path / "ledger").exists()
    assert "0 rows" in ran.out
    assert json.loads((tmp_path / "out" / f"{DAYS[0]}.json").read_text())["n"] == 0
    made(tmp_path, 1, 200)
    assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    made(tmp_path, 2, 0)
    ran = run("nightly", job, "--date", DAYS[2])
    assert ran.code == 0, ran.err
    assert f"No row of {DAYS[2]} could be used" in ran.out
    result = json.loads((tmp_path / "out" / f"{DAYS[2]}.json").read_text())
    day, every = result["windows"]
    assert (day["n"], every["n"], every["days"]) == (0, 200, [DAYS[1]])
    before, now = result["alarms"]["log_evidence"]
    assert now == pytest.approx(before, abs=1e-12)
    assert "nothing was done" in run("nightly", job, "--date", DAYS[2]).out
    made(tmp_path, 3, 200)
    assert night(job, DAYS[3]).result["windows"][1]["n"] == 400
    for k in (0, 2):
        made(tmp_path, k, 200)
        assert night(job, DAYS[k]).result["n"] == 200
    assert [r[None][0] for r in _records(tmp_path).values()] == [200] * 4


@pytest.mark.parametrize("labelled", [0, 80])
def test_labels__that_come_late_meet_the_bets_of_their_day(
    folder: Path, labelled: int, tmp_path: Path
) -> None:
    job = folder / "job.toml"
    night(job, _store(folder, 1, rows=2000))
    result = night(job, _store(folder, 2, labelled=labelled)).result
    assert (result["n"], result["n_unlabelled"]) == (labelled, 200 - labelled)
    assert any("have no label yet" in note for note in result["notes"])

    def bets() -> Any:
        (entry,) = Ledger.open(folder / "ledger").select(DAYS[2], DAYS[2])
        return entry.info["bets"]

    had = bets()
    assert any(had), had
    night(job, _store(folder, 1, rows=3000))  # others would be learned now
    result = night(job, _store(folder, 2)).result
    assert (result["n"], result["n_unlabelled"]) == (200, 0)
    assert bets() == had


def test_labels__none_on_the_first_night(run: Any, tmp_path: Path) -> None:  # noqa: F811
    _store(tmp_path, 0, labelled=0)
    ran = run("nightly", _job(tmp_path), "--date", DAYS[0])
    assert ran.code == 0, ran.err
    assert "nothing was kept" in ran.out
    _store(tmp_path, 0)
    assert night(tmp_path / "job.toml", DAYS[0]).result["n"] == 200


@pytest.mark.parametrize("kind", ["store", "files"])
def test_predictions__that_are_missing_are_told(run: Any, folder: Path, kind: str) -> None:  # noqa: F811
    old = _records(folder), _outputs(folder)
    job = folder / "job.toml"
    if kind == "files":
        job.write_text(FILES)
    ran = run("nightly", job, "--date", DAYS[1])
    assert ran.code == 1
    assert f"there are no predictions of {DAYS[1]}" in ran.err
    assert f"{folder / 'days' / DAYS[1]}" in ran.err
    assert (_records(folder), _outputs(folder)) == old


# ---------------------------------------------------------------- two at once


@pytest.mark.parametrize("first", [False, True])
def test_two_nights__at_once(forks: Forks, tmp_path: Path, first: bool) -> None:
    """One of them does it all; the other says why it does not, or finds that it is done."""
    job = _job(tmp_path, FILES)
    if not first:
        night(job, _parquet(tmp_path, 0, 300))
    for k in (1, 2):
        _parquet(tmp_path, k, 300)
        codes = forks.start((job, DAYS[k]), (job, DAYS[k])) and forks.end()
        if first:
            assert _records(tmp_path)[DAYS[k]][None][0] == 300
            shutil.rmtree(tmp_path / "ledger")
        assert sorted(codes[0]) in ([0, 1], [0, 0]), codes
        assert codes[0] == [0, 0] or codes[1].startswith(f"error: {tmp_path}"), codes
        assert codes[0] == [0, 0] or "writer is at work" in codes[1], codes
    if not first:
        assert [r[None][0] for r in _records(tmp_path).values()] == [300] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted__exits_with_75_and_goes_on(
    forks: Forks, scene: Scene, number: signal.Signals
) -> None:
    """In the midst of the copy of rows, and later."""
    codes = []
    for wait in (0.0, 0.3 * scene.seconds):
        scene.undo()
        (process,) = forks.start((scene.job, scene.day))
        deadline = time.monotonic() + LIMIT
        while not list(scene.folder.glob(".ledger.ingest/*.zarr")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(wait)
        os.kill(process, number)
        found, told = forks.end()
        codes += found
        if found == [75]:
            assert "interrupted; nothing is lost, run the same" in told
            scene.check()
        else:  # it was done a little sooner, or just about to end
            assert found[0] in (0, -number, -signal.SIGINT)
            scene.check_done()
    assert codes[0] == 75
    night(scene.job, scene.day)
    scene.check_done()


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("features = 20", "features = 21"), "estimators"),
        (('"ece", ', ""), "estimators"),
        (('group_by = "region"\n', ""), "group_by"),
        (("replicates = 19", "replicates = 29"), "test"),
    ],
)
def test_job__of_another_ledger(
    run: Any,  # noqa: F811
    folder: Path,
    change: tuple[str, str],
    word: str,
) -> None:
    old = _records(folder), _outputs(folder)
    text = JOB.replace(*change).replace('["ece", "ckce"]', '["ckce"]')
    _store(folder, 1)
    ran = run("nightly", _job(folder, text), "--date", DAYS[1])
    assert ran.code == 2
    assert word in ran.err
    assert "changed since the ledger" in ran.err
    assert (_records(folder), _outputs(folder)) == old


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"classes": 4}, "4 classes, but the ledger is of 3"),
        ({"names": ("age", "region")}, "the covariates are age, region, but the ledger is of"),
    ],
)
def test_data__of_another_ledger(
    run: Any,  # noqa: F811
    folder: Path,
    other: dict[str, Any],
    words: str,
) -> None:
    old = _records(folder), _outputs(folder)
    _store(folder, 1, **other)
    ran = run("nightly", folder / "job.toml", "--date", DAYS[1])
    assert ran.code == 4
    assert words in ran.err
    assert f"{DAYS[1]}.zarr" in ran.err
    assert (_records(folder), _outputs(folder)) == old
