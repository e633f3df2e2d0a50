"""Excess risk of the target coverage beside covmetrics, on laws of known conditional coverage.

Intervals claim a coverage of 90 % and have the same limits in every row, while the scale of the
outcomes depends on four covariates.  The excess risk of a proper score is the score of the stated
coverage minus that of the true conditional coverage.  Both packages estimate it from below, by the
score of a coverage that they have learned from other rows: covmetrics by LightGBM, and calibscale
by a recalibration of the events that the intervals claim, with an interval.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import NotInstalled, Report, Settings, installed, measure
from scipy.stats import norm

COVERAGE = 0.9
HALF_WIDTH = norm.ppf((1.0 + COVERAGE) / 2.0)
COLUMNS = ("x0", "x1", "x2", "x3")
FRESH_ROWS = 10**6
SIZES = (2_000, 10_000)
SCORES = {"brier": 0.5, "nll": 1.0}  # half the Brier score of two classes is that of the event

# Scale of the outcomes, which is 1 where the coverage is right.
LAWS: dict[str, Callable[[Any], Any]] = {
    "right": lambda x: np.ones(len(x)),
    "smooth": lambda x: 1.0 + 0.5 * np.tanh(x[:, 0]),
    "a tenth": lambda x: np.where(x[:, 0] > 1.28, 1.6, 1.0),
    "interaction": lambda x: np.exp(0.3 * x[:, 0] * np.sign(x[:, 1])),
    "everywhere": lambda x: np.full(len(x), 1.15),
}
# Recalibrations of the events, with the covariates that they use.
METHODS = {"mc(depth=1,z=3)": COLUMNS, "mc": COLUMNS, "local_bias": COLUMNS[:2]}


def drawn(law: str, rows: int) -> tuple[Any, Any, Any]:
    """Covariates (rows, 4), outcomes (rows,) and true conditional coverages (rows,)."""
    rng = np.random.default_rng([list(LAWS).index(law), rows])
    x = rng.normal(size=(rows, len(COLUMNS)))
    scale = LAWS[law](x)
    return x, scale * rng.normal(size=rows), 2.0 * norm.cdf(HALF_WIDTH / scale) - 1.0


def excess_risks(law: str) -> dict[str, float]:
    """True excess risk of each score, a mean over fresh rows."""
    coverage = drawn(law, FRESH_ROWS)[2]
    divergence = coverage * np.log(coverage / COVERAGE)
    divergence += (1.0 - coverage) * np.log((1.0 - coverage) / (1.0 - COVERAGE))
    return {
        "brier": float(np.mean((coverage - COVERAGE) ** 2)),
        "nll": float(np.mean(divergence)),
    }


def ours(law: str, rows: int, method: str) -> Callable[[], Any]:
    """Excess risks by a recalibration, each with its 95 % interval."""
    import calibscale as cs

    x, y, _ = drawn(law, rows)
    limits = np.full(rows, HALF_WIDTH)
    source = cs.from_arrays(
        intervals=(-limits, limits),
        coverage=COVERAGE,
        labels=y,
        covariates=x,
        covariate_names=COLUMNS,
    )

    def estimates() -> dict[str, list[float]]:
        fit = cs.recalibrate(cs.forecast_events(source), method, covariates=METHODS[method])
        return {
            change.score: [
                -SCORES[change.score] * value for value in (change.change, change.high, change.low)
            ]
            for change in fit.improvement.changes
        }

    estimates()
    return estimates


def theirs(law: str, rows: int) -> Callable[[], Any]:
    """Excess risks by covmetrics with its default classifier, five-fold."""
    try:
        from covmetrics import ERT
        from covmetrics.losses import brier_score, logloss
    except ImportError as error:
        raise NotInstalled from error
    x, y, _ = drawn(law, rows)
    is_covered = (np.abs(y) <= HALF_WIDTH).astype(int)
    losses = {"brier": brier_score, "nll": logloss}

    def estimates() -> dict[str, list[float]]:
        values = ERT().evaluate_multiple_losses(
            x, is_covered, 1.0 - COVERAGE, all_losses=list(losses.values())
        )
        return {score: [float(values[f"ERT_{loss.__name__}"])] for score, loss in losses.items()}

    return lambda: {"version": installed("covmetrics"), **estimates()}


def run(settings: Settings) -> Report:
    report = Report("excess_coverage", settings)
    intervals_above = 0
    for law in LAWS:
        truth = excess_risks(law)
        for rows in map(settings.rows, SIZES):
            candidates = {f"calibscale {method}": ("ours", method) for method in METHODS}
            for name, (function, *arguments) in {**candidates, "covmetrics": ("theirs",)}.items():
                python = settings.peers_python if function == "theirs" else sys.executable
                try:
                    measured = measure(
                        f"excess_coverage:{function}", law, rows, *arguments, runs=1, python=python
                    )
                except NotInstalled:
                    report.note(f"{name}: not installed")
                    continue
                for score, true_risk in truth.items():
                    estimate, *interval = measured.value[score]
                    intervals_above += bool(interval) and interval[0] > true_risk
                    report.row(
                        law=law,
                        rows=rows,
                        by=name,
                        score=score,
                        truth=true_risk,
                        estimate=estimate,
                        interval=[float(f"{limit:.4g}") for limit in interval],
                        seconds=measured.median,
                    )
    # A fit is not better than the truth, so that lower limits are below it in 97.5 % of data sets.
    # Each of the ten data sets has six intervals, and two data sets may be wrong by chance.
    report.check("lower limits above the true excess risk", intervals_above, 12)
    return report
