"""The same tests and scores of other predictions: recalibrated ones, or another model's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibscale import engine
from calibscale.auditing.local import LocalTests, local_tests
from calibscale.chunk import Block
from calibscale.errors import InvalidDataError, OptionError
from calibscale.estimators import ECE, KLCE, NLL, Brier, Estimator
from calibscale.evaluation import Run, prepared
from calibscale.intervals import Intervals, Parts, parts_of, total
from calibscale.nulls import Null
from calibscale.products import HoldOut
from calibscale.recalibration import (
    METHODS,
    LocalBias,
    Method,
    Refits,
    part_of,
    recalibrated,
    refits_of,
)
from calibscale.results import POPULATION, THIS_N, Estimate, Interval, finite
from calibscale.scan import States
from calibscale.source import ArraySource
from calibscale.store import as_source
from calibscale.testing import test
from calibscale.trials import TestResult

GROUPED_BYTES = 2**28  # of the states of all groups of rows that an interval leaves out
_PART_SEED = 0x5EED  # parts are drawn by the stream that chooses bandwidths: other draws of it


@dataclass(frozen=True)
class Scores:
    """Scores of predictions, and the test on all covariates.

    Attributes
    ----------
    name : str
        ``before``, a method of recalibration, or a source.
    n : int
    ece, brier, log_loss : float or None
        ECE of 15 bins of equal width; the Brier score is over all classes.
    test : TestResult or None
        KLCE on all covariates, with the same bandwidths for all predictions.
    fitted : dict or None
        What the method found.
    reason : str or None
        Why there are no values.
    note : str or None
        What its p-value leaves out.
    """

    name: str
    n: int = 0
    ece: float | None = None
    brier: float | None = None
    log_loss: float | None = None
    test: TestResult | None = field(default=None, compare=False)
    fitted: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def klce(self) -> float | None:
        return None if self.test is None else self.test.value

    @property
    def p_value(self) -> float | None:
        return None if self.test is None else self.test.p_value

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; an infinite log loss is null."""
        out: dict[str, Any] = {
            "method": self.name,
            "n": self.n,
            "ece": self.ece,
            "brier": self.brier,
            "log_loss": self.log_loss,
            "klce": self.klce,
            "p_value": self.p_value,
            "test": None if self.test is None else self.test.to_dict(),
        }
        if self.fitted is not None:
            out["fitted"] = self.fitted
        if self.reason is not None:
            out["reason"] = self.reason
        if self.note is not None:
            out["note"] = self.note
        return finite(out)


def scores(
    name: str,
    source: Any,
    estimator: KLCE,
    replicates: int,
    seed: int,
    tested: TestResult | None = None,
    null: str | Null = "labels",
    **options: Any,
) -> Scores:
    """Scores of the rows that the test is of; `tested` is the test where that is known."""
    asked = [ECE(notion=estimator.notion or "top_label"), Brier(), NLL(), estimator]
    with prepared(source, asked, **options) as run:
        scored = run.fitting[:3]
        states = run.scan(s for e in scored for s in e.needs).groups[None]
        ece, brier, loss = (e.finalize(*(states[s] for s in e.needs)) for e in scored)
    if tested is None:
        tested = test(
            source, estimator, null=null, replicates=replicates, seed=seed, **options
        ).results[0]
    return Scores(name, brier.n, ece.value, brier.value, loss.value, tested)


# ---------------------------------------------------------------- recalibration


def methods_named(
    names: Sequence[str], classes: int, covariates: tuple[str, ...], estimator: KLCE
) -> tuple[Method, ...]:
    """The methods, ``all`` standing for each that fits; settings are those asked of the test.

    Raises
    ------
    OptionError
        If a name is unknown, or a method is not for so many classes.
    """
    wanted: list[str] = []
    for name in names:
        if name == "all":
            wanted += [n for n, m in METHODS.items() if classes == 2 or not m.two_classes]
        elif name not in METHODS:
            raise OptionError(f"recalibrate must be of {', '.join(METHODS)}, all; not {name!r}")
        elif METHODS[name].two_classes and classes != 2:
            raise OptionError(
                f"{name} is for two classes; there are {classes}. Temperature is for any number"
            )
        else:
            wanted.append(name)
    local = LocalBias(
        covariates, estimator.prediction_bandwidth, estimator.covariate_bandwidth,
        estimator.categorical,
    )  # fmt: skip
    return tuple(
        local if name == "local_bias" else METHODS[name]() for name in dict.fromkeys(wanted)
    )


