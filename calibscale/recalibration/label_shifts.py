"""`label_shift`: new shares of the classes, estimated from predictions without labels."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.intervals.proportions import check_level
from calibscale.predictions.blocks import Block, RowCounts
from calibscale.recalibration.choice import AUTO, chosen_method
from calibscale.recalibration.fitting import fitted_result, log_losses
from calibscale.recalibration.improvements import NOT_JUDGED
from calibscale.recalibration.parametric import Identity
from calibscale.recalibration.prior_shift import (
    BEFORE,
    PriorShift,
    PriorShiftFit,
    class_name,
    shares_of_labels,
)
from calibscale.recalibration.recalibrated_sources import fingerprint_of, recalibrated
from calibscale.recalibration.recalibrator import FittedRecalibrator
from calibscale.recalibration.share_search import most_likely_ratios, smoothed_ratios
from calibscale.recalibration.shift_inference import (
    BlackBoxShares,
    Means,
    ShareErrors,
    black_box_ratios,
    condition,
    mean_test,
    means_of_new,
    means_of_old,
    nearest_shares,
    share_interval,
)
from calibscale.results.shift_results import ClassShare, LabelShift, NewRows
from calibscale.session import Session, SessionOptions, classes_only, source_of_argument, verb
from calibscale.statistics.shift_sums import (
    HARD,
    LIKELIHOOD,
    SOFT,
    LabelledShiftState,
    LabelledShiftSums,
    RowVectors,
    ShiftState,
    ShiftSums,
)

_RESPONSES = {"em": LIKELIHOOD, "bbse": SOFT, "bbse_hard": HARD}
MOST_CLASSES = 2048  # the sums are matrices of K² numbers, 32 MB each
# Rows of a sample from which the search for shares begins, and probabilities in it: 128 MB.
_SAMPLED_ROWS, _SAMPLED_VALUES = 2**15, 2**24
_SAMPLED_OF_CLASS = 100  # sampled rows for each class, on average
_FEW_LABELS = 20  # labelled rows of a class, below which its errors are uncertain
_MOST_CONDITION = 1e12  # of the information, above which rounding decides the shares


@verb
def label_shift(
    source: Any,
    new: Any,
    method: str = "em",
    *,
    recalibration: str | None = None,
    regularization: float | None = None,
    confidence_level: float = 0.95,
    **options: Unpack[SessionOptions],
) -> LabelShift:
    """Estimate the class shares of new rows without labels, and the map to them.

    Under label shift the shares of the classes change, and the rows of each class keep their
    distribution, as when a disease becomes more frequent.  Then p'_k ∝ p_k · new_k/old_k is
    calibrated in the new rows if p is in the old ones.

    Parameters
    ----------
    source, **options
        Old rows with labels, as in `evaluate`.
    new : source
        New rows of the same model and classes.  Their labels are not used, and may all be −1.
    method : {"em", "bbse", "bbse_hard"}
        ``em`` maximises the likelihood of the new predictions, as the EM algorithm of Saerens,
        Latinne & Decaestecker [Neural Computation 14 (2002), eq. 2.9] does, by Newton's method.
        It is efficient, and needs calibrated predictions.  ``bbse`` solves the equations of the
        mean predictions with the confusion matrix of the old rows [Lipton, Wang & Smola, ICML
        2018], which hold for any predictions, and ``bbse_hard`` does so with predicted labels.
    recalibration : str, optional
        Method that first recalibrates the predictions by the labels of the old rows, as
        Alexandari, Kundaje & Shrikumar [ICML 2020] recommend for ``em``: a method of `PriorShift`,
        ``auto`` for the choice of `recalibrate`, or ``identity`` for predictions that are known to
        be calibrated.  Default: ``platt`` for two classes and ``vector`` for more, which have an
        intercept for each class.
    regularization : float, optional
        Penalty of BBSE for shares far from the old ones [Azizzadenesheli, Liu, Yang & Anandkumar,
        ICLR 2019].  Default: 0, or for a nearly singular confusion matrix a value that vanishes
        with more rows, see `black_box_ratios`.  Intervals do not cover its bias.
    confidence_level : float
        Level of the intervals of the new shares, in (0, 1).

    Returns
    -------
    LabelShift
        Shares with intervals, a test of unchanged shares, a test that nothing else has changed, and
        ``recalibrated``, the map to the new shares, which is applied and saved as every
        `FittedRecalibration`.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if a class has no labelled row, if the sources have different
        classes, or if the predictions do not determine the shares.

    Notes
    -----
    Intervals and tests are for independent rows.  They account for the labels of the old rows.
    Rows with a probability of 1 count for their class alone.  With ``identity``, wrong ones bias
    ``em`` without limit.

    See Also
    --------
    calibscale.recalibration.prior_shift.PriorShift : The map to shares that are known.
    recalibrate : Recalibration by labelled rows.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> def rows(share, known):
    ...     y = (rng.random(5000) < share).astype(int)
    ...     x = rng.normal(2.0 * y)  # log-odds of y are 2x − 2 for equal shares
    ...     p = 1 / (1 + 9 * np.exp(2 - 2 * x))
    ...     labels = y if known else np.full(5000, -1)
    ...     return calibscale.from_arrays(probabilities=p, labels=labels)
    >>> shift = calibscale.label_shift(rows(0.1, True), rows(0.3, False))
    >>> shift.no_shift.p_value < 1e-6, abs(shift.shares[1] - 0.3) < 0.03
    (True, True)
    >>> shift.recalibrated.transform([0.1]).round(1)
    array([0.3])
    """
    started = time.perf_counter()
    check_level(confidence_level)
    require(method in _RESPONSES, f"method must be one of {', '.join(_RESPONSES)}", method)
    names = (AUTO, *BEFORE)
    if recalibration is not None:
        require(recalibration in names, f"recalibration must be one of {', '.join(names)}")
    if regularization is not None:
        require(method != "em", "regularization= is for bbse and bbse_hard")
        require(0.0 <= regularization <= 1.0, "regularization must be in [0, 1]", regularization)
    with Session.open(source, **options) as session:
        data, fresh = session.source, source_of_argument(new)
        _require_same_classes(data, fresh)
        before, notes = _recalibration(session, recalibration)
        periods = _Periods.of(session, fresh, before, _RESPONSES[method])
        estimate = periods.by_likelihood() if method == "em" else periods.black_box(regularization)
        errors = estimate.errors
        notes = [*notes, *periods.notes(), *estimate.notes]
        shares = errors.ratios * periods.old_shares
        deviations = np.sqrt(np.diag(errors.covariance()).clip(0.0))
        intervals = [
            share_interval(float(share), float(error), errors.new_means.rows, confidence_level)
            for share, error in zip(shares, deviations, strict=True)
        ]
        new_shares = nearest_shares(shares / shares.sum())
        if (shares < 0.0).any():
            count = int((shares < 0.0).sum())
            notes.append(f"{count:,} negative estimates of shares are set to 0")
        passes = before.passes + periods.old_passes
        fit = periods.map_to(new_shares, before, passes)
        judge = f"{NOT_JUDGED}: the rows of the fit have the old shares; judge labelled new rows"
        fitted = fitted_result(session, fit, log_losses(session, fit), judge, notes, started)
        classes = tuple(
            ClassShare(
                name=class_name(data, k),
                old_share=float(periods.old_shares[k]),
                new_share=float(new_shares[k]),
                interval=intervals[k],
                standard_error=float(deviations[k]),
                ratio=float(new_shares[k] / periods.old_shares[k]),
            )
            for k in range(data.classes)
        )
        return LabelShift(
            method=method,
            recalibration=before.method.name,
            level=confidence_level,
            classes=classes,
            no_shift=periods.test_of_means(),
            pure_shift=None if estimate.pure is None else estimate.pure.pure_shift_test(),
            calibration=errors.calibration_test() if method == "em" else None,
            regularization=estimate.regularization,
            new=NewRows(fresh.describe(), periods.new_counts.used, periods.new_counts.dropped),
            passes=periods.new_passes,
            notes=tuple(notes),
            fitted=fitted,
            **session.outcome(fit.counts, started, new=fresh.name),
        )


def _require_same_classes(old: ArraySource, new: ArraySource) -> None:
    """Raise an OptionError unless both sources have the same classes, and not too many."""
    classes_only("label_shift", old)
    classes_only("label_shift", new)
    if old.classes != new.classes:
        raise OptionError(
            f"{old.name} has {old.classes} classes, and {new.name} {new.classes}: a shift of their "
            "shares needs the same classes"
        )
    if None not in (old.class_names, new.class_names) and old.class_names != new.class_names:
        raise OptionError(
            f"{old.name} and {new.name} have different names of classes, or another order"
        )
    if old.classes > MOST_CLASSES:
        raise OptionError(
            f"label_shift is for at most {MOST_CLASSES:,} classes, as its sums have K² numbers; "
            f"there are {old.classes:,}"
        )
    if fingerprint_of(old) == fingerprint_of(new):
        raise OptionError(f"{new.name} has the old rows: give the rows of the new period")


def _recalibration(session: Session, name: str | None) -> tuple[FittedRecalibrator, list[str]]:
    """Fit of the recalibration before the shift, and notes on it."""
    if name == AUTO:
        choice = chosen_method(session)
        method, notes = choice.method, [choice.note]
    elif name is not None:
        method, notes = BEFORE[name](), []
    else:
        method, notes = BEFORE["platt" if session.source.classes == 2 else "vector"](), []
    try:
        fit = method.fit(session)
    except OptionError as error:
        # A default must not fail where the predictions separate the labels, or are all equal.
        if name is not None or session.source.classes != 2:
            raise
        reason = str(error).split(";")[0]
        fit = Identity().fit(session)
        notes.append(f"the predictions are not recalibrated: {reason}")
    return fit, [*notes, *fit.notes]


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False, repr=False)
class _WithoutLabels(DerivedSource):
    """Source in which every row counts, whatever its label, which must not be used."""

    def _changed(self, block: Block) -> Block:
        values = np.asarray(block.values).reshape(len(block.labels), -1)
        # The predicted label is never impossible, so that no row counts as such.
        if values.shape[1] == 1:
            labels = values[:, 0] > (0.0 if self.kind == "logits" else 0.5)
        else:
            labels = values.argmax(axis=1)
        return block._replace(labels=labels.astype(np.int64))


class _Estimate(NamedTuple):
    """Estimated ratios with their errors, and errors of the ratios that test for other changes."""

    errors: ShareErrors
    pure: ShareErrors | None
    regularization: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass
class _Periods:
    """Recalibrated rows of both periods, their first sums, and the passes over them."""

    old: Session
    new: Session
    kind: str
    is_fitted: bool
    first_old: LabelledShiftState
    old_counts: RowCounts
    new_counts: RowCounts
    first_new: ShiftState | None = None
    old_passes: int = 1
    new_passes: int = 0

    @classmethod
    def of(
        cls, session: Session, new: ArraySource, before: FittedRecalibrator, kind: str
    ) -> _Periods:
        """Periods with the sums of the old rows."""
        sources = [session.source, new]
        # Predictions as they are need no copies.
        if not isinstance(before.method, Identity):
            sources = [recalibrated(source, before) for source in sources]
        old, fresh = (session.on(source) for source in (sources[0], _WithoutLabels.of(sources[1])))
        statistic = LabelledShiftSums(RowVectors(np.ones(session.source.classes), kind))
        result = old.scan([statistic])
        state = result.groups[None][statistic]
        is_fitted = not isinstance(before.method, Identity)
        periods = cls(old, fresh, kind, is_fitted, state, result.counts, RowCounts())
        shares_of_labels(state.weights[0], session.source)  # refuses classes without rows
        return periods

    @property
    def classes(self) -> int:
        return self.old.source.classes

    @property
    def old_shares(self) -> Floats:
        return self.first_old.weights[0] / self.first_old.weights[0].sum()

    def by_likelihood(self) -> _Estimate:
        """Estimate of the largest likelihood."""
        K = self.classes
        first = self._new_at(np.ones(K))
        self.first_new = first
        at = self._near_ratios()
        start = first if (at == 1.0).all() else self._new_at(at)
        ratios = most_likely_ratios(self._new_at, self.old_shares, start, at)
        new = self._new_at(ratios)
        information = new.products[:K, :K] / float(new.weight)
        if not condition(information) < _MOST_CONDITION:
            raise OptionError(
                "label_shift: the predictions of the new rows do not tell all classes apart, so "
                "that their shares are not determined; join classes, or use method='bbse'"
            )
        inverse = np.linalg.inv(information).astype(np.float64)
        # At ratios of 1, responses are the probabilities, as BBSE has them.
        solved = self._black_box_ratios(first, None)
        # Errors of the old rows need the ratios, so that they have a pass of their own.
        old, old_of_box = self._old_at(
            RowVectors(ratios, LIKELIHOOD, True), RowVectors(solved.ratios, SOFT, True)
        )
        # Errors of a map that is fitted to the old rows are part of the errors by their labels.
        errors = ShareErrors(old, new, ratios, LIKELIHOOD, inverse, self.is_fitted)
        pure = ShareErrors(old_of_box, first, solved.ratios, SOFT, solved.inverse, by_labels=True)
        return _Estimate(errors, None if solved.regularization > 0.0 else pure)

    def _near_ratios(self) -> Floats:
        """Ratios of the largest likelihood of a sample of many new rows, or ones."""
        ones = np.ones(self.classes)
        most = min(_SAMPLED_ROWS, max(1, _SAMPLED_VALUES // self.classes))
        # The search takes about ten passes, and about five after a sample.  With few sampled rows
        # of a class, Newton's method takes many steps to its share: a start at the old shares is
        # better.
        if self.new.source.rows <= 4 * most or most < _SAMPLED_OF_CLASS * self.classes:
            return ones
        chunks = self.new.profile.labelled_sample(most)

        def read(ratios: Floats) -> ShiftState:
            statistic = ShiftSums(RowVectors(ratios, self.kind))
            state = statistic.zero(self.classes)
            for chunk in chunks:
                state = statistic.accumulate(state, chunk)
            return state

        at_ones = read(ones)
        if not at_ones.weight > 0.0:
            return ones
        try:
            ratios = most_likely_ratios(read, self.old_shares, at_ones, ones)
        except OptionError:
            # All rows may determine what a sample does not.
            return ones
        return smoothed_ratios(ratios, self.old_shares, float(sum(map(len, chunks))))

    def black_box(self, regularization: float | None) -> _Estimate:
        """Estimate by the confusion matrix."""
        # Responses do not depend on the ratios: this pass serves the estimate and all tests.
        new = self._new_at(np.ones(self.classes))
        self.first_new = new
        solved = self._black_box_ratios(new, regularization)
        notes: tuple[str, ...] = ()
        if solved.regularization > 0.0 and regularization is None:
            notes = (
                "the confusion matrix is nearly singular: shares are drawn towards the old ones, "
                "and intervals do not cover the bias by it",
            )
        (old,) = self._old_at(RowVectors(solved.ratios, self.kind, True))
        errors = ShareErrors(old, new, solved.ratios, self.kind, solved.inverse, by_labels=True)
        # A bias of the ratios would look like another change.
        pure = None if solved.regularization > 0.0 else errors
        return _Estimate(errors, pure, solved.regularization, notes)

    def _black_box_ratios(self, new: ShiftState, regularization: float | None) -> BlackBoxShares:
        """Ratios by the confusion matrix of the old rows, and the means of new ones."""
        confusion = self.first_old.sums[0].T / self.first_old.weights[0].sum()
        weight, weight2 = self.first_old.weights.sum(axis=1)
        rows = weight**2 / weight2, float(new.weight**2 / new.weight2)
        predicted = new.sums[: self.classes] / float(new.weight)
        return black_box_ratios(confusion, predicted, rows, regularization)

    def test_of_means(self) -> Any:
        """Test that old and new rows have the same mean predictions."""
        K, ones = self.classes, np.ones(self.classes)
        assert self.first_new is not None
        old, new = (
            Means(means.values[:K], means.covariance[:K, :K], means.rows)
            for means in (
                means_of_old(self.first_old, ones),
                means_of_new(self.first_new, ones, self.kind),
            )
        )
        return mean_test(new.values - old.values, old, new)

    def map_to(self, shares: Floats, before: FittedRecalibrator, passes: int) -> PriorShiftFit:
        """Map to new shares."""
        return PriorShiftFit(
            old_shares=self.old_shares,
            new_shares=shares,
            before=before,
            method=PriorShift(tuple(shares.tolist()), before.method.name),
            classes=self.classes,
            counts=self.old_counts,
            passes=passes,
            tolerance=self.old.rules.tolerance,
        )

    def notes(self) -> list[str]:
        """Sentence about classes with few labelled rows."""
        rare = int((self.first_old.weights[0] ** 2 / self.first_old.weights[1] < _FEW_LABELS).sum())
        if not rare:
            return []
        return [
            f"{rare:,} of {self.classes:,} classes have fewer than {_FEW_LABELS} labelled rows: "
            "the intervals of their shares are too short"
        ]

    def _new_at(self, ratios: Floats) -> ShiftState:
        """Sums of the new rows at ratios of the shares."""
        statistic = ShiftSums(RowVectors(ratios, self.kind, with_cells=True))
        result = self.new.scan([statistic])
        self.new_passes += 1
        self.new_counts = result.counts
        if not result.counts.used:
            raise OptionError(f"{self.new.source.name}: there are no rows of positive weight")
        return result.groups[None][statistic]

    def _old_at(self, *vectors: RowVectors) -> list[LabelledShiftState]:
        """Sums of the old rows of each of the row vectors, in one pass."""
        statistics = [LabelledShiftSums(each) for each in vectors]
        self.old_passes += 1
        states = self.old.scan(statistics).groups[None]
        return [states[statistic] for statistic in statistics]
