"""Sessions: open sources with the options that all verbs share."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypedDict, TypeVar, Unpack

from calibscale.data.call_hints import need_source
from calibscale.data.covariates import ColumnSummary, clustered
from calibscale.data.derived_sources import Split
from calibscale.data.event_sources import claimed_events
from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.engine.dask_backend import PACKAGES, installed
from calibscale.engine.execution import Execution
from calibscale.engine.memory import Room
from calibscale.engine.merge_tree import Progress, tree_levels
from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.estimator_texts import estimator
from calibscale.estimators.known_estimators import default_names
from calibscale.estimators.settings import build
from calibscale.formatting.number_texts import size as size_text
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.claims import CLASSES, FORECASTS, SOFT, includes
from calibscale.predictions.decimals import FEWEST_DECIMALS, MOST_DECIMALS
from calibscale.predictions.invalid_rows import CLUSTER_OF, need_rows
from calibscale.predictions.rules import Rules
from calibscale.predictions.target import Target
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate
from calibscale.results.source_rows import ImpossibleRows
from calibscale.statistics.cluster_sums import ClusterSums, described
from calibscale.statistics.one_pass import PassResult, Scan, scan_of
from calibscale.statistics.shared_replicates import scan_in_parts
from calibscale.statistics.statistic import Statistic

if TYPE_CHECKING:
    from calibscale.kernels.pair_sums import Pairs

P = ParamSpec("P")
R = TypeVar("R")


def default_estimators(target: Target | None = None) -> tuple[Estimator, ...]:
    """Default estimators of a target, or of classes.  Those with features share one feature map."""
    if target is not None and target.default_estimators:
        return tuple(map(estimator, target.default_estimators))
    claim = CLASSES if target is None else target.claim
    return tuple(build(name, {}) for name in default_names(claim))


class SessionOptions(TypedDict, total=False):
    """Options of every function that reads a source, with the meaning in `Session.open`."""

    on_invalid: str
    tolerance: float | None
    block_rows: int | None
    scheduler: Any
    memory_limit: int | str | None
    progress: Progress | bool | None


_SMALL = 2**24  # bytes of a state for which the engine finds room, or says that there is none

_DEFAULTS = SessionOptions(
    on_invalid="raise",
    tolerance=None,
    block_rows=None,
    scheduler=None,
    memory_limit=None,
    progress=None,
)


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Show `SessionOptions` in the signature of a function, and name misspelt parameters."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    # The shared options stand after the parameters of the function, as keywords.
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
        for name, value in _DEFAULTS.items()
    ]
    names = [parameter.name for parameter in (*parameters, *shared)]
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            # A misspelt option would otherwise reach the session as an unknown keyword.
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
                raise TypeError(f"{function.__name__}() has no parameter {name!r}; {hint}")
        # Arrays in the place of a source get a hint, before anything is bound to them.
        if args and places[0] == "source":
            need_source(function.__name__, args[0])
        if len(args) > len(places):
            named = ", ".join(name for name in names if name not in places)
            raise OptionError(
                f"{function.__name__} takes {' and '.join(places)} by position; name the other "
                f"arguments: {named}"
            )
        return function(*args, **kwargs)

    call.__signature__ = signature.replace(parameters=[*parameters, *shared])  # type: ignore[attr-defined]
    return call


@dataclass(frozen=True, eq=False)
class Session:
    """Open source with its rules of validity, the execution of its passes, and its profile.

    Every function that reads a source opens a session, or uses one in place of the source: then
    worker processes are started, and covariates summarised, only once.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> p = np.repeat([0.2, 0.8], 50)
    >>> source = calibscale.from_arrays(
    ...     probabilities=p, labels=(np.arange(100) % 5 == 0).astype(int), binary=True
    ... )
    >>> with calibscale.Session.open(source, scheduler="serial") as session:
    ...     n = calibscale.evaluate(session).n
    ...     diagram = calibscale.reliability(session, bins=2)
    >>> n, round(diagram.ece, 2)
    (100, 0.3)
    """

    source: ArraySource
    rules: Rules
    execution: Execution
    profile: DataProfile

    @classmethod
    @contextmanager
    def open(cls, source: Any, **options: Unpack[SessionOptions]) -> Iterator[Session]:
        """Open a source for any number of passes, or change the options of a session.

        Parameters
        ----------
        source : path, URL, LogitStore, ArraySource or Session
            See `LogitStore` and `from_arrays`.
        on_invalid : {"raise", "drop"}
            Raise an error at the first invalid row, or drop such rows and count them by column and
            fault.  It is an error if no row is left.
        tolerance : float, optional
            Allowed deviation of a row's sum from 1, for probabilities, and of a probability from
            0..1, which is then 0 or 1.  Default: 1e-4, or for float16 2⁻¹⁰ and bfloat16 2⁻⁷, their
            rounding errors.
        block_rows : int, optional
            Number of rows of a unit of work.  Results of different sizes agree to a relative 1e-12.
        scheduler, memory_limit
            See `calibscale.engine.fold.fold`.  Results do not depend on them.
        progress : bool or callable, optional
            True: show a bar in a notebook or on a terminal, else lines on standard error.  A
            callable is called with the numbers of finished blocks and of all blocks.

        Raises
        ------
        OptionError, StoreError
            If an option is impossible, or the source cannot be opened.
        """
        need_source("Session.open", source)
        if isinstance(source, Session) and not options:
            yield replace(source, profile=source.profile.narrowed())
            return
        settings: dict[str, Any] = {**options}
        allowed = {n: settings.pop(n, None) for n in ("on_invalid", "tolerance")}
        # None means the default of the source, or the option of the session that is reused.
        allowed = {n: value for n, value in allowed.items() if value is not None}
        if isinstance(source, Session):
            data, rules = source.source, replace(source.rules, **allowed)
            # The name of the scheduler is only kept with the scheduler.
            name = None if "scheduler" in settings else source.execution.name
            # The open scheduler of the session is used again, unless another one is requested.
            execution = replace(source.execution, name=name, **settings)
        else:
            data = as_source(source).with_target()
            rules = data.rules(**allowed)
            execution = Execution(**settings)
        with execution.opened() as opened:
            profile = DataProfile(data, rules, opened.scheduler)
            # A profile depends on the rules: other rules drop other rows of the sample.
            if isinstance(source, Session) and rules == source.rules:
                profile = source.profile.narrowed()
            yield Session(data, rules, opened, profile)

    def on(self, source: ArraySource) -> Session:
        """Session of another source with the same options."""
        source = source.with_target()
        rules = source.rules(self.rules.on_invalid, self.rules.tolerance)
        rules = replace(rules, cluster=self.rules.cluster)
        profile = DataProfile(source, rules, self.execution.scheduler)
        return Session(source, rules, self.execution, profile)

    def of_events(self) -> Session:
        """Session of the events that functionals claim, or this session for other predictions.

        See `calibscale.forecast_events`.
        """
        events = claimed_events(self.source)
        return self if events is self.source else self.on(events)

    def reporting(self, progress: Progress | None) -> Self:
        """This session with another progress callback."""
        return replace(self, execution=replace(self.execution, progress=progress))

    def by_cluster(self, column: str | None) -> Self:
        """This session with the values of a covariate as clusters, or itself without a column."""
        if column is None:
            return self
        # The source gets a further column, the hashes of the clusters.
        source, position = clustered(self.source, column)
        names = {**self.rules.columns, "covariates": source.covariate_names}
        rules = replace(self.rules, cluster=position, columns=names)
        profile = DataProfile(source, rules, self.execution.scheduler)
        return replace(self, source=source, rules=rules, profile=profile)

    @property
    def cluster_column(self) -> str | None:
        """Name of the covariate whose values are the clusters, None without clusters."""
        if self.rules.cluster is None:
            return None
        return self.source.covariate_names[self.rules.cluster].removeprefix(CLUSTER_OF)

    @property
    def block_rows(self) -> int:
        return self.execution.block_rows or self.source.block_rows

    @property
    def blocks(self) -> int:
        """Number of blocks of a pass."""
        # Rounded up: the last block may be smaller.
        return -(-self.source.rows // self.block_rows)

    @property
    def states_alive(self) -> int:
        """Number of states that a pass with one worker has in memory at a time."""
        return tree_levels(self.blocks, Scan.arities) + 3

    def scan(
        self,
        statistics: Iterable[Statistic],
        *,
        group_by: str | None = None,
        covariates: tuple[str, ...] = (),
        optional: str | None = None,
        split: Split | None = None,
    ) -> PassResult:
        """Run one pass, see `calibscale.statistics.one_pass.scan`.

        A repeated statistic is computed once.  There are states as well for each value of the
        covariate `group_by`, or for each fold of `split`.  `covariates` must be finite, and the
        covariate `optional` may be missing in a row.  An InvalidDataError is raised if every row
        was dropped as invalid.
        """
        task = scan_of(
            self.source,
            # Statistics with equal parameters are equal, and computed once.
            tuple(dict.fromkeys(statistics)),
            self.rules,
            self.execution.block_rows,
            group_by=group_by,
            covariates=covariates,
            optional=optional,
            split=split,
        )
        result = scan_in_parts(task, self.execution)
        # Estimates of no rows would be NaN without a reason.
        need_rows(self.source.name, result.counts)
        return result

    @property
    def cluster_sums(self) -> tuple[Statistic, ...]:
        """Statistics that describe the clusters, empty without clusters."""
        return () if self.rules.cluster is None else (ClusterSums(),)

    def clusters(self, result: PassResult) -> Clusters | None:
        """Description of the clusters, from a pass with `cluster_sums`."""
        name = self.cluster_column
        if name is None:
            return None
        return described(result.groups[None][ClusterSums()], name, result.counts.used)

    def run(
        self,
        estimators: Estimator | str | Iterable[Estimator | str],
        on_unsupported: str = "raise",
        group_by: str | None = None,
    ) -> Run:
        """Resolve estimators for the source, with parameters as in `evaluate`."""
        requested = listed(estimators)
        if group_by is not None:
            self.source.covariate(group_by)  # fails for an unknown name before anything is read
        chosen = tuple(resolved(estimator, self.profile, on_unsupported) for estimator in requested)
        return Run(self.source, self.rules, self.execution, self.profile, chosen, group_by)

    def outcome(self, counts: RowCounts, started: float, **parameters: Any) -> dict[str, Any]:
        """Fields of `Outcome`, with further parameters of the run."""
        return {
            "n": counts.used,
            "n_unlabelled": counts.unlabelled,
            "dropped": counts.dropped,
            "impossible": impossible_rows(counts),
            "source": self.source.describe(),
            "seconds": time.perf_counter() - started,
            "versions": versions(),
            "parameters": {
                **parameters,
                "on_invalid": self.rules.on_invalid,
                "tolerance": self.rules.tolerance,
                "block_rows": self.block_rows,
                **self.execution.describe(),
            },
        }


def source_of_argument(source: Any) -> ArraySource:
    """Source of any object that `evaluate` accepts, which may be a session."""
    return source.source if isinstance(source, Session) else as_source(source)


@dataclass(frozen=True, eq=False)
class Run(Session):
    """Session with the estimators resolved for its source.

    `chosen` are bound estimators, or for an unsupported estimator an `Estimate` without a value.
    `group_by` is the covariate that defines the groups of passes.  `also_finite` are further
    covariates that must be finite.
    """

    chosen: tuple[BoundEstimator | Estimate, ...] = ()
    group_by: str | None = None
    also_finite: tuple[str, ...] = ()

    @property
    def fitting(self) -> list[BoundEstimator]:
        return [e for e in self.chosen if isinstance(e, BoundEstimator)]

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates that must be finite."""
        # A row without a finite covariate is invalid for all estimators, so that all have the same
        # rows.
        read = [name for e in self.fitting for name in e.covariates]
        return tuple(dict.fromkeys([*read, *self.also_finite]))

    @property
    def columns(self) -> dict[str, ColumnSummary]:
        return self.profile.columns(self.covariates)

    def within_memory(
        self,
        statistics_of: Callable[[BoundEstimator], Iterable[Statistic]],
        on_unsupported: str = "raise",
        room: Room | None = None,
    ) -> Self:
        """This run, without the estimators with sums that exceed the memory.

        By default the memory is the memory of the scheduler of this run.  Estimators are considered
        in their order, and a sum that several of them share counts once.  An OptionError is raised,
        or the estimate has the reason instead of a value, as for an estimator that the data do not
        support.
        """
        room = room or self.execution.room()
        free = room.free
        chosen: list[BoundEstimator | Estimate] = []
        counted: dict[Statistic, int] = {}
        for candidate in self.chosen:
            if free is None or isinstance(candidate, Estimate):
                chosen.append(candidate)
                continue
            # Equal statistics of several estimators are one state of the pass.
            sizes = {s: s.nbytes(self.source.n_features) for s in statistics_of(candidate)}
            further = sum(size for s, size in sizes.items() if s not in counted)
            needed = self.states_alive * (sum(counted.values()) + further)
            if needed <= free or further <= _SMALL:
                counted |= sizes
                chosen.append(candidate)
                continue
            amount = size_text(self.states_alive * sum(sizes.values()))
            limit_text = f"of {size_text(free)} that is free"
            if room.limit is not None:
                limit_text = f"limit{room.owner} of {size_text(room.limit)}"
                if room.requested:
                    limit_text += " (memory_limit=, --memory-limit)"
            reason = (
                f"its sums over {self.source.n_features:,} classes need {amount}, above the memory "
                f"{limit_text}"
            )
            if on_unsupported == "raise":
                remedy = "leave it out, or compute it without intervals"
                raise OptionError(f"{candidate.name}: {reason}; {remedy}")
            chosen.append(
                Estimate(candidate.name, candidate.notion or "canonical", None, reason=reason)
            )
        return replace(self, chosen=tuple(chosen))

    def judged(self, result: R) -> R:
        """Estimate or test, with its notion as the target names it."""
        named = self.source.target.named_notion(result.notion)  # type: ignore[attr-defined]
        return replace(result, notion=named)  # type: ignore[type-var]

    def scan(self, statistics: Iterable[Statistic], **options: Any) -> PassResult:
        """Run one pass over the rows that the estimators use, by group."""
        defaults = {"group_by": self.group_by, "covariates": self.covariates}
        return super().scan(statistics, **{**defaults, **options})

    def pairs(self, **options: Any) -> Pairs:
        """Sums over pairs of the rows, with the options of `Pairs`."""
        # A pass sums no pairs, whose modules are many.
        from calibscale.kernels.pair_sums import Pairs

        return Pairs(self.source, self.rules_by(self.group_by), self.execution, **options)

    def rules_by(self, group_by: str | None) -> Rules:
        """Rules of the rows of the estimators, in groups by a covariate."""
        group = None if group_by is None else self.source.covariate(group_by)
        positions = tuple(c.position for c in self.columns.values())
        return replace(self.rules, group=group, covariates=positions)


