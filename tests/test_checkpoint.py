"""Interrupted, killed and refused: what a checkpoint folder promises."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import calibscale as cs
from calibscale import pairs
from calibscale.checkpoint import Checkpoint
from calibscale.estimators.conditional import CKCE
from calibscale.estimators.joint import JKCE
from calibscale.estimators.local import KLCE
from tests import kill_run

ROWS, PANEL = 1500, 250
UNITS = 21  # of six panels
FEATURES = cs.RandomFourier(bandwidth=0.7)
ESTIMATORS = {
    "jkce": JKCE(FEATURES, method="tiles"),
    "jkce_float32": JKCE(FEATURES, method="tiles", precision="float32"),
    "klce": KLCE(("x0", "x1"), 0.3, 0.4, notion="top_label", method="tiles"),
    "ckce": CKCE(FEATURES, method="exact", ridge=0.05),
}


def _arrays():
    rng = np.random.default_rng(11)
    return {
        "logits": rng.normal(size=(ROWS, 3)) * 2,
        "labels": rng.integers(-1, 3, ROWS),
        "covariates": rng.random((ROWS, 2)),
    }


@pytest.fixture(autouse=True)
def small_panels(monkeypatch):
    """Many units of few rows, and a write after each of them."""

    def cuts(rows, classes, multiple=1):
        return tuple((a, min(a + PANEL, rows)) for a in range(0, rows, PANEL))

    monkeypatch.setattr(pairs, "panel_cuts", cuts)
    monkeypatch.setattr(pairs, "Checkpoint", partial(Checkpoint, every=0.0))


@pytest.fixture
def source():
    return cs.from_arrays(**_arrays())


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        yield client


def _run(source, estimators, folder=None, scheduler="serial", **options):
    if not isinstance(estimators, list | tuple):
        estimators = [estimators]
    return cs.evaluate(
        source, estimators, checkpoint=folder, scheduler=scheduler, **options
    ).to_dict()["results"]


class _Stop:
    """Progress that interrupts after some units over pairs, and counts what was there before."""

    def __init__(self, after=None):
        self.after = after
        self.units = 0  # reported: one more than computed for each fold
        self.before = []

    def __call__(self, done, total):
        if total != UNITS:
            return  # the pass over rows
        if not self.before or done <= self.last:
            self.before.append(done)
        else:
            self.units += 1
        self.last = done
        if self.after is not None and self.units >= self.after:
            raise KeyboardInterrupt


def _interrupted(source, estimators, folder, after, scheduler="serial", **options):
    with pytest.raises(KeyboardInterrupt):
        _run(source, estimators, folder, scheduler, progress=_Stop(after), **options)
    assert list(folder.glob("*.npz"))
    assert not list(folder.glob("*.tmp"))


# ---------------------------------------------------------------- interrupts


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    ("first", "second"),
    [("serial", "threads:2"), ("threads:2", "cluster"), ("cluster", "serial")],
)
def test_interrupt__goes_on_to_the_same_bits(source, cluster, tmp_path, name, first, second):
    where = {"cluster": cluster}
    expected = _run(source, ESTIMATORS[name])
    after = 30 if name == "ckce" else 7  # in the second product
    _interrupted(source, ESTIMATORS[name], tmp_path, after, where.get(first, first))
    again = _Stop()
    found = _run(source, ESTIMATORS[name], tmp_path, where.get(second, second), progress=again)
    assert found == expected
    assert sum(again.before) > 0  # not from the start


@pytest.mark.parametrize("name", ESTIMATORS)
def test_interrupt__after_every_unit_goes_on_to_the_same_bits(source, tmp_path, name):
    expected = _run(source, ESTIMATORS[name])
    for _ in range(500):
        try:
            found = _run(source, ESTIMATORS[name], tmp_path, progress=_Stop(1))
        except KeyboardInterrupt:
            continue
        break
    assert found == expected


def test_interrupt__loses_no_unit_of_one_thread(source, tmp_path):
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 7)
    again = _Stop()
    _run(source, ESTIMATORS["jkce"], tmp_path, progress=again)
    assert again.before[0] >= 6  # the seventh may have been on its way
    assert again.before[0] + again.units == UNITS


def test_finished__is_not_done_again(source, tmp_path):
    every = list(ESTIMATORS.values())
    expected = _run(source, every, tmp_path)
    for scheduler in ("serial", "threads:2"):
        progress = _Stop()
        assert _run(source, every, tmp_path, scheduler, progress=progress) == expected
        assert progress.units == 0
        assert set(progress.before) == {UNITS}


def test_without_a_folder__nothing_is_written(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run(source, list(ESTIMATORS.values()))
    assert not list(tmp_path.iterdir())


def test_with_a_folder__bits_are_those_without(source, tmp_path):
    every = list(ESTIMATORS.values())
    assert _run(source, every, tmp_path / "a" / "b") == _run(source, every)


def test_several__of_one_kind_have_files_of_their_own(source, tmp_path):
    every = [
        CKCE(FEATURES, method="exact", ridge=0.05),
        CKCE(FEATURES, method="exact", ridge=0.5),
        CKCE(cs.RandomFourier(bandwidth=0.3), method="exact", ridge=0.5),
        JKCE(FEATURES, method="tiles"),
        JKCE(cs.RandomFourier(bandwidth=0.3), method="tiles"),
    ]
    expected = _run(source, every)
    _interrupted(source, every, tmp_path, 150)
    assert _run(source, every, tmp_path) == expected


def test_groups__have_files_of_their_own(tmp_path):
    """Values that are equal in their first six digits, too."""
    arrays = _arrays()
    arrays["covariates"][:, 0] = 1e6 + np.arange(ROWS) % 3
    arrays["covariates"][:, 1] = 0.0
    source = cs.from_arrays(**arrays)
    every = [ESTIMATORS["jkce"], ESTIMATORS["ckce"]]

    def groups(folder, **options):
        found = cs.evaluate(source, every, group_by="x0", checkpoint=folder, scheduler="serial",
                            **options).to_dict()  # fmt: skip
        return found["results"], found["groups"]

    expected = groups(None)
    with pytest.raises(KeyboardInterrupt):
        groups(tmp_path, progress=_Stop(200))
    assert groups(tmp_path) == expected


def test_bits__do_not_depend_on_the_threads_of_blas(source):
    """What is not in the fold must not, either: a resumed run may have other processors."""
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append([_run(source, ESTIMATORS["ckce"]), kill_run.run()])
    assert found[0] == found[1]


# ---------------------------------------------------------------- what is refused


def _changed(name, change):
    arrays = _arrays()
    change(arrays)
    return cs.from_arrays(**arrays), ESTIMATORS[name]


def _one_logit(arrays):
    arrays["logits"][77, 1] += 1e-3


def _one_label(arrays):
    row = int(np.argmax(arrays["labels"] >= 0))
    arrays["labels"][row] = (arrays["labels"][row] + 1) % 3


def _one_covariate(arrays):
    arrays["covariates"][500, 0] += 1e-3


def _weights(arrays):
    arrays["weights"] = np.full(ROWS, 2.0)


def _fewer(arrays):
    for name in arrays:
        arrays[name] = arrays[name][:-1]


def _other_order(arrays):
    for name in arrays:
        arrays[name] = arrays[name][::-1].copy()


def _covariates_of_other_rows(arrays):
    arrays["covariates"] = arrays["covariates"][::-1].copy()


OTHER_DATA = {
    "a logit": ("jkce", _one_logit, "rows"),
    "a label": ("jkce", _one_label, "rows"),
    "a covariate": ("klce", _one_covariate, "covariates"),
    "weights": ("jkce", _weights, "weighted"),
    "fewer rows": ("jkce", _fewer, "rows"),
    "a logit, ckce": ("ckce", _one_logit, "rows"),
    "order of rows": ("jkce", _other_order, "rows"),
    "order of a column": ("klce", _covariates_of_other_rows, "rows"),
}


@pytest.mark.parametrize("what", OTHER_DATA)
def test_other_data__are_refused(source, tmp_path, what):
    name, change, differs = OTHER_DATA[what]
    _interrupted(source, ESTIMATORS[name], tmp_path, 5)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(cs.OptionError, match=f"of other data or parameters .*{differs}"):
        _run(*_changed(name, change), tmp_path)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


OTHER_SETTINGS = {
    "bandwidth": (
        "jkce", JKCE(cs.RandomFourier(bandwidth=0.7000001), method="tiles"), "bandwidth",
    ),
    "precision": ("jkce", ESTIMATORS["jkce_float32"], "precision"),
    "kernel": ("jkce", JKCE(FEATURES, "gaussian", "tiles"), "prediction"),
    "notion": ("jkce", JKCE(FEATURES, method="tiles", notion="top_label"), "notion"),
    "blocks": ("jkce", JKCE(FEATURES, method="blocks", block=50), "block"),
    "columns": ("klce", KLCE(("x0",), 0.3, 0.4, notion="top_label", method="tiles"), "columns"),
    "covariate bandwidth": (
        "klce", KLCE(("x0", "x1"), 0.3, 0.41, notion="top_label", method="tiles"), "bandwidths",
    ),
    "ridge": ("ckce", CKCE(FEATURES, method="exact", ridge=0.06), "ckce"),
    "tolerance": ("ckce", CKCE(FEATURES, method="exact", ridge=0.05, tolerance=1e-9), "ckce"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER_SETTINGS)
def test_other_settings__are_refused(source, tmp_path, what):
    name, other, differs = OTHER_SETTINGS[what]
    _interrupted(source, ESTIMATORS[name], tmp_path, 30 if name == "ckce" else 5)
    with pytest.raises(cs.OptionError, match=f"of other data or parameters .*{differs}"):
        _run(source, other, tmp_path)


def test_other_rules__are_refused(source, tmp_path):
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 5)
    with pytest.raises(cs.OptionError, match="rules"):
        _run(source, ESTIMATORS["jkce"], tmp_path, on_invalid="drop")


def test_same_settings__written_otherwise_are_the_same(source, tmp_path):
    """NumPy's scalars, another name, another block size of the pass, another way to hold rows."""
    expected = _run(source, ESTIMATORS["jkce"])
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 5)
    arrays = _arrays()
    other = cs.from_arrays(**{**arrays, "logits": arrays["logits"].tolist()}, name="other")
    asked = JKCE(cs.RandomFourier(bandwidth=np.float64(0.7)), method="tiles")
    again = _Stop()
    assert _run(other, asked, tmp_path, block_rows=100, progress=again) == expected
    assert again.before[0] > 0


