"""Options that several commands share, parsers of their texts, and checks of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from calibscale.errors import OptionError

_FILE = "calibscale.scheduler_file"


class _Range(click.FloatRange):
    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        result = super().convert(value, param, ctx)
        if math.isnan(result):  # NaN passes every comparison with a bound
            self.fail("NaN is not a number", param, ctx)
        return result


SHARE = _Range(0, 1, min_open=True, max_open=True)

categorical_option = click.option(
    "--categorical",
    multiple=True,
    metavar="NAME",
    help="Name of a covariate that is compared by equality (repeatable).",
)
json_option = click.option(
    "--json", "json_path", metavar="PATH", help="Path of the JSON output; - for standard output."
)
quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="Print neither progress nor tables."
)
seed_option = click.option("--seed", default=0, help="Seed of all random draws.")
# Options of commands that write a store.
STORED_TYPES = click.Choice(["float16", "float32", "float64"])
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing STORE.")
quiet_summary_option = click.option(
    "--quiet", "-q", is_flag=True, help="Print neither progress nor a summary."
)


# ways to cut a column, in the help of --group-by
GROUPINGS = (
    "COLUMN:5 for 5 ranges of about equally many rows; COLUMN:[18,30,65] for ranges with these "
    "edges; COLUMN:month for the year, quarter, month, week, day, hour or weekday of dates."
)
cluster_option = click.option(
    "--cluster",
    metavar="COLUMN",
    help="Name of a covariate whose equal values are one cluster of dependent rows, such as a "
    "patient.",
)
binary_option = click.option(
    "--binary",
    is_flag=True,
    help="Declare that predictions are one column, P(y = 1) or its log-odds.  [default: inferred "
    "from the number of columns]",
)
class_names_option = click.option(
    "--class-names",
    metavar="A,B,...",
    help="Names of the classes in the order of their columns, comma-separated; labels may be these "
    "names.  [default: endings of the column names, unless they are numbers]",
)
# meaning of labels and probabilities
MEANING = ("positive", "ignore_index", "percent")
meaning_options = (
    click.option(
        "--positive",
        metavar="LABEL",
        help="Label of the event of two classes: 1 where labels are -1 and 1, 2 where they are 1 "
        "and 2, or a text such as default.",
    ),
    click.option(
        "--ignore-index",
        metavar="LABEL",
        help="Label that means not yet known, such as 255 or -100; -1 and empty cells mean it "
        "by default.",
    ),
    click.option(
        "--percent",
        is_flag=True,
        help="Declare that probabilities are percentages: 0 to 100, or texts such as 90%.",
    ),
)


def confidence_option(subject: str) -> Callable:
    """Option --confidence, described as the level of `subject`."""
    return click.option(
        "--confidence",
        "confidence_level",
        type=SHARE,
        default=0.95,
        help=f"Confidence level of {subject}.",
    )


negligible_option = click.option(
    "--negligible",
    type=click.FloatRange(0.0, 1.0),
    default=0.01,
    metavar="SIZE",
    help="Size in units of a probability, below which the verdict calls an error real but small.",
)


def replicates_option(default: int, description: str, least: int = 1) -> Callable:
    """Option --replicates, described as the number of draws and `description`."""
    return click.option(
        "--replicates",
        "-b",
        "n_replicates",
        type=click.IntRange(least),
        default=default,
        help=f"Number of draws {description}.",
    )


def _day(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Day of --date.  The default is yesterday: a job runs after midnight for the past day."""
    if value is None:
        return (datetime.now(UTC).date() - timedelta(1)).isoformat()
    from calibscale.monitoring.ledger.index import check_key

    try:
        check_key(value)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error
    return value


def day_option(description: str, required: bool = False) -> Callable:
    """Option --date of a day of a ledger, with this help."""
    return click.option(
        "--date", "day", required=required, callback=_day, metavar="DAY", help=description
    )


def add_options(command: Callable, options: Iterable[Callable], section: str) -> Callable:
    """Add options to a command, in this order, under one section of its help."""
    # Decorators add parameters from the last to the first.
    for option in reversed(tuple(options)):
        command = option(command)
        command.__click_params__[-1].section = section  # type: ignore[attr-defined]
    return command


