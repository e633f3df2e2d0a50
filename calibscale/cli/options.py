"""What commands share: where predictions come from, how a pass is made, how results are written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibscale.files import refuse_overwriting, write_whole

if TYPE_CHECKING:
    from calibscale.source import ArraySource

_FILE = "calibscale.scheduler_file"


class _Range(click.FloatRange):
    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = super().convert(value, param, ctx)
        if math.isnan(found):  # which is on no side of a bound
            self.fail("NaN is no number", param, ctx)
        return found


SHARE = _Range(0, 1, min_open=True, max_open=True)


class Command(click.Command):
    """A command whose help has a section for each of the sets of options that commands share."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def add_options(command: Callable, options: Iterable[Callable], section: str) -> Callable:
    """The options, in their order, in a section of the help."""
    for option in reversed(tuple(options)):
        command = option(command)
        command.__click_params__[-1].section = section  # type: ignore[attr-defined]
    return command


class Commands(click.Group):
    """Commands whose options are given once, unless they may be repeated."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            with command.make_context(name, [], ctx, resilient_parsing=True) as its:
                _, _, parsed = command.make_parser(its).parse_args(args=list(rest))
                for parameter in dict.fromkeys(parsed):
                    once = isinstance(parameter, click.Option) and not parameter.is_flag
                    if once and not parameter.multiple and parsed.count(parameter) > 1:
                        raise click.UsageError(f"{parameter.opts[0]} is given twice", its)
        return name, command, rest


def _scheduler_file(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Keep the path, which no name of a scheduler may be taken for, for --scheduler."""
    context.meta[_FILE] = None if path is None else os.path.abspath(path)


def _scheduler(context: click.Context, parameter: click.Parameter, where: str | None) -> str | None:
    path = context.meta[_FILE]
    if path is not None and where is not None:
        raise click.UsageError("give one of --scheduler and --scheduler-file")
    return path or where


_SCHEDULER = (
    click.option(
        "--scheduler",
        metavar="WHERE",
        callback=_scheduler,
        help="serial, threads[:N], local:N (worker processes), the ADDRESS of a Dask scheduler, or "
        "the path of a scheduler file.  [default: threads]",
    ),
    click.option(
        "--scheduler-file",
        metavar="PATH",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_scheduler_file,
        help="A Dask scheduler, by the file that it wrote.",
    ),
)
_OPTIONS = (
    click.option(
        "--on-invalid",
        type=click.Choice(["raise", "drop"]),
        default="raise",
        show_default=True,
        help="Stop at a bad row, or leave it out and count it.",
    ),
    click.option(
        "--tolerance",
        default=1e-4,
        show_default=True,
        help="How far from 1 a row of probabilities may sum.",
    ),
    *_SCHEDULER,
    click.option("--memory-limit", metavar="SIZE", help="Bound on peak memory, such as 2GB."),
)
_ARRAYS = (
    click.option(
        "--logits", metavar="PATH", help="A zarr array of logits (inside STORE, if given)."
    ),
    click.option("--probabilities", metavar="PATH", help="Likewise, of probabilities."),
    click.option("--labels", metavar="PATH", help="Likewise, of labels."),
    click.option("--covariate-array", metavar="PATH", help="Likewise, of covariates (n, d)."),
    click.option("--covariate-names", metavar="A,B", help="Names of those covariates."),
    click.option(
        "--weights",
        metavar="PATH",
        help="Likewise, of weights: importance weights, not counts of rows; their scale does not "
        "matter.",
    ),
    click.option(
        "--binary", is_flag=True, help="The predictions are one column, P(y = 1) or its log-odds."
    ),
)


_LOCAL = (
    click.option(
        "--categorical", multiple=True, metavar="NAME",
        help="A covariate whose values must be equal (repeatable).",
    ),
    click.option(
        "--prediction-bandwidth", type=float,
        help="Bandwidth of kernels of local calibration on predictions.  [default: median "
        "distance]",
    ),
    click.option(
        "--covariate-bandwidth", "covariate_bandwidths", multiple=True, metavar="B|NAME=B",
        help="On covariates, in a column's own units: one for all, or by name (repeatable).  "
        "[default: standard deviation x median standardised distance]",
    ),
)  # fmt: skip
_SCAN = ("on_invalid", "tolerance", "scheduler", "memory_limit")


def local_options(command: Callable) -> Callable:
    """Options of every command that compares rows by their covariates."""
    return add_options(command, _LOCAL, "Local calibration")


