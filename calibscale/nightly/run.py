"""One night of a job: read a day, keep its record, judge what the ledger says, write it down."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from calibscale import engine
from calibscale.errors import OptionError, StoreError
from calibscale.evaluation import versions
from calibscale.files import refuse_overwriting, write_whole
from calibscale.ledger.days import Entry, Ledger, Record, check_key
from calibscale.ledger.recipe import encode
from calibscale.ledger.sums import keep_sums
from calibscale.nightly import exports, intake
from calibscale.nightly.frozen import frozen, open_ledger
from calibscale.nightly.job import Job, read_job, window_days
from calibscale.nightly.judging import Judge
from calibscale.nightly.reading import bets_of, empty_record, read_day
from calibscale.results import finite
from calibscale.source import ArraySource
from calibscale.store.places import complaints, is_url

NIGHTLY_SCHEMA = "calibscale.nightly/1"
_FEW_ROWS = 1000  # that the first day should have
_NO_EXTRAS = {"selection": None, "bias": None}


@dataclass(frozen=True)
class Night:
    """What a night found.

    Attributes
    ----------
    result : dict
        The JSON object of ``calibscale nightly --json``.
    fresh : bool
        Whether there was anything to do.
    """

    result: dict[str, Any]
    fresh: bool

    @property
    def breached(self) -> bool:
        """Whether a threshold is breached, or an alarm was raised."""
        return self.result["status"] == "breached"

    @property
    def status(self) -> str:
        return str(self.result["status"])

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object."""
        return self.result


def night(
    job: Job | str | Path, day: str, *, again: bool = False,
    progress: engine.Progress | None = None,
) -> Night:  # fmt: skip
    """Run a job for a day.

    The day's predictions are read if they are new or have changed, labels that came late among
    them; its record takes the place of the one that was there.  What a kill cut short, the same
    call completes.  A night that is finished, and of which nothing has changed, does nothing.

    Parameters
    ----------
    job : Job or path of a job file
    day : str
        2026-11-21, or a part of a day, 2026-11-21T06.
    again : bool
        Read the day and write everything once more.
    progress : callable(blocks done, blocks in all), optional

    Raises
    ------
    OptionError
        If the job does not fit its ledger or its data.
    StoreError
        If there are no predictions, another run is at work, or something cannot be written.
    InvalidDataError
        If the rows are bad, or all of them were left out as invalid.
    """
    job = job if isinstance(job, Job) else read_job(job)
    check_key(day)
    _check_places(job, day)
    with ExitStack() as stack:
        return _Run(job, day, again, progress, stack).go()


