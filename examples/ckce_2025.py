"""python examples/ckce_2025.py [FOLDER] [--output FOLDER]: experiments of [MS].

[MS] is Moskvichev & Sejdinovic 2025: CKCE compares conditional distributions, so that it ranks
models by calibration and not by the distribution of their predictions.  FOLDER holds the CIFAR-10
files cifar10_*.npz with arrays logits and labels (or has them in data/). Without it Table 1 and
Figure 3 are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.stats import binomtest

from calibscale import (
    CKCE,
    CMMD,
    ECE,
    JKCE,
    NLL,
    Accuracy,
    ArraySource,
    JKCEBiased,
    OneHot,
    RandomFourier,
    SimplexECE,
    evaluate,
    from_arrays,
)
from calibscale.simulation import GENERATORS, Dirichlet, configured

METRICS = ("CKCE", "JKCE", "ECE")
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red")
PAIRS = (("true", "under"), ("true", "over"), ("marginal", "under"), ("marginal", "over"))
SIZES = (50, 100, 200, 500, 1000, 2000)
ALPHAS = np.arange(-10, 11) / 10
NETWORKS = ("densenet121", "resnet110", "resnet50")
TABLE_1 = ("accuracy", "cross entropy", "CKCE × 10", "JKCE × 100", "ECE")
PAPER_TABLE_1 = {
    "LeNet": (0.727, 0.823, 0.301, 0.311, 0.226),
    "DenseNet": (0.924, 0.421, 0.096, 0.071, 0.119),
    "ResNet": (0.936, 0.355, 0.078, 0.058, 0.100),
    "marginal": (0.100, 2.303, 0.000, -0.010, 0.000),
}
RANKED_IN_PAPER = {"CKCE": "0.700", "JKCE": "a little above 0.5", "ECE": "not stated"}


def measure(source: ArraySource, seed: int) -> np.ndarray:
    """CKCE, JKCE and ECE as in [MS §5]. The bandwidth is the median distance of each model.

    CKCE has 100 random frequencies, drawn from `seed`, and λ = n^(−1/4). JKCE sums every pair.
    """
    requested = (CKCE(RandomFourier(seed=seed)), JKCE(method="tiles"), SimplexECE())
    return np.array([result.value for result in evaluate(source, requested).estimates])


class Share(NamedTuple):
    """A proportion and its Wilson score interval of 95 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, trials: int) -> Share:
        interval = binomtest(int(count), trials).proportion_ci(method="wilson")
        return cls(count / trials, interval.low, interval.high)

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def verdict(claim: str, holds: bool, numbers: str) -> None:
    print(f"{'holds' if holds else 'DOES NOT HOLD'}: {claim} ({numbers})")


