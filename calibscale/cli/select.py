"""``calibscale select``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.options import (
    SHARE,
    Command,
    check_outputs,
    number,
    open_source,
    pairs,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.progress import progress

if TYPE_CHECKING:
    from calibscale.selection.families import Family

_NAMES = ("bins", "bins_debiased", "kde", "kde_loo", "kkr", "ukkr", "temperature")
_NOTIONS = ("top_label", "canonical", "class_wise", "positive")


@click.command(cls=Command, short_help="Choose the estimator of STORE by its validated risk.")
@click.argument("store", required=False)
@click.option(
    "--notion", type=click.Choice(_NOTIONS), default="top_label", show_default=True,
    help="Which calibration error is estimated.",
)  # fmt: skip
@click.option(
    "--estimators", metavar="A,B",
    help=f"Some of {', '.join(_NAMES)}.  [default: all but bins_debiased and kde_loo; binning is "
    "not for the canonical notion]",
)  # fmt: skip
@click.option(
    "--folds", type=click.IntRange(2), default=5, show_default=True,
    help="Folds of the cross-validation.",
)  # fmt: skip
@click.option(
    "--test-fraction", type=SHARE, default=0.2, show_default=True,
    help="Share of rows set aside for testing.",
)  # fmt: skip
@click.option(
    "--split", metavar="FOLDS.npy",
    help="The fold of each row instead: integers, −1 for the test part, 0..k−1 for the folds.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the split and of samples.")
@click.option(
    "--grid", "grids", multiple=True, metavar="NAME=A,B",
    help="Hyper-parameters of an estimator (repeatable): numbers of bins; h of kde; reg of kkr and "
    "ukkr.  [default: the published grids]",
)  # fmt: skip
@click.option(
    "--kernel", type=click.Choice(["gaussian", "laplacian"]), default="gaussian",
    show_default=True, help="Kernel of kkr and ukkr.",
)  # fmt: skip
@click.option(
    "--bandwidth", type=float, default=2**-0.5, show_default="1/√2", help="Its bandwidth."
)
@click.option(
    "--features", type=click.Choice(["landmarks", "random"]), default="landmarks",
    show_default=True, help="How the kernel is reproduced.",
)  # fmt: skip
@click.option(
    "--rank", default=1000, show_default=True, help="Largest number of features for that."
)
@click.option(
    "--subset-rows", default=20_000, show_default=True,
    help="Rows kept in memory: landmarks, canonical kde and standard errors come from them.",
)  # fmt: skip
@click.option(
    "--nested", is_flag=True, help="Also choose without each fold in turn, and estimate on it."
)
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@click.option(
    "--plot", "plot_path", metavar="PATH",
    help="Draw risks and estimates (png, svg, pdf).",
)  # fmt: skip
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def select(
    store: str | None,
    notion: str,
    estimators: str | None,
    folds: int,
    test_fraction: float,
    split: str | None,
    seed: int,
    grids: tuple[str, ...],
    kernel: str,
    bandwidth: float,
    features: str,
    rank: int,
    subset_rows: int,
    nested: bool,
    json_path: str | None,
    plot_path: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Choose the calibration estimator of STORE by its validated risk, and estimate with it.

    Every estimator is fitted with every hyper-parameter on all folds but one and judged on that
    one; the best of them estimates the squared calibration error on rows that neither has seen
    [Gruber & Bach 2025].
    """
    check_outputs({"--json": json_path, "--plot": plot_path})
    scan = scan_settings(options)
    if plot_path is not None:
        from calibscale.plots import check_format

        check_format(plot_path)
    from calibscale.landmarks import Gaussian, Laplacian
    from calibscale.selection import select as run

    source = open_source(store, options)
    with progress("selecting", "steps", quiet) as report:
        result = run(
            source,
            notion,
            _families(estimators, grids, notion),
            folds=folds if split is None else _folds(split),
            test_fraction=test_fraction,
            seed=seed,
            kernel={"gaussian": Gaussian, "laplacian": Laplacian}[kernel](bandwidth),
            features=features,
            rank=rank,
            subset_rows=subset_rows,
            nested=nested,
            **scan,
            progress=report,
        )
    if json_path != "-" and not quiet:
        from calibscale.tables import selection_tables

        selection_tables(result)
    if plot_path is not None:
        from calibscale.plots import save_selection

        save_selection(result, plot_path)
    write_json(json_path, result.to_dict())


def _families(names: str | None, grids: tuple[str, ...], notion: str) -> list[Family]:
    from calibscale.selection import FAMILIES, default_families

    given = {name: _grid(name, text) for name, text in pairs(grids, "--grid")}
    chosen = default_families(notion)
    if names is not None:
        chosen = tuple(name.strip() for name in names.split(","))
    for name in (*chosen, *given):
        if name not in FAMILIES:
            raise click.BadParameter(
                f"there is no {name!r}; known: {', '.join(_NAMES)}", param_hint="--estimators"
            )
    for name in given:
        if name not in chosen or name == "temperature":
            raise click.BadParameter(
                f"{name} is not among the estimators that have a grid here", param_hint="--grid"
            )
    return [
        FAMILIES[name](grid=given[name]) if name in given else FAMILIES[name]()  # type: ignore[call-arg]
        for name in chosen
    ]


def _grid(name: str, text: str) -> tuple[float, ...]:
    return tuple(number(value, f"--grid {name}") for value in text.split(","))


def _folds(path: str) -> Any:
    import numpy as np

    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", param_hint="--split") from error
