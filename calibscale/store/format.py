"""The layout of a store on disk, and whether something has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from calibscale.errors import StoreError
from calibscale.source import KINDS, ArraySource
from calibscale.store.places import zarr_address

FORMAT = 1
KEY = "calibscale"  # the attribute under which everything of ours stands
LARGE = 2**30  # bytes of predictions above which chunks share files
SHARD_CHUNKS = 4
_NO_LABEL = -2  # fill value of labels: a missing chunk is told from data


def lay_out(address: str, meta: dict[str, Any], dtype: np.dtype, expected_rows: int) -> None:
    """Make the group and its empty arrays."""
    kind, d = meta["kind"], len(meta["covariate_names"])
    columns = 1 if meta["binary"] else meta["classes"]
    empty = ArraySource(kind, np.empty((0, columns), dtype), None, binary=meta["binary"])
    chunk = empty.block_rows
    sharded = expected_rows * columns * dtype.itemsize > LARGE
    group = zarr.open_group(address, mode="w-", zarr_format=3)

    def add(name: str, width: int | None, dtype: Any, missing: Any) -> None:
        tail = () if width is None else (width,)
        group.create_array(
            name,
            shape=(0, *tail),
            chunks=(chunk, *tail),
            shards=(chunk * SHARD_CHUNKS, *tail) if sharded else None,
            dtype=dtype,
            fill_value=missing,
            # bit-shuffling finds what little redundancy logits have, at memory speed; the
            # checksum turns a flipped bit into an error
            compressors=[BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()],
            dimension_names=("row", "column")[: 1 + len(tail)],
        )

    add(kind, columns, dtype, np.nan)
    add("labels", None, np.int32, _NO_LABEL)
    if d:
        add("covariates", d, np.float64, np.nan)
    if meta["weights"]:
        add("weights", None, np.float64, np.nan)
    group.attrs[KEY] = meta  # last: without it this is no store


def is_store(url: str | Path) -> bool:
    """Whether a prediction store stands there."""
    try:
        return KEY in zarr.open_group(zarr_address(url), mode="r").attrs
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        return False


def check_meta(url: str | Path, meta: dict[str, Any]) -> None:
    """Whether an attribute that something else may have written describes a store."""
    written = meta.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise StoreError(
            f"{url}: written in format {written} by a newer calibscale; this one reads up to "
            f"format {FORMAT}: upgrade it"
        )
    rows, classes = meta.get("rows"), meta.get("classes")
    names, labels = meta.get("covariate_names"), meta.get("class_names")
    right = {
        "format": written == FORMAT,
        "kind": meta.get("kind") in KINDS,
        "rows": type(rows) is int and rows >= 0,
        "classes": type(classes) is int and classes >= 2,
        "binary": isinstance(meta.get("binary"), bool),
        "weights": isinstance(meta.get("weights"), bool),
        "covariate_names": _are_names(names),
        "class_names": labels is None or (_are_names(labels) and len(labels) == classes),
        "categories": _are_categories(meta.get("categories", {}), names),
        "provenance": isinstance(meta.get("provenance"), dict),
        "notes": isinstance(meta.get("notes"), dict),
        "finished": isinstance(meta.get("finished", True), bool),
    }
    for key, fine in right.items():
        if not fine:
            raise StoreError(
                f"{url}: its attribute {key!r} is damaged: {meta.get(key, 'missing')!r}"
            )


def _are_names(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(name, str) for name in found)


def _are_categories(found: Any, covariates: Any) -> bool:
    return isinstance(found, dict) and all(
        key in covariates and _are_names(names) for key, names in found.items()
    )
