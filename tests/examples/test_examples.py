"""The examples run, and say what they promise."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support import ROOT

EXAMPLES = ROOT / "examples"


def test_evaluation_loop__finds_the_overconfident_half(tmp_path):
    command = [sys.executable, EXAMPLES / "evaluation_loop.py", tmp_path / "s.zarr"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    gaps = [float(gap) for gap in re.findall(r"accuracy ([+-][\d.]+)", ran.stdout)]
    # 50,000 rows each: the calibrated half within five standard errors, the other far off
    assert abs(gaps[0]) < 5 * 0.5 / 50_000**0.5
    assert gaps[1] > 0.1
