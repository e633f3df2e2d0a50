"""Command-line interface; commands import the package when they run, so that help is fast."""

from calibscale.cli.program import cli, main

__all__ = ["cli", "main"]
