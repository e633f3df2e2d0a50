"""Labels that are probabilities of the classes: the target, its rows, and their validity."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import scored_rows
from calibscale.predictions import input_hints
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import NO_LABELS, Chunk
from calibscale.predictions.claims import CLASSES, SOFT
from calibscale.predictions.classes import Classes, scored
from calibscale.predictions.invalid_rows import MISSING, NEGATIVE, Fault
from calibscale.predictions.rules import Rules
from calibscale.predictions.target import KERNEL_ERROR


@dataclass(frozen=True, eq=False)
class SoftChunk(Chunk):
    """Rows with labels s that are probabilities of the classes, `soft` (c, K).

    `labels` are empty, δ is q − s, `brier` Σ_k (q_k − s_k)², `nll` −Σ_k s_k log q_k, and events are
    probabilities.
    """

    soft: Floats = field(kw_only=True)

    @cached_property
    def delta(self) -> Floats:
        return self.factors - self.soft

    @cached_property
    def hit(self) -> Floats:
        return self.soft[np.arange(len(self)), self.top]

    @property
    def positive(self) -> Floats:
        return np.ascontiguousarray(self.soft[:, 1])

    @property
    def responses(self) -> list[Any]:
        return [*self.soft.T]


@dataclass(frozen=True)
class SoftLabels(Classes):
    """Probabilities of classes, where the label of each row is a distribution too.

    A label says how often each class was right, not which class a draw would give.  No labels are
    drawn, and residuals q − s get random signs instead.
    """

    claim: ClassVar[str] = SOFT
    has_single_labels: ClassVar[bool] = False
    draws_responses: ClassVar[bool] = False

    @property
    def described(self) -> dict[str, Any]:
        return {**super().described, "soft_labels": True}

    @property
    def defaults_of(self) -> str:
        return CLASSES

    @property
    def default_tests(self) -> tuple[str, ...]:
        return (KERNEL_ERROR,)

    def without_labels(self, block: Block) -> Block:
        return block

    def has_vector_residuals(self, notion: str) -> bool:
        return notion == "canonical"

    def fault_of(self, block: Block, rules: Rules, status: Ints, i: int, fault: Fault) -> str:
        if status[i] != scored_rows.BAD_SHARES:
            return super().fault_of(block, rules, status, i, fault)
        shares = np.asarray(block.labels[i], np.float64)
        name = repr(fault.column)
        if fault.fault == MISSING:
            return (
                f"some of its labels ({name}), which are probabilities of the classes, are missing"
            )
        if fault.fault == NEGATIVE:
            return f"{name}, which are probabilities of the classes, contain {shares.min():.6g}"
        text = f"{name} sum to {shares.sum():.6g}, not to 1"
        return f"{text}; {input_hints.SEVERAL}" if shares.max() == 1 else text

    def read(self, block: Block, rules: Rules) -> tuple[Chunk, Ints]:
        """Chunk of all rows with labels that are probabilities, and the status of each row (c,)."""
        unlabelled = block._replace(labels=np.zeros(len(block.labels), np.int64))
        chunk, status = scored(unlabelled, rules, self)
        columns = {f.name: getattr(chunk, f.name) for f in fields(chunk)}
        soft = block.labels.astype(np.float64)
        columns["nll"] = log_loss(chunk.values, rules.kind, chunk.confidence, soft)
        columns["labels"] = NO_LABELS
        residuals = SoftChunk(**columns, soft=soft).delta
        columns["brier"] = (residuals**2).sum(axis=1)
        return SoftChunk(**columns, soft=soft), judged(block.labels, rules.tolerance, status)


def axes_of_labels(labels: Any, shape: tuple[int, ...]) -> int:
    """Number of axes that labels must have, for predictions of several columns of a shape.

    Floats of the shape of the predictions are probabilities of the classes.
    """
    are_floats = np.dtype(labels.dtype).kind == "f"
    return 2 if are_floats and tuple(labels.shape[1:]) == tuple(shape[1:]) else 1


def judged(labels: NDArray[Any], tolerance: float, status: Ints) -> Ints:
    """Status of rows with labels (c, K), from the `status` of their predictions (c,).

    A row has no label yet if its labels are all NaN.
    """
    # Labels may have a coarser type than predictions, with larger errors of their sums.
    tolerance = max(tolerance, float(np.finfo(labels.dtype).eps))
    fits = abs(labels.sum(axis=1, dtype=np.float64) - 1.0) <= tolerance
    wrong = np.where(np.isnan(labels).all(axis=1), scored_rows.UNLABELLED, scored_rows.BAD_SHARES)
    return np.where((status == scored_rows.OK) & ~(fits & (labels >= 0).all(axis=1)), wrong, status)


def log_loss(values: NDArray[Any], kind: str, confidence: Floats, soft: Floats) -> Floats:
    """Cross entropy −Σ_k s_k log q_k of each row (c,), with 0 log 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # log q_k = z_k − max z + log(max q) for logits.
        log_q = values.astype(np.float64)
        if kind == "logits":
            log_q += np.log(confidence)[:, None] - log_q.max(axis=1, keepdims=True)
        else:
            log_q = np.log(log_q)
        return -np.where(soft > 0, soft * log_q, 0.0).sum(axis=1)