def figure_of(*grid: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(*grid, figsize=size, layout="constrained", squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"saved {path}")


# ---------------------------------------------------------------- Appendix A


def toy(tenths: int) -> np.ndarray:
    """CKCE, CMMD of level 1 and 2, biased JKCE and ECE of Table 2 with p = tenths / 10.

    The frequencies in twenty rows are the probabilities of the table: Q = 0.3 in a share p of
    them and 0.6 in the rest. Half of the labels are 1 for both.
    """
    points = ((0.7, 0.3), (0.4, 0.6))
    q = np.repeat(points, [2 * tenths, 20 - 2 * tenths], axis=0)
    features = OneHot(points)
    requested = (
        CKCE(features, ridge=0.0),
        CMMD(features, ridge=0.0, exponent=1.0),
        CMMD(features, ridge=0.0, exponent=2.0),
        JKCEBiased(features),
        SimplexECE(),
    )
    source = from_arrays(probabilities=q, labels=np.arange(20) % 2)
    return np.array([result.value for result in evaluate(source, requested).estimates])


def toy_formulas(p: float) -> np.ndarray:
    """Closed forms of these, for JKCE and CMMD of level 2 by [MS App. A]."""
    joint = 0.1 * p**2 - 0.04 * p + 0.02
    return np.array([0.1, 0.06 * p + 0.02, joint, joint, 0.2 + 0.2 * p])


def appendix_a() -> None:
    print("\nAppendix A: one-hot features, ridge 0")
    print("    p      CKCE   CMMD 1   CMMD 2     JKCE      ECE")
    missed = 0.0
    for tenths in range(1, 10):
        values = toy(tenths)
        missed = max(missed, float(abs(values - toy_formulas(tenths / 10)).max()))
        print(f"{tenths / 10:5.1f}  " + "".join(f"{value:9.5f}" for value in values))
    print(f"0.1, 0.06p + 0.02, 0.1p² − 0.04p + 0.02 twice, 0.2 + 0.2p: all within {missed:.0e}")
    print("The paper has 0.4 − 0.2p for ECE: there p and 1 − p of its Table 2 are exchanged.")


# ---------------------------------------------------------------- Figure 1


def reliability(seed: int = 0, rows: int = 1000) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Mean confidence in class 0 and its frequency by bin, and CKCE, of three models [MS C.2]."""
    by_name = {}
    for name, sharpness in (("true", 1.0), ("under-confident", 0.5), ("over-confident", 2.0)):
        draw = Dirichlet(name, 2, 1.0, sharpness).draw(seed, 0, rows)
        odds = draw.logits[:, 0] - draw.logits[:, 1]
        source = from_arrays(logits=odds, labels=1 - draw.labels, binary=True)
        (ece,) = evaluate(source, (ECE(bins=10, notion="positive"),)).estimates
        bins = [row for row in ece.details["bins"] if row["count"]]
        confidence, frequency = np.array([(b["mean_p"], b["frequency"]) for b in bins]).T
        by_name[name] = confidence, frequency, measure(source, 0)[0]
    return by_name


def figure_1(output: Path) -> None:
    print("\nFigure 1: reliability of binary models, Dirichlet(1, 1), 1,000 rows")
    print("(C.2 writes clr(f/2), which is clr(f): clr(f)/2 of C.1 is what is drawn)")
    result = reliability()
    figure, ((axis,),) = figure_of(1, 1, size=(5.2, 4.6))
    axis.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    for color, (name, (confidence, frequency, ckce)) in zip(COLORS, result.items(), strict=False):
        axis.plot(
            confidence,
            frequency,
            "o-",
            color=color,
            clip_on=False,
            label=f"{name}: CKCE = {ckce:.4f}",
        )
        print(
            f"{name:16} CKCE {ckce:.4f}, {len(confidence)} bins, largest gap "
            f"{abs(confidence - frequency).max():.3f}"
        )
    axis.set(xlabel="mean confidence in class 0", ylabel="frequency of class 0")
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    save(figure, output / "figure_1.png")


# ---------------------------------------------------------------- Figure 2


def rankings(trials: int, sizes: Sequence[int] = SIZES, seed: int = 0) -> np.ndarray:
    """Trials in which the calibrated model has the smaller estimate: (sizes, pairs, metrics).

    The models of a trial share its rows. No two trials share a row.
    """
    wins = np.zeros((len(sizes), len(PAIRS), len(METRICS)), int)
    start = 0
    for wins_of_size, n in zip(wins, sizes, strict=True):
        with click.progressbar(range(trials), label=f"{trials} trials, n = {n}") as bar:
            for trial in bar:
                values = {}
                for model in ("true", "marginal", "under", "over"):
                    draw = GENERATORS[f"ms-{model}"].draw(seed, start, start + n)
                    source = from_arrays(logits=draw.logits, labels=draw.labels)
                    values[model] = measure(source, trial)
                wins_of_size += [values[good] < values[bad] for good, bad in PAIRS]
                start += n
    return wins


def figure_2(output: Path, trials: int, sizes: Sequence[int]) -> None:
    print("\nFigure 2: proportion of trials in which the calibrated model is ranked first")
    wins = rankings(trials, sizes)
    for p, (good, bad) in enumerate(PAIRS):
        print(f"\n{good} before {bad}\n" + " " * 6 + "".join(f"{m:^23}" for m in METRICS))
        for s, n in enumerate(sizes):
            print(f"{n:6}" + "".join(f"  {Share.of(w, trials)!s}" for w in wins[s, p]))
    mean = wins.mean(axis=1) / trials
    print("\nmean of the four pairs\n" + " " * 6 + "".join(f"{m:>8}" for m in METRICS))
    for s, n in enumerate(sizes):
        print(f"{n:6}" + "".join(f"{value:8.3f}" for value in mean[s]))
    few = np.array(sizes) <= 200
    lead = mean[few, :1] - mean[few, 1:]
    verdict(
        "averaged over the four pairs CKCE exceeds JKCE and ECE at n ≤ 200",
        bool((lead > 0).all()),
        f"by {lead.min():.3f} or more",
    )
    least = wins[np.array(sizes) >= 1000, :, 0].min()
    verdict(
        "CKCE ranks every pair correctly in 95 % of trials at n ≥ 1000",
        bool(least >= 0.95 * trials),
        f"{Share.of(least, trials)} or more",
    )

    figure, axes = figure_of(2, 2, size=(8, 6), sharex=True, sharey=True)
    for p, ((good, bad), axis) in enumerate(zip(PAIRS, axes.flat, strict=True)):
        for m, metric in enumerate(METRICS):
            shares = np.array([Share.of(w, trials) for w in wins[:, p, m]])
            value, low, high = shares.T
            x = np.array(sizes) * 1.06 ** (m - 1)  # beside each other
            error = np.maximum([value - low, high - value], 0.0)
            axis.errorbar(
                x,
                value,
                error,
                fmt=("o-", "s-", "D-")[m],
                markersize=4,
                capsize=3,
                color=COLORS[m],
                label=metric,
                linewidth=1.2,
            )
        axis.axhline(0.5, color="lightgrey", linestyle=":", zorder=0)
        axis.set(title=f"{good} before {bad}", xscale="log", ylim=(-0.03, 1.05))
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.minorticks_off()
    figure.supxlabel("rows n")
    figure.supylabel(f"proportion of {trials} trials")
    axes[0, 0].legend(frameon=False, loc="lower right")
    save(figure, output / "figure_2.png")


# ---------------------------------------------------------------- Table 1, Figure 3


class Predictions(NamedTuple):
    """Logits (n, K) and labels (n,)."""

    logits: np.ndarray
    labels: np.ndarray

    def of_rows(self, rows: slice | np.ndarray) -> ArraySource:
        return from_arrays(logits=self.logits[rows], labels=self.labels[rows])


def networks(folder: Path) -> dict[str, Predictions]:
    """Predictions of the CIFAR-10 networks, and of the marginal model."""
    models = {}
    for name in NETWORKS:
        with np.load(folder / f"cifar10_{name}.npz") as arrays:
            models[name] = Predictions(arrays["logits"], arrays["labels"].astype(np.int64))
    last = models[name]
    return models | {"marginal": last._replace(logits=np.zeros_like(last.logits))}


def whole_set(models: Mapping[str, Predictions]) -> np.ndarray:
    """Accuracy, cross entropy, CKCE, JKCE and ECE of all rows: (models, 5)."""
    collected = []
    for model in models.values():
        source = model.of_rows(slice(None))
        scores = evaluate(source, (Accuracy(), NLL())).estimates
        collected.append([*(score.value for score in scores), *measure(source, 0)])
    return np.array(collected)


def subsets(
    models: Mapping[str, Predictions], trials: int, rows: int = 500, seed: int = 0
) -> np.ndarray:
    """The metrics on random rows, the same for all models: (trials, models, metrics)."""
    values = np.empty((trials, len(models), len(METRICS)))
    (total,) = {len(model.labels) for model in models.values()}
    with click.progressbar(range(trials), label=f"{trials} trials, n = {rows}") as bar:
        for trial in bar:
            chosen = np.random.default_rng([seed, trial]).permutation(total)[:rows]
            for m, model in enumerate(models.values()):
                values[trial, m] = measure(model.of_rows(chosen), trial)
    return values


def ranked_alike(values: np.ndarray, all_rows: np.ndarray) -> np.ndarray:
    """Trials in which a metric orders the models as on all rows: (metrics,)."""
    return (values.argsort(axis=1) == all_rows.argsort(axis=0)).all(axis=1).sum(axis=0)


def table_1(models: Mapping[str, Predictions]) -> np.ndarray:
    """Print it. Return CKCE, JKCE and ECE of all rows, (models, metrics)."""
    all_rows = whole_set(models)
    print("\nTable 1: CIFAR-10, all 10,000 rows")
    print(" " * 18 + "  ".join(f"{column:>6}" for column in TABLE_1))
    shown = dict(zip(models, all_rows * [1, 1, 10, 100, 1], strict=True))
    for origin, rows in (("here", shown), ("paper", PAPER_TABLE_1)):
        for name, row in rows.items():
            cells = (f"{v:{max(6, len(c))}.3f}" for v, c in zip(row, TABLE_1, strict=True))
            print(f"{origin:5}  {name:11}" + "  ".join(cells))
    print(
        "The networks are not those of the paper: compare layout and order, not the numbers."
        "\nThe marginal model depends on the labels alone: its row is that of the paper."
    )
    return all_rows[:, 2:]


def figure_3(output: Path, models: Mapping[str, Predictions], trials: int) -> None:
    all_rows = table_1(models)
    print("\nFigure 3: estimates on 500 of the rows")
    values = subsets(models, trials)
    alike = ranked_alike(values, all_rows)
    clear = ranked_alike(values[:, 1:], all_rows[1:])
    first = (values[:, -1:] < values[:, :-1]).all(axis=1).sum(axis=0)
    names = np.array(list(models))
    print("proportion of trials that order the models as all rows do (paper: other models)")
    for m, metric in enumerate(METRICS):
        print(
            f"{metric:4}  {Share.of(alike[m], trials)}  (paper: {RANKED_IN_PAPER[metric]}); "
            f"{' < '.join(names[all_rows[:, m].argsort()])}"
        )
    apart = abs(all_rows[0] / all_rows[2] - 1)
    numbers = ", ".join(f"{m} {100 * a:.0f} %" for m, a in zip(METRICS, apart, strict=True))
    print(f"{names[0]} and {names[2]} almost tie (difference {numbers} on all rows).  Hence:")
    print(f"      order without {names[0]:11}  marginal first")
    for m, metric in enumerate(METRICS):
        print(f"{metric:4}  {Share.of(clear[m], trials)!s:26} {Share.of(first[m], trials)}")

    figure, (axes,) = figure_of(1, 3, size=(11, 3.6))
    for m, (metric, scale, axis) in enumerate(zip(METRICS, (10, 100, 1), axes, strict=True)):
        shown = scale * values[:, :, m]
        edges = np.linspace(shown.min(), shown.max(), 60)
        if metric == "ECE":  # that of the marginal model is a multiple of 2/500
            edges = np.arange(-0.002, shown.max() + 0.008, 0.008)
        for i, name in enumerate(names):
            axis.hist(shown[:, i], edges, color=COLORS[i], alpha=0.15)
            axis.hist(shown[:, i], edges, color=COLORS[i], histtype="step", lw=1.3, label=name)
        axis.set(xlabel=f"{metric} × {scale}" if scale > 1 else metric, yticks=[])
        axis.set_xlim(shown.min(), np.quantile(shown, 0.9995))
        axis.set_title(f"ranked as by all rows: {alike[m] / trials:.3f}", fontsize=10)
        axis.spines["left"].set_visible(False)
    axes[0].set_ylabel(f"{trials} trials of 500 rows")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save(figure, output / "figure_3.png")


# ---------------------------------------------------------------- Figure 4


def shifts(
    repetitions: int, alphas: Sequence[float] | np.ndarray = ALPHAS, rows: int = 1000, seed: int = 0
) -> np.ndarray:
    """The metrics for inputs around α [MS §5.2.1]: (alphas, repetitions, metrics)."""
    values = np.empty((len(alphas), repetitions, len(METRICS)))
    start = 0
    with click.progressbar(alphas, label=f"{len(alphas)} α, {repetitions} repetitions") as bar:
        for at_alpha, alpha in zip(values, bar, strict=True):
            generator = configured("shift", None, {"alpha": float(alpha)}, seed)
            for repetition in range(repetitions):
                draw = generator.draw(seed, start, start + rows)
                source = from_arrays(logits=draw.logits, labels=draw.labels)
                at_alpha[repetition] = measure(source, repetition)
                start += rows
    return values


def relative_range(values: np.ndarray) -> np.ndarray:
    """(largest − smallest mean of an α) / mean over all, by metric."""
    mean = values.mean(axis=1)
    return np.ptp(mean, axis=0) / mean.mean(axis=0)


def figure_4(output: Path, repetitions: int, alphas: np.ndarray) -> None:
    print("\nFigure 4a: covariate shift, 1,000 rows, Q sharper than P by 5; × 100")
    values = shifts(repetitions, alphas)
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / repetitions**0.5
    print("    α" + "".join(f"{metric:^17}" for metric in METRICS))
    for i, alpha in enumerate(alphas):
        pairs = zip(100 * mean[i], 100 * error[i], strict=True)
        print(f"{alpha:5.1f}" + "".join(f"  {a:6.3f} ± {b:.3f}" for a, b in pairs))
    change = relative_range(values)
    numbers = ", ".join(f"{m} {100 * c:.0f} %" for m, c in zip(METRICS, change, strict=True))
    verdict(
        "(range over α) / mean: CKCE ≤ 40 %, JKCE > 100 %, ECE ≥ 45 %",
        bool(change[0] <= 0.4 and change[1] > 1 and change[2] >= 0.45),
        numbers,
    )
    print("Figure 4b is omitted: it needs ImageNet images of changed brightness and networks.")

    figure, (axes,) = figure_of(1, 4, size=(12, 3.3))
    x = np.linspace(-1, 1, 201)
    for sharpness, style, label in ((1, "-", "P(Y = 1 | x)"), (5, "--", "Q(Y = 1 | x)")):
        axes[0].plot(x, 1 / (1 + np.exp(-sharpness * x)), style, color="black", label=label)
    for alpha in (-0.8, 0.0, 0.8):
        axes[0].fill_between(x, 0.3 * np.exp(-8 * (x - alpha) ** 2), color="grey", alpha=0.2)
    axes[0].set(xlabel="x", ylim=(0, 1), title="P, Q and inputs at three α")
    axes[0].legend(frameon=False, loc="upper left", fontsize=9)
    for m, (metric, axis) in enumerate(zip(METRICS, axes[1:], strict=True)):
        axis.plot(alphas, values[:, :, m], ".", color=COLORS[m], markersize=3, alpha=0.35)
        axis.plot(alphas, mean[:, m], color=COLORS[m], linewidth=2)
        axis.set(title=f"{metric}: range / mean {100 * change[m]:.0f} %", xlabel="α")
        axis.set_ylim(min(0.0, 1.1 * values[:, :, m].min()), 1.15 * values[:, :, m].max())
    save(figure, output / "figure_4a.png")


# ---------------------------------------------------------------- all of it


@click.command(help=__doc__.split("\n\n", 1)[1], context_settings={"max_content_width": 100})
@click.argument(
    "folder",
    required=False,
    envvar="CALIBSCALE_DATA",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="ckce_2025",
    show_default=True,
    help="Folder of the figures.",
)
@click.option(
    "--trials",
    type=click.IntRange(2),
    help="Trials of Figure 3; a tenth in Figure 2, "
    "a fiftieth in Figure 4.  Default: 1000, or 100 with --quick.",
)
@click.option("--quick", is_flag=True, help="Fewer sizes, shifts and trials.")
def main(folder: Path | None, output: Path, trials: int | None, quick: bool) -> None:
    import matplotlib

    matplotlib.use("Agg")
    output.mkdir(parents=True, exist_ok=True)
    trials = trials or (100 if quick else 1000)
    models = None
    if folder is not None:
        inner = folder / "data"
        try:
            models = networks(inner if inner.is_dir() else folder)
        except FileNotFoundError as error:
            raise click.ClickException(str(error)) from error
    started = time.perf_counter()
    appendix_a()
    figure_1(output)
    figure_2(output, max(2, trials // 10), SIZES[::2] if quick else SIZES)
    if models is None:
        print("\nTable 1 and Figure 3 are left out: no data folder was given")
    else:
        figure_3(output, models, trials)
    figure_4(output, max(2, trials // 50), ALPHAS[::5] if quick else ALPHAS)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
