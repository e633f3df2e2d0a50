"""Running evaluation of batches, in one process or several."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from calibscale.data.array_layouts import as_numpy
from calibscale.data.arrays import from_arrays
from calibscale.data.call_hints import by_name
from calibscale.data.label_values import (
    LabelValues,
    distinct_values,
    label_values,
    pieces_of,
    signs_error,
)
from calibscale.data.named_values import is_table, named_columns
from calibscale.data.read_errors import converting
from calibscale.data.source import ArraySource
from calibscale.engine.execution import Execution
from calibscale.engine.threads import one_thread
from calibscale.errors import NoRowsError, OptionError, require
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.estimator_texts import labels as labels_of
from calibscale.evaluation.crowded_bins import with_equal_mass
from calibscale.evaluation.evaluate import judged
from calibscale.evaluation.later_rows import open_ended
from calibscale.evaluation.pass_estimates import evaluation_of, needed_statistics
from calibscale.forks import renew_in_children
from calibscale.inference.floors import noise_of
from calibscale.intervals.resampling import Resampling, requested
from calibscale.kernels.data_profile import BANDWIDTH_ROWS, DataProfile
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.pairwise import Pairwise
from calibscale.predictions.blocks import Block, RowCounts
from calibscale.predictions.classes import Classes
from calibscale.predictions.distributions.forecast import Forecast
from calibscale.predictions.invalid_rows import need_rows
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.target import Target
from calibscale.predictions.validation import chunks
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import Run, default_estimators, listed, resolved
from calibscale.statistics.one_pass import MAX_GROUPS, PassResult, Scan, finished, scan_of

_NAME = "accumulated rows"  # of the source in messages
_STREAM_ROWS = 2**40  # number of rows by which estimators choose a method: too many for pairs
_OTHER_BANDWIDTHS = (
    "the accumulators have bandwidths or bins of their own first rows: set them, such as "
    "ckce(bandwidth=0.3), or start all from copies of one after reset(keep_bandwidths=True)"
)
_RECENT_ROWS = 2**16  # rows summed at a time, so that rounding errors do not grow with updates


@dataclass(frozen=True)
class _StreamProfile(DataProfile):
    """Profile of a stream of rows, with its first rows as the source."""

    @property
    def rows(self) -> int:
        return _STREAM_ROWS

    @property
    def is_stream(self) -> bool:
        return True

    def held_out(self, *settings: Any) -> NotionRows:
        raise OptionError(
            "bandwidth_share= needs several passes over the rows, and an Accumulator sees them "
            "once: set the bandwidths, or use evaluate"
        )


class Accumulator:
    """Evaluation of rows that come in batches, which are not kept.

    The estimates equal the estimates of `evaluate` on the same rows.  Memory does not depend on the
    number of rows.  Accumulators can be pickled, and accumulators of several processes merged.
    Threads may share an accumulator.  A call that fails or is interrupted changes nothing: it can
    be repeated.

    Parameters
    ----------
    estimators : Estimator or str or several, optional
        See `evaluate`.  Estimators that need pairs of rows or several passes are refused.
    classes : int, or sequence of K names
        Number of classes K, or their names in the order of the columns.
    forecast : str or Forecast
        In place of `classes`: kind of predictive distributions, see `from_arrays`.
    covariate_names : d names, optional
        Names of the columns of covariates.  Default: the names in the first batch.
    categories : {covariate: names}, optional
        Values of the covariates that are texts.
    group_by : str, optional
        Name of a covariate.  All estimators are also computed for each of its values.
    interval : Resampling, {"jackknife", "bootstrap"} or bool, optional
        Confidence intervals of the estimates.  True: by the jackknife.
    first_row : int
        Number of the first row, on which intervals and certified bounds depend: another one in
        each process, such as ``rank * 10**9``.
    negligible : float
        Size in units of a probability, below which the verdict calls an error real but small.
    positive, percent : optional
        Label of the event of two classes, and whether probabilities are in percent, see
        `from_arrays`.
    **rules
        on_invalid, tolerance: see `evaluate`.

    Raises
    ------
    OptionError
        If an estimator cannot be computed from batches, or a setting is impossible.

    Notes
    -----
    If an estimator needs a bandwidth that is not given, or `forecast` a kernel on targets, the
    first 1,000 rows fix it, and a note of the estimate says so.  Accumulators with bandwidths of
    different rows cannot be merged: set the bandwidths, or start all from copies of one after its
    first rows and `reset`.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> accumulator = calibscale.Accumulator(["ece", "brier"], classes=3)
    >>> for batch in range(4):  # of an evaluation loop
    ...     logits, labels = rng.normal(size=(100, 3)), rng.integers(0, 3, 100)
    ...     accumulator.update(logits=logits, labels=labels)
    >>> accumulator.compute()["ece"].n
    400

    In several processes, each with its own rows, the accumulators are gathered and merged:

    >>> parts = [calibscale.Accumulator("brier", classes=2) for rank in range(2)]
    >>> for rank, part in enumerate(parts):
    ...     part.update(probabilities=[0.25, 0.75], labels=[0, rank])
    >>> round(parts[0].merge(parts[1]).compute()["brier"].value, 4)
    0.375
    """

    def __init__(
        self,
        estimators: Estimator | str | Iterable[Estimator | str] | None = None,
        *,
        classes: int | Sequence[Any] | None = None,
        forecast: str | Forecast | None = None,
        covariate_names: Sequence[str] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        group_by: str | None = None,
        interval: Resampling | str | bool | None = None,
        first_row: int = 0,
        negligible: float = NEGLIGIBLE,
        positive: Any = None,
        percent: bool = False,
        **rules: Any,
    ) -> None:
        exactly_one = (classes is None) != (forecast is None)
        require(exactly_one, "give exactly one of classes= and forecast=")
        self._target, self._class_names = _declared(classes, forecast)
        self._classes = self._target.n_features
        if self._target.has_classes:
            require(self._classes >= 2, "classes must be at least 2", self._classes)
        # Estimators by default are left out with a reason where the rows do not suit them.
        # Requested estimators raise an error.
        self._report = estimators is None
        by_default = default_estimators(self._target)
        self._requested = listed(by_default if estimators is None else estimators)
        self._covariate_names = None if covariate_names is None else tuple(covariate_names)
        self._categories = {k: tuple(map(str, names)) for k, names in (categories or {}).items()}
        self._group_by, self._first_row = group_by, first_row
        self._interval = requested(interval)
        if self._interval is not None:
            draws = self._target.draws_responses
            self._interval = replace(self._interval, draws_responses=draws)
        self._negligible = negligible
        self._positive, self._percent = positive, percent
        self._rules = {"on_invalid": "raise", "tolerance": None, **rules}
        self._lock = threading.RLock()
        renew_in_children(self)
        self._scan: Scan | None = None
        self.reset()

    def reset(self, *, keep_bandwidths: bool = False, first_row: int | None = None) -> None:
        """Forget all rows, and unless they are kept the bandwidths that the rows have fixed.

        `first_row` is the number of the next row, by default the number of the first row.
        """
        with self._lock:
            draft = self._draft()
            draft._forget(keep_bandwidths, self._first_row if first_row is None else first_row)
            self.__dict__ = draft.__dict__

    def _draft(self) -> Accumulator:
        """Copy to be changed by a call, which replaces this accumulator's attributes at its end.

        An interrupt, an error and another thread therefore see the attributes before or after the
        call.  The states of `_total` and `_recent`, which both share, are not modified.
        """
        draft = copy(self)
        draft._lock = self._lock
        return draft

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())
        renew_in_children(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child, which has the state before a call of the parent."""
        self._lock = threading.RLock()

    def _forget(self, keep_bandwidths: bool, first_row: int) -> None:
        """Set the attributes that depend on rows."""
        self._first_row = first_row
        self.rows, self._seconds = 0, 0.0
        self._labels: LabelValues | None = None
        self._label_keys: frozenset[str] = frozenset()  # of −1, 0 and 1 so far
        self._total, self._recent = _nothing(), _nothing()
        if not keep_bandwidths or self._scan is None:
            self._columns: dict[str, Any] = {"classes": self._classes}
            self._blocks: tuple[Block, ...] = ()  # until bandwidths are fixed
            self._source: ArraySource | None = None  # without rows
            self._run: Run | None = None
            self._scan = None
            self._choose(self._requested)

    def _choose(self, estimators: list[Estimator]) -> None:
        """Set the estimators.  `_fix` adds bins of equal mass if the first rows need them.

        An OptionError is raised for an estimator that no rows allow.
        """
        self._estimators = estimators
        self._imagined = self._bound(self._some_rows())

    def __repr__(self) -> str:
        names = ", ".join(labels_of(self._requested))
        kind = f"classes={self._classes}" if self._target.has_classes else f"{self._target!r}"
        return f"Accumulator([{names}], {kind}, rows={self.rows})"

    # ---------------------------------------------------------------- rows

    @by_name("update(probabilities=p, labels=y)", leading=1)
    def update(
        self,
        *,
        probabilities: Any = None,
        logits: Any = None,
        predictions: Any = None,
        labels: Any,
        covariates: Any = None,
        weights: Any = None,
        ignore_index: int | None = None,
        top_k: Any = None,
    ) -> None:
        """Add rows.  A batch with an error adds no rows.

        Parameters
        ----------
        probabilities, logits : (r, K) array-like
            Exactly one of the two.  For two classes also (r,), P(y = 1) or its log-odds.
        predictions : (r, P) array-like, or tuple of its parts
            Instead of them with ``forecast=``.  Labels are then the observed numbers.
        labels, covariates, weights, ignore_index
            See `from_arrays`.
        top_k : (r, k) array-like of integers, optional
            Classes of the k largest `probabilities`, with ``classes=k + 1``, see `from_arrays`.

        Raises
        ------
        OptionError
            If columns differ from the columns of earlier batches, or a text is not in `categories`.
        InvalidDataError
            At the first invalid row, or if lengths, shapes or types are impossible.
        """
        with self._lock:
            draft = self._draft()
            draft._update(
                probabilities, logits, predictions, labels, covariates, weights, ignore_index, top_k
            )
            self.__dict__ = draft.__dict__

    def _update(
        self,
        probabilities: Any,
        logits: Any,
        predictions: Any,
        labels: Any,
        covariates: Any,
        weights: Any,
        ignore_index: int | None,
        top_k: Any,
    ) -> None:
        """Add rows to a draft."""
        started = time.perf_counter()
        labels, label_keys = self._known_labels(labels, ignore_index)
        with converting("the batch"):
            shape = np.shape(logits if probabilities is None else probabilities)
            # One number for each row: the probability of the second of two classes.
            single = 1 in (len(shape), *shape[1:2]) or shape == np.shape(labels)
        single &= top_k is None
        names: Sequence[str] | None = (
            self._covariate_names or self._columns.get("covariates") or None
        )
        times: dict[str, str] = {}
        if covariates is not None:
            framed = is_table(covariates)
            table = covariates if framed else as_numpy(covariates)
            described = named_columns(table, None if framed else names, self._categories)
            covariates = described.values
            names = described.names
            times = described.times
        try:
            batch = from_arrays(
                probabilities=probabilities,
                logits=logits,
                labels=labels,
                weights=weights,
                covariates=covariates,
                covariate_names=names,
                predictions=predictions,
                forecast=self._target.declared,
                name=_NAME,
                class_names=self._class_names,
                top_k=top_k,
                binary=single and self._target == Classes(2),
                ignore_index=self._ignored(ignore_index),
                percent=self._percent,
            )
        # An empty batch is no error: a stream may have one.
        except NoRowsError:
            return
        categories = {**batch.categories, **self._categories}
        batch = replace(
            batch, first_row=self._first_row + self.rows, categories=categories, times=times
        )
        self._check(batch)
        self._add(batch.read(0, batch.rows, covariates=True))
        self.rows += batch.rows
        # Labels −1 and 1 are recognised only over all batches, see `compute`.
        self._label_keys |= label_keys
        self._seconds += time.perf_counter() - started

    def _ignored(self, ignore_index: Any) -> Any:
        """Labels that are not yet known.

        A batch may have labels −1 and 1 alone, so that `compute` refuses these.
        """
        if self._target != Classes(2):
            return ignore_index
        return (-1, *(ignore_index if isinstance(ignore_index, list | tuple) else (ignore_index,)))

    def _known_labels(self, labels: Any, ignore_index: Any) -> tuple[Any, frozenset[str]]:
        """Labels of a batch as classes, if `positive` declares these, and their first values."""
        if self._target != Classes(2):
            return labels, frozenset()
        values = as_numpy(labels, "labels")
        if values.ndim != 1:
            return labels, frozenset()
        if self._positive is not None:
            meaning = self._labels or label_values(
                pieces_of(values), 2, _NAME, positive=self._positive, ignore_index=ignore_index
            )
            if len(meaning.codes) == 2:  # the other value has been seen
                self._labels = meaning
            return meaning.numbers(values, 0, f"row {{}} of {_NAME}".format), frozenset()
        return labels, frozenset(distinct_values(values)) if ignore_index is None else frozenset()

    def merge(self, other: Accumulator) -> Self:
        """Add the rows of another accumulator with the same settings, and return this one.

        The other accumulator does not change.

        Raises
        ------
        OptionError
            If settings, columns or bandwidths differ, or with intervals if first rows do not.
        """
        other = other._copied()
        with self._lock:
            draft = self._draft()
            draft._merge(other)
            self.__dict__ = draft.__dict__
        return self

    def _copied(self) -> Accumulator:
        """Independent copy of the rows so far."""
        with self._lock:
            return deepcopy(self)

    def _merge(self, addend: Accumulator) -> None:
        """Add the rows of a copy to a draft."""
        names = (
            "requested",
            "class_names",
            "classes",
            "target",
            "group_by",
            "interval",
            "rules",
            "negligible",
            "positive",
            "percent",
            "categories",
        )
        if any(getattr(self, f"_{name}") != getattr(addend, f"_{name}") for name in names):
            raise OptionError("accumulators with different settings cannot be merged")
        if not addend.rows:
            return
        # Groups of the jackknife follow from row numbers, which must not be repeated.
        if self._interval is not None and self.rows and self._first_row == addend._first_row:
            raise OptionError(
                "intervals depend on the numbers of rows: give each process another first_row="
            )
        rows = self.rows + addend.rows
        assert addend._source is not None
        self._check(addend._source)
        # A scan has fixed bandwidths.  A draft without a scan takes the scan of the addend.
        if self._scan is None and addend._scan is not None:
            exchanged = copy(self)
            vars(self).update(addend.__getstate__())
            addend = exchanged
        if self._scan is not None and addend._scan is not None:
            first, second = ((s.statistics, s.rules.target) for s in (self._scan, addend._scan))
            require(first == second, _OTHER_BANDWIDTHS)
            # The draft shares its states with the accumulator that it replaces, so that they must
            # not change in place.
            total = _copy_of(self._total)
            for part in (addend._total, addend._recent):
                total = self._scan.merge(total, part)
            self._total = total
        # Rows whose accumulator has not fixed its bandwidths yet are added like new rows.
        for block in addend._blocks:
            self._add(block)
        self.rows = rows
        self._label_keys |= addend._label_keys
        self._seconds += addend._seconds

    def compute(self) -> Evaluation:
        """Estimates of all rows so far.  More rows can be added afterwards.

        Raises
        ------
        NoRowsError, InvalidDataError
            If there are no rows, or all of them were dropped as invalid.
        """
        started = time.perf_counter()
        # The copy may fix bandwidths and merge states, without a change of this accumulator.
        now = self._copied()
        if not now.rows:
            raise NoRowsError("the accumulator has no rows; call update first")
        # Labels −1 and 1 alone are two classes, but −1 was taken for a missing label.
        if now._label_keys == {"-1", "1"}:
            raise signs_error(_NAME)
        all_fix = now._scan is None  # bandwidths, as in `evaluate`
        if all_fix:
            now._fix()
        assert now._run is not None and now._source is not None and now._scan is not None  # noqa: PT018
        result = finished(now._scan, now._scan.merge(now._total, now._recent))
        need_rows(now._source.name, result.counts)
        # Estimates have the number of all rows, not of the first rows in the source.
        run = replace(now._run, source=replace(now._source, rows=now.rows))
        names = labels_of(now._estimators)
        started -= now._seconds
        evaluation = evaluation_of(
            run, names, result, now._interval, started, noise=noise_of(run.rules)
        )
        evaluation = judged(evaluation, now._negligible)
        if all_fix:
            return evaluation
        # From here on bandwidths differ from `evaluate`, which takes a sample of all rows.
        note = f"bandwidths are fixed by the first {BANDWIDTH_ROWS:,} rows"
        kernel = not now._target.bound  # on targets
        bound = zip(evaluation.estimates, run.chosen, now._imagined.chosen, strict=True)
        estimates = tuple(
            e if a == b and not (kernel and a.notion == "canonical") else e.with_note(note)
            for e, a, b in bound
        )
        return replace(evaluation, estimates=estimates)

    # ---------------------------------------------------------------- states

    def _check(self, batch: ArraySource) -> None:
        """Check that columns agree with earlier batches."""
        columns = {
            "classes": batch.n_features,
            "kind": batch.kind,
            "binary": batch.binary,
            "weighted": batch.weights is not None,
            "covariates": batch.covariate_names,
            "columns": None if self._target.has_classes else math.prod(batch.values.shape[1:]),
        }
        for name, value in columns.items():
            if value != self._columns.get(name, value):
                raise OptionError(f"{name}: {value!r}, but {self._columns[name]!r} before")
        if self._source is None:
            batch.need_integer_labels("Accumulator")
            if self._group_by is not None:
                batch.covariate(self._group_by)
            self._columns = columns
            self._source = batch.part(0, 0, covariates=True)

    def _add(self, block: Block) -> None:
        """Add a block after all of its rows have been validated."""
        scan = self._scan or self._task(self._imagined)
        parts = list(chunks(block, scan.rules))
        # Rows wait until there are enough for bandwidths and bins as in `evaluate`.
        if self._scan is None:
            copied = block.take(np.arange(len(block.labels)), block.start)
            self._blocks = (*self._blocks, copied)
            if sum(len(waiting.labels) for waiting in self._blocks) > BANDWIDTH_ROWS:
                self._fix()
            return
        # Sums of a batch are formed apart, so that an error leaves the earlier sums unchanged.
        batch = _nothing()
        with one_thread():
            for chunk, counts in parts:
                batch = scan.add(batch, chunk, counts)
            self._recent = scan.merge(_copy_of(self._recent), batch)
            if sum(self._recent.group_counts.values()) >= _RECENT_ROWS:
                self._total = scan.merge(_copy_of(self._total), self._recent)
                self._recent = _nothing()

    def _fix(self) -> None:
        """Fix bandwidths by the first rows, and add these rows."""
        assert self._source is not None
        columns: dict[str, Any] = {}
        for name in ("values", "labels", "weights", "covariates"):
            parts = [getattr(block, name) for block in self._blocks]
            # All blocks have a column, or none has.
            columns[name] = None
            if parts[0] is not None:
                columns[name] = np.concatenate(parts)[:BANDWIDTH_ROWS]
        first = replace(self._source, **columns, rows=len(columns["labels"])).with_target()
        if self._report:
            profile = _StreamProfile(first, first.rules(**self._rules), "serial")
            self._choose(with_equal_mass(profile, self._requested))
        self._source = replace(self._source, forecast=first.forecast)
        run = self._bound(first)
        self._scan = self._task(run)
        self._run = replace(run, source=self._source, profile=self._imagined.profile)
        blocks, self._blocks = self._blocks, ()
        for block in blocks:
            self._add(block)

    def _task(self, run: Run) -> Scan:
        """Pass of the statistics of a run over rows with the columns of the first batch."""
        assert self._source is not None
        rules = self._source.rules(**self._rules)
        statistics = tuple(dict.fromkeys(needed_statistics(run, self._interval, noise_of(rules))))
        columns: dict[str, Any] = {"group_by": self._group_by, "covariates": run.covariates}
        return replace(scan_of(self._source, statistics, rules, **columns), groups=MAX_GROUPS)

    def _some_rows(self) -> ArraySource:
        """Source of drawn rows."""
        # The rows are imagined: they let estimators check their settings before data arrive.
        rng, n = np.random.default_rng(0), 50
        names = {name for e in self._requested for name in e.covariates}
        kind, values = self._target.imagined(n, rng)
        return ArraySource(
            kind,
            values,
            np.zeros(n, np.int64),
            rng.normal(size=(n, len(names))) if names else None,
            tuple(sorted(names)),
            rows=n,
            forecast=self._target.declared,
        ).with_target()

    def _bound(self, source: ArraySource) -> Run:
        """Run of the estimators bound to the first rows."""
        rules = source.rules(**self._rules)
        profile = _StreamProfile(source, rules, "serial")
        chosen: list[BoundEstimator | Estimate] = []
        for estimator in self._estimators:
            try:
                bound = open_ended(resolved(estimator, profile, "raise"))  # type: ignore[arg-type]
                if isinstance(bound, Pairwise):
                    raise OptionError(
                        f"{estimator.name} needs all pairs of rows, which an Accumulator does not "
                        "keep; use method='features', or evaluate on a store"
                    )
                chosen.append(bound)
            except OptionError as error:
                if not self._report:
                    raise
                notion = estimator.notion_for(self._classes)
                chosen.append(Estimate(estimator.name, notion, None, reason=str(error)))
        execution = Execution(scheduler="serial", name="serial")
        return Run(source, rules, execution, profile, tuple(chosen), self._group_by)


def _declared(
    classes: int | Sequence[Any] | None, forecast: str | Forecast | None
) -> tuple[Target, tuple[str, ...] | None]:
    """Target of the rows that are declared, and the names of their classes."""
    if classes is None:
        assert forecast is not None
        return forecast_of(forecast), None
    if isinstance(classes, int | np.integer):
        return Classes(int(classes)), None
    return Classes(len(classes)), tuple(map(str, classes))


def _copy_of(result: PassResult) -> PassResult:
    """Copy of a result and of the arrays of its states, which `deepcopy` makes more slowly."""
    groups = {
        key: [_copy_of_state(state) for state in states] for key, states in result.groups.items()
    }
    return PassResult(result.counts, groups, dict(result.group_counts))


def _copy_of_state(state: Any) -> Any:
    if not isinstance(state, tuple):
        return deepcopy(state)
    fields = [field.copy() if isinstance(field, np.ndarray) else deepcopy(field) for field in state]
    return type(state)(*fields) if hasattr(state, "_fields") else tuple(fields)


def _nothing() -> PassResult:
    return PassResult(RowCounts(), {}, {})
