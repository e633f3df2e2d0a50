"""``calibscale shift``: new class shares, and the file of the map to them."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs

OPTIONS = ("--probabilities", "p", "--labels", "left")


@pytest.fixture
def tables(rng, tmp_path):
    """CSV files of two periods, the second one with an empty column of labels."""
    paths, columns = [], []
    for name, share, has_labels in (("old", 0.1, True), ("new", 0.3, False)):
        y = (rng.random(1500) < share).astype(int)
        p = 1 / (1 + 9 * np.exp(2 - 2 * rng.normal(2.0 * y)))
        labels = ["yes" if event else "no" for event in y] if has_labels else [""] * len(y)
        path = tmp_path / f"{name}.csv"
        lines = [f"{value!r},{label}" for value, label in zip(p.tolist(), labels, strict=True)]
        path.write_text("\n".join(["p,left", *lines]))
        paths.append(str(path))
        columns.append((p, y))
    return paths, columns


def test_shift__has_the_shares_of_the_function(run, tables, tmp_path):
    paths, ((p, y), (new, _)) = tables
    place = tmp_path / "map.json"
    ran = run("shift", *paths, *OPTIONS, "--json", "-", "-o", str(place))
    expected = cs.label_shift(
        cs.from_arrays(probabilities=p, labels=y),
        cs.from_arrays(probabilities=new, labels=np.full(len(new), -1)),
    )
    shares = [part["new_share"] for part in ran.json["classes"]]
    np.testing.assert_allclose(shares, expected.shares, rtol=1e-12)
    fitted = cs.load_recalibration(place)
    np.testing.assert_allclose(
        fitted.transform(new), expected.recalibrated.transform(new), rtol=1e-12
    )


@pytest.mark.long
def test_shift__is_printed_and_drawn(run, tables, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paths, _ = tables
    picture = tmp_path / "shares.png"
    settings = ("--method", "bbse", "--recalibration", "identity", "--confidence", "0.9")
    ran = run("shift", *paths, *OPTIONS, *settings, "--figure", str(picture))
    assert ran.code == 0, ran.err
    assert "The class shares have changed" in ran.out
    assert "90 % interval" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert picture.stat().st_size > 1000


def test_shift__names_what_is_wrong(run, tables):
    paths, _ = tables
    assert run("shift", paths[0], *OPTIONS).code == 2
    ran = run("shift", *paths, *OPTIONS, "--recalibration", "mc")
    assert "recalibration must be one of auto, identity" in ran.err
    ran = run("shift", paths[0], paths[0], *OPTIONS)
    assert "has the old rows" in ran.err
