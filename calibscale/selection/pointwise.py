"""Calibration error at given predictions, by the selected estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError
from calibscale.predictions.notions import views
from calibscale.predictions.validation import chunks
from calibscale.selection.families import FittedFamily


@dataclass(frozen=True)
class Pointwise:
    """Squared calibration error at each prediction: h(p, p), the mean over the k `fits`.

    The mean over rows is the estimate for these rows [GB eq. 21].  Class-wise values are summed
    over classes.
    """

    fits: tuple[FittedFamily, ...]
    notion: str
    classes: int

    def __call__(self, probabilities: Floats) -> Floats:
        """Return the error (c,) at predictions (c, K), or (c,) with P(y = 1) of two classes.

        Raises
        ------
        OptionError
            If the canonical KDE was selected, which is defined at the rows kept in memory only.
        InvalidDataError
            If a row is not a probability vector, or has a different number of classes.
        """
        q = np.asarray(probabilities, dtype=np.float64)
        K = self.classes
        if q.shape[1:] not in ((K,), ()) or (q.ndim == 1 and K != 2):
            raise InvalidDataError(f"probabilities must be (c, {K}), not of shape {q.shape}")
        if not all(fit.anywhere for fit in self.fits):
            raise OptionError("this estimator is only defined at the rows it was fitted for")
        labels = np.zeros(len(q), np.int64)
        rows = ArraySource(
            "probabilities", q, labels, binary=q.ndim == 1, rows=len(q), name="the source"
        )
        values = [
            np.mean([fit.diagonal(seen)[:, 0].sum(axis=0) for fit in self.fits], axis=0)
            for chunk, _ in chunks(rows.read(0, len(q)), rows.rules())
            for seen in [views(chunk, self.notion)]
        ]
        return np.concatenate(values) if values else np.empty(0)
