"""Zarr arrays of other origin, opened without trusting them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import zarr

from calibscale.errors import StoreError
from calibscale.source import ArraySource, from_arrays
from calibscale.store.places import complaints, is_url, local_path, zarr_address

# what zarr raises where a group, or nothing of its own, stands
_NO_ARRAY = (zarr.errors.ArrayNotFoundError, zarr.errors.NodeTypeValidationError)


def open_arrays(
    *,
    store: str | Path | None = None,
    logits: str | Path | None = None,
    probabilities: str | Path | None = None,
    labels: str | Path,
    covariates: str | Path | None = None,
    covariate_names: Sequence[str] | None = None,
    weights: str | Path | None = None,
    binary: bool = False,
) -> ArraySource:
    """Zarr arrays of other origin (v2 or v3) by their paths or URLs, or by names inside `store`.

    Raises
    ------
    StoreError
        If an array cannot be opened, holds objects, or a name leads out of `store`.
    InvalidDataError, OptionError
        As `calibscale.from_arrays`.
    """

    def find(path: str | Path | None) -> Any:
        return (
            None if path is None else _open_array(path if store is None else _inside(store, path))
        )

    return from_arrays(
        logits=find(logits),
        probabilities=find(probabilities),
        labels=find(labels),
        covariates=find(covariates),
        covariate_names=covariate_names,
        weights=find(weights),
        binary=binary,
        name=str(store or logits or probabilities),
    )


def _inside(store: str | Path, name: str | Path) -> str:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "://" in str(name):
        raise StoreError(f"{name}: the path leaves the store {store}")
    if is_url(store):
        return f"{str(store).rstrip('/')}/{parts}"
    root = local_path(store).resolve()
    if not (root / parts).resolve().is_relative_to(root):
        raise StoreError(f"{name}: the path leaves the store {store}")
    return str(root / parts)


def _open_array(path: str | Path) -> zarr.Array:
    with complaints(path):
        try:
            array = zarr.open_array(zarr_address(path), mode="r")
        except (FileNotFoundError, zarr.errors.ContainsGroupError, *_NO_ARRAY) as error:
            raise StoreError(f"{path}: there is no zarr array") from error
    refuse_objects(array, str(path))
    return array


def refuse_objects(array: zarr.Array, name: str) -> None:
    described = repr(array.metadata).lower()
    if np.dtype(array.dtype).kind not in "iufb" or "pickle" in described:
        raise StoreError(
            f"{name}: object arrays and pickle codecs are refused, for reading them may run code "
            "from the file; store plain numbers"
        )
