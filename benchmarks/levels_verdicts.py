"""Share of verdicts by state on simulated data: calibrated ones, and ones with errors of 5 points.

    python benchmarks/levels_verdicts.py [--sets 1000] [--verb evaluate|check] [--law NAME]

Each law has data sets of its own seeds; the table has the share of data sets that the verdict calls
miscalibrated (including "real but small" and "refuted"), and those of the other states.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np

import calibscale as cs


def binary(rng: np.random.Generator, n: int) -> cs.ArraySource:
    p = rng.beta(2.0, 2.0, n)
    return cs.from_arrays(probabilities=p, labels=(rng.random(n) < p).astype(int), binary=True)


def rare(rng: np.random.Generator, n: int) -> cs.ArraySource:
    p = rng.beta(1.0, 75.0, n)
    return cs.from_arrays(probabilities=p, labels=(rng.random(n) < p).astype(int), binary=True)


def _classes(rng: np.random.Generator, n: int, classes: int) -> cs.ArraySource:
    logits = 1.5 * rng.normal(size=(n, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return cs.from_arrays(logits=logits, labels=labels)


def three_classes(rng: np.random.Generator, n: int) -> cs.ArraySource:
    return _classes(rng, n, 3)


def ten_classes(rng: np.random.Generator, n: int) -> cs.ArraySource:
    return _classes(rng, n, 10)


def normal(rng: np.random.Generator, n: int) -> cs.ArraySource:
    mean, scale = rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))
    outcomes = mean + scale * rng.normal(size=n)
    return cs.from_arrays(predictions=(mean, scale), forecast="normal", labels=outcomes)


def grouped(rng: np.random.Generator, n: int) -> cs.ArraySource:
    p, region = rng.beta(2.0, 2.0, n), rng.integers(0, 5, n)
    return cs.from_arrays(
        probabilities=p, labels=(rng.random(n) < p).astype(int), binary=True,
        covariates=region[:, None], covariate_names=["region"],
    )  # fmt: skip


CALIBRATED: dict[str, Callable[[np.random.Generator, int], cs.ArraySource]] = {
    "binary": binary,
    "rare": rare,
    "three_classes": three_classes,
    "ten_classes": ten_classes,
    "normal": normal,
    "grouped": grouped,
}


def too_high(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Predictions of the event that are 5 points too high."""
    p = rng.uniform(0.05, 0.95, n)
    labels = (rng.random(n) < p - 0.05).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def both_ways(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Predictions that are 5 points too high above 0.5, and too low below."""
    p = rng.uniform(0.05, 0.95, n)
    labels = (rng.random(n) < p - 0.05 * np.sign(p - 0.5)).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def waves(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Predictions that are 5 points wrong, with five changes of the sign."""
    p = rng.uniform(0.05, 0.95, n)
    labels = (rng.random(n) < p - 0.05 * np.sign(np.sin(6 * np.pi * p))).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def overconfident(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Three classes whose top label is right 5 points too rarely."""
    q = np.sort(rng.dirichlet(np.full(3, 0.7), n), axis=1)[:, ::-1]
    right = q - np.array([0.05, -0.025, -0.025])
    labels = (right.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return cs.from_arrays(probabilities=q, labels=np.minimum(labels, 2))


def narrow(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Normal forecasts whose 90 % intervals cover 85 % of the outcomes."""
    mean, scale = rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))
    outcomes = mean + scale * rng.normal(size=n)
    predicted = scale * 1.4395 / 1.6449  # normal quantiles of 0.925 and 0.95
    return cs.from_arrays(predictions=(mean, predicted), forecast="normal", labels=outcomes)


WRONG: dict[str, Callable[[np.random.Generator, int], cs.ArraySource]] = {
    "too_high": too_high,
    "both_ways": both_ways,
    "waves": waves,
    "overconfident": overconfident,
    "narrow": narrow,
}


def state(verb: str, law: str, source: cs.ArraySource) -> str:
    """State of the verdict on a data set."""
    if verb == "check":
        result = cs.check(source, n_replicates=199, scheduler="serial")
    else:
        groups = "region" if law == "grouped" else None
        result = cs.evaluate(source, interval="jackknife", group_by=groups, scheduler="serial")
    assert result.judgement is not None
    return result.judgement.state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--verb", choices=("evaluate", "check"), default="evaluate")
    parser.add_argument("--law", choices=[*CALIBRATED, *WRONG])
    arguments = parser.parse_args()
    laws = [(name, law, 1000, 0) for name, law in CALIBRATED.items()]
    laws += [(name, law, 5000, 1) for name, law in WRONG.items()]
    for name, law, rows, part in laws:
        if arguments.law not in (None, name):
            continue
        # a fifth of the data sets is enough where the share is near 1
        sets = arguments.sets if part == 0 else max(1, arguments.sets // 5)
        states = Counter(
            state(arguments.verb, name, law(np.random.default_rng([seed, part, rows]), rows))
            for seed in range(sets)
        )
        called = sum(states[one] for one in ("miscalibrated", "small", "refuted"))
        others = ", ".join(f"{one} {count}" for one, count in states.most_common())
        kind = "5 points wrong" if part else "calibrated"
        line = f"{name:14} {kind:14} n={rows} sets={sets} miscalibrated={called / sets:.1%}"
        print(f"{line}: {others}", flush=True)


if __name__ == "__main__":
    main()
