"""python examples/estimator_arena.py: which calibration estimator has the smallest risk?

The risk of [GB] exceeds the risk of the true function h*(p, p') = r(p) r(p'), r(p) = E[δ | p], by
E[(h(p, p') − r(p) r(p'))²] over independent p and p'.  For twelve laws with known r, estimators of
`select` are fitted to simulated rows, their hyper-parameter is chosen by the risk on other folds,
and the mean excess of the fits is computed at fresh predictions, without noise of labels.  `chosen`
is the estimator of least validated risk, h = 0 supposes calibration.  For the data in the directory
that CALIBSCALE_DATA names validated risks are compared.  [GB] is Gruber & Bach 2025.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import expit, logit

from calibscale import from_arrays, select
from calibscale.predictions.notions import NotionView
from calibscale.selection.families import FittedFamily

ESTIMATORS = (
    "bins",
    "bins_cube_root",
    "bins_sweep",
    "isotonic",
    "smooth_ece",
    "kde",
    "kkr",
    "ukkr",
    "temperature",
)
Rng = np.random.Generator
# Means, standard errors, and whether a mean is within two paired errors of the least
Row = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Law:
    """Scores p with P(event | p) = truth(p): class 1 of two, or the top label is right."""

    name: str
    scores: Callable[[Rng, int], np.ndarray]
    truth: Callable[[np.ndarray], np.ndarray]
    classes: int = 2

    @property
    def notion(self) -> str:
        return "positive" if self.classes == 2 else "top_label"

    def gaps(self, rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
        p = self.scores(rng, n)[:, None]
        return p, p - self.truth(p)

    def rows(self, rng: Rng, n: int) -> dict[str, Any]:
        p, K = self.scores(rng, n), self.classes
        event = rng.random(n) < self.truth(p)
        if K == 2:
            return {"probabilities": p, "labels": event * 1, "binary": True}
        top, step = rng.integers(0, K, n), rng.integers(1, K, n)
        q = np.repeat(((1 - p) / (K - 1)).astype(np.float32)[:, None], K, axis=1)
        q[np.arange(n), top] = p
        return {"probabilities": q, "labels": np.where(event, top, (top + step) % K)}


class Smoothed(Law):
    """q ~ Dirichlet(0.3), and labels of 0.9 q + 0.1/K. Every class is a problem."""

    notion = "class_wise"  # type: ignore[assignment]

    def gaps(self, rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
        q = rng.dirichlet(np.full(self.classes, 0.3), n)
        return q, 0.1 * (q - 1 / self.classes)

    def rows(self, rng: Rng, n: int) -> dict[str, Any]:
        q, r = self.gaps(rng, n)
        labels = (rng.random(n)[:, None] > (q - r).cumsum(axis=1)[:, :-1]).sum(axis=1)
        return {"probabilities": q, "labels": labels}


def beta(a: float, b: float, low: float = 0.0) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: low + (1 - low) * rng.beta(a, b, n)


uniform = Rng.random
ATOMS, ERRORS = np.arange(0.05, 1, 0.1), np.array([5, -3, 8, -6, 2, 9, -8, 4, -9, -4]) / 100
LAWS = (
    Law("calibrated", uniform, lambda p: p),
    Law("overconfident", beta(0.7, 0.7), lambda p: expit(logit(p) / 1.5)),
    Law("shifted log-odds", uniform, lambda p: expit(1.3 * logit(p) - 0.4)),
    Law("four steps", uniform, lambda p: 0.1 + 0.25 * np.floor(4 * p)),
    Law("waves, not monotone", uniform, lambda p: p + 0.4 * p * (1 - p) * np.sin(6 * np.pi * p)),
    Law("dip at 0.7", uniform, lambda p: p - 0.3 * np.exp(-(((p - 0.7) / 0.02) ** 2) / 2)),
    Law(
        "ten atoms",
        lambda rng, n: rng.choice(ATOMS, n),
        lambda p: p + ERRORS[np.rint(10 * p - 0.5).astype(int)],
    ),
    Law(
        "half the rows at 0.5",
        lambda rng, n: np.where(rng.random(n) < 0.5, 0.5, rng.random(n)),
        lambda p: np.where(p == 0.5, 0.6, expit(0.8 * logit(p))),
    ),
    Law("rare events, 1 %", beta(0.5, 49.5), lambda p: p / 2),
    Law("10 classes, top label", beta(2, 0.4, 0.11), lambda p: 0.1 + 0.8 * (p - 0.1), 10),
    Law("100 classes, top label", beta(1.2, 0.8, 0.02), lambda p: p**1.3, 100),
    Smoothed("10 classes, each", uniform, lambda p: p, 10),
)


def excess(fit: FittedFamily, p: np.ndarray, r: np.ndarray) -> float:
    """E[(h(p, p') − r(p) r(p'))²], summed over problems, at predictions and true gaps (n, J)."""
    total = 0.0
    for j, (column, true) in enumerate(zip(p.T, r.T, strict=True)):
        pair = np.column_stack([column, 1 - column])
        logs = np.log(np.maximum(pair, 5e-324))
        view = NotionView(np.arange(len(column)), pair[:, :1], pair, logs, true[:, None], true)
        if hasattr(fit, "matrix"):  # kkr: h(p, p') = φᵀBφ'
            phi, B = fit.basis.phi(j, view), fit.matrix(j, 0)  # type: ignore[attr-defined]
            SB, c = phi.T @ phi @ B / len(phi), phi.T @ true / len(phi)
            total += np.vdot(SB, SB.T) - 2 * c @ B @ c
        else:  # h(p, p') = r̂(p) r̂(p')
            ours = fit.residuals(j, view)[0, :, 0]
            total += np.mean(ours**2) ** 2 - 2 * np.mean(ours * true) ** 2
        total += np.mean(true**2) ** 2
    return float(total)


def trial(law: Law, rows: int, seed: int) -> list[float]:
    """Excess risk of each estimator, of the one of least validated risk, and of h = 0."""
    source = from_arrays(**law.rows(np.random.default_rng([seed, rows, *law.name.encode()]), rows))
    fresh = law.gaps(np.random.default_rng(0), 20_000)
    selections = [select(source, law.notion, [name], seed=seed) for name in ESTIMATORS]
    values = [np.mean([excess(fit, *fresh) for fit in s.pointwise.fits]) for s in selections]
    chosen = values[int(np.argmin([s.selected.risk for s in selections]))]
    return [*values, chosen, float(np.sum(np.mean(fresh[1] ** 2, axis=0) ** 2))]


def summary(values: np.ndarray) -> Row:
    """Row of the values of data sets (sets, estimators)."""
    mean, root = values.mean(axis=0), np.sqrt(len(values))
    apart = values - values[:, [int(np.argmin(mean[: len(ESTIMATORS)]))]]
    error, paired = (v.std(axis=0, ddof=min(1, len(v) - 1)) / root for v in (values, apart))
    return mean, error, apart.mean(axis=0) <= 2 * paired


def table(first: str, rows: dict[str, Row], columns: tuple[str, ...]) -> str:
    """Markdown table of 10⁶ times the means ± standard errors. Ties with the least are bold."""
    text = lambda m, e, _: f"{1e6 * m:.3g}" + (f" ± {1e6 * e:.2g}" if e > 1e-9 * m else "")  # noqa: E731
    lines = [(first, *columns), ("---",) * (1 + len(columns))]
    for name, row in rows.items():
        cells = list(map(text, *row))
        lines.append((name, *np.where(row[2], [f"**{cell}**" for cell in cells], cells)))
    return "\n".join("| " + " | ".join(f"{c:<18}" for c in line) + " |" for line in lines)


def real_data(folder: Path) -> dict[str, Row]:
    """Validated risks above the smallest, of networks (logits) and binary models (p)."""
    rows = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            binary = "p" in arrays
            labels = arrays["y" if binary else "labels"].astype(int)
            values = {"probabilities" if binary else "logits": arrays["p" if binary else "logits"]}
        source = from_arrays(**values, labels=labels, binary=binary)
        result = select(source, "positive" if binary else "top_label", ESTIMATORS)
        best = (result.best_of(name) for name in ESTIMATORS)
        mean, error = np.array([(c.difference, c.difference_error) for c in best]).T
        rows[f"{path.stem}, {len(labels):,} rows"] = mean, error, mean <= 2 * error
    return rows


def picture(results: dict[int, dict[str, Row]], path: Path) -> None:
    """Factor by which the excess of each estimator is above the smallest."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(15, 5), sharey=True, squeeze=False)
    for ax, (rows, laws) in zip(axes[0], results.items(), strict=True):
        means = np.array([row[0][: len(ESTIMATORS)] for row in laws.values()])
        factors = np.log10(means / means.min(axis=1, keepdims=True))
        image = ax.imshow(factors, vmin=0, vmax=2, cmap="viridis_r", aspect="auto")
        ax.set_xticks(range(len(ESTIMATORS)), ESTIMATORS, rotation=60, ha="right")
        ax.set_yticks(range(len(laws)), laws)
        ax.set_title(f"{rows:,} rows")
    figure.colorbar(image, ax=axes, label="log₁₀(excess / smallest excess)")
    figure.savefig(path, dpi=120, bbox_inches="tight")


