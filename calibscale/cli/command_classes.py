"""Classes of commands and of groups of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from calibscale.cli.command_outputs import check_outputs, report_compilation

_OUTPUTS = ("output", "figure", "json_path")  # options of files, where a figure is a picture
_SHARED = ("json_path", "quiet")  # options that `finish` reads, not the function of a command


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
        try:
            return ctx.invoke(self.callback, **parameters)  # type: ignore[arg-type]
        finally:
            report_compilation()

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


def command(function: Callable) -> click.Command:
    """Decorator of a function as a `Command` with the help of its docstring."""
    return click.command(cls=Command)(function)


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
