"""``calibscale estimators``."""

from __future__ import annotations

import inspect

import click

from calibscale.cli.command_classes import command
from calibscale.cli.estimator_options import ESTIMATOR
from calibscale.estimators.known_estimators import ESTIMATORS, named
from calibscale.estimators.settings import settings_of
from calibscale.formatting.naming import name_of


@command
@click.argument("name", required=False, shell_complete=ESTIMATOR["shell_complete"])
def estimators(name: str | None) -> None:
    """List all estimators, or print the description and settings of the estimator NAME."""
    if name is None:
        from calibscale.output.text import grid, show, terminal

        table = grid("", "", show_header=False)
        for entry in ESTIMATORS.entries:
            table.add_row(entry.name, entry.description)
        show(terminal(), table)
        return
    name, _ = named(name_of(name))
    settings = settings_of(name)
    click.echo(inspect.getdoc(ESTIMATORS[name]))
    listed = ", ".join(f"{key}={default!r}" for key, (_, default) in settings.items())
    click.echo(f"\n{name}({listed})")