@click.command(help=__doc__.split("\n\n", 1)[1])
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=("1000:10", "10000:5"),
    show_default=True,
    metavar="ROWS:SETS",
    help="Rows, and number of data sets (repeatable).",
)
@click.option(
    "--law",
    "names",
    multiple=True,
    type=click.Choice([law.name for law in LAWS]),
    help="Only these laws (repeatable), and no real data.",
)
@click.option("--figure", type=click.Path(path_type=Path), help="Path of a figure.")
def main(sizes: tuple[str, ...], names: tuple[str, ...], figure: Path | None) -> None:
    results: dict[int, dict[str, Row]] = {}
    for rows, sets in (map(int, size.split(":")) for size in sizes):
        laws = [law for law in LAWS if not names or law.name in names]
        values = {law.name: [trial(law, rows, seed) for seed in range(sets)] for law in laws}
        results[rows] = {name: summary(np.array(trials)) for name, trials in values.items()}
        print(f"\nExcess risk × 10⁶, {rows:,} rows, {sets} data sets\n")
        print(table("law", results[rows], (*ESTIMATORS, "chosen", "h = 0")))
    if not names and (real := real_data(Path(os.environ.get("CALIBSCALE_DATA", "."), "data"))):
        print("\nValidated risk above the smallest × 10⁶\n\n" + table("data", real, ESTIMATORS))
    if figure:
        picture(results, figure)


if __name__ == "__main__":
    main()
