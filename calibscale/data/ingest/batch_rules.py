"""Invalid rows of the batches that an ingest copies: refused, dropped and counted, or kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from calibscale.data.ingest.batches import Batch
from calibscale.data.source import ArraySource
from calibscale.data.top_k import warn_of_rest
from calibscale.errors import InvalidDataError, OptionError
from calibscale.predictions import input_hints
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.validation import valid_rows

_log = logging.getLogger(__name__)

CHOICES = ("raise", "drop", "keep")


class BatchRules:
    """Treatment of the invalid rows of batches, and the numbers of rows that were seen.

    Predictions, labels and weights are judged as by `evaluate`.  Covariates are not, as each
    evaluation judges those that it uses.

    Parameters
    ----------
    on_invalid : {"raise", "drop", "keep"}
    tolerance : float, optional
        See `Session.open`.
    described : dict
        Fields of the source of each batch, besides its columns: ``kind``, ``binary``, ….
    """

    def __init__(
        self, on_invalid: str, tolerance: float | None, described: Mapping[str, Any]
    ) -> None:
        if on_invalid not in CHOICES:
            listed = ", ".join(map(repr, CHOICES))
            raise OptionError(f"on_invalid must be one of {listed}, not {on_invalid!r}")
        self.on_invalid, self.tolerance = on_invalid, tolerance
        self.counts = RowCounts()
        self._described, self._first = described, True

    def kept(self, batch: Batch) -> Batch:
        """Rows of a batch without those that are dropped.

        Raises
        ------
        InvalidDataError
            At the first invalid row, if invalid rows are to be raised.
        """
        rows = ArraySource(
            values=batch.values,
            labels=batch.labels,
            weights=batch.weights,
            rows=len(batch.labels),
            first_row=batch.start,
            name=batch.file,
            **self._described,
        )
        # Warnings are logged once, for the first batch.
        if self._first and rows.kind == "logits" and input_hints.seem_probabilities(rows.values):
            _log.warning(input_hints.ARE_PROBABILITIES, rows.name)
        if self._first and "top_k" in rows.columns:
            warn_of_rest(rows.values, rows.name)
        self._first = False
        if self.on_invalid == "keep":
            return batch
        rules = rows.rules(self.on_invalid, self.tolerance)
        try:
            valid, counts = valid_rows(rows.read(0, rows.rows), rules)
        except InvalidDataError as error:
            if not batch.lines or error.row is None:
                raise
            # Rows of text files may span lines, so that users look for the line.
            line = batch.lines[error.row - batch.start]
            place, _, text = str(error).partition(": ")
            raise InvalidDataError(f"{place} (line {line}): {text}", error.row) from None
        self.counts += counts
        return batch if valid.all() else batch.take(valid)
