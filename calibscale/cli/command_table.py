"""Commands of the program by name, each imported when it is needed."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.command_classes import Commands
from calibscale.registry import Registry, RegistryEntry

# Summary of each command in `calibscale --help`.  The command has the name of its file in
# cli/commands/.
SUMMARIES = {
    "audit": "Test and locate miscalibration over covariates.",
    "bias": "Map the local bias of the predictions.",
    "check": "Check a table or STORE: a verdict and a report.",
    "completion": "Print a script that completes commands in a shell.",
    "curves": "Draw Murphy, concentration and double lift charts.",
    "demo": "Evaluate a simulated classifier (start here).",
    "doctor": "Print the machine and versions for a bug report.",
    "estimators": "List estimators and their settings.",
    "evaluate": "Estimate calibration errors with intervals, in one pass.",
    "info": "Print the contents and the provenance of STORE.",
    "ingest": "Copy FILEs of predictions into a STORE.",
    "ledger": "Check, repair or edit the ledger of a nightly job.",
    "nightly": "Evaluate a day of predictions as configured in JOB.",
    "plan": "Predict the cost of `evaluate`, without running it.",
    "plugins": "List what other packages add to calibscale.",
    "power": "Estimate how many rows a test needs to detect a bias.",
    "rank": "Rank models by calibration error on the same rows.",
    "recalibrate": "Fit a recalibration, and apply it to stores.",
    "reliability": "Compare predicted probabilities with frequencies.",
    "report": "Write one HTML page about results.",
    "select": "Select the estimator with the smallest validated risk.",
    "shift": "Estimate new class shares without labels.",
    "simulate": "Simulate a STORE with known calibration error.",
    "test": "Test whether the calibration error could be chance.",
    "warmup": "Compile all kernels ahead of time.",
}


class CommandTable(Registry[click.Command]):
    """Commands with the summaries of the table.  Click only reads this mapping."""

    def __getitem__(self, name: str) -> click.Command:
        command = super().__getitem__(name)
        command.short_help = SUMMARIES[name]
        return command


COMMANDS = CommandTable(
    "command",
    [
        RegistryEntry(name, f"calibscale.cli.commands.{name}:{name}", summary)
        for name, summary in SUMMARIES.items()
    ],
)


class Program(Commands):
    """The group of all commands, which imports only the command that runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(commands=COMMANDS, **settings)  # type: ignore[arg-type]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The method of the base class would import every command for its summary.
        with formatter.section("Commands"):
            formatter.write_dl([*SUMMARIES.items()])
