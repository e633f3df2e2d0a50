"""Ledgers of older formats: a folder that format 1 wrote is brought to today's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import calibscale as cs
from calibscale.cli import cli
from calibscale.ledger.days import FORMAT, KEY, Ledger
from calibscale.ledger.upgrade import upgrade
from calibscale.ledger.windows import evidence, window
from calibscale.scan import scan
from calibscale.wagers import Wagers

HERE = Path(__file__).parent
DAYS = ("2026-01-01", "2026-01-02")  # of 40 rows each, half of them of region 1


@pytest.fixture
def old(tmp_path):
    """Written by the last commit of format 1, of ECE, CKCE and bets, by region."""
    shutil.copytree(HERE / "ledger_format_1", tmp_path / "ledger")
    return tmp_path / "ledger"


def _source(rows):
    with np.load(HERE / "ledger_format_1_rows.npz") as found:
        p, y, x = (found[name][rows] for name in ("p", "y", "x"))
    return cs.from_arrays(
        probabilities=p, labels=y, binary=True, covariates=x[:, None].astype(float),
        covariate_names=("region",),
    )  # fmt: skip


def test_open__of_an_old_format_says_how_to_upgrade(old):
    with pytest.raises(cs.StoreError, match=r"format 1 by an older .* calibscale ledger upgrade"):
        Ledger.open(old)


def test_upgrade__keeps_every_number(old):
    assert upgrade(old) == 1
    ledger = Ledger.open(old)
    assert ledger.check() == []
    asked = (cs.ECE(bins=4, notion="positive"), cs.CKCE(cs.RandomFourier(3, 0.4), ridge=0.1))
    whole = cs.evaluate(_source(slice(None)), asked, group_by="region")
    for group in (None, 0.0, 1.0):
        estimates = whole.estimates if group is None else whole.groups[group]
        found = window(ledger, *DAYS, "v1", group)
        for a, b in zip(found.estimates, estimates, strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-12)
            assert a.n == b.n
    assert ledger.select()[0].info["source"] == "test"
    found = evidence(ledger, "v1", DAYS[0])
    assert found.days == list(DAYS)
    assert [p.group for p in found.processes] == [0.0, 1.0]
    bets = Wagers("positive")
    (first, *_) = [e for e in ledger.select(group=1.0) if e.day == DAYS[0]]
    (state,) = ledger.recipe.unpack("wagers", ledger.read(first, "wagers"))
    expected = scan(_source(slice(1, 40, 2)), (bets,)).groups[None][bets]
    np.testing.assert_allclose(state.logs, expected.logs, rtol=1e-12)
    np.testing.assert_array_equal(state.sums, 0.0)  # format 1 taught nothing


def test_upgrade__of_todays_format_changes_nothing(old):
    upgrade(old)
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    assert upgrade(old) == FORMAT
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


def test_upgrade__of_damage_leaves_the_old_ledger(old):
    file = old / "states" / "c" / "2" / "0"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(bytes(stored))
    with pytest.raises(cs.StoreError):
        upgrade(old)
    assert json.loads((old / "zarr.json").read_text())["attributes"][KEY]["format"] == 1
    assert [p.name for p in old.parent.iterdir()] == ["ledger"]


def test_command__upgrades(old):
    done = CliRunner().invoke(cli, ["ledger", "upgrade", str(old)])
    assert done.exit_code == 0
    assert "from format 1" in done.stdout
    assert "already" in CliRunner().invoke(cli, ["ledger", "upgrade", str(old)]).stdout
