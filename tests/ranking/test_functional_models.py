"""Rankings of functionals: their kernel error by default, and the mean of their score."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibscale as cs


@pytest.fixture
def outcomes(rng):
    """Predicted means (n,) and outcomes (n,) around them."""
    mean = rng.normal(size=800)
    return mean, mean + rng.normal(size=800)


def test_rank__intervals_have_an_order_and_a_mean_score(outcomes):
    mean, y = outcomes
    half_widths = {"short": 1.0, "right": 1.645, "long": 2.6}
    models = {
        name: cs.from_arrays(
            predictions=np.column_stack([mean - half, mean + half]),
            forecast="interval(coverage=0.9)",
            labels=y,
        )
        for name, half in half_widths.items()
    }
    ranking = cs.rank(models)
    assert ranking.estimator == "kce"
    assert ranking.names[0] == "right"
    for model in ranking.models:
        half = half_widths[model.name]
        # Width, and 2/α times the distance of an outcome outside [Gneiting and Raftery 2007, §6.2].
        outside = np.maximum(np.abs(y - mean) - half, 0.0)
        expected = 2 * half + 2 / 0.1 * outside.mean()
        assert model.scores == pytest.approx({"interval_score": expected}, rel=1e-12)
        assert (model.accuracy, model.brier, model.nll, model.crps) == (None,) * 4
    restored = cs.Ranking.from_dict(json.loads(json.dumps(ranking.to_dict())))
    assert restored.models[0].scores == ranking.models[0].scores


def test_rank__intervals_with_an_open_side_have_no_infinite_score(outcomes):
    mean, y = outcomes
    models = [
        cs.from_arrays(intervals=(None, mean + z), coverage=0.9, labels=y) for z in (1.28, 2.0)
    ]
    ranking = cs.rank(models)
    assert ranking.models[0].scores is None
    assert ranking.models[0].rank == 1


def test_rank__different_functionals_are_refused(outcomes):
    mean, y = outcomes
    models = {
        kind: cs.from_arrays(predictions=mean, forecast=kind, labels=y)
        for kind in ("mean", "median")
    }
    with pytest.raises(
        cs.OptionError, match=r"different predictions .*\(mean: mean, median: median"
    ):
        cs.rank(models)


def test_command__ranks_quantiles_by_their_kernel_error(outcomes, run, tmp_path):
    mean, y = outcomes
    for name, shift in (("right", 0.0), ("shifted", 0.7)):
        store = cs.LogitStore.create(tmp_path / f"{name}.zarr", forecast="median", columns=1)
        with store.writer() as writer:
            writer.append(mean[:, None] + shift, y)
    ran = run("rank", tmp_path / "right.zarr", tmp_path / "shifted.zarr")
    assert "Ranking by kce" in ran.out
    assert "right" in ran.out.splitlines()[1]


def test_rank__means_list_their_squared_error(outcomes):
    mean, y = outcomes
    models = {
        name: cs.from_arrays(predictions=mean + shift, forecast="mean", labels=y)
        for name, shift in (("shifted", 0.5), ("right", 0.0))
    }
    ranking = cs.rank(models)
    assert ranking.names == ("right", "shifted")
    squared_error = ranking.models[1].scores["squared_error"]
    assert squared_error == pytest.approx(np.mean((mean + 0.5 - y) ** 2), rel=1e-12)
    assert "squared_error" in str(ranking)


def test_rank__sets_of_classes_have_no_score(rng):
    sizes = rng.integers(0, 9, 500)
    models = {
        name: cs.from_arrays(
            predictions=sizes,
            forecast="set(coverage=0.9)",
            labels=(rng.random(500) < covered).astype(int),
        )
        for name, covered in (("right", 0.9), ("too often", 0.6))
    }
    ranking = cs.rank(models)
    assert ranking.names == ("right", "too often")
    assert ranking.models[0].scores is None


def test_rank__forecasts_keep_their_crps(outcomes):
    mean, y = outcomes
    models = [
        cs.from_arrays(predictions=(mean, np.full(800, scale)), forecast="normal", labels=y)
        for scale in (1.0, 2.0)
    ]
    best = cs.rank(models).models[0]
    assert best.crps == pytest.approx(cs.evaluate(models[0], "crps")["crps"].value, rel=1e-12)
    assert best.scores is None
