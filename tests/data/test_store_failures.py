"""Committed rows are kept where writers of a store fail, are killed, or meet each other."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import zarr

from calibscale import LogitStore, StoreError, evaluate
from tests.support.stores import CHUNK, FAST, everything, filled, labels, logits, python

# ---------------------------------------------------------------- appending


def test_writer__refuses_rows_after_close(tmp_path):
    store = filled(tmp_path / "s.zarr", 10)
    writer = store.writer()
    writer.close()
    # a second writer of the same store object
    with store.writer():
        with pytest.raises(StoreError, match="closed"):
            writer.append(logits(70), labels(70))
        with pytest.raises(StoreError, match="closed"):
            writer.commit()
    assert LogitStore.open(tmp_path / "s.zarr").rows == 10


def test_writer__removes_files_that_a_killed_writer_was_writing(tmp_path):
    store = filled(tmp_path / "s.zarr", 10)
    # Zarr writes a chunk under such a name, and renames it when it is complete.
    leftover = tmp_path / "s.zarr" / "labels" / "c" / "0.0123456789abcdef.partial"
    leftover.write_bytes(b"half")
    with store.writer() as writer:
        writer.append(logits(5), labels(5))
    assert not leftover.exists()
    assert LogitStore.open(tmp_path / "s.zarr").rows == 15


def test_writer__may_be_closed_twice(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        writer.append(logits(3), labels(3))
        writer.close()
    assert LogitStore.open(tmp_path / "s.zarr").rows == 3


def loop(store: LogitStore, error: BaseException | None, start: int = 0) -> None:
    """Append ten batches of 30 rows. Raise `error`, if there is one, before the fifth."""
    z, y = logits(300), labels(300)
    with store.writer() as writer:
        for a in range(start, 300, 30):
            # 120 rows are four batches of 30
            if error is not None and a == 120:
                raise error
            writer.append(z[a : a + 30], y[a : a + 30])


@pytest.mark.long
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_writer__an_error_in_its_block_leaves_the_store_unfinished(tmp_path, small_chunks, error):
    path = tmp_path / "s.zarr"
    store = LogitStore.create(path, classes=3)
    assert not store.finished
    with pytest.raises(error):
        loop(store, error())
    for opened in (store, LogitStore.open(path)):
        assert not opened.finished
        assert opened.rows == 120
        assert "unfinished" in opened.info()
        # readers and writers need `unfinished=True`
        for use in (evaluate, LogitStore.writer, lambda store: loop(store, None)):
            with pytest.raises(
                StoreError, match=r"did not finish; the store has 120 rows.*overwrite=True"
            ):
                use(opened)
    with pytest.raises(StoreError, match="did not finish"):
        evaluate(path)
    assert LogitStore.open(path, unfinished=True).source.rows == 120
    # rows appended again begin where the committed ones end
    with pytest.raises(error):  # a second writer, which fails too
        loop(LogitStore.open(path, unfinished=True), error(), start=120)
    assert LogitStore.open(path).rows == 120
    loop(LogitStore.open(path, unfinished=True), None, start=120)
    np.testing.assert_array_equal(everything(path)["values"], logits(300))
    assert LogitStore.open(path).finished
    loop(LogitStore.create(path, classes=3, overwrite=True), None)
    assert LogitStore.open(path).source.rows == 300


def test_writer__an_error_leaves_a_finished_store_as_it_was(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    store = filled(path, 100)
    with pytest.raises(ZeroDivisionError):
        loop(store, ZeroDivisionError())
    for opened in (store, LogitStore.open(path)):
        assert opened.finished
        assert opened.source.rows == 100
    np.testing.assert_array_equal(everything(path)["values"], logits(100))
    loop(LogitStore.open(path), None)
    np.testing.assert_array_equal(everything(path)["values"][100:], logits(300))


@pytest.mark.parametrize("step", [*range(12), None])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_writer__a_write_that_fails_once_leaves_the_store_unfinished(
    tmp_path, small_chunks, monkeypatch, number, step
):
    # the number of each call that writes
    path, seen = tmp_path / "s.zarr", iter(range(10**6))
    store = LogitStore.create(path, classes=3)

    def failing(call):
        def once(self, *arguments, **named):
            if next(seen) == step:
                raise OSError(number, os.strerror(number))
            return call(self, *arguments, **named)

        return once

    for kind, name in ((zarr.Array, "resize"), (zarr.Array, "__setitem__")):
        monkeypatch.setattr(kind, name, failing(getattr(kind, name)))
    monkeypatch.setattr(LogitStore, "_commit", failing(LogitStore._commit))
    if step is None:
        # without a failing step the loop ends
        loop(store, None)
    else:
        with pytest.raises(StoreError, match=os.strerror(number)):
            loop(store, None)
    monkeypatch.undo()
    opened = LogitStore.open(path)
    assert opened.finished == (step is None)
    assert opened.rows == 300 or step is not None


def test_writer__that_is_never_closed_leaves_the_store_unfinished(tmp_path):
    writer = LogitStore.create(tmp_path / "s.zarr", classes=3).writer()
    writer.append(logits(30), labels(30))
    writer._release()  # as the end of the process does
    with pytest.raises(StoreError, match="did not finish; the store has 0 rows"):
        evaluate(tmp_path / "s.zarr")
    with LogitStore.open(tmp_path / "s.zarr").writer():  # no rows to append twice
        pass
    assert LogitStore.open(tmp_path / "s.zarr").finished


# ---------------------------------------------------------------- crashes


# Forks children that do the same work; at their n-th disk operation (opening a file to write,
# renaming, removing) they are killed, or the disk is full, for growing n until one completes.
# the last 40 rows have a writer of their own
# opening a file to read changes nothing
CRASHES = """
import os, signal, sys
import numpy as np
import calibscale.data.source, calibscale.data.store_group
from calibscale import LogitStore, StoreError
from calibscale.compiled import random_draws  # imported before the fork

