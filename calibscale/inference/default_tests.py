"""The statistics that a calibration test computes if none are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.estimator_texts import estimator
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.estimators.skce import JKCE, KCE, SKCE
from calibscale.kernels.features import RandomFourier
from calibscale.predictions.notions import width
from calibscale.predictions.target import KERNEL_ERROR
from calibscale.session import Session

_MANY_NUMBERS = 10**6  # probabilities above which the kernel error has fewer features
_FEW_FEATURES = 16  # replicates take time in proportion
# Bandwidths of covariates, in units of the default.  Narrow ones see an error in a part of a
# covariate, whatever the prediction.  The default one sees errors that depend on both.
LOCAL_SCALES = (0.1, 0.25, 1.0)
_LOCAL_FEATURES = 256  # frequencies of narrow kernels on several covariates


def default_tests(session: Session) -> list[Estimator]:
    """Statistics that together see errors of any kind, each strong against one of them.

    For two classes they are the mean, the slope, the Brier score, the shape and single places of
    the predicted probability.  For more classes they are the same without the mean for the top
    label, and without the Brier score for every class, a temperature, and the kernel error of whole
    vectors.  Classes beyond 100 are not judged one by one.  For forecasts they are the mean, spread
    and shape of PIT values, their relation to the forecast, and the kernel error.  For soft labels
    there is only the kernel error.
    """
    tests = []
    for text in session.source.target.default_tests:
        tests.append(kernel_error(session) if text == KERNEL_ERROR else estimator(text))
    return tests


def kernel_error(session: Session, seed: int = 0) -> JKCE | KCE:
    """Kernel error of whole predictions, of fewer features where replicates would take long."""
    if session.source.target.kernel_error == KCE.name:
        return KCE(seed=seed)
    if session.source.rows * session.source.n_features > _MANY_NUMBERS:
        return JKCE(RandomFourier(_FEW_FEATURES), seed=seed)
    return JKCE(seed=seed)


def segment_tests(session: Session, covariates: tuple[str, ...]) -> list[Estimator]:
    """Test of the segments of covariates, if predictions of this kind have one.

    There is none if a covariate has too many values, or covariates cross in too many ways.
    """
    name = session.source.target.segment_test
    if name is None:
        return []
    test: Estimator = ESTIMATORS[name](covariates=covariates)  # type: ignore[call-arg]
    try:
        test.bind(session.profile)
    except OptionError:
        return []
    return [test]


def local_errors(session: Session, local: SKCE) -> list[SKCE]:
    """Local errors over the bandwidths of covariates `LOCAL_SCALES`, from narrow to wide.

    The result is the error alone if covariates have no bandwidth, or rows are held out to choose
    it.
    """
    settled = local.settled(local.bind(session.profile))
    assert isinstance(settled, SKCE)
    widths = settled.covariate_bandwidth
    if not isinstance(widths, Mapping) or local.bandwidth_share is not None:
        return [local]
    narrow = []
    for scale in LOCAL_SCALES[:-1]:
        scaled = {name: scale * width for name, width in widths.items()}
        error = replace(settled, prediction_kernel="none", covariate_bandwidth=scaled)
        narrow.append(_with_few_numbers(session, error))
    return [*narrow, settled]


def _with_few_numbers(session: Session, local: SKCE) -> SKCE:
    """Local error by few random features, unless it has a short Fourier series.

    Narrow kernels on several covariates have long series, and vectors of classes have none.
    """
    columns = len(local.covariates) - len(local.categorical)
    source = session.source
    is_scalar = width(local.notion_for(source.n_features), source.n_features) == 1
    has_series = is_scalar and source.target.has_scalar_points and columns == 1
    if local.method != "auto" or has_series:
        return local
    featured = replace(local, method="features", n_features=_LOCAL_FEATURES)
    try:
        featured.bind(session.profile)
    except OptionError:  # too many combinations of categories
        return local
    return featured
