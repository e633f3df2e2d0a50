"""Completion of commands in shells."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.long]


def _completed(*words):
    environment = {
        **os.environ,
        "_CALIBSCALE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["calibscale", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-m", "calibscale"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return ran.stdout.split()


def test_completion__offers_commands_paths_and_estimators():
    assert _completed("ev") == ["plain,evaluate"]
    assert _completed("evaluate", "-e", "ck") == ["plain,ckce", "plain,ckce_centred"]
    assert _completed("estimators", "smooth") == ["plain,smooth_ece", "plain,smooth_test"]
    assert _completed("info", "pre") == ["file,pre"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script__defines_the_completion(shell):
    command = [sys.executable, "-m", "calibscale", "completion", shell]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"_CALIBSCALE_COMPLETE={shell}_complete" in ran.stdout