folder, work, fate, stride = sys.argv[1:]
calibscale.data.source._BLOCK_NUMBERS = 1
calibscale.data.store_group.LARGE = 1
calibscale.data.store_group.SHARD_CHUNKS = 16
z = np.load(folder + "/z.npy")
y = np.load(folder + "/y.npy")
STEPS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")

def append(path, large=False):
    store = LogitStore.create(path, classes=3, expected_rows=len(z) * large)
    for a, b in ((0, len(z) - 40), (len(z) - 40, len(z))):
        with store.writer() as writer:
            writer.append(z[a:b], y[a:b])

def replace(path):
    LogitStore.create(path, classes=3, provenance={"new": 1}, overwrite=True)

for step in range(1, 1000, int(stride)):
    home = f"{folder}/{step}"
    os.mkdir(home)
    child = os.fork()
    if child == 0:
        seen = 0
        def watch(event, arguments):
            global seen
            if event == "open":
                if not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                    return
            elif event not in STEPS:
                return
            if watching and str(arguments[0]).startswith(home + "/"):
                seen += 1
                if seen == step and fate == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if seen == step:
                    raise OSError(28, "No space left on device", arguments[0])
        code = 9
        try:
            watching = work != "replace"
            sys.addaudithook(watch)
            if work == "replace":
                store = LogitStore.create(home + "/s.zarr", classes=3)
                with store.writer() as writer:
                    writer.append(z, y)
                watching = True
                replace(home + "/s.zarr")
            else:
                append(home + "/s.zarr", work == "shards")
            code = 1 if seen >= step else 0
        except StoreError as error:
            code = 1 if home + "/" in str(error) and "No space" in str(error) else 8
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        print(step)
        break
    assert code == (-signal.SIGKILL if fate == "killed" else 1), (step, code)
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks at every step")
# every operation, and one of so many of them
strides = pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])


@pytest.mark.process
@needs_fork
@pytest.mark.parametrize(
    ("work", "fate"),
    [
        pytest.param("chunks", "killed", marks=pytest.mark.slow),
        pytest.param("shards", "killed", marks=pytest.mark.slow),
        ("chunks", "full disk"),
    ],
)
@strides
def test_store__is_consistent_after_any_failure(tmp_path, work, fate, stride):
    large = work == "shards"
    rows = 16 * CHUNK + 70 if large else 2 * CHUNK + 22
    z, y = logits(rows), labels(rows)
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    process = python(CRASHES, tmp_path, work, fate, stride)
    assert process.returncode == 0, process.stderr
    steps = int(process.stdout)
    assert steps > 30  # enough children died at different operations

    committed, ends = set(), {rows - 40, rows}
    for step in range(1, steps + 1, stride):
        path = tmp_path / f"{step}/s.zarr"
        if path.exists():
            store = LogitStore.open(path, unfinished=True)
        else:  # failed during creation: create it now
            store = LogitStore.create(path, classes=3, expected_rows=rows * large)
        committed.add(store.rows)
        # only the end of a block finishes the store
        assert store.finished == (store.rows in ends)
        if store.rows:
            columns = everything(path)
            np.testing.assert_array_equal(columns["values"], z[: store.rows])
            np.testing.assert_array_equal(columns["labels"], y[: store.rows])
        with store.writer() as writer:
            # goes on where the store ends
            a = store.rows
            writer.append(z[a:], y[a:])
        columns = everything(path)
        np.testing.assert_array_equal(columns["values"], z)
        np.testing.assert_array_equal(columns["labels"], y)
        assert store._array("logits").shape[0] == store._array("labels").shape[0] == rows
    # committed: ends of blocks, and in the first block complete chunks, nothing in between
    assert committed == ends | {0, 16 * CHUNK if large else CHUNK}


