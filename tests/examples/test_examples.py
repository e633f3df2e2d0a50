"""The examples run, and say what they promise."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import calibscale
from calibscale.predictions.notions import NotionView
from tests.support import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
def test_evaluation_loop__finds_the_overconfident_half(tmp_path):
    command = [sys.executable, EXAMPLES / "evaluation_loop.py", tmp_path / "s.zarr"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    gaps = [float(gap) for gap in re.findall(r"accuracy ([+-][\d.]+)", ran.stdout)]
    # 50,000 rows each: the calibrated half within five standard errors, the other far off
    assert abs(gaps[0]) < 5 * 0.5 / 50_000**0.5
    assert gaps[1] > 0.1


@pytest.mark.slow
def test_ddp_accumulator__prints_the_numbers_of_evaluate():
    pytest.importorskip("torch", reason="several processes of PyTorch")
    command = [sys.executable, EXAMPLES / "ddp_accumulator.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    merged, expected = (line.split()[1:] for line in ran.stdout.splitlines())
    assert merged[:2] == ["20,000", "rows"]
    assert merged == expected
    assert 0.1 < float(merged[3]) < 0.3  # the model is overconfident


@pytest.fixture(scope="module")
def arena():
    spec = importlib.util.spec_from_file_location("arena", EXAMPLES / "estimator_arena.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["arena"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["arena"]


def test_arena__laws_have_the_stated_gaps(arena):
    rng, n = np.random.default_rng(3), 40_000
    for law in arena.LAWS:
        rows = law.rows(rng, n)
        p, y = rows["probabilities"], rows["labels"]
        if law.notion == "class_wise":
            score, event = p[:, 0], y == 0
        else:
            score = p if p.ndim == 1 else p.max(axis=1)
            event = y if p.ndim == 1 else p.argmax(axis=1) == y
        fresh, r = law.gaps(rng, n)
        edges = np.quantile(fresh[:, 0], [0.25, 0.5, 0.75])
        quarters = np.searchsorted(edges, score), np.searchsorted(edges, fresh[:, 0])
        for quarter in np.unique(quarters[1]):
            seen = (score - event)[quarters[0] == quarter]
            stated = r[quarters[1] == quarter, 0]
            error = np.sqrt(seen.var() / len(seen) + stated.var() / len(stated))
            assert abs(seen.mean() - stated.mean()) < 4.5 * error, law.name


def test_arena__excess_is_the_mean_over_pairs(arena):
    """Of kkr and of functions r̂, against all pairs of few predictions."""
    rng = np.random.default_rng(4)
    p = rng.random(300)
    source = calibscale.from_arrays(probabilities=p, labels=rng.random(300) < p**2, binary=True)
    x = rng.random(40)
    r = 0.3 * np.cos(5 * x)
    for name in ("kkr", "isotonic"):
        fit = calibscale.select(source, "positive", [name]).pointwise.fits[0]
        pair = np.column_stack([x, 1 - x])
        view = NotionView(np.arange(40), x[:, None], pair, np.log(pair), r[:, None], np.ones(40))
        ours = fit.residuals(0, view)[0]
        h = ours @ ours.T
        if name == "kkr":
            phi = fit.basis.phi(0, view)
            h = phi @ fit.matrix(0, 0) @ phi.T
            np.testing.assert_allclose(np.diag(h), fit.diagonal([view])[0, 0], rtol=1e-9)
        expected = np.mean((h - np.outer(r, r)) ** 2)
        assert arena.excess(fit, x[:, None], r[:, None]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
def test_arena__prints_a_table_and_draws_a_figure(arena, tmp_path):
    options = ["--size", "300:2", "--law", "ten atoms", "--figure", tmp_path / "arena.png"]
    ran = CliRunner().invoke(arena.main, [str(option) for option in options])
    assert ran.exit_code == 0, ran.output
    (row,) = [line for line in ran.output.splitlines() if line.startswith("| ten atoms")]
    values = [float(cell.strip(" *").split(" ±")[0]) for cell in row.split("|")[2:-1]]
    assert len(values) == len(arena.ESTIMATORS) + 2
    assert values[-2] in values[:-2]
    assert values[-1] == pytest.approx(1e6 * np.mean(arena.ERRORS**2) ** 2, rel=0.03)
    assert (tmp_path / "arena.png").stat().st_size > 10_000


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_examples__use_public_functions_by_their_names(path):
    """A reader finds the names of an example in the documentation."""
    renamed = [
        f"{alias.name} as {alias.asname}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "calibscale"
        for alias in node.names
        if alias.asname is not None
    ]
    assert renamed == []
