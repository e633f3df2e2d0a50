"""Predictions of outcomes that are numbers: the base of their targets, and their rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Bools, Floats, Ints
from calibscale.compiled import scored_rows
from calibscale.errors import InvalidDataError
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import NO_LABELS, NO_WEIGHTS, Chunk, Event
from calibscale.predictions.decimals import MORE
from calibscale.predictions.invalid_rows import OUTCOME, Fault
from calibscale.predictions.rules import Rules
from calibscale.predictions.target import Target

_TOLERANCE = 1e-4  # deviation of sums of probabilities from 1, whatever the type of the numbers


@dataclass(frozen=True)
class OutcomeTarget(Target):
    """Base class of predictions of a number Y, in one or several columns.

    A kind defines the residual δ of a row, and the point q at which kernels see its prediction.
    Functionals of the distribution of Y derive from `Functional`, and distributions from
    `Forecast`.

    Attributes
    ----------
    name : str
        Name of the kind, as in ``forecast="normal"``.
    columns : int or None
        Number of columns of predictions, or None if it depends on the settings.
    holds_sets : bool
        Whether a column of a table may have sets of classes instead of their sizes.
    """

    name: ClassVar[str]
    columns: ClassVar[int | None] = None
    is_embedded: ClassVar[bool] = True
    holds_sets: ClassVar[bool] = False

    # ---------------------------------------------------------------- layout

    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        """Raise `InvalidDataError` unless predictions have as many columns as they need."""
        if self.columns not in (None, count):
            raise InvalidDataError(
                f"{name}: predictions of kind {self.name} have {self.columns} columns, not {count}"
            )

    @property
    def description(self) -> dict[str, Any]:
        """Settings as written to results and stores."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def claim_settings(self) -> dict[str, Any]:
        """Settings that change what a prediction claims.  Those of kernels are keyword-only."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if entry.init and not entry.kw_only
        }

    @property
    def claim_in_words(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.claim_settings.items())
        return f"{self.name}({settings})" if settings else self.name

    def checked_labels(self, labels: NDArray[Any]) -> Floats:
        return self.checked(labels, "row {} of those appended".format)

    def imagined(self, n: int, rng: np.random.Generator) -> tuple[str, Floats]:
        # Increasing, positive and of sum 1: valid for all kinds with a fixed number of columns.
        values = np.sort(rng.dirichlet(np.ones(self.columns or 3), n), axis=1)
        if self.columns is None:
            values /= values[:, :1]  # a mixture of one, of the weight 1
        return self.name, values

    @property
    def described(self) -> dict[str, Any]:
        return {"forecast": self.description}

    @property
    def in_words(self) -> str:
        return f"forecasts ({self.name})"

    @property
    def sum_tolerance(self) -> float | None:
        return _TOLERANCE

    # ---------------------------------------------------------------- points and residuals

    @abstractmethod
    def embedded(self, values: Floats, y: Floats) -> Floats:
        """Point q of each prediction (c, d)."""

    @abstractmethod
    def residuals(self, rows: OutcomeChunk) -> Floats:
        """Residuals δ of rows (c, e)."""

    @abstractmethod
    def residual_variance(self, rows: OutcomeChunk) -> Floats:
        """E|δ|² of outcomes drawn from the predictions (c,)."""

    def drawn_embeddings(self, rows: OutcomeChunk, count: int, stream: int) -> Floats:
        """ψ of `count` outcomes drawn from each prediction (c, d, e); d = 0 without a distribution.

        Random numbers come from a `stream` by row number.
        """
        return np.empty((len(rows), 0, self.n_features))

    @abstractmethod
    def scalar_residuals(self, values: Floats, y: Floats) -> Floats:
        """One number of each row (c,) with mean 0 if the predictions are calibrated."""

    def named_notion(self, notion: str) -> str:
        return "forecast" if notion == "canonical" else notion

    # ---------------------------------------------------------------- rows

    def read(self, block: Block, rules: Rules) -> tuple[Chunk, Ints]:
        y = block.labels.astype(np.float64)
        # A kind with one column may have predictions (rows,).
        x = block.values.astype(np.float64, order="C").reshape(len(y), -1)
        chunk = OutcomeChunk(
            block.rows,
            x,
            rules.kind,
            labels=NO_LABELS,
            top=NO_LABELS,
            confidence=NO_WEIGHTS,
            rest=NO_WEIGHTS,
            brier=NO_WEIGHTS,
            nll=NO_WEIGHTS,
            weights=NO_WEIGHTS,
            target=self,
            outcomes=y,
        )
        return chunk, self.status(x, y)

    def fault_of(self, block: Block, rules: Rules, status: Ints, i: int, fault: Fault) -> str:
        values = np.asarray(block.values[i], np.float64).reshape(-1)
        return self.explained(int(status[i]), values, float(block.labels[i]))

    def status(self, values: Floats, y: Floats) -> Ints:
        """Reason for which each row is invalid, or `scored_rows.OK` (c,)."""
        out = self.outcome_status(y)
        with np.errstate(invalid="ignore", over="ignore"):
            self.check_values(values, out)
        # Missing numbers come before all other faults, which they would only hide.
        out[self.not_finite(values)] = scored_rows.NOT_FINITE
        return out

    def not_finite(self, values: Floats) -> Any:
        """Whether each prediction has numbers that are not finite, but must be (c,)."""
        return ~np.isfinite(values).all(axis=1)

    def outcome_status(self, y: Floats) -> Ints:
        """Reason for which each outcome is invalid, or `scored_rows.OK` (c,)."""
        out = np.full(len(y), scored_rows.OK, np.int64)
        out[np.isnan(y)] = scored_rows.UNLABELLED
        out[np.isinf(y)] = OUTCOME
        return out

    def checked(self, y: NDArray[Any], place: Callable[[int], str], first: int = 0) -> Floats:
        """Outcomes of rows from `first` on as float64.  An error names a wrong outcome's place."""
        y = y.astype(np.float64)
        status = self.outcome_status(y)
        invalid = status > scored_rows.UNLABELLED
        if not invalid.any():
            return y
        i = int(np.argmax(invalid))
        fault = self.explained(int(status[i]), np.empty(0), float(y[i]))
        raise InvalidDataError(f"{place(i)}: {fault}", first + i)

    def check_values(self, values: Floats, status: Ints) -> None:
        """Set the reason for which predictions are invalid; they may be NaN."""

    def explained(self, reason: int, values: Floats, y: float) -> str:
        """Fault of an invalid row with finite numbers, as the end of a sentence."""
        if reason == OUTCOME:
            # The fill value of stored outcomes is +∞.
            hint = " (a missing chunk of a store reads like this)" if y > 0 else ""
            return f"its outcome is {y:g}{hint}"
        if reason == scored_rows.OFF_SIMPLEX:
            return f"its probabilities sum to {values.sum():.9g}, not to 1"
        if reason == scored_rows.NEGATIVE:
            return f"it has the negative probability {values.min():g}"
        return f"its prediction is invalid (status {reason})"

    def impossible(self, values: Floats, y: Floats) -> Bools:
        """Whether the prediction gives an outcome the probability 0 (c,).

        Quantiles and ensembles do not say what lies beyond them, and densities are positive.
        """
        return np.zeros(len(y), np.bool_)


