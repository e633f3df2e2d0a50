"""Distributions of predictions, and miscalibration: by name, as a function, or from a store.

A law draws true probabilities. A miscalibration transforms them into predictions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit

Draw = Callable[[np.random.Generator, int], Any]


def _atoms(rng: np.random.Generator, n: int) -> Any:
    """Beta(.8, 1.6) with 20 % exactly 0 and 15 % exactly 1."""
    u, p = rng.random(n), rng.beta(0.8, 1.6, n)
    return np.where(u < 0.2, 0.0, np.where(u < 0.35, 1.0, p))


def _bimix(rng: np.random.Generator, n: int) -> Any:
    """0.9 · Beta(2, 200) + 0.1 · Beta(50, 5)."""
    return np.where(rng.random(n) < 0.9, rng.beta(2, 200, n), rng.beta(50, 5, n))


BINARY: dict[str, Draw] = {
    "uniform": lambda rng, n: rng.random(n),
    "Beta(0.2, 0.2)": lambda rng, n: rng.beta(0.2, 0.2, n),
    "sigmoid of a normal": lambda rng, n: expit(rng.standard_normal(n)),
    "rare events, Beta(0.3, 9)": lambda rng, n: rng.beta(0.3, 9.0, n),
    "conf99": lambda rng, n: 1.0 - rng.beta(0.5, 60.0, n),
    "conf": lambda rng, n: 1.0 - rng.beta(0.5, 4.0, n),
    "rare": lambda rng, n: rng.beta(0.5, 60.0, n),
    "bimix": _bimix,
    "narrow": lambda rng, n: np.clip(rng.normal(0.5, 0.05, n), 0.0, 1.0),
    "atoms": _atoms,
    "tenths": lambda rng, n: np.round(rng.random(n), 1),
}


@dataclass(frozen=True)
class Law:
    """True probabilities P(y = 1) and the predictions made of them.

    Parameters
    ----------
    name : str
        A name of `BINARY`, ``module:function`` of ``(rng, n) -> (n,)`` probabilities, or the path
        of a store of two classes. Its predictions are drawn with replacement.
    miscalibration : str
        ``calibrated``, a number T, which multiplies the log-odds, or ``module:function`` of true
        probabilities (n,) to shown ones.
    """

    name: str
    miscalibration: str = "calibrated"

    def __str__(self) -> str:
        return f"{self.name}, {self.miscalibration}"

    def probabilities(self, rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        """True and shown probabilities of the event, (n,) each."""
        true = np.asarray(_draw(self.name)(rng, n), np.float64)
        return true, _shown(self.miscalibration, true)

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        """Shown probabilities (n,) and labels (n,) of n rows."""
        true, shown = self.probabilities(rng, n)
        return shown, (rng.random(n) < true).astype(np.int64)


@cache
def _draw(name: str) -> Draw:
    if name in BINARY:
        return BINARY[name]
    if Path(name).exists():
        from calibscale import LogitStore

        store = LogitStore.open(name)
        if store.classes != 2:
            raise SystemExit(f"{name} has {store.classes} classes; a law needs a store of two")
        values = np.asarray(store.source().read(0, store.rows).values, np.float64)
        values = values.reshape(store.rows, -1)
        if store.kind == "logits":
            q = expit(values[:, -1] - (values[:, 0] if values.shape[1] == 2 else 0.0))
        else:
            q = values[:, -1]
        return lambda rng, n: q[rng.integers(0, len(q), n)]
    return _function(name, f"a law is one of {', '.join(BINARY)}, module:function or a store")


def _shown(miscalibration: str, true: Any) -> Any:
    if miscalibration == "calibrated":
        return true
    try:
        temperature = float(miscalibration)
    except ValueError:
        meaning = "a miscalibration is 'calibrated', a number or module:function"
        return np.asarray(_function(miscalibration, meaning)(true), np.float64)
    with np.errstate(divide="ignore"):
        return expit(temperature * logit(true))


def _function(name: str, meaning: str) -> Callable[..., Any]:
    module, colon, function = name.partition(":")
    if not colon:
        raise SystemExit(f"{meaning}, not {name!r}")
    return getattr(importlib.import_module(module), function)
