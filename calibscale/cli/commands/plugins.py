"""``calibscale plugins``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.registry import Registry, imported, installed_entries, installed_groups

# Registry of each group of entry points.
REGISTRIES = {
    "calibscale.checks": "calibscale.monitoring.job.known_checks:CHECKS",
    "calibscale.estimators": "calibscale.estimators.known_estimators:ESTIMATORS",
    "calibscale.families": "calibscale.selection.known_families:FAMILIES",
    "calibscale.nulls": "calibscale.statistics.null_distributions:NULLS",
    "calibscale.readers": "calibscale.data.ingest.formats:READERS",
    "calibscale.recalibration": "calibscale.recalibration.method_registry:METHODS",
    "calibscale.targets": "calibscale.predictions.kinds:TARGETS",
    "calibscale.statistics": "calibscale.monitoring.ledger.stored_statistics:STATISTICS",
}


@command
@shared.json_option
def plugins() -> None:
    """List the estimators, readers and other parts that installed packages add to calibscale.

    The state of each says whether it works, or why it does not: it cannot be imported, its name
    belongs to calibscale or to several packages, or it was written for another version.  The exit
    code is 0 in all cases.
    """
    listed = [entry for group in installed_groups() for entry in _described(group)]
    if outputs.prints():
        _print(listed)
    outputs.write_json({"plugins": listed})


def _described(group: str) -> list[dict[str, Any]]:
    """Entries of a group as JSON objects."""
    if group in REGISTRIES:
        registry: Registry[Any] = imported(REGISTRIES[group])
        states = {entry: registry.state(entry) for entry in registry.installed}
    else:
        unknown = f"has no effect: the groups are {', '.join(REGISTRIES)}"
        states = dict.fromkeys(installed_entries(group), unknown)
    return [
        {
            "group": group,
            "name": entry.name,
            "package": entry.package,
            "version": entry.version,
            "target": entry.path,
            "state": state,
        }
        for entry, state in states.items()
    ]


def _print(listed: list[dict[str, Any]]) -> None:
    """Print a table of entries, or a sentence if there are none."""
    if not listed:
        click.echo("No installed package adds anything to calibscale.")
        return
    from calibscale.output.text import escape, grid, show, terminal

    table = grid("group", "name", "package", "version", "state")
    for entry in listed:
        texts = (entry[key] for key in ("group", "name", "package", "version", "state"))
        table.add_row(*map(escape, texts))
    show(terminal(), table)
