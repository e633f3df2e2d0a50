"""Columns of a file by their role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibscale.data.ingest.readers import Reader
from calibscale.data.ingest.set_columns import SetColumns


@dataclass(frozen=True)
class ColumnLayout:
    """Columns of a file by role.

    `texts` and `flags` are columns of texts and booleans, and `unknown` are columns without any
    value.  `times` are the kinds of the covariates that are dates or times.  `step` is the number
    of rows in a batch, and `rows` is None where the number is known only after reading.  `sets` are
    columns of predictions that hold sets, whose sizes are then the single column.
    """

    file: str
    reader: Callable[[], Reader]
    roles: dict[str, tuple[str, ...]]
    kind: str
    columns: int
    dtype: np.dtype
    class_names: tuple[str, ...] | None
    covariates: tuple[str, ...]
    texts: tuple[str, ...]
    flags: tuple[str, ...]
    unknown: tuple[str, ...]
    times: dict[str, str]
    weights: bool
    rows: int | None
    step: int
    sets: SetColumns | None = None
