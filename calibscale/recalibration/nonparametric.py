"""Recalibration by isotonic regression, Bayesian binning, and subtraction of local bias."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Unpack

import numpy as np
from pydantic import Field, TypeAdapter, model_validator
from scipy.special import betaln, xlog1py, xlogy

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.estimators.skce import KLCE
from calibscale.kernels.bandwidths import local_kernel, named_bandwidths
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.fourier_series import NoSeries
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES, MEANS, QUANTILES
from calibscale.recalibration.cell_fits import HISTOGRAM
from calibscale.recalibration.isotonic_outcomes import steps_of_outcomes
from calibscale.recalibration.onnx_graphs import OnnxScore, piecewise_polynomial
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    NonNegative,
    Read,
    RecalibrationMethod,
    Share,
    StoredFit,
    increasing,
    short_of_certainty,
)
from calibscale.recalibration.sql_expressions import SQLScore, interpolated
from calibscale.session import Session, SessionOptions
from calibscale.statistics.bins import EqualMassCells, FineHistogram, fine_borders
from calibscale.statistics.effective_rows import effective
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.outcome_pairs import MOST_PAIRS
from calibscale.statistics.score_histogram import OccupiedCells, cell_steps
from calibscale.statistics.score_sums import CountState
from calibscale.statistics.smoother import Points, Spectral, Strengths, StrengthState
from calibscale.statistics.statistic import Statistic, added

_ROUNDING = 1e-9  # of a value in a file
_Finite = Annotated[float, Field(ge=-1e300, le=1e300)]  # with a finite difference from another


@dataclass(frozen=True)
class Isotonic(RecalibrationMethod):
    """Non-decreasing function of predictions with the smallest loss of the outcomes.

    It is for P(y = 1) of two classes (Zadrozny & Elkan 2002) and for means (Barlow et al. 1972),
    by the squared error, and for quantiles by the pinball loss (Jordan, Mühlemann & Ziegel 2022),
    in one pass.  Rows of two classes are counted in the 2^16 cells of `FineHistogram`, and each
    cell is one point at its mean p.  The width of a cell is at most 2^−11, and at most 2^−9 of the
    distance to the nearer of 0 and 1.  Means are kept apart while at most 2^16 differ, and are
    otherwise in cells whose relative width is in a note.  Quantiles keep 2^20 pairs of a prediction
    and an outcome, or cells of both, see `Decomposition`.  The function is linear between the
    steps, and constant beyond the rows.

    Parameters
    ----------
    ends : {"laplace", "pure"}
        ``laplace``: if the lowest step has no events, an event and another row are added below all
        scores before the regression, and above them if the highest step has events only.  A step
        with k events in n rows becomes (k + 1)/(n + 2), Laplace's rule of succession, and is joined
        with the next one where their order requires it.  Venn-Abers predictors give the same value:
        with the new row as either label they are 0 and 1/(n + 1), which their authors combine to
        1/(n + 2) (Vovk & Petej 2014).  So p' is never 0 or 1, and the log loss of new rows is
        finite.  Other steps are steps of the pure regression.  With weights, each row that is added
        has the weight Σw²/Σw.  ``pure``: the regression alone, which may be exactly 0 or 1, and
        costs an infinite log loss where wrong.  Means and quantiles have the regression alone with
        either setting, because they have no rule of succession.  Where all outcomes of the lowest
        step are 0, so is its mean.
    """

    ends: str = "laplace"
    name: ClassVar[str] = "isotonic"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, MEANS, QUANTILES)

    def __post_init__(self) -> None:
        require(self.ends in ("laplace", "pure"), "ends is laplace or pure", self.ends)

    @classmethod
    def of_settings(cls, settings: dict[str, Any]) -> Self:
        return super().of_settings({"ends": "pure", **settings})  # those without it were pure

    def prior(self, cells: OccupiedCells) -> float:
        """Weight of a row that is added at an end, 0 for none."""
        return cells.unit if self.ends == "laplace" else 0.0

    @classmethod
    def fit_class(cls) -> type[IsotonicFit]:
        return IsotonicFit

    def _fit(self, setup: DataProfile, read: Read) -> IsotonicFit:
        notes: tuple[str, ...] = ()
        if setup.source.target.has_classes:
            result = read(HISTOGRAM)
            cells = OccupiedCells.of(result.groups[None][HISTOGRAM].sums)
            knots, values, count = cell_steps(cells, self.prior(cells))
            rows = result.counts
        else:
            knots, values, count, rows, notes = steps_of_outcomes(self.name, setup, read)
        if count == 1:
            notes += (f"one step: every row becomes {values[0]:.6g}",)
        return IsotonicFit(
            knots=knots,
            values=values,
            steps=count,
            method=self,
            classes=setup.classes,
            counts=rows,
            passes=1,
            notes=notes,
        )


class StoredIsotonic(StoredFit):
    """State of `IsotonicFit`."""

    knots: Annotated[list[_Finite], Field(min_length=1, max_length=2 * MOST_PAIRS)]
    values: Annotated[list[_Finite], Field(min_length=1, max_length=2 * MOST_PAIRS)]
    steps: Annotated[int, Field(ge=1, le=MOST_PAIRS)]

    @model_validator(mode="after")
    def _is_function(self) -> Self:
        require(len(self.knots) == len(self.values), "knots and values must be equally many")
        for name in ("knots", "values"):
            require(increasing(getattr(self, name), strictly=False), f"{name} must not decrease")
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class IsotonicFit(FittedRecalibrator):
    """Piecewise linear function p' with `values` at `knots`, the first and last p of each step."""

    method: Isotonic
    knots: Floats
    values: Floats
    steps: int
    stored: ClassVar[type[StoredFit]] = StoredIsotonic

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> IsotonicFit:
        fitted = super().restored(state, **common)
        if fitted.classes:
            for name in ("knots", "values"):
                ends = getattr(fitted, name)[[0, -1]]
                # A value is a mean of frequencies, with rounding.
                within = ends[0] >= -_ROUNDING and ends[1] <= 1.0 + _ROUNDING
                require(within, f"state.{name} must be in [0, 1]", ends.tolist())
        return fitted

    @property
    def parameters(self) -> dict[str, Any]:
        ends = {"lowest": float(self.values[0]), "highest": float(self.values[-1])}
        if not self.classes:
            return {"steps": self.steps, **ends}
        resolution = float(np.diff(fine_borders()).max())
        return {"steps": self.steps, **ends, "resolution": resolution}

    def predictions(self, chunk: Chunk) -> Floats:
        if not self.classes:
            rows: Any = chunk
            x = rows.target.ordered_by(rows.values)
            return np.interp(x, self.knots, self.values)[:, None]
        p = np.interp(chunk.event("positive").p, self.knots, self.values)
        return np.column_stack([1.0 - p, p])

    def sql(self, score: SQLScore) -> str:
        return interpolated(score.probability, self.knots, self.values)

    def onnx(self, score: OnnxScore) -> str:
        knots, places = np.unique(self.knots, return_index=True)
        values = self.values[places]
        slopes = np.diff(values) / np.diff(knots)
        # Constant beyond the knots.
        lines = np.array([[0.0, *slopes, 0.0], [values[0], *values]])
        return score.with_the_other(piecewise_polynomial(score, score.probability, knots, lines))


