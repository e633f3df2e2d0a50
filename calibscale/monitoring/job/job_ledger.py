"""Ledger of a job, and whether a ledger belongs to a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from calibscale.errors import OptionError
from calibscale.estimators.settings import shown
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.job.toml_lines import Where, of_file
from calibscale.monitoring.ledger.day_ledger import Ledger

# Keys that the first night fixes, because states of other settings could not be merged.
_KEYS = ("estimators", "group_by", "cluster", "confidence", "seed")


def open_ledger(job: Job) -> Ledger | None:
    """Ledger of a job, or None before its first night.

    Raises
    ------
    OptionError
        If settings of the job differ from the settings at the creation of the ledger.  The message
        names them.
    """
    if not job.ledger_path.exists():
        return None
    ledger = Ledger.open(job.ledger_path)
    current = frozen(job)
    stored = ledger.notes.get("job", current)  # a ledger created without a job fits any
    # The first day of a ledger decides on notions that a job leaves open.
    current["estimators"] = [*_with_notions(current["estimators"], stored.get("estimators") or ())]
    changed = [key for key in current if current[key] != stored.get(key)]
    if changed:
        problems = of_file(job.file)
        for key in changed:
            compare = _estimators if key == "estimators" else _settings
            for where, message in compare((key,), stored.get(key), current[key]):
                problems.add(where, message)
        raise OptionError(
            f"{job.file}: {', '.join(changed)} changed since the ledger {job.ledger_path} was "
            "created, so that its days could no longer be combined; restore the settings, or name "
            "another ledger\n" + "\n".join(problems.lines())
        )
    return ledger


def frozen(job: Job) -> dict[str, Any]:
    """Settings of a job that must stay as they were when its ledger was created."""
    settings = job.to_dict()
    fixed = {key: settings[key] for key in _KEYS}
    alarms = settings["alarms"]
    # Tolerances are left out if they are not set, as in ledgers of earlier versions without them.
    names = ["notions"]
    if alarms:
        names += [name for name in ("tolerance", "certainty_tolerance") if alarms[name]]
    fixed["alarms"] = alarms and {name: alarms[name] for name in names}
    # Without `keep` the ledger has no replicates, and the tests of a day may change.
    test = settings["test"] or {}
    fixed["test"] = test if test.get("keep") else None
    return fixed


def _with_notions(
    current: list[dict[str, Any]], stored: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Tables of estimators, with the ledger's notion where none is set."""
    notions = {table["name"]: table.get("notion") for table in stored}
    for table in current:
        unset = "notion" in table and table["notion"] is None
        yield {**table, "notion": notions.get(table["name"])} if unset else table


def _estimators(
    where: Where, stored: list[dict[str, Any]], current: list[dict[str, Any]]
) -> Iterator[tuple[Where, str]]:
    old = {table["name"]: table for table in stored or ()}
    new = {table["name"]: (index, table) for index, table in enumerate(current)}
    if old.keys() == new.keys() and list(old) != list(new):
        yield where, f"in another order: {', '.join(old)} in the ledger"
    for name in (name for name in old if name not in new):
        yield where, f"{name}: in the ledger, not in the job"
    for name, (index, table) in new.items():
        if name not in old:
            yield (*where, index), f"{name}: not in the ledger"
            continue
        for key in sorted(table.keys() | old[name].keys()):
            if old[name].get(key) != table.get(key):
                difference = _difference(old[name].get(key), table.get(key))
                yield (*where, index), f"{name} {key}: {difference}"


def _settings(where: Where, stored: Any, current: Any) -> Iterator[tuple[Where, str]]:
    tables = [isinstance(value, dict) for value in (stored, current)]
    if not all(tables):
        key = ("keep",) if where == ("test",) else ()
        yield (*where, *key), _difference(*tables if any(tables) else (stored, current))
        return
    for key in current | stored:
        if stored.get(key) != current.get(key):
            yield (*where, key), _difference(stored.get(key), current.get(key))


def _difference(stored: Any, current: Any) -> str:
    old, new = ("unset" if value is None else shown(value) for value in (stored, current))
    return f"{old} in the ledger, {new} in the job"