@pytest.mark.process
@needs_fork
@pytest.mark.parametrize("fate", ["killed", "full disk"])
@strides
def test_create__replaces_all_or_nothing(tmp_path, fate, stride):
    z, y = logits(100), labels(100)
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    process = python(CRASHES, tmp_path, "replace", fate, stride)
    assert process.returncode == 0, process.stderr
    outcomes = set()
    # every step before the one that completed
    for step in range(1, int(process.stdout) + 1, stride):
        home = tmp_path / str(step)
        place = home / "s.zarr"
        if sys.platform != "linux" and not place.exists():
            # between two renames: the old store is complete beside its path
            assert fate == "killed"
            (place,) = home.glob(".s.zarr.*.old")
        store = LogitStore.open(place)
        outcomes.add((place.name, store.rows))
        if store.rows:
            np.testing.assert_array_equal(everything(place)["values"], z)
        else:
            assert store.provenance == {"new": 1}
        replacement = LogitStore.create(home / "s.zarr", classes=5, overwrite=True)
        assert (replacement.rows, replacement.classes) == (0, 5)
    assert {("s.zarr", 100), ("s.zarr", 0)} <= outcomes


def test_create__replaces_without_an_atomic_exchange(tmp_path, monkeypatch):
    filled(tmp_path / "s.zarr", 100)
    # as if the C library could not exchange two names
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    store = LogitStore.create(tmp_path / "s.zarr", classes=5, overwrite=True)
    assert (store.rows, store.classes) == (0, 5)
    assert [p.name for p in tmp_path.iterdir()] == ["s.zarr"]


