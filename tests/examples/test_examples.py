"""The examples run, and say what they promise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support import ROOT

EXAMPLES = ROOT / "examples"


def test_evaluation_loop__finds_the_overconfident_half(tmp_path):
    command = [sys.executable, EXAMPLES / "evaluation_loop.py", tmp_path / "s.zarr"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    gaps = [float(gap) for gap in re.findall(r"accuracy ([+-][\d.]+)", ran.stdout)]
    # 50,000 rows each: the calibrated half within five standard errors, the other far off
    assert abs(gaps[0]) < 5 * 0.5 / 50_000**0.5
    assert gaps[1] > 0.1


@pytest.mark.long
def test_ddp_accumulator__prints_the_numbers_of_evaluate():
    pytest.importorskip("torch", reason="several processes of PyTorch")
    command = [sys.executable, EXAMPLES / "ddp_accumulator.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    merged, expected = (line.split()[1:] for line in ran.stdout.splitlines())
    assert merged[:2] == ["20,000", "rows"]
    assert merged == expected
    assert 0.1 < float(merged[3]) < 0.3  # the model is overconfident
