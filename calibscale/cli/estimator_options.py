"""Options for estimators: their names and settings as text, and settings shared by several."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.options import Command, add_options, columns, seed_option, was_passed
from calibscale.estimators import ESTIMATORS, SUMMARIES, build, parse, settings_of
from calibscale.results import name_of

if TYPE_CHECKING:
    from calibscale.estimators.base import Estimator

DEFAULT = ("accuracy", "confidence_gap", "ece", "tce2_debiased", "brier")
ESTIMATOR = "NAME[(SETTING=VALUE,...)]"  # metavar of options that take the text of an estimator

_OPTIONS = (
    click.option(
        "--notion", type=click.Choice(["top_label", "positive", "canonical"]),
        help="Probabilities to judge.  [default: positive for two classes, else top_label for "
        "confidence_gap and binned errors and canonical for other estimators]",
    ),
    click.option(
        "--bandwidth", type=float,
        help="Bandwidth of the kernel on predictions.  [default: median distance of 1,000 "
        "predictions]",
    ),
    click.option(
        "--features", type=click.IntRange(1),
        help="Number of random frequencies or landmarks.  [default: 100; 1000 for kce and klce]",
    ),
    click.option(
        "--covariates", metavar="A,B", help="Names of the covariates of klce, comma-separated."
    ),
    click.option(
        "--categorical", multiple=True, metavar="NAME",
        help="Name of a covariate that is compared by equality (repeatable).",
    ),
    seed_option,
)  # fmt: skip
# option of each shared setting
_SHARED = {
    "notion": "notion", "bandwidth": "bandwidth", "prediction_bandwidth": "bandwidth",
    "features": "features", "n_features": "features", "covariates": "covariates",
    "categorical": "categorical", "seed": "seed",
}  # fmt: skip


class _EstimatorOption(click.Option):
    """Option that adds a list of all estimators to the help of its command."""

    def help_sections(self) -> dict[str, list[tuple[str, str]]]:
        return {"Estimators": list(SUMMARIES.items())}


def estimator_options(command: Callable) -> Callable:
    """Add the options of settings that several estimators share."""
    return add_options(command, _OPTIONS, "Settings of estimators")


def named_estimators(command: Callable) -> Callable:
    """Add --estimator."""
    return click.option(
        "--estimator", "-e", "names", multiple=True, metavar=ESTIMATOR, cls=_EstimatorOption,
        help='Estimator to compute (repeatable), with settings such as "ckce(ridge=0.03)"; see '
        "`calibscale estimators NAME`.  all selects the default estimators of Python.  "
        f"[default: {', '.join(DEFAULT)}]",
    )(command)  # fmt: skip


def on_unsupported(names: tuple[str, ...]) -> str:
    """Treatment of an estimator that the data do not support: an error if it was named."""
    return "raise" if names and "all" not in names else "report"


def estimators(texts: tuple[str, ...], options: dict[str, Any]) -> list[Estimator]:
    """Estimators by their text (by default those of `DEFAULT`), with the shared settings."""
    values = {**options, "covariates": columns(options["covariates"])}
    every = [name for name, kind in ESTIMATORS.items() if kind.by_default] if "all" in texts else ()
    chosen = dict.fromkeys(e for text in texts for e in (every if text == "all" else (text,)))
    built, used = [], set()
    for text in chosen or DEFAULT:
        name, settings = parse(text)
        known = settings_of(name) if name in ESTIMATORS else {}
        for key, option in _SHARED.items():
            if key not in known or values[option] in (None, ()):
                continue
            used.add(option)
            # of all estimators, those of all classes keep their notion
            if key != "notion" or text in texts or known[key].default != "canonical":
                settings.setdefault(key, values[option])
        if name == "klce" and not settings.get("covariates"):
            raise click.UsageError("klce needs --covariates A,B (without covariates, use kce)")
        built.append(build(name, settings))
    for option in _SHARED.values():
        if was_passed(option) and option != "seed" and option not in used:
            listed = ", ".join(chosen or DEFAULT)
            raise click.UsageError(f"--{option} is not used by any selected estimator ({listed})")
    return built


@click.command("estimators", cls=Command, short_help="List estimators and their settings.")
@click.argument("name", required=False)
def list_estimators(name: str | None) -> None:
    """List all estimators, or print the description and settings of the estimator NAME."""
    if name is None:
        width = max(map(len, SUMMARIES))
        for each, summary in SUMMARIES.items():
            click.echo(f"{each:{width}}  {summary}")
        return
    settings = settings_of(build(name_of(name), {}).name)
    click.echo(inspect.getdoc(ESTIMATORS[name]))
    listed = ", ".join(f"{key}={default!r}" for key, (_, default) in settings.items())
    click.echo(f"\n{name}({listed})")
