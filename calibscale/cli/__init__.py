"""Command-line interface; commands import the package when they run, so that help is fast."""

from __future__ import annotations

import _thread
import gc
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from calibscale.addresses import located, shown_address, without_secrets
from calibscale.cli import options as shared
from calibscale.cli.bias_commands import audit, bias, recalibrate
from calibscale.cli.choice_commands import rank, select
from calibscale.cli.evaluate_commands import check, evaluate, list_estimators, plan, reliability
from calibscale.cli.night_commands import ledger, nightly, report
from calibscale.cli.sources import ROLES, forecast_option, role_options, storage_option
from calibscale.cli.test_commands import power, test
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
_GENERATORS = ("gb", "ms-true", "ms-marginal", "ms-under", "ms-over", "shift", "missing", "bayes")
_DTYPES = click.Choice(["float16", "float32", "float64"])
_PACKAGES = (
    *("calibscale", "numpy", "scipy", "numba", "llvmlite", "zarr", "numcodecs", "dask"),
    *("distributed", "finufft", "pyarrow", "matplotlib", "safetensors", "xarray", "fsspec"),
)
_overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing STORE.")
_quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="Print neither progress nor a summary."
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of ``calibscale --help``."""
    before = {number: signal.signal(number, _interrupt) for number in _ending()}
    unraisable, sys.unraisablehook = sys.unraisablehook, _unraisable
    collections = gc.get_threshold()
    gc.set_threshold(20_000)  # at 700, collections are a sixth of the time of a short command
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
        click.echo(
            f"error: not enough memory{f' ({error})' if str(error) else ''}: raise the limit "
            "(ulimit -v), or pass --memory-limit or fewer threads",
            err=True,
        )
        sys.exit(RUNTIME_ERROR)
    finally:
        sys.unraisablehook = unraisable
        gc.set_threshold(*collections)
        for number, handler in before.items():
            signal.signal(number, handler)
        if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a late Ctrl-C prints no traceback


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


def _ending() -> list[int]:
    """Signals besides SIGINT that interrupt: SIGTERM, and SIGHUP unless it is ignored (nohup)."""
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hang_up]


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _unraisable(ignored: Any) -> None:
    """Interrupt again soon if an interrupt was ignored, as in a callback of the compiler."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.05, _interrupt_again)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_again() -> None:
    if sys.unraisablehook is not _unraisable:  # the command has ended
        return
    if os.name == "posix":  # also ends a wait of the main thread
        os.kill(os.getpid(), signal.SIGTERM)
    else:  # Windows
        _thread.interrupt_main()


