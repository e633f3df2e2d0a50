"""``calibscale select``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import open_session, source_options, store_argument

if TYPE_CHECKING:
    from calibscale.data.source import ArraySource
    from calibscale.selection.families import Family

_NAMES = (
    "bins",
    "bins_debiased",
    "bins_cube_root",
    "bins_sweep",
    "isotonic",
    "smooth_ece",
    "kde",
    "kde_loo",
    "kkr",
    "ukkr",
    "temperature",
)
_NOTIONS = ("top_label", "canonical", "class_wise", "positive")


@command
@store_argument
@click.option(
    "--notion",
    type=click.Choice(_NOTIONS),
    help="Notion of calibration whose error is estimated.  [default: top_label, or canonical for "
    "predictions without classes]",
)
@click.option(
    "--estimators",
    metavar="A,B",
    help=f"Names of the candidates, comma-separated: {', '.join(_NAMES)}.  [default: bins, kde, "
    "kkr, ukkr, temperature; without bins for the canonical notion; bins, kkr, ukkr for means, "
    "quantiles and expectiles; kkr, ukkr for distributions, intervals and sets]",
)
@click.option(
    "--folds", type=click.IntRange(2), default=5, help="Number of folds of the cross-validation."
)
@click.option(
    "--test-fraction",
    type=shared.SHARE,
    default=0.2,
    help="Share of the rows held out for testing.",
)
@click.option(
    "--split",
    metavar="FOLDS.npy",
    help="Path of the fold of each row (instead of --folds): integers, −1 for the test part, "
    "0..k−1 for the folds.",
)
@click.option("--seed", default=0, help="Seed of the split and of random samples.")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="NAME=A,B",
    help="Hyperparameter grid of an estimator (repeatable): numbers of bins; bandwidths h of kde; "
    "reg of kkr and ukkr.  [default: the published grids]",
)
@click.option(
    "--kernel",
    type=click.Choice(["gaussian", "laplacian"]),
    default="gaussian",
    help="Kernel of kkr and ukkr.",
)
@click.option(
    "--bandwidth",
    type=float,
    default=2**-0.5,
    show_default="1/√2",
    help="Kernel bandwidth of kkr and ukkr.",
)
@click.option(
    "--features",
    type=click.Choice(["landmarks", "random"]),
    default="landmarks",
    help="Features that approximate the kernel of kkr and ukkr.",
)
@click.option("--rank", default=1000, help="Maximum number of features.")
@click.option(
    "--subset-rows",
    default=20_000,
    help="Number of rows kept in memory for landmarks, canonical kde and standard errors.",
)
@click.option("--nested", is_flag=True, help="Run nested cross-validation.")
@shared.json_option
@click.option(
    "--plot",
    "figure",
    metavar="PATH",
    help="Path of a plot of risks and estimates (png, svg, pdf).",
)
@source_options
def select(
    store: str | tuple[str, ...] | None,
    notion: str | None,
    estimators: str | None,
    split: str | None,
    grids: tuple[str, ...],
    figure: str | None,
    **options: Any,
) -> None:
    """Select the estimator with the smallest validated risk for STORE, and estimate with it.

    Every estimator is fitted with every hyperparameter on all folds but one and validated on the
    remaining fold; the best one estimates the squared calibration error on rows that were used for
    neither [Gruber & Bach 2025].
    """
    from calibscale.kernels.landmarks import Gaussian, Laplacian
    from calibscale.selection.cross_validation import select as run
    from calibscale.selection.kernel_features import KernelFeatures

    kernel = {"gaussian": Gaussian, "laplacian": Laplacian}[options.pop("kernel")]
    features = KernelFeatures(
        options.pop("features"), kernel(options.pop("bandwidth")), options.pop("rank")
    )
    if split is not None:
        options["folds"] = _folds(split)
    with open_session(store, options, "selecting", "steps") as session:
        families = _families(estimators, grids, session.source, notion)
        result = run(session, notion, families, features=features, **options)
    outputs.finish(result, figure)


def _families(
    names: str | None, grids: tuple[str, ...], source: ArraySource, notion: str | None
) -> list[Family]:
    """Families of --estimators, or the default ones of a source, with the grids of --grid."""
    from calibscale.selection.known_families import FAMILIES, default_families

    grid_of = {name: _grid(name, text) for name, text in shared.pairs(grids, "--grid")}
    if names is None:
        chosen = default_families(source, notion)
    else:
        chosen = tuple(name.strip() for name in names.split(","))
    # The names are checked here, where the option is known that has the mistake.
    for name in (*chosen, *grid_of):
        if name not in FAMILIES:
            raise click.BadParameter(
                f"there is no {name!r}; available: {', '.join(FAMILIES)}", param_hint="--estimators"
            )
    for name in grid_of:
        if name not in chosen or not hasattr(FAMILIES[name], "grid"):
            raise click.BadParameter(
                f"{name} is not a selected estimator with a grid", param_hint="--grid"
            )
    families = []
    for name in chosen:
        settings = {"grid": grid_of[name]} if name in grid_of else {}
        families.append(FAMILIES[name](**settings))
    return families


def _grid(name: str, text: str) -> tuple[float, ...]:
    return tuple(shared.number(value, f"--grid {name}") for value in text.split(","))


def _folds(path: str) -> Any:
    import numpy as np

    try:
        # Without pickle, a file of another person cannot run code.
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", param_hint="--split") from error
