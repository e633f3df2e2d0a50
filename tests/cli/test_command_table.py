"""Commands are files of their names, which are imported when the commands run."""

from __future__ import annotations

import gc
import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest

from calibscale import LogitStore
from calibscale.cli import cli, commands, main
from calibscale.cli.command_table import SUMMARIES
from calibscale.cli.unused_modules import UNUSED
from calibscale.engine.dask_connection import available_cpus


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


@pytest.mark.skipif(
    not hasattr(click.exceptions, "NoSuchCommand"), reason="click before 8.4 suggests no commands"
)
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


# Libraries that take 0.02 s or more to load, and that an evaluation of 300 rows does not need.
SLOW = {
    *("asyncio", "dask", "distributed", "fsspec", "jinja2", "matplotlib", "pandas"),
    *("pyarrow.compute", "pyarrow.dataset", "pydantic", "scipy.linalg", "scipy.optimize"),
    *("scipy.stats", "sklearn", "xarray", "zarr"),
}
OF_INPUTS = {"csv": {"numcodecs", "pyarrow"}, "parquet": {"numcodecs"}, "zarr": {"pyarrow"}}


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("kind", OF_INPUTS)
def test_evaluate__loads_no_library_that_its_input_does_not_need(tmp_path, rng, kind):
    p = np.round(rng.random(300), 3)
    frame = pd.DataFrame({"p": p, "y": (rng.random(300) < p).astype(int)})
    options = ["--probabilities", "p", "--labels", "y"]
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        with LogitStore.create(path, classes=2, kind="probabilities", binary=True).writer() as rows:
            rows.append(p, frame["y"].to_numpy())
        options = []
    _loaded("evaluate", str(path), *options)  # compiles kernels, which needs other libraries
    # A module that is deferred stands in `sys.modules` before it runs.
    loaded = _loaded("evaluate", str(path), *options)
    assert "numba" in loaded
    assert not loaded & (SLOW | OF_INPUTS[kind])
    folder = commands.__name__ + "."
    assert {module for module in loaded if module.startswith(folder)} == {folder + "evaluate"}
    # Documents and results of other commands
    assert "calibscale.results.night_results" not in loaded
    assert "calibscale.results.audit_results" not in loaded


def test_main__leaves_the_collector_of_its_caller_as_it_was(capsys):
    before = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    main(["--version"])
    assert capsys.readouterr().out.startswith("calibscale")
    assert (gc.get_threshold(), gc.callbacks, gc.get_freeze_count()) == before


@pytest.mark.process
@pytest.mark.parametrize(("variables", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_process__of_a_command_has_one_thread_of_openblas_unless_told_otherwise(variables, threads):
    code = (
        "import sys\n"
        "from calibscale.cli import main\n"
        "sys.argv = ['calibscale', 'doctor', '--json', '-']\n"
        "main()\n"
        "from threadpoolctl import threadpool_info\n"
        "blas = [x for x in threadpool_info() if x['internal_api'] == 'openblas']\n"
        "print(*(x['num_threads'] for x in blas))\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment | variables,
    )
    printed, numbers = ran.stdout.splitlines()
    if not numbers:
        pytest.skip("NumPy and SciPy have another BLAS than OpenBLAS")
    # OpenBLAS has at most one thread for each processor.
    assert {*map(int, numbers.split())} == {min(threads, available_cpus())}
    shown = json.loads(printed)["environment"]["OPENBLAS_NUM_THREADS"]
    assert shown == (str(threads) if variables else "1 (set by this command)")


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX closes standard error")
def test_commands__run_without_a_standard_error():
    code = "from calibscale.cli import main; main()"
    command = f"{shlex.quote(sys.executable)} -c '{code}' doctor 2>&-"
    subprocess.run(command, shell=True, stdout=subprocess.PIPE, timeout=60, check=True)


@pytest.mark.process
def test_unused_modules__run_when_they_are_used():
    code = (
        "import sys\n"
        "from calibscale.cli.unused_modules import UNUSED, defer_unused_modules\n"
        "defer_unused_modules()\n"
        "import numpy, yaml, scipy.special\n"
        "print([type(sys.modules[name]).__name__ for name in UNUSED])\n"
        "numpy.testing.assert_allclose(1, 1)\n"
        "print(yaml.safe_load('[1, 2]'), callable(numpy.f2py.run_main))"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    deferred, used = ran.stdout.splitlines()
    assert deferred == str(["_LazyModule"] * len(UNUSED))
    assert used == "[1, 2] True"
