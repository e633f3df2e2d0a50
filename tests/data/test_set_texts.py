"""Sets of classes written as texts: by Python, JSON, NumPy and databases, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.ingest.set_texts import form_of, of_texts


def _read(text, **options):
    """Classes of the set that a text writes, or None if it is absent."""
    members = of_texts([text], "row {}".format, **options)
    return None if members.absent is not None else members.values.tolist()


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("['cat', 'dog']", ["cat", "dog"]),
        ('["cat"]', ["cat"]),
        (" [cat, golden retriever] ", ["cat", "golden retriever"]),
        ("[golden retriever]", ["golden retriever"]),
        ('{"golden retriever",pug}', ["golden retriever", "pug"]),  # of PostgreSQL
        ("['d''or', \"x\"\"y\"]", ["d'or", 'x"y']),  # as in SQL
        ("['it\\'s']", ["it's"]),
        ('["\\u00e9", "\\ud83d\\ude00", "a\\/b"]', ["é", "😀", "a/b"]),  # escapes of JSON
        ("['C:\\data', 'x']", ["C:\\data", "x"]),  # no escape of Python
        ("[d'or, x]", ["d'or", "x"]),
        ("['a, b' 'c']", ["a, b", "c"]),
        ("['a'\n 'b']", ["a", "b"]),
        ("('cat',)", ["cat"]),
        ("frozenset({'cat'})", ["cat"]),
        ("array(['cat', 'dog'], dtype=object)", ["cat", "dog"]),
        ("[np.str_('cat')]", ["cat"]),
        ("[np.str_('a (x)'), np.str_('b')]", ["a (x)", "b"]),
        ("['np.f(x)', 'b']", ["np.f(x)", "b"]),
        ("array(x)", ["array(x)"]),
        ("[a (x), b]", ["a (x)", "b"]),
        ("['wait... what']", ["wait... what"]),
        ("cat|golden retriever", ["cat", "golden retriever"]),
        ("cat; dog", ["cat", "dog"]),
        ("'cat'|'dog'", ["cat", "dog"]),
        ("cat", ["cat"]),
        ("none", ["none"]),
        ("", []),
        ("  ", []),
        ("[]", []),
        ("()", []),
        ("{}", []),
        ("set()", []),
        ("None", None),
        ("NaN", None),
        ("['a', None]", ["a", None]),
        ("[a, NULL]", ["a", None]),
        ("['None']", ["None"]),
        ("cat||dog", ["cat", None, "dog"]),
    ],
)
def test_texts__of_names_are_read(text, classes):
    assert _read(text) == classes


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[3, 17]", [3, 17]),
        ("[3 17]", [3, 17]),
        ("[ 3\n 17]", [3, 17]),
        ("(3, 17)", [3, 17]),
        ("(3,)", [3]),
        ("{3.0, 17.0}", [3, 17]),
        ("[np.int64(3), np.int64(17)]", [3, 17]),
        ("array([3, 17])", [3, 17]),
        ("3|17", [3, 17]),
        ("3;17", [3, 17]),
        ("['3', '17']", [3, 17]),
        ("[1_0]", ["1_0"]),
        ("[3, x]", ["3", "x"]),
    ],
)
def test_texts__of_numbers_are_numbers_on_request(text, numbers):
    assert _read(text, as_numbers=True) == numbers
    assert all(isinstance(name, str) for name in _read(text))


def test_texts__that_are_names_as_a_whole_are_one_class():
    names = ["a, b", "a|b;c", "NaN", "[x"]
    assert [_read(name, class_names=names) for name in names] == [[name] for name in names]


def test_texts__of_other_programs_are_what_they_wrote():
    """Names of random signs, against the lists that Python, JSON and NumPy have written."""
    rng = np.random.default_rng(4)
    signs = list("ab '\",|;[](){}\\\n\té😀.")
    for _ in range(300):
        names = ["n" + "".join(rng.choice(signs, rng.integers(0, 6))) for _ in range(3)]
        for write in (str, json.dumps, lambda row: str(np.array(row, object)), str_of_array):
            assert _read(write(names)) == names, write(names)


def str_of_array(names):
    """Text of a NumPy array of texts, which has blanks between them."""
    return str(np.array(names))


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["[True, False]", None, "[]", "[false true]"], (2, True, False)),
        (["[True, False]", "[True]"], (2, False, False)),
        (["[True, cat]", "[True, False]"], (2, False, False)),
        (["True|False", "True|False"], (2, False, False)),
        (["3|17", "", "NaN", "[1 2 3]"], (3, False, True)),
        (["3|17", "cat"], (2, False, False)),
        (["a|b;c", "[x"], (0, False, False)),
        (["", None], (0, False, False)),
    ],
)
def test_first_texts__show_the_form_of_a_column(texts, form):
    assert form_of(texts) == form


def test_booleans__are_read_on_request():
    assert _read("[True False]", flags=True) == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a|b;c", "has both | and ;"),
        ("cat, dog", "has a comma"),
        ("[3, 17", "has no ] at its end"),
        ("{'a': 1}", "is not a list of classes"),
        ("['a' b]", "is not a list of classes"),
        ("[1 2 ... 9]", "is shortened"),
        ("['a' 'b' ... 'c']", "is not a list of classes"),
        ("['a', ... 'c']", "is shortened"),
        ("[1, 2, … 9]", "is shortened"),
        ("[a" + 500 * "," + "a", "… has no ]".replace(" has", "', which has")),
    ],
)
def test_texts__of_no_form_are_errors_that_name_the_row(text, message):
    with pytest.raises(cs.InvalidDataError) as caught:
        of_texts(["a", None, text], "row {}".format, 10)
    assert str(caught.value).startswith("row 12: its set is ")
    assert message in str(caught.value)
    assert caught.value.row == 12


def test_texts__of_hostile_files_are_read_in_linear_time():
    """A long run of blanks or quotation marks would take minutes in quadratic time."""
    assert len(_read("[a" + 2**18 * " " + "'b']")) == 1
    for text in ("['" + 2**18 * "\"'" + "]", "[" + 2**16 * "'' " + "x]"):
        with pytest.raises(cs.InvalidDataError, match="is not a list of classes"):
            _read(text)


@pytest.mark.parametrize("text", ["[[a, b]]", "[a][b]", "{a, {b}}"])
def test_brackets_inside_brackets__are_refused(text):
    with pytest.raises(cs.InvalidDataError, match="brackets inside brackets"):
        _read(text)


def test_cells_that_are_all_empty__are_empty_sets(tmp_path):
    path = tmp_path / "sets.csv"
    path.write_text("s,y\n,3\n,4\n")
    source = cs.from_file(path, predictions="s", labels="y", forecast="set(coverage=0.9)")
    assert cs.evaluate(source, "coverage")["coverage"].value == 0.0


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("'a|b'|c", ["a|b", "c"]),
        ("'a|b'", ["a|b"]),
        ('"a;b"; c', ["a;b", "c"]),
        ("l'Oréal|x", ["l'Oréal", "x"]),
        ("'tis|'twas", ["'tis", "'twas"]),
    ],
)
def test_separators_in_quotes__are_part_of_a_name(text, classes):
    assert of_texts([text], str).values.tolist() == classes


def test_known_class__is_recognised_between_blanks():
    assert of_texts([" a|b "], str, class_names={"a|b": 0}).values.tolist() == ["a|b"]
