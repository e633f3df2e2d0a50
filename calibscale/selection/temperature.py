"""The temperature model h_sim, its θ fitted by the risk [GB §5.1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize_scalar

from calibscale.chunk import Floats
from calibscale.selection.families import Family, Part, PlugIn, Setting
from calibscale.selection.risk import plug_in_risk
from calibscale.views import View

_LOG_THETA = np.linspace(-4.0, 4.0, 33)


def temperature_residuals(view: View, theta: float) -> Floats:
    """q − softmax(θ log q), or p − σ(θ logit p) of a scalar, (c, e)."""
    z = theta * view.logs
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return view.points - z[:, : view.points.shape[1]]


class _FittedTemperature(PlugIn):
    size = 1

    def __init__(self, theta: float) -> None:
        self.theta = theta

    def residuals(self, j: int, view: View) -> Floats:
        return temperature_residuals(view, self.theta)[None]


@dataclass(frozen=True)
class Temperature(Family):
    """r̂(p) = p − softmax(θ log p): perfect where tempering alone went wrong [GB §5.1].

    One θ for all classes; it minimises the risk of the training rows that are kept in memory.
    """

    name: ClassVar[str] = "temperature"

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        return [{}]

    def found(self, fits: Sequence[_FittedTemperature]) -> dict[str, Any]:
        return {"theta": [fit.theta for fit in fits]}

    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> _FittedTemperature:
        kept = (setting.folds >= 0) & (setting.folds != excluded)
        rows = [view.take(kept) for view in setting.subset]

        def risk(log_theta: float) -> float:
            theta = float(np.exp(log_theta))
            return sum(
                plug_in_risk(view.delta, temperature_residuals(view, theta), view.weights)
                for view in rows
            )

        coarse = [risk(value) for value in _LOG_THETA]
        best = int(np.argmin(coarse))
        step = _LOG_THETA[1] - _LOG_THETA[0]
        found = minimize_scalar(
            risk, bounds=(_LOG_THETA[best] - step, _LOG_THETA[best] + step), method="bounded",
            options={"xatol": 1e-7},
        )  # fmt: skip
        log_theta = found.x if found.fun < coarse[best] else _LOG_THETA[best]
        return _FittedTemperature(float(np.exp(log_theta)))
