"""Options of commands that compare rows by their covariates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli import options as shared

if TYPE_CHECKING:
    from calibscale.estimators.skce import KLCE

METHODS = (
    "identity, temperature, ensemble_temperature, vector, matrix, dirichlet, structured, "
    "one_vs_rest, platt, beta, spline, isotonic, venn_abers, histogram, top_label_histogram, "
    "bbq, local_bias, hierarchical, mc or pmc"
)
notion_option = click.option(
    "--notion",
    type=click.Choice(["positive", "top_label"]),
    help="Probability to judge.  [default: positive for two classes, else top_label]",
)
_LOCAL = (
    shared.categorical_option,
    click.option(
        "--prediction-bandwidth",
        type=float,
        help="Bandwidth of the kernel on predictions.  [default: median distance]",
    ),
    click.option(
        "--covariate-bandwidth",
        "covariate_bandwidths",
        multiple=True,
        metavar="B|NAME=B",
        help="Bandwidth of the kernel on covariates, in the units of the column: one number for "
        "all columns, or one for each name (repeatable).  [default: standard deviation x median "
        "standardised distance]",
    ),
)


def local_options(command: Callable) -> Callable:
    """Add the options of commands that compare rows by their covariates."""
    return shared.add_options(command, _LOCAL, "Local calibration")


def local_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Settings of `local_options`, which are removed from the options."""
    return {
        "prediction_bandwidth": options.pop("prediction_bandwidth"),
        "covariate_bandwidth": bandwidths(options.pop("covariate_bandwidths")),
        "categorical": tuple(n for text in options.pop("categorical") for n in shared.split(text)),
    }


def local_estimator(covariates: tuple[str, ...], options: dict[str, Any]) -> KLCE:
    """KLCE with the settings of a command, which are removed from the options."""
    from calibscale.estimators.skce import KLCE

    names = ("prediction_kernel", "covariate_kernel", "bandwidth_share", "notion")
    settings = {name: options.pop(name) for name in names if name in options}
    return KLCE(covariates, **local_settings(options), **settings)


def bandwidths(texts: tuple[str, ...]) -> float | dict[str, float] | None:
    """Bandwidth for all covariates, or bandwidths by name, from --covariate-bandwidth."""
    option = "--covariate-bandwidth"
    named = [text.rpartition("=") for text in texts]
    # A column may have = in its name, so that the last one separates the number.
    if texts and all(name for name, _, _ in named):
        return {name: shared.number(value, option) for name, _, value in named}
    if len(texts) > 1 or any(name for name, _, _ in named):
        raise click.BadParameter("pass one number, or NAME=NUMBER for each", param_hint=option)
    return shared.number(texts[0], option) if texts else None