def _scheduler_file(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Store the absolute path for `_scheduler`, because no scheduler name is an absolute path."""
    context.meta[_FILE] = None if path is None else os.path.abspath(path)


def _scheduler(context: click.Context, parameter: click.Parameter, where: str | None) -> str | None:
    path = context.meta[_FILE]
    if path is not None and where is not None:
        raise click.UsageError("pass only one of --scheduler and --scheduler-file")
    return path or where


_SCHEDULER = (
    click.option(
        "--scheduler",
        metavar="WHERE",
        callback=_scheduler,
        help="Execution: serial, threads[:N], local:N (N Dask worker processes), the address of a "
        "Dask scheduler, or the path of its scheduler file.  [default: threads]",
    ),
    click.option(
        "--scheduler-file",
        metavar="PATH",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_scheduler_file,
        help="Path of the scheduler file of a running Dask cluster (instead of --scheduler).",
    ),
)
tolerance_option = click.option(
    "--tolerance",
    type=float,
    help="Allowed deviation of the sum of a row's probabilities from 1, and of a probability from "
    "0..1.  [default: 1e-4; 2^-10 for float16]",
)
READING = (
    click.option(
        "--on-invalid",
        type=click.Choice(["raise", "drop"]),
        default="raise",
        help="Treatment of invalid rows: stop with an error, or skip and count them.",
    ),
    tolerance_option,
    *_SCHEDULER,
    click.option(
        "--memory-limit",
        metavar="SIZE",
        help="Maximum memory of the process, such as 2GB.  [default: no limit]",
    ),
)


def scheduler_options(command: Callable) -> Callable:
    """Add the options of the scheduler, without the options of a source."""
    return add_options(command, _SCHEDULER, "Execution")


def pairs(texts: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    """Names and values of NAME=VALUE texts."""
    parts = [text.partition("=")[::2] for text in texts]
    for (name, value), text in zip(parts, texts, strict=True):
        if not name or not value:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return parts


def was_passed(option: str) -> bool:
    """Whether an option, by its name in Python, is on the command line."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def number(text: str, option: str) -> float:
    """Value of a text that is a number."""
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number", param_hint=option) from None


def split(text: str | None) -> tuple[str, ...]:
    """Names in a comma-separated text."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def listed_names(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of a repeatable option, where one value may be several names separated by commas.

    Commas in brackets separate settings, as in ``ckce(ridge=0.03, features=200)``.
    """
    names = [name for text in texts for name in _at_outer_commas(text)]
    if not all(names):
        raise click.BadParameter(f"{', '.join(map(repr, texts))} has an empty name")
    return tuple(names)


def _at_outer_commas(text: str) -> list[str]:
    """Parts of a text between the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        # Brackets nest: a setting may be a list.
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def columns(text: str | None) -> tuple[str, ...]:
    """Names in --covariates, at least one if the option is passed."""
    names = split(text)
    if text is not None and not any(names):
        raise click.BadParameter(f"{text!r} names no column", param_hint="--covariates")
    return names


def check_level(alpha: float | None, n_replicates: int, observed: int = 1) -> None:
    """Reject an alpha below 1 / (n_replicates + observed), the smallest possible p-value."""
    if alpha is None or 1 / (n_replicates + observed) <= alpha:
        return
    raise click.UsageError(
        f"--alpha {alpha:g} cannot be reached with --replicates {n_replicates}: it needs at least "
        f"{math.ceil(1 / alpha - 1e-9) - observed}"
    )


axes_option = click.option(
    "--axes",
    type=click.Choice(["linear", "logit", "auto"]),
    default="linear",
    show_default=True,
    help="Axes of reliability diagrams.  logit stretches predictions near 0 and 1, as of rare "
    "events; auto is logit if more than half of the rows have predictions below 5 % or above 95 %.",
)


def check_axes(picture: str | None, option: str) -> None:
    """Raise a usage error if --axes was passed without a picture."""
    if picture is None and was_passed("axes"):
        raise click.UsageError(f"--axes needs a picture: pass {option}")
