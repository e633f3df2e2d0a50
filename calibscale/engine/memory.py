"""Memory that this process has, and that it may still use."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def free_bytes(limit: int | None = None) -> int | None:
    """Memory that this process may still use: up to a limit, else what the machine has free.

    None if the system does not say.
    """
    if limit is not None:
        return limit - resident_bytes()
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

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
