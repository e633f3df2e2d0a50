"""The command line as a program: its group of commands, and the exit codes of errors."""

from __future__ import annotations

import gc
import os
import signal
import sys
from io import StringIO, TextIOWrapper

import click

from calibscale.addresses import without_secrets
from calibscale.cli.blas_threads import limit_blas_threads
from calibscale.cli.command_table import Program
from calibscale.cli.interrupts import ending_signals, interrupt, interrupt_again_later
from calibscale.cli.unused_modules import defer_unused_modules
from calibscale.errors import (
    CalibscaleError,
    ClusterError,
    InvalidDataError,
    OptionError,
    UnavailableError,
)
from calibscale.formatting.escapes import printable

RUNTIME_ERROR, USAGE, INVALID_DATA, INTERRUPTED = 1, 2, 4, 75
_ADDRESS_SPACE = 2**30  # bytes that numerical libraries reserve
# Numbers of new objects after which the interpreter looks for cycles that nobody refers to.  At
# 700, this takes a sixth of the time of a short command, most of it while modules are loaded.
_OBJECTS_OF_MODULES, _LATER_OBJECTS = 200_000, 20_000


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of ``calibscale --help``."""
    if arguments is None:  # the process is of this command alone
        limit_blas_threads()
    before = {number: signal.signal(number, interrupt) for number in ending_signals()}
    unraisable, sys.unraisablehook = sys.unraisablehook, interrupt_again_later
    collections = gc.get_threshold()
    gc.set_threshold(_OBJECTS_OF_MODULES)
    gc.callbacks.append(_collect_more_often)
    defer_unused_modules()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without λ and ±
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=arguments, prog_name="calibscale", standalone_mode=False)
        if code:  # from `click.exceptions.Exit`
            sys.exit(code)
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        click.echo(printable(without_secrets(shown.getvalue())), nl=False, err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        advice = "nothing is lost, " if _resumes(arguments or sys.argv[1:]) else ""
        click.echo(f"interrupted; {advice}run the same command again", err=True)
        sys.exit(INTERRUPTED)
    except (CalibscaleError, OSError) as error:
        _discard_stdout()
        _report_first_failure()
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            sys.exit(RUNTIME_ERROR)
        click.echo(f"error: {printable(without_secrets(str(error)))}", err=True)
        if isinstance(error, InvalidDataError):
            sys.exit(INVALID_DATA)
        if isinstance(error, ClusterError | UnavailableError):  # it can run again later
            sys.exit(INTERRUPTED)
        sys.exit(USAGE if isinstance(error, OptionError) else RUNTIME_ERROR)
    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        if not _lacks_memory(error):
            raise
        detail = f" ({error})" if str(error) else ""
        click.echo(
            f"error: not enough memory{detail}: raise the limit "
            "(ulimit -v), or pass --memory-limit or fewer threads",
            err=True,
        )
        sys.exit(RUNTIME_ERROR)
    finally:
        sys.unraisablehook = unraisable
        if arguments is None:  # the process ends, and searching all objects for cycles takes 0.1 s
            gc.freeze()
        gc.callbacks.remove(_collect_more_often)
        gc.set_threshold(*collections)
        for number, handler in before.items():
            signal.signal(number, handler)
        if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a late Ctrl-C prints no traceback


def _collect_more_often(phase: str, details: dict[str, int]) -> None:
    """Callback of collections.  The first one comes when most modules are loaded."""
    if gc.get_threshold()[0] == _OBJECTS_OF_MODULES:
        gc.set_threshold(_LATER_OBJECTS)


def _lacks_memory(error: Exception) -> bool:
    """Whether an error is caused by a memory limit: of arrays, thread stacks or libraries."""
    phrases = ("can't start new thread", "llocate memory", "failed to map segment", "returned NULL")
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in phrases)


def _report_first_failure() -> None:
    """Let asyncio not log other writes that failed at the same time."""
    import logging

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _resumes(arguments: list[str]) -> bool:
    """Whether an interrupted command resumes when it is run again."""
    return arguments[:1] in (["ingest"], ["nightly"], ["simulate"]) or any(
        argument.partition("=")[0] == "--checkpoint" for argument in arguments
    )


def _discard_stdout() -> None:
    """Keep the interpreter from writing to a broken standard output at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=Program,
    context_settings=dict(
        help_option_names=["-h", "--help"], max_content_width=100, show_default=True
    ),
)
@click.version_option(package_name="calibscale")
def cli() -> None:
    """Measure how well predicted probabilities and forecasts are calibrated.

    Exit codes: 0 success, 1 runtime error, 2 usage error, 3 threshold or check breached, 4 invalid
    data, 5 days missing, broken or provisional (nightly), 75 interrupted, or a cluster or server is
    lost (run again).
    """
    _refuse_small_address_space()


def _refuse_small_address_space() -> None:
    """Raise MemoryError if numerical libraries would hang or abort while they are loaded."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit not in (-1, resource.RLIM_INFINITY) and limit < _ADDRESS_SPACE:
        needed = _ADDRESS_SPACE // 2**20
        raise MemoryError(f"the limit is {limit // 2**20:,} MiB, libraries need {needed:,} MiB")