class _Run:
    """A night as it goes on."""

    def __init__(
        self, job: Job, day: str, again: bool, progress: engine.Progress | None, stack: ExitStack
    ) -> None:
        self.job, self.day, self.again, self.progress = job, day, again, progress
        self.started = time.perf_counter()
        self.notes: list[str] = []
        self._stack = stack
        there = open_ledger(job)
        stack.enter_context(_alone(job.ledger_path, there is not None))
        self.ledger = there or open_ledger(job)  # that another night may have made by now
        self.extras: dict[str, Any] | None = None
        if self.ledger is not None:
            stack.enter_context(self.ledger.writing())

    def go(self) -> Night:
        mark = intake.mark(self.job, self.day)
        kept = {} if self.again or self.ledger is None else self._kept()
        if not (self.job.report.map or self.job.report.risk):
            self.extras = dict(_NO_EXTRAS)
        known = kept.get("parameters", {})
        if kept and mark is not None and known.get("extras") == self._extras_key(mark):
            self.extras = {name: kept[name] for name in ("selection", "bias")}
        changed = self.again or mark is None or self._mark() != mark
        if changed or self.extras is None:
            with intake.opened(self.job, self.day, self.job.ledger_path, self.progress) as source:
                if changed:
                    self._read(source, mark)
                self.extras = self._extras(source)
        elif kept and known["key"] == self._key() and self._written():
            return Night(kept, fresh=False)
        result = self._result(mark)
        places = _places(self.job, self.day)
        for kind, place in places.items():
            _WRITERS[kind](place, result)
        if self.ledger is not None:
            path = self.ledger.result_path(self.job.model, self.day)
            seen = json.dumps(_seen(places), sort_keys=True)
            write_whole(path.with_suffix(".outputs"), seen.encode())
            write_whole(path, json.dumps(result, allow_nan=False).encode())
        return Night(result, fresh=True)

    # ---------------------------------------------------------------- the day's record

    def _entry(self) -> Entry | None:
        for entry in self.ledger.entries if self.ledger is not None else ():
            if (entry.day, entry.model, entry.group) == (self.day, self.job.model, None):
                return entry
        return None

    def _mark(self) -> str | None:
        """What the predictions were known by when they were read; None if the record is damaged."""
        entry = self._entry()
        if entry is None or self.ledger is None:
            return None
        key = (entry.day, entry.model)
        damaged = self.ledger.check(e for e in self.ledger.entries if (e.day, e.model) == key)
        return None if damaged else entry.info["mark"]

    def _read(self, source: ArraySource | None, mark: str | None) -> None:
        """Put the record of the day into the ledger, which the first one makes."""
        if source is None:
            if self.ledger is None:
                return
            recipe = self.ledger.recipe
            wagers = bets_of(self.job, recipe, self.ledger, self.day)
            records: dict[float | None, Record] = {None: empty_record(recipe, wagers)}
        else:
            if self.ledger is None:
                intake.check_covariates(self.job, source)
            found = read_day(self.job, source, self.day, self.ledger, self.progress)
            records = found.records
            if self.ledger is None:
                if records[None].n == 0:  # nothing to freeze bandwidths by
                    return
                self.ledger = Ledger.create(
                    self.job.ledger_path, found.recipe, job=frozen(self.job),
                    first_rows=records[None].n,
                )  # fmt: skip
                self._stack.enter_context(self.ledger.writing())
        records[None].info["mark"] = mark
        self.ledger.write(self.day, self.job.model, records)
        keep_sums(self.ledger)

    def _extras(self, source: ArraySource | None) -> dict[str, Any]:
        """What the report shows of the day's rows alone."""
        asked = self.job.report
        extras: dict[str, Any] = dict(_NO_EXTRAS)
        if source is None or self._entry() is None or not self._n():
            return extras
        settings: dict[str, Any] = {
            "on_invalid": self.job.source.on_invalid, "scheduler": self.job.run.scheduler,
            "memory_limit": self.job.run.memory_limit, "progress": self.progress,
        }  # fmt: skip
        tolerance = self.job.source.tolerance
        try:
            if asked.map:
                from calibscale.bias import local_bias

                found = local_bias(
                    source, asked.map, at="grid", simplex_tolerance=tolerance, **settings
                )
                extras["bias"] = found.to_dict()
            if asked.risk:
                from calibscale.selection import select

                notion = "positive" if source.classes == 2 else "top_label"
                chosen = select(
                    source, asked.reliability or notion, seed=self.job.seed, tolerance=tolerance,
                    **settings,
                )  # fmt: skip
                extras["selection"] = chosen.to_dict()
        except OptionError as error:  # too few rows, say: the night goes on
            self.notes.append(f"The map or the risk table of the day cannot be made: {error}")
        return extras

    def _n(self) -> int:
        entry = self._entry()
        return 0 if entry is None else entry.n

    # ---------------------------------------------------------------- results

    def _kept(self) -> dict[str, Any]:
        """The result that this night wrote before, if it did."""
        assert self.ledger is not None
        try:
            path = self.ledger.result_path(self.job.model, self.day)
            found = json.loads(path.read_text())
            return found if found["schema"] == NIGHTLY_SCHEMA else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _key(self) -> str:
        """What a finished night is known by: the job, the ledger's revision, the software."""
        assert self.ledger is not None
        text = json.dumps([self.job.to_dict(), self.ledger.revision, self.day, versions()])
        return hashlib.sha256(text.encode()).hexdigest()

    def _extras_key(self, mark: str | None) -> list[Any]:
        return [mark, self.job.to_dict()["report"]]

    def _written(self) -> bool:
        """Whether the outputs are those that this night wrote, and not those of another day."""
        assert self.ledger is not None
        path = self.ledger.result_path(self.job.model, self.day).with_suffix(".outputs")
        try:
            return json.loads(path.read_text()) == _seen(_places(self.job, self.day))
        except (OSError, ValueError):
            return False

    def _result(self, mark: str | None) -> dict[str, Any]:
        entry = self._entry()
        info: dict[str, Any] = {} if entry is None else entry.info
        out: dict[str, Any] = {
            "schema": NIGHTLY_SCHEMA,
            "job": self.job.name,
            "day": self.day,
            "model": self.job.model,
            "status": "fine",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "versions": versions(),
            "parameters": {
                "job": self.job.to_dict(),
                "estimators": [],
                "extras": self._extras_key(mark),
                "key": "",
            },
            "source": info.get("source"),
            "n": 0 if entry is None else entry.n,
            "n_dropped": sum(info.get("dropped", {}).values()),
            "n_unlabelled": info.get("n_unlabelled", 0),
            "dropped": info.get("dropped", {}),
            "group_by": self.job.group_by,
            "windows": [], "thresholds": [], "drift": None, "alarms": None,
            "trend": {"days": [], "n": [], "series": []}, "ranking": None,
            **(self.extras or _NO_EXTRAS),
            "notes": [],
        }  # fmt: skip
        if self.ledger is None:
            out["notes"] = ["No row has a label, and there is no ledger yet: nothing was kept."]
        else:
            out["parameters"]["key"] = self._key()
            out["parameters"]["estimators"] = [
                {"estimator": e.name, **encode(e)["settings"]}
                for e in self.ledger.recipe.estimators
            ]
            self._judge(out)
        out["seconds"] = time.perf_counter() - self.started
        return finite(out)

    def _judge(self, out: dict[str, Any]) -> None:
        assert self.ledger is not None
        judge = Judge(self.job, self.ledger, self.day)
        drift = judge.drift()
        out |= {
            "windows": judge.windows(),
            "drift": drift,
            "thresholds": judge.thresholds(drift),
            "alarms": judge.alarms(),
            "trend": judge.trend(),
            "ranking": judge.ranking(),
        }
        breached = any(t["breached"] for t in out["thresholds"])
        if breached or (out["alarms"] and out["alarms"]["alarm"]):
            out["status"] = "breached"
        out["notes"] = [*dict.fromkeys([*self._notes(out), *self.notes, *judge.notes])]

    def _notes(self, out: dict[str, Any]) -> list[str]:
        assert self.ledger is not None
        notes = []
        if not out["n"]:
            notes.append(f"No row of {self.day} could be used.")
        if out["n_unlabelled"]:
            notes.append(
                f"{out['n_unlabelled']:,} rows have no label yet; they count when the day is run "
                "again with their labels."
            )
        if out["n_dropped"]:
            notes.append(f"{out['n_dropped']:,} rows were left out as invalid.")
        notes += self.ledger.damaged.values()
        blind = [t for t in out["thresholds"] if t["observed"] is None]
        if blind:
            many = f"{len(blind)} thresholds have" if len(blind) > 1 else "One threshold has"
            notes.append(f"{many} no value to judge.")
        frozen = self.ledger.notes.get("first_rows")
        if frozen is not None and frozen < _FEW_ROWS:
            notes.append(
                f"Bandwidths and λ of this ledger were taken from {frozen:,} rows of its first day."
            )
        later = [day for day in self.ledger.days(self.job.model) if day > self.day]
        if later:
            notes.append(
                f"The ledger has later days, up to {later[-1]}; everything here ends on {self.day}."
            )
        return notes


