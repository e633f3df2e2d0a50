"""Recalibration by the map of local calibration bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.bias.map import effective
from calibscale.bias.points import Points
from calibscale.bias.sums import Spectral, Strengths
from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.estimators.local import KLCE
from calibscale.evaluation import DataSetup
from calibscale.local import local_kernel
from calibscale.recalibration.base import Fitted, Method, Read, check_weight
from calibscale.scan import Pass, scan
from calibscale.statistics import Statistic
from calibscale.store import as_source

PREDICTION_KERNELS = ("gaussian", "none")

_FEWEST = 2  # effective rows that a correction needs
_STRENGTHS = Strengths("positive", limits=False)


@dataclass(frozen=True)
class LocalBias(Method):
    """p' = p + LCB(p, x), within [0, 1]: "correct the model's output" [VF, §3.3, eq. 7].

    For two classes.  The map comes from one pass, as a Fourier series whose length does not depend
    on the rows, so kernels are Gaussian and there are at most three continuous dimensions, the
    prediction among them.  Where it is masked, p stays.  It may become exactly 0 or 1, which costs
    an infinite log loss where wrong.

    Parameters
    ----------
    covariates, prediction_bandwidth, covariate_bandwidth, categorical
        As of `KLCE`.
    prediction_kernel : {"gaussian", "none"}
        ``none``: the bias does not depend on p (Luo et al. 2022).
    tolerance : float
        Of the series: an error of Σwκ below tolerance·Σw.
    """

    covariates: tuple[str, ...] = ()
    prediction_bandwidth: float | None = None
    covariate_bandwidth: float | Mapping[str, float] | None = field(default=None, hash=False)
    categorical: tuple[str, ...] = ()
    prediction_kernel: str = "gaussian"
    tolerance: float = 1e-9
    name: ClassVar[str] = "local_bias"

    def __post_init__(self) -> None:
        for option in ("covariates", "categorical"):
            names = getattr(self, option)
            object.__setattr__(self, option, (names,) if isinstance(names, str) else tuple(names))
        if self.prediction_kernel not in PREDICTION_KERNELS:
            raise OptionError(
                f"prediction_kernel must be gaussian or none, not {self.prediction_kernel!r}"
            )
        KLCE(  # the settings that it shares, checked
            self.covariates, self.prediction_bandwidth, self.covariate_bandwidth,
            self.categorical, self.prediction_kernel, tolerance=self.tolerance,
        )  # fmt: skip

    def _fit(self, setup: DataSetup, read: Read) -> LocalBiasFit:
        kernel, notes = local_kernel(
            setup, "positive", self.covariates, self.categorical, self.prediction_kernel,
            self.prediction_bandwidth, "gaussian", self.covariate_bandwidth,
        )  # fmt: skip
        try:
            plan = Spectral.fitting(
                setup, "positive", kernel, self.covariates, self.tolerance, None
            )
        except OptionError as error:
            reason = str(error).split(": ")[0]
            raise OptionError(
                f"local_bias: there is no short Fourier series of the map ({reason}); use fewer "
                "continuous covariates, or wider bandwidths"
            ) from error
        statistics = plan.statistics(_STRENGTHS)
        found = read(*statistics, covariates=self.covariates)
        check_weight(self.name, found.groups[None][statistics[0]].weight)
        continuous = [name for name in self.covariates if name not in self.categorical]
        return LocalBiasFit(
            plan=plan, found=found, prediction_bandwidth=kernel.prediction_bandwidth,
            bandwidths=dict(zip(continuous, kernel.bandwidths, strict=True)), method=self,
            classes=setup.classes, counts=found.counts, passes=1, notes=tuple(notes),
        )  # fmt: skip


class Correction(NamedTuple):
    """What is added to each p (c,), and which rows keep theirs (c,)."""

    bias: Floats
    kept: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalBiasFit(Fitted):
    """The Fourier modes of a map of local calibration bias."""

    method: LocalBias
    plan: Spectral
    found: Pass
    prediction_bandwidth: float
    bandwidths: dict[str, float]

    @property
    def covariates(self) -> tuple[str, ...]:
        return self.method.covariates

    @property
    def parameters(self) -> dict[str, Any]:
        alone = self.method.prediction_kernel == "none"
        return {
            "prediction_bandwidth": None if alone else self.prediction_bandwidth,
            "covariate_bandwidth": self.bandwidths,
            "modes": self.plan.modes.series.modes * self.plan.modes.combinations,
        }

    def correction(self, p: Floats, covariates: Floats) -> Correction:
        """The bias at predictions (c,) and covariates (c, d), 0 where the map is masked.

        It is masked where fewer than two effective rows are near, or a covariate is not finite.
        """
        bias, kept = np.zeros(len(p)), np.ones(len(p), bool)
        here = np.flatnonzero(np.isfinite(covariates).all(axis=1))
        points = Points(p[here], covariates[here])
        found = self.plan.measure(self._kept_pass, points, _STRENGTHS)
        (residuals, weights), (squares,) = found.first, found.second
        weights, _, masked = effective(weights, squares, found.errors, _FEWEST)
        bias[here[~masked]] = -(residuals / weights)[~masked]
        kept[here] = masked
        return Correction(bias, kept)

    def _kept_pass(self, *statistics: Statistic) -> Pass:
        """The pass over the fitting rows, which is not made again."""
        return self.found

    def probabilities(self, chunk: Chunk) -> Floats:
        p, rest = chunk.event("positive")[:2]
        x = np.empty((len(p), 0)) if chunk.covariates is None else chunk.covariates
        bias = self.correction(p, x).bias
        return np.clip(np.column_stack([rest - bias, p + bias]), 0.0, 1.0)

    def uncorrected(self, source: Any, **options: Any) -> tuple[int, int]:
        """How many labelled rows of a source there are, and how many of them keep their p.

        One pass; `options` are those of `fit`.
        """
        data = as_source(source)
        statistic = _Kept(self, tuple(data.covariate(name) for name in self.covariates))
        found = scan(data, (statistic,), covariates=self.covariates, **options)
        states = found.groups.get(None)
        return found.counts.used, 0 if states is None else int(states[statistic].rows)


class _KeptState(NamedTuple):
    """Σ1 of rows that keep their p, a 0-d array."""

    rows: Floats


@dataclass(frozen=True, eq=False)
class _Kept(Statistic):
    """Counts rows where a map is masked."""

    fitted: LocalBiasFit
    positions: tuple[int, ...]
    large_chunks: ClassVar[bool] = True

    def zero(self, classes: int) -> _KeptState:
        return _KeptState(np.zeros(()))

    def accumulate(self, state: _KeptState, chunk: Chunk) -> _KeptState:
        x = np.empty((len(chunk), 0))
        if self.positions:
            assert chunk.covariates is not None
            x = chunk.covariates[:, self.positions]
        state.rows[...] += self.fitted.correction(chunk.event("positive").p, x).kept.sum()
        return state