def test_settings__of_numpy_can_be_written(source, tmp_path):
    features = cs.RandomFourier(bandwidth=np.float32(0.5))
    asked = JKCE(features, method="blocks", block=np.int64(50))
    assert _run(source, asked, tmp_path) == _run(source, asked)


# ---------------------------------------------------------------- damaged files


def _damages():
    yield "empty", lambda data: b""
    for share in (0.02, 0.3, 0.6, 0.9, 0.999):
        yield f"first {share:.1%}", lambda data, share=share: data[: int(share * len(data))]
    yield "a last byte less", lambda data: data[:-1]
    yield "zeros", lambda data: bytes(len(data))
    yield "text", lambda data: b"this is no checkpoint\n" * 50
    yield "flipped", lambda data: data[:500] + bytes(255 - b for b in data[500:900]) + data[900:]
    yield "flipped end", lambda data: data[:-200] + bytes(255 - b for b in data[-200:])


DAMAGES = dict(_damages())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged__file_is_named(source, tmp_path, damage):
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 5)
    (path,) = tmp_path.iterdir()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(cs.StoreError, match=f"{path.name} cannot be read .*remove it"):
        _run(source, ESTIMATORS["jkce"], tmp_path)
    path.unlink()
    assert _run(source, ESTIMATORS["jkce"], tmp_path) == _run(source, ESTIMATORS["jkce"])


