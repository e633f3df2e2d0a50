"""python examples/gruber_bach_2025.py {simulation,tables,mismatch}: experiments of [GB].

[GB] is Gruber & Bach 2025: a calibration estimator is a function h(p, p'), and its risk
measures its quality.  `simulation` is their Figure 1, `tables` has the layout of their tables and
Figures 2–4 for your own predictions, `mismatch` shows the effect of an error in their published
code on canonical estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import log_softmax, softmax
from threadpoolctl import threadpool_limits

from calibscale import (
    KKR,
    UKKR,
    ArraySource,
    CalibscaleError,
    Candidate,
    Selection,
    from_arrays,
    plug_in_risk,
    select,
)
from calibscale.kernels.landmarks import Gaussian, choose_landmarks
from calibscale.predictions.notions import NotionView
from calibscale.selection.families import FoldPart, FoldResiduals
from calibscale.selection.ridge import Basis, FeatureState
from calibscale.selection.risk import bilinear_risk
from calibscale.simulation import GENERATORS

COMPARABLE = "These are not the networks of the paper: compare layout and order, not the numbers."
SCALAR = ("15 bins", "bins", "kde", "kkr", "ukkr", "temperature")
CANONICAL = ("kde", "kkr", "ukkr", "temperature")
FIGURE_1 = np.arange(40, 201, 5) / 100  # θ from 0.4 to 2


@click.group(help=__doc__.split("\n\n", 1)[1], context_settings={"max_content_width": 100})
def main() -> None:
    pass


def pictures(context: click.Context, option: click.Parameter, folder: Path | None) -> Path | None:
    """Folder of the figures, created at once."""
    if folder is not None:
        import matplotlib

        matplotlib.use("Agg")
        folder.mkdir(parents=True, exist_ok=True)
    return folder


plot_option = click.option(
    "--plot",
    type=click.Path(path_type=Path, file_okay=False),
    callback=pictures,
    metavar="FOLDER",
    help="Folder of figures (needs matplotlib).",
)


# ---------------------------------------------------------------- Figure 1


def simulated_risks(
    repetitions: int, rows: int = 500, seed: int = 0, grid: np.ndarray = FIGURE_1
) -> np.ndarray:
    """Risks of h_sim on fresh rows for every repetition and θ, (repetitions, θ) [GB §5.1]."""
    risks = np.empty((repetitions, len(grid)))
    for r in range(repetitions):
        draw = GENERATORS["gb"].draw(seed, r * rows, (r + 1) * rows)
        log_p = log_softmax(draw.logits, axis=1)
        p = np.exp(log_p)
        delta = p - np.eye(p.shape[1])[draw.labels]
        for i, theta in enumerate(grid):
            risks[r, i] = plug_in_risk(delta, p - softmax(10 / 3 * theta * log_p, axis=1))
    return risks


@main.command()
@click.option("--repetitions", type=click.IntRange(2), default=100, show_default=True)
@click.option("--rows", type=click.IntRange(2), default=500, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@plot_option
def simulation(repetitions: int, rows: int, seed: int, plot: Path | None) -> None:
    """Figure 1: the risk is smallest at the true temperature, θ = 1.

    Truth P ~ Dirichlet(0.04) of 5 classes, predictions softmax(0.3 log P), labels ~ P, and
    h_sim(p, p') = <p − softmax(10/3 θ log p), p' − softmax(10/3 θ log p')>.
    """
    risks = simulated_risks(repetitions, rows, seed)
    mean, std = risks.mean(axis=0), risks.std(axis=0, ddof=1)
    at_one = risks[:, [int(np.argmin(abs(FIGURE_1 - 1)))]]
    excess = (risks - at_one).std(axis=0, ddof=1) / math.sqrt(repetitions)
    print(f"Risk of h_sim × 1000, {repetitions} repetitions of {rows} rows")
    print(f"{'θ':>5}  {'mean':>7}  {'std':>7}  {'mean − that of θ = 1':>20}")
    for i, theta in enumerate(FIGURE_1):
        above = f"{1000 * (mean[i] - at_one.mean()):.4f} ± {1000 * excess[i]:.4f}"
        print(f"{theta:5.2f}  {1000 * mean[i]:7.4f}  {1000 * std[i]:7.4f}  {above:>20}")
    print(f"smallest mean risk at θ = {FIGURE_1[np.argmin(mean)]:g}")
    print("(± is the standard error over repetitions; the differences are paired)")
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        axes.fill_between(FIGURE_1, mean - std, mean + std, alpha=0.25, label="± 1 std")
        axes.plot(FIGURE_1, mean, label=f"mean of {repetitions} repetitions")
        axes.axvline(1, color="tab:red", linestyle="--", label="truth")
        axes.set(xlabel="θ", ylabel="risk of $h_{sim}$", xlim=(FIGURE_1[0], FIGURE_1[-1]))
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        _save(figure, plot / "figure_1.png")


# ---------------------------------------------------------------- the tables, Figures 2–4


def sources(folder: Path, rows: int) -> dict[int, dict[str, ArraySource]]:
    """First `rows` rows of the .npz files, by number of classes and by name."""
    groups: dict[int, dict[str, ArraySource]] = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            if {"logits", "labels"} <= set(arrays):
                predictions = {"logits": arrays["logits"][:rows], "labels": arrays["labels"][:rows]}
            elif {"p", "y"} <= set(arrays):
                predictions = {"probabilities": arrays["p"][:rows], "labels": arrays["y"][:rows]}
            else:
                print(f"{path.name} has neither logits and labels nor p and y: left out")
                continue
        if not np.issubdtype(predictions["labels"].dtype, np.integer):
            predictions["labels"] = predictions["labels"].astype(np.int64)
        source = from_arrays(**predictions, binary="probabilities" in predictions, name=path.stem)
        groups.setdefault(source.classes, {})[path.stem] = source
    return dict(sorted(groups.items()))


def best(selection: Selection, estimator: str) -> Candidate:
    """Candidate of an estimator with the smallest risk, or with 15 bins."""
    if estimator == "15 bins":
        return next(c for c in selection.candidates if c.hyperparameter == {"bins": 15})
    return selection.best_of(estimator)


def root(square: float, error: float) -> tuple[float, float]:
    """√square and its standard error to first order, error/(2√square), or NaN unless positive."""
    if not square > 0:
        return math.nan, math.nan
    return math.sqrt(square), error / (2 * math.sqrt(square))


def risk_cells(selection: Selection, estimators: Sequence[str]) -> list[str]:
    """√risk × 100 ± error. * is the smallest, ! is worse by two paired standard errors."""
    cells = []
    for estimator in estimators:
        c = best(selection, estimator)
        mark = "*" if c is selection.selected else "!" if c.distinguishable else " "
        cells.append(_cell(*root(c.risk, c.risk_error)) + mark)
    return cells


def estimate_cells(selection: Selection, estimators: Sequence[str]) -> list[str]:
    """√estimate × 100 ± error."""
    chosen = [best(selection, estimator) for estimator in estimators]
    return [_cell(*root(c.estimate, c.estimate_error)) + " " for c in chosen]


def table(title: str, rows: Sequence[str], columns: Mapping[str, Sequence[str]]) -> str:
    """Table of cells with names of columns and rows."""
    wide = {name: max(map(len, [name + " ", *cells])) for name, cells in columns.items()}
    first = max(map(len, rows))
    lines = [title, "  ".join([" " * first, *(f"{name + ' ':>{wide[name]}}" for name in columns)])]
    for i, row in enumerate(rows):
        cells = (f"{cells[i]:>{wide[name]}}" for name, cells in columns.items())
        lines.append("  ".join([f"{row:<{first}}", *cells]))
    return "\n".join(line.rstrip() for line in lines)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--notion",
    type=click.Choice(["top_label", "canonical", "class_wise"]),
    default="top_label",
    show_default=True,
    help="Of files with logits.",
)
@click.option(
    "--rows",
    type=click.IntRange(10),
    default=2000,
    show_default=True,
    help="Use the first rows only.",
)
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@plot_option
def tables(folder: Path, notion: str, rows: int, folds: int, seed: int, plot: Path | None) -> None:
    """Tables 1–5 and Figures 2–4: estimators by models.

    Reads every .npz of FOLDER: arrays `logits` and `labels`, or `p` = P(y = 1) and `y`, for which
    the notion is `positive`.  Models with the same number of classes share a table.
    """
    print(COMPARABLE)
    for classes, models in sources(folder, rows).items():
        for binary in (False, True):
            alike = {name: source for name, source in models.items() if source.binary is binary}
            if alike:
                chosen = "positive" if binary else notion
                _compare(alike, chosen, f"{classes} classes, {chosen}", folds, seed, plot)
    print(
        "\n± is the standard error over folds of the root: s.e. of the square / (2 root)."
        "\n* smallest risk of the model; ! worse by more than two standard errors of the"
        "\n  difference, which is paired by rows, hence much smaller than the ± of either."
    )


def _compare(
    models: Mapping[str, ArraySource],
    notion: str,
    title: str,
    folds: int,
    seed: int,
    plot: Path | None,
) -> None:
    estimators = CANONICAL if notion == "canonical" else SCALAR
    requested = [name for name in estimators if name != "15 bins"]  # 15 is in the grid of `bins`
    results = {}
    for name, source in models.items():
        try:
            results[name] = select(source, notion, requested, folds=folds, seed=seed)
        except CalibscaleError as error:
            print(f"\n{name} is left out: {error}")
    if not results:
        return
    for quantity, cells in (("risk", risk_cells), ("calibration estimate", estimate_cells)):
        columns = {name: cells(result, estimators) for name, result in results.items()}
        print("\n" + table(f"{title}: root of the {quantity} × 100", estimators, columns))
    if plot:
        _picture(results, estimators, title, plot)


def _picture(
    results: Mapping[str, Selection], estimators: Sequence[str], title: str, folder: Path
) -> None:
    import matplotlib.pyplot as plt

    width = max(5, 2 + 1.6 * len(results))
    figure, axes = plt.subplots(figsize=(width, 4), layout="constrained")
    for i, estimator in enumerate(estimators):
        chosen = [best(result, estimator) for result in results.values()]
        roots, errors = np.array([root(c.estimate, c.estimate_error) for c in chosen]).T
        x = np.arange(len(chosen)) + (i - (len(estimators) - 1) / 2) * 0.12
        axes.errorbar(x, roots, errors, fmt="osD^v<"[i], capsize=3, label=estimator, clip_on=False)
    names = [name.replace("_", "\n") for name in results]
    axes.set_xticks(range(len(names)), names)
    axes.set(title=title, ylabel="root of the calibration estimate")
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(0, None))
    for border in np.arange(1, len(names)) - 0.5:
        axes.axvline(border, color="lightgrey", linewidth=0.8)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    _save(figure, folder / f"estimates_{title.replace(', ', '_').replace(' ', '_')}.png")


def _cell(value: float, error: float) -> str:
    return "none" if math.isnan(value) else f"{100 * value:.2f} ± {100 * error:.2f}"


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"saved {path}")


# ---------------------------------------------------------------- mismatched labels


def published_order(rows: int, seed: int = 0) -> np.ndarray:
    """The order in which the published code takes the rows."""
    return np.random.RandomState(seed).choice(rows, rows, replace=False)


def ridge_grids(
    q: np.ndarray,
    y: np.ndarray,
    order: np.ndarray,
    mismatch: bool,
    folds: int = 5,
    grids: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, dict[float, tuple[float, float]]]:
    """Mean risk and estimate of kkr and ukkr for each `reg`, canonical.

    The first 80 % of the rows in that order are the folds, one after the other; the rest is the
    test part.  With `mismatch` the functions are fitted as in the published code: predictions
    are in the new order, their one-hot labels in the old one.  Validation rows are correct in
    both cases.
    """
    n, K = q.shape
    q, onehot = q[order], np.eye(K)
    delta = q - onehot[y[order]]
    logs = np.log(np.maximum(q, np.finfo(float).tiny))
    right = NotionView(np.arange(n), q, q, logs, delta, np.ones(n))
    training = right._replace(delta=q - onehot[y]) if mismatch else right
    features = choose_landmarks(Gaussian(), q, 1000, 1e-13)
    phi = features(q)

    def part(view: NotionView, rows: slice) -> FoldPart:
        view, f = view.take(rows), phi[rows]
        moments = FeatureState((f.T @ f)[None], (view.delta.T @ f)[None])
        residuals = FoldResiduals("canonical")
        return FoldPart(residuals.add(residuals.zero(K), [view]), (moments,))

    edges = np.arange(folds + 1) * int(0.8 * n) // folds
    parts = [slice(low, high) for low, high in pairwise(edges)]
    test = part(right, slice(edges[-1], n))
    by_name = {}
    for family in (KKR, UKKR):
        grid = (grids or {}).get(family.name, family.published("canonical"))
        ridge = family(grid, features, notion="canonical")
        values = np.zeros((2, len(grid)))
        for left_out, rows in enumerate(parts):
            train = [
                part(training, rows_of_part)
                for k, rows_of_part in enumerate(parts)
                if k != left_out
            ]
            fit = ridge.fitted(Basis(features, train, None), np.array(grid))
            risk = bilinear_risk(fit, part(right, rows), [right.take(rows)])
            values += [risk, fit.estimates(test)]
        values /= folds
        by_name[family.name] = dict(zip(grid, zip(*values.tolist(), strict=True), strict=True))
    return by_name


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--rows",
    type=click.IntRange(10),
    default=2000,
    show_default=True,
    help="Use the first rows only.",
)
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
def mismatch(file: Path, rows: int, folds: int, seed: int) -> None:
    """Effect of mismatched labels on kkr and ukkr.

    In canonical mode the published code shuffles the predictions but not their one-hot labels,
    and trains on that. Validation rows have the correct labels.  FILE is an .npz with
    arrays `logits` and `labels`.
    """
    with np.load(file) as arrays:
        if not {"logits", "labels"} <= set(arrays):
            raise click.ClickException(f"{file} has no arrays logits and labels")
        q = softmax(arrays["logits"][:rows].astype(float), axis=1)
        y = arrays["labels"][:rows].astype(np.int64)
    order = published_order(len(q), seed)
    with threadpool_limits(1, "blas"):  # matrices this small gain nothing from more threads
        wrong, right = (ridge_grids(q, y, order, mixed, folds) for mixed in (True, False))
    print(COMPARABLE)
    for name in right:
        print(f"\n{name}, canonical: risks and squared estimates (* smallest risk)")
        print(f"{'':9}  {'labels mismatched':>23}   {'labels right':>23}")
        print(f"{'reg':>9}  {'risk':>12}  {'estimate':>9}   {'risk':>12}  {'estimate':>9}")
        lowest = [min(grid, key=lambda reg: grid[reg][0]) for grid in (wrong[name], right[name])]
        for reg in right[name]:
            line = f"{reg:9.2e}"
            for grid, least in zip((wrong[name], right[name]), lowest, strict=True):
                risk, estimate = grid[reg]
                line += f"  {risk:12.6e}  {estimate:9.3e}" + ("*" if reg == least else " ")
            print(line.rstrip())
        a, b = wrong[name][lowest[0]][1], right[name][lowest[1]][1]
        factor = f"{b / a:.3g} times larger" if b > a else f"{a / b:.3g} times smaller"
        print(f"squared estimate at the smallest risk: {a:.3g} → {b:.3g}, {factor} when right")


if __name__ == "__main__":
    main()
