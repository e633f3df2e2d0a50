"""``calibscale report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.errors import OptionError

_INDEX = "index.log"  # file that every ledger has
_RESULTS = "results"  # folder of a ledger with the results of its nights


@command
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

    RESULT is the JSON output of audit, bias, check, evaluate, nightly, power, rank, recalibrate,
    reliability, select or test.  LEDGER is the ledger folder of a nightly job; the page shows the
    newest night of each model.
    """
    ledgers = [path for path in paths if Path(path).is_dir()]
    if (models or day) and not ledgers:
        raise click.UsageError("--model and --date need a LEDGER, whose nights they select")
    # The results of a ledger stand at the place of the ledger among the arguments.
    files: list[Path] = []
    for path in paths:
        files += _nights(Path(path), models, day) if path in ledgers else [Path(path)]
    outputs.check_outputs(
        {"--output": output}, [*files, *(Path(path) / _INDEX for path in ledgers)]
    )
    results = [_read(path) for path in files]
    from calibscale.output.report import report as page
    from calibscale.output.report import save_report

    if output == "-":
        click.echo(page(results, title, axes), nl=False)
        return
    save_report(results, output, title, axes)
    outputs.wrote(output)


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
