"""Plots, imported on first use."""

from .bias_plots import map_cells as map_cells
from .bias_plots import plot_bias_curves as plot_bias_curves
from .bias_plots import plot_bias_map as plot_bias_map
from .curve_plots import plot_intervals as plot_intervals
from .curve_plots import plot_risk as plot_risk
from .day_plots import plot_day_rows as plot_day_rows
from .day_plots import plot_evidence as plot_evidence
from .day_plots import plot_trend as plot_trend
from .model_curves import plot_concentration as plot_concentration
from .model_curves import plot_double_lift as plot_double_lift
from .model_curves import plot_murphy_diagram as plot_murphy_diagram
from .model_curves import plot_murphy_difference as plot_murphy_difference
from .power_plots import plot_power as plot_power
from .prediction_plots import plot_reliability as plot_reliability
from .score_plots import plot_corp as plot_corp
from .score_plots import plot_cumulative as plot_cumulative
from .score_plots import plot_decomposition as plot_decomposition
from .score_plots import plot_murphy as plot_murphy
from .score_plots import plot_risk_coverage as plot_risk_coverage
from .share_plots import plot_class_shares as plot_class_shares
