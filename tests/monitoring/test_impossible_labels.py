"""Labels of probability 0 in a night: the headline says that they refute calibration."""

from __future__ import annotations

import json

import pytest

from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_job
from tests.support.ten_nights import invoke

pytestmark = pytest.mark.long


def test_impossible_labels__are_in_the_headline_of_the_night(tmp_path):  # V4
    job = write_job(tmp_path, JOB + "[outputs]\njson = 'out/{date}.json'\n")
    for k in range(2):
        columns = columns_of(k)
        if k == 1:
            columns["p"][5:8], columns["y"][5:8] = [0.0] * 3, [1] * 3
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
    first = invoke("nightly", job, "--date", day_name(0))
    assert "Fine: " in first.stdout
    second = invoke("nightly", job, "--date", day_name(1))
    text = " ".join(second.stdout.split())
    assert "Miscalibrated: 3 labels of the day have the predicted probability 0; " in text
    assert "The first label of probability 0 is in row 5 of the day." in text
    written = json.loads((tmp_path / f"out/{day_name(1)}.json").read_text())
    assert written["impossible"] == {"count": 3, "first_row": 5}
