"""Plots of measures of the score: CORP, cumulative differences, Murphy diagram, risk–coverage.

Each function draws the curve of an `Estimate`, or of its JSON object, and raises an OptionError if
that has no such curve.

Examples
--------
>>> import calibscale as cs
>>> from calibscale.output.plots import plot_murphy, plot_risk_coverage
>>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
>>> result = cs.evaluate(data, ["murphy", "aurc"])
>>> plot_murphy(result["murphy"]).get_xlabel(), plot_risk_coverage(result["aurc"]).get_xlabel()
('threshold', 'coverage')
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.formatting.number_texts import number
from calibscale.formatting.terms import label, outcome
from calibscale.output.plots.prediction_plots import RELIABILITY_HEIGHT
from calibscale.output.plots.probability_axes import probability_axes
from calibscale.output.plots.style import COLOURS, DASHED, DOTTED, framed
from calibscale.output.plots.style import axes as new_axes
from calibscale.results.estimate import Estimate

_HEIGHT = 300.0  # points
_WIDE = 1.96  # standard deviations on each side of a range of 95 %
_RARE = 0.005  # share of the rows that a frequency has to have for the axes to include it
_SMALL = 0.1  # share of the largest part of a score that a threshold has to reach to be shown
_RANGE = "95 % range if calibrated, at each point"
_CURVES = {  # by name: key in the details, and columns
    "steps": ("steps", ("low", "high", "frequency", "weight")),
    "response_steps": ("steps", ("low", "high", "observed", "weight")),
    "band": ("band", ("score", "low", "high")),
    "walk": ("walk", ("share", "score", "difference", "sigma")),
    "murphy": ("murphy", ("threshold", "score", "miscalibration", "discrimination")),
    "risk_coverage": ("risk_coverage", ("coverage", "risk", "confidence")),
}
_TAIL = 0.002  # share of the rows in each tail, which does not stretch the axes


def curve_of(estimate: Any, name: str) -> dict[str, Floats]:
    """Curve in the details of an estimate, or of its JSON object: columns of equal lengths."""
    restored = _restored(estimate)
    key, names = _CURVES[name]
    try:
        columns = np.array([restored.details[key][column] for column in names], float)
        columns[:, 0]  # there is a point
        return dict(zip(names, columns, strict=True))
    except (IndexError, KeyError, TypeError, ValueError):
        raise OptionError(f"{label(restored)} has no {key} that can be drawn") from None


def _restored(estimate: Any) -> Estimate:
    """Estimate, or the estimate of a JSON object."""
    return Estimate.from_dict(estimate) if isinstance(estimate, dict) else estimate


def plot_corp(estimate: Any, ax: Any = None, axes: str = "linear") -> Any:
    """Draw the isotonic regression of the events on the score (Dimitriadis et al. 2021).

    Thick parts of the line are ranges of scores with one frequency.  The area contains 95 % of the
    curves, at each score, of labels drawn from the predictions.  `axes` has the meaning as in
    `plot_reliability`.
    """
    low, high, frequency, weight = curve_of(estimate, "steps").values()
    band = np.empty((3, 0))
    with suppress(OptionError):  # results of earlier versions have none
        band = np.array([*curve_of(estimate, "band").values()])
    # A frequency of few rows, or the band at few rows, does not stretch the axes.
    common = frequency[weight >= _RARE * weight.sum()]
    scores = np.concatenate([low, high])
    scale = probability_axes(axes, scores, common, rows=[*weight, *weight])
    ax = new_axes(ax, RELIABILITY_HEIGHT)
    scale.draw_on(ax)
    if band.size:
        ax.fill_between(
            scale.x.place(band[0]),
            scale.y.place(band[1]),
            scale.y.place(band[2]),
            color=COLOURS.band,
            linewidth=0,
            label=_RANGE,
        )
    low = scale.x.place(low)
    high = scale.x.place(high)
    frequency = scale.y.place(frequency)
    _draw_steps(ax, low, high, frequency, "isotonic regression of the labels")
    framed(ax, "prediction", outcome(_restored(estimate).notion))
    return ax


def _draw_steps(ax: Any, low: Floats, high: Floats, values: Floats, text: str) -> None:
    """Draw an isotonic curve.  The ranges from low to high, with one value each, are thick."""
    ends = np.column_stack([low, high]).ravel()
    ax.plot(ends, values.repeat(2), color=COLOURS.accent, linewidth=1)
    ax.hlines(values, low, high, color=COLOURS.accent, linewidth=3.5, label=text)


def plot_decomposition(estimate: Any, ax: Any = None) -> Any:
    """Draw the isotonic regression of the outcomes on predictions of a mean, quantile or expectile.

    Thick parts of the line are ranges of predictions with one value.  A calibrated prediction has
    the values of the dashed line [Jordan, Mühlemann & Ziegel 2022; Gneiting & Resin 2023].  The
    0.2 % of the rows with the lowest and the highest predictions may be outside the axes.
    """
    low, high, observed, weight = curve_of(estimate, "response_steps").values()
    ax = new_axes(ax, RELIABILITY_HEIGHT)
    # Single rows far from all others would leave no room for the others.
    reached = np.cumsum(weight) / weight.sum()
    shown = (reached >= _TAIL) & (reached - weight / weight.sum() <= 1.0 - _TAIL)
    ends = np.array([low[shown].min(), high[shown].max()])
    ax.plot(
        ends, ends, color=COLOURS.muted, linewidth=1, linestyle=DASHED, label="predicted", zorder=1
    )
    _draw_steps(ax, low, high, observed, "isotonic regression of the outcomes")
    for values, set_limits in ((ends, ax.set_xlim), (observed[shown], ax.set_ylim)):
        span = np.append(values, ends) if set_limits == ax.set_ylim else values
        margin = 0.03 * (np.ptp(span) or 1.0)
        set_limits(span.min() - margin, span.max() + margin)
    framed(ax, "prediction", "recalibrated prediction")
    return ax


def plot_cumulative(estimate: Any, ax: Any = None) -> Any:
    """Draw cumulative differences of events and predictions over the rows in order of the score.

    The slope between two scores is how far predictions between them are too low (Arrieta-Ibarra et
    al. 2022).  The area is ± 1.96 standard deviations of a calibrated model.
    """
    share, score, reached, sigma = curve_of(estimate, "walk").values()
    ax = new_axes(ax, _HEIGHT)
    ax.fill_between(
        share, -_WIDE * sigma, _WIDE * sigma, color=COLOURS.band, linewidth=0, label=_RANGE
    )
    ax.axhline(0, color=COLOURS.muted, linewidth=1, linestyle=DASHED)
    ax.plot(share, reached, color=COLOURS.accent, linewidth=1.6)
    ends = [reached.argmin(), reached.argmax()]
    ax.plot(
        share[ends], reached[ends], "o", color=COLOURS.accent, markersize=6, mew=0, clip_on=False
    )
    # The axis is the share of rows.  Ticks name the score at these shares.
    places = np.searchsorted(share, np.linspace(0, 1, 6)).clip(0, len(share) - 1)
    ax.set_xticks(share[places], [f"{100 * share[i]:.0f} %\n{number(score[i], 2)}" for i in places])
    ax.set_xlim(0, 1)
    ax.locator_params(axis="y", nbins=6)
    framed(ax, "share of the rows, and the prediction below which they are", "Σ(event − p)/n")
    return ax


def plot_murphy(estimate: Any, ax: Any = None) -> Any:
    """Draw the Murphy diagram: the mean elementary score by threshold (Ehm et al. 2016).

    The area down to the score of the isotonic regression is the miscalibration, the distance from
    there up to the score of the mean event rate the discrimination.
    """
    x, score, *parts = curve_of(estimate, "murphy").values()
    # Score = miscalibration − discrimination + score of the mean event rate.
    fitted = score - parts[0]
    ax = new_axes(ax, _HEIGHT)
    ax.plot(
        x,
        fitted + parts[1],
        color=COLOURS.other,
        linestyle=DOTTED,
        linewidth=1.4,
        label="mean event rate",
    )
    ax.plot(x, score, color=COLOURS.accent, linewidth=1.8, label="predictions")
    ax.plot(
        x,
        fitted,
        color=COLOURS.high,
        linestyle=DASHED,
        linewidth=1.4,
        label="recalibrated predictions",
    )
    ax.fill_between(
        x, fitted, score, color=COLOURS.alert, alpha=0.3, linewidth=0, label="miscalibration"
    )
    worst = parts[0].argmax()
    ax.vlines(x[worst], fitted[worst], score[worst], color=COLOURS.alert, linewidth=2)
    # Thresholds without rows near them have no score, and would fill most of the axis.
    seen = x[np.any([part > _SMALL * part.max() for part in parts], axis=0)]
    if len(seen) > 1:
        ax.set_xlim(seen[0], seen[-1])
    ax.set_ylim(bottom=0)
    ax.locator_params(nbins=6)
    framed(ax, "threshold", "mean elementary score")
    return ax


def plot_risk_coverage(estimate: Any, ax: Any = None) -> Any:
    """Draw the error rate of the most confident rows by their share (Geifman & El-Yaniv 2017).

    The area is the excess over the best order of the same errors.
    """
    coverage, risk, _ = curve_of(estimate, "risk_coverage").values()
    # The best order has all errors last: the risk is 0 until only errors are left.
    best = np.maximum(0.0, 1.0 - (1.0 - risk[-1]) / coverage)
    ax = new_axes(ax, _HEIGHT)
    ax.fill_between(coverage, best, risk, color=COLOURS.band, linewidth=0, label="excess")
    ax.axhline(
        risk[-1],
        color=COLOURS.high,
        linestyle=DASHED,
        linewidth=1.2,
        label="error rate of all rows",
    )
    ax.plot(
        coverage,
        best,
        color=COLOURS.other,
        linestyle=DOTTED,
        linewidth=1.6,
        label="best order of the errors",
    )
    ax.plot(coverage, risk, color=COLOURS.accent, linewidth=1.8)
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    ax.locator_params(nbins=6)
    framed(ax, "coverage", "error rate of the rows that are kept")
    return ax


_WALK = ("walk", plot_cumulative, _HEIGHT, "Cumulative differences")
SCORE_PLOTS = {  # curve, plot, height and title of each estimator
    "corp": ("steps", plot_corp, RELIABILITY_HEIGHT, "CORP reliability diagram"),
    "decomposition": (
        "response_steps",
        plot_decomposition,
        RELIABILITY_HEIGHT,
        "Isotonic reliability diagram",
    ),
    "ecce_mad": _WALK,
    "ecce_range": _WALK,
    "murphy": ("murphy", plot_murphy, _HEIGHT, "Murphy diagram"),
    "aurc": ("risk_coverage", plot_risk_coverage, _HEIGHT, "Risk–coverage curve"),
}
