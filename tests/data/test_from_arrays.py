"""Arguments of from_arrays: refused, converted, or warned of."""

from __future__ import annotations

import re

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

from calibscale import (
    Accuracy,
    CalibscaleError,
    InvalidDataError,
    OptionError,
    evaluate,
    from_arrays,
)

Z, Y = np.zeros((4, 3)), np.zeros(4, int)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(labels=Y), "exactly one of logits= and probabilities="),
        (dict(logits=Z, probabilities=Z, labels=Y), "exactly one of"),
        (dict(logits=Z, labels=Y, covariate_names=["a"]), "0 covariates need 0"),
        (dict(logits=Z, labels=Y, covariates=Z, covariate_names=["a", "b"]), "3 covariates need 3"),
        (dict(logits=Z, labels=Y, covariates=Z, covariate_names=["a", "b", "a"]), "distinct"),
    ],
    ids=str,
)
def test_from_arrays__impossible_settings_are_refused(arguments, says):
    with pytest.raises(OptionError, match=says):
        from_arrays(**arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(logits=Z.astype(int), labels=Y), "must be floating point, not int64"),
        (dict(logits=Z.astype(complex), labels=Y), "must be numbers, not complex128"),
        (dict(logits=np.full(Z.shape, 1j, object), labels=Y), "object arrays are refused"),
        (dict(logits=Z.astype(str), labels=Y), "must be numbers"),
        (dict(logits=Z[0, 0], labels=Y), "logits must have rows, not be a single float64"),
        (dict(logits=Z[None], labels=Y), r"must be \(rows, classes\), not of shape \(1, 4, 3\)"),
        (dict(logits=Z, labels=Y, binary=True), r"binary is declared, but logits have shape"),
        (dict(logits=Z[:, :0], labels=Y), "logits"),
        (dict(logits=Z[:, :0], labels=Y, binary=True), "logits"),
        (
            dict(logits=Z, labels=Y + 0.5),
            r"row 0 of arrays: the label is 0\.5, not an integer 0",
        ),
        (
            dict(logits=Z, labels=np.float16(Y + np.inf)),
            r"row 0 of arrays: the label is inf, not an integer",
        ),
        (dict(logits=Z, labels=Y[:3]), "4 rows of logits, but 3 of labels"),
        (dict(logits=Z, labels=Y[:, None]), r"labels must be \(4,\), not of shape \(4, 1\)$"),
        (dict(logits=Z, labels=np.eye(3, dtype=int)[Y]), r"one-hot\? .*\.argmax\(axis=1\)"),
        (dict(logits=Z, labels=np.eye(3)[Y][:3]), "4 rows of logits, but 3 of labels"),
        (dict(logits=Z, labels=np.eye(2)[Y % 2]), r"not float64; .*one-hot\?"),
        (dict(logits=Z, labels=3), "labels must have rows, not be a single int"),
        (dict(logits=Z, labels=Y, weights=np.ones(5)), "4 rows of logits, but 5 of weights"),
        (dict(logits=Z, labels=Y, weights=np.ones((4, 1))), r"weights must be \(4,\)"),
        (
            dict(logits=Z, labels=Y, covariates=Z[None]),
            r"covariates must be \(4, d\), not",
        ),
        (dict(logits=Z, labels=Y, covariates=np.ones((3, 1))), "but 3 of covariates"),
        (dict(logits=Z[:0], labels=Y[:0]), "there are no rows"),
        (dict(logits=[], labels=[]), "there are no rows"),
        (dict(logits=[[0.0, 1.0], [2.0]], labels=[0, 0]), "logits"),
        (dict(logits=None, probabilities=[["a", "b"]], labels=[0]), "probabilities must be num"),
    ],
    ids=str,
)
def test_from_arrays__impossible_arrays_are_refused(arguments, says):
    with pytest.raises(InvalidDataError, match=says):
        from_arrays(**arguments)


@pytest.mark.parametrize("labels", [[0.0, 1.0, np.nan], np.array([0, 1, -1], np.float16)])
def test_from_arrays__integer_valued_labels_are_converted(labels):
    source = from_arrays(logits=Z[:3], labels=labels)
    assert source.labels.tolist() == [0, 1, -1]
    source = from_arrays(logits=Z[:3], labels=[True, False, True])
    assert source.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("make", [np.array, da.from_array, zarr.array])
def test_from_arrays__one_dimension_of_covariates_is_one_covariate(make):
    source = from_arrays(logits=Z, labels=Y, covariates=make(np.arange(4.0)))
    assert source.covariate_names == ("x0",)
    for read in (source, source.part(1, 3, covariates=True)):
        assert read.read(0, 2, covariates=True).covariates.shape == (2, 1)
    assert source.read_covariates(1, 3).tolist() == [[1], [2]]
    assert evaluate(source, [Accuracy()], group_by="x0").n == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(logits=np.eye(3)[Y], labels=Y), "are these probabilities"),
        (dict(logits=np.eye(3)[Y] + 0.01, labels=Y), None),
        (dict(probabilities=np.eye(3)[Y], labels=Y), None),
        (dict(logits=Z[:, :2], labels=[1, -1, 0, -1]), None),
        (dict(logits=Z, labels=[1, -1, 1, -1]), None),
    ],
    ids=str,
)
def test_from_arrays__doubtful_arrays_log_a_warning(caplog, arguments, says):
    from_arrays(**arguments, name="mine")
    assert len(caplog.messages) == (says is not None)
    assert all(re.match(f"mine: .*{says}", message) for message in caplog.messages)


