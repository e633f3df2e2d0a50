"""Sets of classes with a coverage, such as conformal prediction sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.errors import InvalidDataError, OptionError
from calibscale.predictions.claims import SETS
from calibscale.predictions.functionals.functional import Functional
from calibscale.predictions.functionals.prediction_intervals import IntervalPrediction
from calibscale.predictions.invalid_rows import NO_EVENT, NO_SIZE
from calibscale.predictions.target import Response


@dataclass(frozen=True)
class SetPrediction(IntervalPrediction):
    """Set of classes that claims to contain the label with a probability.

    The prediction of a row is the size of its set, and its outcome is 1 if the label is in the set,
    else 0.  `calibscale.from_sets` computes both from sets and labels, and so do readers of tables
    with a column of sets.  The residual is 1{label in the set} − coverage, and its mean is positive
    where sets are too large.

    Parameters
    ----------
    coverage : float
        Claimed probability, in (0, 1).

    See Also
    --------
    calibscale.from_sets : Source of sets and labels.
    calibscale.Coverage, calibscale.SizeStratifiedCoverage

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[1, 2, 0, 3], forecast="set(coverage=0.9)", labels=[1, 1, 0, 1]
    ... )
    >>> cs.evaluate(data, "coverage")["coverage"].value
    0.75
    """

    name: ClassVar[str] = "set"
    claim: ClassVar[str] = SETS
    columns: ClassVar[int | None] = 1
    has_scalar_points: ClassVar[bool] = True
    holds_sets: ClassVar[bool] = True
    order_name: ClassVar[str] = "set_size"
    response: ClassVar[Response] = Response("share of labels outside", "sizes", True)

    # ---------------------------------------------------------------- the claim

    def responses(self, values: Floats, y: Floats) -> Floats:
        return 1.0 - y

    def loss(self, values: Floats, y: Floats) -> Floats:
        """Raise an OptionError, because the size of a set does not say which classes it has."""
        raise OptionError("sets of classes have no consistent score: compare their mean sizes")

    def ordered_by(self, values: Floats) -> Floats:
        """Sizes (c,), which tell sets apart that are easy or hard to predict."""
        return values[:, 0]

    def sizes_of(self, values: Floats) -> Floats:
        return values[:, 0]

    def embedded(self, values: Floats, y: Floats) -> Floats:
        """Logarithms of 1 + size (c, 1): sets of 1 and 2 differ more than sets of 500 and 501."""
        return np.log1p(values)

    def unembedded(self, points: Floats) -> Floats:
        return np.expm1(points)

    # ---------------------------------------------------------------- the set as a forecast

    def interval(self, values: Floats, level: float) -> tuple[Floats, Floats]:
        """[1, 1 + size], which contains 1, the outcome of a covered label, and not 0."""
        self.check_level(level, "sets")
        return np.ones(len(values)), 1.0 + values[:, 0]

    # ---------------------------------------------------------------- default estimators

    @property
    def default_estimators(self) -> tuple[str, ...]:
        return ("coverage", "size_stratified_coverage", self.kernel_error)

    @property
    def scores(self) -> tuple[str, ...]:
        return ()

    # ---------------------------------------------------------------- rows

    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        if count != 1:
            raise InvalidDataError(
                f"{name}: predictions of kind {self.name} are the size of each set and have one "
                f"column, not {count}; of sets as lists or as a matrix, from_sets(sets, labels, "
                "coverage=...) computes the sizes, and a table has the sets in one column of lists"
            )

    def not_finite(self, values: Floats) -> Any:
        return Functional.not_finite(self, values)

    def check_values(self, values: Floats, status: Ints) -> None:
        # A fraction is a share of the classes or an average, not the size of one set.
        sizes = values[:, 0]
        status[(sizes < 0) | (sizes != np.rint(sizes))] = NO_SIZE

    def outcome_status(self, y: Floats) -> Ints:
        status = super().outcome_status(y)
        status[np.isfinite(y) & (y != 0.0) & (y != 1.0)] = NO_EVENT
        return status

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == NO_SIZE:
            return f"its size is {values[0]:g}, not a whole number from 0"
        if reason == NO_EVENT:
            return f"its outcome is {y:g}, and must be 1 if the label is in the set, else 0"
        return super().explained(reason, values, y)

    def imagined(self, n: int, rng: np.random.Generator) -> tuple[str, Any]:
        return self.name, rng.integers(0, 10, (n, 1)).astype(np.float64)
