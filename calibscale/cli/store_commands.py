"""Commands of stores: simulate, ingest, info and demo."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from calibscale.addresses import located, shown_address
from calibscale.cli import options as shared
from calibscale.cli.sources import ROLES, forecast_option, role_options, storage_option

_GENERATORS = ("gb", "ms-true", "ms-marginal", "ms-under", "ms-over", "shift", "missing", "bayes")
_DTYPES = click.Choice(["float16", "float32", "float64"])
_overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing STORE.")
_quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="Print neither progress nor a summary."
)


@click.command(cls=shared.Command, short_help="Simulate a STORE with known calibration error.")
@click.argument("store")
@click.option("--rows", "-n", default=100_000, help="Number of rows.")
@click.option(
    "--classes", "-k", type=int, help="Number of classes.  [default: 5 for gb, 10 for ms-*, else 2]"
)
@click.option(
    "--generator",
    "-g",
    type=click.Choice(_GENERATORS),
    default="ms-over",
    help="Distribution of the data.  gb: Dirichlet(0.04), tempered by 3/10.  ms-*: the true, "
    "marginal, under- or overconfident predictions of Dirichlet(0.1).  shift: covariate shift.  "
    "bayes and missing: sigmoid of covariates, with and without the last covariate.",
)
@click.option(
    "--parameter",
    "-p",
    "parameters",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Parameter of the generator (repeatable), such as alpha=0.5.",
)
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


@click.command(cls=shared.Command, short_help="Copy FILEs of predictions into a STORE.")
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
    "--on-invalid",
    type=click.Choice(["raise", "drop", "keep"]),
    default="raise",
    help="Treatment of invalid rows: stop with an error, skip and count them, or store them for "
    "each evaluation to decide.",
)
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
    from calibscale.data.ingest.ingestion import ingest as run
    from calibscale.data.ingest.npy_shards import as_listed, shortened
    from calibscale.formatting.fault_texts import dropped_text

    if len(files) < 2:
        raise click.UsageError("pass at least one FILE, and then the STORE")
    keys = {role: name for role in ROLES if (name := options.pop(role)) is not None}
    with shared.progress("ingesting", "rows") as report:
        done = run(
            as_listed(files[:-1]),
            files[-1],
            keys=keys,
            class_names=shared.split(class_names) or None,
            progress=report,
            **options,
        )
    if shared.prints():
        state = "already complete" if not done.added else f"{done.added:,} rows added"
        click.echo(f"{shown_address(files[-1])}: {done.rows:,} rows ({state})")
        if done.dropped:
            click.echo(dropped_text(done.dropped))
        if len(done.files) > 1:
            click.echo(f"read in this order: {shortened(done.files)}")


@click.command(cls=shared.Command)
@click.argument("store")
@shared.json_option
@storage_option
def info(store: str, storage_options: dict[str, Any] | None) -> None:
    """Print the contents and the provenance of STORE."""
    from calibscale.data.store import LogitStore

    print_facts(LogitStore.open(store, storage_options=storage_options).info())


def print_facts(facts: dict[str, Any]) -> None:
    if shared.prints():
        from calibscale.output.text import info_table

        info_table(facts)
    shared.write_json(facts)


@click.command(cls=shared.Command, short_help="Evaluate a simulated classifier (start here).")
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
