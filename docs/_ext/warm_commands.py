"""Commands of pages, run by processes that have imported calibscale already.

A command takes more than a second to start and milliseconds to run on the small files of pages.
The forkserver imports the modules once, and each command runs in a fork of it.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
import tempfile
from pathlib import Path

import calibscale.cli

# Modules that most commands import. None of them starts threads, which forks would lack.
PRELOADED = [
    "calibscale.cli.program",
    "calibscale.cli.sources",
    "calibscale.evaluation.check",
    "calibscale.monitoring.night",
    "calibscale.output.report",
    "calibscale.output.text",
]
SHELL = set("|&;<>$`*?~#\n")  # characters for which a command needs a shell


def words_of(command: str) -> list[str] | None:
    """Arguments of a plain command of calibscale, or None if it needs a shell."""
    joined = command.replace("\\\n", " ")
    if not joined.startswith("calibscale ") or SHELL & set(joined):
        return None
    return shlex.split(joined)[1:]


def run(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of the command line in a folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.NamedTemporaryFile() as output:
        process = context.Process(target=_run, args=(arguments, folder, output.name))
        process.start()
        process.join()
        return process.exitcode, output.read().decode()


def _run(arguments: list[str], folder: Path, output: str) -> None:
    """Run the command line with a file as its output, as a shell would."""
    with open(output, "w") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(folder)
    sys.argv = ["calibscale", *arguments]
    calibscale.cli.main()
