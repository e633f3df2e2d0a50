"""The statistics that a calibration test computes if none are named."""

from __future__ import annotations

from calibscale.estimators.base import Estimator
from calibscale.estimators.pit_tests import NormalScores, PITByForecast, PITSmooth
from calibscale.estimators.residual_tests import (
    CoxScore,
    MeanScore,
    ResidualScan,
    SmoothTest,
    SpreadScore,
    TemperatureScore,
)
from calibscale.estimators.skce import JKCE, KCE
from calibscale.kernel_sums import RandomFourier
from calibscale.session import Session

_MAX_CLASSES = 100  # of class-wise cells, whose replicates take memory with the number of classes
_MANY_NUMBERS = 10**6  # probabilities above which the kernel error has fewer features
_FEW_FEATURES = 16  # replicates take time in proportion


def default_tests(session: Session) -> list[Estimator]:
    """Statistics that together see errors of any kind, each strong against one of them.

    Of two classes: the mean, the slope, the Brier score, the shape and single places of the
    predicted probability.  Of more classes: the same of the top label and of every class, a
    temperature, and the kernel error of whole vectors.  Of forecasts: the mean, spread and shape of
    PIT values, their relation to the forecast, and the kernel error.  Of soft labels: the kernel
    error.
    """
    source = session.source
    if source.forecast is not None:
        return [NormalScores(), PITSmooth(), PITByForecast(), kernel_error(session)]
    if session.rules.soft:
        return [kernel_error(session)]
    if source.classes == 2:
        return [MeanScore(), CoxScore(), SpreadScore(), SmoothTest(), ResidualScan()]
    tests: list[Estimator] = [CoxScore(), SpreadScore(), SmoothTest(), ResidualScan()]
    if source.classes <= _MAX_CLASSES:
        by_class = "class_wise"
        tests += [
            MeanScore(by_class),
            CoxScore(by_class),
            TemperatureScore(),
            SmoothTest(by_class),
            ResidualScan(by_class),
        ]
    return [*tests, kernel_error(session)]


def kernel_error(session: Session, seed: int = 0) -> JKCE | KCE:
    """Kernel error of whole predictions, of fewer features where replicates would take long."""
    if session.source.forecast is not None:
        return KCE(seed=seed)
    if session.source.rows * session.source.classes > _MANY_NUMBERS:
        return JKCE(RandomFourier(_FEW_FEATURES), seed=seed)
    return JKCE(seed=seed)
