"""Files of the states of a merge tree, from which an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.atomic_files import replacing
from calibscale.errors import OptionError, StoreError

Arrays = dict[str, NDArray[Any]]
Nodes = dict[tuple[int, int], Arrays]  # (level, index): state of blocks from index·2^level on

_FORMAT = 1  # of checkpoints; a file of another format has another identity, and is refused


@dataclass
class Checkpoint:
    """File of the nodes of a merge tree, replaced in one step.

    `identity` has JSON values that identify data and parameters.  A file with other values is
    refused.  `every` is the minimum number of seconds between two writes.
    """

    path: Path
    identity: dict[str, Any]
    every: float = 2.0
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> Nodes:
        """Read the nodes that an earlier run of the same work has finished.

        An OptionError is raised if the file belongs to other data or other parameters, a StoreError
        if it cannot be read.
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
        except Exception as error:  # zipfile and NumPy raise many types over damaged files
            raise self.damaged(error) from error
        expected = self._identity()
        if identity != expected:
            old_values = _flat(identity)
            new_values = _flat(expected)
            keys = old_values.keys() | new_values.keys()
            changed = sorted(key for key in keys if old_values.get(key) != new_values.get(key))
            raise OptionError(
                f"the checkpoint {self.path} belongs to other data or parameters "
                f"({', '.join(changed)}); choose another folder, or remove it"
            )
        return nodes

    def damaged(self, reason: object) -> StoreError:
        """Return the error for a file that is no checkpoint of this work."""
        return StoreError(
            f"the checkpoint {self.path} cannot be read ({reason}); remove it to start again"
        )

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._last >= self.every

    def save(self, nodes: Nodes) -> None:
        """Write the nodes.  An interrupted write leaves the old file."""
        arrays: dict[str, Any] = {
            f"{level}|{index}|{name}": array
            for (level, index), state in nodes.items()
            for name, array in state.items()
        }
        started = time.monotonic()
        with replacing(self.path) as file:
            np.savez(file, identity=np.array(json.dumps(self._identity())), **arrays)
        self._last = time.monotonic()
        # A write of many large states may take long.  Writes take at most 2 % of the time.
        self.every = max(self.every, 50 * (self._last - started))

    def _identity(self) -> dict[str, Any]:
        identity = {"format": _FORMAT, **self.identity}
        return json.loads(json.dumps(identity, default=lambda scalar: scalar.item()))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested dicts, joining names by dots."""
    if not isinstance(value, dict):
        return {name: value}
    items: dict[str, Any] = {}
    for key, item in value.items():
        items |= _flat(item, f"{name}.{key}" if name else key)
    return items


def digest(*arrays: NDArray[Any]) -> str:
    """Short hash of arrays, for identities."""
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()[:16]