def test_damaged__any_truncation_is_an_error_and_never_a_number(source, tmp_path):
    _interrupted(source, ESTIMATORS["klce"], tmp_path, 5)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    checkpoint = Checkpoint(path, {})
    for size in range(0, len(data), 13):
        path.write_bytes(data[:size])
        with pytest.raises(cs.StoreError):
            checkpoint.load()


def test_damaged__any_byte_is_an_error_or_changes_no_number(source, tmp_path):
    _interrupted(source, ESTIMATORS["klce"], tmp_path, 5)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    with np.load(path) as file:
        checkpoint = Checkpoint(path, json.loads(str(file["identity"])))
    expected = checkpoint.load()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        with suppress(cs.StoreError, cs.OptionError):
            for node, arrays in checkpoint.load().items():  # fewer of a damaged index
                for name, array in arrays.items():
                    np.testing.assert_array_equal(array, expected[node][name])


@pytest.mark.parametrize("kind", ["npy", "npz", "identity"])
def test_damaged__another_file_of_numpy_is_named(source, tmp_path, kind):
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 5)
    (path,) = tmp_path.iterdir()
    with open(path, "wb") as file:
        if kind == "npy":
            np.save(file, np.arange(5))
        elif kind == "npz":
            np.savez(file, x=np.arange(5))
        else:
            np.savez(file, identity=np.array("[1, 2]"))
    with pytest.raises((cs.StoreError, cs.OptionError), match="remove it"):
        _run(source, ESTIMATORS["jkce"], tmp_path)