def recalibrations(
    data: ArraySource,
    methods: Iterable[Method],
    estimator: KLCE,
    hold_out: float,
    replicates: int,
    seed: int,
    **options: Any,
) -> tuple[Scores, ...]:
    """Each method fitted to a part of the rows, and the scores of the share held out from that.

    The null of a test after recalibration has its fits made again; see `refits_of`.
    """
    parts = HoldOut(hold_out, seed ^ _PART_SEED)
    fitting, rest = part_of(data, parts, held=False), part_of(data, parts, held=True)
    made = [scores("before", rest, estimator, replicates, seed, **options)]
    for method in methods:
        try:
            fit = method.fit(fitting, **options)
        except OptionError as error:  # these rows do not determine it
            made.append(Scores(method.name, reason=str(error)))
            continue
        refits = refits_of(
            fit, fitting, estimator.notion or "top_label", replicates, seed, **options
        )
        after = scores(
            method.name, recalibrated(rest, fit, refits), estimator, replicates, seed,
            null=refits or "labels", **options,
        )  # fmt: skip
        made.append(replace(after, fitted=fit.to_dict(), note=_note(refits, after)))
    return tuple(made)


def _note(refits: Refits | None, after: Scores) -> str | None:
    """What the p-value after recalibration leaves out."""
    if refits is None:
        return (
            "its p-value leaves out the noise of the fit, which is not made again for each "
            "replicate: it is too small"
        )
    if after.test is not None and after.test.parameters.get("method") == "features":
        return "the features of a replicate are those of the fitted predictions, not the refitted"
    return refits.note


# ---------------------------------------------------------------- another model


@dataclass(frozen=True, eq=False, kw_only=True)
class _Predicted(ArraySource):
    """Predictions of one source with all else of another, row by row."""

    predictions: ArraySource
    columns: ArraySource

    @property
    def classes(self) -> int:
        return self.predictions.classes

    @property
    def in_memory(self) -> bool:
        return self.predictions.in_memory or self.columns.in_memory

    def describe(self) -> dict[str, Any]:
        return {**self.predictions.describe(), "weighted": self.columns.weights is not None}

    def part(self, start: int, stop: int, covariates: bool = False) -> _Predicted:
        return predicted(
            self.predictions.part(start, stop), self.columns.part(start, stop, covariates)
        )

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        """Rows start..stop−1; covariates only on request.

        Raises
        ------
        InvalidDataError
            If labels that both sources know differ: they are not of the same rows in one order.
        """
        block = self.columns.read(start, stop, covariates)
        theirs = self.predictions.read(start, stop)
        known = (block.labels >= 0) & (theirs.labels >= 0)
        differ = np.flatnonzero(known & (block.labels != theirs.labels))
        if len(differ):
            row = block.start + int(differ[0])
            raise InvalidDataError(
                f"row {row} has label {block.labels[differ[0]]} in {self.columns.name}, "
                f"{theirs.labels[differ[0]]} in the other model's {self.predictions.name}: "
                "both must be of the same rows, in the same order",
                row,
            )
        return block._replace(values=theirs.values, name=theirs.name)


def predicted(predictions: ArraySource, columns: ArraySource) -> _Predicted:
    """What a second model predicts for rows whose labels and covariates are known.

    Raises
    ------
    OptionError
        If it cannot be of the same rows and classes.
    """
    if predictions.rows != columns.rows or predictions.classes != columns.classes:
        raise OptionError(
            f"{predictions.name} has {predictions.rows:,} rows of {predictions.classes} classes, "
            f"{columns.name} {columns.rows:,} of {columns.classes}: a comparison is on the same "
            "rows"
        )
    rest = {
        name: getattr(columns, name)
        for name in ("labels", "covariates", "covariate_names", "weights", "rows", "first_row")
    }
    return _Predicted(
        predictions.kind, predictions.values, binary=predictions.binary, name=predictions.name,
        predictions=predictions, columns=columns, **rest,
    )  # fmt: skip


