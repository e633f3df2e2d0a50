"""Alarms that were raised stay raised: a book of them, beside the days.

E after the last day is a martingale in the order in which labels come; its path over past days,
drawn anew when labels come late, is not.  So every night judges the last value alone, once, and
what it finds is kept.
"""

from __future__ import annotations

import json
from typing import Any

from calibscale.errors import StoreError
from calibscale.files import write_whole
from calibscale.ledger.days import Ledger

_NAME = "alarms.json"


class AlarmBook:
    """The alarms of a ledger, and the day from which the evidence of each model counts."""

    def __init__(self, ledger: Ledger) -> None:
        self._path = ledger.path / _NAME
        try:
            found = json.loads(self._path.read_text())
            self._starts: dict[str, str] = dict(found["starts"])
            self._raised: list[dict[str, Any]] = list(found["raised"])
        except FileNotFoundError:
            self._starts, self._raised = {}, []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._path}: the alarms that were raised cannot be read: {error}. Restore the "
                "file, or delete it and know that alarms of the past are forgotten"
            ) from error
        self._changed = False

    def start(self, model: str, first: str) -> str:
        """The first day of a model when it was first asked for: days before it do not count."""
        if model not in self._starts:
            self._starts[model] = first
            self._changed = True
        return self._starts[model]

    def since(self, reached: bool, day: str, **process: Any) -> str | None:
        """The day on which a process raised an alarm: that of the past, or this one if reached."""
        for known in self._raised:
            if known == {**process, "day": known["day"]}:
                return str(known["day"])
        if not reached:
            return None
        self._raised.append({**process, "day": day})
        self._changed = True
        return day

    def save(self) -> None:
        """Write what is new; within `writing`."""
        if self._changed:
            book = {"starts": self._starts, "raised": self._raised}
            write_whole(self._path, json.dumps(book, indent=1).encode())
            self._changed = False
