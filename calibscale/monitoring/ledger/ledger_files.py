"""Check of the files of a ledger besides its days."""

from __future__ import annotations

from calibscale.errors import OptionError, StoreError
from calibscale.monitoring.ledger.alarms import AlarmBook
from calibscale.monitoring.ledger.broken_days import BrokenDays
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.map_files import history_of, stored_map


def damaged_files(ledger: Ledger) -> list[str]:
    """Error messages of the files of alarms, broken days and recalibrations that are damaged.

    Cached sums and stored results are left out, because damaged ones are computed again.
    """
    damaged = []
    for read in (lambda: AlarmBook(ledger), lambda: BrokenDays(ledger.path)):
        try:
            read()
        except StoreError as error:
            damaged.append(str(error))
    for model in ledger.models:
        for entry in history_of(ledger, model).maps.values():
            try:
                stored_map(ledger.path, model, entry)
            except (OptionError, StoreError) as error:
                damaged.append(str(error))
    return damaged