def listed(estimators: Estimator | str | Iterable[Estimator | str]) -> list[Estimator]:
    """List of one or several estimators, which may be given by their text.

    An OptionError is raised if an element is not an estimator, or its text is invalid.
    """
    # A string is iterable too, and would be a list of letters.
    several = isinstance(estimators, Iterable) and not isinstance(estimators, str)
    return [estimator(item) for item in (estimators if several else [estimators])]  # type: ignore[union-attr]


def unsuitable(
    subject: str, source: ArraySource, claims: Sequence[str] = (CLASSES,)
) -> OptionError:
    """Return the OptionError for a feature that does not support the claim of a source.

    `claims` are the claims that it supports.
    """
    source.need_integer_labels(subject)
    # Soft labels belong to classes, and have an error of their own.
    named = " or ".join(claim for claim in claims if claim != SOFT)
    error = f"{subject} is for predictions of {named}, and these are {source.kind}"
    if source.target.claims_event and CLASSES in claims:
        error += "; forecast_events(source) has the event that they claim as two classes"
    return OptionError(error)


def classes_only(subject: str, source: ArraySource) -> None:
    """Raise an OptionError if the predictions of a source are forecasts, or its labels soft."""
    source.need_integer_labels(subject)
    if source.target.has_classes:
        return
    error = unsuitable(subject, source)
    if source.target.claim == FORECASTS:
        raise OptionError(
            f"{error}; use forecast_events(source, level=0.5) (--event level=0.5) for two"
        )
    raise error


def resolved(
    requested: Estimator, setup: DataProfile, on_unsupported: str
) -> BoundEstimator | Estimate:
    """Estimator bound to the data, or an estimate with the reason why it is unsupported."""
    try:
        if not includes(requested.judges, setup.source.target.claim):
            raise unsuitable(requested.name, setup.source, requested.judges)
        return requested.bind(setup)
    except OptionError as error:
        if on_unsupported == "raise":
            raise
        return Estimate(
            requested.name, requested.notion_for(setup.n_features), None, reason=str(error)
        )


def impossible_rows(counts: RowCounts) -> ImpossibleRows | None:
    """Rows of a pass with a label of predicted probability 0, or None if there are none."""
    if counts.first_impossible is None:
        return None
    # Few decimals suggest that a small probability was rounded to 0 in a file.
    rounded = FEWEST_DECIMALS <= counts.decimals <= MOST_DECIMALS
    return ImpossibleRows(
        counts.impossible, counts.first_impossible, counts.decimals if rounded else None
    )


def versions() -> dict[str, str]:
    """Versions of calibscale and of the libraries that its numbers depend on."""
    return {name: str(installed(name)) for name in PACKAGES}
