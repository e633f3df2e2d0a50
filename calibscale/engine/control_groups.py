"""Control groups of this process (cgroups v1 and v2): limits of containers and batch systems."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")
_RECLAIMED = ("inactive_file", "active_file")  # copies of files, which the kernel gives up
# Names of the limit and of the usage of memory, and the prefix of sums with the groups inside.
_MEMORY = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
_UNLIMITED = 2**60  # version 1 has a number of this size where there is no limit
_QUOTA = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def free_memory(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """Bytes that this process may still use before a group is full, or None without a limit."""
    free = []
    for folder in _folders("memory", groups, mount):
        for limit, usage, prefix in _MEMORY:
            with suppress(OSError, ValueError):  # no such file, or no limit: "max"
                most = int((folder / limit).read_text())
                if most < _UNLIMITED:
                    used = int((folder / usage).read_text()) - _reclaimed(folder, prefix)
                    free.append(max(0, most - used))
    return min(free, default=None)


def cpu_quota(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """Number of processors, rounded up, that a group may use, or None without a limit."""
    counts = []
    for folder in _folders("cpu", groups, mount):
        for names in _QUOTA:
            with suppress(OSError, ValueError):  # no such file, or no quota: "max"
                texts = [(folder / name).read_text() for name in names]
                quota, period = map(int, " ".join(texts).split())
                if quota > 0 and period > 0:
                    counts.append(-(-quota // period))
    return min(counts, default=None)


def _reclaimed(folder: Path, prefix: str) -> int:
    """Bytes of a group that hold copies of files."""
    pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    sizes = {name: int(size) for name, size in pairs}
    return sum(sizes.get(prefix + name, 0) for name in _RECLAIMED)


def _folders(controller: str, groups: Path, mount: Path) -> tuple[Path, ...]:
    """Folders of the group of this process with a controller, and of all groups above it."""
    try:
        text = groups.read_text()
    except OSError:  # not Linux
        return ()
    return _folders_of(text, controller, mount)


@lru_cache(maxsize=8)  # every pass asks, and paths take longer to build than files to read
def _folders_of(text: str, controller: str, mount: Path) -> tuple[Path, ...]:
    """Folders of the groups that a text such as /proc/self/cgroup lists.

    In a container, the folder of a group may be the mount itself, whatever its path outside is.
    """
    folders: list[Path] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            root = mount
        elif controller in controllers.split(","):
            root = mount / controller
        else:
            continue
        folder = root / path.lstrip("/")
        groups_above = [] if ".." in folder.parts else [folder, *folder.parents]
        folders += [group for group in groups_above if group.is_relative_to(root) and group != root]
        folders.append(root)
    return tuple(folders)
