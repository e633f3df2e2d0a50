"""Calibration error at given predictions, by the selected estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError
from calibscale.predictions.notions import views
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.target import Target
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
    target: Target

    def __call__(self, predictions: Floats) -> Floats:
        """Return the error (c,) at predictions.

        Predictions are probabilities (c, K), or (c,) with P(y = 1) of two classes; or the columns
        (c, d) of another kind of prediction, or (c,) if it has one.

        Raises
        ------
        OptionError
            If the canonical KDE was selected, which is defined at the rows kept in memory only.
        InvalidDataError
            If a row is not a valid prediction, or has a different number of classes or columns.
        """
        rows = self._source(np.asarray(predictions, dtype=np.float64))
        if not all(fit.anywhere for fit in self.fits):
            raise OptionError("this estimator is only defined at the rows it was fitted for")
        values = [
            np.mean([fit.diagonal(seen)[:, 0].sum(axis=0) for fit in self.fits], axis=0)
            for chunk, _ in chunks(rows.read(0, rows.rows), rows.rules())
            for seen in [views(chunk, self.notion)]
        ]
        return np.concatenate(values) if values else np.empty(0)

    def _source(self, values: Floats) -> ArraySource:
        """Predictions with labels of 0, on which the error does not depend."""
        if values.ndim not in (1, 2):
            raise InvalidDataError(f"predictions must be rows, not of shape {values.shape}")
        n, name = len(values), "the source"
        if not self.target.has_classes:
            assert isinstance(self.target, OutcomeTarget)
            self.target.check_columns(values.shape[1] if values.ndim == 2 else 1, name)
            outcomes = np.zeros(n)
            kind = self.target.name
            return ArraySource(kind, values, outcomes, forecast=self.target, rows=n, name=name)
        K = self.target.n_features
        if values.shape[1:] not in ((K,), ()) or (values.ndim == 1 and K != 2):
            raise InvalidDataError(f"probabilities must be (c, {K}), not of shape {values.shape}")
        is_binary = values.ndim == 1
        labels = np.zeros(n, np.int64)
        return ArraySource("probabilities", values, labels, binary=is_binary, rows=n, name=name)
