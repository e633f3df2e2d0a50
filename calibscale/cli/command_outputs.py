"""Outputs of commands: tables, pictures, JSON files and progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from calibscale.atomic_files import refuse_overwriting
from calibscale.atomic_files import write_json as write_json_file
from calibscale.cli.options import was_passed
from calibscale.formatting.escapes import printable
from calibscale.formatting.number_texts import plural
from calibscale.formatting.progress import progress as shown_progress

_LONG_COMPILATION = 1.0  # seconds


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


def report_compilation() -> None:
    """Explain on a terminal why a first command took longer.

    Commands without the option --quiet show no progress, and do not need it.
    """
    module = sys.modules.get("calibscale.compiled.kernel_cache")
    shows_progress = _value("quiet") is False and sys.stderr is not None and sys.stderr.isatty()
    if module is None or not shows_progress:
        return
    count, seconds = module.KernelCache.newly_compiled()
    if seconds >= _LONG_COMPILATION:
        click.echo(
            f"compiled {plural(count, 'kernel')} in {seconds:.1f} s; later commands load them",
            err=True,
        )


def print_facts(facts: dict[str, Any]) -> None:
    """Print facts as a table, and write them as JSON, as far as the options of the command say."""
    if prints():
        from calibscale.output.text import info_table

        info_table(facts)
    write_json(facts)