@dataclass(frozen=True, eq=False)
class OutcomeChunk(Chunk):
    """Rows with outcomes (c,) that are numbers, without labels and scores of classes.

    `q` are the points of the predictions (c, d), and `delta` the residuals (c, e), see
    `OutcomeTarget`.
    """

    target: OutcomeTarget
    outcomes: Floats = field(kw_only=True)

    @property
    def forecast(self) -> Any:
        """The target, as statistics of predictive distributions call it."""
        return self.target

    @property
    def n_features(self) -> int:
        return self.target.n_features

    @property
    def impossible(self) -> Ints:
        return self.rows[self.target.impossible(self.values, self.outcomes)]

    @property
    def decimals(self) -> int:
        return MORE  # quantities of outcomes are not probabilities

    @cached_property
    def q(self) -> Floats:
        return self.target.embedded(self.values, self.outcomes)

    @cached_property
    def factors(self) -> Floats:
        return self.q

    @property
    def log_q(self) -> Floats:
        return np.full_like(self.q, np.nan)  # embeddings have no logarithms

    @cached_property
    def delta(self) -> Floats:
        return self.target.residuals(self)

    @cached_property
    def parameters(self) -> Floats:
        return np.column_stack([self.values, self.outcomes])

    @property
    def responses(self) -> list[Any]:
        return [self.outcomes]

    @property
    def scalar_residual(self) -> Floats:
        return self.target.scalar_residuals(self.values, self.outcomes)

    @property
    def residual_variance(self) -> Floats:
        return self.target.residual_variance(self)

    def event(self, notion: str) -> Event:
        """Event that the predictions claim, of targets with `claims_event`."""
        p, happened = self.forecast.event(self.values, self.outcomes)
        hit = happened.astype(np.float64)
        return Event(p, 1.0 - p, p - hit, hit)

    def drawn_embeddings(self, index: Ints, count: int, stream: int) -> Floats:
        return self.target.drawn_embeddings(self.take(index), count, stream)
