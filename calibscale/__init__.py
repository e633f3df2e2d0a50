"""calibscale: calibration of probabilities and forecasts, at any number of rows.

Symbols, in code as in the papers: rows i = 1..n, predicted probabilities ``q``, labels ``y`` in
0..K−1, residuals ``delta`` = q − e_y, features ``phi`` in R^m with moments ``S``, ``C``, ``D`` and
``t``, and ``ridge`` = λ.  Papers: [GB] Gruber & Bach 2025, [VF] Vashistha & Farahi 2025, [MS]
Moskvichev & Sejdinovic 2025.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibscale.auditing.audit import Recalibration, audit
    from calibscale.auditing.local_bias import local_bias
    from calibscale.auditing.segment_tests import Segments
    from calibscale.data.arrays import from_arrays
    from calibscale.data.derived_sources import forecast_events
    from calibscale.data.forecasts.forecast import Forecast
    from calibscale.data.forecasts.mixtures import EnsembleForecast, MixtureForecast, NormalForecast
    from calibscale.data.forecasts.pieces import (
        HistogramForecast,
        OrdinalForecast,
        QuantileForecast,
    )
    from calibscale.data.ingest.frames import from_frame
    from calibscale.data.ingest.table_files import from_file
    from calibscale.data.source import ArraySource
    from calibscale.data.store import LogitStore
    from calibscale.data.zarr_arrays import open_arrays
    from calibscale.errors import (
        CalibscaleError,
        ClusterError,
        InvalidDataError,
        OptionError,
        StoreError,
        UnavailableError,
    )
    from calibscale.estimators.binned import ECE, MCE, TCE2, TCE2Debiased, TCE2Kumar
    from calibscale.estimators.ckce import CKCE, CMMD, CKCECentred
    from calibscale.estimators.scores import (
        NLL,
        Accuracy,
        Brier,
        BrierDecomposition,
        ConfidenceGap,
        NLLDecomposition,
    )
    from calibscale.estimators.skce import JKCE, KCE, KLCE, SKCE, JKCEBiased
    from calibscale.estimators.vector_bins import CWCE2, SimplexECE
    from calibscale.evaluation.accumulator import Accumulator
    from calibscale.evaluation.check import check
    from calibscale.evaluation.evaluate import evaluate
    from calibscale.evaluation.reliability import reliability
    from calibscale.inference.calibration_test import calibration_test
    from calibscale.inference.power import power
    from calibscale.inference.resampling import Bootstrap, Jackknife
    from calibscale.kernels.features import OneHot, RandomFourier
    from calibscale.limits.proportions import consistency_interval, wilson_interval
    from calibscale.output.plots.prediction_plots import plot_reliability
    from calibscale.output.text import as_text
    from calibscale.planning import plan
    from calibscale.ranking.rank import rank
    from calibscale.recalibration.fits import FittedRecalibration, load_recalibration, recalibrate
    from calibscale.results.audit_results import Audit
    from calibscale.results.bias_results import BiasMap
    from calibscale.results.comparison_results import (
        Agreement,
        Candidate,
        Difference,
        RankedModel,
        Ranking,
        Selection,
    )
    from calibscale.results.estimate import Approximation, Estimate, Interval
    from calibscale.results.evaluation_results import Evaluation, Plan, Reliability
    from calibscale.results.inference_results import (
        CalibrationTests,
        Check,
        Miscalibration,
        Power,
        TestResult,
    )
    from calibscale.selection.cross_validation import select
    from calibscale.selection.kde import KDE, LeaveOneOutKDE
    from calibscale.selection.ridge import KKR, UKKR
    from calibscale.selection.risk import plug_in_risk, plug_in_risk_error, sampled_risk
    from calibscale.selection.simple_families import DebiasedBins
    from calibscale.session import Session

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # a function of Python 3.13 and later
    raise ImportError(
        "calibscale is not tested on free-threaded Python without its global lock, where threads "
        "might give wrong numbers: set PYTHON_GIL=1, or use a build that is not free-threaded"
    )

# Names are imported on first use, so that `import calibscale` and `calibscale --help` load neither
# NumPy nor the compiler: the imports above, for type checkers, say where they are.


@cache
def _homes() -> dict[str, str]:
    """Module of each public name."""
    estimators: dict[str, str] = import_module("calibscale.estimators.registry").CLASSES
    return estimators | {
        alias.name: str(node.module)
        for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.col_offset
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("calibscale")
    if name == "metrics":
        return import_module("calibscale.metrics")
    if name == "__all__":
        return sorted(_homes())
    if name.startswith("_") or name not in _homes():
        raise AttributeError(f"module 'calibscale' has no attribute {name!r}")
    value = getattr(import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
