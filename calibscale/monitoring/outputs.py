"""Files that a night writes: the report, and JSON, Prometheus, JUnit, history for other programs.

Writers raise StoreError if the file cannot be written.
"""

from __future__ import annotations

import csv
import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from calibscale.addresses import is_url
from calibscale.atomic_files import refuse_overwriting, refuse_pipe, write_whole
from calibscale.atomic_files import write_json as write_json_file
from calibscale.errors import OptionError, StoreError
from calibscale.formatting.naming import level
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.ledger.group_keys import condition
from calibscale.output.documents.night_headline import day_sentence, impossible_sentence
from calibscale.results.night_results import AlarmResult, CheckResult, Group, Night, ThresholdResult

_WAIT = 60.0  # seconds to wait for another night that writes the same history
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_report(path: str | Path, result: Night) -> None:
    """Write the result as an HTML report."""
    from calibscale.output.report import save_report  # slow to import

    save_report([result.to_dict()], path)


def write_json(path: str | Path, result: Night) -> None:
    """Write the result as JSON."""
    write_json_file(path, result.to_dict(), indent=1)


# ---------------------------------------------------------------- Prometheus

_GAUGES = {
    "estimate": "Estimate of a calibration error or score.",
    "estimate_low": "Lower end of the confidence interval of an estimate.",
    "estimate_high": "Upper end of the confidence interval of an estimate.",
    "estimate_noise": "95 % quantile of the estimate of a calibrated model.",
    "p_value": "P-value of the test of calibration.",
    "drift_p_value": "P-value of the difference from the baseline, adjusted for multiple tests.",
    "threshold_breached": "1 if a threshold is breached, else 0.",
    "threshold_limit": "Limit of a threshold; kind is above, below or abs_above.",
    "threshold_observed": "Value, or end of an interval, that a threshold limits.",
    "check_breached": "1 if a check is breached or has failed, else 0.",
    "check_value": "Value that a check has judged.",
    "check_limit": "Limit of the value of a check.",
    "recalibration_failed": "1 if a champion of recalibration was not compared or written, else 0.",
    "recalibration_replaced": "1 if this night replaced the champion of recalibration, else 0.",
    "recalibration_score": "Half of the Brier score of the day, of the champion or as_they_are.",
    "incomplete_days": "Number of days of the windows that are missing, broken or provisional.",
    "log_evidence": "Natural logarithm of the evidence against calibration so far.",
    "log_evidence_overall": "Natural logarithm of the mean evidence of all notions and groups; it "
    "raises the alarm.",
    "error_at_least": "Lower confidence bound of the calibration error, with a tolerance.",
    "alarm": "1 if the evidence has ever reached the alarm threshold, else 0.",
    "rows": "Number of rows of the day that were used.",
    "rows_dropped": "Number of rows of the day that were dropped as invalid.",
    "rows_unlabelled": "Number of rows of the day without a label so far.",
    "day_timestamp_seconds": "Time of the midnight (UTC) at which the day began.",
    "run_timestamp_seconds": "Time at which the day was judged.",
}


def write_prometheus(path: str | Path, result: Night) -> None:
    """Write gauges in the text format of Prometheus, for node_exporter's textfile collector.

    A missing value gives no sample, unless it breaches a threshold.  The label `group` is empty for
    all rows.
    """
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for name, value, labels in _samples(result):
        if value is None:
            continue
        # Every sample names the job and the model, because one exporter serves many.
        labels = {"job": result.job, "model": result.model, **labels}
        if name not in gauges:
            description = _GAUGES[name]
            gauges[name] = Gauge(f"calibscale_{name}", description, [*labels], registry=registry)
        gauges[name].labels(**{key: _text(text) for key, text in labels.items()}).set(value)
    write_whole(path, generate_latest(registry))


