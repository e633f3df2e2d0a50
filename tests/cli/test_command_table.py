"""Commands are files of their names, which are imported when the commands run."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import click
import pytest

from calibscale.cli import cli, commands
from calibscale.cli.command_table import SUMMARIES


def test_table__has_every_command_file():
    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == SUMMARIES.keys()


@pytest.mark.parametrize("name", SUMMARIES)
def test_commands__have_the_names_and_summaries_of_the_table(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(80) == SUMMARIES[name]
    assert command.callback is not None
    assert inspect.cleandoc(command.help or "") == inspect.getdoc(command.callback)


def test_help__lists_every_command(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = run("--help").out.partition("Commands:\n")[2].splitlines()
    assert listed == [f"  {name:<11}  {summary}" for name, summary in SUMMARIES.items()]


def test_misspelt_command__has_a_suggestion(run):
    ran = run("evaluat")
    assert ran.code == 2
    assert "No such command 'evaluat'. Did you mean 'evaluate'?" in ran.err


def _loaded(*arguments: str) -> set[str]:
    """Modules that a command has loaded at its end, in a new process."""
    code = (
        "import sys\n"
        "from calibscale.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return set(ran.stderr.splitlines()[-1].split())


@pytest.mark.process
def test_help__imports_no_command():
    folder = commands.__name__ + "."
    assert not [name for name in _loaded("--help") if name.startswith(folder)]


@pytest.mark.process
@pytest.mark.parametrize("name", ["evaluate", "info", "nightly"])
def test_commands__import_no_other_command_and_no_library_for_their_help(name):
    loaded = _loaded(name, "--help")
    folder = commands.__name__ + "."
    assert {module for module in loaded if module.startswith(folder)} == {folder + name}
    assert not loaded & {"numpy", "numba", "zarr", "dask", "rich"}
