"""What all models of a ranking must share: bandwidths, and what tells their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.estimators import KLCE, Estimator
from calibscale.evaluation import DataSetup
from calibscale.features import RandomFourier
from calibscale.local import local_kernel
from calibscale.statistics import Fingerprint, FingerprintState, Statistic, weights_of

_MODELS = 10  # of 1,000 predictions: what distances are kept of


def alike(estimator: Estimator, setups: Sequence[DataSetup]) -> Estimator:
    """The estimator with every bandwidth that it would take from the data set for all models.

    On predictions: the median of the positive distances within the models' samples of 1,000
    predictions, put together.  On a covariate, which belongs to the rows: the median of what the
    models would have chosen.

    Raises
    ------
    OptionError
        If the estimator chooses bandwidths by power, which differ from model to model.
    """
    if isinstance(estimator, KLCE):
        return _local(estimator, setups)
    features = getattr(estimator, "features", None)
    if not isinstance(features, RandomFourier) or features.bandwidth is not None:
        return estimator
    bandwidth = pooled_distance(setups, getattr(estimator, "notion", "canonical"))
    features = replace(features, bandwidth=bandwidth)
    return replace(estimator, features=features)  # type: ignore[type-var]


def _local(estimator: KLCE, setups: Sequence[DataSetup]) -> KLCE:
    if estimator.choose is not None:
        raise OptionError(
            "bandwidths chosen by power would differ from model to model: give them, or use the "
            "defaults"
        )
    classes = setups[0].classes
    notion = estimator.notion or ("positive" if classes == 2 else "canonical")
    bandwidth = estimator.prediction_bandwidth
    if bandwidth is None:
        bandwidth = pooled_distance(setups, notion)
    kernels = [
        local_kernel(
            setup, notion, estimator.covariates, estimator.categorical,
            estimator.prediction_kernel, bandwidth, estimator.covariate_kernel,
            estimator.covariate_bandwidth,
        )[0]
        for setup in setups
    ]  # fmt: skip
    names = [name for name in estimator.covariates if name not in estimator.categorical]
    chosen = np.median([kernel.bandwidths for kernel in kernels], axis=0)
    known = replace(
        estimator,
        notion=notion,
        prediction_bandwidth=bandwidth,
        covariate_bandwidth=dict(zip(names, chosen.tolist(), strict=True)),
    )
    if known.method == "auto":  # one method for all: that of the largest model
        largest = max(setups, key=lambda setup: setup.rows)
        known = replace(known, method=known.resolve(largest).method)
    return known


def pooled_distance(setups: Sequence[DataSetup], notion: str) -> float:
    """Median of the positive distances between predictions of one model, over all; 1 if none.

    Of more than 10 models, a part of each sample.
    """
    step = -(-len(setups) // _MODELS)
    found = [pdist(setup.sample(notion).points[::step]) for setup in setups]
    positive = np.concatenate([distances[distances > 1e-12] for distances in found])
    return float(np.median(positive)) if positive.size else 1.0


class RowState(NamedTuple):
    """n, Σw, Σw² (0-d), and Σ of the rows' hashes modulo 2⁶⁴, (1,) uint64."""

    n: Floats
    weight: Floats
    weight2: Floats
    hashes: NDArray[np.uint64]

    @property
    def effective(self) -> float:
        """(Σw)²/Σw²; 0 without weight."""
        return float(self.weight**2 / self.weight2) if self.weight2 > 0 else 0.0

    @property
    def key(self) -> tuple[int, int]:
        """Equal for models of the same rows, labels and weights alone."""
        return int(self.n), int(self.hashes[0])

    def share(self, of: float) -> RowState:
        """As expected of a random share of the rows."""
        return self._replace(n=self.n * of, weight=self.weight * of, weight2=self.weight2 * of)


@dataclass(frozen=True)
class LabelledRows(Statistic):
    """What must be equal for two models to be compared row by row: number, label and weight."""

    def zero(self, classes: int) -> RowState:
        n, weight, weight2 = (np.zeros(()) for _ in range(3))
        return RowState(n, weight, weight2, np.zeros(1, np.uint64))

    def accumulate(self, state: RowState, chunk: Chunk) -> RowState:
        w = weights_of(chunk)
        bare = replace(chunk, values=np.empty((len(chunk), 0)), weights=w, covariates=None)
        Fingerprint().accumulate(FingerprintState(state.n, state.hashes), bare)
        state.weight[...] += w.sum()
        state.weight2[...] += w @ w
        return state