def _samples(result: Night) -> Iterator[tuple[str, float | None, dict[str, str]]]:
    """Name, value and labels of every sample."""
    for window in result.windows:
        window_label = {"window": window.name}
        for row in result.window_records(window):
            labels = _labels(row["estimator"], row["notion"], window_label, row["group"])
            yield "estimate", row["value"], labels
            yield "estimate_low", row["low"], labels
            yield "estimate_high", row["high"], labels
            yield "estimate_noise", row["floor_high"], labels
        for test in window.tests:
            yield "p_value", test.p_value, _labels(test.statistic, test.notion, window_label)
    if result.drift is not None:
        window_label = {"window": result.drift.window}
        for change in result.drift.results:
            labels = _labels(change.estimator, change.notion, window_label, change.group)
            yield "drift_p_value", change.adjusted_p_value, labels
    judged = [t for t in result.thresholds if t.observed is not None or t.breached]
    for threshold in sorted(judged, key=lambda t: t.breached):  # of equal names, a breached one
        name = {"name": threshold.name}
        yield "threshold_breached", float(threshold.breached), name
        yield "threshold_observed", threshold.observed, name
        yield "threshold_limit", threshold.limit, {**name, "kind": threshold.side}
    for check in sorted(result.checks, key=lambda c: c.breached):  # as for thresholds
        name = {"name": check.check}
        yield "check_breached", float(check.breached), name
        yield "check_value", check.value, name
        yield "check_limit", check.limit, name
    alarms = result.alarms
    if alarms is not None:
        for process in alarms.processes:
            labels = {"notion": process.notion, "group": _group(process.group)}
            yield "log_evidence", _last(process.log_evidence), labels
            yield "error_at_least", _last(process.at_least or ()), labels
        yield "log_evidence_overall", _last(alarms.log_evidence), {}
        yield "alarm", float(alarms.alarm), {}
    yield from _recalibration_samples(result)
    if result.incomplete_days is not None:
        for kind, days in result.incomplete_days.by_kind.items():
            yield "incomplete_days", float(len(days)), {"kind": kind}
    yield "rows", result.n, {}
    yield "rows_dropped", result.n_dropped, {}
    yield "rows_unlabelled", result.n_unlabelled, {}
    # Alerts on the age of the newest day need a number.
    midnight = datetime.fromisoformat(result.day[:10]).replace(tzinfo=UTC)
    yield "day_timestamp_seconds", midnight.timestamp(), {}
    yield "run_timestamp_seconds", datetime.fromisoformat(result.created).timestamp(), {}


def _recalibration_samples(result: Night) -> Iterator[tuple[str, float | None, dict[str, str]]]:
    """Samples about the champion of recalibration, if the job has one."""
    recalibration = result.recalibration
    if recalibration is None:
        return
    yield "recalibration_failed", float(recalibration.fault is not None), {}
    yield "recalibration_replaced", float(recalibration.replaced), {}
    for night in recalibration.nights[-1:]:
        if night.day == result.day:
            yield "recalibration_score", night.champion_score, {"of": "champion"}
            yield "recalibration_score", night.as_they_are, {"of": "as_they_are"}


def _labels(name: str, notion: str, extra: dict[str, str], group: Group = None) -> dict[str, str]:
    return {"estimator": name, "notion": notion, "group": _group(group), **extra}


def _group(group: Group) -> str:
    """Name or number of a group, empty for all rows."""
    if group is None or isinstance(group, str):
        return group or ""
    return repr(float(group)).removesuffix(".0")


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def _text(value: Any) -> str:
    """A name without lone surrogates, which cannot be encoded."""
    return str(value).encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- JUnit


