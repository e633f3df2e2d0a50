"""Modules that libraries import when they start, and that commands do not use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

# `scipy.special` imports all of NumPy, also its wrapper of Fortran and its functions for tests, and
# Numba imports yaml to read a file of settings that few users have.  All take 0.1 s.
UNUSED = ("numpy.f2py", "numpy.testing", "yaml")


class _UnusedModules:
    """Finder of the modules `UNUSED`, which are then run when one of their names is first used."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in UNUSED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_unused_modules() -> None:
    """Let this process run the modules `UNUSED` only if one of their names is used."""
    if _UnusedModules not in sys.meta_path:
        sys.meta_path.insert(0, _UnusedModules)