@dataclass(frozen=True)
class PairedDifference:
    """An estimate of both models on the same rows.

    Attributes
    ----------
    estimator : str
    first, second, difference : float or None
        difference = second − first: below 0 where the second is better.
    interval : Interval or None
        Of the difference, by the jackknife of both together; None: `reason` says why.
    """

    estimator: str
    first: float | None
    second: float | None
    difference: float | None
    interval: Interval | None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return finite(
            {
                "estimator": self.estimator,
                "first": self.first,
                "second": self.second,
                "difference": self.difference,
                "interval": None if self.interval is None else self.interval.to_dict(),
                "reason": self.reason,
            }
        )


@dataclass(frozen=True)
class Against:
    """Another model of the same rows.

    Attributes
    ----------
    name : str
    tests : LocalTests
        Of its predictions, with the bandwidths of the first model's tests.
    first, second : Scores
    differences : tuple of PairedDifference
    """

    name: str
    tests: LocalTests
    first: Scores
    second: Scores
    differences: tuple[PairedDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "name": self.name,
            "tests": self.tests.to_dict(),
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "differences": [one.to_dict() for one in self.differences],
        }


def against(
    data: ArraySource,
    other: Any,
    known: tuple[KLCE, ...],
    tests: LocalTests,
    replicates: int,
    seed: int,
    level: float,
    **options: Any,
) -> Against:
    """The audit's tests of another model, and paired differences of scores.

    `known` are the estimators of `tests`, those of the first model, with their bandwidths.
    """
    second = predicted(as_source(other), data)
    theirs, _ = local_tests(second, known, replicates, seed, **options)
    compared: list[Estimator] = [ECE(notion=known[0].notion or "top_label"), Brier(), *known[:2]]
    asked = Intervals(level=level, seed=seed)
    found = [_values(source, compared, asked, options) for source in (data, second)]
    return Against(
        name=second.name,
        tests=theirs,
        first=scores(data.name, data, known[0], replicates, seed, tests.joint, **options),
        second=scores(second.name, second, known[0], replicates, seed, theirs.joint, **options),
        differences=tuple(
            _difference(estimator, a, b, asked)
            for estimator, a, b in zip(compared, *found, strict=True)
        ),
    )


_Value = tuple[Estimate, Parts | None]


def _values(
    source: ArraySource, estimators: list[Estimator], asked: Intervals, options: dict[str, Any]
) -> list[_Value]:
    """Estimates, and where that is cheap their values with groups of rows left out; one pass."""
    with prepared(source, estimators, **options) as run:
        needed = [s for e in run.fitting for s in (_grouped(e, asked, run) or e.needs)]
        states = run.scan(needed).groups[None]
        with engine.one_thread():
            return [_value(e, asked, run, states) for e in run.fitting]


def _grouped(estimator: Estimator, asked: Intervals, run: Run) -> tuple[Any, ...]:
    """The statistics by group, unless their states are too large."""
    needed = asked.needs(estimator)
    zeros = [s.statistic.zero(run.data.classes) for s in needed]
    size = sum(array.nbytes for zero in zeros for array in zero)
    return needed if asked.groups * size <= GROUPED_BYTES else ()


def _value(estimator: Estimator, asked: Intervals, run: Run, states: States) -> _Value:
    if estimator.pairwise:
        pairs = run.pairs()
        found = estimator.solve(pairs)
        if found.value is None:
            return found, None
        return found, parts_of(estimator, asked, states, pairs, found.value)
    grouped = _grouped(estimator, asked, run)
    if not grouped:
        return estimator.finalize(*(states[s] for s in estimator.needs)), None
    found = estimator.finalize(*(total(states[s]) for s in grouped))
    if found.value is None:
        return found, None
    return found, parts_of(estimator, asked, states, None, found.value)


def _difference(estimator: Estimator, a: _Value, b: _Value, asked: Intervals) -> PairedDifference:
    (first, mine), (second, theirs) = a, b
    if first.value is None or second.value is None:
        reason = first.reason or second.reason
        return PairedDifference(estimator.name, first.value, second.value, None, None, reason)
    interval, reason = None, None
    if mine is None or theirs is None:
        reason = "the states of parts of the rows are too large, or tell nothing"
    elif mine.left_out.shape != theirs.left_out.shape or first.n != second.n:
        reason = "rows that are valid for one of them only"
    else:
        covers = POPULATION if estimator.unbiased else THIS_N
        interval = (theirs - mine).interval(asked, covers)
        reason = None if interval else "the value of a part of the rows is not defined"
    gap = float(np.subtract(second.value, first.value))
    return PairedDifference(estimator.name, first.value, second.value, gap, interval, reason)
