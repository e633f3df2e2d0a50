"""Rankings of models on different, invalid or unlabelled rows, and of random subsets."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from calibscale import CKCE, ECE, JKCE, KCE, RandomFourier, SimplexECE, evaluate, from_arrays
from calibscale.compiled import random_draws
from calibscale.errors import InvalidDataError
from calibscale.intervals.resampling import Grouped
from calibscale.ranking.rank import rank
from calibscale.ranking.subset_rankings import SubsetPlan, agreement
from calibscale.statistics.score_sums import Totals
from tests.support.models import N, jackknife_error, simulated_models, sources_of


@pytest.mark.long
def test_rank__models_with_different_labels_are_not_paired(data, rng):
    models, y = data
    swapped = y.copy()
    swapped[5] = (y[5] + 1) % 3
    sources = sources_of(models, y)
    sources["bold"] = from_arrays(logits=models["bold"], labels=swapped)
    ranking = rank(sources, ECE())
    assert not ranking.paired
    assert len(ranking.notes) == (2 if ranking.names[0] == "bold" else 1)
    assert "labels or weights differ" in ranking.notes[0]
    groups = Grouped(Totals(), 20, 0).of(np.arange(N))

    def error(name):
        labels = swapped if name == "bold" else y
        values = []
        for g in range(20):
            keep = groups != g
            part = from_arrays(logits=models[name][keep], labels=labels[keep])
            values.append(evaluate(part, ECE())["ece"].value)
        return jackknife_error(np.array(values))

    for d in ranking.differences:
        assert d.paired == ("bold" not in (d.better, d.worse))
        if not d.paired:
            expected = np.hypot(error(d.better), error(d.worse))
            assert d.interval.standard_error == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(ranking.probabilities.sum(1), 1)


@pytest.mark.long
def test_rank__rows_dropped_in_one_model_leave_the_other_unpaired(data):
    models, y = data
    bad = models["bold"].copy()
    bad[10:14] = np.nan
    sources = {**sources_of(models, y), "bold": from_arrays(logits=bad, labels=y)}
    with pytest.raises(InvalidDataError, match="row 10"):
        rank(sources)
    ranking = rank(sources, on_invalid="drop")
    assert not ranking.paired
    assert ranking["bold"].dropped == {"logits is missing": 4}
    assert (ranking["bold"].n, ranking["true"].n) == (N - 4, N)
    assert any("596 and 600" in n or "600 and 596" in n for n in ranking.notes)
    # λ of the model with the fewest rows
    assert ranking.common["ridge"] == pytest.approx((N - 4) ** -0.25, rel=1e-12)
    gaps_in_both = {
        name: from_arrays(logits=np.where(np.isnan(bad), np.nan, z), labels=y)
        for name, z in models.items()
    }
    assert rank(gaps_in_both, on_invalid="drop").paired


@pytest.mark.long
def test_rank__leaves_out_unlabelled_rows(data):
    models, y = data
    y = y.copy()
    y[::5] = -1
    ranking = rank(sources_of(models, y), ECE())
    assert ranking.paired
    for model in ranking.models:
        assert (model.n, model.n_unlabelled) == (480, 120)
        source = from_arrays(logits=models[model.name], labels=y)
        assert model.value == pytest.approx(evaluate(source, [ECE()]).estimates[0].value)
    fewer = y.copy()
    fewer[1] = -1
    sources = {**sources_of(models, y), "bold": from_arrays(logits=models["bold"], labels=fewer)}
    assert not rank(sources, ECE()).paired


@pytest.mark.long
@pytest.mark.parametrize("estimator", [CKCE(), JKCE(), ECE(), KCE(method="tiles")])
def test_rank__models_without_labels_have_no_rank(data, estimator):
    models, y = data
    nothing = np.full(N, -1)
    sources = {**sources_of(models, y), "new": from_arrays(logits=models["bold"], labels=nothing)}
    ranking = rank(sources, estimator)
    new = ranking.models[-1]
    assert (new.name, new.rank, new.value, new.probabilities) == ("new", None, None, ())
    assert new.accuracy is None
    assert any("new has no rank" in note and "label" in note for note in ranking.notes)
    assert ranking.probabilities.shape == (3, 3)
    empty = rank(sources_of(models, nothing), estimator)
    assert [model.rank for model in empty.models] == [None] * 3
    assert empty.p_order is None
    json.dumps([ranking.to_dict(), empty.to_dict()], allow_nan=False)


def test_rank__one_row_is_too_few_for_intervals():
    ranking = rank({"one": from_arrays(logits=np.eye(2)[:1], labels=[0])}, ECE())
    assert ranking.notes == ("intervals and probabilities of ranks need more rows",)


@pytest.mark.long
def test_rank__subsets_are_chosen_by_a_hash_of_the_row(data):
    models, y = data
    estimator = CKCE(RandomFourier(5, 0.8))
    ranking = rank(sources_of(models, y), estimator, subset_size=[100, 250], trials=9, seed=4)
    single = rank(sources_of(models, y), estimator, subset_size=np.int64(250), trials=9, seed=4)
    np.testing.assert_array_equal(single.agreement[0].values, ranking.agreement[1].values)
    for part in ranking.agreement:
        values = np.empty((9, 3))
        disjoint = N // part.size
        for trial in range(9):
            ((_, _, key),) = SubsetPlan(part.size, part.size / N, trial + 1, 1, 4).passes[trial]
            u = np.empty(N)
            random_draws.uniform_at(np.uint64(key), np.uint64(random_draws.SUBSET), np.arange(N), u)
            keep = np.floor(u * N / part.size) == trial % disjoint
            # five standard deviations of a number of rows chosen at random
            assert abs(keep.sum() - part.size) < 5 * np.sqrt(part.size)
            alone = replace(estimator, ridge=part.size**-0.25)
            for m, name in enumerate(part.names):
                source = from_arrays(logits=models[name][keep], labels=y[keep])
                values[trial, m] = evaluate(source, [alone]).estimates[0].value
        np.testing.assert_allclose(part.values, values, rtol=1e-8)
        full = [ranking[name].value for name in part.names]
        taus = [kendalltau(full, row).statistic for row in values]
        assert part.tau == pytest.approx(np.mean(taus))
        in_order = (np.argsort(values, axis=1) == np.arange(3)).all(axis=1)
        assert part.same == in_order.sum() / 9
        assert part.same_best == np.mean(values.argmin(1) == 0)


def test_plan__uses_all_disjoint_subsets_of_a_draw_first():
    plan = SubsetPlan(100, 0.1, 25, 8, 0)
    flat = [draw for draws in plan.passes for draw in draws]
    assert [sum(count for _, count, _ in draws) for draws in plan.passes] == [8, 8, 8, 1]
    keys = list(dict.fromkeys(key for _, _, key in flat))
    subsets = {key: [] for key in keys}
    for first, count, key in flat:
        subsets[key] += range(first, first + count)
    assert [subsets[key] for key in keys] == [[*range(10)], [*range(10)], [*range(5)]]


@pytest.mark.long
@pytest.mark.parametrize("estimator", [ECE(), SimplexECE(), JKCE(RandomFourier(10))])
def test_rank__subsets_do_not_depend_on_passes(data, monkeypatch, estimator):
    models, y = data
    settings = dict(subset_size=100, trials=20)
    single_pass = rank(sources_of(models, y), estimator, **settings).agreement[0]
    monkeypatch.setattr("calibscale.ranking.subset_rankings._STATE_BYTES", 1)
    several_passes = rank(sources_of(models, y), estimator, **settings).agreement[0]
    np.testing.assert_allclose(several_passes.values, single_pass.values, rtol=1e-9, atol=1e-15)


def test_agreement__counts_subsets_without_a_value():
    values = np.array([[1.0, 2.0], [2.0, 1.0], [np.nan, 1.0], [1.0, 3.0]])
    counts = agreement(5, ["a", "b"], values, [0.1, 0.2])
    assert (counts.trials, counts.undefined) == (4, 1)
    assert counts.same == counts.same_best == pytest.approx(2 / 3)
    assert counts.tau == pytest.approx(1 / 3)
    assert counts.to_dict()["values"]["a"]["mean"] == pytest.approx(4 / 3)
    undefined = agreement(5, ["a", "b"], values[2:3], [0.1, 0.2])
    assert (undefined.same, undefined.tau, undefined.to_dict()["values"]) == (None, None, {})


@pytest.mark.long
def test_rank__agreement_grows_with_the_subsets():
    sources = simulated_models(["true", "over"], 4000, over=1.5)
    small, large = rank(sources, subset_size=[40, 1000], trials=40).agreement
    assert small.same < large.same
    assert large.same > 0.9
