"""Measures of scores by other packages, on five data sets.

``python -m tests.support.score_peers FILE`` writes what `tests/estimators/test_score_peers.py`
compares with, where probcal 0.4, MAPIE 1.6, model-diagnostics 1.5, relplot 1.0 and statsmodels 0.15
are installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).with_name("score_peers.json")
LAWS = {
    "continuous": lambda rng, n: rng.beta(0.6, 0.9, n),
    "narrow": lambda rng, n: rng.normal(0.5, 0.05, n),
    "rare": lambda rng, n: rng.beta(0.5, 60.0, n),
    "confident": lambda rng, n: 1 - rng.beta(0.5, 4.0, n),
    "rounded": lambda rng, n: rng.beta(0.8, 1.6, n).round(2).clip(0.01, 0.99),
}

THRESHOLDS = (0.02, 0.1, 0.4, 0.6, 0.9)  # of elementary scores


def rows(law: str, n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels of a data set."""
    rng = np.random.default_rng([len(law), 41])
    p = LAWS[law](rng, n)
    return p, (rng.random(n) < p**0.9).astype(float)


def peers(law: str) -> dict[str, dict[str, float]]:
    """Value of each measure, or member of its details, by package."""
    import polars as pl
    import probcal.metrics
    import statsmodels.api as sm
    from mapie.metrics import calibration as mapie
    from model_diagnostics.scoring import ElementaryScore, SquaredError, decompose
    from probcal.curves import corp_reliability
    from relplot.metrics import smECE

    p, y = rows(law)
    parts = decompose(pl.Series(y), pl.Series(p), scoring_function=SquaredError()).row(
        0, named=True
    )
    # elementary scores; the package's cost at a prediction equal to the threshold is that above it
    elementary = {
        threshold: decompose(
            pl.Series(y), pl.Series(p), scoring_function=ElementaryScore(np.nextafter(threshold, 1))
        ).row(0, named=True)
        for threshold in THRESHOLDS
    }
    corp = corp_reliability(y, p)
    logits = np.log(p) - np.log1p(-p)
    binomial = sm.families.Binomial()
    cox = sm.GLM(y, sm.add_constant(logits), family=binomial).fit(tol=1e-14)
    large = sm.GLM(y, np.ones_like(p), family=binomial, offset=logits).fit(tol=1e-14)
    out = {
        "model-diagnostics": {
            "corp": parts["miscalibration"],
            "discrimination": parts["discrimination"],
            "uncertainty": parts["uncertainty"],
            "score": parts["score"],
            **{
                f"{key} at {threshold}": parts[key]
                for threshold, parts in elementary.items()
                for key in ("score", "miscalibration", "discrimination")
            },
        },
        "probcal": {
            "corp": corp.brier_mcb,
            "discrimination": corp.brier_dsc,
            "uncertainty": corp.brier_unc,
            "ecce_mad": probcal.metrics.ecce(y, p).stat_max,
            "cox_slope": probcal.metrics.calibration_slope(y, p),
            "spiegelhalter": probcal.metrics.spiegelhalter_z(y, p).z,
        },
        "relplot": {"smooth_ece": smECE(p, y)},
        "statsmodels": {
            "cox_slope": cox.params[1],
            "intercept": cox.params[0],
            "standard_error": cox.bse[1],
            "intercept_standard_error": cox.bse[0],
            "calibration_in_the_large": large.params[0],
        },
        "mapie": {
            "sigma": mapie.length_scale(p),
            "spiegelhalter": mapie.spiegelhalter_statistic(y, p),
        },
    }
    if law != "rounded":  # MAPIE orders equal scores at random
        walk = mapie.cumulative_differences(y, p, noise_amplitude=0.0)
        out["mapie"] |= {
            "ecce_mad": np.abs(walk).max(),
            "ecce_range": max(walk.max(), 0.0) - min(walk.min(), 0.0),  # the walk begins at 0
        }
    return {name: {key: float(v) for key, v in values.items()} for name, values in out.items()}


if __name__ == "__main__":
    recorded = {law: peers(law) for law in LAWS}
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORDED).write_text(
        json.dumps(recorded, indent=1) + "\n"
    )
