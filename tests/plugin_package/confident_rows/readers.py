"""Files of lines with a label and the probability of class 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibscale.data.ingest.readers import NamedArrays


def scores_file(file: Any) -> NamedArrays:
    """Reader of the columns ``label`` and ``p``."""
    with file.open() as content:
        rows = np.loadtxt(content, ndmin=2)
    columns = {"label": rows[:, 0].astype(np.int64), "p": rows[:, 1]}
    return NamedArrays(list(columns), columns.__getitem__)