# ---------------------------------------------------------------- Bayesian binning


class _Cells(NamedTuple):
    """Σw, Σwp and Σwδ of the cells of a histogram (3, c), and their bins of equal weight.

    The weights are scaled so that their sum is the effective number of rows.
    """

    sums: Floats
    by_mass: EqualMassCells


@dataclass(frozen=True)
class BBQ(RecalibrationMethod):
    """Bayesian binning into quantiles: an average of histograms (Naeini, Cooper & Hauskrecht 2015).

    For two classes, in one pass: the histograms of n^(1/3)/10 to 10 n^(1/3) bins, at most n/5, join
    the 2^16 cells of `FineHistogram`.  As in the authors' code, histograms are left out after the
    first gap between sorted weights that is below 0.001 of the variance of the weights.

    Parameters
    ----------
    score : {"bdeu", "bic"}
        Weight of a histogram, and the values in its bins.  ``bdeu``: marginal likelihood, with two
        prior rows in each bin that have the middle of the bin as their mean, and posterior means.
        ``bic``: exp(−BIC/2), and frequencies.
    bins : {"mass", "width"}
        Bins of equal mass, or of equal width: ``BBQ("bic", "width")`` is the BBQ of netcal.
    """

    score: str = "bdeu"
    bins: str = "mass"
    name: ClassVar[str] = "bbq"

    def __post_init__(self) -> None:
        require(self.score in ("bdeu", "bic"), "score is bdeu or bic", self.score)
        require(self.bins in ("mass", "width"), "bins is mass or width", self.bins)

    @classmethod
    def fit_class(cls) -> type[BBQFit]:
        return BBQFit

    def _fit(self, setup: DataProfile, read: Read) -> BBQFit:
        result = read(HISTOGRAM)
        sums = result.groups[None][HISTOGRAM].sums
        # Effective rows, which are rows without weights.
        n = float(sums[1].sum() ** 2 / sums[2].sum())
        root = n ** (1.0 / 3.0)
        numbers = range(max(1, int(root / 10)), max(1, math.ceil(min(n / 5, 10 * root))) + 1)
        weight, p, delta = sums[[1, 3, 4]]
        scale = n / weight.sum()
        cells = _Cells(scale * np.stack([weight, p, delta]), EqualMassCells(weight))
        histograms = [self._histogram(cells, count, n) for count in numbers]
        scores, edges, values = zip(*histograms, strict=True)
        weights = np.exp(np.array(scores) - max(scores))
        order = np.argsort(-weights, kind="stable")
        # The last gap is 0, so that all histograms stay if no earlier gap is small.
        gaps = -np.diff(weights[order], append=weights[order[-1]])
        # Gaps between equal weights at the top are no end.
        first = int(np.argmax(gaps > 0.0))
        order = order[: first + int(np.argmax(gaps[first:] <= 1e-3 * weights.var())) + 1]
        # The average of step functions is a step function on the union of their edges.
        starts = np.unique(np.concatenate([edges[i][:-1] for i in order]))
        mean = np.average(
            # Edges between bins, because equal scores at 1 give the last bin no width.
            [values[i][np.searchsorted(edges[i][1:-1], starts, "right")] for i in order],
            axis=0,
            weights=weights[order],
        )
        steps = np.flatnonzero(np.diff(mean, prepend=-1.0))
        return BBQFit(
            edges=starts[steps],
            values=np.clip(mean[steps], 0.0, 1.0),
            histograms=len(order),
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=1,
        )

    def _histogram(self, cells: _Cells, count: int, n: float) -> tuple[float, Floats, Floats]:
        """Log weight of a histogram, its edges (b + 1,), and the probability of each bin (b,)."""
        if self.bins == "mass":
            starts = cells.by_mass.starts(count)
            edges = fine_borders()[np.append(starts, FineHistogram.CELLS)]
            rows, p, delta = np.add.reduceat(cells.sums, starts, axis=1)
        else:
            edges = np.linspace(0.0, 1.0, count + 1)
            full = cells.sums[:, cells.sums[0] > 0]
            # Rounded, so that a mean p on an edge is in the bin above in spite of rounding errors.
            bins = np.searchsorted(edges[1:-1], np.round(full[1] / full[0], 12), "right")
            rows, p, delta = (np.bincount(bins, column, count).astype(float) for column in full)
        events = np.clip(p - delta, 0.0, rows)
        middles = (edges[:-1] + edges[1:]) / 2.0
        no_events = rows - events
        if self.score == "bdeu":
            # The prior Beta(a, 2 − a) weighs two rows, with the middle of the bin as its mean.
            a = 2.0 * np.clip(middles, 0.005, 0.995)  # limits of the authors' code
            # B(a, 2 − a) = π(1 − a)/sin(π(1 − a)), by the reflection formula.
            weight = betaln(events + a, no_events + 2.0 - a) + np.log(np.sinc(1.0 - a))
            return float(weight.sum()), edges, (events + a) / (rows + 2.0)
        value = np.where(rows > 0.0, events / np.maximum(rows, 1e-300), middles)
        fit = float((xlogy(events, value) + xlog1py(no_events, -value)).sum())
        # −BIC/2: each bin costs log(n)/2, like one parameter
        return fit - math.log(n) / 2.0 * len(rows), edges, value


