"""python examples/estimator_arena.py: which calibration estimator has the smallest risk?

The risk of [GB] exceeds that of the true function h*(p, p') = r(p) r(p'), r(p) = E[δ | p], by
E[(h(p, p') − r(p) r(p'))²] over independent p and p'.  For twelve laws with known r, every estimator
of `select` is fitted to simulated rows, its hyper-parameter is chosen by the risk on other folds, and
the excess of its risk is computed at fresh predictions, without noise of labels.  `chosen` is the
estimator that `select` takes.  For the networks in the directory that CALIBSCALE_DATA names, whose r
is unknown, the differences of validated risks are shown.  [GB] is Gruber & Bach 2025.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.special import expit, logit

from calibscale import from_arrays, select
from calibscale.data import NotionView
from calibscale.selection.families import FittedFamily

ESTIMATORS = (
    "bins", "bins_cube_root", "bins_sweep", "isotonic", "smooth_ece", "kde", "kkr", "ukkr",
    "temperature",
)  # fmt: skip
FRESH = 20_000  # predictions at which functions are compared
NOTIONS = ("top_label", "positive")


@dataclass(frozen=True)
class Law:
    """Law of scores p with P(event | p) = `truth(p)`.

    The event is class 1 of two, or that the top label of K classes is right.
    """

    name: str
    scores: Callable[[np.random.Generator, int], np.ndarray]
    truth: Callable[[np.ndarray], np.ndarray]
    classes: int = 2

    @property
    def notion(self) -> str:
        return "positive" if self.classes == 2 else "top_label"

    def gaps(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Predictions (n, J) of the J problems of the notion, and r there."""
        p = self.scores(rng, n)[:, None]
        return p, p - self.truth(p)

    def rows(self, rng: np.random.Generator, n: int) -> dict[str, Any]:
        """Predictions and labels."""
        p, K = self.scores(rng, n), self.classes
        event = rng.random(n) < self.truth(p)
        if K == 2:
            return {"probabilities": p, "labels": event.astype(int), "binary": True}
        top, other = rng.integers(0, K, n), rng.integers(1, K, n)
        q = np.repeat(((1 - p) / (K - 1)).astype(np.float32)[:, None], K, axis=1)
        q[np.arange(n), top] = p
        return {"probabilities": q, "labels": np.where(event, top, (top + other) % K)}


