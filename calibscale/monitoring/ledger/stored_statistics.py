"""Statistics that a ledger can store: every statistic that an estimator or a wager may need.

The table names them, so that the ledgers that can be read do not depend on the modules that a
program has imported before.
"""

from __future__ import annotations

from calibscale.registry import Registry, RegistryEntry
from calibscale.statistics.statistic import Statistic

# Names of statistics by the module that defines them.
_MODULES: dict[str, tuple[str, ...]] = {
    "estimators.certified": ("GroupCells", "GroupTemperatures"),
    "estimators.smooth_ece": ("GridSums",),
    "inference.e_process": ("BettingEProcess",),
    "inference.tolerant_e_process": ("TolerantEProcess",),
    "statistics.bins": ("BinCounts", "BinRests", "CellNoise", "FineHistogram", "SimplexCells"),
    "statistics.cluster_sums": ("ClusterRows", "ClusterSums"),
    "statistics.feature_sums": ("LocalFeatures",),
    "statistics.forecast_totals": ("CoverageTotals", "ForecastTotals", "PITCells", "PITValues"),
    "statistics.response_sums": ("ResponseCells", "ResponseCrossings", "ResponseSums"),
    "statistics.fourier_modes": ("Modes",),
    "statistics.label_noise": ("LabelNoise",),
    "statistics.label_table": ("LabelTable",),
    "statistics.ordered_sums": ("OrderedSums",),
    "statistics.pit_moments": ("PITMoments",),
    "statistics.sampled_rows": ("SampledResponses",),
    "statistics.score_histogram": ("ScoreHistogram", "SpreadSums"),
    "statistics.score_sums": (
        "EventSums",
        "Fingerprint",
        "FirstImpossible",
        "ImpossibleLabels",
        "LabelVariances",
        "Moments",
        "NoiseMoments",
        "ScalarScores",
        "SquaredResiduals",
        "Totals",
    ),
    "statistics.segment_atoms": ("AtomResiduals", "DenseAtoms", "SegmentAtoms"),
    "statistics.smoother": ("PointSums", "RowPoints", "StrengthModes"),
}
# Names of statistics are the names of their classes.
STATISTICS: Registry[type[Statistic]] = Registry(
    "statistic",
    [
        RegistryEntry(name, f"calibscale.{module}:{name}")
        for module, names in _MODULES.items()
        for name in names
    ],
    group="calibscale.statistics",
    base="calibscale.statistics.statistic:Statistic",
)