class StoredBBQ(StoredFit):
    """State of `BBQFit`."""

    edges: Annotated[list[Share], Field(min_length=1, max_length=FineHistogram.CELLS)]
    values: Annotated[list[Share], Field(min_length=1, max_length=FineHistogram.CELLS)]
    histograms: Annotated[int, Field(ge=1, le=FineHistogram.CELLS)]

    @model_validator(mode="after")
    def _is_function(self) -> Self:
        require(len(self.edges) == len(self.values), "edges and values must be equally many")
        require(increasing(self.edges), "edges must increase")
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class BBQFit(FittedRecalibrator):
    """Step function p' with `values` above `edges`, an average of `histograms`."""

    edges: Floats
    values: Floats
    histograms: int
    stored: ClassVar[type[StoredFit]] = StoredBBQ

    @property
    def parameters(self) -> dict[str, Any]:
        return {"histograms": self.histograms, "steps": len(self.values)}

    def predictions(self, chunk: Chunk) -> Floats:
        step = np.searchsorted(self.edges, chunk.event("positive").p, "right") - 1
        p = self.values[np.maximum(step, 0)]
        return np.column_stack([1.0 - p, p])


# ---------------------------------------------------------------- Local bias


_MIN_ROWS = 2  # effective rows that a correction needs
_STRENGTHS = Strengths("positive", limits=False)
_PLAN = TypeAdapter(Spectral)