def test_leftovers__of_a_killed_writer_are_no_checkpoint(source, tmp_path):
    (tmp_path / ".pairs-0.npz.4242.tmp").write_bytes(b"half")
    assert _run(source, ESTIMATORS["jkce"], tmp_path) == _run(source, ESTIMATORS["jkce"])


# ---------------------------------------------------------------- folders and disks


def test_folder__that_is_a_file_is_named(source, tmp_path):
    place = tmp_path / "file"
    place.write_text("here already")
    for folder in (place, place / "below"):
        with pytest.raises(cs.StoreError, match="cannot be written"):
            _run(source, ESTIMATORS["jkce"], folder)
    assert place.read_text() == "here already"


@contextmanager
def _nobody():
    """The rights of a user who owns nothing, if we are root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_folder__without_rights_is_named(source, tmp_path, mode):
    _run(source, ESTIMATORS["jkce"])  # all is loaded and compiled
    folder = tmp_path / "shut"
    folder.mkdir()
    folder.chmod(mode)
    try:
        with _nobody(), pytest.raises(cs.StoreError, match=r"cannot be (written|read)"):
            _run(source, ESTIMATORS["jkce"], folder)
    finally:
        folder.chmod(0o700)


@contextmanager
def _full_disk(size):
    """No file may grow beyond `size`: writes fail as on a full disk, with another number."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("name", ["jkce", "ckce"])
@pytest.mark.parametrize("size", [0, 1500])
def test_full_disk__is_told_and_leaves_the_old_checkpoint(source, tmp_path, name, size):
    expected = _run(source, ESTIMATORS[name])
    _interrupted(source, ESTIMATORS[name], tmp_path, 30 if name == "ckce" else 7)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with _full_disk(size), pytest.raises(cs.StoreError, match="cannot be written"):
        _run(source, ESTIMATORS[name], tmp_path)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert _run(source, ESTIMATORS[name], tmp_path) == expected


# ---------------------------------------------------------------- killed processes


@contextmanager
def _process(folder, every=0.0, pause=0):
    """The run as a process of its own; ended whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kill_run", str(folder), str(every), str(pause)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def _wait_for(process, word):
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"{word} was never said: {process.stderr.read()}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What a whole run gives, and how long it computes, checkpoints and all."""
    with _process(tmp_path_factory.mktemp("whole") / "folder") as process:
        _wait_for(process, "start")
        started = time.monotonic()
        _wait_for(process, "saved")
        first = time.monotonic() - started
        _wait_for(process, "middle")
        found = json.loads(process.stdout.readline())
        seconds = time.monotonic() - started
    return found, first, seconds


