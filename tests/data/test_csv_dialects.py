"""CSV files as spreadsheets and other languages write them give the numbers of plain ones."""

import numpy as np
import pandas as pd
import pytest

import calibscale as cs
from calibscale.errors import InvalidDataError, OptionError

N = 300


def table():
    rng = np.random.default_rng(0)
    scores = rng.random(N).round(6)
    scores[::40] = np.nan
    places = np.array(["Köln; Mitte", 'the "port", old', "Łódź", None], object)
    columns = {
        "größe (cm)": rng.normal(170.0, 9.0, N).round(3),
        "y": rng.integers(0, 2, N),
        "p": scores,
        "place": places[rng.integers(0, 4, N)],
    }
    return pd.DataFrame(columns)


def evaluated(path):
    source = cs.from_file(path, labels="y", probabilities="p", covariates=["place", "größe (cm)"])
    groups = ["place", "größe (cm):[165,175]"]
    result = cs.evaluate(source, ["brier", "ece"], group_by=groups, on_invalid="drop")
    return [str(record) for record in result.records()]


DIALECTS = {
    "semicolons": dict(sep=";"),
    "decimal commas": dict(sep=";", decimal=","),
    "tabs, decimal commas": dict(sep="\t", decimal=","),
    "bars": dict(sep="|"),
    "byte order mark": dict(sep=";", decimal=",", encoding="utf-8-sig", lineterminator="\r\n"),
    "UTF-16": dict(sep="\t", encoding="utf-16"),
    "UTF-16 with decimal commas": dict(sep=";", decimal=",", encoding="utf-16"),
}


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_csv__every_dialect_has_the_numbers_of_a_plain_file(tmp_path, dialect):
    path = tmp_path / "a.csv"
    table().to_csv(path, index=False)
    plain = evaluated(path)
    table().to_csv(path, index=False, **dialect)
    assert evaluated(path) == plain


def test_csv__quoted_delimiters_in_the_header_do_not_count(tmp_path):
    (tmp_path / "a.csv").write_text('"a;b;c;d",y,p\n1,0,0.5\n2,1,0.5\n')
    source = cs.from_file(tmp_path / "a.csv", labels="y", probabilities="p", covariates="a;b;c;d")
    assert cs.evaluate(source, "brier")["brier"].value == 0.5


def test_csv__one_column_has_the_delimiter_of_its_ending(tmp_path):
    (tmp_path / "a.csv").write_text("p\n0.5\n")
    with pytest.raises(OptionError, match=r"the columns are: p$"):
        cs.from_file(tmp_path / "a.csv")


@pytest.mark.parametrize("wrong", ["0.5", "1.234,5", "0,5,1"])
def test_csv__a_number_of_the_other_notation_is_refused(tmp_path, wrong):
    rows = "".join(f"{k % 2};0,{k + 100}\n" for k in range(200))
    (tmp_path / "a.csv").write_text(f"y;p\n{rows}1;{wrong}\n")
    with pytest.raises(InvalidDataError, match=f"line 202: 'p' is '{wrong}', not a number"):
        cs.from_file(tmp_path / "a.csv", labels="y", probabilities="p")


def test_csv__commas_stay_texts_among_decimal_points(tmp_path):
    (tmp_path / "a.csv").write_text("y;p;q\n1;0.5;1,5\n0;0.5;2,5\n")
    with pytest.raises(InvalidDataError, match="must be numbers, not text, such as '1,5'"):
        cs.from_file(tmp_path / "a.csv", labels="y", probabilities="q")


def test_text__other_encodings_are_named_with_the_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("y,p,place\n1,0.5,Bonn\n0,0.5,Köln\n".encode("cp1252"))
    with pytest.raises(InvalidDataError, match=r"a\.csv, line 3: the byte 0xf6 is not UTF-8"):
        cs.from_file(path, labels="y", probabilities="p")
    lines = path.with_suffix(".jsonl")
    lines.write_bytes('{"y": 1, "p": 0.5, "place": "Köln"}\n'.encode("cp1252"))
    with pytest.raises(InvalidDataError, match=r"a\.jsonl, line 1: the byte 0xf6 is not UTF-8"):
        cs.from_file(lines, labels="y", probabilities="p")
