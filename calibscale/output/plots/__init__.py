"""Plots of results, as in reports and pictures.

Every function draws on the matplotlib axes `ax`, by default the axes of a new figure, and returns
them.  Diagrams of several parts divide the axes.
"""

from calibscale.output.plots.bias_plots import map_cells, plot_bias_curves, plot_bias_map
from calibscale.output.plots.curve_plots import plot_intervals, plot_power, plot_risk
from calibscale.output.plots.day_plots import plot_day_rows, plot_evidence, plot_trend
from calibscale.output.plots.model_curves import (
    plot_concentration,
    plot_double_lift,
    plot_murphy_diagram,
    plot_murphy_difference,
)
from calibscale.output.plots.prediction_plots import plot_reliability
from calibscale.output.plots.score_plots import (
    plot_corp,
    plot_cumulative,
    plot_decomposition,
    plot_murphy,
    plot_risk_coverage,
)
from calibscale.output.plots.share_plots import plot_class_shares

__all__ = [
    "map_cells",
    "plot_bias_curves",
    "plot_bias_map",
    "plot_class_shares",
    "plot_concentration",
    "plot_corp",
    "plot_cumulative",
    "plot_day_rows",
    "plot_decomposition",
    "plot_double_lift",
    "plot_evidence",
    "plot_intervals",
    "plot_murphy",
    "plot_murphy_diagram",
    "plot_murphy_difference",
    "plot_power",
    "plot_reliability",
    "plot_risk",
    "plot_risk_coverage",
    "plot_trend",
]
