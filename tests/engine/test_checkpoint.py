"""Checkpoints: interrupted runs resume to the same bits, other work is refused."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import calibscale as cs
from calibscale.engine.checkpoint import Checkpoint
from calibscale.estimators.ckce import CKCE
from calibscale.estimators.skce import JKCE, KLCE
from calibscale.kernels import pair_sums
from tests.support import kill_run
from tests.support.commands import nobody

pytestmark = pytest.mark.long

# six panels of 250 rows
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
    # logits of size 2: predictions are neither certain nor equal
    return {
        "logits": rng.normal(size=(ROWS, 3)) * 2,
        "labels": rng.integers(-1, 3, ROWS),
        "covariates": rng.random((ROWS, 2)),
    }


@pytest.fixture(autouse=True)
def small_panels(monkeypatch):
    """Use many units of few rows, and write a checkpoint after each."""

    def cuts(rows, classes, multiple=1):
        # `multiple` is of kernels with lanes, which small panels ignore
        return tuple((a, min(a + PANEL, rows)) for a in range(0, rows, PANEL))

    monkeypatch.setattr(pair_sums, "panel_cuts", cuts)
    monkeypatch.setattr(pair_sums, "Checkpoint", partial(Checkpoint, every=0.0))


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
    """Progress callback that interrupts after some units, and records those resumed from."""

    def __init__(self, after=None):
        self.after = after
        self.units = 0  # reported: one more than computed for each fold
        self.before = []

    def __call__(self, count, total):
        if total != UNITS:
            return  # the pass over rows
        if not self.before or count <= self.last:
            # a fold begins: its first count is what was resumed
            self.before.append(count)
        else:
            self.units += 1
        self.last = count
        if self.after is not None and self.units >= self.after:
            raise KeyboardInterrupt


def _interrupted(source, estimators, folder, after, scheduler="serial", **options):
    with pytest.raises(KeyboardInterrupt):
        _run(source, estimators, folder, scheduler, progress=_Stop(after), **options)
    assert list(folder.glob("*.npz"))
    assert not list(folder.glob("*.tmp"))


# ---------------------------------------------------------------- interrupts


@pytest.mark.cluster
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("threads:2", "cluster"),
        pytest.param("serial", "threads:2", marks=pytest.mark.slow),
        pytest.param("cluster", "serial", marks=pytest.mark.slow),
    ],
)
def test_interrupt__resumes_to_the_same_bits(source, cluster, tmp_path, name, first, second):
    where = {"cluster": cluster}
    expected = _run(source, ESTIMATORS[name])
    after = 30 if name == "ckce" else 7  # in the second product
    _interrupted(source, ESTIMATORS[name], tmp_path, after, where.get(first, first))
    progress = _Stop()
    resumed = _run(source, ESTIMATORS[name], tmp_path, where.get(second, second), progress=progress)
    assert resumed == expected
    assert sum(progress.before) > 0  # not from the start


@pytest.mark.long
@pytest.mark.parametrize("name", ESTIMATORS)
def test_interrupt__after_every_unit_resumes_to_the_same_bits(source, tmp_path, name):
    # each attempt computes one unit more
    expected = _run(source, ESTIMATORS[name])
    for _ in range(500):
        try:
            resumed = _run(source, ESTIMATORS[name], tmp_path, progress=_Stop(1))
        except KeyboardInterrupt:
            continue
        break
    assert resumed == expected


def test_interrupt__loses_no_unit_of_one_thread(source, tmp_path):
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 7)
    progress = _Stop()
    _run(source, ESTIMATORS["jkce"], tmp_path, progress=progress)
    assert progress.before[0] >= 6  # the seventh may not have been saved
    assert progress.before[0] + progress.units == UNITS


@pytest.mark.long
def test_finished__is_not_computed_again(source, tmp_path):
    estimators = list(ESTIMATORS.values())
    expected = _run(source, estimators, tmp_path)
    for scheduler in ("serial", "threads:2"):
        progress = _Stop()
        assert _run(source, estimators, tmp_path, scheduler, progress=progress) == expected
        assert progress.units == 0
        assert set(progress.before) == {UNITS}


def test_without_a_folder__nothing_is_written(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run(source, list(ESTIMATORS.values()))
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_with_a_folder__bits_are_those_without(source, tmp_path):
    estimators = list(ESTIMATORS.values())
    assert _run(source, estimators, tmp_path / "a" / "b") == _run(source, estimators)


@pytest.mark.long
def test_several__of_one_kind_have_separate_files(source, tmp_path):
    estimators = [
        CKCE(FEATURES, method="exact", ridge=0.05),
        CKCE(FEATURES, method="exact", ridge=0.5),
        CKCE(cs.RandomFourier(bandwidth=0.3), method="exact", ridge=0.5),
        JKCE(FEATURES, method="tiles"),
        JKCE(cs.RandomFourier(bandwidth=0.3), method="tiles"),
    ]
    expected = _run(source, estimators)
    _interrupted(source, estimators, tmp_path, 150)
    assert _run(source, estimators, tmp_path) == expected


@pytest.mark.long
def test_groups__have_separate_files(tmp_path):
    """Also for values that agree in six digits."""
    arrays = _arrays()
    # 1,000,000, 1,000,001 and 1,000,002
    arrays["covariates"][:, 0] = 1e6 + np.arange(ROWS) % 3
    arrays["covariates"][:, 1] = 0.0
    source = cs.from_arrays(**arrays)
    estimators = [ESTIMATORS["jkce"], ESTIMATORS["ckce"]]

    def groups(folder, **options):
        result = cs.evaluate(
            source, estimators, group_by="x0", checkpoint=folder, scheduler="serial", **options
        ).to_dict()
        return result["results"], result["groups"]

    expected = groups(None)
    with pytest.raises(KeyboardInterrupt):
        groups(tmp_path, progress=_Stop(200))
    assert groups(tmp_path) == expected


@pytest.mark.long
def test_bits__do_not_depend_on_the_threads_of_blas(source):
    """Also of work outside the fold: a resumed run may have other processors."""
    runs = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            runs.append([_run(source, ESTIMATORS["ckce"]), kill_run.run()])
    assert runs[0] == runs[1]


# ---------------------------------------------------------------- what is refused


def _changed(name, change):
    arrays = _arrays()
    change(arrays)
    return cs.from_arrays(**arrays), ESTIMATORS[name]


def _one_logit(arrays):
    # one number in 4,500
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


@pytest.mark.parametrize("case", OTHER_DATA)
def test_other_data__are_refused(source, tmp_path, case):
    name, change, differs = OTHER_DATA[case]
    _interrupted(source, ESTIMATORS[name], tmp_path, 5)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(cs.OptionError, match=f"to other data or parameters .*{differs}"):
        _run(*_changed(name, change), tmp_path)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


# one setting differs, in the first case in the seventh decimal
OTHER_SETTINGS = {
    "bandwidth": (
        "jkce",
        JKCE(cs.RandomFourier(bandwidth=0.7000001), method="tiles"),
        "bandwidth",
    ),
    "precision": ("jkce", ESTIMATORS["jkce_float32"], "precision"),
    "kernel": ("jkce", JKCE(FEATURES, "gaussian", "tiles"), "prediction"),
    "notion": ("jkce", JKCE(FEATURES, method="tiles", notion="top_label"), "notion"),
    "blocks": ("jkce", JKCE(FEATURES, method="blocks", block=50), "block"),
    "columns": ("klce", KLCE(("x0",), 0.3, 0.4, notion="top_label", method="tiles"), "columns"),
    "covariate bandwidth": (
        "klce",
        KLCE(("x0", "x1"), 0.3, 0.41, notion="top_label", method="tiles"),
        "bandwidths",
    ),
    "ridge": ("ckce", CKCE(FEATURES, method="exact", ridge=0.06), "ckce"),
    "tolerance": ("ckce", CKCE(FEATURES, method="exact", ridge=0.05, tolerance=1e-9), "ckce"),
}


@pytest.mark.parametrize("case", OTHER_SETTINGS)
def test_other_settings__are_refused(source, tmp_path, case):
    name, changed, differs = OTHER_SETTINGS[case]
    _interrupted(source, ESTIMATORS[name], tmp_path, 30 if name == "ckce" else 5)
    with pytest.raises(cs.OptionError, match=f"to other data or parameters .*{differs}"):
        _run(source, changed, tmp_path)


def test_other_rules__are_refused(source, tmp_path):
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 5)
    with pytest.raises(cs.OptionError, match="rules"):
        _run(source, ESTIMATORS["jkce"], tmp_path, on_invalid="drop")


def test_same_settings__in_other_types_are_accepted(source, tmp_path):
    """NumPy scalars, another name, another block size, lists instead of arrays."""
    expected = _run(source, ESTIMATORS["jkce"])
    _interrupted(source, ESTIMATORS["jkce"], tmp_path, 5)
    arrays = _arrays()
    lists = cs.from_arrays(**{**arrays, "logits": arrays["logits"].tolist()}, name="other")
    estimator = JKCE(cs.RandomFourier(bandwidth=np.float64(0.7)), method="tiles")
    progress = _Stop()
    assert _run(lists, estimator, tmp_path, block_rows=100, progress=progress) == expected
    assert progress.before[0] > 0


def test_settings__of_numpy_can_be_written(source, tmp_path):
    features = cs.RandomFourier(bandwidth=np.float32(0.5))
    estimator = JKCE(features, method="blocks", block=np.int64(50))
    assert _run(source, estimator, tmp_path) == _run(source, estimator)


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


@pytest.mark.long
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


def _without_one(arrays):
    first = next(name for name in arrays if name != "identity")
    return {name: array for name, array in arrays.items() if name != first}


def _with(key, change):
    """Arrays with another name or value in the first one that is not the identity."""

    def changed(arrays):
        name = next(name for name in arrays if name != "identity")
        array = arrays.pop(name)
        return {key or name: change(array), **arrays}

    return changed


CHANGES = {
    "dropped": _without_one,
    "longer": _with(None, lambda array: np.append(array, 1.0)),
    "scalar": _with(None, lambda array: np.array(1.0)),
    "integers": _with(None, lambda array: np.zeros(array.shape, int)),
    "another name": _with("0|0|other", lambda array: array),
    "negative": _with("0|-1|sums", lambda array: array),
    "a node that is not there": _with("0|999|sums", lambda array: array),
    "a level that is not there": _with("999999999|0|sums", lambda array: array),
    "twice": lambda arrays: {
        **{name.replace("|0|", "|1|", 1): a for name, a in arrays.items() if "|0|" in name},
        **{f"9|0|{name.rsplit('|')[-1]}": a for name, a in arrays.items() if "|" in name},
        **arrays,
    },
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["jkce", "ckce"])
def test_damaged__arrays_that_are_no_state_are_refused(source, tmp_path, name, change):
    _interrupted(source, ESTIMATORS[name], tmp_path, 5)
    (path,) = tmp_path.iterdir()
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **CHANGES[change](arrays))
    with pytest.raises(cs.StoreError, match=f"{path.name} cannot be read .*remove it"):
        _run(source, ESTIMATORS[name], tmp_path)


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


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_folder__without_rights_is_named(source, tmp_path, mode):
    _run(source, ESTIMATORS["jkce"])  # imports and compiles
    folder = tmp_path / "shut"
    folder.mkdir()
    folder.chmod(mode)
    try:
        with nobody(), pytest.raises(cs.StoreError, match=r"cannot be (written|read)"):
            _run(source, ESTIMATORS["jkce"], folder)
    finally:
        folder.chmod(0o700)


@contextmanager
def _full_disk(size):
    """Context in which files cannot exceed `size`: writes fail as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.long
@pytest.mark.parametrize("name", ["jkce", "ckce"])
@pytest.mark.parametrize("size", [0, 1500])
def test_full_disk__is_an_error_and_keeps_the_old_checkpoint(source, tmp_path, name, size):
    expected = _run(source, ESTIMATORS[name])
    _interrupted(source, ESTIMATORS[name], tmp_path, 30 if name == "ckce" else 7)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with _full_disk(size), pytest.raises(cs.StoreError, match="cannot be written"):
        _run(source, ESTIMATORS[name], tmp_path)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert _run(source, ESTIMATORS[name], tmp_path) == expected
