"""First commands of a new user, on a table with text columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.html_page import Page

SPECIES, CITIES = ["cat", "dog", "fox"], ["Lima", "Oslo", "Rome"]


def _table(path: Path) -> Path:
    rng = np.random.default_rng(7)
    n = 900
    p = rng.dirichlet([1, 1, 1], n)
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, 2)
    columns = {f"proba_{name}": p[:, k] for k, name in enumerate(SPECIES)}
    columns |= {"species": [SPECIES[y] for y in labels], "age": rng.normal(40, 9, n)}
    columns["city"] = [CITIES[k] for k in rng.integers(0, 3, n)]
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.long
def test_path__from_a_table_leads_to_a_page(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    _table(tmp_path / "pets.parquet")
    keys = ("--probabilities", "proba", "--labels", "species", "--covariates", "city")
    ran = run("ingest", "pets.parquet", "pets.zarr", *keys)
    assert ran.code == 0, ran.err
    assert "900 rows" in ran.out

    options = ("--interval", "jackknife", "--json", "pets.json")
    ran = run("evaluate", "pets.zarr", "--group-by", "city", *options)
    assert ran.code == 0, ran.err
    groups = json.loads(Path("pets.json").read_text())["groups"]["values"]
    assert [group["name"] for group in groups] == CITIES
    assert all(any(result["interval"] for result in group["results"]) for group in groups)
    assert "…" in ran.out  # low … high
    assert [city for city in CITIES if city not in ran.out] == []

    ran = run("reliability", "pets.zarr", "-o", "pets.png")
    assert ran.code == 0, ran.err
    assert (tmp_path / "pets.png").read_bytes()[:4] == b"\x89PNG"

    ran = run("report", "pets.json", "-o", "pets.html")
    assert ran.code == 0, ran.err
    page = Page((tmp_path / "pets.html").read_text())
    assert [city for city in CITIES if city not in page.text] == []


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (["evaluate", "pets.parquet"], "(--labels); the columns are: proba_cat"),
        (["ingest", "pets.parquet", "pets.zarr"], "--labels NAME"),
        (["reliability", "pets.parquet", "-o", "pets.png"], "(--labels)"),
    ],
    ids=["evaluate", "ingest", "reliability"],
)
def test_wrong_first_command__names_the_next_command(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _table(tmp_path / "pets.parquet")
    ran = run(*command)
    assert ran.code in (1, 2)
    assert remedy in ran.err
