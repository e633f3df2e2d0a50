"""Public functions and classes have types for Pyright, which editors use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import ROOT

PROGRAM = """\
from typing import assert_type

import numpy as np

import calibscale as cs
from calibscale.estimators.known_estimators import ESTIMATORS

p = np.linspace(0.1, 0.9, 100)
source = cs.from_arrays(probabilities=p, labels=np.arange(100) % 2, binary=True)
assert_type(source, cs.ArraySource)
result = cs.evaluate(source, ["ece", cs.ECE(bins=5)], interval="jackknife", scheduler="serial")
assert_type(result, cs.Evaluation)
assert_type(result["ece"].value, float | None)
assert_type(cs.calibration_test(source, ["ece"], null="wild"), cs.CalibrationTests)
assert_type(cs.calibration_test(source, "ece")["ece"], cs.TestResult)
assert_type(cs.recalibrate(source, "platt"), cs.FittedRecalibration)
assert_type(cs.select(source), cs.Selection)
assert_type(cs.rank([source, source]), cs.Ranking)
assert_type(cs.audit(source, ["age"]), cs.Audit)
assert_type(cs.check(source), cs.Check)
assert_type(cs.reliability(source), cs.Reliability)
assert_type(cs.plan(source, ["ece"]), cs.Plan)
assert_type(cs.metrics.ece(np.arange(100) % 2, p), float)
assert_type(ESTIMATORS["ece"], type[cs.Estimator])
with cs.Session.open(source) as session:
    assert_type(session, cs.Session)
cs.evaluate(source, bins=3)  # refused
cs.ECE(bin=5)  # refused
cs.ECE(bins="many")  # refused
text: str = cs.evaluate(source)  # refused
cs.metrics.ece(p, p, bin=5)  # refused
cs.no_such_function(source)  # refused
"""


@pytest.mark.process
@pytest.mark.long
def test_public_types__are_those_that_pyright_checks_in_a_program(tmp_path):
    """Types of results are known.  Wrong names, settings and values are refused."""
    pytest.importorskip("basedpyright", reason="checks types with Pyright")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = {
        "include": [str(program)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
    }
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    options = ["--outputjson", "--project", str(config), "--pythonpath", sys.executable]
    command = [sys.executable, "-m", "basedpyright", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    diagnostics = json.loads(ran.stdout)["generalDiagnostics"]
    errors = {
        entry["range"]["start"]["line"] for entry in diagnostics if entry["severity"] == "error"
    }
    refused = {k for k, line in enumerate(PROGRAM.splitlines()) if "# refused" in line}
    assert errors == refused, diagnostics
