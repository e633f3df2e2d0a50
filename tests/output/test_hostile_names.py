"""Names of classes and groups that contain control characters and markup."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.html_page import checked
from tests.support.slow_cases import some_slow

pytestmark = pytest.mark.long

ROWS = 300
CLASSES = [
    "cat\x1b[31m\x07",
    'dog\n"x", y\t',
    "<script>alert(1)</script>&amp;$\\frac$",
    "\u202eliar",
]
CITIES = ["Ouro\x1b[2J", "new\nline", "\u202eright\u2066", "q\"uote, 'comma'", "=<b>&amp;$x$"]
ESCAPED = [  # as shown on a terminal
    "Ouro\\x1b[2J",
    "new\\nline",
    "\\u202eright\\u2066",
    CITIES[3],
    CITIES[4],
]


def _write(path: Path, seed: int = 0) -> Path:
    """Write a table with hostile class names, a text column and a boolean column."""
    rng = np.random.default_rng([20, seed])
    p = rng.dirichlet([1, 1, 1, 1], ROWS)
    labels = (p.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1).clip(0, 3)
    columns = {f"p_{name}": p[:, k] for k, name in enumerate(CLASSES)}
    columns["label"] = pa.array([CLASSES[y] for y in labels]).dictionary_encode()
    columns["city"] = pa.array([CITIES[k] for k in rng.integers(0, len(CITIES), ROWS)])
    columns["new"] = rng.random(ROWS) < 0.5
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from calibscale.data.ingest.ingestion import ingest

    folder = tmp_path_factory.mktemp("hostile")
    keys = {"probabilities": "p", "labels": "label", "covariates": "city,new"}
    ingest([_write(folder / "rows.parquet")], folder / "rows.zarr", keys=keys)
    return folder / "rows.zarr"


def _control_characters(text: str) -> set[str]:
    """Characters that control a terminal or the direction of writing."""
    turns = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return {
        c
        for c in text
        if (unicodedata.category(c) == "Cc" and c != "\n") or unicodedata.bidirectional(c) in turns
    }


def _harmless_text(path: Path) -> str:
    """Text of a report in which no name acts as markup or controls a terminal."""
    page = checked(path.read_text())
    assert not page.count("b")
    assert not _control_characters(page.text.replace("\n", " "))
    return " ".join(page.text.split())


def _on_page(name: str) -> str:
    """A name as a page shows it: on one line, without control characters."""
    shown = ""
    for c in name:
        direction = unicodedata.bidirectional(c)
        if direction in ("R", "L") or not direction.startswith(("R", "L", "P")):
            shown += " " if unicodedata.category(c) == "Cc" else c
    return " ".join(shown.split())


# ---------------------------------------------------------------- the terminal


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "--group-by", "city"],
        ["reliability", "--group-by", "city", "--notion", "class_wise", "--class", "1"],
        ["bias", "--covariates", "city,new", "--at", "grid", "--top", "1000"],
    ],
    ids=lambda command: command[0],
)
def test_names__are_escaped_on_the_terminal(
    run: Any,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    name, *options = command
    ran = run(name, store, *options, "--scheduler", "serial")
    assert ran.code == 0, ran.err
    assert not _control_characters(ran.out + ran.err)
    assert [name for name in ESCAPED if name not in ran.out] == []
    if name == "reliability":
        assert 'class dog\\n"x", y\\t' in ran.out


def test_names__are_escaped_in_errors(run: Any, store: Path) -> None:
    ran = run("evaluate", store, "--group-by", CITIES[0])
    assert ran.code == 2
    assert "Ouro\\x1b[2J" in ran.err
    keys = ("--probabilities", "p", "--labels", "label", "--class-names", "a,b,c,d")
    ran = run("ingest", store.with_name("rows.parquet"), store.with_name("x.zarr"), *keys)
    assert ran.code == 4
    assert not _control_characters(ran.out + ran.err)


# ---------------------------------------------------------------- files


def test_names__in_json_are_unchanged_and_in_reports_are_text(
    run: Any,
    store: Path,
    tmp_path: Path,
) -> None:
    outputs = evaluated, mapped = tmp_path / "evaluated.json", tmp_path / "mapped.json"
    serial = ("--scheduler", "serial", "-q")
    assert run("evaluate", store, "--group-by", "city", "--json", evaluated, *serial).code == 0
    grid = ("--covariates", "city,new", "--at", "grid", "-o", tmp_path / "map.csv")
    assert run("bias", store, *grid, "--json", mapped, *serial).code == 0

    result = json.loads(evaluated.read_text())
    assert result["source"]["class_names"] == CLASSES
    assert [group["name"] for group in result["groups"]["values"]] == sorted(CITIES)
    assert json.loads(mapped.read_text())["source"]["categories"]["city"] == sorted(CITIES)

    with open(tmp_path / "map.csv", newline="", encoding="utf-8") as file:
        points = list(csv.DictReader(file, strict=True))
    assert {point["city"] for point in points} == {*CITIES}
    assert {point["new"] for point in points} == {"false", "true"}

    assert run("report", *outputs, "-o", tmp_path / "page.html").code == 0
    text = _harmless_text(tmp_path / "page.html")
    assert [city for city in CITIES if _on_page(city) not in text] == []
    assert "false" in text  # on the axis of the map, and in its table
    assert "true" in text


def test_names__on_the_axes_of_a_map(run: Any, store: Path, tmp_path: Path) -> None:
    """Only the picture is searched, as the table contains the names as well."""
    mapped = tmp_path / "mapped.json"
    options = ("--covariates", "new", "--at", "grid", "--json", mapped, "--scheduler", "serial")
    assert run("bias", store, *options, "-q").code == 0
    page = run("report", mapped, "-o", "-").out
    picture = page[page.index("<svg") : page.index("</svg>")]
    assert ">false</text>" in picture
    assert ">true</text>" in picture


@pytest.mark.parametrize("ending", some_slow(["svg", "png"], keep=["svg"]))
def test_names__are_escaped_in_pictures(run: Any, store: Path, tmp_path: Path, ending: str) -> None:
    for k in (0, 2):  # names with control characters and with markup
        path = tmp_path / f"class {k}.{ending}"
        options = ("--group-by", "city", "--notion", "class_wise", "--class", k, "-q")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # missing glyphs
            ran = run("reliability", store, *options, "-o", path, "--scheduler", "serial")
        assert (ran.code, ran.err) == (0, "")
        if ending == "png":
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82")
            break
        ET.parse(path)  # letters are paths; their text is in comments
        text = path.read_text()
        assert not _control_characters(text)
        assert "Ouro\\x1b[2J" in text


# ---------------------------------------------------------------- nights

JOB = """
model = '"<b>&amp;} 1'
group_by = "new"
windows = ["day"]
estimators = ["ece"]
[source]
path = "{date}.parquet"
format = "files"
[source.columns]
probabilities = "p"
labels = "label"
covariates = ["new"]
[[thresholds]]
estimator = "ece"
above = 1e-6
group = 1
[alarms]
notions = ["top_label"]
[outputs]
json = "night.json"
prometheus = "night.prom"
junit = "night.xml"
history = "night.csv"
report = "night.html"
[report]
map = ["new"]
"""
MODEL = '"<b>&amp;} 1'  # control characters are rejected


def test_names__are_whole_and_harmless_in_outputs_of_nights(run: Any, tmp_path: Path) -> None:
    _write(tmp_path / "2026-03-01.parquet")
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    ran = run("nightly", job, "--date", "2026-03-01")
    assert ran.code == 3, ran.err  # the threshold
    assert not _control_characters(ran.out + ran.err)

    result = json.loads((tmp_path / "night.json").read_text())
    assert result["source"]["class_names"] == CLASSES
    assert result["model"] == MODEL

    text = (tmp_path / "night.prom").read_text()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert {sample.labels["model"] for sample in samples} == {MODEL}
    groups = {s.labels["group"] for s in samples if s.name == "calibscale_estimate"}
    assert groups == {"", "false", "true"}

    suite = ET.parse(tmp_path / "night.xml").getroot()
    assert MODEL in [element.get("value") for element in suite.iter("property")]
    assert any("new = true" in str(case.get("message")) for case in suite.iter("failure"))

    with open(tmp_path / "night.csv", newline="", encoding="utf-8") as file:
        assert {row["model"] for row in csv.DictReader(file, strict=True)} == {MODEL}

    text = _harmless_text(tmp_path / "night.html")
    assert re.search(r"0\.\d+ +true +−?\d", text)  # a point of the map of the bias


def test_text_group__is_rejected_by_nights(run: Any, tmp_path: Path) -> None:
    _write(tmp_path / "2026-03-01.parquet")
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace('"new"', '"city"'))
    ran = run("nightly", job, "--date", "2026-03-01")
    assert ran.code == 2
    assert "'city' of" in ran.err
    assert "is text" in ran.err