@dataclass(frozen=True)
class LocalBias(RecalibrationMethod):
    """p' = p + LCB(p, x), within [0, 1]: "correct the model's output" [VF, §3.3, eq. 7].

    For two classes.  The map is computed in one pass, as a Fourier series with a length that does
    not depend on the number of rows, so kernels are Gaussian and there are at most three continuous
    dimensions, including the prediction.  Where the map is masked, p' = p.  Corrections
    make no prediction certain (see `short_of_certainty`).

    Parameters
    ----------
    covariates, prediction_bandwidth, covariate_bandwidth, categorical
        See `KLCE`.
    prediction_kernel : {"gaussian", "none"}
        ``none``: the bias does not depend on p (Luo et al. 2022).
    tolerance : float
        Tolerance of the series: the error of Σwκ is below tolerance·Σw.
    """

    covariates: tuple[str, ...] = ()
    prediction_bandwidth: float | None = None
    covariate_bandwidth: float | Mapping[str, float] | None = field(default=None, hash=False)
    categorical: tuple[str, ...] = ()
    prediction_kernel: str = "gaussian"
    tolerance: float = 1e-9
    name: ClassVar[str] = "local_bias"

    def __post_init__(self) -> None:
        set_names(self, "covariates", "categorical")
        if isinstance(self.covariate_bandwidth, Mapping):
            object.__setattr__(self, "covariate_bandwidth", dict(self.covariate_bandwidth))
        supported = self.prediction_kernel in ("gaussian", "none")
        require(supported, "prediction_kernel must be gaussian or none", self.prediction_kernel)
        self._local()  # validates the shared settings

    def _local(self) -> KLCE:
        return KLCE(
            self.covariates,
            self.prediction_bandwidth,
            self.covariate_bandwidth,
            self.categorical,
            self.prediction_kernel,
            tolerance=self.tolerance,
        )

    @classmethod
    def fit_class(cls) -> type[LocalBiasFit]:
        return LocalBiasFit

    def _fit(self, setup: DataProfile, read: Read) -> LocalBiasFit:
        kernel, notes = local_kernel(setup, "positive", self._local())
        try:
            plan = Spectral.fitting(
                setup, "positive", kernel, self.covariates, self.tolerance, None
            )
        except NoSeries as error:
            raise OptionError(
                f"local_bias: there is no short Fourier series of the map ({error.reason}); use "
                "fewer continuous covariates, or wider bandwidths"
            ) from error
        statistics = plan.statistics(_STRENGTHS)
        result = read(*statistics, covariates=self.covariates)
        return LocalBiasFit(
            plan=plan,
            result=result,
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=1,
            notes=tuple(notes),
        )


class Correction(NamedTuple):
    """Bias added to each p (c,), and whether the row is unchanged: the map is masked (c,)."""

    bias: Floats
    unchanged: Any


