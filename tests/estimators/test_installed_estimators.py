"""Estimators of other packages, and settings of every type, by name in Python and in commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale import registry
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.estimators.settings import build, settings_of
from tests.support.commands import finish, start

MODULE = '''
from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import ClassVar, Literal, Optional

from calibscale import Estimate
from calibscale.estimators.base import SimpleEstimator
from calibscale.statistics.score_sums import Totals

Side = Literal["high", "low"]


@dataclass(frozen=True)
class RowShare(SimpleEstimator):
    """Share of rows, which shows its settings."""

    squared: bool = False
    side: Side = "high"
    power: Literal[1, 2] | None = None
    limit: Optional[float] = None
    weighting: typing.Literal["none", "rows"] = "none"
    table: dict[str, int] | None = None
    name: ClassVar[str] = "row_share"
    notion: ClassVar[str] = "top_label"
    by_default: ClassVar[bool] = True

    @property
    def needs(self):
        return (Totals(),)

    def finalize(self, state):
        settings = {"squared": self.squared, "side": self.side, "power": self.power}
        return Estimate(self.name, self.notion, 1.0, parameters=settings, n=int(state.n))


class NoEstimator:
    name = "no_estimator"
'''
ENTRY_POINTS = """
[calibscale.estimators]
row_share = own_measures:RowShare
no_estimator = own_measures:NoEstimator
lost = own_measures:Lost
renamed = own_measures:RowShare
ece = own_measures:RowShare
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """Folder with an installed package that has estimators."""
    folder = tmp_path_factory.mktemp("site-packages")
    (folder / "own_measures.py").write_text(MODULE)
    metadata = folder / "own_measures-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-measures\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture
def importable(packages, monkeypatch):
    """The package can be imported in this process."""
    monkeypatch.syspath_prepend(str(packages))
    registry.forget_installed()
    yield
    registry.forget_installed()


@pytest.fixture
def source() -> cs.ArraySource:
    return cs.from_arrays(probabilities=[0.2, 0.9, 0.4, 0.7], labels=[0, 1, 1, 1], binary=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row_share", (False, "high", None)),
        ("Row-Share(squared=true)", (True, "high", None)),
        ("row_share(squared=False, side=low)", (False, "low", None)),
        ("row_share(side='low', power=2)", (False, "low", 2)),
        ("row_share(power=None, limit=None)", (False, "high", None)),
    ],
)
def test_settings__are_read_from_texts(importable, source, text, expected):
    (estimate,) = cs.evaluate(source, [text]).estimates
    assert tuple(estimate.parameters[key] for key in ("squared", "side", "power")) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"squared": 1}, "row_share: squared must be true or false, not 1"),
        ({"squared": "yes"}, "row_share: squared must be true or false, not 'yes'"),
        ({"side": "left"}, "row_share: side must be one of 'high', 'low', not 'left'"),
        ({"power": True}, "row_share: power must be one of 1, 2, not True"),
        ({"weighting": None}, "row_share: weighting must be one of 'none', 'rows', not None"),
        ({"table": {"a": 1}}, "table has the type dict.str, int., which cannot be given as text"),
        ({"sides": "low"}, "row_share has no setting 'sides'; did you mean 'side'"),
    ],
)
def test_settings__of_wrong_types_are_refused(importable, settings, message):
    with pytest.raises(cs.OptionError, match=message):
        build("row_share", settings)


def test_settings__have_one_form_of_each_type(importable):
    types = {name: setting.annotation for name, setting in settings_of("row_share").items()}
    assert types == {
        "squared": "bool",
        "side": "Literal['high', 'low']",
        "power": "Literal[1, 2] | None",
        "limit": "float | None",
        "weighting": "Literal['none', 'rows']",
        "table": "dict[str, int] | None",
    }


def test_names_of_calibscale__come_first(importable):
    assert ESTIMATORS["ece"] is cs.ECE
    assert build("ece", {}) == cs.ECE()


def test_installed_estimators__are_not_computed_by_default(importable, source):
    assert "row_share" not in [e.estimator for e in cs.evaluate(source).estimates]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lost", "the estimator lost of own-measures 1.5 cannot be imported: .*Lost"),
        ("no_estimator", "own-measures 1.5 is not a dataclass derived from calibscale.Estimator"),
        ("renamed", "renamed of own-measures 1.5 has the name 'row_share' in its class"),
    ],
)
def test_faulty_entry_points__are_named(importable, name, message):
    with pytest.raises(cs.OptionError, match=message):
        build(name, {})


@pytest.mark.process
@pytest.mark.long
def test_commands__know_installed_estimators(packages, tmp_path):
    rows = tmp_path / "rows.npz"
    np.savez(rows, probabilities=[[0.2, 0.8], [0.6, 0.4]], labels=[1, 0])
    paths = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    text = "row_share(squared=true, side=low)"
    ran = finish(start("evaluate", rows, "-e", f"ece,{text}", "--json", "-", env=environment))
    assert ran.code == 0, ran.err
    by_name = {e["estimator"]: e for e in json.loads(ran.out)["results"]}
    assert by_name["row_share"]["parameters"] == {"squared": True, "side": "low", "power": None}
    described = finish(start("estimators", "row_share", env=environment))
    assert "Share of rows, which shows its settings." in described.out
    assert "row_share(squared=False, side='high'" in described.out
    assert "from the package own-measures 1.5" in finish(start("estimators", env=environment)).out
    options = ("-e", text, "--interval", "jackknife")
    assert "row_share" in finish(start("evaluate", rows, *options, env=environment)).out
