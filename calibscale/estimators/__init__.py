"""Estimators of calibration: each one file, found by name in `ESTIMATORS`."""

from calibscale.estimators.base import Estimator
from calibscale.estimators.binned import (
    CWCE2,
    ECE,
    MCE,
    TCE2,
    BrierDecomposition,
    NLLDecomposition,
    SimplexECE,
    TCE2Debiased,
    TCE2Kumar,
)
from calibscale.estimators.conditional import CKCE, CMMD, CKCECentred
from calibscale.estimators.joint import JKCE, JKCEBiased
from calibscale.estimators.local import KCE, KLCE
from calibscale.estimators.scores import NLL, Accuracy, Brier, ConfidenceGap

ESTIMATORS: dict[str, type[Estimator]] = {
    kind.name: kind
    for kind in (
        Accuracy,
        Brier,
        NLL,
        ConfidenceGap,
        ECE,
        MCE,
        TCE2,
        TCE2Debiased,
        TCE2Kumar,
        CWCE2,
        SimplexECE,
        BrierDecomposition,
        NLLDecomposition,
        CKCE,
        CKCECentred,
        CMMD,
        JKCE,
        JKCEBiased,
        KCE,
        KLCE,
    )
}

__all__ = [
    "CKCE",
    "CMMD",
    "CWCE2",
    "ECE",
    "ESTIMATORS",
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
    "Estimator",
    "JKCEBiased",
    "NLLDecomposition",
    "SimplexECE",
    "TCE2Debiased",
    "TCE2Kumar",
]
