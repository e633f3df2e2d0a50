"""What is missing, and columns of any origin as plain NumPy arrays."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from calibscale.data.array_layouts import as_numpy
from calibscale.data.missing import (
    as_floats,
    is_missing,
    is_missing_number,
    missing_entries,
    of_arrow,
    plain,
    plain_arrow,
)

MISSING = [
    None,
    float("nan"),
    np.float32("nan"),
    Decimal("nan"),
    pd.NA,
    pd.NaT,
    np.datetime64("NaT"),
    np.ma.masked,
    "",
    " \t",
]
PRESENT = [0, 0.0, False, "0", "none", Decimal(0), np.int8(0), pd.Timestamp(0), [None], np.zeros(2)]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_is_missing__knows_the_missing_values_of_every_library(value):
    assert is_missing(value)
    column = np.empty(3, object)
    column[:] = [0.25, value, 1]
    np.testing.assert_array_equal(plain(column), [0.25, np.nan, 1])


@pytest.mark.parametrize("value", PRESENT, ids=repr)
def test_is_missing__is_not_zero_or_false(value):
    assert not is_missing(value)


@pytest.mark.parametrize(("text", "missing"), [("NA", True), (" null ", True), ("0", False)])
def test_is_missing_number__knows_the_words_of_other_programs(text, missing):
    assert is_missing_number(text) is missing


def test_plain__does_not_copy_numbers():
    numbers = np.arange(4.0)
    assert plain(numbers) is numbers
    assert plain(np.ma.masked_array(numbers, mask=False)) is numbers or np.shares_memory(
        plain(np.ma.masked_array(numbers, mask=False)), numbers
    )


@pytest.mark.parametrize(
    "column",
    [
        np.ma.masked_array([2, 1, 7], mask=[False, False, True]),
        pd.array([2, 1, None], dtype="Int64"),
        pd.array([2, 1, None], dtype="Float64"),
        pd.Series([2, 1, None], index=[7.5, 1.5, 0.5]),
        pa.array([2, 1, None]),
        pa.chunked_array([[2, 1], [None]]),
        pa.array([Decimal(2), Decimal(1), None]),
        pa.array([2, 1, None]).dictionary_encode(),
        [2, 1, None],
        [2, 1, pd.NA],
    ],
    ids=lambda column: type(column).__name__,
)
def test_as_numpy__missing_numbers_are_nan(column):
    np.testing.assert_array_equal(as_numpy(column), [2, 1, np.nan])


@pytest.mark.parametrize(
    "column",
    [
        np.array(["a", "", "b"]),
        np.ma.masked_array(["a", "x", "b"], mask=[False, True, False]),
        pd.array(["a", None, "b"], dtype="string"),
        pd.Categorical(["a", None, "b"]),
        pa.array(["a", None, "b"]),
        pa.array(["a", None, "b"]).dictionary_encode(),
        ["a", float("nan"), "b"],
    ],
    ids=lambda column: type(column).__name__,
)
def test_as_numpy__missing_texts_are_none(column):
    texts = as_numpy(column)
    assert texts.tolist() == ["a", None, "b"]
    assert missing_entries(texts).tolist() == [False, True, False]


@pytest.mark.parametrize("column", [[True, None], pd.array([True, None], dtype="boolean")])
def test_as_floats__takes_booleans_of_which_some_are_missing(column):
    np.testing.assert_array_equal(as_floats(as_numpy(column)), [1, np.nan])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None]), [1, np.nan]),
        (pa.array([True, None]), [1, np.nan]),
        (pa.nulls(2), [np.nan, np.nan]),
        (pa.array([Decimal("0.5"), None]), [0.5, np.nan]),
        (pa.array([0.5, float("nan")]), [0.5, np.nan]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_of_arrow__missing_numbers_are_nan(array, expected):
    np.testing.assert_array_equal(of_arrow(plain_arrow(array)), expected)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_of_arrow__missing_texts_are_none(kind):
    texts = of_arrow(plain_arrow(pa.array(["a", None, "  "], pa.string()).cast(kind)))
    assert texts.tolist() == ["a", None, None]
