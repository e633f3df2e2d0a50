"""Options and functions that commands share: sources, execution, checks and output."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from calibscale.atomic_files import refuse_overwriting
from calibscale.atomic_files import write_json as write_json_file
from calibscale.formatting.escapes import printable
from calibscale.formatting.progress import progress as shown_progress

_FILE = "calibscale.scheduler_file"
_OUTPUTS = ("output", "figure", "json_path")  # options of files, where a figure is a picture
_SHARED = ("json_path", "quiet")  # options that `finish` reads, not the function of a command


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


class Command(click.Command):
    """A command with help that has one section for each set of shared options.

    The files of `_OUTPUTS` are checked before the work.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for p in self.params:  # shells complete paths
            if p.type is click.STRING and (isinstance(p, click.Argument) or p.metavar == "PATH"):
                p.type = click.Path(readable=False, allow_dash=True)

    def invoke(self, ctx: click.Context) -> Any:
        outputs = {p.opts[0]: ctx.params[p.name] for p in self.params if p.name in _OUTPUTS}
        ctx.invoke(check_outputs, outputs, picture=ctx.params.get("figure"))
        # Shared options are read by `finish` from the context, so that functions need no parameters
        # for them.
        parameters = {name: value for name, value in ctx.params.items() if name not in _SHARED}
        return ctx.invoke(self.callback, **parameters)  # type: ignore[arg-type]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
            sections |= getattr(parameter, "help_sections", dict)()
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def command(short_help: str) -> Callable:
    """Decorator of a function as a `Command` with this line in the list of commands."""
    return click.command(cls=Command, short_help=short_help)


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


def add_options(command: Callable, options: Iterable[Callable], section: str) -> Callable:
    """Add options to a command, in this order, under one section of its help."""
    # Decorators add parameters from the last to the first.
    for option in reversed(tuple(options)):
        command = option(command)
        command.__click_params__[-1].section = section  # type: ignore[attr-defined]
    return command


class Commands(click.Group):
    """A group that rejects repeated options, except those declared repeatable."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, arguments = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            # Click keeps the last of repeated options silently.  A repeated option is more likely a
            # mistake.
            with command.make_context(name, [], ctx, resilient_parsing=True) as inner:
                _, _, parsed = command.make_parser(inner).parse_args(args=list(arguments))
                for parameter in dict.fromkeys(parsed):
                    once = isinstance(parameter, click.Option) and not parameter.is_flag
                    if once and not parameter.multiple and parsed.count(parameter) > 1:
                        raise click.UsageError(f"{parameter.opts[0]} is given twice", inner)
        return name, command, arguments


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


def _value(option: str) -> Any:
    """Value of an option of the running command, or None outside of commands."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.params.get(option)


def prints() -> bool:
    """Whether the command prints tables: without --quiet, and without JSON on standard output."""
    return not _value("quiet") and _value("json_path") != "-"


def progress(what: str, unit: str = "blocks") -> AbstractContextManager[Callable[..., None]]:
    """Progress of the command, unless it has --quiet."""
    return shown_progress(what, unit, bool(_value("quiet")))


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


def check_outputs(
    outputs: dict[str, str | None], inputs: Iterable[str | Path] = (), picture: str | None = None
) -> None:
    """Fail before the work if an output cannot be written, or a picture has no known format.

    Outputs must differ from each other and from the inputs: `inputs`, and all other paths on the
    command line.
    """
    # An output must not replace a file that the command still reads.
    read = [*inputs, *_named_paths(outputs)]
    options: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if path != "-":
            if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
                if not os.access(path, os.W_OK):  # a pipe, a device
                    raise click.BadParameter(f"{path} cannot be written", param_hint=option)
                continue
            _check_place(path, option)
            refuse_overwriting(path, read)
        # Two paths of one file are the same output, also by links.
        first = options.setdefault(path if path == "-" else os.path.realpath(path), option)
        if first != option:
            destination = "standard output" if path == "-" else path
            raise click.UsageError(f"{first} and {option} cannot both be {destination}")
    if picture is not None:
        from calibscale.output.pictures import check_format

        check_format(picture)


def _check_place(path: str, option: str) -> None:
    if Path(path).is_dir():
        raise click.BadParameter(f"{path} is a folder", param_hint=option)
    if os.path.islink(os.path.realpath(path)):
        raise click.BadParameter(f"{path} is a loop of links", param_hint=option)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        message = f"{path} cannot be written: there is no folder {folder}"
        raise click.BadParameter(message, param_hint=option)
    if not os.access(folder, os.W_OK):
        raise click.BadParameter(f"the folder {folder} cannot be written", param_hint=option)


def _named_paths(outputs: Iterable[str]) -> list[str]:
    """Existing files and folders on the command line, except values of the options `outputs`."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    named: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not (isinstance(parameter.type, click.Choice) or {*parameter.opts} & {*outputs}):
            several = value if isinstance(value, tuple) else (value,)
            named += [text for text in several if isinstance(text, str)]
    return [text for text in named if os.path.exists(text)]


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


def finish(
    result: Any,
    picture: str | None = None,
    max_groups: int | None = None,
    axes: str = "linear",
) -> None:
    """Print a result, draw it, and write its JSON, as far as the options of the command say."""
    if prints():
        from calibscale.output.text import print_result

        print_result(result, max_groups)
    if picture is not None:
        from calibscale.output.pictures import save_picture

        save_picture(result, picture, axes)
        wrote(picture)
    if was_passed("json_path"):
        write_json(result.to_dict())


def write_json(value: dict[str, Any]) -> None:
    """Write a result to the path of --json, if given.  ``-`` is standard output."""
    path = _value("json_path")
    if path is None:
        return
    if path == "-":
        click.echo(json.dumps(value, allow_nan=False))
        return
    write_json_file(path, value)
    wrote(path)


def wrote(path: str | Path) -> None:
    """Report on standard error that a file was written, unless the command has --quiet."""
    if not _value("quiet") and os.path.isfile(path):  # not a pipe
        click.echo(f"wrote {printable(str(path))}", err=True)
