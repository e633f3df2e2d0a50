"""``calibscale ingest``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.addresses import shown_address
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import ROLES, forecast_option, role_options, storage_option


@command
@click.argument("files", nargs=-1, required=True, metavar="FILE... STORE")
@role_options
@forecast_option
@shared.class_names_option
@shared.meaning_options[0]
@shared.meaning_options[1]
@shared.meaning_options[2]
@shared.binary_option
@click.option(
    "--dtype",
    type=shared.STORED_TYPES,
    help="Type of the stored predictions.  [default: type in the files]",
)
@click.option(
    "--on-invalid",
    type=click.Choice(["raise", "drop", "keep"]),
    default="raise",
    help="Treatment of invalid rows: stop with an error, skip and count them, or store them for "
    "each evaluation to decide.",
)
@shared.tolerance_option
@shared.overwrite_option
@storage_option
@shared.quiet_summary_option
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
    with outputs.progress("ingesting", "rows") as report:
        done = run(
            as_listed(files[:-1]),
            files[-1],
            keys=keys,
            class_names=shared.split(class_names) or None,
            progress=report,
            **options,
        )
    if outputs.prints():
        state = "already complete" if not done.added else f"{done.added:,} rows added"
        click.echo(f"{shown_address(files[-1])}: {done.rows:,} rows ({state})")
        if done.dropped:
            click.echo(dropped_text(done.dropped))
        if len(done.files) > 1:
            click.echo(f"read in this order: {shortened(done.files)}")
