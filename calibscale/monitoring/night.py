"""One night of a job: read a day into the ledger, judge windows, and write the outputs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from filelock import FileLock, Timeout

from calibscale.addresses import is_url
from calibscale.atomic_files import write_whole
from calibscale.auditing.local_bias import local_bias
from calibscale.data.file_systems import complaints
from calibscale.engine.merge_tree import Progress
from calibscale.errors import InvalidDataError, NotFoundError, OptionError, StoreError
from calibscale.formatting.fault_texts import dropped_text
from calibscale.monitoring import day_source, outputs
from calibscale.monitoring.checks.day_check import incomplete_days, is_incomplete
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.night_checks import NightVerdicts, judge
from calibscale.monitoring.checks.recalibration_check import is_champion_published, publish_champion
from calibscale.monitoring.day_record import Reading, bets_of, empty_record, read_day
from calibscale.monitoring.job.job_consistency import one_sided
from calibscale.monitoring.job.job_ledger import frozen, open_ledger
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.job.known_checks import CHECKS, named_check
from calibscale.monitoring.ledger.broken_days import BrokenDays
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
from calibscale.monitoring.ledger.group_keys import GroupKey
from calibscale.monitoring.ledger.index import DAMAGE, Entry, check_key
from calibscale.monitoring.ledger.recipe import Recipe, encode
from calibscale.monitoring.night_challenge import prepared_challenge
from calibscale.results.bias_results import BiasMap
from calibscale.results.cluster_results import Clusters
from calibscale.results.comparison_results import Selection
from calibscale.results.declarations import Json
from calibscale.results.night_results import DayTests, Night, NightParameters
from calibscale.results.source_rows import ImpossibleRows
from calibscale.session import Session, versions

_FEW_ROWS = 1000  # the first day should have at least so many
NO_ALARMS = (
    "Forecasts raise no alarms by themselves; tests = [...] in [alarms] makes alarms of the "
    "statistics of [test]."
)


class _Extras(NamedTuple):
    """Parts of the report that need the rows of the day: the risk table and the bias map."""

    selection: Selection | None = None
    bias: BiasMap | None = None


def night(
    job: Job | str | Path,
    day: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Night:
    """Run a job for a day.

    The day's predictions are read if they are new or have changed, for instance by late labels, and
    the new record replaces an existing one.  The same call completes an interrupted run.  If the
    night is finished and nothing has changed, the stored result is returned.

    Parameters
    ----------
    job : Job or path of a job file
    day : str
        Date such as 2026-11-21, or a part of a day such as 2026-11-21T06.
    force : bool
        Recompute and rewrite everything even if nothing has changed.
    progress : callable(blocks done, number of blocks), optional

    Raises
    ------
    OptionError
        If the job does not fit its ledger or its data.
    StoreError
        If another run is active, predictions at a URL cannot be read, or a file cannot be written.
    BrokenDayError
        If rows are invalid, or all of them were dropped as invalid, or files are damaged.  The
        outputs are written nevertheless, and the day is one of the broken days of later nights.

    Notes
    -----
    A day without predictions is no error: the result describes the earlier days, its
    `incomplete_days` name the day, and its status is ``incomplete``.
    """
    job = job if isinstance(job, Job) else read_job(job)
    check_key(day)
    outputs.check_places(job, day)
    job.built_checks()  # an unknown check is an error before anything is written
    with ExitStack() as stack:
        return _Run(job, day, force, progress, stack).run()


class BrokenDayError(InvalidDataError):
    """The predictions of a day cannot be read.

    The outputs of the night are written nevertheless, and say so.

    Attributes
    ----------
    night : Night
        Result of the night, without the rows of the day.
    """

    def __init__(self, message: str, night: Night, row: int | None = None) -> None:
        super().__init__(message, row)
        self.night = night

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (str(self), self.night, self.row)


class _Run:
    """State of a night while it runs."""

    def __init__(
        self, job: Job, day: str, force: bool, progress: Progress | None, stack: ExitStack
    ) -> None:
        self.job, self.day, self.force, self.progress = job, day, force, progress
        self.started = time.perf_counter()
        self.notes: list[str] = []
        self.absent = False  # whether there are no predictions of the day
        self.unlabelled = 0  # rows of a first day without labels, which creates no ledger
        self.broken: BrokenDays | None = None
        self.failure: str | None = None  # reason why the day cannot be read
        self._stack = stack
        existing = open_ledger(job)
        stack.enter_context(_night_lock(job.ledger_path, existing is not None))
        self.extras: _Extras | None = None  # None until they are restored or computed
        # Stamps of the outputs to which the stored result was written.
        self._output_stamps: Any = None
        self.ledger: Ledger | None = None
        self._use(existing or open_ledger(job))  # another night may have created it by now

    def _use(self, ledger: Ledger | None) -> None:
        """Hold the lock of a ledger during the night."""
        self.ledger = ledger
        if ledger is not None:
            self._stack.enter_context(ledger.writing())
            self.broken = BrokenDays(ledger.path)

    def run(self) -> Night:
        mark = self._current_mark()
        stored = None if self.force or self.ledger is None else self._stored()
        if self.absent or not (self.job.report.map or self.job.report.risk):
            self.extras = _Extras()
        if stored is not None and mark is not None:
            extras_key = self._extras_key(mark)
            if stored.parameters.extras == extras_key:
                self.extras = _Extras(stored.selection, stored.bias)
        # The rows are read if they are new, have other marks than the record, or have no marks at
        # all.
        changed = not self.absent and (
            self.force or mark is None or self._mark() != mark or self._unchallenged()
        )
        if not (changed or self.absent) and self.broken is not None:
            # The predictions are those of the record.  A night that was killed after it had written
            # the record may have left the reason for which an earlier one could not.
            self.broken.remove(self.job.model, self.day)
        if changed or self.extras is None:
            self._read(mark, changed)
        # The key covers job, ledger, days and versions: if it is the same and the outputs are as
        # written, a new run would write the same files.
        if not changed and stored is not None:
            # The reason for which a check failed may be gone by now.
            failed = any(check.failed for check in stored.checks)
            failed |= stored.recalibration is not None and stored.recalibration.fault is not None
            unchanged = stored.parameters.key == self._key() and not failed
            if unchanged and self._written() and is_champion_published(self.job, self.ledger):
                return stored
        return self._judged(mark)

    def _judged(self, mark: str | None) -> Night:
        """Result of the night, written to its outputs and to the ledger."""
        result = self._result(mark)
        # The ledger has the decision, so that a run that is killed here is completed by the next.
        publish_champion(self.job, self.ledger)
        outputs.write(self.job, self.day, result)
        self._store(result)
        return result

    # ---------------------------------------------------------------- the day's record

    def _current_mark(self) -> str | None:
        """Mark of the predictions, or None if there is no mark or no predictions."""
        try:
            return day_source.mark(self.job, self.day)
        except day_source.NoPredictionsError as error:
            self._miss(str(error))
            return None

    def _miss(self, message: str) -> None:
        """Note that there are no predictions of the day."""
        self.absent = True
        if self._entry() is not None:
            message += "; the record in the ledger is used"
        self.notes.append(f"{message}.")

    def _entry(self) -> Entry | None:
        if self.ledger is None:
            return None
        entries = self.ledger.day(self.day, self.job.model)
        return entries[0] if entries and entries[0].group is None else None

    def _mark(self) -> str | None:
        """Mark of the predictions when they were read, or None if the record is damaged."""
        entry = self._entry()
        if entry is None or self.ledger is None:
            return None
        damaged = self.ledger.check(self.ledger.day(entry.day, entry.model))
        return None if damaged else entry.info["mark"]

    def _unchallenged(self) -> bool:
        """Whether the record lacks the challengers of recalibration, or could not compare them."""
        entry = self._entry()
        if self.job.recalibration is None or entry is None or not (entry.n or entry.n_unlabelled):
            return False
        return "fault" in entry.info.get("recalibration", {"fault": ""})

    def _read(self, mark: str | None, changed: bool) -> None:
        """Write the record of the day to the ledger, if it has changed, and compute the extras."""
        with ExitStack() as stack:
            try:
                session = self._session(stack)
                reading = self._reading(session) if changed else None
            except (InvalidDataError, OptionError, StoreError) as error:
                if isinstance(error, NotFoundError) and is_url(self._place):
                    self._miss(str(error))
                    self.extras = _Extras()
                    return
                if not self._is_broken_by(error):
                    raise
                self._break(error)
            if reading is not None:
                self._keep(*reading, mark)
            self.extras = self._extras(session)

    @property
    def _place(self) -> str:
        return day_source.place(self.job, self.day)

    def _session(self, stack: ExitStack) -> Session | None:
        """Session of the rows of the day until the stack is closed, or None without rows."""
        job, progress = self.job, self.progress
        opened = day_source.opened(job, self.day, day_source.copies(job), progress)
        source = stack.enter_context(opened)
        if source is None:
            return None
        return stack.enter_context(Session.open(source, progress=progress, **job.options))

    def _reading(self, session: Session | None) -> Reading | None:
        """Recipe of the ledger and records of the day, or None if nothing is to be kept."""
        if session is None:
            if self.ledger is None:
                return None
            recipe = self.ledger.recipe
            wagers = bets_of(self.job, recipe, self.ledger, self.day)
            return recipe, {None: empty_record(recipe, wagers)}
        day_source.check_covariates(self.job, session.source)
        challenge = prepared_challenge(self.job, self.ledger, self.day, session)
        return read_day(self.job, session, self.day, self.ledger, challenge)

    def _keep(
        self, recipe: Recipe, records: dict[GroupKey | None, Record], mark: str | None
    ) -> None:
        """Write the record of the day to the ledger, which the first record creates."""
        if self.ledger is None:
            if records[None].n == 0:  # no rows to choose bandwidths from
                self.unlabelled = records[None].info["n_unlabelled"]
                return
            self._use(
                Ledger.create(
                    self.job.ledger_path, recipe, job=frozen(self.job), first_rows=records[None].n
                )
            )
        assert self.ledger is not None
        assert self.broken is not None
        records[None].info["mark"] = mark
        # The record comes first: a crash in between must not lose the reason without a record.
        self.ledger.write(self.day, self.job.model, records)
        self.broken.remove(self.job.model, self.day)

    def _is_broken_by(self, error: Exception) -> bool:
        """Whether the predictions of the day cause an error, which stays until they change.

        A file system of a URL may be unreachable for a while.  A setting is at fault if it has
        never worked.
        """
        if isinstance(error, OptionError):
            return self.ledger is not None and self.job.model in self.ledger.models
        if isinstance(error, StoreError):  # of files it is about their copy, not about them
            return self.job.source.format != "files" and not is_url(self._place)
        return True

    def _break(self, error: Exception) -> NoReturn:
        """Keep the reason why the day cannot be read, and write the outputs without it.

        Raises
        ------
        BrokenDayError, OptionError
        """
        self.failure, self.extras = str(error), _Extras()
        if self.broken is not None:
            self.broken.add(self.job.model, self.day, self.failure)
        result = self._judged(None)
        if isinstance(error, OptionError):
            raise error
        raise BrokenDayError(self.failure, result, getattr(error, "row", None)) from error

    def _extras(self, session: Session | None) -> _Extras:
        """Parts of the report that need the rows of the day."""
        requested = self.job.report
        extras = _Extras()
        entry = self._entry()
        if session is None or entry is None or not entry.n:
            return extras
        try:
            if requested.map:
                bias_map = local_bias(session, requested.map, at="grid", n_replicates=0)
                extras = extras._replace(bias=bias_map)
            if requested.risk:
                default = "positive" if session.source.n_features == 2 else "top_label"
                scalar = requested.reliability or default
                from calibscale.selection.cross_validation import select  # slow to import

                selection = select(session, scalar, seed=self.job.seed)
                extras = extras._replace(selection=selection)
        except OptionError as error:  # for instance too few rows: the night continues
            self.notes.append(f"The map or the risk table of the day was not computed: {error}")
        return extras

    # ---------------------------------------------------------------- results

    def _stored(self) -> Night | None:
        """Stored result of this night, or None if there is no result or the file was changed."""
        assert self.ledger is not None
        path = self.ledger.result_path(self.job.model, self.day)
        try:
            data = path.read_bytes()
            stamps = json.loads(path.with_suffix(".outputs").read_text())
            if stamps["result"] != hashlib.sha256(data).hexdigest():
                return None
            self._output_stamps, result = stamps["places"], json.loads(data)
            if result["schema"] != Night.schema:
                return None
            return Night.from_dict(result, fresh=False)
        except (OSError, *DAMAGE):
            return None

    def _store(self, result: Night) -> None:
        """Write the stamps of this night's outputs to the ledger, and then the result."""
        if self.ledger is None:
            return
        path = self.ledger.result_path(self.job.model, self.day)
        data = json.dumps(result.to_dict(), allow_nan=False).encode()
        written = {
            "places": outputs.stamps(self.job, self.day),
            "result": hashlib.sha256(data).hexdigest(),
        }
        # The stamps come first.  After a crash in between, the hash of the result does not match
        # them, and the night is judged again.
        write_whole(path.with_suffix(".outputs"), json.dumps(written, sort_keys=True).encode())
        write_whole(path, data)

    def _key(self) -> str:
        """Hash that identifies a finished night: job, ledger, days, versions, and packages."""
        if self.ledger is None:
            return ""
        # The result states which days are missing or broken, although these days are not in the
        # ledger.
        days = [self.absent, self._broken()]
        # Another version of a package may have another verdict of its checks.
        packages = [CHECKS.entry(named_check(table["name"])).origin for table in self.job.checks]
        parts = [self.job.to_dict(), self.ledger.revision, self.day, days, versions(), packages]
        text = json.dumps(parts)
        return hashlib.sha256(text.encode()).hexdigest()

    def _broken(self) -> dict[str, str]:
        """Reasons of the days that cannot be read, by day."""
        reasons = {} if self.broken is None else dict(self.broken.of(self.job.model))
        return reasons if self.failure is None else reasons | {self.day: self.failure}

    def _extras_key(self, mark: str | None) -> tuple[str | None, Json]:
        return mark, self.job.to_dict()["report"]

    def _written(self) -> bool:
        """Whether the outputs are still as this night wrote them."""
        try:
            return outputs.stamps(self.job, self.day) == self._output_stamps
        except OSError:
            return False

    def _result(self, mark: str | None) -> Night:
        entry = self._entry()
        info: dict[str, Any] = {} if entry is None else entry.info
        n = 0 if entry is None else entry.n
        n_unlabelled = info.get("n_unlabelled", self.unlabelled)
        dropped = info.get("dropped", {})
        parameters = self._parameters(mark)
        if self.ledger is None:
            verdicts = NightVerdicts()
            notes = [*self.notes, self._without_ledger()]
        else:
            verdicts = judge(JudgedDay(self.job, self.ledger, self.day))
            notes = self._day_notes(n, n_unlabelled, dropped, verdicts)
            notes += [*self._ledger_notes(), *self.notes, *verdicts.notes]
            notes = [*dict.fromkeys(notes)]  # checks may have the same note
        incomplete = incomplete_days(
            self.job,
            self.ledger,
            self.day,
            absent=self.absent and entry is None,
            broken=self._broken(),
            unlabelled=self.unlabelled,
        )
        status = "fine"
        if verdicts.breached:
            status = "breached"
        elif is_incomplete(self.job, incomplete):
            status = "incomplete"
        impossible = info.get("impossible")  # entries of earlier versions have none
        clusters, calibration = info.get("clusters"), info.get("calibration")
        extras = self.extras or _Extras()
        return Night(
            job=self.job.name,
            day=self.day,
            model=self.job.model,
            status=status,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self.started,
            versions=versions(),
            parameters=parameters,
            source=info.get("source"),
            n=n,
            n_unlabelled=n_unlabelled,
            dropped=dropped,
            impossible=ImpossibleRows(*impossible) if impossible else None,
            group_by=self.job.group_by,
            clusters=Clusters.from_dict(clusters) if clusters else None,
            calibration=DayTests.from_dict(calibration) if calibration else None,
            windows=verdicts.windows,
            thresholds=verdicts.thresholds,
            checks=verdicts.checks,
            drift=verdicts.drift,
            alarms=verdicts.alarms,
            ranking=verdicts.ranking,
            recalibration=verdicts.recalibration,
            trend=verdicts.trend,
            selection=extras.selection,
            bias=extras.bias,
            incomplete_days=incomplete,
            notes=tuple(notes),
            fresh=True,
        )

    def _parameters(self, mark: str | None) -> NightParameters:
        """Settings of the job and the estimators, and what an unchanged night has in common."""
        estimators = () if self.ledger is None else self.ledger.recipe.estimators
        return NightParameters(
            job=self.job.to_dict(),
            estimators=tuple({"estimator": e.name, **encode(e)["settings"]} for e in estimators),
            extras=self._extras_key(mark),
            key=self._key(),
        )

    def _without_ledger(self) -> str:
        """Sentence about a night before there is a ledger."""
        if self.absent or self.failure is not None:
            return "There is no ledger yet."
        return "No row has a label, and there is no ledger yet: nothing was kept."

    def _day_notes(
        self, n: int, n_unlabelled: int, dropped: dict[str, int], verdicts: NightVerdicts
    ) -> list[str]:
        """Sentences about the rows of the day and about checks that guard nothing."""
        assert self.ledger is not None
        notes = []
        if not (n or self.absent or self.failure is not None):
            notes.append(f"No row of {self.day} could be used.")
        if not self.ledger.recipe.wagers and verdicts.alarms is None and self.job.alarms:
            notes.append(NO_ALARMS)
        notes += one_sided(self.job)
        if n_unlabelled:
            notes.append(
                f"{n_unlabelled:,} rows have no label yet; they count when the day is run again "
                "with their labels."
            )
        if sum(dropped.values()):
            notes.append(f"{dropped_text(dropped)}.")
        notes += [*self.ledger.damaged.values(), *self.ledger.unreadable]
        # A threshold without a value guards nothing, which a status of fine would hide.
        blind = [threshold for threshold in verdicts.thresholds if threshold.observed is None]
        if blind:
            subject = f"{len(blind)} thresholds have" if len(blind) > 1 else "One threshold has"
            notes.append(f"{subject} no value to judge.")
        return notes

    def _ledger_notes(self) -> list[str]:
        """Sentences about the first and the last day of the ledger."""
        assert self.ledger is not None
        notes = []
        n = self.ledger.notes.get("first_rows")
        if n is not None and n < _FEW_ROWS:
            notes.append(
                f"Bandwidths and λ of this ledger were taken from {n:,} rows of its first day."
            )
        later = self.ledger.select(self.day, None, self.job.model)
        if later and later[-1].day > self.day:
            last = later[-1].day
            notes.append(
                f"The ledger has later days, up to {last}; this result ends on {self.day}."
            )
        return notes


@contextmanager
def _night_lock(ledger: Path, exists: bool) -> Iterator[None]:
    """Hold the lock of the night, which the first night takes before its ledger exists."""
    lock = FileLock(ledger.with_name(f".{ledger.name}.lock"))
    with complaints(ledger):
        try:
            ledger.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StoreError(
                f"{ledger}: locked by another writer, which holds {lock.lock_file}"
            ) from error
        except OSError:
            if not exists:
                raise
            # The folder is read-only, but the ledger has its own lock.
    try:
        yield
    finally:
        lock.release()