class StoredLocalBias(StoredFit):
    """State of `LocalBiasFit`: the plan, and for κ and κ² the modes as text and the weight."""

    plan: Spectral
    modes: tuple[str, str]
    weights: tuple[NonNegative, NonNegative]

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        self.plan.require_sound()
        for statistic, text in zip(self.plan.statistics(_STRENGTHS), self.modes, strict=True):
            numbers = statistic.strengths.counts[statistic.squared] * statistic.modes.numbers
            # base64 has 4 characters for 3 bytes, and a complex number 16 bytes.
            length = 4 * math.ceil(16 * numbers / 3)
            require(
                len(text) == length,
                f"modes of {numbers:,} complex numbers have {length:,} characters",
                len(text),
            )
        return self

    def states(self) -> dict[Statistic, StrengthState]:
        """Modes by their statistics."""
        states: dict[Statistic, StrengthState] = {}
        parts = zip(self.plan.statistics(_STRENGTHS), self.modes, self.weights, strict=True)
        for statistic, text, weight in parts:
            try:
                sums = np.frombuffer(b64decode(text, validate=True), "<c16").astype(complex)
            except ValueError as error:
                raise OptionError(f"state.modes must be numbers in base64: {error}") from error
            # |Σ w δ exp(i⟨ω, z⟩)| ≤ Σ w.  With this bound, no sum of modes overflows.
            # The maximum of an array is NaN if a number is, unlike the maximum of two floats.
            largest = np.maximum(np.abs(sums.real), np.abs(sums.imag)).max()
            require(
                largest <= weight * (1 + 1e-6),
                f"state.modes must be finite and at most their weight {weight:.6g}",
                largest,
            )
            shape = (-1, statistic.modes.combinations, *statistic.modes.series.shape)
            states[statistic] = StrengthState(np.array(weight), sums.reshape(shape))
        return states


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalBiasFit(FittedRecalibrator):
    """Fourier modes of a map of local calibration bias."""

    method: LocalBias
    plan: Spectral
    result: PassResult
    stored: ClassVar[type[StoredFit]] = StoredLocalBias

    @property
    def state(self) -> dict[str, Any]:
        states = self.result.groups[None]
        sums = (states[s].sums for s in self.plan.statistics(_STRENGTHS))
        return {
            "plan": _PLAN.dump_python(self.plan, mode="json"),
            "modes": [b64encode(mode.astype("<c16").tobytes()).decode() for mode in sums],
            "weights": [float(states[s].weight) for s in self.plan.statistics(_STRENGTHS)],
        }

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        stored = StoredLocalBias.read(state)
        plan, method = stored.plan, common["method"]
        require(
            len(plan.positions) == len(method.covariates),
            "state.plan.positions must have one number for each covariate",
        )
        require(
            plan.tolerance == method.tolerance, "state.plan.tolerance must be that of the settings"
        )
        result = PassResult(common["counts"], {None: stored.states()}, {})
        return cls(plan=plan, result=result, **common)

    @property
    def parameters(self) -> dict[str, Any]:
        constant = self.method.prediction_kernel == "none"
        kernel = self.plan.kernel
        return {
            "prediction_bandwidth": None if constant else kernel.prediction_bandwidth,
            "covariate_bandwidth": named_bandwidths(self.method, kernel),
            "modes": self.plan.modes.series.modes * self.plan.modes.combinations,
        }

    def correction(self, p: Floats, covariates: Floats) -> Correction:
        """Bias at predictions (c,) and covariates (c, d), 0 where the map is masked.

        The map is masked where fewer than two effective rows are near, or a covariate is not
        finite.
        """
        bias, unchanged = np.zeros(len(p)), np.ones(len(p), bool)
        # A row without a finite covariate has no place on the map.
        finite = np.flatnonzero(np.isfinite(covariates).all(axis=1))
        points = Points(p[finite], covariates[finite])
        # The modes are stored: no pass over rows is needed.
        measured = self.plan.measure(lambda *statistics: self.result, points, _STRENGTHS)
        (residuals, weights), (squares,) = measured.first, measured.second
        weights, _, masked = effective(weights, squares, measured.errors, _MIN_ROWS)
        # Residuals are δ = p − y, and the bias is y − p [VF, eq. 7].
        bias[finite[~masked]] = -(residuals / weights)[~masked]
        unchanged[finite] = masked
        return Correction(bias, unchanged)

    def predictions(self, chunk: Chunk) -> Floats:
        p, complement = chunk.event("positive")[:2]
        x = np.empty((len(p), 0)) if chunk.covariates is None else chunk.covariates
        bias = self.correction(p, x).bias
        rows = self.counts.used
        return np.column_stack(
            [
                short_of_certainty(complement - bias, complement, rows),
                short_of_certainty(p + bias, p, rows),
            ]
        )

    def uncorrected(self, source: Any, **options: Unpack[SessionOptions]) -> tuple[int, int]:
        """Numbers of labelled rows, and of labelled rows with an unchanged p, by one pass."""
        with Session.open(source, **options) as session:
            positions = tuple(session.source.covariate(name) for name in self.covariates)
            statistic = _Unchanged(self, positions)
            result = session.scan([statistic], covariates=self.covariates)
        return result.counts.used, int(result.groups[None][statistic].n)


@dataclass(frozen=True, eq=False)
class _Unchanged(Statistic):
    """Count of the rows at which a map is masked."""

    fitted: LocalBiasFit
    positions: tuple[int, ...]
    large_chunks: ClassVar[bool] = True

    def zero(self, classes: int) -> CountState:
        return CountState(np.zeros(()))

    def accumulate(self, state: CountState, chunk: Chunk) -> CountState:
        x = np.empty((len(chunk), 0))
        if self.positions:
            assert chunk.covariates is not None
            x = chunk.covariates[:, self.positions]
        return added(state, self.fitted.correction(chunk.event("positive").p, x).unchanged.sum())
