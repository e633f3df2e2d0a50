"""``calibscale nightly`` and ``calibscale ledger``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.options import Command, Commands, check_output, scheduler_options, write_json
from calibscale.progress import progress

BREACHED = 3


def _day(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    from calibscale.errors import OptionError
    from calibscale.ledger.days import check_key

    if value is None:
        from datetime import UTC, datetime, timedelta

        return (datetime.now(UTC).date() - timedelta(1)).isoformat()
    try:
        check_key(value)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.command(cls=Command, short_help="Judge a day of predictions, by the TOML file JOB.")
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--date", "day", callback=_day, metavar="DAY",
    help="The day to judge, such as 2026-11-20, or a part of one, 2026-11-20T06.  "
    "[default: yesterday, UTC]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--again", is_flag=True, help="Do all of it once more, even if nothing has changed.")
@scheduler_options
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@click.option("--quiet", "-q", is_flag=True, help="No progress, no tables.")
def nightly(
    job: str, day: str, dry_run: bool, again: bool, scheduler: str | None, json_path: str | None,
    quiet: bool,
) -> None:  # fmt: skip
    """Keep a day of predictions in a ledger, judge windows of days, and write the outputs of JOB.

    JOB is a TOML file; `examples/nightly/job.toml` explains all of its keys.  A day that is
    finished and has not changed is left alone; one whose labels came late is read again.

    --scheduler takes the place of the job's.  Exit code 3 if a threshold is breached or an alarm
    was raised.
    """
    check_output(json_path)
    from dataclasses import replace

    from calibscale.nightly.job import read_job
    from calibscale.nightly.run import dry_run as plan
    from calibscale.nightly.run import night as run

    found = read_job(job)
    if scheduler is not None:
        file = found.file
        found = replace(found, run=replace(found.run, scheduler=scheduler))
        object.__setattr__(found, "file", file)
    if dry_run:
        planned = plan(found, day)
        if json_path != "-" and not quiet:
            from calibscale.nightly.tables import plan_tables

            plan_tables(planned)
        write_json(json_path, planned.to_dict())
        return
    with progress("reading", "blocks", quiet) as report:
        done = run(found, day, again=again, progress=report)
    if json_path != "-" and not quiet:
        from calibscale.nightly.tables import night_tables

        night_tables(done)
    write_json(json_path, done.to_dict())
    if done.breached:
        raise click.exceptions.Exit(BREACHED)


@click.group(cls=Commands)
def ledger() -> None:
    """The folder in which `calibscale nightly` keeps its days."""


@ledger.command()
@click.argument("ledger")
def check(ledger: str) -> None:
    """Read every record of LEDGER; exit code 1 if one is damaged, which is named."""
    from calibscale.ledger.days import Ledger
    from calibscale.report.words import plural

    found = Ledger.open(ledger)
    damaged = found.check()
    for message in damaged:
        click.echo(message, err=True)
    days = len({(e.day, e.model) for e in found.entries})
    held = f"{plural(days, 'day')}, {plural(len(found.entries), 'record')}"
    click.echo(f"{ledger}: {held}, {len(damaged)} damaged")
    if damaged:
        raise click.exceptions.Exit(1)


@ledger.command("list")
@click.argument("ledger")
@click.option(
    "--json", "json_path", metavar="PATH", help="Write it as JSON; - for standard output."
)
def list_days(ledger: str, json_path: str | None) -> None:
    """The days of LEDGER: rows, labels, and what was left out."""
    check_output(json_path)
    from calibscale.ledger.days import Ledger

    days: list[dict[str, Any]] = [
        {
            "day": e.day,
            "model": e.model,
            "n": e.n,
            "n_unlabelled": e.info.get("n_unlabelled", 0),
            "n_dropped": sum(e.info.get("dropped", {}).values()),
        }
        for e in Ledger.open(ledger).select()
    ]
    if json_path != "-":
        from calibscale.tables import days_table

        days_table(days)
    write_json(json_path, {"schema": "calibscale.ledger/1", "days": days})


@ledger.command()
@click.argument("ledger")
@click.option("--date", "day", required=True, callback=_day, metavar="DAY")
@click.option("--model", default="default", show_default=True)
def forget(ledger: str, day: str, model: str) -> None:
    """Take a day out of LEDGER."""
    from calibscale.errors import OptionError
    from calibscale.ledger.days import Ledger

    found = Ledger.open(ledger)
    with found.writing():
        known = [e.model for e in found.select(day, day) if e.day == day]
        if model not in known:
            others = f"; --model may be {', '.join(known)}" if known else ""
            raise OptionError(f"{ledger} has no {day} of {model}{others}")
        found.remove(day, model)
        for suffix in (".json", ".outputs"):
            found.result_path(model, day).with_suffix(suffix).unlink(missing_ok=True)
    click.echo(f"{ledger}: forgot {day} of {model}")


@ledger.command()
@click.argument("ledger")
def upgrade(ledger: str) -> None:
    """Bring a LEDGER that an older calibscale wrote to the format of today."""
    from calibscale.ledger.days import FORMAT
    from calibscale.ledger.upgrade import upgrade as run

    known = run(ledger)
    state = "was of this format already" if known == FORMAT else f"from format {known}"
    click.echo(f"{ledger}: format {FORMAT} ({state})")
