"""python examples/i_trustworthy_2025.py [FOLDER] [--output FOLDER]: experiments of [VF].

[VF] is Vashistha & Farahi 2025: inference about x may use a classifier's probabilities if they are
calibrated for every x, which KLCE tests.  FOLDER holds homeownership_lr, adult_lr, heart_lr and
compas_rf (.npz with arrays p = P(y = 1), y, x, x_names; or has them in data/); without it Table 2
and Figures 4 and 6 are left out.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.stats import binom, binomtest

from calibscale import (
    ECE,
    KLCE,
    MCE,
    ArraySource,
    BiasMap,
    Brier,
    TestResult,
    calibration_test,
    evaluate,
    from_arrays,
    local_bias,
)
from calibscale.auditing.recalibration import (
    Isotonic,
    LocalBias,
    Platt,
    TemperatureScaling,
    recalibrated,
)
from calibscale.simulation import configured

LEVEL = 0.05
NULLS = ("labels", "residual", "permute")
TITLES = {
    "labels": "labels: drawn from predictions",
    "residual": "residual: resampled (Algorithm 1)",
    "permute": "permute: as in the published code",
}
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red")
MISSING = (
    "Figures 1 and 2, Table 1 and the rows XE + MMCE and XE + MMD of Table 2 need models whose\n"
    "predictions are missing; BBQ in Figure 4 is not part of calibscale: all are left out."
)

DIMENSIONS = (10, 20, 30, 40, 50)
SIZES = (500, 1000)
PAPER_FIGURE_3 = {  # as the published code printed them, of 1,000 data sets
    500: (0.006, 0.069, 0.242, 0.426, 0.534),
    1000: (0.000, 0.001, 0.012, 0.051, 0.150),
}
WIDTH = 5.0  # of the published code for Figure 3, for predictions and covariates alike
WIDTHS = (0.1, 0.5, 2.0, 10.0)
SIZES_5 = (100, 300, 1000)

PAPER_TABLE_2 = {  # Brier score, ECE, KLCE², p
    "homeownership_lr": (0.1699, 0.0193, 0.0006, 0.002),
    "adult_lr": (0.1080, 0.0478, 0.0009, 0.002),
    "heart_lr": (0.1162, 0.1014, 0.0031, 0.26),
}
PAPER_FIGURE_4 = {  # Brier score, ECE, MCE, KLCE², as the published code printed them
    "No calibration": (0.262, 0.160, 0.269, 0.032),
    "Platt": (0.231, 0.022, 0.037, 0.003),
    "Temperature": (0.241, 0.091, 0.207, 0.005),
    "Isotonic": (0.231, 0.018, 0.046, 0.002),
}
GAMMA = {"compas_rf": 0.5}  # of exp(−γ‖x − x'‖²); elsewhere 25
PROBABILITY_WIDTH = 0.1


def klce_of(covariates: Iterable[str], width: float, gamma: float, **options: Any) -> KLCE:
    """KLCE with exp(−((p − p')/width)²) exp(−γ‖x − x'‖²); binary columns are treated alike."""
    return KLCE(
        tuple(covariates), prediction_bandwidth=width / math.sqrt(2),
        covariate_bandwidth=1 / math.sqrt(2 * gamma), **options,
    )  # fmt: skip


def required(value: float | None) -> float:
    return math.nan if value is None else value


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


# ---------------------------------------------------------------- Figures 3 and 5


def rejects(result: TestResult) -> bool:
    """Whether the test rejects at 5 %.

    Permutations are counted as in the published code of Figure 3, not centred as in KiTE and
    `p_value`: all have the Σδ of the data, so that their mean is about that of T.
    """
    if result.null == "permute":
        return bool(np.mean(result.null_values > required(result.value)) <= LEVEL)
    return required(result.p_value) <= LEVEL


def rejections(
    generator: str, d: int, rows: int, widths: Sequence[float], trials: int, replicates: int,
    seed: int = 0, nulls: Sequence[str] = NULLS,
) -> np.ndarray:  # fmt: skip
    """Number of data sets in which the test on all d covariates rejects: (nulls, widths)."""
    made = configured(generator, None, {"d": d}, seed)
    statistics = [klce_of(made.covariate_names, width, width**-2.0) for width in widths]
    counts = np.zeros((len(nulls), len(widths)), int)
    label = f"{generator}, d = {d}, N = {rows}"
    with click.progressbar(range(trials), label=label, file=sys.stderr) as bar:
        for trial in bar:
            draw = made.draw(seed, trial * rows, (trial + 1) * rows)
            source = from_arrays(
                logits=draw.logits, labels=draw.labels, covariates=draw.covariates,
                covariate_names=made.covariate_names,
            )  # fmt: skip
            for count, null in zip(counts, nulls, strict=True):
                outcome = calibration_test(
                    source, statistics, null=null, n_replicates=replicates, seed=trial
                )
                count += [rejects(result) for result in outcome.results]
    return counts


def wilson(counts: np.ndarray, trials: Any) -> np.ndarray:
    """Distances from proportions down and up to the ends of their 95 % intervals, (2, …)."""
    pairs = np.rint(np.broadcast_arrays(counts, trials)).astype(int).T.tolist()
    ends = [binomtest(*pair).proportion_ci(method="wilson") for pair in pairs]
    share = counts / trials
    return np.maximum([share - [e.low for e in ends], [e.high for e in ends] - share], 0.0)


def figure_3(
    output: Path, trials: int, replicates: int, dimensions: Sequence[int], sizes: Sequence[int]
) -> None:
    print("\nFigure 3: type-II error; the model lacks the last of the d covariates")
    print(f"{trials} data sets and {replicates} replicates (paper: 1000, 1000); kernels "
          f"exp(−(distance/{WIDTH:g})²)\nfor p and for x, as in the published code")  # fmt: skip
    shape = (len(sizes), len(NULLS), len(dimensions))
    accepted = np.empty(shape, int)
    for s, rows in enumerate(sizes):
        for j, d in enumerate(dimensions):
            result = rejections("missing", d, rows, (WIDTH,), trials, replicates)
            accepted[s, :, j] = trials - result[:, 0]
    beside = np.array([[dict(zip(DIMENSIONS, PAPER_FIGURE_3[n], strict=True))[d]
                        for d in dimensions] for n in sizes])  # fmt: skip
    for s, rows in enumerate(sizes):
        print(f"N = {rows:4}   " + "".join(f"  d = {d}" for d in dimensions))
        for null, counts in zip(NULLS, accepted[s], strict=True):
            print(f"{null:11}" + "".join(f"{c / trials:8.3f}" for c in counts))
        print(f"{'paper':11}" + "".join(f"{value:8.3f}" for value in beside[s]))
    for k, words in ((2, "the permutations of the published code"), (1, "Algorithm 1 as printed")):
        rates = accepted[:, k] / trials
        pooled = (accepted[:, k] + 1000 * beside) / (trials + 1000)
        noise = np.sqrt(pooled * (1 - pooled) * (1 / trials + 1 / 1000)) + 1 / trials
        far = (abs(rates - beside) / noise).max()
        verdict(f"{words}: the rates agree with the paper", bool(far <= 3),
                f"at most {far:.1f} standard errors away")  # fmt: skip
    ends = np.diff(accepted[..., [0, -1]])
    verdict("the type-II error grows with the dimension", bool((ends > 0).all()),
            f"from d = {dimensions[0]} to {dimensions[-1]} by {ends.min() / trials:.3f} or more, "
            "every null and N")  # fmt: skip
    if len(sizes) > 1:
        fall = -np.diff(accepted.mean(axis=-1), axis=0).min() / trials
        verdict("and falls with N", bool(fall > 0), f"mean over d, by {fall:.3f} or more")
    print(
        "With so wide a kernel most of the noise of T is (Σδ)².  Drawn labels redraw it;"
        "\npermutations keep that of the data, which leaves the rest visible; resampled residuals,"
        "\nwhich Algorithm 1 does not centre, add noise to it, so that T* is above T too often."
    )

    figure, (axes,) = figure_of(1, len(sizes), size=(4 * len(sizes) + 2.8, 3.6), sharey=True)
    for s, (rows, axis) in enumerate(zip(sizes, axes, strict=True)):
        for k, null in enumerate(NULLS):
            counts = accepted[s, k]
            axis.errorbar(dimensions, counts / trials, wilson(counts, trials),
                          fmt=("o-", "s-", "D-")[k], color=COLORS[k], markersize=4, capsize=3,
                          linewidth=1.2, label=TITLES[null])  # fmt: skip
        axis.plot(dimensions, beside[s], "x--", color="black", linewidth=1, label="paper")
        axis.set(title=f"N = {rows}", xlabel="dimension of X", xticks=dimensions)
        axis.set_ylim(-0.03, 1.03)
    axes[0].set_ylabel("type-II error at 5 %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    save(figure, output / "figure_3.png")


def figure_5(
    output: Path, trials: int, replicates: int, widths: Sequence[float], sizes: Sequence[int]
) -> None:
    print("\nFigure 5: type-I error at 5 %; the model is the Bayes classifier of 2 covariates")
    print(f"{trials} data sets, {replicates} replicates; one kernel width for p and x, "
          "chosen here:\nthe paper states no d, widths or rates")  # fmt: skip
    values = np.stack([rejections("bayes", 2, n, widths, trials, replicates) for n in sizes])
    rates = values / trials
    print(f"{'':11}{'N':>5}" + "".join(f"{'width ' + format(w, 'g'):>11}" for w in widths))
    for k, null in enumerate(NULLS):
        for s, rows in enumerate(sizes):
            print(f"{null:11}{rows:5}" + "".join(f"{rate:11.3f}" for rate in rates[s, k]))
    for k, null in enumerate(NULLS):
        share = 0.01 / values[:, k].size  # Bonferroni
        low, high = binom.ppf([share / 2, 1 - share / 2], trials, LEVEL) / trials
        inside = (rates[:, k] >= low) & (rates[:, k] <= high)
        verdict(f"type-I error of {null} is 5 % for every width and N", bool(inside.all()),
                f"{rates[:, k].min():.3f} to {rates[:, k].max():.3f}, 99 % band of "
                f"{inside.size} cells {low:.3f} to {high:.3f}")  # fmt: skip

    figure, (axes,) = figure_of(1, len(NULLS), size=(4 * len(NULLS), 3.6), sharey=True)
    band = binom.ppf([0.025, 0.975], trials, LEVEL) / trials
    for k, (null, axis) in enumerate(zip(NULLS, axes, strict=True)):
        axis.axhspan(*band, color="lightgrey", alpha=0.6, linewidth=0,
                     label="95 % of the rates of an exact test")  # fmt: skip
        axis.axhline(LEVEL, color="grey", linestyle="--", linewidth=1)
        for s, rows in enumerate(sizes):
            axis.plot(widths, rates[s, k], "osD"[s] + "-", color=COLORS[s], markersize=4,
                      linewidth=1.2, label=f"N = {rows}")  # fmt: skip
        axis.set(xscale="log", xlabel="kernel width", xlim=(widths[0] / 1.5, widths[-1] * 1.5))
        axis.set_xticks(widths, [f"{w:g}" for w in widths])
        axis.minorticks_off()
        axis.set_title(TITLES[null], fontsize=10)
    axes[0].set(ylabel="type-I error", ylim=(0, max(0.12, 1.1 * rates.max())))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save(figure, output / "figure_5.png")


# ---------------------------------------------------------------- Table 2


class Predictions(NamedTuple):
    """P(y = 1) (n,), labels (n,), covariates (n, d) and their names."""

    p: np.ndarray
    y: np.ndarray
    x: np.ndarray
    names: tuple[str, ...]

    def source(self, as_log_odds: bool = False) -> ArraySource:
        logits, probabilities = (self.p, None) if as_log_odds else (None, self.p)
        return from_arrays(
            logits=logits, probabilities=probabilities, labels=self.y, covariates=self.x,
            covariate_names=self.names, binary=True,
        )  # fmt: skip


def load(folder: Path, name: str, part: str = "") -> Predictions:
    with np.load(folder / f"{name}.npz") as arrays:
        p, y, x = (arrays[key + part] for key in "pyx")
        return Predictions(p, y, x, tuple(map(str, arrays["x_names"])))


def statistic(data: Predictions, name: str) -> KLCE:
    """KLCE² as in the published code: its kernel, divided by (n − 1) ΣK/n as KiTE does."""
    gamma = GAMMA.get(name, 25.0)
    return klce_of(data.names, PROBABILITY_WIDTH, gamma, normalization="kernel_sum")


class Scores(NamedTuple):
    """Brier score of y = 1, ECE, MCE, KLCE², its p by permute and by labels; occupied bins."""

    brier: float
    ece: float
    mce: float
    klce: float
    permuted: float
    drawn: float
    bins: list[dict[str, Any]]

    @classmethod
    def of(cls, source: ArraySource, klce: KLCE, bins: int, replicates: int) -> Scores:
        binned = (ECE(bins, notion="positive"), MCE(bins, notion="positive"))
        scores = evaluate(source, (Brier(), *binned, klce)).estimates
        brier, ece, mce, value = (required(e.value) for e in scores)
        permuted, drawn = (
            required(
                calibration_test(source, klce, null=null, n_replicates=replicates)
                .results[0]
                .p_value
            )
            for null in ("permute", "labels")
        )
        occupied = [b for b in scores[1].details["bins"] if b["count"]]
        return cls(brier / 2, ece, mce, value, permuted, drawn, occupied)

    @property
    def mean_gap(self) -> float:
        """Unweighted mean |conf − acc| of the bins."""
        return float(np.mean([abs(b["mean_p"] - b["frequency"]) for b in self.bins]))


def scores_of_table_2(folder: Path, name: str, replicates: int) -> Scores:
    data = load(folder, name)
    return Scores.of(data.source(), statistic(data, name), 10, replicates)


def table_2(folder: Path, replicates: int) -> None:
    print("\nTable 2, rows XE: logistic regression.  Splits and solver are not those of the paper,"
          f"\nso numbers agree roughly; {replicates} replicates (paper: 500)")  # fmt: skip
    print(f"{'':24}{'Brier':>8}{'ECE':>9}{'weighted':>10}{'KLCE²':>10}{'p permute':>11}"
          f"{'p labels':>10}")  # fmt: skip
    by_name = {name: scores_of_table_2(folder, name, replicates) for name in PAPER_TABLE_2}
    for name, row in by_name.items():
        print(f"{name:18}here  {row.brier:8.4f}{row.mean_gap:9.4f}{row.ece:10.4f}{row.klce:10.6f}"
              f"{row.permuted:11.3f}{row.drawn:10.3f}")  # fmt: skip
        brier, gap, klce, p = PAPER_TABLE_2[name]
        print(f"{'':18}paper {brier:8.4f}{gap:9.4f}{'':10}{klce:10.4f}{p:11.3f}")
    print(
        "Brier: mean (p − y)², half of calibscale's, which sums over both classes.  ECE: the mean"
        "\n|conf − acc| of 10 equal bins without weights, as in the published code; weighted:"
        f"\nby the rows of a bin, as usual.  KLCE²: kernel width {PROBABILITY_WIDTH:g} for p, "
        "γ = 25 for x, divided by\n(n − 1) ΣK/n."
    )
    p = by_name["heart_lr"].permuted
    verdict("heart_lr: p by permute is between 0.22 and 0.31", 0.22 <= p <= 0.31, f"{p:.3f}")
    largest = max(by_name[name].permuted for name in ("homeownership_lr", "adult_lr"))
    verdict("homeownership_lr, adult_lr: p by permute is at the limit of its resolution",
            largest < 1.5 / replicates, f"{largest:.3f}")  # fmt: skip


# ---------------------------------------------------------------- Figure 4


def recalibrations(fit: Predictions, apply: Predictions) -> dict[str, ArraySource]:
    """Second part as is, and recalibrated by each method fitted to the first."""
    before, after = fit.source(), apply.source()
    # the published code's Platt is sigmoid(a·p + b), of p itself: p takes the place of log-odds,
    # which are infinite for the forest's p = 0 and 1
    platt = Platt().fit(fit.source(as_log_odds=True))
    klce = statistic(fit, "compas_rf")
    local = LocalBias(
        fit.names, prediction_bandwidth=klce.prediction_bandwidth,
        covariate_bandwidth=klce.covariate_bandwidth,
    )  # fmt: skip
    return {
        "No calibration": after,
        "Platt": recalibrated(apply.source(as_log_odds=True), platt),
        "Temperature": recalibrated(after, TemperatureScaling().fit(before)),
        "Isotonic": recalibrated(after, Isotonic().fit(before)),
        "Local bias": recalibrated(after, local.fit(before)),
    }


def figure_4(folder: Path, output: Path, replicates: int) -> None:
    print("\nFigure 4: recidivism, random forest.  Parts of the sizes in the paper, but other "
          f"rows\nand another forest; {replicates} replicates (paper: 1000)")  # fmt: skip
    print(f"{'':21}{'BS':>8}{'ECE':>8}{'MCE':>8}{'KLCE²':>9}{'p permute':>11}{'p labels':>10}")
    data = load(folder, "compas_rf")
    sources = recalibrations(load(folder, "compas_rf", "_val"), data)
    figure, (axes,) = figure_of(1, len(sources), size=(15, 3.6), sharey=True)
    largest = 0.0
    for axis, (name, source) in zip(axes, sources.items(), strict=True):
        result = Scores.of(source, statistic(data, "compas_rf"), 20, replicates)
        largest = max(largest, result.permuted, result.drawn)
        print(f"{name:15}here  {result.brier:8.3f}{result.ece:8.3f}{result.mce:8.3f}"
              f"{result.klce:9.4f}{result.permuted:11.3f}{result.drawn:10.3f}")  # fmt: skip
        if name in PAPER_FIGURE_4:
            brier, ece, mce, klce = PAPER_FIGURE_4[name]
            print(f"{'':15}paper {brier:8.3f}{ece:8.3f}{mce:8.3f}{klce:8.3f}")
        x, f, n = np.array([(b["mean_p"], b["frequency"], b["count"]) for b in result.bins]).T
        axis.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
        axis.errorbar(x, f, wilson(n * f, n), fmt="none", color=COLORS[0], alpha=0.5, linewidth=1)
        axis.scatter(x, f, 6 + 250 * n / n.sum(), color=COLORS[0], clip_on=False, zorder=3)
        words = (f"BS {result.brier:.3f}", f"ECE {result.ece:.3f}", f"MCE {result.mce:.3f}",
                 f"KLCE² {result.klce:.4f}", f"p {result.drawn:.3f}")  # fmt: skip
        axis.text(0.99, 0.02, "\n".join(words), ha="right", fontsize=9, transform=axis.transAxes)
        axis.set(title=name, aspect="equal", xlim=(0, 1), ylim=(0, 1))
        axis.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    print("MCE is of bins of few rows here.  p in the figure is by labels.  BBQ of the paper is "
          "omitted;\nlocal bias, p + LCB [VF, §3.3] from the other part, is added.")  # fmt: skip
    verdict("no method makes the forest locally calibrated", largest <= LEVEL,
            f"largest p {largest:.3f}")  # fmt: skip
    axes[len(axes) // 2].set_xlabel("mean predicted value")
    axes[0].set_ylabel("fraction of positives")
    save(figure, output / "figure_4.png")


# ---------------------------------------------------------------- Figure 6


def bias_of_test(folder: Path) -> BiasMap:
    """The local calibration bias of each test defendant, from the other part and its labels."""
    labelled, defendants = load(folder, "compas_rf", "_val"), load(folder, "compas_rf")
    klce = statistic(labelled, "compas_rf")
    kernel = KLCE(labelled.names, klce.prediction_bandwidth, klce.covariate_bandwidth)
    return local_bias(labelled.source(), kernel, at=(defendants.p, defendants.x))


def figure_6(folder: Path, output: Path, shown: int = 60) -> None:
    result = bias_of_test(folder)
    data = load(folder, "compas_rf")
    age, female, african_american = data.x.T * [[10], [1], [1]]
    print("\nFigure 6: local calibration bias of the test defendants of Figure 4, from the other "
          "part;\nmeans by age ± mean standard error")  # fmt: skip
    ages = ((18, 25), (25, 30), (30, 40), (40, 50), (50, 100))
    print(" " * 29 + "".join(f"{f'{low}–{high - 1}':^16}" for low, high in ages).rstrip())
    rng = np.random.default_rng(0)
    figure, (axes,) = figure_of(1, 2, size=(10, 4), sharey=True, sharex=True)
    thirties, plain = [], []
    for axis, race in zip(axes, (1, 0), strict=True):
        title = "African-American" if race else "not African-American"
        for gender, color in ((1, "tab:pink"), (0, "tab:blue")):
            group = (african_american == race) & (female == gender) & ~result.masked
            line = f"{title}, {'female' if gender else 'male'}".ljust(29)
            for low, high in ages:
                here = group & (age >= low) & (age < high)
                bias, error = result.bias[here].mean(), result.standard_error[here].mean()
                line += f"{bias:+.3f} ± {error:.3f}".center(16)
                if low == 30:
                    thirties.append(bias)
                    gap = data.y[here] - data.p[here]
                    plain.append(f"{gap.mean():+.3f} ± {gap.std() / len(gap) ** 0.5:.3f}")
            print(line.rstrip())
            some = rng.permutation(np.flatnonzero(group))[:shown]
            axis.errorbar(age[some], result.bias[some], result.standard_error[some], fmt=".",
                          color=color, alpha=0.45, markersize=4, linewidth=0.7)  # fmt: skip
            cubic = np.polynomial.Polynomial.fit(age[group], result.bias[group], 3)
            first, last = map(float, np.quantile(age[group], (0.01, 0.99)))
            grid = np.linspace(first, last, 100)
            axis.plot(grid, cubic(grid), color=color, linewidth=2.2,
                      label="female" if gender else "male")  # fmt: skip
        axis.axhline(0, color="grey", linestyle="--", linewidth=1)
        axis.set(title=title, xlabel="age")
    axes[0].set_ylabel("local calibration bias, y − p")
    axes[0].legend(frameon=False, loc="upper right", ncols=2)
    verdict("the model underestimates the risk of all four groups at ages 30 to 39",
            min(thirties) > 0, f"{min(thirties):+.3f} to {max(thirties):+.3f}")  # fmt: skip
    print(
        f"The forest differs; means of y − p itself, 30–39: {'; '.join(plain)}.\n"
        f"In the figure: {shown} defendants of each group ± 1 standard error, cubic fits to all."
    )
    save(figure, output / "figure_6.png")


# ---------------------------------------------------------------- all of it


@click.command(help=__doc__.split("\n\n", 1)[1], context_settings={"max_content_width": 100})
@click.argument("folder", required=False, envvar="CALIBSCALE_DATA",
                type=click.Path(exists=True, file_okay=False, path_type=Path))  # fmt: skip
@click.option("--output", type=click.Path(file_okay=False, path_type=Path),
              default="i_trustworthy_2025", show_default=True,
              help="Folder of the figures.")  # fmt: skip
@click.option("--trials", type=click.IntRange(2), help="Data sets of Figures 3 and 5; the paper "
              "has 1000.  Default: 200, or 20 with --quick.")  # fmt: skip
@click.option("--replicates", type=click.IntRange(20), help="Per test.  Default: 199 for "
              "simulated data, 500 for the files; 199 with --quick.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer dimensions, sizes, widths and trials.")
def main(
    folder: Path | None, output: Path, trials: int | None, replicates: int | None, quick: bool
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    output.mkdir(parents=True, exist_ok=True)
    trials = trials or (20 if quick else 200)
    step = 2 if quick else 1
    started = time.perf_counter()
    print(MISSING)
    if folder is None:
        print("\nTable 2 and Figures 4 and 6 are left out: no data folder was given")
    else:
        inner = folder / "data"
        folder = inner if inner.is_dir() else folder
        table_2(folder, replicates or (199 if quick else 500))
        figure_4(folder, output, replicates or (199 if quick else 500))
        figure_6(folder, output)
    figure_3(output, trials, replicates or 199, DIMENSIONS[::step], SIZES[::step])
    figure_5(output, trials, replicates or 199, WIDTHS[::step], SIZES_5[::step])
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
