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

_STEP = 0.25
_LOG_THETA = _STEP * np.arange(-16, 17)


def temperature_residuals(view: View, theta: float) -> Floats:
    """q − softmax(θ log q), or p − σ(θ logit p) of a scalar, (c, e)."""
    z = theta * view.logs
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return view.points - z[:, : view.points.shape[1]]


class _FittedTemperature(PlugIn):
    """θ, and the sign of r̂ that agrees with the residuals: the risk is the same for both."""

    size = 1

    def __init__(self, theta: float, sign: float) -> None:
        self.theta, self.sign = theta, sign

    def pick(self, h: int) -> _FittedTemperature:
        return self

    def residuals(self, j: int, view: View) -> Floats:
        return self.sign * temperature_residuals(view, self.theta)[None]


@dataclass(frozen=True)
class Temperature(Family):
    """r̂(p) = p − softmax(θ log p): perfect where tempering alone went wrong [GB §5.1].

    One θ for all classes; it minimises the risk of the training rows that are kept in memory.
    The risk cannot tell r̂ from −r̂, so with few rows θ may lie on the wrong side of 1.
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

        # r̂ and −r̂ have the same risk, so there may be a minimum on either side of θ = 1
        coarse = [risk(value) for value in _LOG_THETA]
        found = [
            (value, float(log_theta)) for value, log_theta in zip(coarse, _LOG_THETA, strict=True)
        ]
        for side in (_LOG_THETA <= 0.0, _LOG_THETA >= 0.0):
            best = int(np.argmin(np.where(side, coarse, np.inf)))
            ends = _LOG_THETA[side][[0, -1]]
            bounds = np.clip(_LOG_THETA[best] + np.array([-_STEP, _STEP]), *ends)
            near = minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-7})
            found.append((float(near.fun), float(near.x)))
        _, log_theta = min(found)
        theta = float(np.exp(log_theta))
        agreement = sum(
            float(view.weights @ np.sum(temperature_residuals(view, theta) * view.delta, axis=1))
            for view in rows
        )
        return _FittedTemperature(theta, -1.0 if agreement < 0 else 1.0)
