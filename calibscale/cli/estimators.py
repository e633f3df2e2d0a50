"""Estimators on the command line: their settings as options, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.options import SHARE, add_options, bandwidths, columns, given, local_options

if TYPE_CHECKING:
    from calibscale.estimators import Estimator

DEFAULT = (
    *("accuracy", "brier", "nll", "confidence_gap", "ece", "mce", "tce2", "tce2_debiased"),
    *("cwce2", "simplex_ece", "brier_decomposition", "nll_decomposition"),
    *("ckce", "cmmd", "jkce", "jkce_biased"),
)
NAMES = (*DEFAULT, "tce2_kumar", "ckce_centred", "kce", "klce")
_KERNEL_NOTIONS = ("jkce", "jkce_biased", "kce", "klce")  # judge all classes unless told
EDGES = ("equal-width", "equal-mass", "sklearn", "netcal", "torchmetrics")
_METHODS = ("auto", "features", "spectral", "tiles", "blocks", "pairs", "nystrom", "exact")
_RADIAL = ("gaussian", "laplace", "matern32", "matern52")

_OPTIONS = (
    click.option(
        "--bins", type=click.IntRange(1), default=15, show_default=True, help="Number of bins."
    ),
    click.option(
        "--edges", default="equal-width", show_default=True, metavar="NAME|NUMBERS",
        help=f"Bin edges: {', '.join(EDGES)}, or comma-separated numbers.",
    ),
    click.option(
        "--notion", type=click.Choice(["top_label", "positive", "canonical"]),
        help="Which probabilities are judged.  [default: top_label for binned errors, positive for "
        "kce and klce of two classes, else canonical]",
    ),
    click.option(
        "--method", type=click.Choice(_METHODS),
        help="How ckce (features, exact), jkce (features, tiles, blocks, pairs), kce and klce "
        "(auto, spectral, tiles, features, nystrom) are computed; tiles and exact visit every "
        "pair of rows.  [default: features; auto for kce and klce]",
    ),
    click.option(
        "--bandwidth", type=float,
        help="Bandwidth of ckce, ckce_centred, cmmd, jkce; default: median distance of 1,000 "
        "predictions.",
    ),
    click.option("--ridge", type=float, help="λ of ckce, ckce_centred, cmmd; default n^(-1/4)."),
    click.option("--level", type=float, help="Level s of cmmd; default 1."),
    click.option(
        "--kernel", type=click.Choice(["linear+gaussian", "gaussian"]),
        help="Kernel of jkce.  [default: linear+gaussian]",
    ),
    click.option(
        "--covariates", metavar="A,B", help="Columns that klce asks for local calibration on."
    ),
    click.option(
        "--choose-bandwidths", "choose", type=SHARE, metavar="SHARE",
        help="Choose the bandwidths of kce and klce by power on this share of the rows, which the "
        "estimate leaves out.",
    ),
    click.option(
        "--prediction-kernel", type=click.Choice([*_RADIAL, "linear+gaussian", "none"]),
        help="Kernel of kce and klce on predictions.  [default: gaussian]",
    ),
    click.option(
        "--covariate-kernel", type=click.Choice(_RADIAL),
        help="Kernel of klce on covariates.  [default: gaussian]",
    ),
    click.option(
        "--normalization", type=click.Choice(["pairs", "kernel_sum"]),
        help="Divisor of klce: n(n-1), or (n-1) times the mean kernel sum, as KiTE does.",
    ),
    click.option(
        "--within", metavar="COLUMN",
        help="ckce with --method exact on predictions x the groups of this column.",
    ),
    click.option(
        "--precision", type=click.Choice(["float64", "float32"]),
        help="Of one pair with --method tiles; float32 is faster and states its rounding.",
    ),
    click.option("--block", type=int, help="Rows of a block with --method blocks; default 1000."),
    click.option("--n-pairs", type=int, help="Pairs drawn with --method pairs; default 10^6."),
    click.option(
        "--series-tolerance", type=float,
        help="Error of the Fourier series, or of the iteration of ckce.  [default: 1e-12, 1e-10]",
    ),
    click.option(
        "--features", type=click.IntRange(1),
        help="Number of random frequencies or landmarks.  [default: 100; 1000 for kce and klce]",
    ),
    click.option("--max-cells", type=int, help="Cells that simplex_ece may use; default 10,000."),
    click.option("--seed", default=0, show_default=True, help="Of all random draws."),
)  # fmt: skip


def estimator_options(command: Callable) -> Callable:
    """The settings of estimators, as options."""
    return add_options(local_options(command), _OPTIONS, "Settings of estimators")


def estimators(names: tuple[str, ...], options: dict[str, Any]) -> list[Estimator]:
    """The named estimators with the settings that were given; by default those of `DEFAULT`."""
    from calibscale.estimators import ESTIMATORS
    from calibscale.features import RandomFourier

    F = options["features"]
    settings = {
        **options,
        "edges": bin_edges(options["edges"]),
        "features": RandomFourier(100 if F is None else F, options["bandwidth"], options["seed"]),
        "n_features": F,
        "tolerance": options["series_tolerance"],
        "covariate_bandwidth": bandwidths(options["covariate_bandwidths"]),
        "covariates": columns(options["covariates"]),
        "notion": options["notion"] or "top_label",
    }
    asked = names or DEFAULT
    if settings["covariates"] and "klce" not in asked:
        raise click.UsageError("--covariates is for klce")
    if "klce" in asked and not settings["covariates"]:
        raise click.UsageError("klce needs --covariates A,B; without covariates it is kce")
    _check_used(asked)
    built = []
    for name in asked:
        kind = ESTIMATORS[name]
        own = dict(settings)
        if name in _KERNEL_NOTIONS:
            own["notion"] = options["notion"] if names else None
        if name == "kce":
            own["covariates"] = own["categorical"] = ()
        known = {f.name for f in fields(kind) if f.init}  # type: ignore[arg-type]
        built.append(kind(**{k: v for k, v in own.items() if k in known and v is not None}))
    return built


# The setting that an option is for, where it has another name; others are called as their setting.
_SETTINGS = {
    "bandwidth": "features", "series_tolerance": "tolerance",
    "covariate_bandwidths": "covariate_bandwidth",
}  # fmt: skip
_OF_COVARIATES = ("covariates", "categorical", "covariate_bandwidth", "covariate_kernel")


def _check_used(names: tuple[str, ...]) -> None:
    """Refuse an option that was given and that no chosen estimator has."""
    from calibscale.estimators import ESTIMATORS

    known: set[str] = set()
    for name in names:
        own = {f.name for f in fields(ESTIMATORS[name]) if f.init}  # type: ignore[arg-type]
        known |= own - set(_OF_COVARIATES) if name == "kce" else own
    for option in _OPTIONS_OF_ESTIMATORS:
        if not given(option):
            continue
        settings = {_SETTINGS.get(option, option)}
        if option == "features":
            settings.add("n_features")
        if not settings & known:
            flag = "--" + _FLAGS.get(option, option).replace("_", "-")
            raise click.UsageError(f"{flag} is for none of: {', '.join(names)}")


_FLAGS = {"covariate_bandwidths": "covariate-bandwidth", "choose": "choose-bandwidths"}
_OPTIONS_OF_ESTIMATORS = (
    *("bins", "edges", "notion", "method", "bandwidth", "ridge", "level", "kernel", "covariates"),
    *("categorical", "prediction_bandwidth", "covariate_bandwidths", "choose", "block"),
    *("prediction_kernel", "covariate_kernel", "normalization", "within", "precision", "n_pairs"),
    *("series_tolerance", "features", "max_cells"),
)


def bin_edges(text: str) -> str | tuple[float, ...]:
    if text in EDGES:
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither numbers nor one of {', '.join(EDGES)}", param_hint="--edges"
        ) from None
