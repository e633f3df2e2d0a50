"""Statistics that a ledger can store: every statistic that an estimator or a wager may need.

The table names them, so that the ledgers that can be read do not depend on the modules that a
program has imported before.
"""

from __future__ import annotations

from calibscale.estimators.certified import GroupCells, GroupTemperatures
from calibscale.estimators.smooth_ece import GridSums
from calibscale.inference.e_process import BettingEProcess
from calibscale.inference.tolerant_e_process import TolerantEProcess
from calibscale.statistics.bins import BinCounts, BinRests, CellNoise, FineHistogram, SimplexCells
from calibscale.statistics.cluster_sums import ClusterRows, ClusterSums
from calibscale.statistics.feature_sums import LocalFeatures
from calibscale.statistics.forecast_totals import (
    CoverageTotals,
    ForecastTotals,
    PITCells,
    PITValues,
)
from calibscale.statistics.fourier_modes import Modes
from calibscale.statistics.label_noise import LabelNoise
from calibscale.statistics.label_table import LabelTable
from calibscale.statistics.pit_moments import PITMoments
from calibscale.statistics.score_histogram import ScoreHistogram, SpreadSums
from calibscale.statistics.score_sums import (
    EventSums,
    Fingerprint,
    FirstImpossible,
    ImpossibleLabels,
    LabelVariances,
    Moments,
    NoiseMoments,
    ScalarScores,
    SquaredResiduals,
    Totals,
)
from calibscale.statistics.segment_atoms import AtomResiduals, DenseAtoms, SegmentAtoms
from calibscale.statistics.smoother import PointSums, RowPoints, StrengthModes
from calibscale.statistics.statistic import Statistic

STATISTICS: tuple[type[Statistic], ...] = (
    AtomResiduals,
    BettingEProcess,
    BinCounts,
    BinRests,
    CellNoise,
    ClusterRows,
    ClusterSums,
    CoverageTotals,
    DenseAtoms,
    EventSums,
    FineHistogram,
    Fingerprint,
    FirstImpossible,
    ForecastTotals,
    GridSums,
    GroupCells,
    GroupTemperatures,
    ImpossibleLabels,
    LabelNoise,
    LabelTable,
    LabelVariances,
    LocalFeatures,
    Modes,
    Moments,
    NoiseMoments,
    PITCells,
    PITMoments,
    PITValues,
    PointSums,
    RowPoints,
    ScalarScores,
    ScoreHistogram,
    SegmentAtoms,
    SimplexCells,
    SpreadSums,
    SquaredResiduals,
    StrengthModes,
    TolerantEProcess,
    Totals,
)
