"""``calibscale report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from calibscale.cli.options import Command, check_output, check_outputs
from calibscale.errors import OptionError

_LEDGER, _RESULTS = "index.json", "results"  # of the folder that a job's nights keep


@click.command(cls=Command, short_help="One HTML file about results, for people.")
@click.argument("paths", nargs=-1, required=True, metavar="RESULT.json... | LEDGER")
@click.option(
    "--output", "-o", required=True, metavar="PATH", help="The HTML file; - for standard output."
)
@click.option("--title", metavar="TEXT", help="Of the page.  [default: that of the result]")
@click.option(
    "--model", "models", multiple=True, metavar="NAME",
    help="Of a LEDGER, this model alone (repeatable).  [default: every model]",
)  # fmt: skip
@click.option(
    "--date", "day", metavar="DAY", help="Of a LEDGER, this night.  [default: the newest one]"
)
def report(
    paths: tuple[str, ...], output: str, title: str | None, models: tuple[str, ...], day: str | None
) -> None:
    """One HTML file about results: for people, on any screen, with nothing to load.

    A RESULT is the JSON of a night or of another command (evaluate, reliability, test, select,
    bias, rank, audit, power).  A LEDGER is the folder of a nightly job: the page has the newest
    night of each model.
    """
    check_output(output, "--output")
    ledgers = [path for path in paths if Path(path).is_dir()]
    if (models or day) and not ledgers:
        raise click.UsageError("--model and --date choose among the nights of a LEDGER")
    files: list[Path] = []
    for path in paths:
        files += _nights(Path(path), models, day) if path in ledgers else [Path(path)]
    indices = [Path(ledger) / _LEDGER for ledger in ledgers]
    check_outputs({"--output": output}, [*files, *indices])
    results = [_read(path) for path in files]
    from calibscale.report import report as made
    from calibscale.report import save_report

    if output == "-":
        click.echo(made(results, title), nl=False)
        return
    save_report(results, output, title)


def _nights(ledger: Path, models: tuple[str, ...], day: str | None) -> list[Path]:
    """The night asked for, or the newest one, of each model."""
    if not (ledger / _LEDGER).is_file():
        raise OptionError(f"{ledger}: neither a result nor a ledger: it has no {_LEDGER}")
    folders = sorted(path for path in (ledger / _RESULTS).glob("*") if path.is_dir())
    found = {}
    for folder in folders:
        nights = {path.stem: path for path in sorted(folder.glob("*.json"))}
        if nights:
            found[unquote(folder.name)] = nights
    unknown = [name for name in models if name not in found]
    if unknown:
        known = ", ".join(found) or "none"
        raise OptionError(f"{ledger}: there is no night of model {unknown[0]!r}; models: {known}")
    asked = {name: found[name] for name in (models or found)}
    chosen = [nights[day or max(nights)] for nights in asked.values() if day in (None, *nights)]
    if not chosen:
        what = "night" if day is None else f"night of {day}"
        raise OptionError(f"{ledger}: there is no {what} in its {_RESULTS}")
    return chosen


def _read(path: Path) -> dict[str, Any]:
    """The JSON of a file; what it must be is up to the report."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise OptionError(f"{path}: there is no such file") from None
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path}: not JSON: {error}") from error
    from calibscale.report.reading import read

    read(found, str(path))  # so that an error names the file
    return found
