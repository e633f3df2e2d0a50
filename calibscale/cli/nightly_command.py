"""``calibscale nightly`` and ``calibscale ledger``."""

from __future__ import annotations

import sys

import click

from calibscale.cli.options import (
    Command,
    Commands,
    check_output,
    json_option,
    quiet_option,
    scheduler_options,
    write_json,
    wrote,
)
from calibscale.output.progress import progress

BREACHED = 3


def _day(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    from calibscale.errors import OptionError
    from calibscale.monitoring.ledger.index import check_key

    if value is None:
        from datetime import UTC, datetime, timedelta

        return (datetime.now(UTC).date() - timedelta(1)).isoformat()
    try:
        check_key(value)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.command(cls=Command, short_help="Evaluate a day of predictions as configured in JOB.")
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--date", "day", callback=_day, metavar="DAY",
    help="Day to evaluate, such as 2026-11-20, or a part of a day, such as 2026-11-20T06.  "
    "[default: yesterday, UTC]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be done without doing it.")
@click.option("--force", is_flag=True, help="Recompute even if nothing has changed.")
@scheduler_options
@json_option
@quiet_option
def nightly(
    job: str, day: str, dry_run: bool, force: bool, scheduler: str | None, json_path: str | None,
    quiet: bool,
) -> None:  # fmt: skip
    """Add a day of predictions to a ledger, evaluate windows of days, and write the outputs of JOB.

    JOB is a TOML file; `examples/nightly/job.toml` explains all of its keys.  A finished day that
    has not changed is skipped; a day whose labels arrived late is read again.

    --scheduler overrides the scheduler of the job.  Exit code 3 means that a threshold is breached
    or an alarm was raised.
    """
    check_output(json_path)
    from dataclasses import replace

    from calibscale.monitoring.job.job_reader import read_job
    from calibscale.monitoring.night import dry_run as plan
    from calibscale.monitoring.night import night as run

    settings = read_job(job)
    if scheduler is not None:
        file = settings.file
        settings = replace(settings, run=replace(settings.run, scheduler=scheduler))
        object.__setattr__(settings, "file", file)
    if dry_run:
        planned = plan(settings, day)
        if json_path != "-" and not quiet:
            from calibscale.monitoring.outputs import plan_tables

            plan_tables(planned)
        write_json(json_path, planned.to_dict())
        return
    with progress("reading", "blocks", quiet) as report:
        result = run(settings, day, force=force, progress=report)
    if json_path != "-" and not quiet:
        from calibscale.monitoring.outputs import night_tables

        night_tables(result)
    for template in settings.to_dict()["outputs"].values() if result.fresh else ():
        if template is not None:
            wrote(settings.place(template, day))
    write_json(json_path, result.to_dict())
    if result.breached:
        raise click.exceptions.Exit(BREACHED)


@click.group(cls=Commands, short_help="Check, list or edit the ledger of a nightly job.")
def ledger() -> None:
    """Check, list or edit the ledger, the folder in which `calibscale nightly` stores its days."""


@ledger.command()
@click.argument("ledger")
def check(ledger: str) -> None:
    """Verify every record of LEDGER; exit with code 1 if any is damaged."""
    from calibscale.formatting import plural
    from calibscale.monitoring.ledger.days import Ledger

    opened = Ledger.open(ledger)
    damaged = opened.check()
    for message in damaged:
        click.echo(message, err=True)
    days = len({(e.day, e.model) for e in opened.entries})
    records = plural(len(opened.entries), "record")
    click.echo(f"{ledger}: {plural(days, 'day')}, {records}, {len(damaged)} damaged")
    if damaged:
        raise click.exceptions.Exit(1)


@ledger.command("list")
@click.argument("ledger")
@json_option
def list_days(ledger: str, json_path: str | None) -> None:
    """List the days of LEDGER with their numbers of rows."""
    check_output(json_path)
    from calibscale.monitoring.ledger.days import Ledger
    from calibscale.results.night_results import LedgerDay, LedgerDays

    days = LedgerDays(
        tuple(
            LedgerDay(
                e.day, e.model, e.n, e.info.get("n_unlabelled", 0),
                sum(e.info.get("dropped", {}).values()),
            )
            for e in Ledger.open(ledger).select()
        )
    ).to_dict()  # fmt: skip
    if json_path != "-":
        from calibscale.output.text import days_table

        days_table(days["days"])
    write_json(json_path, days)


@ledger.command()
@click.argument("ledger")
@click.option(
    "--date", "day", required=True, callback=_day, metavar="DAY",
    help="Day to remove, such as 2026-11-20.",
)  # fmt: skip
@click.option("--model", default="default", show_default=True, help="Name of the model.")
@click.option(
    "--yes", "-y", is_flag=True, help="Skip the confirmation; required without a terminal."
)
def forget(ledger: str, day: str, model: str, yes: bool) -> None:
    """Remove a day from LEDGER permanently, after confirmation on the terminal."""
    from calibscale.errors import OptionError
    from calibscale.monitoring.ledger.days import Ledger

    opened = Ledger.open(ledger)
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
        models = [e.model for e in opened.select(day, day) if e.day == day]
        if model not in models:
            others = f"; models of that day: {', '.join(models)}" if models else ""
            raise OptionError(f"{ledger} has no {day} of {model}{others}")
        opened.remove(day, model)
        for suffix in (".json", ".outputs"):
            opened.result_path(model, day).with_suffix(suffix).unlink(missing_ok=True)
    click.echo(f"{ledger}: removed {day} of {model}")
