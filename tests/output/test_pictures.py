"""Pictures of results in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.output.pictures import save_picture


@pytest.mark.long
@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_save_picture__equal_results_give_equal_files(tmp_path: Path, form: str) -> None:
    p = np.random.default_rng(0).uniform(size=100)
    result = cs.reliability(cs.from_arrays(probabilities=p, labels=p > 0.5, binary=True))
    contents = []
    for seconds in (0.5, 7.25):
        path = tmp_path / f"{seconds}.{form}"
        save_picture(replace(result, seconds=seconds), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
