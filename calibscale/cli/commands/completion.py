"""``calibscale completion``."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

from calibscale.cli.command_classes import command


@command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, paths and estimators.

    \b
    bash: calibscale completion bash >> ~/.bashrc
    zsh:  calibscale completion zsh >> ~/.zshrc
    fish: calibscale completion fish > ~/.config/fish/completions/calibscale.fish
    """
    program = click.get_current_context().find_root().command
    kind: Any = get_completion_class(shell)
    click.echo(kind(program, {}, "calibscale", "_CALIBSCALE_COMPLETE").source())
