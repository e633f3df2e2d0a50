"""Targets: what the prediction of a row claims, and how far it was off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.predictions.blocks import Block


class Draws(Protocol):
    """Random numbers of a null, which depend on the seed, the row and the replicate alone."""

    def labels(self, rows: Ints, q: Floats, first: int, last: int) -> Any:
        """Labels drawn from probabilities (B, c)."""

    def uniforms(self, rows: Ints, first: int, last: int) -> Iterator[Floats]:
        """Uniform numbers (c,), replicate by replicate."""


class Response(NamedTuple):
    """Words for the responses of a functional.

    `noun` is their mean, such as ``mean outcome``, and `order` the numbers by which predictions are
    put in order, such as ``predictions``.  `is_share` says that responses are events.
    """

    noun: str
    order: str
    is_share: bool

    @classmethod
    def restored(cls, parts: Any) -> Response | None:
        """Words from the parts that a ledger keeps, or None without any."""
        return None if parts is None else cls(*parts)

    @property
    def described(self) -> dict[str, Any]:
        """Members of the details of estimates."""
        return {"response": self.noun, "order": self.order, "is_share": self.is_share}


class Target(ABC):
    """What a row claims: E[δ | prediction, covariates] = 0 for a residual δ.

    Everything in which kinds of predictions differ is a member of this class.  Other modules ask a
    target what it can do, and never which kind it is.

    Attributes
    ----------
    claim : str
        Name by which an estimator says that it judges the target, in `Estimator.judges`.
    name : str
        Name of the kind.
    has_classes : bool
        Whether predictions are probabilities of classes, so that there are a top label, scores of
        classes, and events with a predicted probability.
    has_single_labels : bool
        Whether each row has one of the classes as its label.
    draws_responses : bool
        Whether a prediction is a distribution from which labels or outcomes can be drawn.  Then
        tests and floors are exact.  Otherwise residuals get random signs.
    is_embedded : bool
        Whether q is an embedding of the prediction that has no logarithm, and residuals are vectors
        of any direction.
    has_scalar_points : bool
        Whether predictions with residuals of one number are points of a line.
    has_linear_kernel : bool
        Whether predictions are points of the space of their residuals, as estimators with a linear
        kernel need.
    kernel_error : str
        Estimator of the kernel error that suits the predictions best.
    ranked_by : str
        Estimator by which `rank` orders models if none is named.
    claims_event : bool
        Whether each prediction of a number claims an event, such as that an interval contains the
        outcome.  Then rows have an `event` without classes.
    response : Response or None
        Words for responses that are compared with predictions, of functionals.
    tested_as : dict
        Estimators of `sizes` that are tested by another one, such as the size of a gap.

    See Also
    --------
    calibscale.predictions.classes.Classes : Probabilities of classes.
    calibscale.predictions.soft_labels.SoftLabels : The same, where labels are probabilities.
    calibscale.predictions.outcomes.OutcomeTarget : Predictions of a number.  Kinds of other
        packages derive from it, and are named by entry points ``calibscale.targets``.
    calibscale.predictions.distributions.forecast.Forecast : Predictive distributions.
    """

    claim: ClassVar[str]
    name: ClassVar[str]
    has_classes: ClassVar[bool] = False
    has_single_labels: ClassVar[bool] = False
    draws_responses: ClassVar[bool] = True
    is_embedded: ClassVar[bool] = False
    has_scalar_points: ClassVar[bool] = True
    has_linear_kernel: ClassVar[bool] = True
    kernel_error: ClassVar[str]
    ranked_by: ClassVar[str] = "ckce_centred"
    response: ClassVar[Response | None] = None
    tested_as: ClassVar[Mapping[str, str]] = {}
    claims_event: ClassVar[bool] = False
    bound: bool = True  # whether no setting is left that depends on the outcomes

    # ---------------------------------------------------------------- layout

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Length of q and of a residual δ."""

    @property
    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Members of the description of a source in results."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """Kind of the predictions as an error or `repr` names it."""

    @property
    def claim_in_words(self) -> str:
        """Kind with the settings of the claim, such as ``interval(coverage=0.9)``."""
        return self.name

    @property
    def declared(self) -> Any:
        """Value of ``forecast=`` that declares the target, or None if no declaration is needed."""
        return self

    @abstractmethod
    def imagined(self, n: int, rng: np.random.Generator) -> tuple[str, Floats]:
        """Kind and values of n valid predictions, which let estimators check their settings."""

    def with_target(self, outcomes: Floats) -> Target:
        """Target whose settings do not depend on a sample of outcomes (m,) any more."""
        return self

    # In a store: types of predictions, of which the second is the default, types of labels that may
    # be appended, the type in which they are kept, and the label of a row in a missing chunk.
    stored_types: ClassVar[tuple[str, ...]] = ("float32", "float64")
    label_types: ClassVar[str] = "iufb"
    label_noun: ClassVar[str] = "numbers"
    stored_label_type: ClassVar[type] = np.float64
    missing_label: ClassVar[float] = np.inf

    @abstractmethod
    def checked_labels(self, labels: Any) -> Any:
        """Labels as a store keeps them (n,).  An InvalidDataError names the first invalid one."""

    @abstractmethod
    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        """Raise an InvalidDataError if predictions of a source cannot have so many columns."""

    def role_of(self, kind: str) -> str:
        """Role of the columns of predictions of a kind, such as ``logits``."""
        return "predictions"

    # ---------------------------------------------------------------- rows

    @abstractmethod
    def read(self, block: Block, rules: Any) -> tuple[Any, Ints]:
        """Chunk of all rows of a block, valid or not, and the status of each row (c,).

        A status is `scored_rows.OK`, `UNLABELLED`, or the larger number of a fault that
        `invalid_rows` has in words.
        """

    def without_labels(self, block: Block) -> Block:
        """Block with labels in every row, of targets whose labels can be filled in."""
        return block

    with_missing: ClassVar[bool] = False  # whether numbers of a prediction may be missing

    @abstractmethod
    def fault_of(self, block: Block, rules: Any, status: Ints, i: int, fault: Any) -> str:
        """Fault of the finite prediction, or of the label, of row `i` of a block.

        `fault` is the column at fault, see `invalid_rows.Fault`.
        """

    # ---------------------------------------------------------------- notions and residuals

    def named_notion(self, notion: str) -> str:
        """Name of a notion in results."""
        return notion

    def has_vector_residuals(self, notion: str) -> bool:
        """Whether residuals of a notion are any vectors, not a prediction minus a unit vector."""
        return self.is_embedded

    @property
    def sum_tolerance(self) -> float | None:
        """Allowed deviation of sums whatever the type of the numbers, or None: by the type."""
        return None

    # ---------------------------------------------------------------- draws under the null

    @property
    def null(self) -> str:
        """Name of the null of independent rows."""
        return "labels" if self.draws_responses else "wild"

    @abstractmethod
    def drawn_residuals(self, rows: Any, draws: Draws, first: int, last: int) -> Iterator[Floats]:
        """Residuals δ* (c, K) of drawn labels or outcomes, replicate by replicate."""

    def event_probabilities(self, rows: Any) -> Floats:
        """Probability p of the event of each row (n,), where residuals p − event have one number.

        `rows` are `NotionRows`.
        """
        return rows.points[:, 0]

    def drawn_products(
        self, rows: Any, phi: Floats, draws: Draws, first: int, last: int
    ) -> Iterator[tuple[Floats, Floats]]:
        """δ*ᵀφ (K, m) with features φ (c, m), and |δ*|² (c,), replicate by replicate."""
        for delta in self.drawn_residuals(rows, draws, first, last):
            yield delta.T @ phi, np.einsum("ij,ij->i", delta, delta)

    # ---------------------------------------------------------------- default estimators

    @property
    def condensed(self) -> Target | None:
        """Target of rows that stand for several rows, with δ = prediction − outcome, or None."""
        return None

    @property
    def scores(self) -> tuple[str, ...]:
        """Estimators of proper scores that `rank` lists beside the error."""
        return ()

    @property
    def recalibration_scores(self) -> tuple[str, ...]:
        """Proper scores that say whether a recalibration helps.  The first one decides."""
        return self.scores

    @property
    def default_estimators(self) -> tuple[str, ...]:
        """Estimators that are computed if none is named.

        If there are none, they are all estimators with `by_default` that judge the claim.
        """
        return ()

    @property
    def defaults_of(self) -> str:
        """Claim whose default estimators commands compute, and say which do not suit the rows."""
        return self.claim

    @property
    @abstractmethod
    def default_tests(self) -> tuple[str, ...]:
        """Statistics of the default test; `KERNEL_ERROR` stands for the kernel error."""

    @property
    def segment_test(self) -> str | None:
        """Statistic of segments by covariates that the default test has, if it names covariates."""
        return None

    @property
    @abstractmethod
    def sizes(self) -> tuple[str, ...]:
        """Estimators of `check`, in the order of its table, as in `default_tests`."""


KERNEL_ERROR = "kernel error"  # the estimator `Target.kernel_error`, with settings for the rows
