"""Memory that this process has, and that it or a worker may still use."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from calibscale.engine import control_groups
from calibscale.errors import OptionError

_UNITS = {"": 1, "b": 1}  # bytes, by the lower-case letters of a unit
for _power, _letter in enumerate("kmgtp", 1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power}
    _UNITS |= {f"{_letter}i": 1024**_power, f"{_letter}ib": 1024**_power}


class Room(NamedTuple):
    """Memory for the blocks and states of a pass, in bytes.

    Attributes
    ----------
    limit : int or None
        Maximum memory of the process that holds them, if it is known.
    used : int
        Memory that this process has already.
    free : int or None
        Memory that it may still use, or None if the amount is not known.
    owner : str
        Words that name the owner of the limit in messages.
    requested : bool
        Whether the limit was set by the option `memory_limit`.
    """

    limit: int | None
    used: int
    free: int | None
    owner: str = ""
    requested: bool = False


def parse_bytes(size: int | str | None) -> int | None:
    """Number of bytes in ``1500000000``, ``"1.5GB"`` or ``"800 MiB"``.

    An OptionError is raised for a string that is no size.
    """
    if size is None or isinstance(size, int):
        return size
    text = str(size).strip()
    number = re.sub(r"[A-Za-z]*$", "", text)
    unit = text.removeprefix(number)
    try:
        return int(float(number) * _UNITS[unit.lower()])
    except (KeyError, ValueError, OverflowError) as error:
        raise OptionError(f"memory limit {size!r} is not a size such as 2GB") from error


def room_here(limit: int | None) -> Room:
    """Room in this process, under a memory limit or else on the machine."""
    used = resident_bytes()
    if limit is None:
        return Room(None, used, free_bytes())
    return Room(limit, used, limit - used, requested=True)


def room_of_worker(limit: int | None, used: int, requested: bool) -> Room:
    """Room in a worker under its memory limit, with the memory it has before any work."""
    return Room(limit, used, None if limit is None else limit - used, " of a worker", requested)


def free_bytes() -> int | None:
    """Memory that the machine and the control groups of this process leave to it.

    None if the system does not say.
    """
    # In a container the machine may have more free memory than the group of the process.
    amounts = (_free_of_machine(), control_groups.free_memory())
    return min((amount for amount in amounts if amount is not None), default=None)


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return 1024 * int(kibibytes)
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def resident_bytes() -> int:
    """Resident memory of this process in bytes (its peak where only that is available)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        # macOS reports bytes, other systems report kibibytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
