"""Noise floors: the estimates that a calibrated model would have with the same predictions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import rel_entr
from scipy.stats import binom

import calibscale as cs
from calibscale.output.plots import plot_reliability
from tests.support import naive

EDGES = np.linspace(0, 1, 16)
DRAWS = 4000
LAWS = {
    "uniform": lambda rng, n: rng.random(n),
    "rare": lambda rng, n: rng.beta(0.05, 5.0, n),
    "sharp": lambda rng, n: rng.beta(0.3, 0.3, n),
    "atoms": lambda rng, n: rng.choice([0.1, 0.5, 0.95], n),
}


def _gaps(p: np.ndarray, events: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
    """Shares and mean predictions of the bins that have rows, and gaps of each draw of events."""
    members = [rows for rows in naive.bin_rows(p, EDGES) if len(rows)]
    weight = np.array([w[rows].sum() for rows in members])
    conf = np.array([w[rows] @ p[rows] for rows in members]) / weight
    hits = np.stack([events[:, rows] @ w[rows] for rows in members], axis=1) / weight
    return weight / w.sum(), conf, conf - hits


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("n", "weighted"), [(100, False), (2000, False), (2000, True)])
def test_floor__is_the_mean_and_quantile_over_drawn_labels(law, n, weighted):
    rng = np.random.default_rng(7)
    p = LAWS[law](rng, n)
    w = rng.uniform(0.5, 1.5, n) if weighted else np.ones(n)
    events = (rng.random((DRAWS, n)) < p).astype(float)
    share, conf, gaps = _gaps(p, events, w)
    acc = np.clip(conf - gaps, 0.0, 1.0)
    divergence = rel_entr(acc, conf) + rel_entr(1 - acc, 1 - conf)
    expected = {
        "ece": np.abs(gaps) @ share,
        "mce": np.abs(gaps).max(axis=1),
        "tce2": gaps**2 @ share,
        "brier_decomposition": gaps**2 @ share,
        "nll_decomposition": divergence @ share,
    }
    source = cs.from_arrays(
        probabilities=p, labels=events[0].astype(int), weights=w if weighted else None, binary=True
    )
    result = cs.evaluate(source, list(expected))
    for name, values in expected.items():
        floor = result[name].floor
        # four standard errors of both sets of draws; bins of unequal predictions, whose counts are
        # not binomial, add up to 2 % to the mean and 1 % of the draws to the quantile
        error = 4 * np.sqrt(2 / DRAWS)
        assert floor.mean == pytest.approx(values.mean(), rel=0.02, abs=error * values.std())
        share_error = 0.01 + error * np.sqrt(0.95 * 0.05)  # values of few rows are discrete
        assert (values < floor.high * (1 - 1e-9)).mean() <= 0.95 + share_error
        assert (values <= floor.high * (1 + 1e-9)).mean() >= 0.95 - share_error


def test_floor__belongs_to_biased_estimates():
    rng = np.random.default_rng(3)
    p = rng.random(300)
    source = cs.from_arrays(probabilities=p, labels=(rng.random(300) < p).astype(int), binary=True)
    names = ["ece", "tce2_debiased", "brier", "cwce2"]
    result = cs.evaluate(source, [*names, "ece(edges='equal-mass')"], group_by=None)
    assert [result[name].floor is None for name in names] == [False, True, True, False]
    assert result["ece(edges='equal-mass')"].floor.mean > 0
    assert cs.evaluate(source, ["ece"], floor=False)["ece"].floor is None
    jackknife = cs.evaluate(source, ["brier_decomposition"], interval="jackknife")
    assert jackknife["brier_decomposition"].floor is not None


@pytest.mark.long
@pytest.mark.parametrize(
    ("classes", "alpha", "n", "weighted"),
    [
        (10, 0.1, 100, True),
        (3, 1.0, 1000, False),
        pytest.param(5, 0.03, 100, True, marks=pytest.mark.slow),
    ],
)
def test_floor__of_vectors_is_the_mean_and_quantile_over_drawn_labels(classes, alpha, n, weighted):
    rng = np.random.default_rng(11)
    q = rng.dirichlet([alpha] * classes, n)
    w = rng.uniform(0.5, 1.5, n) if weighted else np.ones(n)
    names = ["ckce(bandwidth=0.4)", "cmmd(bandwidth=0.4)", "jkce_biased(bandwidth=0.4)", "cwce2"]
    names.append("simplex_ece")

    def drawn() -> list[cs.Estimate]:
        labels = np.minimum((q.cumsum(1) < rng.random((n, 1))).sum(1), classes - 1)
        source = cs.from_arrays(probabilities=q, labels=labels, weights=w)
        return [*cs.evaluate(source, names, interval=None, floor=False)]

    draws = 100
    values = np.array([[estimate.value for estimate in drawn()] for _ in range(draws)])
    source = cs.from_arrays(probabilities=q, labels=np.zeros(n, int), weights=w)
    for estimate, sample in zip(cs.evaluate(source, names, interval=None), values.T, strict=True):
        floor, error = estimate.floor, 4 * sample.std() / np.sqrt(draws)
        assert floor.mean == pytest.approx(sample.mean(), abs=error + 0.02 * sample.mean())
        # 1 % for the approximation; each limit is exceeded once in 100,000 times
        above = np.sum(sample >= floor.high)
        assert binom.isf(1 - 1e-5, draws, 0.04) <= above <= binom.isf(1e-5, draws, 0.06)
        assert floor.p_value < 0.05  # the label 0 is wrong for most rows


def test_floor__of_vectors_is_finite_for_nearly_certain_predictions():
    rng = np.random.default_rng(2)
    small = 10.0 ** -rng.uniform(14, 18, (300, 2))  # variances that rounding may make 0
    q = np.column_stack([1.0 - small.sum(axis=1), small])
    source = cs.from_arrays(probabilities=q, labels=np.ones(300, int))
    names = ["ckce(bandwidth=0.4)", "cmmd(bandwidth=0.4)", "jkce_biased(bandwidth=0.4)", "cwce2"]
    for estimate in cs.evaluate(source, [*names, "simplex_ece"], interval=None):
        floor = estimate.floor
        assert floor is None or np.isfinite([floor.mean, floor.high, floor.p_value]).all()
        assert floor is None or floor.p_value > 0


def _drawn(seed: int, n: int) -> cs.ArraySource:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet([0.5] * 3, n)
    labels = np.minimum((q.cumsum(1) < rng.random((n, 1))).sum(1), 2)
    return cs.from_arrays(
        probabilities=q, labels=labels, covariates=rng.integers(0, 2, (n, 1)), covariate_names=["a"]
    )


@pytest.mark.long
def test_floor__of_diagrams_is_that_of_their_ece():
    source = _drawn(0, 400)
    by_group = cs.reliability(source, bins=10, group_by="a")
    expected = cs.evaluate(source, "ece(bins=10)", group_by="a")
    assert by_group.overall.floor == expected["ece"].floor
    floors = [curve.floor for curve in by_group.groups.values()]
    assert floors == [estimates[0].floor for estimates in expected.groups.values()]
    assert expected.reliability.curve.floor == expected["ece"].floor
    classes = cs.reliability(source, notion="class_wise")
    values = source.values[:, 2]
    positive = cs.from_arrays(probabilities=values, labels=source.labels == 2, binary=True)
    of_class = cs.evaluate(positive, "ece")["ece"]
    assert classes.groups[2].ece == pytest.approx(of_class.value)
    assert classes.groups[2].floor.high == pytest.approx(of_class.floor.high, rel=1e-9)
    assert classes.to_dict()["groups"]["values"][2]["floor"] == classes.groups[2].floor.to_dict()
    high = f"{by_group.overall.floor.high:.4f}"
    assert high in cs.as_text(by_group)
    axes = plot_reliability(by_group)
    title = axes.get_title(loc="left").replace("\u00a0", " ")
    assert f"95 % {high}" in title


@pytest.mark.long
@pytest.mark.parametrize("text", ["ece", "ckce(bandwidth=0.4)", "simplex_ece", "cwce2"])
def test_floor__of_ranked_models_is_that_of_their_evaluations(text):
    models = {"first": _drawn(0, 300), "second": _drawn(1, 300)}
    ranking = cs.rank(models, by=text)
    for name, source in models.items():
        floor, expected = ranking[name].estimate.floor, cs.evaluate(source, text).estimates[0].floor
        assert floor.mean == pytest.approx(expected.mean, rel=1e-9)
        assert floor.high == pytest.approx(expected.high, rel=1e-6)
    assert "noise: mean … 95 % quantile" in cs.as_text(ranking)
    assert cs.rank(models, by="ckce_centred")["first"].estimate.floor is None


@pytest.mark.long
def test_floor__of_an_accumulator_is_that_of_its_rows():
    source = _drawn(2, 500)
    names = ["ece", "ckce(bandwidth=0.4)", "simplex_ece", "cwce2", "corp", "smooth_ece"]
    parts = [cs.Accumulator(names, classes=3, first_row=at) for at in (0, 300)]
    for at, part in zip((0, 300), parts, strict=True):
        rows = slice(at, 300 if at == 0 else 500)
        part.update(probabilities=source.values[rows], labels=source.labels[rows])
    result = parts[0].merge(parts[1]).compute()
    for estimate, expected in zip(result, cs.evaluate(source, names), strict=True):
        assert estimate.floor.mean == pytest.approx(expected.floor.mean, rel=1e-6)
        assert estimate.floor.high == pytest.approx(expected.floor.high, rel=1e-6)
