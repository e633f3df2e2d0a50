"""Finished work on disk, so that a run that was killed goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.errors import OptionError, StoreError
from calibscale.files import replacing

Arrays = dict[str, NDArray[Any]]
Nodes = dict[tuple[int, int], Arrays]  # (level, index): states of blocks index·2^level and on

_FORMAT = 1


@dataclass
class Checkpoint:
    """One file of the nodes of a fold's tree, replaced as a whole.

    Parameters
    ----------
    path : Path
    identity : dict
        JSON values of data and parameters; a file that holds others is refused.
    every : float
        Seconds between two writes.
    """

    path: Path
    identity: dict[str, Any]
    every: float = 2.0
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> Nodes:
        """What an earlier run of the same work has finished.

        Raises
        ------
        OptionError
            If the file is of other data or other parameters.
        StoreError
            If it cannot be read.
        """
        nodes: Nodes = {}
        try:
            if not self.path.exists():
                return {}
            with np.load(self.path, allow_pickle=False) as file:
                identity = json.loads(str(file["identity"]))
                for key in file.files:
                    if key != "identity":
                        level, index, name = key.split("|")
                        nodes.setdefault((int(level), int(index)), {})[name] = file[key]
        except Exception as error:  # damage makes zipfile and NumPy raise many kinds
            raise StoreError(
                f"the checkpoint {self.path} cannot be read ({error}); remove it to start again"
            ) from error
        mine = self._identity()
        if identity != mine:
            old, new = _flat(identity), _flat(mine)
            other = sorted(key for key in old.keys() | new if old.get(key) != new.get(key))
            raise OptionError(
                f"the checkpoint {self.path} is of other data or parameters "
                f"({', '.join(other)}); give another folder, or remove it"
            )
        return nodes

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._last >= self.every

    def save(self, nodes: Nodes) -> None:
        """Write the nodes; a kill leaves the old file or the new one."""
        arrays: dict[str, Any] = {
            f"{level}|{index}|{name}": array
            for (level, index), state in nodes.items()
            for name, array in state.items()
        }
        started = time.monotonic()
        with replacing(self.path) as file:
            np.savez(file, identity=np.array(json.dumps(self._identity())), **arrays)
        self._last = time.monotonic()
        self.every = max(self.every, 50 * (self._last - started))  # at most 2 % of the time

    def _identity(self) -> dict[str, Any]:
        identity = {"format": _FORMAT, **self.identity}
        return json.loads(json.dumps(identity, default=lambda scalar: scalar.item()))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested dicts as one, names joined by dots."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{name}.{key}" if name else key)
    return found


def digest(*arrays: NDArray[Any]) -> str:
    """A short hash of arrays, for identities."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]
