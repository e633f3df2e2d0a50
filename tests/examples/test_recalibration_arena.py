"""The arena of recalibration methods: its laws, and equal methods of two packages."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "recalibration_arena.py"


@pytest.fixture(scope="module")
def arena():
    spec = importlib.util.spec_from_file_location("recalibration_arena", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["recalibration_arena"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["recalibration_arena"]


def test_labels__have_the_stated_probabilities(arena):
    """Mean score of the labels against the truth of each law, in standard errors."""
    for name in arena.LAWS:
        z, y, _, _ = arena._data(name, 20_000, 0)
        rng = np.random.default_rng((list(arena.LAWS).index(name), 20_000, 0))
        again, log_p = arena.LAWS[name].drawn(rng, 20_000)
        np.testing.assert_array_equal(z, again)
        p = np.exp(log_p)
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        # Σ_k k·(1{y = k} − p_k), whose mean is 0 and whose variance is that of the class number.
        numbers = np.arange(p.shape[1])
        mean = p @ numbers
        variance = p @ numbers**2 - mean**2
        error = np.sqrt(variance.sum()) / len(y)
        assert abs((y - mean).mean()) < 4.5 * error, name


def test_judgement__is_the_divergence_from_the_truth(arena):
    truth = np.log([[0.5, 0.5], [0.9, 0.1]])
    p = np.array([[0.25, 0.75], [0.9, 0.1]])
    loss, error = arena._judged(p, truth)
    assert loss == pytest.approx(0.25 * np.log(2.0) + 0.25 * np.log(2.0 / 3.0))
    assert error == pytest.approx(np.sqrt(2 * 0.25**2 / 2))
    # Rows with the same prediction have the error of their mean, which is 0.
    truth = np.log([[0.25, 0.75], [0.75, 0.25]])
    loss, error = arena._judged(np.full((2, 2), 0.5), truth)
    assert loss == pytest.approx(np.log(2.0) + 0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert error == pytest.approx(0.0, abs=1e-15)
    loss, error = arena._judged(p, np.array([1, 0]))
    assert loss == pytest.approx(-(np.log(0.75) + np.log(0.9)) / 2)
    assert error is None


@pytest.mark.long
def test_script__prints_a_table_of_equal_methods(tmp_path):
    pytest.importorskip("sklearn.frozen", reason="scikit-learn 1.6 has frozen estimators")
    methods = ("calibscale platt", "scikit-learn sigmoid")
    options = {
        "--laws": "shifted",
        "--sizes": "2000",
        "--seeds": "2",
        "--methods": ",".join(methods),
        "--json": str(tmp_path / "results.jsonl"),
    }
    command = [sys.executable, str(SCRIPT), *(text for pair in options.items() for text in pair)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {line.split("|")[1].strip() for line in ran.stdout.splitlines() if line.startswith("|")}
    assert set(methods) <= rows
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    losses = {(r["method"], r["seed"]): r["loss"] for r in map(json.loads, lines)}
    for seed in range(2):
        # scikit-learn's targets are not 0 and 1 but Platt's, of 1/(rows + 2).
        ours, theirs = (losses[method, seed] for method in methods)
        assert ours == pytest.approx(theirs, abs=1e-3)
    # The map of the truth is in both families: two parameters cost about 1/rows.
    assert all(loss < 0.005 for loss in losses.values())
