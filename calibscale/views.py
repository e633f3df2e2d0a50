"""What a notion of calibration makes of a chunk: points, residuals, and their logarithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import LOG_SMALLEST, Chunk, Floats, Ints
from calibscale.errors import OptionError

NOTIONS = ("top_label", "canonical", "class_wise", "positive")


class View(NamedTuple):
    """Rows as one problem of a notion sees them; e = K if canonical, else 1.

    Attributes
    ----------
    rows : (c,) int64
    points : (c, e)
        The prediction: q, or the scalar p.
    compositions : (c, d)
        The same as a point of the simplex: q, or [p, 1 − p]; 1 − p to all its digits.
    logs : (c, d)
        log of that, −744.4 for log 0.
    delta : (c, e)
    weights : (c,)
        Ones where the source has none.
    """

    rows: Ints
    points: Floats
    compositions: Floats
    logs: Floats
    delta: Floats
    weights: Floats

    @property
    def events(self) -> Floats:
        """e_y, or the 0/1 event that p predicts: points − delta without its rounding, (c, e)."""
        return np.rint(self.points - self.delta)

    @property
    def squares(self) -> Floats:
        """|δ|² (c,)."""
        return np.einsum("ij,ij->i", self.delta, self.delta)

    def take(self, index: Any) -> View:
        """The rows that `index` (a mask, positions, a slice) names."""
        arrays: list[Any] = [array[index] for array in self]
        return View(*arrays)


def problems(notion: str, classes: int) -> int:
    """J, the number of problems that a notion poses: K if class-wise, else one.

    Raises
    ------
    OptionError
        If the notion is unknown, or is `positive` and there are not two classes.
    """
    if notion not in NOTIONS:
        raise OptionError(f"notion must be one of {', '.join(NOTIONS)}, not {notion!r}")
    if notion == "positive" and classes != 2:
        raise OptionError(f"notion 'positive' is for two classes; there are {classes}")
    return classes if notion == "class_wise" else 1


def width(notion: str, classes: int) -> int:
    """e, the length of a point and of a residual."""
    return classes if notion == "canonical" else 1


def views(chunk: Chunk, notion: str) -> Sequence[View]:
    """The chunk as each of the notion's J problems sees it; made once."""
    if notion not in chunk.views:
        chunk.views[notion] = _make_views(chunk, notion)
    return chunk.views[notion]


def _make_views(chunk: Chunk, notion: str) -> Sequence[View]:
    weights = chunk.weights if len(chunk.weights) else np.ones(len(chunk))
    if notion == "canonical":
        return [View(chunk.rows, chunk.q, chunk.q, chunk.log_q, chunk.delta, weights)]
    if notion == "class_wise":
        columns = []
        for k in range(chunk.classes):
            p = chunk.q[:, k]
            rest = np.where(chunk.top == k, chunk.rest, 1.0 - p)
            columns.append((p, rest, chunk.delta[:, k]))
    else:
        columns = [chunk.event(notion)[:3]]
    made = []
    for p, rest, delta in columns:
        pair = np.column_stack([p, np.maximum(rest, 0.0)])
        logs = np.log(pair, out=np.full_like(pair, LOG_SMALLEST), where=pair > 0)
        made.append(View(chunk.rows, pair[:, :1], pair, logs, delta[:, None], weights))
    return made
