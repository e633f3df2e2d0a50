"""Views of validated rows by notion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.errors import OptionError, require
from calibscale.predictions.chunk import LOG_SMALLEST, Chunk

NOTIONS = ("top_label", "canonical", "class_wise", "positive")
SCALAR_NOTIONS = ("top_label", "positive")


class NotionView(NamedTuple):
    """Rows of one problem of a notion; e = K if canonical, else 1.

    Attributes
    ----------
    rows : (c,)
        Units of draws, see `Chunk.units`.
    points : (c, e)
        Predictions q, or the scalar p.
    compositions : (c, d)
        Predictions as points of the simplex: q, or [p, 1 − p] with 1 − p to full precision.
    logs : (c, d)
        Logarithms of the compositions, −744.4 for log 0.
    delta : (c, e)
        Residuals.
    weights : (c,)
        Ones if the source has no weights.
    """

    rows: Ints
    points: Floats
    compositions: Floats
    logs: Floats
    delta: Floats
    weights: Floats

    @property
    def events(self) -> Floats:
        """e_y, or the 0/1 event that p predicts (c, e): points − delta, rounded."""
        return np.rint(self.points - self.delta)

    @property
    def squares(self) -> Floats:
        """|δ|² (c,)."""
        return np.einsum("ij,ij->i", self.delta, self.delta)

    def take(self, index: Any) -> NotionView:
        """Rows selected by `index`: a mask, positions or a slice."""
        arrays: list[Any] = [array[index] for array in self]
        return NotionView(*arrays)


def problems(notion: str, classes: int) -> int:
    """Number J of problems of a notion, which must suit the classes: K if class-wise, else 1."""
    require(notion in NOTIONS, f"notion must be one of {', '.join(NOTIONS)}", notion)
    if notion == "positive" and classes != 2:
        raise OptionError(f"notion 'positive' is for two classes; there are {classes}")
    return classes if notion == "class_wise" else 1


def default_notion(classes: int) -> str:
    """Default scalar notion."""
    return "positive" if classes == 2 else "top_label"


def width(notion: str, classes: int) -> int:
    """Length e of a point and of a residual."""
    return classes if notion == "canonical" else 1


def views(chunk: Chunk, notion: str) -> Sequence[NotionView]:
    """Views of a chunk for the notion's J problems, computed once."""
    if notion not in chunk.views:
        chunk.views[notion] = _make_views(chunk, notion)
    return chunk.views[notion]


def _make_views(chunk: Chunk, notion: str) -> Sequence[NotionView]:
    weights = chunk.weights if len(chunk.weights) else np.ones(len(chunk))
    if notion == "canonical":
        return [NotionView(chunk.units, chunk.q, chunk.q, chunk.log_q, chunk.delta, weights)]
    if notion == "class_wise":
        columns = []
        for k in range(chunk.n_features):
            p = chunk.q[:, k]
            # Only the top class can be so close to 1 that 1 − p loses its digits.
            complement = np.where(chunk.top == k, chunk.rest, 1.0 - p)
            columns.append((p, complement, chunk.delta[:, k]))
    else:
        columns = [chunk.event(notion)[:3]]
    result = []
    for p, complement, delta in columns:
        pair = np.column_stack([p, np.maximum(complement, 0.0)])
        logs = np.log(pair, out=np.full_like(pair, LOG_SMALLEST), where=pair > 0)
        result.append(NotionView(chunk.units, pair[:, :1], pair, logs, delta[:, None], weights))
    return result