def write_junit(path: str | Path, result: Night) -> None:
    """Write a JUnit file of test cases: each threshold, each check, alarms, and kinds of days."""
    cases = [_threshold_case(threshold, result) for threshold in result.thresholds]
    cases += [_check_case(check) for check in result.checks]
    if result.recalibration is not None:
        fault = result.recalibration.fault
        cases.append(("recalibration", None if fault is None else "error", fault or ""))
    cases.append(_alarm_case(result.alarms, result))
    cases += _day_cases(result)
    outcomes = [outcome for _, outcome, _ in cases]
    attributes = {
        "name": f"{result.job} {result.model} {result.day}",
        "tests": len(cases),
        "failures": outcomes.count("failure"),
        "errors": outcomes.count("error"),
        "skipped": outcomes.count("skipped"),
        "time": f"{result.seconds:.3f}",
        "timestamp": datetime.fromisoformat(result.created).replace(tzinfo=None).isoformat(),
    }
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", {key: _xml(v) for key, v in attributes.items()})
    properties = ET.SubElement(suite, "properties")
    for name in ("job", "model", "day", "schema"):
        ET.SubElement(properties, "property", name=name, value=_xml(getattr(result, name)))
    # Viewers group test cases by the class name.
    folder = _xml(f"calibscale.{result.job}.{result.model}")
    for name, outcome, message in cases:
        case = ET.SubElement(suite, "testcase", classname=folder, name=_xml(name), time="0")
        if outcome is not None:
            ET.SubElement(case, outcome, message=_xml(message)).text = _xml(message)
    ET.indent(root)
    write_whole(path, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _threshold_case(threshold: ThresholdResult, result: Night) -> tuple[str, str | None, str]:
    """Name, failure or skipped or None, and message of a test case."""
    name, observed, limit = threshold.name, threshold.observed, threshold.limit
    if observed is None:
        reason = threshold.reason or "there is no value"
        return name, "failure" if threshold.breached else "skipped", f"{name}: {reason}"
    subject = f"{threshold.estimator} {threshold.quantity} over {threshold.window}"
    where = _where(threshold.group, result)
    beyond = f"is {threshold.side} {limit!r}"
    if threshold.side == "abs_above":
        beyond = f"is not within ±{limit!r}"
    message = f"{subject}{where}: {observed!r} {beyond}"
    return name, "failure" if threshold.breached else None, message


def _check_case(check: CheckResult) -> tuple[str, str | None, str]:
    """Name, error or failure or None, and message of a test case."""
    outcome = None
    if check.breached:
        outcome = "error" if check.failed else "failure"
    return check.check, outcome, check.sentence


def _alarm_case(alarms: AlarmResult | None, result: Night) -> tuple[str, str | None, str]:
    if alarms is None:
        return "alarms", "skipped", "alarms are off"
    if not alarms.alarm:
        return "alarms", None, ""
    sentences = [
        f"{p.notion}{_where(p.group, result, ',')} since {p.since}"
        for p in alarms.processes
        if p.alarm
    ]
    message = (
        f"miscalibrated since {alarms.since}: the log evidence is "
        f"{_last(alarms.log_evidence)!r}, the alarm threshold is {alarms.threshold!r}"
    )
    if alarms.impossible is not None:
        sentences.append(impossible_sentence(alarms.impossible, result.group_by))
    return "alarms", "failure", "; ".join([message, *sentences])


def _day_cases(result: Night) -> Iterator[tuple[str, str | None, str]]:
    """Test cases of missing, broken and provisional days, skipped if the job expects them."""
    days = result.incomplete_days
    if days is None:
        return
    expected = result.parameters.job.get("provisional") == "fine"
    for kind, listed in days.by_kind.items():
        outcome = "skipped" if kind == "provisional" and expected else "failure"
        yield f"no {kind} days", outcome if listed else None, day_sentence(days, kind)


def _where(group: Group, result: Night, end: str = "") -> str:
    """Group as a condition, empty for all rows.

    The groups of ledgers of earlier versions are numbers, for which the day's data may have names.
    """
    if group is None:
        return ""
    name = level(result.source, result.group_by, group)
    return f", {condition(result.group_by, name)}{end}"


def _xml(value: Any) -> str:
    """Text with the characters replaced that XML does not allow."""
    return _NOT_XML.sub("\ufffd", str(value))


# ---------------------------------------------------------------- history


class HistoryRow(NamedTuple):
    """One estimate of a night: a row of the history, with a number or a name as `group`."""

    job: str
    model: str
    day: str
    window: str
    group: Group
    estimator: str
    notion: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    p_value: float | None

    @property
    def night(self) -> tuple[str, str, str]:
        return self.job, self.model, self.day

    @property
    def order(self) -> tuple[Any, ...]:
        group = _group(self.group)
        number = _number(group)
        by_value = (group != "", number is None, number or 0.0, group)
        return (*self.night, self.window, *by_value, self.estimator, self.notion)

    @classmethod
    def read(cls, texts: Sequence[str]) -> Self:
        """Row from the fields of a CSV line."""
        if len(texts) != len(cls._fields):
            raise ValueError(f"{len(texts)} columns instead of {len(cls._fields)}")
        row: dict[str, Any] = dict(zip(cls._fields, texts, strict=True))
        numbers = {name: float(row[name]) if row[name] else None for name in _NUMBERS}
        labels = {"group": row["group"] or None, "n": int(row["n"]), "day": _day(row["day"])}
        return cls(**{**row, **numbers, **labels})


_NUMBERS = ("value", "low", "high", "p_value")


def _number(text: str) -> float | None:
    """Number of a group, or None for a name."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def write_history(path: str | Path, result: Night) -> None:
    """Write the estimates of a night to a history, replacing earlier rows of the same night.

    A history is a ``.csv`` or ``.parquet`` file with a row for each estimator, window and group.

    Raises
    ------
    StoreError
        If an existing file, which is left unchanged, is damaged or is not a history.
    OptionError
        If the file name has another suffix.
    """
    place = Path(path)
    suffix = place.suffix.lower()
    if suffix not in _FORMATS:
        raise OptionError(f"{path}: the name of a history must end in {' or '.join(_FORMATS)}")
    read, written = _FORMATS[suffix]
    fresh = list(_rows(result))
    night = (_text(result.job), _text(result.model), result.day)
    lock = FileLock(place.with_name(f".{place.name}.lock"))
    try:
        # The lock is a file in this folder, which the first night creates.
        place.parent.mkdir(parents=True, exist_ok=True)
        # Nights of several models may share a history.
        with lock.acquire(timeout=_WAIT):
            # Most nights come in order: appending parses the last row only.
            data = _appended(place, fresh) if suffix == ".csv" else None
            if data is None:
                earlier = [row for row in _existing(place, read) if row.night != night]
                data = written(sorted([*earlier, *fresh], key=lambda row: row.order))
            write_whole(path, data)
    except Timeout as error:
        raise StoreError(
            f"{path}: another process has been writing it for a minute; it holds {lock.lock_file}"
        ) from error
    except OSError as error:
        fault = error.strerror or error
        raise StoreError(f"{path}: cannot be written: {fault}") from error


def _appended(place: Path, fresh: list[HistoryRow]) -> bytes | None:
    """A CSV file with the rows of a night appended, or None if they do not belong at its end."""
    try:
        data = place.read_bytes()
        last = data[data.rfind(b"\n", 0, -1) + 1 :].decode()
        # A quoted field may hold a line break, so that the last line may not be a row.
        if '"' in last or not data.endswith(b"\n") or not data.startswith(_written_csv([])):
            return None
        (texts,) = csv.reader([last], strict=True)
        if not fresh or HistoryRow.read(texts).night >= fresh[0].night:
            return None
    except (FileNotFoundError, ValueError, csv.Error):
        return None
    # The header is in the file already.
    behind = _written_csv(sorted(fresh, key=lambda row: row.order))
    return data + behind.removeprefix(_written_csv([]))


def _rows(result: Night) -> Iterator[HistoryRow]:
    named = {name: _text(getattr(result, name)) for name in ("job", "model")}
    for row in result.records():
        yield HistoryRow(*({**row, **named}[key] for key in HistoryRow._fields))


def _existing(place: Path, read: Any) -> list[HistoryRow]:
    """Rows of an existing file, empty if there is no file."""
    if not place.exists():
        return []
    try:
        return read(place.read_bytes())
    except OptionError:
        raise
    except Exception as error:  # libraries raise various errors for damaged files
        raise StoreError(
            f"{place}: damaged, or not a history; the file was left unchanged: {error}"
        ) from error


def _read_csv(data: bytes) -> list[HistoryRow]:
    reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    if next(reader, None) != list(HistoryRow._fields):
        raise ValueError(f"its first line is not {','.join(HistoryRow._fields)}")
    if not data.endswith(b"\n"):
        raise ValueError("its last line is cut off")
    rows = []
    for texts in reader:
        try:
            rows.append(HistoryRow.read(texts))
        except ValueError as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    return rows


def _written_csv(rows: list[HistoryRow]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HistoryRow._fields)
    writer.writerows((*row[:4], _group(row.group), *row[5:]) for row in rows)
    return text.getvalue().encode()


def _read_parquet(data: bytes) -> list[HistoryRow]:
    import pyarrow as pa

    pq, schemas = _parquet()
    # Threads that still hold a Python file may abort the process at its exit (Arrow issue 34314).
    table = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
    if table.schema.remove_metadata() not in schemas:
        raise ValueError(f"unexpected columns or types: {', '.join(table.column_names)}")
    return [HistoryRow(**{**row, "day": _day(row["day"])}) for row in table.to_pylist()]


def _written_parquet(rows: list[HistoryRow]) -> bytes:
    import pyarrow as pa

    pq, (schema, of_names) = _parquet()
    out = pa.BufferOutputStream()
    # A column of Parquet has one type: one named group makes all groups texts.
    if any(isinstance(row.group, str) for row in rows):
        rows = [row._replace(group=_group(row.group) or None) for row in rows]
        schema = of_names
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=schema), out)
    return out.getvalue().to_pybytes()


def _parquet() -> Any:
    """The module pyarrow.parquet, and the schemas of histories of numbered and named groups."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {**dict.fromkeys(_NUMBERS, pa.float64()), "n": pa.int64()}
    needed = [*("job", "model", "day", "window", "estimator", "notion"), "n"]

    def schema(group: Any) -> Any:
        types = {**kinds, "group": group}
        return pa.schema(
            pa.field(name, types.get(name, pa.string()), nullable=name not in needed)
            for name in HistoryRow._fields
        )

    return parquet, (schema(pa.float64()), schema(pa.string()))


def _day(text: str) -> str:
    """Check the date of a day or of a part of a day."""
    date.fromisoformat(text[:10])
    return text


_FORMATS = {".csv": (_read_csv, _written_csv), ".parquet": (_read_parquet, _written_parquet)}


# ---------------------------------------------------------------- all outputs of a job


def places(job: Job, day: str) -> dict[str, Path]:
    """Paths of the outputs, by kind."""
    return {kind: Path(job.place(t, day)) for kind, t in job.outputs.templates.items()}


def check_places(job: Job, day: str) -> None:
    """Refuse outputs that would overwrite inputs of the night, and pipes."""
    source = job.place(job.source.path, day)
    if job.recalibration is not None:
        refuse_overwriting(job.champion_path, [job.file, job.ledger_path])
    inputs: list[str | Path] = [job.file, job.ledger_path]
    inputs += [] if is_url(source) else [source]
    for place in places(job, day).values():
        refuse_overwriting(place, inputs)
        refuse_pipe(place, "an output of a job")


def write(job: Job, day: str, result: Night) -> None:
    """Write every output of a job."""
    for kind, place in places(job, day).items():
        _WRITERS[kind](place, result)


def stamps(job: Job, day: str) -> dict[str, list[int]]:
    """Size and modification time of each file, except a history, which other days change."""
    files = {kind: place.stat() for kind, place in places(job, day).items() if kind != "history"}
    return {kind: [file.st_size, file.st_mtime_ns] for kind, file in files.items()}


_WRITERS: dict[str, Callable[[Path, Night], None]] = {
    "json": write_json,
    "prometheus": write_prometheus,
    "junit": write_junit,
    "history": write_history,
    "report": write_report,
}
