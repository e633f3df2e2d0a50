"""Recalibration of many classes by a method for two: each class against all others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.classes import Classes
from calibscale.recalibration.cell_fits import HISTOGRAM
from calibscale.recalibration.excluded_labels import (
    count_of_excluded,
    excluded_note,
    of_possible_labels,
)
from calibscale.recalibration.histogram_binning import HistogramBinning
from calibscale.recalibration.logistic import Beta, Platt
from calibscale.recalibration.nonparametric import BBQ, Isotonic
from calibscale.recalibration.parametric import CLIP, TemperedLoss, slope_or_none
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.recalibration.score_ranks import FIRST_DIGITS
from calibscale.statistics.label_table import LabelTable
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, bytes_of_rows

_BINARY: dict[str, type[RecalibrationMethod]] = {
    kind.name: kind for kind in (Platt, Beta, Isotonic, BBQ, HistogramBinning)
}
_STATE_BYTES = 2**26  # states of the classes that are fitted together: 64 MB


# ---------------------------------------------------------------- rows of one class


def binary_chunk(chunk: Chunk, label: int) -> Chunk:
    """Rows with the probability of one class, and whether it is the label."""
    p = chunk.q[:, label]
    # 1 − p of a top label is known to all its digits.
    rest = np.where(chunk.top == label, chunk.rest, 1.0 - p).clip(0.0)
    # The label 1 stands for the class, and 0 for all others.
    hit = (chunk.labels == label).astype(np.int64)
    label_p = np.where(hit == 1, p, rest)
    # A label of probability 0 has an infinite log loss, as in every chunk.
    with np.errstate(divide="ignore"):
        nll = -np.log(label_p)
    return replace(
        chunk,
        values=np.column_stack([rest, p]),
        kind="probabilities",
        labels=hit,
        top=(p > rest).astype(np.int64),
        confidence=np.maximum(p, rest),
        rest=np.minimum(p, rest),
        brier=2.0 * (1.0 - label_p) ** 2,
        nll=nll,
        target=Classes(2),
        covariates=None,
    )


@dataclass(frozen=True)
class OfClass(Statistic):
    """Statistic of two classes, of the rows of one class against the others."""

    statistic: Statistic
    label: int

    def size(self, classes: int) -> int:
        return self.statistic.size(2)

    def work_bytes(self, classes: int, rows: int) -> int:
        return self.statistic.work_bytes(2, rows) + bytes_of_rows(2, rows)

    def zero(self, classes: int) -> Any:
        return self.statistic.zero(2)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        return self.statistic.accumulate(state, binary_chunk(chunk, self.label))

    def merge(self, a: Any, b: Any) -> Any:
        return self.statistic.merge(a, b)


class _UnreadError(Exception):
    """Signal of a fit that needs a pass with further statistics."""

    def __init__(self, statistics: tuple[Statistic, ...]) -> None:
        self.statistics = statistics


@dataclass
class _ClassFits:
    """Fits of several classes that share their passes.

    A fit asks for a pass by a call, and cannot wait for the other fits.  So each fit starts again
    with the states of the passes so far, until it asks for one that has not been made.  All passes
    that the fits ask for are then made as one.  Fits are small computations beside passes.
    """

    method: RecalibrationMethod
    setup: DataProfile
    read: Read
    passes: int = 0

    def of(self, labels: Iterable[int]) -> dict[int, FittedRecalibrator | None]:
        """Fit of each class, or None if the rows do not determine it."""
        fits: dict[int, FittedRecalibrator | None] = {}
        results: dict[Statistic, Any] = {}
        counts = RowCounts()
        waiting = list(labels)
        while waiting:
            needed: list[Statistic] = []
            for label in waiting:
                recorded = partial(_recorded, label=label, results=results, counts=counts)
                try:
                    fits[label] = self.method._fit(self.setup, recorded)
                except _UnreadError as request:
                    needed += [OfClass(statistic, label) for statistic in request.statistics]
                except OptionError:
                    fits[label] = None
            waiting = [label for label in waiting if label not in fits]
            if needed:
                result = self.read(*needed)
                self.passes += 1
                # Rows that `self.read` leaves out are in the note on all fits, not on each.
                counts = result.counts._replace(impossible=0)
                results |= {statistic: result.groups[None][statistic] for statistic in needed}
        return fits


def _recorded(
    *statistics: Statistic,
    label: int,
    results: dict[Statistic, Any],
    counts: RowCounts,
    covariates: tuple[str, ...] = (),
) -> PassResult:
    """Result of an earlier pass for one class."""
    # A method names its statistics of two classes, and the pass had them for one of many.
    wanted = {statistic: OfClass(statistic, label) for statistic in statistics}
    if any(of_class not in results for of_class in wanted.values()):
        raise _UnreadError(statistics)
    states = {statistic: results[of_class] for statistic, of_class in wanted.items()}
    return PassResult(counts, {None: states}, {None: counts.used})


# ---------------------------------------------------------------- method and fit


@dataclass(frozen=True)
class OneVsRest(RecalibrationMethod):
    """A method for two classes, fitted to each class against all others [Zadrozny & Elkan 2002].

    For three classes or more.  p'_k ∝ m_k(q_k) with the fit m_k of class k, normalised over the
    classes.  Classes share their passes.  A class with fewer labelled rows than `min_rows`, or
    with rows that do not determine its fit, gets the probability of one temperature that is fitted
    to all classes, before the normalisation.  m_k is at least 2⁻⁵³, so that the log loss of
    new rows is finite.  Fits of ``platt``, ``beta`` and of the temperature leave out rows with a
    logit of −∞ for the label, in the fits of all classes.

    Parameters
    ----------
    method : {"isotonic", "platt", "beta", "bbq", "histogram"}
        Method for two classes, with its default settings.  The normalisation takes the guarantee
        of ``histogram`` away.
    min_rows : int
        Labelled rows of a class below which it has no fit of its own, without those that are left
        out.

    See Also
    --------
    calibscale.recalibration.class_maps.VectorScaling : A joint fit of all classes.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.one_vs_rest import OneVsRest
    >>> q = np.tile([0.5, 0.3, 0.2], (100, 1))
    >>> labels = np.repeat([0, 1, 2], [20, 50, 30])
    >>> source = calibscale.from_arrays(probabilities=q, labels=labels)
    >>> calibscale.recalibrate(source, "one_vs_rest").transform(q[:1]).round(2)
    array([[0.2, 0.5, 0.3]])
    """

    method: str = "isotonic"
    min_rows: int = 20
    name: ClassVar[str] = "one_vs_rest"
    two_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.method in _BINARY, f"method must be one of {', '.join(_BINARY)}", self.method)
        require(self.min_rows >= 1, "min_rows must be at least 1", self.min_rows)

    @classmethod
    def unsuitable(cls, classes: int) -> str | None:
        if classes == 2:
            return "is for three classes or more; there are 2. Isotonic or platt is for two"
        return super().unsuitable(classes)

    @property
    def binary(self) -> RecalibrationMethod:
        """Method for two classes."""
        return _BINARY[self.method]()

    @classmethod
    def fit_class(cls) -> type[OneVsRestFit]:
        return OneVsRestFit

    def _fit(self, setup: DataProfile, read: Read) -> OneVsRestFit:
        self.binary.check_weights(setup.source)
        by_likelihood = self.method in ("platt", "beta")
        read_fitted = of_possible_labels(read) if by_likelihood else read
        table = LabelTable()
        result = read_fitted(table)
        rows = result.groups[None][table].counts.sum(axis=0)
        # Without enough rows, a class has no fit, which is not tried.
        fits: list[FittedRecalibrator | None] = [None] * setup.classes
        class_fits = _ClassFits(self.binary, setup, read_fitted, passes=1)
        for labels in self._batches(np.flatnonzero(rows >= self.min_rows).tolist()):
            for label, fit in class_fits.of(labels).items():
                fits[label] = fit
        rare = [label for label, fit in enumerate(fits) if fit is None]
        temperature, passes, notes = 1.0, class_fits.passes, []
        if rare:
            temperature, further, name = _common_temperature(read)
            passes += further
            notes.append(
                f"{len(rare):,} of {setup.classes:,} classes have fewer than {self.min_rows} "
                f"labelled rows in the fits, or rows that do not determine a fit: they get the "
                f"probability of {name}"
            )
        if by_likelihood or rare:
            place = "the fits" if by_likelihood else "the fit of the temperature of all classes"
            notes += excluded_note(count_of_excluded(setup, result.counts), place)
        return OneVsRestFit(
            fits=tuple(fits),
            temperature=temperature,
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=passes,
            notes=tuple(notes),
        )

    def _batches(self, labels: list[int]) -> Iterable[list[int]]:
        """Classes whose fits have states in memory at the same time."""
        # Platt scaling and beta calibration have small states, and histograms large ones.
        state_bytes = 2**10
        if self.method in ("isotonic", "bbq"):
            state_bytes = HISTOGRAM.nbytes(2)
        elif self.method == "histogram":
            state_bytes = FIRST_DIGITS.nbytes(2)
        size = max(1, _STATE_BYTES // state_bytes)
        for low in range(0, len(labels), size):
            yield labels[low : low + size]


def _common_temperature(read: Read) -> tuple[float, int, str]:
    """Temperature of all classes, passes of its fit, and its name in a sentence."""
    fit = slope_or_none(TemperedLoss(1.0, CLIP), of_possible_labels(read))
    if fit is None:
        return 1.0, 1, "the predictions as they are"
    return fit.temperature, fit.passes, f"the temperature {fit.temperature:.3g} of all classes"


class StoredOneVsRest(StoredFit):
    """State of `OneVsRestFit`."""

    fits: list[dict[str, Any] | None]
    temperature: Annotated[float, Field(gt=0.0)]


@dataclass(frozen=True, eq=False, kw_only=True)
class OneVsRestFit(FittedRecalibrator):
    """p'_k ∝ m_k(q_k) with the fit of each class, None for a class with the common temperature."""

    method: OneVsRest
    fits: tuple[FittedRecalibrator | None, ...]
    temperature: float
    stored: ClassVar[type[StoredFit]] = StoredOneVsRest

    @property
    def state(self) -> dict[str, Any]:
        return {
            "fits": [None if fit is None else fit.state for fit in self.fits],
            "temperature": self.temperature,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        stored = StoredOneVsRest.read(state)
        classes = common["classes"]
        require(len(stored.fits) == classes, f"state.fits must have {classes} values")
        binary = common["method"].binary
        # Only the state differs between the fits of the classes.
        shared = {"method": binary, "classes": 2, "counts": common["counts"], "passes": 1}
        fits = tuple(
            None if fit is None else binary.fit_class().restored(fit, **shared)
            for fit in stored.fits
        )
        return cls(fits=fits, temperature=stored.temperature, **common)

    @property
    def parameters(self) -> dict[str, Any]:
        own = sum(fit is not None for fit in self.fits)
        if own == self.classes:
            return {"classes_with_fit": own}
        return {"classes_with_fit": own, "temperature_of_others": self.temperature}

    def predictions(self, chunk: Chunk) -> Floats:
        # The fits replace the columns of their classes.
        p = self._tempered(chunk)
        for label, fit in enumerate(self.fits):
            if fit is not None:
                p[:, label] = fit.predictions(binary_chunk(chunk, label))[:, 1]
        # A pure regression may give 0 to every class.
        np.maximum(p, CLIP, out=p)
        p /= p.sum(axis=1, keepdims=True)
        return p

    def _tempered(self, chunk: Chunk) -> Floats:
        """Probabilities of the common temperature (c, K)."""
        z = np.log(np.maximum(chunk.q, CLIP)) / self.temperature
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(axis=1, keepdims=True)
        return p
