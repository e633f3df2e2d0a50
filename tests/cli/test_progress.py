"""Progress in notebooks and in scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.long]

CODE = """
import numpy as np, calibscale
from calibscale.formatting import progress
progress._HEARTBEAT = progress._REDRAW = 0.0
rng = np.random.default_rng(0)
sources = [
    calibscale.from_arrays(logits=rng.normal(size=(5000, 3)), labels=np.arange(5000) % 3)
    for _ in range(2)
]
one = calibscale.evaluate(sources[0], ["ece"], block_rows=500, progress=True)
two = calibscale.rank(dict(a=sources[0], b=sources[1]), by="brier", progress=True)
"""


def test_progress__is_a_bar_in_a_notebook_and_leaves_nothing():
    nbformat = pytest.importorskip("nbformat", reason="notebooks")
    nbclient = pytest.importorskip("nbclient", reason="notebooks")
    pytest.importorskip("ipykernel", reason="notebooks")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    shown = []

    class Client(nbclient.NotebookClient):
        def process_message(self, message, *arguments):
            if message["msg_type"] == "update_display_data":
                shown.append(message["content"]["data"])
            return super().process_message(message, *arguments)

    Client(notebook, timeout=300, kernel_name="python3").execute()
    bars = [re.search(r'value="(\d+)" max="(\d+)"', data["text/html"]) for data in shown]
    counts = [tuple(map(int, bar.groups())) for bar in bars if bar]
    assert {count for count in counts if count[1] == 10} >= {(k, 10) for k in range(1, 11)}
    assert "computing: 3 steps after" in str(shown)
    assert all(output["data"]["text/plain"] == "" for output in notebook.cells[0].outputs)


def test_progress__is_lines_in_a_script():
    ran = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, stdin=None
    )
    assert "computing: 10 steps after" in ran.stderr
    assert ran.stdout == ""


def test_command__says_on_a_terminal_that_it_compiled_kernels(tmp_path):
    pty = pytest.importorskip("pty", reason="terminals of POSIX")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        pytest.skip("nothing is compiled")
    code = "from calibscale.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "--rows", "1000"]

    def shown(cache: Path, *options: str) -> str:
        environment = os.environ | {"CALIBSCALE_CACHE_DIR": str(cache)}
        read_end, write_end = pty.openpty()
        with (
            open(read_end, "rb", buffering=0) as terminal,
            subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=write_end, env=environment
            ) as process,
        ):
            os.close(write_end)
            texts = []
            try:
                while text := terminal.read(4096):
                    texts.append(text)
            except OSError:  # Linux reports the end of a terminal as an error
                pass
            assert process.wait() == 0
        return b"".join(texts).decode()

    cache = tmp_path / "cache"
    text = shown(cache)
    note = re.search(r"compiled (\d+) kernels in (\d+\.\d) s; later commands load them", text)
    assert note is not None
    assert int(note[1]) == len([*cache.rglob("*.nbc")])
    assert float(note[2]) >= 1.0
    assert "compiled" not in shown(cache)
    assert shown(tmp_path / "empty", "--quiet") == ""