@click.group(
    cls=shared.Commands,
    context_settings=dict(
        help_option_names=["-h", "--help"], max_content_width=100, show_default=True
    ),
)
@click.version_option(package_name="calibscale")
def cli() -> None:
    """Measure how well predicted probabilities and forecasts are calibrated.

    Exit codes: 0 success, 1 runtime error, 2 usage error, 3 threshold breached, 4 invalid data,
    5 days missing, broken or provisional (nightly), 75 interrupted, or a cluster or server is lost
    (run again).
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


# ---------------------------------------------------------------- stores


@cli.command(short_help="Simulate a STORE with known calibration error.")
@click.argument("store")
@click.option("--rows", "-n", default=100_000, help="Number of rows.")
@click.option(
    "--classes", "-k", type=int, help="Number of classes.  [default: 5 for gb, 10 for ms-*, else 2]"
)
@click.option(
    "--generator", "-g", type=click.Choice(_GENERATORS), default="ms-over",
    help="Distribution of the data.  gb: Dirichlet(0.04), tempered by 3/10.  ms-*: the true, "
    "marginal, under- or overconfident predictions of Dirichlet(0.1).  shift: covariate shift.  "
    "bayes and missing: sigmoid of covariates, with and without the last covariate.",
)  # fmt: skip
@click.option(
    "--parameter", "-p", "parameters", multiple=True, metavar="NAME=NUMBER",
    help="Parameter of the generator (repeatable), such as alpha=0.5.",
)  # fmt: skip
@shared.seed_option
@click.option("--dtype", type=_DTYPES, default="float32", help="Type of the stored predictions.")
@_overwrite_option
@storage_option
@_quiet_option
def simulate(store: str, parameters: tuple[str, ...], **options: Any) -> None:
    """Write simulated predictions with known calibration error to STORE."""
    from calibscale.simulation import simulate as run

    named = shared.pairs(parameters, "--parameter")
    settings = {key: shared.number(value, "--parameter") for key, value in named}
    with shared.progress("simulating", "rows") as report:
        place = located(store, options.pop("storage_options"), strict=True)
        written = run(place, parameters=settings, progress=report, **options)
    if shared.prints():
        click.echo(f"{written.rows:,} rows of {written.classes} classes in {shown_address(store)}")


@cli.command(short_help="Copy FILEs of predictions into a STORE.")
@click.argument("files", nargs=-1, required=True, metavar="FILE... STORE")
@role_options
@forecast_option
@shared.class_names_option
@shared.meaning_options[0]
@shared.meaning_options[1]
@shared.meaning_options[2]
@shared.binary_option
@click.option(
    "--dtype", type=_DTYPES, help="Type of the stored predictions.  [default: type in the files]"
)
@click.option(
    "--on-invalid", type=click.Choice(["raise", "drop", "keep"]), default="raise",
    help="Treatment of invalid rows: stop with an error, skip and count them, or store them for "
    "each evaluation to decide.",
)  # fmt: skip
@shared.tolerance_option
@_overwrite_option
@storage_option
@_quiet_option
def ingest(files: tuple[str, ...], class_names: str | None, **options: Any) -> None:
    """Copy FILEs into STORE, in batches of rows.

    A FILE is a path or URL that ends in csv, tsv, jsonl or ndjson, also followed by .gz, or in
    parquet, arrow, feather, npz, npy or safetensors; or a folder or a quoted pattern of such files
    of one format, which are read in the order of their names.
    Several files are concatenated in the given order.  An interrupted run resumes when it is
    repeated; a completed run does nothing.

    npy files are shards of predictions, whose rows follow one another in the order of the numbers
    in their names (logits_2 before logits_10), with labels in a file of their own:
    `calibscale ingest logits_*.npy pred.zarr --labels labels.npy`.
    """
    from calibscale.data.ingest import ingest as run
    from calibscale.data.ingest.npy_shards import as_listed, shortened
    from calibscale.formatting.fault_texts import dropped_text

    if len(files) < 2:
        raise click.UsageError("pass at least one FILE, and then the STORE")
    keys = {role: name for role in ROLES if (name := options.pop(role)) is not None}
    with shared.progress("ingesting", "rows") as report:
        done = run(
            as_listed(files[:-1]), files[-1], keys=keys,
            class_names=shared.split(class_names) or None, progress=report, **options,
        )  # fmt: skip
    if shared.prints():
        state = "already complete" if not done.added else f"{done.added:,} rows added"
        click.echo(f"{shown_address(files[-1])}: {done.rows:,} rows ({state})")
        if done.dropped:
            click.echo(dropped_text(done.dropped))
        if len(done.files) > 1:
            click.echo(f"read in this order: {shortened(done.files)}")


@cli.command()
@click.argument("store")
@shared.json_option
@storage_option
def info(store: str, storage_options: dict[str, Any] | None) -> None:
    """Print the contents and the provenance of STORE."""
    from calibscale.data.store import LogitStore

    _print_facts(LogitStore.open(store, storage_options=storage_options).info())


def _print_facts(facts: dict[str, Any]) -> None:
    if shared.prints():
        from calibscale.output.text import info_table

        info_table(facts)
    shared.write_json(facts)


# ---------------------------------------------------------------- demo, warmup, doctor


@cli.command(short_help="Evaluate a simulated classifier (start here).")
@click.option("--rows", "-n", default=100_000, help="Number of rows.")
@click.option("--classes", "-k", default=10, help="Number of classes.")
@shared.seed_option
@click.option(
    "--keep", metavar="STORE", help="Path at which the simulated store is kept.  [default: deleted]"
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress.")
def demo(rows: int, classes: int, seed: int, keep: str | None) -> None:
    """Simulate an overconfident classifier, evaluate it, and compare with the true values."""
    from calibscale.evaluation.evaluate import evaluate as run
    from calibscale.output.text import demo_table
    from calibscale.session import default_estimators
    from calibscale.simulation import simulate as simulate_store
    from calibscale.simulation import truth

    estimators = default_estimators()
    with tempfile.TemporaryDirectory(prefix="calibscale-demo-") as folder:
        store = keep or str(Path(folder) / "demo.zarr")
        with shared.progress("simulating", "rows") as report:
            simulate_store(store, rows=rows, classes=classes, seed=seed, progress=report)
        with shared.progress("evaluating") as report:
            result = run(store, None, progress=report)
    resolved = [e for e in estimators if result[e.name].value is not None]
    demo_table(result, truth(resolved, rows=rows, classes=classes, seed=seed))
    if keep:
        place = shown_address(keep)
        click.echo(f"The store is kept in {place}; try: calibscale evaluate {place}")


@cli.command(short_help="Compile all kernels ahead of time.")
def warmup() -> None:
    """Compile all kernels into the cache, so that later runs start at once."""
    from calibscale.kernels.kernel_cache import cache_folder

    started = time.perf_counter()
    warm_up()
    click.echo(f"kernels ready in {cache_folder()} ({time.perf_counter() - started:.1f} s)")


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of the package, by calls on a few rows."""
    import numpy as np

    from calibscale.data.arrays import from_arrays
    from calibscale.evaluation.evaluate import evaluate
    from calibscale.inference.calibration_test import calibration_test
    from calibscale.inference.nulls import NULLS, ClusterSigns
    from calibscale.selection.cross_validation import select
    from calibscale.session import default_estimators
    from calibscale.simulation import GENERATORS

    labels = np.array([1, 0, 1])
    estimators: list[Any] = [*default_estimators(), "ece(edges=equal-mass)"]
    for dtype in (np.float32, np.float64):
        halves = np.full((3, 2), 0.5, dtype)
        for source in (
            from_arrays(logits=halves, labels=labels),
            from_arrays(probabilities=halves, labels=labels),
        ):
            evaluate(source, estimators, scheduler="serial")
    pairwise = ("jkce(method=tiles)", "jkce(method=tiles, precision=float32)")
    evaluate(source, [*pairwise, "ckce(method=exact)"], scheduler="serial")
    kinds = (kind for kind in NULLS.values() if kind.draws)
    for null in (kind.name for kind in kinds if kind is not ClusterSigns):  # as `wild`
        tested = ("ckce", "ece", "ece(edges=equal-mass)", "cwce2", "simplex_ece")
        calibration_test(source, tested, null=null, n_replicates=2, scheduler="serial")
    evaluate(source, ["ece"], interval="jackknife", scheduler="serial")
    GENERATORS["ms-over"].draw(0, 0, 2)
    p = np.linspace(0.01, 0.99, 40)
    source = from_arrays(probabilities=p, labels=np.arange(40) % 2, binary=True)
    for notion in ("positive", "canonical"):
        select(source, notion, folds=2, test_fraction=0.4, features=4, scheduler="serial")