def _places(job: Job, day: str) -> dict[str, Path]:
    """Where the outputs go."""
    return {
        kind: Path(job.place(template, day))
        for kind, template in job.to_dict()["outputs"].items()
        if template is not None
    }


def _check_places(job: Job, day: str) -> None:
    """Refuse outputs in the place of what the night reads."""
    source = job.place(job.source.path, day)
    read: list[str | Path] = [job.file, job.ledger_path]
    read += [] if is_url(source) else [source]
    for place in _places(job, day).values():
        refuse_overwriting(place, read)


def _seen(places: dict[str, Path]) -> dict[str, list[int]]:
    """What tells written files from others; a history is of all days."""
    states = {kind: path.stat() for kind, path in places.items() if kind != "history"}
    return {kind: [state.st_size, state.st_mtime_ns] for kind, state in states.items()}


def _write_report(path: str | Path, result: dict[str, Any]) -> None:
    from calibscale.report import report

    write_whole(path, report([result]).encode())


_WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "json": exports.write_json, "prometheus": exports.write_prometheus,
    "junit": exports.write_junit, "history": exports.write_history, "report": _write_report,
}  # fmt: skip


@contextmanager
def _alone(ledger: Path, there: bool) -> Iterator[None]:
    """The only night, also of a ledger that is not there yet, until the context ends."""
    lock = FileLock(ledger.with_name(f".{ledger.name}.lock"))
    with complaints(ledger):
        try:
            ledger.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StoreError(f"{ledger}: another writer is at work") from error
        except OSError:
            if not there:
                raise
            # a folder that others own: the ledger has a lock of its own
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Plan:
    """What a night would do."""

    day: str
    model: str
    source: str
    rows: int | None
    reads: str
    ledger: str
    ledger_days: int
    windows: dict[str, int]
    outputs: dict[str, str]
    seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {"schema": "calibscale.nightly_plan/1", **self.__dict__}


