"""``calibscale nightly``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calibscale.addresses import without_secrets
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.formatting.escapes import printable
from calibscale.formatting.number_texts import plural, seconds

if TYPE_CHECKING:
    from calibscale.results.night_results import NightPlan

BREACHED, INCOMPLETE = 3, 5


@command
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@shared.day_option(
    "Day to evaluate, such as 2026-11-20, or a part of a day, such as 2026-11-20T06.  "
    "[default: yesterday, UTC]"
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

    Exit code 3 means that a threshold or a check is breached or an alarm was raised.  Exit code 5
    means that nothing is breached, but days of the windows are missing (no predictions), broken
    (predictions that cannot be read) or provisional (labels not complete); the outputs are written
    and name them.  `off_days` and `provisional` of JOB say which of these are expected.
    """
    from dataclasses import replace

    from calibscale.monitoring.dry_runs import dry_run as plan
    from calibscale.monitoring.job.job_reader import read_job
    from calibscale.monitoring.night import BrokenDayError
    from calibscale.monitoring.night import night as run

    settings = read_job(job)
    if scheduler is not None:
        # The job is frozen.  Only its scheduler changes, on which no result depends.
        object.__setattr__(settings, "run", replace(settings.run, scheduler=scheduler))
    if dry_run:
        planned = plan(settings, day)
        if outputs.prints():
            _print_plan(planned)
        outputs.write_json(planned.to_dict())
        return
    failure = None
    with outputs.progress("reading") as report:
        try:
            result = run(settings, day, force=force, progress=report)
        # A broken day is reported after the outputs, which have the state of the earlier days.
        except BrokenDayError as error:
            result, failure = error.night, error
    if outputs.prints():
        from calibscale.output.text import print_result, terminal

        print_result(result)
        if not result.fresh:
            terminal().print("nothing has changed, nothing was done")
    # A stored result has its outputs from an earlier run.
    for template in settings.outputs.templates.values() if result.fresh else ():
        outputs.wrote(settings.place(template, day))
    outputs.write_json(result.to_dict())
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
    if plan.recalibration is not None:
        table.add_row("recalibration", escape(plan.recalibration))
    for kind, place in plan.outputs.items():
        table.add_row(f"writes {kind}", escape(place))
    for warning in plan.warnings:
        table.add_row("warning", escape(warning))
    show(terminal(), table)
