"""Days with predictions that could not be read, with the reasons, as a ledger keeps them.

The file has the reasons and a checksum.  Files of earlier versions have the reasons alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibscale.atomic_files import write_whole
from calibscale.errors import OptionError, StoreError
from calibscale.monitoring.ledger.index import DAMAGE, check_key
from calibscale.monitoring.ledger.sealed_json import SEAL, sealed, unsealed

_NAME = "broken.json"
_REASONS = "reasons"


class BrokenDays:
    """Reasons by model and day, in a file of a ledger that exists once a day was broken.

    A day that is read, or removed from the ledger, is no longer broken.

    Raises
    ------
    StoreError
        If the file cannot be read.
    """

    def __init__(self, ledger: Path) -> None:
        self._path = ledger / _NAME
        self._reasons: dict[str, dict[str, str]] = {}
        try:
            self._reasons = _checked(_reasons_of(json.loads(self._path.read_bytes())))
        except FileNotFoundError:
            pass
        except (OSError, OptionError, *DAMAGE) as error:
            reason = str(error) or type(error).__name__
            raise StoreError(
                f"{self._path}: the days that could not be read are unknown: {reason}. "
                "Restore the file, or delete it and run the days again that are missing in the "
                "ledger"
            ) from error

    def of(self, model: str) -> Mapping[str, str]:
        """Reasons by day."""
        return self._reasons.get(model, {})

    def add(self, model: str, day: str, reason: str) -> None:
        """Keep the reason why a day cannot be read.  Call within `writing` of the ledger."""
        if self.of(model).get(day) != reason:  # most nights find the same reasons
            self._reasons.setdefault(model, {})[day] = reason
            self._save()

    def remove(self, model: str, day: str) -> None:
        """Forget a day.  Call within `writing` of the ledger."""
        if day in self.of(model):
            del self._reasons[model][day]
            self._save()

    def _save(self) -> None:
        reasons = {model: dict(sorted(days.items())) for model, days in self._reasons.items()}
        write_whole(self._path, json.dumps(sealed({_REASONS: reasons}), indent=1).encode())


def _reasons_of(value: Any) -> Any:
    """Reasons by model and day in the JSON object of the file, whose checksum must match."""
    # A model may be called like the checksum, but its reasons are no string.
    is_sealed = isinstance(value, Mapping) and isinstance(value.get(SEAL), str)
    return unsealed(value)[_REASONS] if is_sealed else value


def _checked(reasons: Any) -> dict[str, dict[str, str]]:
    """The contents of the file.

    An error that names the day is raised for an invalid day or reason.
    """
    for model, days in reasons.items():
        for day, reason in days.items():
            check_key(day)
            if not isinstance(reason, str):
                raise ValueError(f"the reason of {day} of {model} is {reason!r}")
    return reasons
