"""python examples/own_estimator.py: an estimator of your own, evaluated, tested and grouped.

An estimator names the statistics it needs and turns their sums over all rows into an `Estimate`.
Everything else follows from the sums: one pass for all estimators, identical results from chunks,
threads and clusters, intervals from groups of rows, p-values from drawn labels.  `ECE` needs the
same bin counts as the estimator here: equal statistics are computed once.

A statistic of your own is a frozen dataclass, too: `zero`, `accumulate` and, for tests, `draw`. See
`calibscale/statistics/statistic.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibscale import ECE, ArraySource, Estimate, calibration_test, evaluate, from_arrays
from calibscale.estimators.base import SimpleEstimator
from calibscale.simulation import GENERATORS
from calibscale.statistics.bins import BinCounts, BinState


@dataclass(frozen=True)
class Overconfidence(SimpleEstimator):
    """Σ_b (n_b/n) max(conf_b − acc_b, 0): the part of the ECE where confidence is too high."""

    bins: int = 15
    name: ClassVar[str] = "overconfidence"
    notion: ClassVar[str] = "top_label"
    testable: ClassVar[bool] = True  # larger for worse calibration

    @property
    def needs(self) -> tuple[BinCounts]:
        edges = np.linspace(0.0, 1.0, self.bins + 1)
        return (BinCounts(self.notion, tuple(edges.tolist())),)

    def finalize(self, state: BinState) -> Estimate:
        rows, weight, _, _, delta = state.sums  # Σ1, Σw, Σw², Σwp, Σwδ of every bin
        if weight.sum() == 0:
            return Estimate(self.name, self.notion, None, reason="no rows with a positive weight")
        value = float(np.maximum(delta, 0.0).sum() / weight.sum())
        return Estimate(
            self.name, self.notion, value, parameters={"bins": self.bins}, n=int(rows.sum())
        )


def two_models(rows: int = 10_000, seed: int = 0) -> ArraySource:
    """Rows of two models. One half is overconfident, the other underconfident."""
    draw = GENERATORS["ms-true"].draw(seed, 0, rows)
    under = np.arange(rows)[:, None] % 2
    return from_arrays(
        logits=draw.log_p * np.where(under, 0.7, 1.4),
        labels=draw.labels,
        covariates=under,
        covariate_names=["under"],
    )


def main() -> None:
    source = two_models()
    estimators = [Overconfidence(), ECE()]
    result = evaluate(source, estimators, group_by="under", interval="jackknife")
    tests = calibration_test(source, estimators, n_replicates=199)
    for e in result.estimates:
        print(
            f"{e.estimator}: {e.value:.4f} in [{e.interval.low:.4f}, {e.interval.high:.4f}], "
            f"p = {tests[e.estimator].p_value:.3f}"
        )
    for under, (overconfidence, ece) in result.groups.items():
        print(f"under = {under:g}: overconfidence {overconfidence.value:.4f}, ECE {ece.value:.4f}")


if __name__ == "__main__":
    main()
