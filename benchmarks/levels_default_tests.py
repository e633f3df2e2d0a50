"""Level and power of the default calibration test, beside its members and Hosmer–Lemeshow.

Laws and alternatives are in this module. Laws of the command line are not used.  For each
alternative the power of every member is printed, and of the best one of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from scipy.special import expit, logit, ndtri, softmax
from scipy.stats import binom, chi2, skewnorm
from simulated import SEED, shared

import calibscale as cs

ALPHA = 0.05
EARLIER = "earlier default"  # the kernel error alone
REPLICATES = 199
Draw = Callable[[np.random.Generator], cs.ArraySource]


def _binary(p: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> cs.ArraySource:
    labels = (rng.random(len(p)) < truth).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def _classes(q: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> cs.ArraySource:
    labels = (truth.cumsum(axis=1) < rng.random((len(q), 1)) * truth.sum(axis=1)[:, None]).sum(
        axis=1
    )
    return cs.from_arrays(probabilities=q, labels=np.minimum(labels, q.shape[1] - 1))


def _normal(mean: np.ndarray, scale: np.ndarray, y: np.ndarray) -> cs.ArraySource:
    return cs.from_arrays(predictions=np.column_stack([mean, scale]), forecast="normal", labels=y)


# ---------------------------------------------------------------- calibrated laws


def _calibrated_classes(rows: int, classes: int) -> Draw:
    def draw(rng: np.random.Generator) -> cs.ArraySource:
        q = softmax(2.0 * rng.normal(size=(rows, classes)), axis=1)
        return _classes(q, q, rng)

    return draw


def _calibrated_binary(rows: int, scores: Callable[[np.random.Generator, int], np.ndarray]) -> Draw:
    def draw(rng: np.random.Generator) -> cs.ArraySource:
        p = scores(rng, rows)
        return _binary(p, p, rng)

    return draw


def _certain(rng: np.random.Generator, rows: int) -> np.ndarray:
    p = rng.beta(2.0, 2.0, rows)
    p[: rows // 3], p[rows // 3 : rows // 2] = 0.0, 1.0
    return p


def _weighted(rng: np.random.Generator) -> cs.ArraySource:
    p = rng.beta(2.0, 2.0, 500)
    labels = (rng.random(500) < p).astype(int)
    weights = rng.exponential(size=500)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True, weights=weights)


def _normal_law(rng: np.random.Generator) -> cs.ArraySource:
    mean, scale = rng.normal(size=500), np.exp(0.3 * rng.normal(size=500))
    return _normal(mean, scale, mean + scale * rng.normal(size=500))


def _ensemble(rng: np.random.Generator) -> cs.ArraySource:
    centre = rng.normal(size=(300, 1))
    members = centre + rng.normal(size=(300, 20))
    y = (centre + rng.normal(size=(300, 1)))[:, 0]
    return cs.from_arrays(predictions=members, forecast="ensemble", labels=y)


def _drawn_forecasts(kind: str, values: np.ndarray, rng: np.random.Generator) -> cs.ArraySource:
    """Forecasts with outcomes that are drawn from themselves."""
    unknown = np.zeros(len(values))
    source = cs.from_arrays(predictions=values, forecast=kind, labels=unknown)
    outcomes = source.forecast.drawn(values, unknown, rng.random(len(values)))
    return cs.from_arrays(predictions=values, forecast=kind, labels=outcomes)


def _quantiles(rng: np.random.Generator) -> cs.ArraySource:
    levels = np.linspace(0.05, 0.95, 19)
    values = rng.normal(size=(300, 1)) + ndtri(levels)
    return _drawn_forecasts(f"quantiles(levels={levels.tolist()})", values, rng)


def _ordinal(rng: np.random.Generator) -> cs.ArraySource:
    values = softmax(1.5 * rng.normal(size=(300, 5)), axis=1)
    return _drawn_forecasts("ordinal(classes=5)", values, rng)


def _few_members(rng: np.random.Generator) -> cs.ArraySource:
    values = rng.normal(size=(1000, 1)) + rng.normal(size=(1000, 4))
    return cs.from_arrays(predictions=values[:, 1:], forecast="ensemble", labels=values[:, 0])


def _clusters(rng: np.random.Generator) -> cs.ArraySource:
    """Events of 150 clusters of 1 to 9 rows, which all agree given their predictions."""
    sizes = rng.integers(1, 10, 150)
    unit = np.repeat(np.arange(150), sizes)
    p = rng.beta(2.0, 2.0, len(unit))
    labels = (rng.random(150)[unit] < p).astype(int)
    return cs.from_arrays(
        probabilities=p,
        labels=labels,
        binary=True,
        covariates=unit[:, None],
        covariate_names=["unit"],
    )


def _covariate(rows: int, error: float = 0.0) -> Draw:
    """Events with a covariate. Predictions are too low by `error` in its upper tenth."""

    def draw(rng: np.random.Generator) -> cs.ArraySource:
        p, x = rng.beta(2.0, 2.0, rows), rng.random(rows)
        truth = np.clip(p + error * (x > 0.9), 0.0, 1.0)
        labels = (rng.random(rows) < truth).astype(int)
        return cs.from_arrays(
            probabilities=p,
            labels=labels,
            binary=True,
            covariates=x[:, None],
            covariate_names=["x"],
        )

    return draw


def _two_covariates(rng: np.random.Generator) -> cs.ArraySource:
    """Three classes, with a covariate related to the predictions, and one of four values."""
    q = softmax(1.5 * rng.normal(size=(200, 3)), axis=1)
    labels = (q.cumsum(axis=1) < rng.random((200, 1))).sum(axis=1)
    x = np.column_stack([q[:, 0] + 0.3 * rng.normal(size=200), rng.integers(0, 4, 200)])
    return cs.from_arrays(
        probabilities=q, labels=labels, covariates=x, covariate_names=["x", "group"]
    )


CALIBRATED: dict[str, Draw] = {
    "binary, 50": _calibrated_binary(50, lambda rng, n: rng.beta(2.0, 2.0, n)),
    "binary, 500": _calibrated_binary(500, lambda rng, n: rng.beta(2.0, 2.0, n)),
    "binary, 5,000": _calibrated_binary(5000, lambda rng, n: rng.uniform(0.0, 1.0, n)),
    "three classes, 500": _calibrated_classes(500, 3),
    "ten classes, 500": _calibrated_classes(500, 10),
    "100 classes, 500": _calibrated_classes(500, 100),
    "rare, 2,000": _calibrated_binary(2000, lambda rng, n: rng.beta(0.5, 60.0, n)),
    "atoms, 500": _calibrated_binary(500, lambda rng, n: rng.choice([0.1, 0.35, 0.8], n)),
    "certain, 500": _calibrated_binary(500, _certain),
    "weights, 500": _weighted,
    "normal, 500": _normal_law,
    "ensemble of 20, 300": _ensemble,
    "quantiles, 300": _quantiles,
    "ordinal, 300": _ordinal,
    "ensemble of 3, 1,000": _few_members,
    "clusters of 1 to 9, 750": _clusters,
    "covariate, 300": _covariate(300),
    "two covariates of three classes, 200": _two_covariates,
}


# ---------------------------------------------------------------- alternatives


def _wrong(
    rows: int,
    scores: Callable[[np.random.Generator, int], np.ndarray],
    truth: Callable[[np.ndarray], np.ndarray],
) -> Draw:
    def draw(rng: np.random.Generator) -> cs.ArraySource:
        p = scores(rng, rows)
        return _binary(p, np.clip(truth(p), 0.0, 1.0), rng)

    return draw


def _symmetric(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.beta(2.0, 2.0, rows)


def _even(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.uniform(0.02, 0.98, rows)


def _extreme(rng: np.random.Generator, rows: int) -> np.ndarray:
    return expit(2.5 * rng.normal(size=rows))


def _atoms(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.choice([0.1, 0.3, 0.5, 0.7, 0.9], rows)


def _temperature(rows: int, classes: int, temperature: float) -> Draw:
    def draw(rng: np.random.Generator) -> cs.ArraySource:
        z = 2.0 * rng.normal(size=(rows, classes))
        return _classes(softmax(z, axis=1), softmax(z / temperature, axis=1), rng)

    return draw


def _one_class(rng: np.random.Generator) -> cs.ArraySource:
    z = 2.0 * rng.normal(size=(1000, 5))
    tilted = z.copy()
    tilted[:, 3] -= 0.5
    return _classes(softmax(z, axis=1), softmax(tilted, axis=1), rng)


def _exchanged(rng: np.random.Generator) -> cs.ArraySource:
    q = softmax(1.5 * rng.normal(size=(1000, 4)), axis=1)
    swapped = rng.random(1000) < 0.12
    truth = np.where(swapped[:, None], q[:, [0, 2, 1, 3]], q)
    return _classes(q, truth, rng)


def _skewed(rng: np.random.Generator) -> cs.ArraySource:
    mean, shape = rng.normal(size=300), 4.0
    d = shape / np.sqrt(1.0 + shape**2)
    noise = skewnorm.rvs(shape, size=300, random_state=rng)
    noise = (noise - d * np.sqrt(2.0 / np.pi)) / np.sqrt(1.0 - 2.0 * d * d / np.pi)
    return _normal(mean, np.ones(300), mean + noise)


def _spread_with_mean(rng: np.random.Generator) -> cs.ArraySource:
    mean = rng.normal(size=300)
    scale = np.exp(0.3 * mean)
    return _normal(
        mean, np.full(300, np.sqrt((scale**2).mean())), mean + scale * rng.normal(size=300)
    )


def _too_wide(rng: np.random.Generator) -> cs.ArraySource:
    mean = rng.normal(size=300)
    return _normal(mean, np.ones(300), mean + 0.87 * rng.normal(size=300))


def _too_low(rng: np.random.Generator) -> cs.ArraySource:
    mean = rng.normal(size=300)
    return _normal(mean, np.ones(300), mean + 0.17 + rng.normal(size=300))


def _log_odds(rng: np.random.Generator, rows: int) -> np.ndarray:
    return expit(1.5 * rng.normal(size=rows))


def _forecast_errors(draw_error: Callable[[np.random.Generator], np.ndarray]) -> Draw:
    """300 normal forecasts of variance 1, with outcomes of other errors."""

    def draw(rng: np.random.Generator) -> cs.ArraySource:
        mean = rng.normal(size=300)
        return _normal(mean, np.ones(300), mean + draw_error(rng))

    return draw


def _unequal_errors(rng: np.random.Generator) -> np.ndarray:
    scale = np.exp(0.4 * rng.normal(size=300))
    return scale / np.sqrt((scale**2).mean()) * rng.normal(size=300)


# Alternatives for which the kernel tests alone had a power of 56, 98, 40 and 4 % (events), and of
# 42, 6, 42 and 54 % (forecasts): the joint test is compared with them here.
FORMER: dict[str, Draw] = {
    "temperature 1.5": _wrong(500, _log_odds, lambda p: expit(logit(p) / 1.5)),
    "shift 0.4": _wrong(500, _log_odds, lambda p: expit(logit(p) + 0.4)),
    "wide bump": _wrong(500, _log_odds, lambda p: p + 0.18 * np.exp(-(((p - 0.5) / 0.1) ** 2))),
    "three waves": _wrong(500, _log_odds, lambda p: p + 0.12 * np.sin(6 * np.pi * p)),
    "skewed errors": _skewed,
    "unequal errors": _forecast_errors(_unequal_errors),
    "scale 0.85": _forecast_errors(lambda rng: 0.85 * rng.normal(size=300)),
    "bias 0.15": _forecast_errors(lambda rng: 0.15 + rng.normal(size=300)),
}
WRONG: dict[str, Draw] = {
    "slope": _wrong(500, _symmetric, lambda p: expit(logit(p) / 1.45)),
    "too moderate": _wrong(500, _symmetric, lambda p: expit(logit(p) / 0.7)),
    "shift": _wrong(500, _symmetric, lambda p: expit(logit(p) + 0.28)),
    "shift of rare events": _wrong(2000, lambda r, n: r.beta(1.0, 30.0, n), lambda p: 0.65 * p),
    "bump": _wrong(500, _symmetric, lambda p: p + 0.25 * np.exp(-(((p - 0.5) / 0.07) ** 2))),
    "narrow bump": _wrong(1000, _even, lambda p: p + 0.3 * np.exp(-(((p - 0.3) / 0.03) ** 2))),
    "wave": _wrong(500, _symmetric, lambda p: p + 0.6 * np.sin(6 * np.pi * p) * p * (1 - p)),
    "one bin": _wrong(2000, _even, lambda p: p - 0.2 * ((p > 0.6) & (p < 0.667))),
    "tails": _wrong(1000, _extreme, lambda p: np.clip(p, 0.06, 0.94)),
    "upper tail": _wrong(1000, _extreme, lambda p: np.where(p > 0.93, p - 0.08, p)),
    "power law": _wrong(500, _symmetric, lambda p: p**1.25),
    "step": _wrong(500, _symmetric, lambda p: p - 0.07 * np.sign(p - 0.5)),
    "atoms": _wrong(500, _atoms, lambda p: p + 0.15 * (p == 0.3)),
    "temperature of ten classes": _temperature(500, 10, 1.25),
    "temperature of three classes": _temperature(500, 3, 1.4),
    "one class of five": _one_class,
    "two classes exchanged": _exchanged,
    "skew": _skewed,
    "spread depends on the mean": _spread_with_mean,
    "too wide": _too_wide,
    "too low": _too_low,
    "a tenth of a covariate": _covariate(2000, 0.12),
}
# options of the test of a law
OPTIONS: dict[str, dict[str, Any]] = {
    "clusters of 1 to 9, 750": {"cluster": "unit"},
    "covariate, 300": {"covariates": "x"},
    "two covariates of three classes, 200": {
        "covariates": cs.KLCE(("x", "group"), categorical=("group",))
    },
    "a tenth of a covariate": {"covariates": "x"},
}
PARTS = {"calibrated": CALIBRATED, "wrong": WRONG, "former": FORMER}


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Test `count` calibrated data sets of each law, and a fifth as many of each alternative."""
    for law in CALIBRATED:
        rejected = _rejected(pool, "calibrated", law, count)
        report.row(what="level", law=law, sets=count, **_shares(rejected, count))
        low, high = binom.ppf([0.005, 0.995], count, ALPHA) / count
        name = f"{law}: level"
        report.check(name, 100 * rejected["joint"] / count, 100 * high, "%")
        report.check(name, 100 * rejected["joint"] / count, 100 * low, "%", at_least=True)
    sets = max(1, count // 5)
    losses = []
    for law in WRONG:
        rejected = _rejected(pool, "wrong", law, sets)
        best = max(n for name, n in rejected.items() if name != "joint")
        losses.append((best - rejected["joint"]) / sets)
        report.row(
            what="power", law=law, sets=sets, best=100 * best / sets, **_shares(rejected, sets)
        )
    report.check("mean loss against the best member", 100 * float(np.mean(losses)), 12.0, "points")
    report.check("largest loss against the best member", 100 * max(losses), 25.0, "points")
    gains = []
    for law in FORMER:
        rejected = _rejected(pool, "former", law, sets)
        gains.append((rejected["joint"] - rejected[EARLIER]) / sets)
        report.row(what="gain", law=law, sets=sets, **_shares(rejected, sets))
    gain = 100 * float(np.mean(gains))
    report.check("mean gain over the kernel tests", gain, 30.0, "points", at_least=True)


def _shares(rejected: Counter[str], sets: int) -> dict[str, float]:
    return {name: 100 * number / sets for name, number in rejected.items()}


def _rejected(pool: Executor, part: str, law: str, sets: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in shared(pool, sets, _rejections, part, law):
        total.update(counts)
    return total


def _rejections(part: str, law: str, first: int, last: int) -> Counter[str]:
    """Data sets first … last − 1 that the joint test rejects, and each member."""
    rejected: Counter[str] = Counter(joint=0)
    for number in range(first, last):
        rng = np.random.default_rng([SEED, number, *map(ord, law)])
        source = PARTS[part][law](rng)
        result = cs.calibration_test(
            source,
            n_replicates=REPLICATES,
            seed=number,
            scheduler="serial",
            **OPTIONS.get(law, {}),
        )
        assert result.judgement is not None
        rejected["joint"] += result.judgement.p_value <= ALPHA
        for test in result.results:
            rejected[test.statistic] += test.p_value is not None and test.p_value <= ALPHA
        if source.forecast is None and source.classes == 2:
            rejected["hosmer_lemeshow"] += _hosmer_lemeshow(source) <= ALPHA
        if part != "calibrated":
            name = "jkce" if source.forecast is None else "kce"
            kernel = cs.calibration_test(
                source,
                cs.KLCE(("x",)) if source.covariate_names else name,
                n_replicates=REPLICATES,
                scheduler="serial",
            )
            rejected[EARLIER] += kernel.results[0].p_value <= ALPHA
    return rejected


def _hosmer_lemeshow(source: cs.ArraySource, groups: int = 10) -> float:
    """p-value of Hosmer and Lemeshow's χ² of groups of equal size."""
    block = source.read(0, source.rows)
    p, y = np.asarray(block.values).reshape(len(block.labels), -1)[:, -1], np.asarray(block.labels)
    order, total, used = np.argsort(p, kind="stable"), 0.0, 0
    for rows in np.array_split(order, groups):
        mean = p[rows].mean()
        if 0.0 < mean < 1.0:
            total += (y[rows].sum() - p[rows].sum()) ** 2 / (len(rows) * mean * (1.0 - mean))
            used += 1
    return float(chi2.sf(total, max(used, 1)))
