"""Logistic fits to a histogram of the scores, from which fits to the rows of two classes start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit, logit

from calibscale.array_types import Floats
from calibscale.kernels.data_profile import DataProfile
from calibscale.recalibration.recalibrator import Read
from calibscale.statistics.bins import FineHistogram
from calibscale.statistics.score_histogram import OccupiedCells

HISTOGRAM = FineHistogram("positive")
_GRADIENT = 1e-9  # of the mean log loss at a minimum
_RANK = 1e-10  # smallest singular value of a design of full rank, relative to the largest one


def cells_of_scores(setup: DataProfile, read: Read) -> OccupiedCells | None:
    """Cells of the scores of two classes, from one pass.

    Fits to each of many classes have none, because their histograms would take too much memory.
    """
    if setup.classes != 2:
        return None
    return OccupiedCells.of(read(HISTOGRAM).groups[None][HISTOGRAM].sums)


def log_odds_of(cells: OccupiedCells, clip: float) -> Floats:
    """Log-odds of the mean score of each cell (c,)."""
    return np.asarray(logit(np.clip(cells.score, clip, 1.0 - clip)))


def start_from_cells(
    cells: OccupiedCells, columns: Callable[[Floats], Floats], clip: float
) -> Floats | None:
    """Maximum-likelihood coefficients (m,) of the `columns` (m, c) of the log-odds of cells.

    They differ from the coefficients of the rows by little, because the scores of a cell are
    nearly equal.  None is returned if the cells do not determine them.
    """
    if len(cells.score) == 0:  # the rows are left out, and the fit to them says why it fails
        return None
    # Scores that are 0 or 1 to rounding do not tell the log-odds of stored logits.
    if cells.score[0] <= clip or cells.score[-1] >= 1.0 - clip:
        return None
    events, others = cells.events, cells.weight - cells.events
    with_event, without = np.flatnonzero(events > 0), np.flatnonzero(others > 0)
    if not (len(with_event) and len(without)):
        return None
    # Labels that a score separates have no finite maximum.
    if without[-1] <= with_event[0] or with_event[-1] <= without[0]:
        return None
    design = columns(log_odds_of(cells, clip))
    scaled = design / np.sqrt((design**2).sum(axis=1, keepdims=True))
    if np.linalg.matrix_rank(scaled, tol=_RANK) < len(design):
        return None
    no_penalty = np.zeros((len(design), len(design)))
    start = np.zeros(len(design))
    values = cell_minimum(design, cells.weight, events, no_penalty, start)
    return values if np.isfinite(values).all() else None


def cell_minimum(
    design: Floats, weight: Floats, events: Floats, penalty: Floats, first: Floats
) -> Floats:
    """Coefficients (m,) with the smallest mean log loss of cells plus ½⟨β, penalty·β⟩.

    Parameters
    ----------
    design : (m, c)
        Columns of the cells.
    weight, events : (c,)
        Weight of all rows and of the events.
    penalty : (m, m)
    first : (m,)
        Coefficients at which the search starts.
    """
    from scipy.optimize import minimize  # slow to import

    total = weight.sum()

    def loss(values: Floats) -> tuple[float, Floats]:
        eta = values @ design
        parts = weight @ np.logaddexp(0.0, eta) - events @ eta
        gradient = design @ (weight * expit(eta) - events) / total + penalty @ values
        return float(parts / total + values @ penalty @ values / 2.0), gradient

    def second(values: Floats) -> Floats:
        return cell_hessian(design, weight, values) / total + penalty

    # Trust regions, because a whole Newton step may be too long far from the minimum.
    options = {"gtol": _GRADIENT}
    method = "trust-exact"
    return np.asarray(
        minimize(loss, first, jac=True, hess=second, method=method, options=options).x
    )


def cell_hessian(design: Floats, weight: Floats, values: Floats) -> Floats:
    """Second derivatives (m, m) of the log loss of all cells."""
    eta = values @ design
    return np.asarray((design * (weight * expit(eta) * expit(-eta))) @ design.T)