@dataclass(frozen=True)
class Smoothed(Law):
    """q ~ Dirichlet(0.3), and labels of (1 − a) q + a/K; every class is a problem."""

    share: float = 0.1

    @property
    def notion(self) -> str:
        return "class_wise"

    def gaps(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        q = rng.dirichlet(np.full(self.classes, 0.3), n)
        return q, self.share * (q - 1 / self.classes)

    def rows(self, rng: np.random.Generator, n: int) -> dict[str, Any]:
        q, r = self.gaps(rng, n)
        labels = (rng.random(n)[:, None] > (q - r).cumsum(axis=1)[:, :-1]).sum(axis=1)
        return {"probabilities": q, "labels": labels}


def uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.random(n)


def beta(a: float, b: float, low: float = 0.0) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, n: low + (1 - low) * rng.beta(a, b, n)


ATOMS, ERRORS = np.arange(0.05, 1, 0.1), np.array([5, -3, 8, -6, 2, 9, -8, 4, -9, -4]) / 100
LAWS = (
    Law("calibrated", uniform, lambda p: p),
    Law("overconfident", beta(0.7, 0.7), lambda p: expit(logit(p) / 1.5)),
    Law("shifted log-odds", uniform, lambda p: expit(1.3 * logit(p) - 0.4)),
    Law("four steps", uniform, lambda p: 0.1 + 0.25 * np.floor(4 * p)),
    Law("waves, not monotone", uniform, lambda p: p + 0.4 * p * (1 - p) * np.sin(6 * np.pi * p)),
    Law("dip at 0.7", uniform, lambda p: p - 0.3 * np.exp(-(((p - 0.7) / 0.02) ** 2) / 2)),
    Law("ten atoms", lambda rng, n: rng.choice(ATOMS, n),
        lambda p: p + ERRORS[np.rint(10 * p - 0.5).astype(int)]),
    Law("half the rows at 0.5", lambda rng, n: np.where(rng.random(n) < 0.5, 0.5, rng.random(n)),
        lambda p: np.where(p == 0.5, 0.6, expit(0.8 * logit(p)))),
    Law("rare events, 1 %", beta(0.5, 49.5), lambda p: p / 2),
    Law("10 classes, top label", beta(2, 0.4, 0.11), lambda p: 0.1 + 0.8 * (p - 0.1), 10),
    Law("100 classes, top label", beta(1.2, 0.8, 0.02), lambda p: p**1.3, 100),
    Smoothed("10 classes, each", uniform, uniform, 10),  # type: ignore[arg-type]
)  # fmt: skip


def excess(fit: FittedFamily, p: np.ndarray, r: np.ndarray) -> float:
    """E[(h(p, p') − r(p) r(p'))²], summed over problems, at predictions and true gaps (n, J)."""
    total = 0.0
    for j, (own, true) in enumerate(zip(p.T, r.T, strict=True)):
        pair = np.column_stack([own, 1 - own])
        logs = np.log(np.maximum(pair, 5e-324))
        view = NotionView(np.arange(len(own)), pair[:, :1], pair, logs, true[:, None], true)
        if hasattr(fit, "matrix"):  # kkr: h(p, p') = φᵀBφ'
            phi, B = fit.basis.phi(j, view), fit.matrix(j, 0)  # type: ignore[attr-defined]
            SB, c = phi.T @ phi @ B / len(phi), phi.T @ true / len(phi)
            total += np.vdot(SB, SB.T) - 2 * c @ B @ c + np.mean(true**2) ** 2
        else:  # h(p, p') = r̂(p) r̂(p')
            ours = fit.residuals(j, view)[0, :, 0]
            total += np.mean(ours**2) ** 2 - 2 * np.mean(ours * true) ** 2 + np.mean(true**2) ** 2
    return float(total)


def trial(law: Law, rows: int, seed: int) -> list[float]:
    """Excess risk of each estimator, the mean over its fits, and of the one with least risk."""
    rng = np.random.default_rng([seed, rows, *law.name.encode()])
    source = from_arrays(**law.rows(rng, rows))
    fresh = law.gaps(np.random.default_rng(0), FRESH)
    values, risks = [], []
    for name in ESTIMATORS:
        selection = select(source, law.notion, [name], seed=seed)
        risks.append(selection.selected.risk)
        fits = selection.pointwise.fits
        values.append(float(np.mean([excess(fit, *fresh) for fit in fits])))
    return [*values, values[int(np.argmin(risks))]]


class Row(NamedTuple):
    """Means and standard errors, and whether a mean is within two paired errors of the least."""

    mean: np.ndarray
    error: np.ndarray
    tied: np.ndarray


def summary(values: np.ndarray) -> Row:
    """Row of the values of data sets (sets, estimators)."""
    mean, root = values.mean(axis=0), np.sqrt(len(values))
    apart = values - values[:, [int(np.argmin(mean[: len(ESTIMATORS)]))]]
    error, paired = (v.std(axis=0, ddof=min(1, len(v) - 1)) / root for v in (values, apart))
    return Row(mean, error, apart.mean(axis=0) <= 2 * paired)


def table(first: str, rows: dict[str, Row], columns: tuple[str, ...]) -> str:
    """Markdown table of 10⁶ times the means ± standard errors; `tied` ones are bold."""
    number = lambda x, digits: f"{x:.{digits}g}" if x < 99 else f"{x:.0f}"  # noqa: E731
    lines = [(first, *columns), ("---",) * (1 + len(columns))]
    for name, row in rows.items():
        cells = [
            f"{number(1e6 * m, 3)} ± {number(1e6 * e, 2)}" for m, e, _ in zip(*row, strict=True)
        ]
        lines.append(
            (name, *(f"**{c}**" if tied else c for c, tied in zip(cells, row.tied, strict=True)))
        )
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [text.ljust(n, "-" if text == "---" else " ") for text, n in zip(line, wide, strict=True)]
        for line in lines
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def networks(folder: Path) -> dict[str, Row]:
    """Validated risks of each network above the smallest."""
    rows = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            if "logits" in arrays:
                data = {"logits": arrays["logits"], "labels": arrays["labels"].astype(int)}
            else:
                data = {"probabilities": arrays["p"], "labels": arrays["y"].astype(int)}
        binary = "probabilities" in data
        result = select(from_arrays(**data, binary=binary), NOTIONS[binary], ESTIMATORS)
        best = [result.best_of(name) for name in ESTIMATORS]
        mean, error = np.array([(c.difference, c.difference_error) for c in best]).T
        rows[f"{path.stem}, {len(data['labels']):,} rows"] = Row(mean, error, mean <= 2 * error)
    return rows


def picture(results: dict[int, dict[str, Row]], path: Path) -> None:
    """Factor by which the excess of each estimator is above the smallest."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(results), figsize=(4.5 * len(results) + 2, 5), sharey=True, layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for ax, (rows, laws) in zip(axes[0], results.items(), strict=True):
        means = np.array([mean[: len(ESTIMATORS)] for mean, *_ in laws.values()])
        factors = means / means.min(axis=1, keepdims=True)
        image = ax.imshow(np.log10(factors), vmin=0, vmax=2, cmap="viridis_r", aspect="auto")
        ax.set_xticks(range(len(ESTIMATORS)), ESTIMATORS, rotation=60, ha="right")
        ax.set_yticks(range(len(laws)), laws)
        ax.set_title(f"{rows:,} rows")
    bar = figure.colorbar(image, ax=axes, ticks=[0, 1, 2])
    bar.ax.set_yticklabels(["best", "10 times", "100 times"])
    figure.savefig(path, dpi=120)


@click.command(help=__doc__.split("\n\n", 1)[1])
@click.option("--size", "sizes", multiple=True, default=("1000:10", "10000:5"), show_default=True,
              metavar="ROWS:SETS", help="Rows, and number of data sets (repeatable).")  # fmt: skip
@click.option("--law", "names", multiple=True, type=click.Choice([law.name for law in LAWS]),
              help="Only these laws (repeatable).")  # fmt: skip
@click.option("--figure", type=click.Path(path_type=Path), help="Path of a figure.")
def main(sizes: tuple[str, ...], names: tuple[str, ...], figure: Path | None) -> None:
    results: dict[int, dict[str, Row]] = {}
    for rows, sets in (map(int, size.split(":")) for size in sizes):
        results[rows] = {
            law.name: summary(np.array([trial(law, rows, seed) for seed in range(sets)]))
            for law in LAWS
            if not names or law.name in names
        }
        print(f"\nExcess risk × 10⁶, {rows:,} rows, {sets} data sets\n")
        print(table("law", results[rows], (*ESTIMATORS, "chosen")))
    folder = Path(os.environ.get("CALIBSCALE_DATA", ".")) / "data"
    if not names and (real := networks(folder)):
        print("\nValidated risk above the smallest × 10⁶\n")
        print(table("model", real, ESTIMATORS))
    if figure:
        picture(results, figure)


if __name__ == "__main__":
    main()
