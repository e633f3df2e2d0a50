"""``calibscale info``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import storage_option


@command
@click.argument("store")
@shared.json_option
@storage_option
def info(store: str, storage_options: dict[str, Any] | None) -> None:
    """Print the contents and the provenance of STORE."""
    from calibscale.data.store import LogitStore

    outputs.print_facts(LogitStore.open(store, storage_options=storage_options).info())
