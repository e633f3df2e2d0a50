"""Options of names, which are repeated or separated by commas."""

from __future__ import annotations

import click
import pytest

from calibscale.cli import test_commands
from calibscale.cli.evaluate_commands import evaluate
from calibscale.cli.options import listed_names


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (("ece,brier",), ("ece", "brier")),
        (("ece", "brier , nll"), ("ece", "brier", "nll")),
        (("ckce(ridge=0.03, features=200),ece",), ("ckce(ridge=0.03, features=200)", "ece")),
        (("ece(bins=2, edges=[0,0.5,1])",), ("ece(bins=2, edges=[0,0.5,1])",)),
        ((), ()),
    ],
)
@pytest.mark.parametrize("command", [evaluate, test_commands.test], ids=["evaluate", "test"])
def test_names__are_separated_by_commas_outside_of_brackets(command, given, names):
    """Leftover of issue 32: “ece,brier” was one unknown estimator."""
    (option,) = [one for one in command.params if one.name == "names"]
    context = click.Context(command)
    option.handle_parse_result(context, {"names": list(given)}, [])
    assert context.params["names"] == names


@pytest.mark.parametrize("given", [",", "ece,", ",brier"])
def test_names__that_are_empty_are_refused(given):
    option = click.Option(["--estimator", "names"], multiple=True)
    with pytest.raises(click.BadParameter, match="has an empty name"):
        listed_names(click.Context(evaluate), option, (given,))