@pytest.fixture
def large_panels(small_panels, monkeypatch):
    """Those of the killed process: its folder is gone on with in this one."""
    from calibscale import panels

    monkeypatch.setattr(pairs, "panel_cuts", panels.panel_cuts)


def test_runs__of_two_processes_have_the_same_bits(uninterrupted, large_panels):
    found, first, seconds = uninterrupted
    assert first < seconds
    assert kill_run.run(scheduler="threads:2") == found


def _killed(folder, moment):
    """Whether the run was killed at the moment after its start, before its end."""
    with _process(folder) as process:
        _wait_for(process, "start")
        time.sleep(moment)
        if process.poll() is not None:
            return False
        os.kill(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


def test_sigkill__three_times_in_a_row(uninterrupted, large_panels, tmp_path):
    """Each run goes on with what the killed one left."""
    found, _, seconds = uninterrupted
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    while not _killed(tmp_path / "f", rng.uniform(0, 0.7 * seconds)):
        seconds *= 0.7  # the measured run was slower than those
    for moment in rng.uniform(0, 0.7 * seconds, 2):
        _killed(tmp_path / "f", moment)
    assert kill_run.run(tmp_path / "f", "threads:2") == found


@pytest.mark.slow
def test_sigkill__twenty_times_at_moments_of_the_whole_run(uninterrupted, large_panels, tmp_path):
    found, _, seconds = uninterrupted
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    hits = late = 0
    for number, moment in enumerate(rng.uniform(0, seconds, 60)):
        folder = tmp_path / str(number)
        if not _killed(folder, moment):  # it was done a little sooner
            continue
        hits += 1
        late += bool(list(folder.glob("*.npz")))
        assert kill_run.run(folder, ("serial", "threads:2")[number % 2]) == found
        if hits == 20:
            break
    assert hits == 20
    assert late >= 10


@pytest.mark.slow
def test_workers_killed__at_moments_of_the_whole_run(uninterrupted, large_panels, tmp_path):
    """SIGKILL to a Dask worker while a cluster computes; the run goes on without it."""
    from distributed import Client, LocalCluster

    found, *_ = uninterrupted
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        assert kill_run.run(scheduler=client) == found  # also compiles
        started = time.monotonic()
        assert kill_run.run(scheduler=client) == found
        seconds = time.monotonic() - started
        hits = 0
        for number, moment in enumerate(rng.uniform(0, seconds, 20)):
            client.wait_for_workers(2)
            pid = rng.choice(list(client.run(os.getpid).values()))
            timer = Timer(moment, os.kill, (pid, signal.SIGKILL))
            timer.start()
            assert kill_run.run(tmp_path / str(number), client) == found
            hits += timer.finished.is_set()  # else the run was done a little sooner
            timer.cancel()
            timer.join()
            if hits == 8:
                break
        assert hits == 8


def test_sigterm__writes_what_is_finished(uninterrupted, large_panels, tmp_path):
    """In the midst of a product, of a run that would not write for hours."""
    with _process(tmp_path, every=1e9, pause=20) as process:
        _wait_for(process, "middle")
        process.terminate()
        assert process.wait(15) != 0
    assert not list(tmp_path.glob("*.tmp"))
    seen = []
    found = kill_run.run(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert found == uninterrupted[0]
    over_pairs = [done for done, total in seen if total == 45]
    assert over_pairs[:5] == [45, 45, 45, 10, 11]  # three sums, then the second product


def test_worker_killed__and_then_the_run_itself(uninterrupted, large_panels, tmp_path):
    """SIGKILL to a Dask worker in mid-run, whose nanny starts another; then an interrupt."""
    from distributed import Client, LocalCluster

    found, *_ = uninterrupted
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        pids = list(client.run(os.getpid).values())
        seen = []

        def progress(done, total):
            if total > 10:
                seen.append(done)
            if len(seen) == 10:
                os.kill(pids[0], signal.SIGKILL)
            if len(seen) == 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            kill_run.run(tmp_path, client, progress)
        assert kill_run.run(tmp_path, client) == found
        assert pids[0] not in client.run(os.getpid).values()
