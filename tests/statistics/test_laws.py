"""Laws that every statistic of the package obeys, checked on one example of each class."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from copy import deepcopy
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import calibscale
from calibscale.data.covariates import Axis
from calibscale.estimators.forecast_scores import PinballLoss
from calibscale.estimators.functional_measures import SquaredError
from calibscale.kernels.features import OneHot, RandomFourier
from calibscale.kernels.fourier_series import Factor, FourierSeries
from calibscale.kernels.landmarks import FourierFeatures, Gaussian, choose_landmarks
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import NO_WEIGHTS, Chunk
from calibscale.predictions.classes import Classes
from calibscale.predictions.distributions.mixtures import NormalForecast
from calibscale.predictions.functionals.means import MeanPrediction
from calibscale.predictions.functionals.quantiles import QuantilePrediction
from calibscale.predictions.notions import views
from calibscale.predictions.outcomes import OutcomeChunk
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.recalibration.affine_maps import AffineMap
from calibscale.recalibration.class_losses import MapInputs
from calibscale.recalibration.order_changes import AreaInfluences, RanksOfScores
from calibscale.recalibration.parametric import TemperedLoss
from calibscale.recalibration.score_changes import ChangeSums
from calibscale.recalibration.score_ranks import (
    BegunScores,
    BoundedBins,
    PositiveScores,
    ScoreDigits,
    TopLabelScores,
)
from calibscale.statistics.bins import BinCounts, CellStarts
from calibscale.statistics.fourier_modes import Modes
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.recombined_draws import RecombinedLabels
from calibscale.statistics.score_sums import (
    Fingerprint,
    FirstImpossible,
    ImpossibleLabels,
    Moments,
    NoiseMoments,
    ScalarScores,
    Totals,
)
from calibscale.statistics.segment_atoms import SegmentAtoms, coarsened
from calibscale.statistics.shared_draws import SharedLabels
from calibscale.statistics.shift_sums import RowVectors
from calibscale.statistics.smoother import Points, Strengths
from calibscale.statistics.statistic import Statistic

K = 2
ROWS = 60
# Sums of at most 60 numbers of order 1, in another order.
CLOSE = dict(rtol=1e-13, atol=1e-13)
EDGES = tuple(np.linspace(0, 1, 8).tolist())
LEVELS = (0.0, 1.0, 2.0)  # of the second covariate


def _chunk(weighted: bool = False, dtype: type = np.float64) -> Chunk:
    """Rows of two classes with a continuous and a categorical covariate, all of fold 0."""
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(ROWS, K)) * 2).astype(dtype)
    return _rows(logits, rng.uniform(0.5, 2, ROWS) if weighted else None)


def _rows(logits, weights=None) -> Chunk:
    rng = np.random.default_rng(6)
    labels = rng.integers(0, K, ROWS)
    covariates = np.column_stack([rng.random(ROWS), rng.integers(0, len(LEVELS), ROWS)])
    block = Block(0, logits, labels, weights, covariates)
    ((chunk, counts),) = chunks(block, Rules("logits", Classes(K), 1, covariates=(0, 1)))
    assert counts.used == ROWS
    return replace(chunk, fold=0)


# ---------------------------------------------------------------- one example of each class


class MaskedMap:
    """Fitted map that is masked where p is above one half."""

    def correction(self, p, covariates):
        return SimpleNamespace(unchanged=p > 0.5)


class SharpenedMap:
    """Fitted recalibration that squares probabilities."""

    def predictions(self, chunk):
        return chunk.q**2 / (chunk.q**2).sum(axis=1, keepdims=True)


class SineResiduals:
    """Fitted plug-in family of one hyper-parameter."""

    size, plug_in = 1, True

    def residuals(self, j, view):
        return np.sin(view.points)[None]


KERNEL = ProductKernel(
    "gaussian",
    0.5,
    columns=(0,),
    bandwidths=(0.7,),
    centres=(0.5,),
    categorical=(1,),
    levels=(LEVELS,),
)
PREDICTIONS = ProductKernel("gaussian", 0.5)
SERIES = FourierSeries((Factor("gaussian", (0.5,), (0.0,), (1.0,)),), 1e-9)
MODES = Modes("positive", SERIES, True, (), (1,), (LEVELS,), (tuple(np.eye(3).ravel()),))
GRID = np.linspace(0, 2, 9)[:, None]

BY_TOP_LABEL = TopLabelScores((0, 1))
CLASS_SLOPES = np.stack([np.linspace(0.5, 1.2, K), np.linspace(-0.3, 0.4, K)])
ATOMS = SegmentAtoms((Axis("group", 1, LEVELS), Axis("x", 0, None, (0.3, 0.6))), "positive")
# Ranks of three scores, for rows with the score and the event in their covariates.
RANKS = RanksOfScores(
    np.array([0.3, 0.6, 1.0]), np.arange(6.0).reshape(2, 3), 4.0, 5.0, 0.6, 0.0, 0.0
)
DOUBLED = RANKS._replace(influences=2.0 * RANKS.influences)
INFLUENCES = AreaInfluences((None,), ((RANKS, DOUBLED),), (1.0,), 0.1, ROWS, columns=(0, 0))
EXAMPLES = {
    "AtomResiduals": lambda cls: cls(
        ATOMS, 6, coarsened(ATOMS.accumulate(ATOMS.zero(K), _chunk()), 30).keys.tobytes()
    ),
    "BettingEProcess": lambda cls: cls("positive"),
    "BinCounts": lambda cls: cls("top_label", EDGES),
    "BinMoments": lambda cls: cls("class_wise", 7),
    "BinRests": lambda cls: cls(BinCounts("top_label", EDGES)),
    "CellMasses": lambda cls: cls("positive", 0.1),
    "CellNoise": lambda cls: cls(),
    "Certain": lambda cls: cls(),
    "ClassCouplings": lambda cls: cls(CLASS_SLOPES, MapInputs(1e-9, True)),
    "ClassCurvature": lambda cls: cls(CLASS_SLOPES, MapInputs(1e-9, True)),
    "ClassLoss": lambda cls: cls(CLASS_SLOPES, MapInputs(1e-9, True)),
    "ClusterRows": lambda cls: cls(),
    "ClusterSums": lambda cls: cls(),
    "ConcentrationSums": lambda cls: cls(),
    "CondensedCounts": lambda cls: cls((-0.5, 0.4), (Axis("a", 0, edges=(0.0,)),), 1, (-0.3, 0.2)),
    "CondensedResiduals": lambda cls: cls((-0.5, 0.4), (Axis("a", 0, edges=(0.0,)),), 2),
    "CoverageTotals": lambda cls: cls(0.7),
    "ResponseCrossings": lambda cls: cls((Axis("a", 0, edges=(0.0,)),)),
    "ResponseCells": lambda cls: cls((-0.5, 0.0, 0.7)),
    "ResponseSums": lambda cls: cls(),
    "DenseAtoms": lambda cls: cls(ATOMS),
    "ElementarySums": lambda cls: cls((0.1, 0.4, 0.8), (0, 1)),
    "EventSums": lambda cls: cls("positive"),
    "FeatureMoments": lambda cls: cls(FourierFeatures(Gaussian(), 3, K), "canonical"),
    "GroupedLogisticLoss": lambda cls: cls(
        Axis("group", 1, LEVELS), np.array([[0.8, 0.1], [1.2, -0.5], [0.5, 0.0]])
    ),
    "FineHistogram": lambda cls: cls("top_label"),
    "Fingerprint": lambda cls: cls(),
    "ForecastTotals": lambda cls: cls(PinballLoss((0.2, 0.7))),
    "ChangeSums": lambda cls: cls(1),
    "ClusterChangeSums": lambda cls: cls(1),
    "ClusterInfluences": lambda cls: cls(INFLUENCES),
    "InfluenceMoments": lambda cls: cls(INFLUENCES),
    "RankedScores": lambda cls: cls(0),
    "FirstImpossible": lambda cls: cls(),
    "FoldResiduals": lambda cls: cls("class_wise"),
    "GroupSums": lambda cls: cls(
        (Axis("group", 1, LEVELS), Axis("x", 0, None, (0.3, 0.6))), "positive"
    ),
    "GridSums": lambda cls: cls("positive"),
    "GroupCells": lambda cls: cls("class_wise"),
    "GroupTemperatures": lambda cls: cls(),
    "Grouped": lambda cls: cls(Totals(), 3),
    "OfClass": lambda cls: cls(TemperedLoss(0.8), 1),
    "OfPossibleLabels": lambda cls: cls(TemperedLoss(0.8)),
    "OrderedResponses": lambda cls: cls(),
    "OutcomePairs": lambda cls: cls((-0.5, 0.0, 0.7), (-1.0, 1.0)),
    "OrderedSums": lambda cls: cls(),
    "SampledResponses": lambda cls: cls((0,), 9),
    "ImpossibleLabels": lambda cls: cls(),
    "KernelSums": lambda cls: cls(
        "kde", "positive", (0.1, 0.5), views(_chunk().take(np.arange(10)), "positive")
    ),
    "LabelNoise": lambda cls: cls(),
    "LabelTable": lambda cls: cls(),
    "LabelWeights": lambda cls: cls(),
    "LabelledShiftSums": lambda cls: cls(RowVectors(np.array([0.5, 1.5]), "likelihood", True)),
    "LabelVariances": lambda cls: cls(BinCounts("positive", EDGES)),
    "LandmarkFeatures": lambda cls: cls(
        PREDICTIONS, "positive", choose_landmarks(Gaussian(1.0), GRID, 5, 1e-12)
    ),
    "LocalFeatures": lambda cls: cls(KERNEL, "positive", 5),
    "LogisticLoss": lambda cls: cls((0.9, 0.1), ("log_odds", "one")),
    "LogOddsExtents": lambda cls: cls(1e-9),
    "LogOddsHistogram": lambda cls: cls(),
    "MapScores": lambda cls: cls(tuple(AffineMap(0.1 * i, 1.0, 1.2) for i in range(19))),
    "MergedCells": lambda cls: cls("top_label", CellStarts((0, 20_000, 40_000, 50_000))),
    "MixtureLoss": lambda cls: cls((0.5, 0.3, 0.2), 0.7),
    "Modes": lambda cls: MODES,
    "Moments": lambda cls: cls(RandomFourier(5, 0.8)),
    "NoiseMoments": lambda cls: cls(RandomFourier(5, 0.8)),
    "Nystrom": lambda cls: cls(
        PREDICTIONS, "positive", choose_landmarks(Gaussian(1.0), GRID, 5, 1e-12), kept=20
    ),
    "OwnLogit": lambda cls: cls(),
    "PointSums": lambda cls: cls(
        Strengths("positive"), PREDICTIONS, (), Points(np.array(EDGES), np.empty((8, 0)))
    ),
    "PITCells": lambda cls: cls(),
    "PITMoments": lambda cls: cls((-1.0, 0.0, 1.0), (0.5, 1.0, 2.0)),
    "PITValues": lambda cls: cls(),
    "PooledResiduals": lambda cls: cls("positive"),
    "BalanceSums": lambda cls: cls(1, (LEVELS[0],)),
    "BegunScores": lambda cls: cls(PositiveScores(), ((0x1FD, 0x1FE),), 9, 100),
    "BoundedBins": lambda cls: cls(PositiveScores(), ((0.2, 0.5, 0.9),)),
    "RankCounts": lambda cls: cls(1, (0xBFF0, 0x4000), 1, (LEVELS[0],)),
    "RatioSums": lambda cls: cls(0),
    "NoiseReplicates": lambda cls: cls(BinCounts("top_label", EDGES), SharedLabels(3), 0, 70),
    "Replicates": lambda cls: cls(BinCounts("top_label", EDGES), DrawnLabels(3), 0, 4),
    "RecombinedReplicates": lambda cls: cls(
        BinCounts("top_label", EDGES), RecombinedLabels(3, 16), 0, 99
    ),
    "ResidualMoments": lambda cls: cls(),
    "RowMoments": lambda cls: cls(SquaredError()),
    "RowPoints": lambda cls: cls("positive", (0,)),
    "RowSums": lambda cls: cls("canonical", "sine", ((SineResiduals(),),)),
    "ScaleSums": lambda cls: cls(),
    "ScalarScores": lambda cls: cls("top_label"),
    "ScoreDuels": lambda cls: cls((0, 1), (None, SharpenedMap())),
    "ScoreHistogram": lambda cls: cls("positive"),
    "ScoreSums": lambda cls: cls("class_wise"),
    "TolerantEProcess": lambda cls: cls(
        "positive", learned=((None, (1.0, *(-1.0, 0.0, 1.0) * 6)),), tolerance=0.1
    ),
    "SegmentAtoms": lambda cls: ATOMS,
    "ShiftSums": lambda cls: cls(RowVectors(np.array([0.5, 1.5]), "likelihood", True)),
    "SimplexCells": lambda cls: cls(),
    "ScoreDigits": lambda cls: cls(PositiveScores(), ((0x1FD, 0x1FE),), 9),
    "SplineLoss": lambda cls: cls((-1.0, 0.2, 1.0), (), knots=(-1.0, 0.0, 1.5)),
    "SpreadSums": lambda cls: cls("positive"),
    "SquaredResiduals": lambda cls: cls(BinCounts("class_wise", EDGES)),
    "StrengthModes": lambda cls: cls(MODES, Strengths("positive"), False),
    "Subset": lambda cls: cls("positive", 0.5),
    "Subsets": lambda cls: cls(Totals(), 0.25, 0, 4, 7),
    "TemperedLoss": lambda cls: cls(1.3),
    "Totals": lambda cls: cls(),
    "_Unchanged": lambda cls: cls(MaskedMap(), (0,)),
}
VARIANTS = [
    TemperedLoss(1.3, 0.1, clips_logits=True),
    Fingerprint(predictions=False),
    ScalarScores("positive"),
    BinCounts("positive", EDGES, left_closed=True),
    BinCounts("class_wise", EDGES),
    BegunScores(BY_TOP_LABEL, ((0x1FE, 0x1FF), (0x1FF,)), 9, 100),
    BoundedBins(BY_TOP_LABEL, ((0.5, 0.9), (0.6,))),
    ScoreDigits(BY_TOP_LABEL, ((0x1FE, 0x1FF), (0x1FF,)), 9),
]


def _concrete(cls: type) -> dict[str, type]:
    """Concrete subclasses in the package by name, at any depth."""
    classes: dict[str, type] = {}
    for subclass in cls.__subclasses__():
        classes |= _concrete(subclass)
        if subclass.__module__.startswith("calibscale.") and not inspect.isabstract(subclass):
            classes[subclass.__name__] = subclass
    return classes


for _module in pkgutil.walk_packages(calibscale.__path__, "calibscale."):
    # PyTorch may be missing, and its module defines no statistic.
    if not _module.name.endswith(("__main__", ".torch")):
        importlib.import_module(_module.name)
CLASSES = _concrete(Statistic)
STATISTICS = [EXAMPLES[name](CLASSES[name]) for name in sorted(set(EXAMPLES) & set(CLASSES))]
statistics = pytest.mark.parametrize(
    "statistic", [*STATISTICS, *VARIANTS], ids=lambda statistic: type(statistic).__name__
)


def test_examples__cover_every_statistic_of_the_package():
    assert sorted(EXAMPLES) == sorted(CLASSES)


# ---------------------------------------------------------------- comparison of states


def _state(statistic, chunk):
    if type(statistic).__name__ in OF_FORECASTS:
        mean, log_scale = chunk.values.T.astype(np.float64)
        columns = {f.name: getattr(chunk, f.name) for f in fields(Chunk)}
        columns |= {"values": np.column_stack([mean, np.exp(log_scale)])}
        columns |= {"outcomes": chunk.covariates[:, 0], "target": NormalForecast()}
        chunk = OutcomeChunk(**columns)
    elif type(statistic).__name__ in OF_QUANTILES:
        columns = {f.name: getattr(chunk, f.name) for f in fields(Chunk)}
        columns |= {"values": chunk.values[:, :1].astype(np.float64)}
        columns |= {"outcomes": chunk.covariates[:, 0], "target": QuantilePrediction(0.5)}
        chunk = OutcomeChunk(**columns)
    elif type(statistic).__name__ in OF_FUNCTIONALS:
        columns = {f.name: getattr(chunk, f.name) for f in fields(Chunk)}
        values = chunk.values[:, :1].astype(np.float64)
        if type(statistic).__name__ in OF_POSITIVE_MEANS:
            values = np.exp(values)
        columns |= {"values": values}
        columns |= {"outcomes": chunk.covariates[:, 0], "target": MeanPrediction()}
        chunk = OutcomeChunk(**columns)
    return statistic.accumulate(statistic.zero(K), chunk)


def _sorted_rows(state, order, axis=0):
    return type(state)(*(np.take(field, order, axis) for field in state))


def _sorted_sample(state):
    order = np.argsort(state.hashes)
    return state._replace(**{name: getattr(state, name)[order] for name in state._fields[5:]})


def _sorted_lists(state):
    """Cells with the points of a list in order, and without the points of a list that has ended."""
    points, masses = np.zeros_like(state.points), np.zeros_like(state.masses)
    for index in np.argwhere(state.counts > 0):
        j, c = index
        order = np.argsort(state.points[j, c, : state.counts[j, c]])
        points[j, c, : len(order)] = state.points[j, c, order]
        masses[j, c, : len(order)] = state.masses[j, c, order]
    return state._replace(points=points, masses=masses)


OF_FORECASTS = (
    "CoverageTotals",
    "ForecastTotals",
    "MapScores",
    "PITCells",
    "PITMoments",
    "PITValues",
    "ScaleSums",
)
OF_QUANTILES = ("RankCounts",)
OF_FUNCTIONALS = (
    "BalanceSums",
    "ConcentrationSums",
    "CondensedCounts",
    "CondensedResiduals",
    "ElementarySums",
    "OrderedResponses",
    "OrderedSums",
    "OutcomePairs",
    "RatioSums",
    "ResidualMoments",
    "ResponseCells",
    "ResponseCrossings",
    "ResponseSums",
    "RowMoments",
    "SampledResponses",
)
OF_POSITIVE_MEANS = ("RatioSums",)
# Of states that list rows, the order of the rows is that of the merges.
CANONICAL = {
    "BegunScores": lambda state: _sorted_rows(state, np.lexsort(state)),
    "CellMasses": _sorted_lists,
    # The root of the residual of a row near a landmark, about 1e-12, magnifies its rounding.
    "LandmarkFeatures": lambda state: (*state._replace(left=np.zeros(())),),
    "Nystrom": _sorted_sample,
    "OutcomePairs": lambda state: state.sorted(),
    "PITValues": lambda state: (*state[:3], *state.curve()),
    "PooledResiduals": lambda state: _sorted_rows(state, np.argsort(state.rows)),
    "RowPoints": lambda state: _sorted_rows(state, np.argsort(state.rows)),
    "RankedScores": lambda state: state.sorted(),
    "ScoreHistogram": lambda state: state.sorted(),
    "Subset": lambda state: _sorted_rows(state, np.argsort(state.rows[0]), axis=1),
}


def _equal(statistic, a, b, **tolerance):
    canonical = CANONICAL.get(type(statistic).__name__, tuple)
    for x, y in zip(canonical(a), canonical(b), strict=True):
        assert x.dtype in (np.float64, np.complex128, np.int64, np.uint64)
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


def _close(statistic):
    """Tolerance for sums in another order. A Fourier transform rounds phases and a grid as well."""
    transforms = type(statistic).__name__ in ("Modes", "StrengthModes")
    return dict(rtol=1e-10, atol=1e-11) if transforms else CLOSE


# ---------------------------------------------------------------- laws


@pytest.mark.long
@statistics
@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_statistic__does_not_depend_on_how_rows_are_cut(statistic, weighted, data):
    chunk = _chunk(weighted)
    cuts = sorted(data.draw(st.lists(st.integers(0, ROWS), max_size=6)))
    borders = [0, *cuts, ROWS]
    merged = statistic.zero(K)
    for low, high in pairwise(borders):
        if high > low:
            part = chunk.take(np.arange(low, high))
            merged = statistic.merge(merged, _state(statistic, part))
    _equal(statistic, merged, _state(statistic, chunk), **_close(statistic))


@statistics
def test_statistic__merge_is_associative(statistic):
    chunk = _chunk(weighted=True)
    a, b, c = (_state(statistic, chunk.take(np.arange(i, ROWS, 3))) for i in range(3))
    left = statistic.merge(statistic.merge(deepcopy(a), deepcopy(b)), deepcopy(c))
    right = statistic.merge(deepcopy(a), statistic.merge(deepcopy(b), deepcopy(c)))
    _equal(statistic, left, right, **CLOSE)


@statistics
def test_statistic__zero_is_neutral_on_both_sides(statistic):
    state = _state(statistic, _chunk())
    _equal(statistic, statistic.merge(deepcopy(state), statistic.zero(K)), state)
    _equal(statistic, statistic.merge(statistic.zero(K), deepcopy(state)), state)


@statistics
def test_statistic__row_order_does_not_matter(statistic):
    chunk = _chunk(weighted=True)
    shuffled = chunk.take(np.random.default_rng(1).permutation(ROWS))
    _equal(statistic, _state(statistic, shuffled), _state(statistic, chunk), **_close(statistic))


@statistics
def test_statistic__and_its_state_survive_pickling(statistic):
    copy = pickle.loads(pickle.dumps(statistic))
    if type(statistic).__dataclass_params__.eq:
        assert copy == statistic
        assert hash(copy) == hash(statistic)
    state = _state(statistic, _chunk())
    _equal(statistic, pickle.loads(pickle.dumps(state)), state)
    _equal(statistic, _state(copy, _chunk()), state)


@statistics
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_statistic__narrow_input_is_widened_before_anything_else(statistic, dtype):
    narrow = _chunk(dtype=dtype)
    wide = _rows(narrow.values.astype(np.float64))
    _equal(statistic, _state(statistic, narrow), _state(statistic, wide))


@pytest.mark.parametrize(
    "statistic",
    [s for s in [*STATISTICS, *VARIANTS] if s.powers],
    ids=lambda statistic: type(statistic).__name__,
)
def test_statistic__weighted_parts_equal_weighted_rows(statistic):
    """Parts of weights 2 and 1/2, against rows with weights that are scaled so."""
    chunk = _chunk(weighted=True)
    scales, parts, expected = (2.0, 0.5), [], statistic.zero(K)
    for i, scale in enumerate(scales):
        part = chunk.take(np.arange(i, ROWS, 2))
        parts.append(_state(statistic, part))
        scaled = replace(part, weights=scale * part.weights)
        expected = statistic.merge(expected, _state(statistic, scaled))
    stacked = type(parts[0])(*(np.stack(fields) for fields in zip(*parts, strict=True)))
    total = statistic.weighted_total(stacked, np.array(scales))
    _equal(statistic, total, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "statistic",
    [s for s in [*STATISTICS, *VARIANTS] if s != Fingerprint()],  # hashes weights
    ids=lambda statistic: type(statistic).__name__,
)
def test_statistic__weight_one_is_no_weight(statistic):
    plain = _chunk()
    assert plain.weights is NO_WEIGHTS
    weighted = replace(plain, weights=np.ones(ROWS))
    _equal(statistic, _state(statistic, weighted), _state(statistic, plain), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_infinite_scores__of_weight_0_are_not_counted(weight):
    """Every other row has a label of probability 0, and infinite scores after a change."""
    chunk = _chunk(weighted=True)
    impossible = np.arange(ROWS) % 2 == 0
    q = np.where(impossible, 1 - chunk.labels, 0.5)
    block = Block(0, np.column_stack([1 - q, q]), chunk.labels, None, None)
    ((rows, _),) = chunks(block, Rules("probabilities", Classes(K), 1))
    scores = np.column_stack([np.ones(ROWS), np.where(impossible, np.finfo(float).max, 1.0)])
    weights = np.where(impossible, weight, 1.0)
    rows = replace(rows, weights=weights, covariates=scores)
    count = ROWS // 2 if weight else 0
    assert _state(ImpossibleLabels(), rows).n == count
    first = _state(FirstImpossible(), rows)
    assert (first.n, first.first) == ((count, 0) if weight else (0, np.inf))
    changes = _state(ChangeSums(1), rows)
    np.testing.assert_array_equal(changes.infinite, [[0], [count]])
    np.testing.assert_array_equal(changes.totals, [[weights.sum()], [ROWS - ROWS // 2]])


# ---------------------------------------------------------------- single statistics


def test_one_hot__moments_count_the_points():
    q = np.array([[0.25, 0.75], [0.5, 0.5], [0.25, 0.75]])
    block = Block(0, q, np.array([0, 1, 1]), None, None)
    ((chunk, _),) = chunks(block, Rules("probabilities", Classes(2), 1))
    state = _state(Moments(OneHot(((0.25, 0.75), (0.5, 0.5)))), chunk)
    np.testing.assert_array_equal(state.S, np.diag([2.0, 1.0]))
    np.testing.assert_array_equal(state.C, [[-0.5, 0.5], [0.5, -0.5]])


@pytest.mark.parametrize("weighted", [False, True])
def test_noise__is_that_of_each_row(weighted):
    chunk = _chunk(weighted)
    features = RandomFourier(5, 0.8)
    phi, w = features(chunk), chunk.weights if weighted else np.ones(ROWS)
    expected = sum(
        w[i] ** 2 * (chunk.delta[i] @ chunk.delta[i]) * np.outer(phi[i], phi[i])
        for i in range(ROWS)
    )
    np.testing.assert_allclose(_state(NoiseMoments(features), chunk).M, expected, **CLOSE)
