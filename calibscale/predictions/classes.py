"""Probabilities of classes: the target, and its rows with their scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import scored_rows
from calibscale.errors import BinaryError, InvalidDataError
from calibscale.predictions import input_hints
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import NO_WEIGHTS, Chunk
from calibscale.predictions.claims import CLASSES
from calibscale.predictions.invalid_rows import Fault
from calibscale.predictions.rules import Rules
from calibscale.predictions.target import KERNEL_ERROR, Draws, Target

MAX_CLASSES = 100  # judged one by one, as their replicates take memory for each class


@dataclass(frozen=True)
class Classes(Target):
    """Probabilities of K classes, of which a label names one; the residual is q − e_y.

    Parameters
    ----------
    classes : int
        Number K of classes.
    binary : bool
        Whether predictions are a single column, of class 1 of two.
    """

    classes: int
    binary: bool = False
    claim: ClassVar[str] = CLASSES
    name: ClassVar[str] = "classes"
    has_classes: ClassVar[bool] = True
    has_single_labels: ClassVar[bool] = True
    kernel_error: ClassVar[str] = "jkce"
    # The gap of confidence and accuracy is tested by the error of a single bin, which is its size.
    tested_as: ClassVar[dict[str, str]] = {"confidence_gap": "ece(bins=1)"}

    @property
    def n_features(self) -> int:
        return self.classes

    @property
    def described(self) -> dict[str, Any]:
        return {"classes": self.classes, "binary": self.binary}

    @property
    def in_words(self) -> str:
        return f"{self.classes} classes"

    label_types: ClassVar[str] = "iu"
    stored_types: ClassVar[tuple[str, ...]] = ("float16", "float32", "float64")
    label_noun: ClassVar[str] = "integers"
    stored_label_type: ClassVar[type] = np.int32
    missing_label: ClassVar[float] = -2  # −1 is a label that is not yet known

    def checked_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        outside = (labels < -1) | (labels >= self.classes)
        if not outside.any():
            return labels
        i = int(np.argmax(outside))
        raise InvalidDataError(
            f"row {i} of those appended has the label {labels[i]}, outside "
            f"0..{self.classes - 1} (−1: not yet known)"
            + input_hints.of_range(labels, self.classes),
            i,
        )

    @property
    def recalibration_scores(self) -> tuple[str, ...]:
        return ("nll", "brier")

    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        if self.binary and count != 1:
            raise BinaryError(f"{name}: binary is declared, but {kind} are {count} columns")

    @property
    def declared(self) -> None:
        return None

    def imagined(self, n: int, rng: np.random.Generator) -> tuple[str, Floats]:
        return "probabilities", rng.dirichlet(np.ones(self.classes), n)

    def role_of(self, kind: str) -> str:
        return kind

    def read(self, block: Block, rules: Rules) -> tuple[Chunk, Ints]:
        return scored(block, rules, self)

    def without_labels(self, block: Block) -> Block:
        return block._replace(labels=np.zeros_like(block.labels))

    def fault_of(self, block: Block, rules: Rules, status: Ints, i: int, fault: Fault) -> str:
        reason = int(status[i])
        name = repr(fault.column)
        if reason == scored_rows.LABEL_RANGE:
            return _label_fault(name, block, i, self.classes)
        values = np.asarray(block.values[i], np.float64).reshape(-1)
        single = len(values) == 1
        if reason == scored_rows.OFF_SIMPLEX:
            text = (
                f"{name} sum to {values.sum():.9g}, "
                f"further from 1 than the tolerance {rules.tolerance:g}"
            )
            sums = block.values.sum(axis=1, dtype=np.float64)[status == scored_rows.OFF_SIMPLEX]
            hint = input_hints.of_sums(sums) or input_hints.of_probabilities(values, False)
            return text + hint
        # The shortest text that stands for the number in its own type: 1.0000001, not 1.
        seen = str(np.asarray(block.values[i]).reshape(-1)[fault.position or 0])
        text = f"{name} is {seen}, a probability above 1"
        if reason == scored_rows.NEGATIVE:
            text = f"{name} is {seen}, a negative probability"
        if not single and fault.position is not None:
            text += f" (class {fault.position})"
        return text + input_hints.of_probabilities(values, single)

    def drawn_residuals(self, rows: Any, draws: Draws, first: int, last: int) -> Iterator[Floats]:
        for drawn in draws.labels(rows.units, rows.q, first, last):
            residuals = rows.q.copy()
            residuals[np.arange(len(rows)), drawn] -= 1.0
            yield residuals

    @property
    def default_tests(self) -> tuple[str, ...]:
        # With two classes, scores of the positive class judge the whole prediction.
        if self.classes == 2:
            return ("mean_score", "cox_score", "spread_score", "smooth_test", "residual_scan")
        tests = ["cox_score", "spread_score", "smooth_test", "residual_scan"]
        if self.classes <= MAX_CLASSES:
            tests += [
                "mean_score(notion=class_wise)",
                "cox_score(notion=class_wise)",
                "temperature_score",
                "smooth_test(notion=class_wise)",
                "residual_scan(notion=class_wise)",
            ]
        return (*tests, KERNEL_ERROR)

    @property
    def sizes(self) -> tuple[str, ...]:
        sizes = ["confidence_gap", "ece", "tce2_debiased"]
        if 2 < self.classes <= MAX_CLASSES:
            sizes.append("cwce2")  # the size of errors of classes other than the top label
        return (*sizes, KERNEL_ERROR)


def _label_fault(name: str, block: Block, i: int, classes: int) -> str:
    label = block.labels[i]
    text = f"{name} is {label}, outside 0..{classes - 1} (−1: not yet known"
    text += ", and a missing chunk of a store reads as −2)" if label == -2 else ")"
    return text + input_hints.of_range(block.labels, classes)


def scored(block: Block, rules: Rules, target: Target) -> tuple[Chunk, Ints]:
    """Rows of classes with their scores, and the status of each (c,)."""
    n = len(block.labels)
    x = _square(block.values, rules)
    with np.errstate(invalid="ignore"):  # NaN
        labels = block.labels.astype(np.int64)
    if block.labels.dtype == np.uint64:
        labels[block.labels >= 2**63] = target.n_features  # they are out of range, and not negative
    elif block.labels.dtype.kind == "f":  # a chunk can have another type than its array declares
        labels[block.labels != np.floor(block.labels)] = target.n_features
        labels[np.isnan(block.labels)] = -1  # NaN is not equal to itself, and not yet known
    top = np.zeros(n, np.int64)
    status = np.empty(n, np.int64)
    confidence, complement, brier, nll = np.zeros((4, n))
    scores = (top, confidence, complement, brier, nll, status)
    two = x.shape[1] == 2
    if rules.kind == "logits":
        score_logits = scored_rows.score_two_logits if two else scored_rows.score_logits
        score_logits(x, labels, *scores)
    else:
        of_two, of_many = (
            scored_rows.score_two_probabilities,
            scored_rows.score_probabilities,
        )
        score_probabilities = of_two if two else of_many
        score_probabilities(x, labels, rules.tolerance, *scores)
        # Numbers outside 0..1 by rounding alone are clipped, and the rows scored again.
        if (status == scored_rows.NEGATIVE).any():
            x = _rounded(x, status, rules.tolerance)
            score_probabilities(x, labels, rules.tolerance, *scores)
            if block.values.reshape(n, -1).shape[1] == 1:
                # The kernel sees the negative P(y = 0) of a column above 1.
                above = (status == scored_rows.NEGATIVE) & (x[:, 1] > 1.0)
                status[above] = scored_rows.ABOVE_ONE
    scores_of_rows = (confidence, complement, brier, nll)
    chunk = Chunk(block.rows, x, rules.kind, labels, top, *scores_of_rows, NO_WEIGHTS, target)
    return chunk, status


def _rounded(x: NDArray[Any], status: Ints, tolerance: float) -> NDArray[Any]:
    """Probabilities (rows, K), with 0 or 1 for numbers that are outside 0..1 by rounding alone."""
    rows = np.flatnonzero(status == scored_rows.NEGATIVE)
    rows = rows[x[rows].min(axis=1) >= -tolerance]
    rows = rows[x[rows].max(axis=1) <= 1.0 + tolerance]
    x = x.copy()
    x[rows] = np.clip(x[rows], 0.0, 1.0)
    return x


def _square(values: NDArray[Any], rules: Rules) -> NDArray[Any]:
    """Values (rows, K) as kernels take them.  Binary columns become [0, z] or [1 − p, p]."""
    if values.ndim == 2 and values.shape[1] > 1:
        if values.dtype in (np.float32, np.float64) and values.flags.carray:
            return values
        # Arrays of float16, of another byte order, read-only or strided ones are copied, so that
        # kernels are compiled for two types only.
        dtype = np.float32 if values.dtype == np.float16 else np.float64
        return np.array(values, dtype=dtype, order="C")
    x = np.empty((len(values), 2))
    x[:, 1] = values.reshape(-1)
    x[:, 0] = 0.0 if rules.kind == "logits" else 1.0 - x[:, 1]
    return x
