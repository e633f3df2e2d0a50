"""calibscale: how well is a probabilistic classifier calibrated, at any number of rows.

Symbols, in code as in the papers: rows i = 1..n; ``q`` predicted probabilities; ``y`` labels
0..K−1; ``delta`` = q − e_y; ``phi`` features in R^m; ``S``, ``C``, ``D``, ``t`` their moments;
``ridge`` = λ.  Papers: [GB] Gruber & Bach 2025, [VF] Vashistha & Farahi 2025, [MS] Moskvichev &
Sejdinovic 2025.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibscale.auditing import Audit, audit
    from calibscale.bias import BiasMap, local_bias
    from calibscale.detection import Bias, Power, power
    from calibscale.diagram import Reliability, consistency_interval, reliability, wilson_interval
    from calibscale.errors import (
        CalibscaleError,
        ClusterError,
        InvalidDataError,
        OptionError,
        StoreError,
    )
    from calibscale.estimators import (
        CKCE,
        CMMD,
        CWCE2,
        ECE,
        JKCE,
        KCE,
        KLCE,
        MCE,
        NLL,
        TCE2,
        Accuracy,
        Brier,
        BrierDecomposition,
        CKCECentred,
        ConfidenceGap,
        JKCEBiased,
        NLLDecomposition,
        SimplexECE,
        TCE2Debiased,
        TCE2Kumar,
    )
    from calibscale.evaluation import evaluate
    from calibscale.features import OneHot, RandomFourier
    from calibscale.intervals import Intervals
    from calibscale.landmarks import Gaussian, Laplacian
    from calibscale.planning import Plan, plan
    from calibscale.ranking import Agreement, Difference, RankedModel, Ranking, rank
    from calibscale.results import Approximation, Estimate, Evaluation, Interval
    from calibscale.selection import (
        KDE,
        KKR,
        UKKR,
        Bins,
        Candidate,
        DebiasedBins,
        LeaveOneOutKDE,
        Selection,
        Temperature,
        plug_in_risk,
        plug_in_risk_error,
        sampled_risk,
        select,
    )
    from calibscale.source import ArraySource, from_arrays
    from calibscale.store import LogitStore, open_arrays
    from calibscale.testing import Tests, test
    from calibscale.trials import TestResult

# Names are imported when first used: `calibscale --help` must not wait for a compiler.
_ROOMS = {
    "auditing": ("Audit", "audit"),
    "bias": ("BiasMap", "local_bias"),
    "detection": ("Bias", "Power", "power"),
    "diagram": ("Reliability", "consistency_interval", "reliability", "wilson_interval"),
    "errors": ("CalibscaleError", "ClusterError", "InvalidDataError", "OptionError", "StoreError"),
    "estimators": (
        "CKCE",
        "CMMD",
        "CWCE2",
        "ECE",
        "JKCE",
        "KCE",
        "KLCE",
        "MCE",
        "NLL",
        "TCE2",
        "Accuracy",
        "Brier",
        "BrierDecomposition",
        "CKCECentred",
        "ConfidenceGap",
        "JKCEBiased",
        "NLLDecomposition",
        "SimplexECE",
        "TCE2Debiased",
        "TCE2Kumar",
    ),
    "evaluation": ("evaluate",),
    "features": ("OneHot", "RandomFourier"),
    "intervals": ("Intervals",),
    "landmarks": ("Gaussian", "Laplacian"),
    "planning": ("Plan", "plan"),
    "ranking": ("Agreement", "Difference", "RankedModel", "Ranking", "rank"),
    "results": ("Approximation", "Estimate", "Evaluation", "Interval"),
    "selection": (
        "KDE",
        "KKR",
        "UKKR",
        "Bins",
        "Candidate",
        "DebiasedBins",
        "LeaveOneOutKDE",
        "Selection",
        "Temperature",
        "plug_in_risk",
        "plug_in_risk_error",
        "sampled_risk",
        "select",
    ),
    "source": ("ArraySource", "from_arrays"),
    "store": ("LogitStore", "open_arrays"),
    "testing": ("Tests", "test"),
    "trials": ("TestResult",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'calibscale' has no attribute {name!r}")
    value = getattr(import_module(f"calibscale.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