def test_store__rows_beyond_the_commit_are_ignored(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    filled(path, 100)
    group = zarr.open_group(path, mode="r+")
    # rows that a killed writer left beyond its commit
    group["logits"].resize((500, 3))
    group["logits"][100:500] = 77.0
    group["labels"].resize((170,))

    assert LogitStore.open(path).rows == 100
    np.testing.assert_array_equal(everything(path)["values"], logits(100))
    result = evaluate(path, FAST)
    assert result.n + result.n_unlabelled == 100
    LogitStore.open(path).writer().close()  # a writer without rows removes them, too
    group = zarr.open_group(path, mode="r")
    assert group["logits"].shape == (100, 3)
    assert group["labels"].shape == (100,)
    with LogitStore.open(path).writer() as writer:
        writer.append(logits(5, seed=9), labels(5, seed=9))
    columns = everything(path)
    np.testing.assert_array_equal(columns["values"][100:], logits(5, seed=9))
    np.testing.assert_array_equal(columns["labels"][100:], labels(5, seed=9))


@pytest.mark.process
def test_writer__a_second_one_gets_a_clear_error(tmp_path):
    path = tmp_path / "s.zarr"
    store = filled(path, 10)
    with store.writer() as writer:
        with pytest.raises(StoreError, match=r"another writer, .* \S+\.writer\.lock; wait"):
            LogitStore.open(path).writer()
        writer.append(logits(5), labels(5))
        elsewhere = python(
            "import sys; from calibscale import LogitStore; LogitStore.open(sys.argv[1]).writer()",
            path,
        )
        assert elsewhere.returncode == 1
        assert "StoreError" in elsewhere.stderr
        assert "locked by another writer" in elsewhere.stderr
        evaluate(path, FAST)  # readers are not disturbed
    with LogitStore.open(path).writer() as writer:
        writer.append(logits(5), labels(5))
    assert LogitStore.open(path).rows == 20


@pytest.mark.long
@pytest.mark.parametrize("alias", ["symlink", "relative", "file URL"])
def test_writer__is_exclusive_under_any_alias(tmp_path, monkeypatch, alias):
    path = tmp_path / "s.zarr"
    filled(path, 10)
    # three names of one folder
    (tmp_path / "alias.zarr").symlink_to(path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    name = {"symlink": tmp_path / "alias.zarr", "relative": "s.zarr", "file URL": f"file://{path}"}
    with LogitStore.open(path).writer(), pytest.raises(StoreError, match="another writer"):
        LogitStore.open(name[alias]).writer()


@pytest.mark.process
def test_writer__of_a_killed_process_leaves_no_lock(tmp_path):
    path = tmp_path / "s.zarr"
    code = """
    import sys, time
    import numpy as np
    from calibscale import LogitStore
    store = LogitStore.create(sys.argv[1], classes=3)
    writer = store.writer()
    writer.append(np.zeros((7, 3)), np.zeros(7, int))
    writer.commit()
    writer.append(np.ones((9, 3)), np.ones(9, int))  # never committed
    print("ready", flush=True)
    time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(StoreError, match="another writer"):
        LogitStore.open(path).writer()
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    with LogitStore.open(path).writer() as writer:
        writer.append(logits(5), labels(5))
    assert LogitStore.open(path).rows == 12
    np.testing.assert_array_equal(everything(path)["values"][:7], np.zeros((7, 3)))
    np.testing.assert_array_equal(everything(path)["values"][7:], logits(5))


@pytest.mark.process
def test_source__concurrent_readers_see_complete_commits(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    code = """
    import sys
    import numpy as np
    import calibscale.data.source
    from calibscale import LogitStore
    calibscale.data.source._BLOCK_NUMBERS = 1
    store = LogitStore.create(sys.argv[1], classes=3)
    print("ready", flush=True)
    row = 0
    for _ in range(60):
        with store.writer() as writer:  # most commits rewrite the last chunk
            n = 7 + row % 11
            t = np.arange(row, row + n)
            writer.append(np.column_stack([t, -t, 2 * t]), t % 3)
            row += n
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    seen = set()
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        store = LogitStore.open(path)
        if store.rows == 0:
            continue
        block = store.source.read(0, store.rows)
        t = np.arange(store.rows)
        # each row is a function of its number: a torn commit would show
        np.testing.assert_array_equal(block.values, np.column_stack([t, -t, 2 * t]))
        np.testing.assert_array_equal(block.labels, t % 3)
        seen.add(store.rows)
    process.stdout.close()
    assert process.returncode == 0
    # readers saw the store while it grew
    assert len(seen) > 1


# files cannot grow beyond the limit, as on a full disk
FULL_DISK = """
import resource, sys
import numpy as np
import calibscale.data.source
from calibscale import LogitStore, StoreError
calibscale.data.source._BLOCK_NUMBERS = 1
z = np.load(sys.argv[2])
store = LogitStore.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    with store.writer() as writer:
        writer.append(z[store.rows:], np.zeros(len(z) - store.rows, int))
except StoreError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.process
@pytest.mark.parametrize("limit", [0, 100, 700])
def test_append__full_disk_is_a_clear_error_and_committed_rows_stay(tmp_path, small_chunks, limit):
    path = tmp_path / "s.zarr"
    z = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    np.save(tmp_path / "z.npy", z)
    store = LogitStore.create(path, classes=3)
    with store.writer() as writer:
        writer.append(z[:150], np.zeros(150, int))
    full = python(FULL_DISK, path, tmp_path / "z.npy", limit)
    assert full.returncode == 7, full.stderr
    assert str(path) in full.stdout
    assert "too large" in full.stdout  # message of the operating system
    assert re.search(r"the \d+ rows committed before are safe", full.stdout)
    rows = LogitStore.open(path).rows
    assert rows >= 150
    np.testing.assert_array_equal(everything(path)["values"], z[:rows])
    evaluate(path, FAST)
    with LogitStore.open(path).writer() as writer:  # with space again
        writer.append(z[rows:], np.zeros(1000 - rows, int))
    np.testing.assert_array_equal(everything(path)["values"], z)


def test_writer__does_not_retry_a_failed_write(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    store = filled(path, 100)
    writer = store.writer()
    writer.append(logits(20), labels(20))
    for part in ("labels", "logits"):
        # writes fail, and so would a second attempt
        os.rename(path / part, path / f"{part}.away")
    with pytest.raises(StoreError, match=r"s\.zarr"):
        writer.append(logits(200), labels(200))
    writer.close()
    for part in ("labels", "logits"):
        if (path / part).exists():  # created by the failed write
            os.rename(path / part, path / f"{part}.wreck")
        os.rename(path / f"{part}.away", path / part)
    assert LogitStore.open(path).rows == 100
    np.testing.assert_array_equal(everything(path)["values"], logits(100))
