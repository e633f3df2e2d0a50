"""Options that name estimators and their settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli import options as shared
from calibscale.estimators.known_estimators import ESTIMATORS, LOCAL, default_names, named
from calibscale.estimators.settings import build, settings_of
from calibscale.formatting.naming import parse
from calibscale.predictions.claims import CLASSES

if TYPE_CHECKING:
    from calibscale.estimators.base import Estimator

DEFAULT = ("accuracy", "confidence_gap", "ece", "tce2_debiased", "brier")
# texts of estimators as options, whose names shells complete
ESTIMATOR: Any = {
    "metavar": "NAME[(SETTING=VALUE,...)]",
    "shell_complete": lambda context, option, text: [
        name for name in ESTIMATORS if name.startswith(text)
    ],
}

_OPTIONS = (
    click.option(
        "--notion",
        type=click.Choice(["top_label", "positive", "canonical"]),
        help="Probabilities to judge.  [default: positive for two classes, else top_label for "
        "confidence_gap and binned errors and canonical for other estimators]",
    ),
    click.option(
        "--bandwidth",
        type=float,
        help="Bandwidth of the kernel on predictions.  [default: median distance of 1,000 "
        "predictions]",
    ),
    click.option(
        "--features",
        type=click.IntRange(1),
        help="Number of random frequencies or landmarks.  [default: 100; 1000 for kce and klce]",
    ),
    click.option(
        "--covariates", metavar="A,B", help="Names of the covariates of klce, comma-separated."
    ),
    shared.categorical_option,
    shared.seed_option,
)
# option of each shared setting
_SHARED = {
    "notion": "notion",
    "bandwidth": "bandwidth",
    "prediction_bandwidth": "bandwidth",
    "features": "features",
    "n_features": "features",
    "covariates": "covariates",
    "categorical": "categorical",
    "seed": "seed",
}


SETTINGS = tuple({*_SHARED.values()} - {"seed"})  # options of estimators


class _EstimatorOption(click.Option):
    """Option that adds a list of all estimators to the help of its command."""

    def help_sections(self) -> dict[str, list[tuple[str, str]]]:
        return {"Estimators": [(entry.name, entry.description) for entry in ESTIMATORS.entries]}


def estimator_options(command: Callable) -> Callable:
    """Add the options of settings that several estimators share."""
    return shared.add_options(command, _OPTIONS, "Settings of estimators")


def named_estimators(command: Callable) -> Callable:
    """Add --estimator."""
    return click.option(
        "--estimator",
        "-e",
        "names",
        multiple=True,
        cls=_EstimatorOption,
        **ESTIMATOR,
        callback=shared.listed_names,
        help="Estimators to compute (comma-separated or repeated), with settings such as "
        '"ckce(ridge=0.03)"; see `calibscale estimators NAME`.  all selects the default '
        "estimators of Python.  "
        f"[default: {', '.join(DEFAULT)}]",
    )(command)


def on_unsupported(names: tuple[str, ...]) -> str:
    """Treatment of an estimator that the data do not support: an error if it was named."""
    return "raise" if names and "all" not in names else "report"


def chosen_estimators(
    texts: tuple[str, ...], options: dict[str, Any], target: Any = None
) -> list[Estimator]:
    """Estimators by their text, with the shared settings.

    By default the estimators of `DEFAULT`, or all default estimators of a target without classes.

    Options of settings are removed, except the seed.
    """
    claim = CLASSES if target is None else target.defaults_of
    if not texts and claim != CLASSES:  # `DEFAULT` names estimators of classes
        texts = ("all",)
    values = {option: options.pop(option) for option in {*_SHARED.values()}}
    options["seed"] = values["seed"]
    values["covariates"] = shared.columns(values["covariates"])
    defaults: list[str] = []
    if "all" in texts:
        of_target = () if target is None else target.default_estimators
        defaults = list(of_target) or default_names(claim)
    chosen = dict.fromkeys(e for text in texts for e in (defaults if text == "all" else (text,)))
    built, used = [], set()
    for text in chosen or DEFAULT:
        name, text_settings = parse(text)
        name, settings = named(name)
        settings |= text_settings
        accepted = settings_of(name)
        for key, option in _SHARED.items():
            if key not in accepted or values[option] in (None, ()):
                continue
            used.add(option)
            # of all estimators, those of all classes keep their notion
            if key != "notion" or text in texts or accepted[key].default != "canonical":
                settings.setdefault(key, values[option])
        if name in LOCAL and not settings.get("covariates"):
            advice = " (without covariates, use kce)" if name == "klce" else ""
            raise click.UsageError(f"{name} needs --covariates A,B{advice}")
        built.append(build(name, settings))
    # An option that no estimator uses is a misunderstanding, and would be ignored silently.
    for option in _SHARED.values():
        if shared.was_passed(option) and option != "seed" and option not in used:
            listed = ", ".join(chosen or DEFAULT)
            raise click.UsageError(f"--{option} is not used by any selected estimator ({listed})")
    return built
