"""Files of the fitted recalibrations of a ledger, and of the champion that a job publishes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibscale.atomic_files import write_whole
from calibscale.errors import OptionError, StoreError
from calibscale.monitoring.ledger.challenges import (
    AS_THEY_ARE,
    ChallengeHistory,
    ChallengeNight,
    MapEntry,
)
from calibscale.monitoring.ledger.day_ledger import Ledger

if TYPE_CHECKING:
    from calibscale.recalibration.fits import FittedRecalibration

_FOLDER = "recalibration"
REMEDY = "Restore the file, or delete it: the next night writes the champion again"


def history_of(ledger: Ledger | None, model: str, last: str | None = None) -> ChallengeHistory:
    """Records of the nights of a model up to a day, by default of all of them."""
    nights = []
    for entry in [] if ledger is None else ledger.select(None, last, model):
        value = entry.info.get(_FOLDER)
        # A night that failed is run again.
        if value is not None and "fault" not in value and (last is None or entry.day <= last):
            nights.append(ChallengeNight.from_dict(entry.day, value))
    return ChallengeHistory(tuple(nights))


def map_path(ledger: Path, model: str, number: int) -> Path:
    """Path of a fitted recalibration of a model in a ledger."""
    return Ledger.model_folder(ledger / _FOLDER, model) / f"{number}.json"


def _loaded(path: Path) -> FittedRecalibration:
    from calibscale.recalibration.fits import load_recalibration  # slow to import

    return load_recalibration(path)


def stored_map(ledger: Path, model: str, entry: MapEntry) -> FittedRecalibration:
    """Fitted recalibration of a ledger.

    Raises
    ------
    OptionError, StoreError
        If the file is missing, damaged, or of another fit.
    """
    path = map_path(ledger, model, entry.number)
    fitted = _loaded(path)
    if fitted.checksum != entry.checksum:
        raise OptionError(f"{path}: is not the recalibration that the ledger names: restore it")
    return fitted


def foreign_champion(
    path: Path, history: ChallengeHistory, classes: int | None
) -> FittedRecalibration | None:
    """Recalibration that the user has put in the place of the champion, or None.

    A missing file, and any map of the ledger, is no such recalibration.

    Raises
    ------
    OptionError, StoreError
        If the file is damaged, or is for predictions of another kind.
    """
    if not path.exists():
        return None
    try:
        fitted = _loaded(path)
    except OptionError as error:
        raise OptionError(f"the champion cannot be used: {error}. {REMEDY}") from error
    except StoreError as error:
        raise StoreError(f"the champion cannot be used: {error}. {REMEDY}") from error
    of_fit = fitted.source.get("classes")
    if of_fit is None or classes not in (None, of_fit):
        kind = f"{of_fit} classes" if of_fit else f"kind {fitted.source.get('kind')}"
        raise OptionError(
            f"the champion cannot be used: {path} was fitted to predictions of {kind}, and those "
            f"of the job have {classes} classes. {REMEDY}"
        )
    known = {entry.checksum for entry in history.maps.values()}
    return None if fitted.checksum in known else fitted


def is_published(path: Path, history: ChallengeHistory) -> bool:
    """Whether the file of the champion is as it should be.  Without a champion it may be missing.

    The errors of `foreign_champion` are raised.
    """
    champion = history.maps.get(history.champion)
    if foreign_champion(path, history, None) is not None or champion is None:
        return True
    return path.exists() and _loaded(path).checksum == champion.checksum


def publish(path: Path, ledger: Path, model: str, history: ChallengeHistory) -> None:
    """Write the champion to its file in one step, unless the file has it or is the user's own.

    Raises
    ------
    OptionError, StoreError
        If the file is damaged, which leaves it as it is, or cannot be written.
    """
    if history.champion != AS_THEY_ARE and not is_published(path, history):
        stored_map(ledger, model, history.maps[history.champion])
        write_whole(path, map_path(ledger, model, history.champion).read_bytes())
