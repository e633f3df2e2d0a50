"""Sources with recalibrated predictions."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.errors import OptionError
from calibscale.formatting.naming import NO_LEVEL
from calibscale.predictions.blocks import Block
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.target import Target
from calibscale.predictions.validation import chunks
from calibscale.recalibration.recalibrator import FittedRecalibrator, Refits

_SAMPLED = 16  # rows of a fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class _Recalibrated(DerivedSource):
    """Predictions of a recalibrated model: probabilities (rows, K), or values of the same kind.

    With `refits`, their columns follow the covariates.
    """

    fitted: FittedRecalibrator = field(kw_only=True)
    refits: Refits | None = None

    @property
    def row_bytes(self) -> int:
        carried = 0 if self.refits is None else self.refits.columns
        return self.before.row_bytes + 8 * (self.classes + carried)

    def describe(self) -> dict[str, Any]:
        description = self.before.describe()
        steps = [*description.get("recalibrated", []), self.fitted.summary]
        changes: dict[str, Any] = {"name": self.name, "kind": self.kind, "recalibrated": steps}
        if self.target.has_classes:
            changes["binary"] = False
        return {**description, **changes}

    def sample(self, count: int, seed: int = 0) -> Iterator[Block]:
        for block in self.before.sample(count, seed):
            yield self._changed(block)

    @property
    def _reads_covariates(self) -> bool:
        return bool(self.fitted.covariates)

    def _changed(self, block: Block) -> Block:
        n, x = len(block.labels), None
        if self.fitted.covariates:
            assert block.covariates is not None
            x = block.covariates[:, [self.covariate(name) for name in self.fitted.covariates]]
            x = self._numbered(x.astype(np.float64))
        # Invalid rows are dropped here, not refused, so that they keep their values.
        rules = replace(self.before.rules("drop", self.fitted.tolerance), large_chunks=True)
        plain = Block(0, block.values, np.zeros(n, np.int64), None, x)
        carried = np.zeros((n, 0 if self.refits is None else self.refits.columns))
        values: Floats | None = None
        for chunk, _ in chunks(plain, rules):
            if not len(chunk):
                continue
            predictions = self.fitted.predictions(chunk)
            if self.refits is not None:
                carried[chunk.rows] = self.refits.carried(chunk, predictions)
            # Most blocks are one chunk without an invalid row, and need no copy.
            if len(chunk) == n:
                values = predictions
                continue
            if values is None:
                values = self._unchanged(block)
            values[chunk.rows] = predictions
        if values is None:
            values = self._unchanged(block)
        block = block._replace(values=values)
        if self.refits is None or block.covariates is None:
            return block
        return block._replace(covariates=np.hstack([block.covariates, carried]))

    def _unchanged(self, block: Block) -> Floats:
        """Predictions in the form of recalibrated ones, where invalid ones stay.

        The reader detects and names them.
        """
        values = np.array(block.values, np.float64).reshape(len(block.labels), -1)
        if values.shape[1] == 1 and self.target.has_classes:
            values = np.hstack([1.0 - values, values])
        return values

    def _numbered(self, x: Floats) -> Floats:
        """Covariates with the numbers of categories in the fit, NaN for unknown categories."""
        categories = (self.fitted.source or {}).get("categories", {})
        for column, name in zip(x.T, self.fitted.covariates, strict=True):
            names = self.categories.get(name, ())
            if name in categories and tuple(categories[name]) != names:
                number_of = {category: i for i, category in enumerate(categories[name])}
                numbers = [number_of.get(category, np.nan) for category in names]
                # Codes of this source become codes of the fit.  A category that the fit has not
                # seen is NaN.
                has_name = np.isin(column, np.arange(len(names)))
                column[has_name] = np.array(numbers)[column[has_name].astype(int)]
                column[~has_name & (column != NO_LEVEL)] = np.nan
        return x


def recalibrated(
    source: Any, fitted: FittedRecalibrator, refits: Refits | None = None
) -> ArraySource:
    """Return a source with the recalibrated predictions of `source`.

    Labels, weights, covariates and row numbers come from `source`.  Predictions of classes are
    probabilities (rows, K) in float64, with two columns for a binary source, and others keep their
    kind.  They are computed when read, one block at a time.

    Invalid predictions (not finite, or further from the simplex than the tolerance of the fit) are
    unchanged, and remain invalid to a reader with the same or a smaller tolerance.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    fitted : FittedRecalibrator
        Result of `RecalibrationMethod.fit`.
    refits : Refits, optional
        Result of `refits_of`, for tests that account for the noise of the fit.

    Returns
    -------
    ArraySource
        Source with the recalibration in its `describe`.

    Raises
    ------
    OptionError
        If the source has another number of classes, or lacks a covariate.
    StoreError
        If the source cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.parametric import TemperatureScaling
    >>> from calibscale.data.derived_sources import part_of
    >>> from calibscale.recalibration.recalibrated_sources import recalibrated
    >>> from calibscale.data.derived_sources import HoldOut
    >>> logits = np.tile([2.0, 0.0], (1000, 1))
    >>> labels = (np.random.default_rng(0).random(1000) < 0.3).astype(int)
    >>> data, half = calibscale.from_arrays(logits=logits, labels=labels), HoldOut(0.5)
    >>> fitted = TemperatureScaling().fit(part_of(data, half))
    >>> rest = recalibrated(part_of(data, half, held=False), fitted)
    >>> calibscale.evaluate(rest, [calibscale.ECE()])["ece"].value < 0.1
    True
    """
    data = as_source(source)
    if fitted.source is not None and not data.target.has_classes:
        _check_claim(data.target, fitted.source)
    if data.target.has_classes and not fitted.classes:
        raise OptionError(
            f"{fitted.method.name} was not fitted to classes, as predictions of {data.name} are: "
            "declare their kind by forecast= (--forecast)"
        )
    if data.classes != fitted.classes:
        raise OptionError(
            f"{fitted.method.name} was fitted to {fitted.classes} classes; there are {data.classes}"
        )
    categories = (fitted.source or {}).get("categories", {})
    for name in fitted.covariates:
        data.covariate(name)
        # Categories are matched by name.  Numbers have no names to match.
        if (name in categories) != (name in data.categories):
            kind = "names" if name in categories else "numbers"
            raise OptionError(
                f"the values of {name!r} are {kind} in the fit, but not in {data.name}"
            )
    name = f"{data.name}, recalibrated by {fitted.method.name}"
    changes: dict[str, Any] = recalibrated_kind(data)
    return _Recalibrated.of(data, name=name, fitted=fitted, refits=refits, **changes)


def _check_claim(target: Target, source: dict[str, Any]) -> None:
    """Raise an OptionError if predictions claim something else than those of a fit's source."""
    of_fit = source["kind"]
    if "classes" not in source:
        settings: dict[str, Any] = source["forecast"]
        of_fit = forecast_of(of_fit, **settings).claim_in_words
    if target.claim_in_words != of_fit:
        raise OptionError(
            f"the recalibration was fitted to predictions of kind {of_fit}, and these are "
            f"{target.claim_in_words}"
        )


def recalibrated_kind(source: ArraySource) -> dict[str, Any]:
    """Fields of a source that change when it is recalibrated: logits become probabilities."""
    return {"kind": "probabilities", "binary": False} if source.target.has_classes else {}


def fingerprint_of(data: ArraySource) -> str:
    """Checksum of a few rows, and of the part of the rows to which the source is restricted."""
    # A few rows are enough to recognise the rows of the fit: it is a hint, and no proof.
    crc = zlib.crc32(json.dumps([data.rows, data.describe().get("parts")]).encode())
    for block in data.sample(_SAMPLED):
        for column in (block.values, block.labels):
            crc = zlib.crc32(np.ascontiguousarray(column).tobytes(), crc)
    return f"{crc:08x}"
