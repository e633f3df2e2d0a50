"""Options of names, which are repeated or separated by commas."""

from __future__ import annotations

import click
import pytest

from calibscale.cli import cli
from calibscale.cli.options import listed_names


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (("ece,brier",), ("ece", "brier")),
        (("ece", "brier , nll"), ("ece", "brier", "nll")),
        (("ckce(ridge=0.03, features=200),ece",), ("ckce(ridge=0.03, features=200)", "ece")),
        (("ece(bins=2, edges=[0,0.5,1])",), ("ece(bins=2, edges=[0,0.5,1])",)),
        ((), ()),
    ],
)
@pytest.mark.parametrize("name", ["evaluate", "test"])
def test_names__are_separated_by_commas_outside_of_brackets(name, texts, names):
    """Without the separation, “ece,brier” would be one unknown estimator."""
    command = cli.commands[name]
    (option,) = [parameter for parameter in command.params if parameter.name == "names"]
    context = click.Context(command)
    option.handle_parse_result(context, {"names": list(texts)}, [])
    assert context.params["names"] == names


@pytest.mark.parametrize("text", [",", "ece,", ",brier"])
def test_names__that_are_empty_are_refused(text):
    option = click.Option(["--estimator", "names"], multiple=True)
    with pytest.raises(click.BadParameter, match="has an empty name"):
        listed_names(click.Context(cli.commands["evaluate"]), option, (text,))
