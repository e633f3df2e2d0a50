"""Sums over pairs of rows with residuals that are any vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import tiles
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.pair_tasks import PairSumTask
from calibscale.kernels.tile_layout import LaidOutRows, TileLayout
from calibscale.predictions.distributions.mixtures import NormalForecast

_STRIP = 64  # rows that are summed together over their pairs with a panel


def _squared_norms(variance: Floats) -> Floats:
    """⟨q, q⟩ of normal forecasts, the mean E ℓ(Z, Z') over two draws of a forecast (c,)."""
    return 1.0 / np.sqrt(1.0 + 2.0 * variance)


@dataclass(frozen=True, eq=False)
class ForecastSumTask(PairSumTask):
    """Sums of a `PairSum` with residuals that are any vectors, or belong to normal forecasts.

    Inner products of normal forecasts have a closed form, so that they need no waves.
    """

    @property
    def _normal(self) -> bool:
        return self.spec.closed_form and isinstance(self.panels.rules.target, NormalForecast)

    def _standard(self, rows: NotionRows) -> Floats:
        """Means, variances and outcomes of normal forecasts in bandwidths of targets, (3, c)."""
        forecast: Any = self.panels.rules.target
        mean, scale, y = (rows.parameters.T - [[forecast.centre], [0.0], [forecast.centre]]) / (
            forecast.bandwidth
        )
        return np.stack([mean, scale * scale, y])

    def _diagonal(self, rows: NotionRows) -> tuple[Floats, Floats]:
        if not self._normal:
            return super()._diagonal(rows)
        mean, variance, y = self._standard(rows)
        # |δ|² = ℓ(y, y) − 2 E ℓ(Z, y) + E ℓ(Z, Z') for the Gaussian ℓ of bandwidth 1.
        norms, reach = _squared_norms(variance), 1.0 + variance
        squares = 1.0 - 2.0 * np.exp(-0.5 * (mean - y) ** 2 / reach) / np.sqrt(reach) + norms
        return squares, 1.0 + norms if self.spec.kernel.linear else np.ones(len(rows))

    def _sums(self, P: LaidOutRows, Q: LaidOutRows, layout: TileLayout, diagonal: bool) -> Floats:
        starts = range(0, len(P.rows), _STRIP)
        out = np.zeros((len(starts), 2))
        A, B = (self._standard(panel.rows) if self._normal else None for panel in (P, Q))

        def add(part: slice) -> None:
            for t, start in enumerate(starts[part], part.start):
                strip = slice(start, min(start + _STRIP, len(P.rows)))
                first = start + 1 if diagonal else 0  # pairs i < j
                i, j = P.rows.take(strip), Q.rows.take(slice(first, None))
                if A is None or B is None:
                    targets, shared = i.delta @ j.delta.T, i.points @ j.points.T
                    norms = [np.einsum("ij,ij->i", rows.points, rows.points) for rows in (i, j)]
                else:
                    a, b = A[:, strip], B[:, first:]
                    targets, shared = np.empty((2, len(i), len(j)))
                    tiles.normal_products(*a, *b, targets, shared)
                    norms = [_squared_norms(forecasts[1]) for forecasts in (a, b)]
                # ‖q − q'‖² = ⟨q, q⟩ + ⟨q', q'⟩ − 2⟨q, q'⟩
                values = self._kernel_values(i, j, np.add.outer(*norms) - 2.0 * shared, shared)
                if diagonal:
                    values = np.triu(values)
                out[t] = i.weights @ (targets * values) @ j.weights, 0.0
                if self.spec.kernel_sums:
                    out[t, 1] = i.weights @ values @ j.weights

        self.run_parts(add, len(starts))
        return out

    def _kernel_values(self, i: NotionRows, j: NotionRows, squares: Floats, shared: Floats) -> Any:
        """κ between rows (s, c), from squared distances and inner products of predictions."""
        distances = np.sqrt(np.maximum(squares, 0.0))
        values = self.spec.kernel.of_predictions(distances, lambda: shared)
        return self.spec.kernel.times_covariates(values, i.covariates[:, None], j.covariates)