def dry_run(job: Job | str | Path, day: str) -> Plan:
    """What `night` would do, without doing it.

    Raises
    ------
    OptionError, StoreError, InvalidDataError
        As `night` would, as far as can be told without reading the rows.
    """
    from calibscale.planning import plan

    job = job if isinstance(job, Job) else read_job(job)
    check_key(day)
    _check_places(job, day)
    ledger = open_ledger(job)
    mark = intake.mark(job, day)
    entries = [] if ledger is None else ledger.select(model=job.model)
    known = {e.day: e.info.get("mark") for e in entries}
    days = {e.day for e in entries if e.n}
    if mark is None or known.get(day) != mark:
        days.add(day)
    if day not in known:
        reads = "the day, for the first time"
    elif mark is None or known[day] != mark:
        reads = "the day again: its predictions or labels have changed"
    else:
        reads = "nothing: the day is in the ledger as it is now"
    rows = seconds = None
    if job.source.format != "files":
        with intake.opened(job, day, job.ledger_path) as source:
            if source is None:
                days.discard(day)
            else:
                rows = source.rows
                intake.check_covariates(job, source)
                asked = job.built_estimators() if ledger is None else ledger.recipe.estimators
                settings = {
                    "on_invalid": job.source.on_invalid, "tolerance": job.source.tolerance,
                    "scheduler": job.run.scheduler,
                }  # fmt: skip
                seconds = plan(source, asked, **settings).seconds  # type: ignore[arg-type]
    windows = {}
    for name in job.windows:
        first, last = window_days(name, day[:10])
        windows[name] = sum(first <= key[:10] <= min(last, day[:10]) for key in days)
    outputs = {k: job.place(v, day) for k, v in job.to_dict()["outputs"].items() if v}
    return Plan(
        day, job.model, intake.place(job, day), rows, reads, str(job.ledger_path), len(known),
        windows, outputs, seconds,
    )  # fmt: skip
