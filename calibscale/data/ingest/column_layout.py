"""Columns of a file by their role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibscale.data.ingest.readers import Reader


@dataclass(frozen=True)
class ColumnLayout:
    """Columns of a file by role.

    `texts` and `flags` are columns of texts and booleans, `unknown` those without any value, and
    `times` the kinds of the covariates that are dates or times.
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
