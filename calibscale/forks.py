"""Locks that a forked child replaces, as threads of its parent may have held them.

A child of `os.fork` has one thread.  A lock that another thread of the parent held at that moment
would stay locked for ever.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Object with a method that replaces its locks and drops values that are half changed."""

    def after_fork(self) -> None: ...


_RENEWABLE: WeakSet[Any] = WeakSet()
_INHERITED: set[str] = set()  # modules that were imported before this process was forked


def renew_in_children(holder: Renewable) -> None:
    """Call `after_fork` of an object in each child that is forked while the object exists."""
    _RENEWABLE.add(holder)


def forked_with(package: str) -> bool:
    """Whether this process was forked from one that had imported a package."""
    return package in _INHERITED


def _renew() -> None:
    _INHERITED.update(sys.modules)
    for holder in list(_RENEWABLE):
        holder.after_fork()
    if sys.version_info < (3, 12):
        _renew_cached_properties()


def _renew_cached_properties() -> None:
    """Renew the locks of cached properties, one for all objects of a class before Python 3.12."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != __package__:
            continue
        for kind in list(vars(module).values()):
            if not isinstance(kind, type):
                continue
            for attribute in list(vars(kind).values()):
                if type(attribute) is cached_property:
                    attribute.lock = threading.RLock()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
