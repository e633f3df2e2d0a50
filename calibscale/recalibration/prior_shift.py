"""Recalibration to new shares of the classes, if the rows of each class stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.formatting.lists import leading
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.class_maps import (
    DirichletCalibration,
    MatrixScaling,
    StructuredScaling,
    VectorScaling,
)
from calibscale.recalibration.ensemble_temperature import EnsembleTemperature
from calibscale.recalibration.logistic import Beta, Platt
from calibscale.recalibration.nonparametric import BBQ, Isotonic
from calibscale.recalibration.one_vs_rest import OneVsRest
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.parametric import CLIP, Identity, TemperatureScaling
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    Share,
    StoredFit,
)
from calibscale.recalibration.spline_map import Spline
from calibscale.recalibration.sql_expressions import SQLScore, number
from calibscale.statistics.shift_sums import LabelWeights

# Methods that recalibrate to the old shares, before the shift.
BEFORE: dict[str, type[RecalibrationMethod]] = {
    kind.name: kind
    for kind in (
        Identity,
        TemperatureScaling,
        EnsembleTemperature,
        VectorScaling,
        MatrixScaling,
        DirichletCalibration,
        StructuredScaling,
        OneVsRest,
        Platt,
        Beta,
        Spline,
        Isotonic,
        BBQ,
    )
}
_SUM = 1e-6  # allowed deviation of the sum of the shares from 1


def checked_shares(shares: Sequence[float], classes: int | None = None) -> tuple[float, ...]:
    """Shares of the classes that sum to 1, of shares that do so to 1e-6."""
    texts = "shares= must be numbers in [0, 1], one for each class, such as (0.7, 0.3)"
    try:
        values = [float(share) for share in shares]
    except (TypeError, ValueError):
        raise OptionError(f"{texts}, not {shares!r}") from None
    require(len(values) > 1 and all(0.0 <= share <= 1.0 for share in values), texts, values)
    total = math.fsum(values)
    require(abs(total - 1.0) <= _SUM, f"shares= must sum to 1, and their sum is {total:.7g}")
    if classes is not None:
        require(
            len(values) == classes,
            f"shares= has {len(values)} numbers, and there are {classes} classes",
        )
    # Shares that are checked again must keep their digits.
    return tuple(values) if total == 1.0 else tuple(share / total for share in values)


def shares_of_labels(weights: Floats, source: ArraySource) -> Floats:
    """Shares of the labels (K,) from their weights.

    An OptionError is raised for a class without labelled rows, because a ratio of shares has none.
    """
    missing = np.flatnonzero(weights == 0.0)
    if len(missing):
        names = [class_name(source, int(k)) for k in missing]
        raise OptionError(
            f"{source.name}: no labelled row is of class {leading(names, 5)}, so that the ratio of "
            "its new and old share is not known: fit to rows of every class, or leave the class "
            "out of the predictions"
        )
    return weights / weights.sum()


def class_name(source: ArraySource, number: int) -> str:
    """Name of a class of a source, or its number."""
    return str(number) if source.class_names is None else source.class_names[number]


def unshifted_fit(
    method: RecalibrationMethod, setup: DataProfile, read: Read
) -> FittedRecalibrator:
    """Fit of the method before the shift, after checks that `RecalibrationMethod.fit` makes."""
    method.check_source(setup.source)
    return method._fit(setup, read)


# ---------------------------------------------------------------- method


@dataclass(frozen=True)
class PriorShift(RecalibrationMethod):
    """Map to new shares of the classes: p'_k ∝ p_k · new_k / old_k.

    It is Bayes' theorem for other prior probabilities, if the rows of each class have the same
    distribution as before [Saerens, Latinne & Decaestecker, Neural Computation 14 (2002), eq. 2.4].
    The old shares are the shares of the labels.  `calibscale.label_shift` estimates the new shares
    from rows without labels.

    Parameters
    ----------
    shares : tuple of float
        New shares of the classes, which sum to 1, in the order of the columns.
    method : str
        Method that recalibrates the predictions first, with its default settings: ``identity``,
        ``temperature``, ``ensemble_temperature``, ``platt``, ``beta``, ``spline``, ``isotonic`` or
        ``bbq`` for two classes, and ``identity``, ``temperature``, ``ensemble_temperature``,
        ``vector``, ``matrix``, ``dirichlet``, ``structured`` or ``one_vs_rest`` for more.

    See Also
    --------
    calibscale.label_shift : Estimate of the new shares.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.prior_shift import PriorShift
    >>> p, y = np.repeat([0.1, 0.9], 10), np.repeat([0, 1, 0, 1], [9, 1, 1, 9])
    >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
    >>> fitted = calibscale.recalibrate(source, PriorShift((0.75, 0.25)))
    >>> fitted.transform(np.array([0.1, 0.5])).round(4)  # odds are divided by 3
    array([0.0357, 0.25  ])
    """

    shares: tuple[float, ...] = ()
    method: str = "identity"
    name: ClassVar[str] = "prior_shift"
    two_classes: ClassVar[bool] = False
    needs_settings: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.method in BEFORE, f"method must be one of {', '.join(BEFORE)}", self.method)
        if len(self.shares):
            object.__setattr__(self, "shares", checked_shares(self.shares))

    @property
    def before(self) -> RecalibrationMethod:
        """Method that recalibrates to the old shares."""
        return BEFORE[self.method]()

    @classmethod
    def fit_class(cls) -> type[PriorShiftFit]:
        return PriorShiftFit

    def _fit(self, setup: DataProfile, read: Read) -> PriorShiftFit:
        require(
            len(self.shares) > 0,
            "prior_shift needs the new shares of the classes, shares=(0.7, 0.3); label_shift "
            "estimates them from predictions without labels",
        )
        new_shares = checked_shares(self.shares, setup.classes)
        before = unshifted_fit(self.before, setup, read)
        statistic = LabelWeights()
        result = read(statistic)
        weights = result.groups[None][statistic].weights
        return PriorShiftFit(
            old_shares=shares_of_labels(weights, setup.source),
            new_shares=np.array(new_shares),
            before=before,
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=before.passes + 1,
            notes=before.notes,
        )


# ---------------------------------------------------------------- fit

Shares = Annotated[list[Share], Field(min_length=2)]


class StoredPriorShift(StoredFit):
    """State of `PriorShiftFit`."""

    old_shares: Shares
    new_shares: Shares
    before: dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class PriorShiftFit(FittedRecalibrator):
    """p'_k ∝ p_k · new_k / old_k, with the probabilities p of the fit `before`."""

    method: PriorShift
    old_shares: Floats
    new_shares: Floats
    before: FittedRecalibrator
    stored: ClassVar[type[StoredFit]] = StoredPriorShift

    @property
    def state(self) -> dict[str, Any]:
        return {
            "old_shares": self.old_shares.tolist(),
            "new_shares": self.new_shares.tolist(),
            "before": self.before.state,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        stored = StoredPriorShift.read(state)
        classes = common["classes"]
        for name in ("old_shares", "new_shares"):
            require(
                len(getattr(stored, name)) == classes, f"state.{name} must have {classes} numbers"
            )
        require(min(stored.old_shares) > 0.0, "state.old_shares must be positive")
        method = common["method"].before
        method.check_classes(classes)
        # Only the state and the method differ from the fields of the map itself.
        before = method.fit_class().restored(stored.before, **{**common, "method": method})
        return cls(
            old_shares=np.array(stored.old_shares),
            new_shares=np.array(stored.new_shares),
            before=before,
            **common,
        )

    @property
    def ratios(self) -> Floats:
        """Ratios new/old of the class shares (K,), at least 2⁻⁵³."""
        # A share of 0 would leave rows that are certain of this class without any class.
        return np.maximum(self.new_shares / self.old_shares, CLIP)

    @property
    def parameters(self) -> dict[str, float]:
        if self.classes == 2:
            return {
                "old_share": float(self.old_shares[1]),
                "new_share": float(self.new_shares[1]),
            }
        return {
            "smallest_ratio": float(self.ratios.min()),
            "largest_ratio": float(self.ratios.max()),
        }

    def predictions(self, chunk: Chunk) -> Floats:
        # A copy, because the map before may return the predictions of the chunk themselves.
        p = self.before.predictions(chunk) * self.ratios
        p /= p.sum(axis=1, keepdims=True)
        return p

    def sql(self, score: SQLScore) -> str:
        # A quotient of odds would divide by 0 at p = 0 or 1.
        p = f"({self.before.sql(score)})"
        rest_ratio, ratio = (number(value) for value in self.ratios)
        return f"(({ratio} * {p}) / ({ratio} * {p} + {rest_ratio} * (1e0 - {p})))"

    def onnx(self, score: OnnxScore) -> str:
        weighted = score.times(self.before.onnx(score), self.ratios)
        total = score.of("MatMul", weighted, score.constant(np.ones((self.classes, 1))))
        return score.of("Div", weighted, total)


# ---------------------------------------------------------------- rows as with the new shares


@dataclass(frozen=True, eq=False, repr=False)
class _Reweighted(DerivedSource):
    """Rows with weights times the ratio of the shares of their label."""

    ratios: Floats = field(kw_only=True)

    def _changed(self, block: Block) -> Block:
        labels = block.labels
        # Labels that are not known, or not valid, are left to the reader of the rows.
        known = (labels >= 0) & (labels < len(self.ratios))
        ratios = np.ones(len(labels))
        ratios[known] = self.ratios[labels[known].astype(np.int64)]
        weights = np.ones(len(labels)) if block.weights is None else block.weights
        return block._replace(weights=weights * ratios)


def as_shifted(source: ArraySource, fit: PriorShiftFit) -> ArraySource:
    """Labelled rows with the weights of their classes in the new shares.

    Means over them estimate means over rows with the new shares [Shimodaira 2000].
    """
    return _Reweighted.of(source, ratios=fit.ratios)