@cli.command(short_help="Print a script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, paths and estimators.

    \b
    bash: calibscale completion bash >> ~/.bashrc
    zsh:  calibscale completion zsh >> ~/.zshrc
    fish: calibscale completion fish > ~/.config/fish/completions/calibscale.fish
    """
    kind: Any = get_completion_class(shell)
    click.echo(kind(cli, {}, "calibscale", "_CALIBSCALE_COMPLETE").source())


@cli.command(short_help="Print the machine and versions for a bug report.")
@shared.json_option
def doctor() -> None:
    """Print versions, processor, threads, BLAS and cache for a bug report."""
    _print_facts(_examined())


def _examined() -> dict[str, Any]:
    """Versions, processor, threads, BLAS and cache as a JSON object."""
    from llvmlite import binding
    from threadpoolctl import threadpool_info

    from calibscale.engine.dask_backend import installed
    from calibscale.engine.dask_connection import available_cpus
    from calibscale.kernels.kernel_cache import cache_folder

    cache = cache_folder()
    files = list(cache.rglob("*.nbc")) if cache.is_dir() else []
    features = binding.get_host_cpu_features()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: installed(name) for name in _PACKAGES},
        "cpu": binding.get_host_cpu_name(),
        "cpu_flags": [f for f in ("avx2", "fma", "avx512f", "avx512dq", "neon") if features.get(f)],
        "threads": available_cpus(),
        "threads_of_machine": os.cpu_count(),
        "blas": [
            f"{lib.get('internal_api')} {lib.get('version')} ({lib.get('architecture')}, "
            f"{lib.get('num_threads')} threads)"
            for lib in threadpool_info()
            if lib.get("user_api") == "blas"
        ],
        "cache": str(cache),
        "cached_kernels": len(files),
        "cached_bytes": sum(file.stat().st_size for file in files),
        "environment": {
            name: os.environ[name]
            for name in sorted(os.environ)
            if name.startswith(("CALIBSCALE_", "NUMBA_", "OMP_", "OPENBLAS_", "MKL_"))
        },
    }


for command in (
    *(audit, bias, check, evaluate, ledger, list_estimators, nightly, plan),
    *(power, rank, recalibrate, reliability, report, select, test),
):
    cli.add_command(command)
