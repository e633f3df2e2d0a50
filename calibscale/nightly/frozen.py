"""What of a job its ledger depends on, so that it must stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibscale.errors import OptionError
from calibscale.ledger.days import Ledger
from calibscale.nightly.positions import Where, of_file, shown

if TYPE_CHECKING:
    from calibscale.nightly.job import Job

_KEYS = ("estimators", "group_by", "confidence", "seed")


def open_ledger(job: Job) -> Ledger | None:
    """The ledger of a job, None before its first night.

    Raises
    ------
    OptionError
        If the job asks for what the ledger was not made for: says what differs.
    """
    if not job.ledger_path.exists():
        return None
    ledger = Ledger.open(job.ledger_path)
    asked = frozen(job)
    known = ledger.notes.get("job", asked)  # one that no job made is taken as it is
    changed = [key for key in asked if asked[key] != known.get(key)]
    if changed:
        problems = of_file(job.file)
        for key in changed:
            compare = _estimators if key == "estimators" else _settings
            for where, what in compare((key,), known.get(key), asked[key]):
                problems.add(where, what)
        raise OptionError(
            f"{job.file}: {', '.join(changed)} changed since the ledger {job.ledger_path} was "
            "made, whose days would no longer add up; put them back, or name another ledger\n"
            + "\n".join(problems.told())
        )
    return ledger


def frozen(job: Job) -> dict[str, Any]:
    """What of a job must stay as the ledger has it."""
    settings = job.to_dict()
    found = {key: settings[key] for key in _KEYS}
    found["alarms"] = settings["alarms"] and {"notions": settings["alarms"]["notions"]}
    test = settings["test"] or {}
    found["test"] = test if test.get("keep") else None
    return found


def _estimators(
    where: Where, known: list[dict[str, Any]], asked: list[dict[str, Any]]
) -> Iterator[tuple[Where, str]]:
    old = {table["name"]: table for table in known or ()}
    new = {table["name"]: (index, table) for index, table in enumerate(asked)}
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
                told = _told(old[name].get(key), table.get(key))
                yield (*where, index), f"{name} {key}: {told}"


def _settings(where: Where, known: Any, asked: Any) -> Iterator[tuple[Where, str]]:
    tables = [isinstance(value, dict) for value in (known, asked)]
    if not all(tables):
        key = ("keep",) if where == ("test",) else ()
        yield (*where, *key), _told(*tables if any(tables) else (known, asked))
        return
    for key in asked:
        if known.get(key) != asked[key]:
            yield (*where, key), _told(known.get(key), asked[key])


def _told(known: Any, asked: Any) -> str:
    old, new = ("unset" if value is None else shown(value) for value in (known, asked))
    return f"{old} in the ledger, {new} in the job"
