"""Binned calibration errors of vectors: of each class, and on cells of the simplex."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.estimators.base import SimpleEstimator, bound_notion, without_rows
from calibscale.estimators.binned import Binned
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import CLASSES, SOFT
from calibscale.results.estimate import Estimate, Floor
from calibscale.statistics.bins import (
    MASS,
    BinState,
    CellNoise,
    CellState,
    SimplexCells,
    simplex_cell_count,
)
from calibscale.statistics.label_noise import LabelNoise, class_form_floor
from calibscale.statistics.ratios import ratio
from calibscale.statistics.score_sums import LabelVariances, Totals, TotalsState
from calibscale.statistics.statistic import Statistic

_CELL_DRAWS = 2**18  # residuals of cells drawn for a floor


@dataclass(frozen=True)
class CWCE2(Binned):
    """Class-wise squared error: `TCE2` of the column of each class, summed over the classes.

    The error is squared.  `details` contains the vector over the classes (K,) and its mean.  A
    large value means that some class is predicted too often or too rarely at some level.  Use it
    where classes other than the top label matter.  Noise biases it upwards, by terms that grow with
    K.  One pass, O(K) per row.  Other parameters: see `Binned`.

    See Also
    --------
    TCE2 : Mean squared distance of bins from calibration.
    SimplexECE : Binned error on cells of the simplex.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.CWCE2()])["cwce2"].value, 4)
    0.13
    """

    notion: str = field(default="class_wise", init=False)
    name: ClassVar[str] = "cwce2"
    testable: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = (CLASSES, SOFT)
    notions: ClassVar[tuple[str, ...]] = ("class_wise",)

    def bind(self, profile: DataProfile) -> Self:
        if self.edges in MASS:
            raise OptionError("cwce2 cannot have equal-mass bins: give edges as numbers")
        return self

    def value(self, *states: Any) -> float:
        return float(self._by_class(states[0]).sum())

    @staticmethod
    def _by_class(state: BinState) -> Floats:
        """Squared error of each class (K,), NaN without rows."""
        sums = state.by_class
        occupied = sums.weight > 0
        # A bin contributes (n_b/n)·(Σwδ/Σw)², which is (Σwδ)²/Σw over the total weight.
        terms = np.divide(sums.delta**2, sums.weight, np.zeros_like(sums.delta), where=occupied)
        with np.errstate(invalid="ignore"):
            # Every row is in one bin of each class, so that all classes have the same weight.
            return terms.sum(axis=1) / sums.weight[0].sum()

    @property
    def floor_needs(self) -> tuple[Statistic, ...]:
        counts = self.needs[0]
        return (counts, LabelVariances(counts), LabelNoise())  # type: ignore[arg-type]

    def floor(self, *states: Any) -> Floor | None:
        """Floor of a sum over bins, with the covariances of classes from a sample of rows."""
        bins, variances, noise = states
        weight = bins.by_class.weight
        total = float(weight[0].sum())
        shares = ratio(variances.squares, weight * total)

        def vectors(q: Floats, k: int) -> Floats:
            """1/√(W_b W) at the bin of each row (s, B)."""
            numbers = self.needs[0].numbers(np.ascontiguousarray(q[:, k]))  # type: ignore[attr-defined]
            in_bin: Floats = np.arange(weight.shape[1]) == numbers[:, None]
            # The error of class k is Σ_b (Σwδ)²/(W_b W), the squared norm of Σwδg with these g.
            return in_bin * np.sqrt(ratio(np.ones_like(weight[k]), weight[k] * total))

        return class_form_floor(noise, self.value(bins), vectors, shares)

    def finalize(self, state: BinState, *extra_states: Any) -> Estimate:
        sums = state.by_class
        if not sums.weight[0].sum() > 0:
            return without_rows(self, self.parameters)
        by_class = self._by_class(state)
        return Estimate(
            self.name,
            bound_notion(self),
            float(by_class.sum()),
            True,
            parameters=self.parameters,
            details={"by_class": by_class.tolist(), "mean": float(by_class.mean())},
            n=int(sums.rows[0].sum()),
        )


# ---------------------------------------------------------------- Cells of the simplex


@dataclass(frozen=True)
class SimplexECE(SimpleEstimator):
    """Canonical binned error Σ_b (n_b/n) ‖q̄_b − ȳ_b‖₁, three intervals per axis [MS, eq. 6, §5].

    The error is not squared.  It is a sum over classes, at most 2.  A large value means that whole
    vectors of probabilities are off in some cells.  Use it for few classes and many rows: noise
    biases it upwards, and errors that cancel within the wide cells are missed.  One pass, O(K) per
    row.

    Parameters
    ----------
    max_cells : int
        Largest supported number of cells, if 1 + 2K + K(K−1)/2 can be occupied.  With more cells
        most hold one or two rows and the value is noise.

    See Also
    --------
    CWCE2 : Squared binned error of every class.
    JKCE : Kernel error of whole predictions by one pass.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.SimplexECE()])["simplex_ece"].value, 4)
    0.5
    """

    max_cells: int = 10_000
    name: ClassVar[str] = "simplex_ece"
    testable: ClassVar[bool] = True
    needs: ClassVar[tuple[Statistic, ...]] = (SimplexCells(), Totals())
    floor_needs: ClassVar[tuple[Statistic, ...]] = (*needs, CellNoise())

    def bind(self, profile: DataProfile) -> Self:
        cells = simplex_cell_count(profile.classes)
        if cells > self.max_cells:
            raise OptionError(
                f"simplex_ece: {cells} cells can be occupied with {profile.classes} classes, "
                f"above max_cells = {self.max_cells}"
            )
        return self

    def floor(self, *states: Any) -> Floor:
        cells, totals, noise = states
        draws = int(np.clip(_CELL_DRAWS / cells.delta.size, 99, 1999))
        sizes = CellNoise.sizes(cells, noise, draws) / totals.weight
        return Floor.of(sizes, float(np.abs(cells.delta).sum() / totals.weight))

    def finalize(self, cells: CellState, totals: TotalsState) -> Estimate:
        parameters = {"intervals": 3, "max_cells": self.max_cells}
        if not totals.weight > 0:
            return without_rows(self, parameters)
        return Estimate(
            self.name,
            "canonical",
            float(np.abs(cells.delta).sum() / totals.weight),
            parameters=parameters,
            details={"occupied_cells": int((cells.weight > 0).sum())},
            n=int(totals.n),
        )