def scan_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Those of `source_options` that say how a pass is made, taken out of the options."""
    return {name: options.pop(name) for name in _SCAN}


def scheduler_options(command: Callable) -> Callable:
    """Where a command works, for one that finds its data otherwise."""
    return add_options(command, _SCHEDULER, "Where it runs")


def source_options(command: Callable) -> Callable:
    """Options of every command that reads a store."""
    command = add_options(command, _ARRAYS, "Arrays of other origin")
    return add_options(command, _OPTIONS, "Reading and running")


def open_source(store: str | None, options: dict[str, Any]) -> ArraySource:
    """The store, or the arrays that the options name."""
    from calibscale.store import as_source, open_arrays

    paths = {name: options[name] for name in ("logits", "probabilities", "weights")}
    paths["covariates"] = options["covariate_array"]
    named = {name: path for name, path in paths.items() if path is not None}
    if store is not None and not named and options["labels"] is None:
        for name in ("binary", "covariate_names"):
            if options[name]:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(f"the store says that itself; {option} is for arrays")
        return as_source(store)
    if options["labels"] is None or not ("logits" in named or "probabilities" in named):
        raise click.UsageError("give STORE, or --labels and one of --logits and --probabilities")
    return open_arrays(
        store=store,
        labels=options["labels"],
        covariate_names=split(options["covariate_names"]) or None,
        binary=options["binary"],
        **named,
    )


def pairs(texts: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    """NAME=VALUE texts taken apart."""
    found = [text.partition("=")[::2] for text in texts]
    for (name, value), text in zip(found, texts, strict=True):
        if not name or not value:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return found


def given(option: str) -> bool:
    """Whether an option, by its name in Python, was typed."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def number(text: str, option: str) -> float:
    """The text as a number."""
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number", param_hint=option) from None


def split(text: str | None) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def columns(text: str | None) -> tuple[str, ...]:
    """The names in --covariates, at least one where it is given."""
    found = split(text)
    if text is not None and not any(found):
        raise click.BadParameter(f"{text!r} names no column", param_hint="--covariates")
    return found


def bandwidths(texts: tuple[str, ...]) -> float | dict[str, float] | None:
    """One number, or one by name, of the texts of --covariate-bandwidth."""
    option = "--covariate-bandwidth"
    named = [text.rpartition("=") for text in texts]
    if any(name for name, _, _ in named):
        if not all(name for name, _, _ in named):
            raise click.BadParameter("give one number, or NAME=NUMBER for each", param_hint=option)
        return {name: number(value, option) for name, _, value in named}
    if len(texts) > 1:
        raise click.BadParameter("give one number, or NAME=NUMBER for each", param_hint=option)
    return number(texts[0], option) if texts else None


def check_output(path: str | None, option: str = "--json") -> None:
    """`check_outputs` of one option."""
    check_outputs({option: path})


def check_outputs(outputs: dict[str, str | None], inputs: Iterable[str | Path] = ()) -> None:
    """Fail before the work, not after it, where a result could not be written.

    None may write over another, nor over what is read: what the command line names besides, and
    `inputs`.
    """
    read = [*inputs, *_named_paths(outputs)]
    options: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if path != "-":
            _check_place(path, option)
            if Path(path).exists() and not Path(path).is_file():  # a pipe, a device
                continue
            refuse_overwriting(path, read)
        first = options.setdefault(path if path == "-" else os.path.realpath(path), option)
        if first != option:
            what = "standard output" if path == "-" else path
            raise click.UsageError(f"{first} and {option} cannot both be {what}")


def _check_place(path: str, option: str) -> None:
    if Path(path).is_dir():
        raise click.BadParameter(f"{path} is a folder", param_hint=option)
    if Path(path).exists() and not Path(path).is_file():
        if not os.access(path, os.W_OK):
            raise click.BadParameter(f"{path} cannot be written", param_hint=option)
        return
    if os.path.islink(os.path.realpath(path)):
        raise click.BadParameter(f"{path} is a loop of links", param_hint=option)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        told = f"{path} cannot be written: there is no folder {folder}"
        raise click.BadParameter(told, param_hint=option)
    if not os.access(folder, os.W_OK):
        raise click.BadParameter(f"the folder {folder} cannot be written", param_hint=option)


def _named_paths(outputs: Iterable[str]) -> list[str]:
    """Files and folders that the command line names, but for its outputs (options)."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    named: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not (isinstance(parameter.type, click.Choice) or {*parameter.opts} & {*outputs}):
            several = value if isinstance(value, tuple) else (value,)
            named += [text for text in several if isinstance(text, str)]
    return [text for text in named if _exists(text)]


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a NUL
        return False


def check_level(alpha: float | None, replicates: int, own: int = 1) -> None:
    """Refuse a level below 1 / (replicates + own), the least p-value."""
    if alpha is None or 1 / (replicates + own) <= alpha:
        return
    least = math.ceil(1 / alpha - 1e-9) - own
    raise click.UsageError(
        f"--alpha {alpha:g} cannot be reached with --replicates {replicates}: it takes {least}"
    )


def write_json(path: str | None, value: dict[str, Any]) -> None:
    """Write a result; ``-`` is standard output."""
    if path is None:
        return
    if path == "-":
        click.echo(json.dumps(value, allow_nan=False))
        return
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
