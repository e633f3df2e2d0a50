"""python examples/first_look.py [STORE]: a first look at a store of predictions.

Without STORE an overconfident classifier of ten classes is simulated.
"""

from __future__ import annotations

import sys
import tempfile

from calibscale import (
    CKCE,
    ECE,
    ConfidenceGap,
    LogitStore,
    TCE2Debiased,
    calibration_test,
    evaluate,
    reliability,
)
from calibscale.output.pictures import save_picture
from calibscale.simulation import simulate


def look(store: LogitStore) -> None:
    result = evaluate(store, [ECE(), TCE2Debiased(), CKCE(), ConfidenceGap()], interval="jackknife")
    for e in result.estimates:
        print(f"{e.estimator:>15}  {e.value:.5f} in [{e.interval.low:.5f}, {e.interval.high:.5f}]")
    for t in calibration_test(store, [ECE(), CKCE()], n_replicates=199).results:
        null_mean = t.null_values.mean()
        print(f"{t.statistic:>15}  p = {t.p_value:.3f}; mean under calibration {null_mean:.5f}")
    diagram = reliability(store)
    print(f"reliability: {diagram.verdict}")
    save_picture(diagram, "first_look.png")
    print("first_look.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        look(LogitStore.open(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            look(simulate(f"{folder}/toy.zarr", rows=20_000, generator="ms-over"))
