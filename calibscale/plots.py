"""Pictures of results; the only module that knows matplotlib."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from calibscale.errors import OptionError
from calibscale.selection.results import Candidate, Selection

_FORMATS = (".png", ".svg", ".pdf")
_CHOSEN, _OTHER = "#c1432e", "#4a6fa5"
_LABELS = {"h": "bandwidth h", "reg": "ridge reg", "bins": "bins"}


def check_format(path: str | Path) -> None:
    """Fail early where a picture could not be drawn.

    Raises
    ------
    OptionError
        If the ending is not png, svg or pdf, or matplotlib is missing.
    """
    if Path(path).suffix not in _FORMATS:
        raise OptionError(f"{path}: pictures end in {', '.join(_FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError("plots need matplotlib: pip install 'calibscale[plots]'") from error


def save_selection(result: Selection, path: str | Path) -> None:
    """Draw `plot_selection` into a file, which appears whole or not at all."""
    check_format(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = plot_selection(result)
    FigureCanvasAgg(figure)
    aside = Path(path).with_name(f".{Path(path).stem}.{os.getpid()}{Path(path).suffix}")
    try:
        figure.savefig(aside, dpi=150)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def plot_selection(result: Selection) -> Any:
    """A matplotlib figure: risk along each grid, and the estimates of the best of each estimator.

    Parameters
    ----------
    result : Selection

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    grids = {
        name: [c for c in result.candidates if c.estimator == name] for name in result.estimators
    }
    several = {name: grid for name, grid in grids.items() if len(grid) > 1}
    columns = max(1, len(several))
    figure = Figure(figsize=(3.0 * columns + 3.4, 3.6), layout="constrained")
    axes = figure.subplots(1, columns + 1, width_ratios=[1.0] * columns + [1.1], squeeze=False)[0]
    for axis, (name, grid) in zip(axes, several.items(), strict=False):
        _risk_curve(axis, result, name, grid)
    if several:
        axes[0].set_ylabel("√risk × 100")
    _estimates(axes[-1], result)
    title = f"{result.notion.replace('_', '-')} calibration, {result.n:,} rows"
    figure.suptitle(f"{title}: {result.selected.estimator} has the smallest risk", fontsize=11)
    return figure


def _root_risk(candidate: Candidate) -> float:
    return 100 * math.sqrt(max(candidate.risk, 0.0))


def _risk_curve(axis: Any, result: Selection, name: str, grid: list[Candidate]) -> None:
    """Risk along a grid; the band is the paired error of the difference to the best of all."""
    grid = sorted(grid, key=lambda c: next(iter(c.hyperparameter.values())))
    (label,) = grid[0].hyperparameter
    x = [c.hyperparameter[label] for c in grid]
    y = [_root_risk(c) for c in grid]
    spread = [50 * 2 * c.difference_error / math.sqrt(max(c.risk, 1e-300)) for c in grid]
    low = [a - b for a, b in zip(y, spread, strict=True)]
    high = [a + b for a, b in zip(y, spread, strict=True)]
    axis.fill_between(x, low, high, color=_OTHER, alpha=0.2, linewidth=0)
    axis.plot(x, y, "o-", color=_OTHER, markersize=3, linewidth=1)
    best = result.best_of(name)
    color = _CHOSEN if best is result.selected else _OTHER
    axis.plot([best.hyperparameter[label]], [_root_risk(best)], "o", color=color, markersize=7)
    if label != "bins":
        axis.set_xscale("log")
    floor = _root_risk(result.selected)
    top = sorted(y)[len(y) // 2] + 2 * (sorted(y)[len(y) // 2] - floor)
    axis.set_ylim(bottom=min(min(y), floor) - 0.05 * (max(min(max(y), top), floor) - floor))
    axis.set_ylim(top=max(min(max(y), top), min(y) * 1.0001) + 0.05 * (max(y) - min(y)) / len(y))
    axis.axhline(floor, color=_CHOSEN, linewidth=0.8, linestyle=":")
    axis.set_title(name, fontsize=10)
    axis.set_xlabel(_LABELS.get(label, label), fontsize=9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.ticklabel_format(axis="y", useOffset=False)


def _estimates(axis: Any, result: Selection) -> None:
    """√estimate of the best of each estimator, with two standard errors of the test part."""
    best = [result.best_of(name) for name in reversed(result.estimators)]
    for i, candidate in enumerate(best):
        color = _CHOSEN if candidate is result.selected else _OTHER
        root = candidate.root or 0.0
        error = candidate.sampling_error or 0.0
        low = math.sqrt(max(candidate.estimate - 2 * error, 0.0))
        high = math.sqrt(max(candidate.estimate + 2 * error, 0.0))
        axis.plot([low, high], [i, i], color=color, linewidth=2, alpha=0.5)
        axis.plot([root], [i], "o", color=color, markersize=6)
    axis.set_yticks(range(len(best)), [c.estimator for c in best], fontsize=9)
    axis.set_ylim(-0.6, len(best) - 0.4)
    axis.margins(x=0.15)
    axis.locator_params(axis="x", nbins=4)
    axis.set_xlabel("calibration error (root), ± 2 s.e.", fontsize=9)
    axis.set_title("estimate", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
