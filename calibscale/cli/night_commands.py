"""``calibscale nightly``, ``calibscale ledger`` and ``calibscale report``."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from calibscale.addresses import without_secrets
from calibscale.cli import options as shared
from calibscale.errors import OptionError
from calibscale.formatting.escapes import printable
from calibscale.formatting.number_texts import plural, seconds

if TYPE_CHECKING:
    from calibscale.results.night_results import NightPlan

BREACHED, INCOMPLETE = 3, 5


def _day(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    from calibscale.monitoring.ledger.index import check_key

    if value is None:
        # A job runs after midnight for the day that has ended.
        return (datetime.now(UTC).date() - timedelta(1)).isoformat()
    try:
        check_key(value)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error
    return value


@shared.command("Evaluate a day of predictions as configured in JOB.")
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--date",
    "day",
    callback=_day,
    metavar="DAY",
    help="Day to evaluate, such as 2026-11-20, or a part of a day, such as 2026-11-20T06.  "
    "[default: yesterday, UTC]",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done without doing it.")
@click.option("--force", is_flag=True, help="Recompute even if nothing has changed.")
@shared.scheduler_options
@shared.json_option
@shared.quiet_option
def nightly(job: str, day: str, dry_run: bool, force: bool, scheduler: str | None) -> None:
    """Add a day of predictions to a ledger, evaluate windows of days, and write the outputs of JOB.

    JOB is a TOML file; `examples/nightly/job.toml` explains all of its keys.  A finished day that
    has not changed is skipped; a day whose labels arrived late is read again.

    --scheduler overrides the scheduler of the job.

    Exit code 3 means that a threshold is breached or an alarm was raised.  Exit code 5 means that
    nothing is breached, but days of the windows are missing (no predictions), broken (predictions
    that cannot be read) or provisional (labels not complete); the outputs are written and name
    them.  `off_days` and `provisional` of JOB say which of these are expected.
    """
    from dataclasses import replace

    from calibscale.monitoring.job.job_reader import read_job
    from calibscale.monitoring.night import BrokenDayError
    from calibscale.monitoring.night import dry_run as plan
    from calibscale.monitoring.night import night as run

    settings = read_job(job)
    if scheduler is not None:
        # The job is frozen.  Only its scheduler changes, on which no result depends.
        object.__setattr__(settings, "run", replace(settings.run, scheduler=scheduler))
    if dry_run:
        planned = plan(settings, day)
        if shared.prints():
            _print_plan(planned)
        shared.write_json(planned.to_dict())
        return
    failure = None
    with shared.progress("reading") as report:
        try:
            result = run(settings, day, force=force, progress=report)
        # A broken day is reported after the outputs, which have the state of the earlier days.
        except BrokenDayError as error:
            result, failure = error.night, error
    if shared.prints():
        from calibscale.output.text import print_result, terminal

        print_result(result)
        if not result.fresh:
            terminal().print("nothing has changed, nothing was done")
    # A stored result has its outputs from an earlier run.
    for template in settings.outputs.templates.values() if result.fresh else ():
        shared.wrote(settings.place(template, day))
    shared.write_json(result.to_dict())
    if failure is not None:
        click.echo(f"error: {printable(without_secrets(str(failure)))}", err=True)
    if result.breached:
        raise click.exceptions.Exit(BREACHED)
    if result.incomplete:
        raise click.exceptions.Exit(INCOMPLETE)


def _print_plan(plan: NightPlan) -> None:
    """Print what a night would do."""
    from calibscale.output.text import escape, grid, show, terminal

    table = grid("", "", show_header=False)
    rows = "unknown before it is ingested" if plan.rows is None else f"{plan.rows:,} rows"
    table.add_row("predictions", f"{escape(plan.source)}, {rows}")
    table.add_row("reads", plan.reads)
    if plan.seconds is not None:
        table.add_row("a pass takes", f"about {seconds(plan.seconds)}")
    days = f"{plural(plan.ledger_days, 'day')} of {plan.model}"
    table.add_row("ledger", f"{escape(plan.ledger)}, {days}")
    windows = ", ".join(f"{name} ({plural(n, 'day')})" for name, n in plan.windows.items())
    table.add_row("windows", windows)
    table.add_row("alarms", escape(plan.alarms))
    for kind, place in plan.outputs.items():
        table.add_row(f"writes {kind}", escape(place))
    for warning in plan.warnings:
        table.add_row("warning", escape(warning))
    show(terminal(), table)


@click.group(cls=shared.Commands, short_help="Check, repair or edit the ledger of a nightly job.")
def ledger() -> None:
    """Check, repair, list or edit the ledger, the folder of the days of `calibscale nightly`."""


@ledger.command()
@click.argument("ledger")
def check(ledger: str) -> None:
    """Verify every record of LEDGER; exit with code 1 if any is damaged."""
    from calibscale.monitoring.ledger.day_ledger import Ledger

    opened = Ledger.open(ledger)
    damaged = opened.check()
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
    """List the days of LEDGER with their numbers of rows."""
    from calibscale.monitoring.ledger.day_ledger import Ledger
    from calibscale.results.night_results import LedgerDay, LedgerDays

    days = LedgerDays(
        tuple(
            LedgerDay(
                e.day,
                e.model,
                e.n,
                e.info.get("n_unlabelled", 0),
                sum(e.info.get("dropped", {}).values()),
            )
            for e in Ledger.open(ledger).select()
        )
    ).to_dict()
    if shared.prints():
        from calibscale.output.text import days_table

        days_table(days["days"])
    shared.write_json(days)


@ledger.command()
@click.argument("ledger")
@click.option(
    "--date",
    "day",
    required=True,
    callback=_day,
    metavar="DAY",
    help="Day to remove, such as 2026-11-20.",
)
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


# ---------------------------------------------------------------- report


_INDEX = "index.log"  # file that every ledger has
_RESULTS = "results"  # folder of a ledger with the results of its nights


@shared.command("Write one HTML page about results.")
@click.argument("paths", nargs=-1, required=True, metavar="RESULT.json... | LEDGER")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="PATH",
    help="Path of the HTML file; - for standard output.",
)
@click.option("--title", metavar="TEXT", help="Title of the page.  [default: title of the result]")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="Name of a model in LEDGER to report (repeatable).  [default: all models]",
)
@click.option(
    "--date",
    "day",
    metavar="DAY",
    help="Day of the night in LEDGER to report, such as 2026-11-20.  [default: newest night]",
)
@shared.axes_option
def report(
    paths: tuple[str, ...],
    output: str,
    title: str | None,
    models: tuple[str, ...],
    day: str | None,
    axes: str,
) -> None:
    """Write one self-contained HTML page about results.

    RESULT is the JSON output of nightly, evaluate, reliability, test, select, bias, rank, audit or
    power.  LEDGER is the ledger folder of a nightly job; the page shows the newest night of each
    model.
    """
    ledgers = [path for path in paths if Path(path).is_dir()]
    if (models or day) and not ledgers:
        raise click.UsageError("--model and --date need a LEDGER, whose nights they select")
    # The results of a ledger stand at the place of the ledger among the arguments.
    files: list[Path] = []
    for path in paths:
        files += _nights(Path(path), models, day) if path in ledgers else [Path(path)]
    shared.check_outputs({"--output": output}, [*files, *(Path(path) / _INDEX for path in ledgers)])
    results = [_read(path) for path in files]
    from calibscale.output.report import report as page
    from calibscale.output.report import save_report

    if output == "-":
        click.echo(page(results, title, axes), nl=False)
        return
    save_report(results, output, title, axes)
    shared.wrote(output)


def _nights(ledger: Path, models: tuple[str, ...], day: str | None) -> list[Path]:
    """Results of the requested night, or of the newest night, of each model."""
    if not (ledger / _INDEX).is_file():
        # A store in place of a result is a frequent mistake.
        if (ledger / "labels" / "zarr.json").is_file():
            raise OptionError(
                f"{ledger}: is a store, not a result; first write a result: "
                f"calibscale evaluate {ledger} --json result.json"
            )
        raise OptionError(f"{ledger}: neither a result nor a ledger: it has no {_INDEX}")
    by_model: dict[str, dict[str, Path]] = {}
    for path in sorted((ledger / _RESULTS).glob("*/*.json")):
        by_model.setdefault(unquote(path.parent.name), {})[path.stem] = path
    unknown = [name for name in models if name not in by_model]
    if unknown:
        names = ", ".join(by_model) or "none"
        raise OptionError(f"{ledger}: there is no night of model {unknown[0]!r}; models: {names}")
    # Names of days sort by date, so that the largest is the newest.
    requested = [by_model[name] for name in (models or by_model)]
    chosen = [nights[day or max(nights)] for nights in requested if day in (None, *nights)]
    if not chosen:
        night = "night" if day is None else f"night of {day}"
        raise OptionError(f"{ledger}: there is no {night} in its {_RESULTS}")
    return chosen


def _read(path: Path) -> dict[str, Any]:
    """Result in a JSON file."""
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise OptionError(f"{path}: there is no such file") from None
    except OSError as error:
        fault = error.strerror or error
        raise OptionError(f"{path}: cannot be read: {fault}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path}: not JSON: {error}") from error
    from calibscale.output.reading import read

    read(result, str(path))  # so that an error names the file
    return result