def test_from_arrays__a_dask_array_of_unknown_length_gets_a_remedy():
    values = da.from_array(np.random.default_rng(0).normal(size=(100, 3)), chunks=(30, 3))
    unknown = values[values[:, 0] > 0]
    with pytest.raises(InvalidDataError, match="compute_chunk_sizes"):
        from_arrays(logits=unknown, labels=np.zeros(50, int))


def test_from_arrays__masked_entries_are_missing():
    p = np.ma.masked_array(np.full((4, 2), 0.5), mask=np.eye(4, 2, dtype=bool))
    source = from_arrays(probabilities=p, labels=np.zeros(4, int))
    with pytest.raises(InvalidDataError, match="row 0 of arrays"):
        evaluate(source, [Accuracy()])
    assert evaluate(source, [Accuracy()], on_invalid="drop").n == 2


def test_from_arrays__texts_by_name():
    texts = np.array(["b", "a", "b", None], object)
    for labels in (texts, texts.tolist()):
        source = from_arrays(logits=Z[:, :2], labels=labels, class_names=np.array(["b", "a"]))
        assert source.labels.tolist() == [0, 1, 0, -1]
        assert source.class_names == ("b", "a")
    numbers = from_arrays(logits=Z, labels=Y, class_names=["x", "y", "z"])
    assert numbers.describe()["class_names"] == ["x", "y", "z"]
    with pytest.raises(
        InvalidDataError, match="row 0 of arrays: the label is 'b', which is not among 'a'"
    ):
        from_arrays(logits=Z[:, :2], labels=texts, class_names=["a", "c"])
    with pytest.raises(OptionError, match="3 classes need 3 distinct names"):
        from_arrays(logits=Z, labels=Y, class_names=["x", "y", "x"])


@pytest.mark.parametrize("kind", [np.array, list, lambda texts: np.array(texts, object)])
def test_from_arrays__covariates_that_are_texts(kind):
    source = from_arrays(logits=Z, labels=Y, covariates=kind(["s", "n", "s", "s"]))
    assert source.read_covariates(0, 4).ravel().tolist() == [1, 0, 1, 1]
    assert source.categories == {"x0": ("n", "s")}
    result = evaluate(source, [Accuracy()], group_by="x0")
    assert [f"{group:g}" for group in result.groups] == ["n", "s"]
    pairs = [["s", "u"], ["n", "u"], ["s", "v"], ["s", "u"]]
    two = from_arrays(logits=Z, labels=Y, covariates=kind(pairs), covariate_names=["a", "b"])
    assert two.categories == {"a": ("n", "s"), "b": ("u", "v")}


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_from_arrays__covariates_in_a_frame_keep_their_names(library):
    frames = pytest.importorskip(library, reason="covariates in a data frame")
    columns = {"age": [1, 2, 3, 4], "region": ["s", "n", None, "s"], "new": [True, False] * 2}
    frame = frames.table(columns) if library == "pyarrow" else frames.DataFrame(columns)
    source = from_arrays(logits=Z, labels=Y, covariates=frame)
    assert source.covariate_names == ("age", "region", "new")
    assert source.categories == {"region": ("n", "s"), "new": ("false", "true")}
    expected = [[1, 1, 1], [2, 0, 0], [3, -1, 1], [4, 1, 0]]  # −1: missing
    np.testing.assert_array_equal(source.read_covariates(0, 4), expected)


def test_from_arrays__names_may_be_an_index():
    pandas = pytest.importorskip("pandas", reason="names in an index of pandas")
    source = from_arrays(
        logits=Z, labels=Y, covariates=Z[:, :2], covariate_names=pandas.Index(["a", "b"])
    )
    assert source.covariate_names == ("a", "b")


def test_covariates__of_a_dictionary_are_those_of_a_data_frame():
    """A dictionary of columns is no array of objects."""
    rng = np.random.default_rng(0)
    p, y = rng.random(6), rng.integers(0, 2, 6)
    columns = {
        "age": rng.uniform(18, 80, 6),
        "region": np.array(list("nsnsns")),
        "day": np.array(["2024-01-01", "2024-02-01"] * 3, "M8[s]"),
        3: [True, False] * 3,
    }
    from_dictionary, from_data_frame = (
        from_arrays(probabilities=p, labels=y, binary=True, covariates=covariates)
        for covariates in (columns, pd.DataFrame(columns))
    )
    assert (
        from_dictionary.covariate_names
        == from_data_frame.covariate_names
        == ("age", "region", "day", "3")
    )
    assert (
        from_dictionary.categories
        == from_data_frame.categories
        == {"region": ("n", "s"), "3": ("false", "true")}
    )
    assert from_dictionary.times == from_data_frame.times
    np.testing.assert_array_equal(from_dictionary.covariates, from_data_frame.covariates)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.zeros(6), "b": np.zeros(5)}, "'b' has 5 rows, and 'a' has 6"),
        ({"a": np.zeros((6, 2))}, r"'a' has the shape \(6, 2\)"),
        ({"a": np.zeros(5)}, "6 rows of probabilities, but 5 of covariates"),
        ({}, "the dictionary of covariates has no columns"),
    ],
)
def test_covariates__of_a_dictionary_with_other_shapes_are_refused(columns, message):
    with pytest.raises(CalibscaleError, match=message):
        from_arrays(
            probabilities=np.full(6, 0.5), labels=[0, 1] * 3, binary=True, covariates=columns
        )
