"""Sources, recipes and records of small ledgers."""

from __future__ import annotations

import numpy as np

import calibscale as cs
from calibscale.inference.e_process import BettingEProcess
from calibscale.intervals.resampling import frozen_by
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
from calibscale.monitoring.ledger.recipe import Recipe
from calibscale.session import Session

ESTIMATORS = (
    cs.ECE(bins=7, notion="positive"),
    cs.TCE2Debiased(edges="equal-mass", notion="positive"),
    cs.CWCE2(edges="netcal"),
    cs.SimplexECE(),
    cs.CKCE(cs.RandomFourier(10, seed=3)),
    cs.JKCE(cs.RandomFourier(10, bandwidth=0.4)),
    cs.KLCE(("age", "sex"), 0.2, {"age": 9.0}, categorical=("sex",), method="spectral"),
    cs.KLCE(("age",), method="features", n_features=20),
    cs.Brier(),
)


def source_of_loans(rng, n=300):
    p = rng.random(n)
    x = np.column_stack([rng.uniform(20, 80, n), rng.integers(0, 2, n)])
    x[:2, 0] = 20, 80  # the box of the series
    return cs.from_arrays(
        probabilities=p,
        labels=(rng.random(n) < p).astype(int),
        covariates=x,
        binary=True,
        covariate_names=("age", "sex"),
    )


def recipe_of(source, estimators=ESTIMATORS):
    with Session.open(source) as session:
        run = session.run(estimators)
        states = run.scan(s for e in run.fitting for s in e.needs).groups[None]
        # settings that depend on data, such as bandwidths, are frozen on the first day of a ledger
        frozen = tuple(frozen_by(e, *(states[s] for s in e.needs)) for e in run.fitting)
    return Recipe(2, frozen, (BettingEProcess("positive"),), ("age", "sex"), seed=5)


def change_days(path):
    """Make several changes to a ledger, each within its own `writing`. Yield after each."""
    ledger = Ledger.open(path)
    changes = [
        *((f"2026-01-0{k}", k) for k in range(2, 6)),
        ("2026-01-01", 9),
        ("2026-01-03", None),
    ]
    for day, value in changes:
        with ledger.writing():
            if value is None:
                ledger.remove(day, "v1")
            else:
                vector = np.full(ledger.recipe.sizes["states"], float(value))
                records = records_of(
                    {None: (value, vector), 1.0: (value, vector)}, {"value": value}
                )
                ledger.write(day, "v1", records)
        yield


def records_of(states, info):
    """Records from numbers of rows and vectors of states, by group."""
    return {
        group: Record(n, {"states": vector}, info if group is None else {})
        for group, (n, vector) in states.items()
    }
