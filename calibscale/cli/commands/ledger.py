"""``calibscale ledger`` and its commands."""

from __future__ import annotations

import sys

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import Commands
from calibscale.errors import OptionError
from calibscale.formatting.number_texts import plural


@click.group(cls=Commands)
def ledger() -> None:
    """Check, repair, list or edit the ledger, the folder of the days of `calibscale nightly`."""


@ledger.command()
@click.argument("ledger")
def check(ledger: str) -> None:
    """Verify every record and file of LEDGER; exit with code 1 if any is damaged.

    The files are those of alarms, of broken days and of recalibrations.
    """
    from calibscale.monitoring.ledger.day_ledger import Ledger
    from calibscale.monitoring.ledger.ledger_files import damaged_files

    opened = Ledger.open(ledger)
    damaged = opened.check() + damaged_files(opened)
    for message in damaged:
        click.echo(message, err=True)
    days = len({(e.day, e.model) for e in opened.entries})
    records = plural(len(opened.entries), "record")
    click.echo(f"{ledger}: {plural(days, 'day')}, {records}, {len(damaged)} damaged")
    if damaged:
        raise click.exceptions.Exit(1)


@ledger.command()
@click.argument("ledger")
def repair(ledger: str) -> None:
    """Keep the days that are left in LEDGER after lines of its index were lost.

    Restore index.log from a backup where there is one: days of lost lines must be run again.
    """
    from calibscale.monitoring.ledger.day_ledger import Ledger

    for message in Ledger.repair(ledger):
        click.echo(message, err=True)
    days = sorted({(e.day, e.model) for e in Ledger.open(ledger).entries})
    names = f", from {days[0][0]} to {days[-1][0]}" if days else ""
    click.echo(f"{ledger}: {plural(len(days), 'day')} left{names}; run the missing days again")


@ledger.command("list")
@click.argument("ledger")
@shared.json_option
def list_days(ledger: str) -> None:
    """List the days of LEDGER with their numbers of rows.

    Days whose lines of the index are damaged cannot be listed, and are named on standard error.
    """
    from calibscale.monitoring.ledger.day_ledger import Ledger
    from calibscale.results.night_results import LedgerDay, LedgerDays

    opened = Ledger.open(ledger)
    for message in opened.unreadable:
        click.echo(message, err=True)
    days = LedgerDays(
        tuple(
            LedgerDay(
                e.day,
                e.model,
                e.n,
                e.n_unlabelled,
                sum(e.info.get("dropped", {}).values()),
            )
            for e in opened.select()
        )
    )
    if outputs.prints():
        from calibscale.output.text import days_table

        days_table(days.days)
    outputs.write_json(days.to_dict())


@ledger.command()
@click.argument("ledger")
@shared.day_option("Day to remove, such as 2026-11-20.", required=True)
@click.option("--model", default="default", help="Name of the model.")
@click.option(
    "--yes", "-y", is_flag=True, help="Skip the confirmation; required without a terminal."
)
def forget(ledger: str, day: str, model: str, yes: bool) -> None:
    """Remove a day from LEDGER permanently, after confirmation on the terminal."""
    from calibscale.monitoring.ledger.broken_days import BrokenDays
    from calibscale.monitoring.ledger.day_ledger import Ledger

    opened = Ledger.open(ledger)
    # A day that could not be read has no record to lose, and needs no confirmation.
    if opened.day(day, model) and not yes:
        n = opened.day(day, model)[0].n
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"this removes {day} of {model} ({n:,} rows) from {ledger} permanently; without a "
                "terminal for the confirmation, pass --yes"
            )
        if not click.confirm(f"Remove {day} of {model} ({n:,} rows) from {ledger} permanently?"):
            click.echo(f"{ledger}: nothing was removed")
            raise click.exceptions.Exit(1)
    with opened.writing():
        # Under the lock, the day is looked up again: a night may have changed the ledger meanwhile.
        models = [e.model for e in opened.select(day, day) if e.day == day]
        broken = BrokenDays(opened.path)
        if model not in models and day not in broken.of(model):
            alternatives = f"; models of that day: {', '.join(models)}" if models else ""
            raise OptionError(f"{ledger} has no {day} of {model}{alternatives}")
        opened.remove(day, model)
        broken.remove(model, day)
        # The stored result of this night rests on the day that is removed.
        for suffix in (".json", ".outputs"):
            opened.result_path(model, day).with_suffix(suffix).unlink(missing_ok=True)
    click.echo(f"{ledger}: removed {day} of {model}")
