"""Sets of classes in zarr arrays, against sets in arrays in memory."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from scipy import sparse

import calibscale as cs
from calibscale.cli.program import cli

N, K = 500, 7
MEMBER = np.random.default_rng(0).random((N, K)) < 0.4
MEMBER[5] = False
LABELS = np.random.default_rng(1).integers(0, K, N)
LABELS[3] = -1  # not yet known
SET = "set(coverage=0.4)"


def _group(folder, name, **arrays):
    group = zarr.open_group(str(folder / name), mode="w")
    for key, values in arrays.items():
        group[key] = values
    return folder / name


def _matrix(folder, values):
    zarr.save_array(str(folder / "sets.zarr"), values)
    return folder / "sets.zarr"


def _sparse(folder, matrix, *names):
    arrays = {name: getattr(matrix, name) for name in names}
    return _group(folder, "sets.zarr", **arrays)


def _with_zeros():
    """Matrix in which some of the stored numbers are 0."""
    stored = sparse.csr_array(MEMBER | (np.arange(K) == 2))
    stored.data = MEMBER[stored.nonzero()].astype(np.float64)
    return stored


LAYOUTS = {
    "booleans": lambda folder: _matrix(folder, MEMBER),
    "numbers": lambda folder: _matrix(folder, MEMBER.astype(np.uint8)),
    "positions": lambda folder: _sparse(folder, sparse.csr_array(MEMBER), "indptr", "indices"),
    "stored zeros": lambda folder: _sparse(folder, _with_zeros(), "indptr", "indices", "data"),
}


def _opened(path, labels=LABELS, **options):
    zarr.save_array(str(path.parent / "y.zarr"), labels)
    places = {"predictions": path, "labels": path.parent / "y.zarr"}
    return cs.open_arrays(**places, forecast=SET, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zarr_arrays__are_sets_in_memory(layout, tmp_path):
    source = _opened(LAYOUTS[layout](tmp_path))
    expected = cs.from_sets(MEMBER, LABELS, coverage=0.4)
    np.testing.assert_array_equal(source.values[:N], np.ravel(expected.values))
    np.testing.assert_array_equal(source.labels[17:310], expected.labels[17:310])
    ours, theirs = (
        cs.evaluate(rows, "coverage", block_rows=90)["coverage"] for rows in (source, expected)
    )
    assert (ours.n, ours.value, ours.details) == (theirs.n, theirs.value, theirs.details)


def test_names__are_compared_with_numbers(tmp_path):
    """Classes that are called 10, 20, …"""
    names = [10 * k for k in range(1, K + 1)]
    labels = np.array([*names, -1])[LABELS]
    path = LAYOUTS["booleans"](tmp_path)
    source = _opened(path, labels, class_names=names)
    expected = cs.from_sets(MEMBER, LABELS, coverage=0.4)
    np.testing.assert_array_equal(source.labels[:N], expected.labels)


def test_sizes__stay_sizes(tmp_path):
    hits = (LABELS % 2).astype(float)
    source = _opened(_matrix(tmp_path, MEMBER.sum(axis=1)), hits)
    np.testing.assert_array_equal(np.ravel(source.values[:N]), MEMBER.sum(axis=1))


def test_command__reads_sets(tmp_path):
    path = LAYOUTS["positions"](tmp_path)
    value = cs.evaluate(_opened(path), "coverage")["coverage"].value
    labels = str(tmp_path / "y.zarr")
    options = ["--predictions", str(path), "--labels", labels, "--forecast", SET]
    result = CliRunner().invoke(cli, ["evaluate", "--estimator", "coverage", *options])
    assert result.exit_code == 0, result.output
    assert f"coverage of 40 %: {100 * value:.1f} %" in result.output


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"indptr": [0, 1, 2], "indices": [0, 1], "y": 3}, "2 sets, but labels of the shape"),
        ({"indptr": [0, 2, 1], "indices": [0, 1], "y": 2}, "row 1: indptr must not decrease"),
        ({"indptr": [0, 1, 9], "indices": [0, 1], "y": 2}, "row 1: indptr must not decrease"),
        ({"indptr": [0, 0, 2], "indices": [1, 1], "y": 2}, "row 1: its set has the class 1 twice"),
        ({"indptr": [0, 1, 2], "indices": [0, -1], "y": 2}, "row 1: its set has the class -1"),
        ({"indptr": [0.0, 1.0], "indices": [0], "y": 1}, "must be whole numbers"),
        ({"indices": [0, 1], "y": 2}, "a group with the arrays indptr and indices; .* has indices"),
    ],
)
def test_invalid_groups__are_named(arrays, message, tmp_path):
    arrays = {name: np.array(values) for name, values in arrays.items()}
    labels = np.zeros(int(arrays.pop("y")), int)
    path = _group(tmp_path, "sets.zarr", **arrays)
    with pytest.raises((cs.InvalidDataError, cs.StoreError), match=message):
        cs.evaluate(_opened(path, labels), "coverage")


@pytest.mark.parametrize("layout", ["matrix", "sparse"])
def test_missing_flags__leave_rows_without_a_set(layout, tmp_path):
    values = MEMBER.astype(float)
    values[[130, 200], [4, 0]] = np.nan
    if layout == "matrix":
        path = _matrix(tmp_path, values)
    else:
        path = _sparse(tmp_path, sparse.csr_array(values), "indptr", "indices", "data")
    source = _opened(path)
    expected = MEMBER.sum(axis=1).astype(float)
    expected[[130, 200]] = np.nan
    np.testing.assert_array_equal(np.ravel(source.values[:N]), expected)
    with pytest.raises(cs.InvalidDataError, match=r"row 130 of .* is missing"):
        cs.evaluate(source, "coverage")
    # Their labels are known, and so is the label of every other row but one.
    assert cs.evaluate(source, "coverage", on_invalid="drop")["coverage"].n == N - 3
    for sets in (values, sparse.csr_array(values)):
        with pytest.raises(cs.InvalidDataError, match="row 130: a number of its set is missing"):
            cs.from_sets(sets, LABELS, coverage=0.4)


def test_other_numbers__are_named(tmp_path):
    values = MEMBER.astype(int)
    values[130, 4] = 3
    with pytest.raises(cs.InvalidDataError, match=r"row 130 has 3 in column 4, not true") as caught:
        cs.evaluate(_opened(_matrix(tmp_path, values)), "coverage")
    assert caught.value.row == 130
