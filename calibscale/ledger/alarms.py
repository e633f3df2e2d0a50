"""Alarms that were raised stay raised: a book of them, beside the days.

E after the last day is a martingale in the order in which labels come; its path over past days,
drawn anew when labels come late, is not.  So every night judges the last value alone, once, and
what it finds is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from calibscale.errors import StoreError
from calibscale.files import write_whole
from calibscale.ledger.days import Ledger
from calibscale.wagers import places

_NAME = "alarms.json"


class AlarmBook:
    """The alarms of a ledger, the day from which the evidence of each model counts, and the places
    of its groups, which their weights follow from.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._path = ledger.path / _NAME
        try:
            found = json.loads(self._path.read_text())
            self._starts: dict[str, str] = dict(found["starts"])
            self._raised: list[dict[str, Any]] = list(found["raised"])
            self._places = {
                (str(each["model"]), each["since"]): {
                    float(group): int(place) for group, place in each["places"]
                }
                for each in found.get("groups", ())
            }
        except FileNotFoundError:
            self._starts, self._raised, self._places = {}, [], {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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

    def places(self, model: str, since: str | None, first: Mapping[float, int]) -> dict[float, int]:
        """The places of groups: those that they got when they were first met, or the next ones.

        `first` has the night that each group came on, by the days in the ledger as it is now.
        """
        known = self._places.get((model, since), {})
        found = places(known, first)
        if found != known:
            self._places[model, since] = found
            self._changed = True
        return found

    def save(self) -> None:
        """Write what is new; within `writing`."""
        if self._changed:
            groups = [
                {"model": model, "since": since, "places": [*map(list, found.items())]}
                for (model, since), found in self._places.items()
            ]
            book = {"starts": self._starts, "raised": self._raised, "groups": groups}
            write_whole(self._path, json.dumps(book, indent=1).encode())
            self._changed = False
