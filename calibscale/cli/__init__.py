"""The command line.  Commands import what they need when they run, so that help is instant."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import click

from calibscale.cli.audit import audit
from calibscale.cli.bias import bias
from calibscale.cli.evaluate import evaluate, plan
from calibscale.cli.nightly import ledger, nightly
from calibscale.cli.options import Commands, check_output, number, pairs, split, write_json
from calibscale.cli.power import power
from calibscale.cli.rank import rank
from calibscale.cli.reliability import reliability
from calibscale.cli.report import report
from calibscale.cli.select import select
from calibscale.cli.test import test
from calibscale.errors import CalibscaleError, ClusterError, InvalidDataError, OptionError
from calibscale.progress import progress

RUNTIME_ERROR, USAGE, INVALID_DATA, INTERRUPTED = 1, 2, 4, 75

_GENERATORS = ("gb", "ms-true", "ms-marginal", "ms-under", "ms-over", "shift", "missing", "bayes")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code (see ``calibscale --help``)."""
    before = {number: signal.signal(number, _interrupt) for number in _ending()}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # λ and ± on a terminal that has none
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=arguments, prog_name="calibscale", standalone_mode=False)
        if code:  # of `click.exceptions.Exit`
            sys.exit(code)
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        click.echo(_printable(shown.getvalue()), nl=False, err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        kept = "nothing is lost, " if _keeps(arguments or sys.argv[1:]) else ""
        click.echo(f"interrupted; {kept}run the same command again", err=True)
        sys.exit(INTERRUPTED)
    except (CalibscaleError, OSError) as error:
        _give_up_stdout()
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            sys.exit(RUNTIME_ERROR)
        click.echo(f"error: {_printable(str(error))}", err=True)
        if isinstance(error, InvalidDataError):
            sys.exit(INVALID_DATA)
        if isinstance(error, ClusterError):  # the work can go on elsewhere, or later
            sys.exit(INTERRUPTED)
        sys.exit(USAGE if isinstance(error, OptionError) else RUNTIME_ERROR)
    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        if not _lacks_memory(error):
            raise
        click.echo(
            f"error: the system gives no more memory ({error or 'of the process'}): raise the "
            "limit (ulimit -v), or give --memory-limit or fewer threads",
            err=True,
        )
        sys.exit(RUNTIME_ERROR)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the process ends, with no more words


def _lacks_memory(error: Exception) -> bool:
    """Whether a limit of memory is the reason: of arrays, of stacks of threads, or of libraries."""
    words = ("can't start new thread", "llocate memory", "failed to map segment", "returned NULL")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _printable(text: str) -> str:
    from calibscale.report.words import printable

    return printable(text)


def _keeps(arguments: list[str]) -> bool:
    """Whether an interrupted command goes on where it stopped."""
    return arguments[:1] in (["ingest"], ["nightly"], ["simulate"]) or any(
        argument.partition("=")[0] == "--checkpoint" for argument in arguments
    )


def _give_up_stdout() -> None:
    """Where standard output cannot be written, the interpreter's exit must not try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ending() -> list[int]:
    """Signals besides Ctrl-C that interrupt; a hang-up unless nohup has it ignored."""
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hang_up]


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="calibscale")
def cli() -> None:
    """How well is a probabilistic classifier calibrated?

    Exit codes: 0 fine, 1 runtime error, 2 usage, 3 threshold breached, 4 invalid data,
    75 interrupted, or the cluster was lost (run again).
    """


# ---------------------------------------------------------------- making and looking at stores


@cli.command(short_help="Write a STORE whose calibration error is known.")
@click.argument("store")
@click.option("--rows", "-n", default=100_000, show_default=True)
@click.option("--classes", "-k", type=int, help="Number of classes; default: as in the paper.")
@click.option(
    "--generator", "-g", type=click.Choice(_GENERATORS), default="ms-over", show_default=True,
    help="gb: Dirichlet 0.04, tempered by 3/10. ms-*: Dirichlet 0.1 and its true, marginal, under- "
    "or overconfident forecast. shift: covariate shift. missing, bayes: sigmoid of covariates, "
    "without or with the last one.",
)  # fmt: skip
@click.option(
    "--parameter", "-p", "parameters", multiple=True, metavar="NAME=NUMBER",
    help="Parameter of the generator (repeatable), such as alpha=0.5.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--dtype", type=click.Choice(["float16", "float32", "float64"]), default="float32",
    show_default=True,
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what stands at STORE.")
@click.option("--quiet", "-q", is_flag=True, help="No progress, no message.")
def simulate(store: str, parameters: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Write a STORE of simulated predictions whose calibration error is known."""
    from calibscale.simulate import simulate as run

    settings = {
        key: number(value, "--parameter") for key, value in pairs(parameters, "--parameter")
    }
    with progress("simulating", "rows", quiet) as report:
        made = run(store, parameters=settings, progress=report, **options)
    if not quiet:
        click.echo(f"{made.rows:,} rows of {made.classes} classes in {store}")


@cli.command(short_help="Copy FILEs of predictions into a STORE.")
@click.argument("files", nargs=-1, required=True, metavar="FILE... STORE")
@click.option(
    "--key", "keys", multiple=True, metavar="ROLE=NAME",
    help="Where a column is found (repeatable): ROLE is logits, probabilities, labels, covariates, "
    "covariate_names or weights (importance weights, not counts), NAME an array, a column, columns "
    "between commas, or what the columns of all classes begin with.",
)  # fmt: skip
@click.option(
    "--class-names", metavar="A,B,...",
    help="What classes are called, in the order of their columns; labels may be these names.  "
    "[default: what the names of the columns end in, unless that is numbers]",
)  # fmt: skip
@click.option(
    "--binary", is_flag=True, help="The predictions are one column, P(y = 1) or its log-odds."
)
@click.option(
    "--dtype", type=click.Choice(["float16", "float32", "float64"]),
    help="Type of the stored predictions; default: that of the files.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what stands at STORE.")
@click.option("--quiet", "-q", is_flag=True, help="No progress, no message.")
def ingest(
    files: tuple[str, ...],
    keys: tuple[str, ...],
    class_names: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Copy FILEs (npy, npz, parquet, arrow, csv, safetensors) into a STORE, a few rows at a time.

    Several files are joined in the order given.  A run that was cut short goes on where it
    stopped; one that is complete does nothing.
    """
    from calibscale.ingest import ingest as run

    if len(files) < 2:
        raise click.UsageError("give at least one FILE, and then the STORE")
    with progress("ingesting", "rows", quiet) as report:
        done = run(
            files[:-1], files[-1], keys=dict(pairs(keys, "--key")),
            class_names=split(class_names) or None, progress=report, **options,
        )  # fmt: skip
    if not quiet:
        state = "was complete already" if not done.added else f"{done.added:,} rows added"
        click.echo(f"{files[-1]}: {done.rows:,} rows ({state})")


@cli.command()
@click.argument("store")
@click.option(
    "--json", "json_path", metavar="PATH", help="Write it as JSON; - for standard output."
)
def info(store: str, json_path: str | None) -> None:
    """What a STORE holds and where it came from."""
    check_output(json_path)
    from calibscale.store import LogitStore

    found = LogitStore.open(store).info()
    if json_path != "-":
        from calibscale.tables import info_table

        info_table(found)
    write_json(json_path, found)


# ---------------------------------------------------------------- demo, warmup, doctor


@cli.command(short_help="Start here: simulated predictions, and the truth.")
@click.option("--rows", "-n", default=100_000, show_default=True)
@click.option("--classes", "-k", default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--keep", metavar="STORE", help="Keep the simulated store there.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def demo(rows: int, classes: int, seed: int, keep: str | None, quiet: bool) -> None:
    """Simulate an overconfident classifier, evaluate it, and compare with the truth."""
    from calibscale.evaluation import default_estimators
    from calibscale.evaluation import evaluate as run
    from calibscale.simulate import simulate as make
    from calibscale.tables import demo_table
    from calibscale.truth import truth

    estimators = default_estimators()
    with tempfile.TemporaryDirectory(prefix="calibscale-demo-") as folder:
        store = keep or str(Path(folder) / "demo.zarr")
        with progress("simulating", "rows", quiet) as report:
            make(store, rows=rows, classes=classes, seed=seed, progress=report)
        with progress("evaluating", "blocks", quiet) as report:
            result = run(store, None, progress=report)
    resolved = [e for e in estimators if result[e.name].value is not None]
    known = truth(resolved, rows=rows, classes=classes, seed=seed)
    demo_table(result, known)
    if keep:
        click.echo(f"The store is kept in {keep}; try: calibscale evaluate {keep}")


@cli.command(short_help="Compile every kernel ahead of time.")
def warmup() -> None:
    """Compile every kernel now and keep it in the cache, so that later runs start at once."""
    import time

    from calibscale.kernels._jit import cache_folder
    from calibscale.warmup import warm_up

    started = time.perf_counter()
    warm_up()
    click.echo(f"kernels ready in {cache_folder()} ({time.perf_counter() - started:.1f} s)")


@cli.command(short_help="What a bug report needs.")
@click.option(
    "--json", "json_path", metavar="PATH", help="Write it as JSON; - for standard output."
)
def doctor(json_path: str | None) -> None:
    """Versions, processor, threads, BLAS and cache: paste this into a bug report."""
    check_output(json_path)
    from calibscale.doctor import examine

    found = examine()
    if json_path != "-":
        from calibscale.tables import info_table

        info_table(found)
    write_json(json_path, found)


cli.add_command(audit)
cli.add_command(bias)
cli.add_command(evaluate)
cli.add_command(ledger)
cli.add_command(nightly)
cli.add_command(plan)
cli.add_command(power)
cli.add_command(rank)
cli.add_command(reliability)
cli.add_command(report)
cli.add_command(select)
cli.add_command(test)
