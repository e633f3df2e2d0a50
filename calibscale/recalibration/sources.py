"""Sources made of another: a part of its rows, and its rows as a recalibrated model sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calibscale.chunk import Block, Ints, Rules, chunks
from calibscale.errors import OptionError
from calibscale.products import HoldOut
from calibscale.source import ArraySource
from calibscale.store import as_source

if TYPE_CHECKING:
    from calibscale.recalibration.base import Fitted
    from calibscale.recalibration.refits import Refits

_PIECE = 2**20  # row numbers hashed together


@dataclass(frozen=True, eq=False)
class _Made(ArraySource):
    """A source that changes the blocks of the one `before` it; the columns are those of that."""

    before: ArraySource = field(kw_only=True)

    @property
    def classes(self) -> int:
        return self.before.classes

    @property
    def in_memory(self) -> bool:
        return self.before.in_memory

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        before = self.before.part(start, stop, covariates or self._reads_covariates)
        return replace(self, before=before, **_columns(before))

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        """Rows start..stop−1, changed; covariates only on request."""
        block = self.before.read(start, stop, covariates or self._reads_covariates)
        block = self._changed(block)
        return block if covariates else block._replace(covariates=None)

    @property
    def _reads_covariates(self) -> bool:
        return False

    def _changed(self, block: Block) -> Block:
        """The block as this source has it."""
        raise NotImplementedError


def _columns(before: ArraySource) -> dict[str, Any]:
    """What a source has from the one before it."""
    names = ("values", "labels", "covariates", "covariate_names", "weights", "rows", "first_row")
    kept = ("class_names", "categories")
    return {name: getattr(before, name) for name in (*names, *kept)}


# ---------------------------------------------------------------- parts


@dataclass(frozen=True, eq=False)
class _Part(_Made):
    """Rows that are held out, or the rest; the others are there, without a label."""

    hold_out: HoldOut = field(kw_only=True)
    held: bool = field(kw_only=True)

    def describe(self) -> dict[str, Any]:
        told = self.before.describe()
        mine = {"share": self.hold_out.share, "seed": self.hold_out.seed, "held": self.held}
        return {**told, "parts": [*told.get("parts", []), mine]}

    def keeps(self, rows: Ints) -> Any:
        """Whether each of the numbered rows is in the part (c,)."""
        return self.hold_out.holds(rows) == self.held

    def sample(self, count: int, seed: int = 0) -> Iterator[Block]:
        """Rows of all parts: what is chosen by a sample never looks at labels."""
        return self.before.sample(count, seed)

    def _changed(self, block: Block) -> Block:
        out = ~self.keeps(np.arange(block.start, block.start + len(block.labels)))
        labels = block.labels
        if labels.dtype == np.uint64:
            labels = np.minimum(labels, np.uint64(2**63 - 1))  # stays out of range
        labels = labels.astype(np.int64)
        labels[out] = -1
        # whatever else those rows hold is no matter of this part: nothing that would be invalid
        values = _filled(block.values, out, 0.0)
        if self.kind == "probabilities":  # all on one class: exact in every type
            values.reshape(len(labels), -1)[out, 0] = 1.0
        return Block(
            block.start,
            values,
            labels,
            _filled(block.weights, out, 1.0),
            _filled(block.covariates, out, 0.0),
            block.name,
        )


def _filled(column: Any, where: Any, value: float) -> Any:
    """A copy with some rows replaced, if there is a column."""
    if column is None:
        return None
    column = np.array(column)
    column[where] = value
    return column


def part_of(source: Any, hold_out: HoldOut, held: bool = True) -> ArraySource:
    """The rows that are held out, or all others; row numbers stay as they are.

    Which row is in which part depends on its number and the seed alone.  Rows of the other part
    are left out as rows without a label are, and counted with them: `left_out` tells how many.
    Whatever they hold, they are not invalid, but for covariates where an estimator uses them:
    their range, and default bandwidths, come from all rows.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    hold_out : HoldOut
        Its seed should be another than that of an estimator with ``choose=``, which holds out
        rows by the same draw.
    held : bool
        Whether the part is the rows held out or the rest.

    Returns
    -------
    ArraySource

    Raises
    ------
    OptionError, StoreError
        If it is no source, or cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.products import HoldOut
    >>> from calibscale.recalibration import left_out, part_of
    >>> data = calibscale.from_arrays(
    ...     probabilities=np.full(100, 0.5), labels=np.zeros(100, int), binary=True
    ... )
    >>> parts = [part_of(data, HoldOut(0.3), held) for held in (True, False)]
    >>> sum(left_out(part) for part in parts)
    100
    """
    data = as_source(source)
    return _Part(
        data.kind, binary=data.binary, name=data.name, before=data, hold_out=hold_out, held=held,
        **_columns(data),
    )  # fmt: skip


def left_out(source: ArraySource) -> int:
    """How many rows of a source are in none of the parts it was cut to.

    Results count them as unlabelled.
    """
    parts, before = [], source
    while isinstance(before, _Made):
        if isinstance(before, _Part):
            parts.append(before)
        before = before.before
    if not parts:
        return 0
    count = 0
    for low in range(0, source.rows, _PIECE):
        rows = source.first_row + np.arange(low, min(low + _PIECE, source.rows))
        count += int((~np.logical_and.reduce([part.keeps(rows) for part in parts])).sum())
    return count


# ---------------------------------------------------------------- recalibrated


@dataclass(frozen=True, eq=False)
class _Recalibrated(_Made):
    """The probabilities (rows, K) of a recalibrated model.

    Where `refits` are given, the columns of the covariates are followed by what those need.
    """

    fitted: Fitted = field(kw_only=True)
    refits: Refits | None = None

    @property
    def row_bytes(self) -> int:
        carried = 0 if self.refits is None else self.refits.columns
        return self.before.row_bytes + 8 * (self.classes + carried)

    def describe(self) -> dict[str, Any]:
        told = self.before.describe()
        steps = [*told.get("recalibrated", []), self.fitted.summary]
        return {
            **told, "name": self.name, "kind": self.kind, "binary": False, "recalibrated": steps,
        }  # fmt: skip

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
        # rows that are no predictions stay as they are: whoever reads them finds and names them
        values = np.array(block.values, np.float64).reshape(n, -1)
        if values.shape[1] == 1:
            values = np.hstack([1.0 - values, values])
        rules = Rules(
            self.before.kind, self.classes, 1, tolerance=self.fitted.tolerance,
            on_invalid="drop", large_chunks=True,
        )  # fmt: skip
        plain = Block(0, block.values, np.zeros(n, np.int64), None, x)
        carried = np.zeros((n, 0 if self.refits is None else self.refits.columns))
        for chunk, _ in chunks(plain, rules):
            if len(chunk):
                values[chunk.rows] = self.fitted.probabilities(chunk)
                if self.refits is not None:
                    carried[chunk.rows] = self.refits.carried(chunk, values[chunk.rows])
        block = block._replace(values=values)
        if self.refits is None or block.covariates is None:
            return block
        return block._replace(covariates=np.hstack([block.covariates, carried]))


def recalibrated(source: Any, fitted: Fitted, refits: Refits | None = None) -> ArraySource:
    """The rows of a source as the recalibrated model predicts them, a block at a time.

    Labels, weights, covariates and row numbers are those of `source`; predictions are
    probabilities (rows, K) in float64, of two columns for a binary source.  Nothing is computed
    before it is read.  Rows that are no predictions (not finite, or further from the simplex than
    the tolerance of the fit) are handed on as they are, so that who reads them with no larger
    tolerance still finds them invalid.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    fitted : Fitted
        What a method's `fit` returned.
    refits : Refits, optional
        What `refits_of` returned, for tests that count the noise of the fit.

    Returns
    -------
    ArraySource
        Its `describe` says by what it was recalibrated.

    Raises
    ------
    OptionError
        If the source has another number of classes, or lacks a covariate.
    StoreError
        If it cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.products import HoldOut
    >>> from calibscale.recalibration import Temperature, part_of, recalibrated
    >>> logits = np.tile([2.0, 0.0], (1000, 1))
    >>> labels = (np.random.default_rng(0).random(1000) < 0.3).astype(int)
    >>> data, half = calibscale.from_arrays(logits=logits, labels=labels), HoldOut(0.5)
    >>> fitted = Temperature().fit(part_of(data, half))
    >>> rest = recalibrated(part_of(data, half, held=False), fitted)
    >>> calibscale.evaluate(rest, [calibscale.ECE()])["ece"].value < 0.1
    True
    """
    data = as_source(source)
    if data.classes != fitted.classes:
        raise OptionError(
            f"{fitted.method.name} was fitted to {fitted.classes} classes; there are {data.classes}"
        )
    for name in fitted.covariates:
        data.covariate(name)
    name = f"{data.name}, recalibrated by {fitted.method.name}"
    return _Recalibrated(
        "probabilities", name=name, before=data, fitted=fitted, refits=refits,
        **_columns(data),
    )  # fmt: skip
