"""``calibscale curves``: Murphy diagrams, concentration curves and double lift charts."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibscale as cs

OPTIONS = ("--forecast", "mean", "--predictions", "prediction", "--labels", "y")


@pytest.fixture
def tables(rng, tmp_path):
    """CSV files of two models, and their columns."""
    mean = rng.gamma(2.0, size=800) + 0.1
    y = mean * rng.exponential(size=800)
    models = {"old": 1.3 * mean**0.6, "new": mean}
    paths = []
    for name, x in models.items():
        path = tmp_path / f"{name}.csv"
        rows = np.column_stack([x, y])
        np.savetxt(path, rows, delimiter=",", header="prediction,y", comments="", fmt="%.17g")
        paths.append(str(path))
    sources = {
        name: cs.from_arrays(predictions=x, forecast="mean", labels=y) for name, x in models.items()
    }
    return paths, sources


def _numbers(run, *arguments):
    ran = run("curves", *arguments, *OPTIONS, "--json", "-")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_murphy__has_the_scores_of_the_function(run, tables):
    paths, sources = tables
    value = _numbers(run, "murphy", *paths, "--name", "old", "--name", "new", "--thresholds", "20")
    expected = cs.murphy_diagram(sources, thresholds=20)
    np.testing.assert_allclose(value["curves"][1]["score"], expected.curves[1].score, rtol=1e-12)
    assert value["verdict"] == expected.verdict


def test_concentration__has_the_areas_of_the_function(run, tables):
    paths, sources = tables
    value = _numbers(run, "concentration", paths[0])
    assert value["abc"]["value"] == pytest.approx(
        cs.concentration_curve(sources["old"]).abc.value, rel=1e-10
    )


def test_double_lift__has_the_bins_of_the_function(run, tables):
    paths, sources = tables
    value = _numbers(run, "double-lift", *paths, "--bins", "4")
    expected = cs.double_lift(*sources.values(), names=("old", "new"), bins=4)
    assert [part["outcome"] for part in value["bins"]] == pytest.approx(
        [part.outcome for part in expected.bins], rel=1e-12
    )
    assert (value["first"], value["second"]) == ("old.csv", "new.csv")


@pytest.mark.long
def test_curves__are_printed_and_drawn(run, tables, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paths, _ = tables
    for name, stores in (
        ("murphy", paths),
        ("concentration", paths[:1]),
        ("double-lift", paths),
    ):
        picture = tmp_path / f"{name}.svg"
        ran = run("curves", name, *stores, *OPTIONS, "--output", str(picture))
        assert ran.code == 0, ran.err
        assert max(map(len, ran.out.splitlines())) <= 80
        assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("names", "message"),
    [(("--name", "a"), r"2 stores, but 1 names"), (("--name", "a") * 2, "given twice")],
)
def test_names__must_be_as_many_as_stores_and_differ(run, tables, names, message):
    paths, _ = tables
    ran = run("curves", "double-lift", *paths, *OPTIONS, *names)
    assert ran.code == 2
    assert message in ran.err
