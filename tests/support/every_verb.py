"""python -m tests.support.every_verb [LIBRARY]: JSON results of every verb on extreme predictions.

A library that is named is loaded first: the threads of everything after it inherit its mode.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

TIMES = ("seconds", "created", "time", "started", "finished")


def results() -> dict[str, Any]:
    import numpy as np

    import calibscale as cs
    from calibscale.session import default_estimators

    rng = np.random.default_rng(7)
    n, two = 600, {"scheduler": "threads:2"}
    # gaps of logits up to 900: probabilities down to the smallest number, and 0
    logits = rng.normal(size=(n, 4)) * rng.choice([1.0, 10.0, 300.0], (n, 1))
    labels = np.where(rng.random(n) < 0.8, logits.argmax(1), rng.integers(0, 4, n))
    many = cs.from_arrays(logits=logits.astype(np.float32), labels=labels)
    x = rng.random((n, 2))
    z = 8 * rng.normal(size=n) * rng.choice([0.2, 1.0, 50.0], n)
    event = rng.random(n) < 1 / (1 + np.exp(-np.clip(z, -3, 3)))
    scored, softer = (
        cs.from_arrays(
            logits=scale * z,
            labels=event,
            covariates=x,
            binary=True,
            covariate_names=("age", "income"),
        )
        for scale in (1.0, 0.7)
    )
    pairs = [
        *(
            cs.JKCE(kernel=kernel, method="tiles", precision=precision)
            for kernel in ("gaussian", "linear+gaussian")
            for precision in ("float32", "float64")
        ),
        cs.JKCE(cs.RandomFourier(bandwidth=0.02), method="tiles", precision="float32"),
        cs.CKCE(method="exact"),
    ]
    local = [
        cs.KLCE(("age",), 0.01, 0.01, method="tiles", precision=p) for p in ("float32", "float64")
    ]
    estimators = [*default_estimators(), cs.NLLDecomposition(), cs.ECE(edges="equal-mass")]
    results = {
        "evaluate": cs.evaluate(many, estimators, interval="jackknife", **two),
        "pairs": [cs.evaluate(many, [e], **two) for e in pairs],
        "local pairs": [cs.evaluate(scored, [e], **two) for e in local],
        "test": cs.calibration_test(many, [cs.CKCE(), cs.ECE()], n_replicates=19, **two),
        "rank": cs.rank({"one": scored, "softer": softer}, trials=20, **two),
        "local_bias": cs.local_bias(scored, ["age"], **two),
        "audit": cs.audit(scored, ["age"], **two),
        "reliability": cs.reliability(many, **two),
    }
    for notion in ("top_label", "class_wise", "canonical"):
        results[f"select {notion}"] = cs.select(many, notion, folds=2, features=20, **two)
    return {name: _plain(value) for name, value in results.items()}


def _plain(value: Any) -> Any:
    """As JSON, without what depends on the clock."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.to_dict() if hasattr(value, "to_dict") else value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if key not in TIMES}
    return value


def subnormals_vanish() -> bool:
    """Whether this process takes subnormal numbers for 0."""
    import numpy as np

    return bool(np.array([1e-308]) / 4.0 == 0)


if __name__ == "__main__":
    for library in sys.argv[1:]:
        ctypes.CDLL(library)
    print(json.dumps({"flushed": subnormals_vanish(), **results()}))
