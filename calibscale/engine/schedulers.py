"""Schedulers by name, and the number of blocks that one executes at a time within memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from calibscale.addresses import full_address, shown_address
from calibscale.engine import dask_backend, dask_connection, memory
from calibscale.engine.dask_connection import Connection, available_cpus
from calibscale.engine.memory import Room, parse_bytes
from calibscale.engine.merge_tree import Task, arities_of, tree_levels
from calibscale.errors import OptionError, require

# Limit of the threads or processes that a scheduler may start, by its number of processors.  A
# larger number is a typing error, and would exhaust the machine.
_WORKERS_PER_CPU, _LEAST_LIMIT = 8, 64
_WORKERS = {"threads": "threads", "local": "worker processes"}


class NoRoomError(OptionError):
    """The memory limit cannot hold one block."""


def workers(scheduler: Any = None) -> int:
    """Number of blocks that a scheduler executes at a time."""
    kind, argument = parse_scheduler(scheduler)
    if kind in ("threads", "local"):
        return argument or available_cpus()
    with dask_backend.connect(kind, argument, None) as opened:
        return opened.threads


def room_with(scheduler: Any = None, memory_limit: int | str | None = None) -> Room:
    """Memory for the blocks and states of a pass with a scheduler, without starting processes."""
    kind, argument = parse_scheduler(scheduler)
    limit = parse_bytes(memory_limit)
    if kind == "threads":
        return memory.room_here(limit)
    if kind == "local":
        return dask_connection.room_of_process(argument, limit)
    with dask_backend.connect(kind, argument, limit) as opened:
        return opened.room()


def roomy(task: Task, scheduler: Any = None, memory_limit: int | str | None = None) -> bool:
    """Whether the memory limit, if any, holds one block for each worker."""
    kind, argument = parse_scheduler(scheduler)
    if kind == "threads":
        count = min(argument or available_cpus(), task.blocks)
        room = memory.room_here(parse_bytes(memory_limit))
    elif kind == "connection" and argument.started:
        count, room = 1, argument.room()
    else:
        return True
    try:
        return within_memory(task, count, room) == count
    except NoRoomError:
        return False


def parse_scheduler(scheduler: Any) -> tuple[str, Any]:
    if scheduler is None:
        # A worker runs as many tasks as it has threads, so that a task has one of them.
        if dask_connection.in_task():
            return "threads", 1
        client = dask_connection.active_client()
        return ("threads", None) if client is None else ("client", client)
    if isinstance(scheduler, Connection):
        return "connection", scheduler
    if not isinstance(scheduler, str | Path):
        return "client", scheduler
    text = full_address(scheduler)
    word, _, count = text.partition(":")
    if text == "serial":
        return "threads", 1
    if word in ("threads", "local") and (not count or count.isdigit()):
        number = int(count) if count else None
        require(number != 0, f"scheduler {text!r}: at least one worker is needed")
        most = max(_LEAST_LIMIT, _WORKERS_PER_CPU * available_cpus())
        require(
            number is None or number <= most,
            f"scheduler {text!r}: at most {most} {_WORKERS[word]} are started on this machine, "
            f"with {available_cpus()} processors; use {word}:N with a smaller N",
        )
        return word, number
    if "://" in text:
        return "address", text
    if Path(text).is_file():
        return "address", dask_connection.address_in(text)
    raise OptionError(
        f"unknown scheduler {shown_address(text)!r}: use serial, threads[:N], local:N, an address "
        "such as tcp://host:8786, or the path of a scheduler file"
    )


def within_memory(task: Task, workers: int, room: Room) -> int:
    """Number of workers, at most `workers`, with blocks and states that fit into a room at a time.

    A NoRoomError is raised if it cannot hold one block.
    """
    workers = min(workers, task.blocks)
    limit = room.limit
    used = room.used
    if limit is None:
        return workers
    worker_bytes = task.block_bytes + task.state_bytes
    # A state waits in each level of the tree.  A margin of two is for states that are merged.
    depth = tree_levels(task.blocks, arities_of(task)) + 2
    peak = used + worker_bytes + depth * task.state_bytes  # with one worker
    if peak <= limit:
        return min(workers, 1 + (limit - peak) // max(1, worker_bytes))
    enough = math.ceil(1.1 * peak / 1e7) * 10  # MB, with a margin as the process still grows
    text = f"{limit / 1e6:.0f} MB" if limit >= 10**6 else f"{limit} bytes"
    text += f" (is {limit}GB meant?)" if limit < 1000 else ""
    raise NoRoomError(
        f"memory limit{room.owner} {text}, below the required {enough} MB, cannot hold one block: "
        f"the process has {used / 1e6:.0f} MB, a block needs {task.block_bytes / 1e6:.0f} MB and "
        f"its states {(depth + 1) * task.state_bytes / 1e6:.0f} MB"
    )
