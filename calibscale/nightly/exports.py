"""The result of a night as files for other programs: JSON, Prometheus, JUnit, a history."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from calibscale.errors import OptionError, StoreError
from calibscale.files import write_whole
from calibscale.results import finite

Result = dict[str, Any]  # of the schema calibscale.nightly/1

_WAIT = 60.0  # seconds, for another night that writes the same history
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_json(path: str | Path, result: Result) -> None:
    """The result as it is.

    Raises
    ------
    StoreError
        If the file cannot be written; so do the other functions.
    """
    write_whole(path, (json.dumps(finite(result), indent=2, allow_nan=False) + "\n").encode())


# ---------------------------------------------------------------- Prometheus

_OF_ESTIMATE = ("estimator", "notion", "window", "group")
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "estimate": ("Estimate of a calibration error or score.", _OF_ESTIMATE),
    "estimate_low": ("Lower end of the confidence interval of an estimate.", _OF_ESTIMATE),
    "estimate_high": ("Upper end of the confidence interval of an estimate.", _OF_ESTIMATE),
    "p_value": ("P-value of the test of calibration.", _OF_ESTIMATE),
    "drift_p_value": (
        "P-value of the difference to the baseline, adjusted for their number.", _OF_ESTIMATE,
    ),
    "threshold_breached": ("1 where a threshold is breached, else 0.", ("name",)),
    "log_evidence": (
        "Natural logarithm of the evidence against calibration so far.", ("notion", "group"),
    ),
    "log_evidence_overall": (
        "Natural logarithm of the mean evidence of all notions and groups; the alarm judges it.",
        (),
    ),
    "alarm": ("1 where the evidence ever reached the alarm, else 0.", ()),
    "rows": ("Rows of the day that were used.", ()),
    "rows_dropped": ("Rows of the day that were left out as invalid.", ()),
    "rows_unlabelled": ("Rows of the day that have no label yet.", ()),
    "day_timestamp_seconds": ("Midnight UTC at which the day began.", ()),
    "run_timestamp_seconds": ("When the day was judged.", ()),
}  # fmt: skip


def write_prometheus(path: str | Path, result: Result) -> None:
    """Gauges in the text format, for node_exporter's textfile collector.

    Where there is no value there is no sample, but for a threshold that is breached by that.
    `group` is empty for all rows.
    """
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for name, value, labels in _samples(result):
        if value is None:
            continue
        labels = {"job": result["job"], "model": result["model"], **labels}
        help_, names = _GAUGES[name]
        if name not in gauges:
            names = ("job", "model", *names)
            gauges[name] = Gauge(f"calibscale_{name}", help_, names, registry=registry)
        gauges[name].labels(**{key: _text(text) for key, text in labels.items()}).set(value)
    write_whole(path, generate_latest(registry))


def _samples(result: Result) -> Iterator[tuple[str, float | None, dict[str, str]]]:
    """Name, value and labels of every number."""
    for window in result["windows"]:
        of = {"window": window["name"]}
        yield from _estimates(window["results"], of)
        for group in window["groups"]:
            yield from _estimates(group["results"], of, group["group"])
        for test in window["tests"]:
            yield "p_value", test["p_value"], _labels(test, test["statistic"], of)
    if result["drift"] is not None:
        of = {"window": result["drift"]["window"]}
        for found in result["drift"]["results"]:
            labels = _labels(found, found["estimator"], of, found["group"])
            yield "drift_p_value", found["adjusted_p_value"], labels
    judged = [t for t in result["thresholds"] if t["observed"] is not None or t["breached"]]
    for threshold in sorted(judged, key=lambda t: t["breached"]):  # of equal names the worst counts
        yield "threshold_breached", float(threshold["breached"]), {"name": threshold["name"]}
    alarms = result["alarms"]
    if alarms is not None:
        for process in alarms["processes"]:
            labels = {"notion": process["notion"], "group": _group(process["group"])}
            yield "log_evidence", _last(process["log_evidence"]), labels
        yield "log_evidence_overall", _last(alarms["log_evidence"]), {}
        yield "alarm", float(alarms["alarm"]), {}
    yield "rows", result["n"], {}
    yield "rows_dropped", result["n_dropped"], {}
    yield "rows_unlabelled", result["n_unlabelled"], {}
    midnight = datetime.fromisoformat(result["day"][:10]).replace(tzinfo=UTC)
    yield "day_timestamp_seconds", midnight.timestamp(), {}
    yield "run_timestamp_seconds", datetime.fromisoformat(result["created"]).timestamp(), {}


def _estimates(
    estimates: list[dict[str, Any]], of: dict[str, str], group: float | None = None
) -> Iterator[tuple[str, float | None, dict[str, str]]]:
    for found in estimates:
        labels = _labels(found, found["estimator"], of, group)
        interval = found["interval"] or {"low": None, "high": None}
        yield "estimate", found["value"], labels
        yield "estimate_low", interval["low"], labels
        yield "estimate_high", interval["high"], labels


def _labels(
    found: dict[str, Any], name: str, of: dict[str, str], group: float | None = None
) -> dict[str, str]:
    return {"estimator": name, "notion": found["notion"], "group": _group(group), **of}


def _group(group: float | None) -> str:
    return "" if group is None else repr(float(group)).removesuffix(".0")


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def _text(value: Any) -> str:
    """A name without halves of characters, which cannot be encoded."""
    return str(value).encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- JUnit


def write_junit(path: str | Path, result: Result) -> None:
    """A test case for each threshold, and one for the alarms."""
    suite = ET.Element("testsuite")
    properties = ET.SubElement(suite, "properties")
    for name in ("job", "model", "day", "schema"):
        ET.SubElement(properties, "property", name=name, value=_xml(result[name]))
    counts = {"failure": 0, "skipped": 0}
    cases = [_threshold_case(threshold) for threshold in result["thresholds"]]
    cases.append(_alarm_case(result["alarms"]))
    folder = _xml(f"calibscale.{result['job']}.{result['model']}")
    for name, outcome, message in cases:
        case = ET.SubElement(suite, "testcase", classname=folder, name=_xml(name), time="0")
        if outcome is not None:
            counts[outcome] += 1
            ET.SubElement(case, outcome, message=_xml(message)).text = _xml(message)
    for name, value in {
        "name": f"{result['job']} {result['model']} {result['day']}",
        "tests": len(cases),
        "failures": counts["failure"],
        "errors": 0,
        "skipped": counts["skipped"],
        "time": f"{result['seconds']:.3f}",
        "timestamp": datetime.fromisoformat(result["created"]).replace(tzinfo=None).isoformat(),
    }.items():
        suite.set(name, _xml(value))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    write_whole(path, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


_Case = tuple[str, str | None, str]  # name, failure or skipped or None, message


def _threshold_case(threshold: dict[str, Any]) -> _Case:
    observed = threshold["observed"]
    if observed is None:
        reason = threshold["reason"] or "there is no value"
        outcome = "failure" if threshold["breached"] else "skipped"
        return threshold["name"], outcome, f"{threshold['name']}: {reason}"
    side = "above" if threshold["above"] is not None else "below"
    limit = threshold[side]
    what = f"{threshold['estimator']} {threshold['quantity']} over {threshold['window']}"
    if threshold["group"] is not None:
        what += f", group {_group(threshold['group'])}"
    message = f"{what}: {observed!r} is {side} {limit!r}"
    return threshold["name"], "failure" if threshold["breached"] else None, message


def _alarm_case(alarms: dict[str, Any] | None) -> _Case:
    if alarms is None:
        return "alarms", "skipped", "alarms are off"
    if not alarms["alarm"]:
        return "alarms", None, ""
    which = [_process(process) for process in alarms["processes"] if process["alarm"]]
    message = (
        f"miscalibrated since {alarms['since']}: the log evidence is "
        f"{_last(alarms['log_evidence'])!r}, the alarm is at {alarms['threshold']!r}"
    )
    return "alarms", "failure", "; ".join([message, *which])


def _process(process: dict[str, Any]) -> str:
    where = "" if process["group"] is None else f", group {_group(process['group'])},"
    return f"{process['notion']}{where} since {process['since']}"


def _xml(value: Any) -> str:
    """A text without what XML cannot hold."""
    return _NOT_XML.sub("\ufffd", str(value))


# ---------------------------------------------------------------- history


class Row(NamedTuple):
    """One estimate of a night; a line of the history."""

    job: str
    model: str
    day: str
    window: str
    group: float | None
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
        everything = self.group is None
        where = (not everything, 0.0 if everything else self.group)
        return (*self.night, self.window, *where, self.estimator, self.notion)

    @classmethod
    def read(cls, texts: Sequence[str]) -> Self:
        """The row of a line of csv."""
        if len(texts) != len(cls._fields):
            raise ValueError(f"{len(texts)} columns instead of {len(cls._fields)}")
        row: dict[str, Any] = dict(zip(cls._fields, texts, strict=True))
        numbers = {name: float(row[name]) if row[name] else None for name in _NUMBERS}
        return cls(**{**row, **numbers, "n": int(row["n"]), "day": _day(row["day"])})


_NUMBERS = ("group", "value", "low", "high", "p_value")


def write_history(path: str | Path, result: Result) -> None:
    """Put the estimates of a night among those of others, in the place of its earlier ones.

    A row for each estimator, window and group, in a ``.csv`` or ``.parquet`` file.

    Raises
    ------
    StoreError
        If the file that is there is damaged or no history: it is left alone.
    OptionError
        If it is called otherwise.
    """
    place = Path(path)
    suffix = place.suffix.lower()
    if suffix not in _FORMATS:
        raise OptionError(f"{path}: a history ends in {' or '.join(_FORMATS)}")
    read, written = _FORMATS[suffix]
    fresh = list(_rows(result))
    night = (_text(result["job"]), _text(result["model"]), result["day"])
    lock = FileLock(place.with_name(f".{place.name}.lock"))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock.acquire(timeout=_WAIT):
            old = _existing(place, read)
            kept = [row for row in old if row.night != night]
            write_whole(path, written(sorted([*kept, *fresh], key=lambda row: row.order)))
    except Timeout as error:
        raise StoreError(f"{path}: another process has been writing it for a minute") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error


def _rows(result: Result) -> Iterator[Row]:
    head = (_text(result["job"]), _text(result["model"]), result["day"])
    for window in result["windows"]:
        p_values = {(t["statistic"], t["notion"]): t["p_value"] for t in window["tests"]}
        parts = [(None, window["results"])]
        parts += [(group["group"], group["results"]) for group in window["groups"]]
        for group, results in parts:
            for found in results:
                name = (found["estimator"], found["notion"])
                interval = found["interval"] or {"low": None, "high": None}
                yield Row(
                    *head, window["name"], group, *name,
                    found["value"], interval["low"], interval["high"], found["n"],
                    p_values.get(name) if group is None else None,
                )  # fmt: skip


def _existing(place: Path, read: Any) -> list[Row]:
    """The rows of the file that is there; none if there is none."""
    if not place.exists():
        return []
    try:
        return read(place.read_bytes())
    except OptionError:
        raise
    except Exception as error:  # whatever a library raises over a damaged file
        raise StoreError(
            f"{place}: it is damaged, or not a history, and was left as it is: {error}"
        ) from error


def _read_csv(data: bytes) -> list[Row]:
    reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    if next(reader, None) != list(Row._fields):
        raise ValueError(f"its first line is not {','.join(Row._fields)}")
    if not data.endswith(b"\n"):
        raise ValueError("its last line is cut off")
    found = []
    for texts in reader:
        try:
            found.append(Row.read(texts))
        except ValueError as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    return found


def _written_csv(rows: list[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    told = (row._asdict() | {"group": _group(row.group)} for row in rows)
    writer.writerows(["" if item is None else item for item in row.values()] for row in told)
    return text.getvalue().encode()


def _read_parquet(data: bytes) -> list[Row]:
    pq, schema = _parquet()
    table = pq.read_table(io.BytesIO(data))
    if table.schema.remove_metadata() != schema:
        raise ValueError(f"its columns are {', '.join(table.column_names)} or of other types")
    return [Row(**{**row, "day": _day(row["day"])}) for row in table.to_pylist()]


def _written_parquet(rows: list[Row]) -> bytes:
    import pyarrow as pa

    pq, schema = _parquet()
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=schema), out)
    return out.getvalue()


def _parquet() -> Any:
    """pyarrow.parquet, and the columns of a history."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {**dict.fromkeys(_NUMBERS, pa.float64()), "n": pa.int64()}
    needed = [*("job", "model", "day", "window", "estimator", "notion"), "n"]
    return parquet, pa.schema(
        pa.field(name, kinds.get(name, pa.string()), nullable=name not in needed)
        for name in Row._fields
    )


def _day(text: str) -> str:
    """A day, or a part of one."""
    date.fromisoformat(text[:10])
    return text


_FORMATS = {".csv": (_read_csv, _written_csv), ".parquet": (_read_parquet, _written_parquet)}
