"""Functions of arrays: values, labels, arrays of other libraries, and scores of scikit-learn."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import calibscale
from calibscale import InvalidDataError, OptionError, metrics
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.predictions.claims import includes
from tests.support import naive

EDGES = np.linspace(0, 1, 16)
NAMES = np.array(["cat", "dog", "fox"])


@pytest.fixture
def rows(rng):
    """300 rows of three classes: labels, probabilities, and weights."""
    p = rng.dirichlet([1.0, 2.0, 1.5], 300)
    return rng.integers(0, 3, 300), p, rng.uniform(0.2, 3, 300)


@pytest.fixture
def pairs(rng):
    """300 rows of two classes: labels, and P(positive)."""
    p = rng.uniform(size=300)
    # the true frequency is p², so that errors are not 0
    return (rng.uniform(size=300) < p**2).astype(int), p


@pytest.mark.long
def test_metrics__are_those_of_naive_code(rows, pairs):
    y, p, w = rows
    scores = naive.scores(np.log(p), y, w)
    assert metrics.brier(y, p, sample_weight=w) == pytest.approx(scores["brier"], rel=1e-12)
    assert metrics.nll(y, p, sample_weight=w) == pytest.approx(scores["nll"], rel=1e-12)
    assert metrics.accuracy(y, p, sample_weight=w) == pytest.approx(scores["accuracy"], rel=1e-12)
    # top labels of three classes, and events of two
    for name in ("ece", "mce", "tce2", "tce2_debiased"):
        top, hit = p.max(axis=1), (p.argmax(axis=1) == y).astype(float)
        expected = naive.binned(top, hit, EDGES)[name]
        assert getattr(metrics, name)(y, p) == pytest.approx(expected, rel=1e-11)
        event, q = pairs
        expected = naive.binned(q, event, EDGES)[name]
        assert getattr(metrics, name)(event, q) == pytest.approx(expected, rel=1e-11)
    expected = sum(naive.class_wise(p, y, np.linspace(0, 1, 6)))
    assert metrics.cwce2(y, p, bins=np.int64(5)) == pytest.approx(expected, rel=1e-11)


def test_metrics__are_those_of_sklearn(pairs):
    scores = pytest.importorskip("sklearn.metrics", reason="compares with scikit-learn")
    y, p = pairs
    assert metrics.nll(y, p) == pytest.approx(scores.log_loss(y, p), rel=1e-12)
    # the Brier score of both classes is twice that of one
    assert metrics.brier(y, p) == pytest.approx(2 * scores.brier_score_loss(y, p), rel=1e-12)


def test_klce__covariates_are_arrays_texts_or_frames(rows, rng):
    pandas = pytest.importorskip("pandas", reason="covariates in a data frame")
    y, p, _ = rows
    x = np.column_stack([rng.integers(0, 2, 300), rng.normal(size=300)])
    region = np.array(["north", "south"])[x[:, 0].astype(int)]
    source = calibscale.from_arrays(probabilities=p, labels=y, covariates=x)
    klce = calibscale.KLCE(("x0", "x1"), categorical=("x0",))
    expected = calibscale.evaluate(source, klce)["klce"].value
    assert metrics.klce(y, p, covariates=x, categorical=["x0"]) == expected
    # the names of two metrics for the same value
    assert metrics.skce(y, p, covariates=x, categorical=["x0"]) == expected
    frame = pandas.DataFrame({"region": region, "age": x[:, 1]})
    assert metrics.klce(y, p, covariates=frame) == expected
    exact = {"method": "exact", "ridge": 0.3, "conditional_on": "region"}
    assert metrics.ckce(y, p, covariates=frame, **exact) > 0
    with pytest.raises(OptionError, match="klce needs covariates="):
        metrics.klce(y, p)


def test_skce__is_kce_without_covariates(rows):
    y, p, _ = rows
    assert metrics.skce(y, p) == pytest.approx(metrics.kce(y, p), rel=1e-12)


@pytest.mark.parametrize(
    ("kinds", "labels"),
    [
        (NAMES, None),
        (NAMES, NAMES),
        (NAMES.astype(object), None),
        ([10, 20, 30], None),
        ([1, 2, 3], None),
        ([-1, 0, 1], None),
        ([2, 0, 1], [2, 0, 1]),
        ([0.0, 1.0, 2.0], None),
        (NAMES[::-1], NAMES[::-1]),
    ],
    ids=str,
)
def test_labels__may_be_of_any_kind(rows, kinds, labels):
    y, p, _ = rows
    assert metrics.ece(np.asarray(kinds)[y], p, labels=labels) == metrics.ece(y, p)
    assert metrics.ece([kinds[k] for k in y], p.tolist(), labels=labels) == metrics.ece(y, p)


@pytest.mark.long
@pytest.mark.parametrize(
    "kinds", [["no", "yes"], [False, True], [0, 1], [-1, 1], [1, 2], [0.0, 1.0]], ids=str
)
def test_labels__of_two_classes_may_be_of_any_kind(pairs, kinds):
    y, p = pairs
    two_columns = np.column_stack([1 - p, p])
    for predictions in (p, p[:, None], two_columns):
        assert metrics.ece(np.array(kinds)[y], predictions) == metrics.ece(y, p)
    # the other class is the positive one
    swapped = metrics.ece(np.array(kinds)[y], p, labels=kinds[::-1])
    assert swapped == metrics.ece(1 - y, p)


def test_labels__may_lack_some_classes(rows):
    y, p, _ = rows
    part = y != 2
    expected = metrics.ece(NAMES[y[part]], p[part], labels=NAMES)
    assert metrics.ece(y[part], p[part]) == expected  # integers from 0
    # one class of two, and a prediction of 0.5
    assert metrics.ece(np.ones(5, int), np.full(5, 0.5)) == 0.5
    assert metrics.ece(np.ones(5, bool), np.full(5, 0.5)) == 0.5
    pandas = pytest.importorskip("pandas", reason="predictions with names of columns")
    frame = pandas.DataFrame(p[part], columns=NAMES)
    assert metrics.ece(NAMES[y[part]], frame) == expected
    # names of columns decide, not their order
    reordered = frame[["fox", "cat", "dog"]]
    assert metrics.ece(NAMES[y[part]], reordered) == expected


def test_labels__missing_ones_are_skipped(rows):
    y, p, _ = rows
    gaps = NAMES[y].astype(object)
    # a missing label is no class
    gaps[:7] = None
    assert metrics.ece(gaps, p) == metrics.ece(y[7:], p[7:])
    assert metrics.ece(np.where(np.arange(300) < 7, np.nan, y), p) == metrics.ece(y[7:], p[7:])


@pytest.mark.parametrize(
    ("y", "labels", "error", "says"),
    [
        (["cat", "dog"] * 2, None, OptionError, "y_true has 2 different values .*, but y_prob 3"),
        ([1, 2] * 2, None, OptionError, "labels=model.classes_"),  # counted from 0 or from 1?
        ([0, 3] * 2, None, OptionError, "y_true has 2 different values"),
        (list("abcd"), None, OptionError, "y_true has 4 different values"),
        (["cat", "dog"] * 2, ["cat", "dog"], OptionError, "labels= has 2 different values"),
        (["cat", "cow"] * 2, NAMES, InvalidDataError, "row 1 is 'cow', which is not among 'cat'"),
        (
            np.array([0, "dog"] * 2, object),
            None,
            InvalidDataError,
            "y_true must be all texts, all numbers",
        ),
        (np.eye(3)[[0, 1, 2, 0]], None, InvalidDataError, r"one-hot\? take labels\.argmax"),
        ([0, 1, 2], None, InvalidDataError, "4 rows of probabilities, but 3 of labels"),
    ],
    ids=str,
)
def test_labels__that_are_impossible_are_refused(y, labels, error, says):
    with pytest.raises(error, match=says):
        metrics.ece(y, np.full((4, 3), 1 / 3), labels=labels)


def test_predictions__that_are_invalid_are_refused_or_dropped(pairs):
    y, p = pairs
    p[3] = np.nan
    with pytest.raises(InvalidDataError, match=r"row 3 of y_prob: .*on_invalid='drop'"):
        metrics.ece(y, p)
    valid = np.arange(300) != 3
    assert metrics.ece(y, p, on_invalid="drop") == metrics.ece(y[valid], p[valid])
    with pytest.raises(InvalidDataError, match="y_prob must be numbers, such as 'high'"):
        metrics.ece([0, 1], ["high", "low"])
    # they sum to 0.999
    thirds = np.full((4, 3), 0.333)
    assert metrics.ece([0, 1, 2, 0], thirds, tolerance=0.01) > 0


def test_settings__that_are_impossible_are_refused(pairs):
    with pytest.raises(TypeError, match=r"ece\(\) has no parameter 'bin'; did you mean 'bins'"):
        metrics.ece(*pairs, bin=3)
    with pytest.raises(OptionError, match="ece: bins must be a whole number"):
        metrics.ece(*pairs, bins="many")
    assert metrics.ece(*pairs, edges=np.array([0, 0.5, 1])) > 0


def test_value__is_nan_where_undefined():
    # one row has no pairs
    assert np.isnan(metrics.jkce([1], [0.5]))


def test_arrays__of_other_libraries_equal_those_of_numpy(rows):
    y, p, w = rows
    expected = metrics.ece(y, p, sample_weight=w)

    def value(labels, predictions, weights):
        return metrics.ece(labels, predictions, sample_weight=weights)

    pandas = pytest.importorskip("pandas", reason="arrays of pandas")
    # rows are in their own order, not in the order of the index
    index = np.arange(300)[::-1]
    frames = (pandas.Series(NAMES[y], index), pandas.DataFrame(p, index), pandas.Series(w, index))
    assert value(*frames) == expected
    assert value(frames[0].astype("category"), *frames[1:]) == expected
    assert value(pandas.array(y, "Int64"), *frames[1:]) == expected
    polars = pytest.importorskip("polars", reason="arrays of polars")
    frames = (polars.Series(NAMES[y]), polars.DataFrame(p), polars.Series(w))
    assert value(*frames) == expected
    assert value(frames[0].cast(polars.Categorical), *frames[1:]) == expected


@pytest.mark.long
@pytest.mark.process  # torch starts ldconfig when it is imported
def test_arrays__of_torch_equal_those_of_numpy(rows):
    torch = pytest.importorskip("torch", reason="tensors of torch")
    y, p, w = rows
    tensors = (torch.tensor(y), torch.tensor(p, requires_grad=True), torch.tensor(w))
    assert metrics.ece(*tensors[:2], sample_weight=tensors[2]) == metrics.ece(y, p, sample_weight=w)
    half = tensors[1].to(torch.bfloat16)
    # bfloat16 has 8 significant bits, so that rows do not sum to 1
    assert metrics.ece(y, half) == metrics.ece(y, half.detach().float().numpy(), tolerance=1e-2)


@pytest.mark.long
def test_arrays__of_jax_equal_those_of_numpy(rows):
    numpy = pytest.importorskip("jax.numpy", reason="arrays of jax")
    y, p, _ = rows
    single = p.astype(np.float32)
    assert metrics.ece(numpy.asarray(y), numpy.asarray(single)) == metrics.ece(y, single)


@pytest.fixture
def flowers():
    datasets = pytest.importorskip("sklearn.datasets", reason="scores of scikit-learn")
    x, y = datasets.load_iris(return_X_y=True)
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


def _scorer(name, **settings):
    from sklearn.metrics import make_scorer

    function = getattr(metrics, name)
    predict = {"response_method": "predict_proba", "greater_is_better": False}
    return make_scorer(function, **predict, **settings)


@pytest.mark.long
def test_scorer__is_for_cross_validation(flowers):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict, cross_val_score

    x, y = flowers
    folds = StratifiedKFold(5)
    model = LogisticRegression(max_iter=1000)
    for name in ("ece", "nll", "jkce"):
        scores = cross_val_score(model, x, y, cv=folds, scoring=_scorer(name))
        p = cross_val_predict(model, x, y, cv=folds, method="predict_proba")
        expected = [-getattr(metrics, name)(y[test], p[test]) for _, test in folds.split(x, y)]
        assert scores.tolist() == expected
    # scorers of two classes take P(positive)
    two = y != "setosa"
    scores = cross_val_score(model, x[two], y[two] == "virginica", scoring=_scorer("ece", bins=5))
    assert (scores < 0).all()


@pytest.mark.long
def test_scorer__is_for_a_grid_search(flowers):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    x, y = flowers
    two = y != "setosa"
    scorers = {"ece": _scorer("ece"), "nll": _scorer("nll"), "ckce": _scorer("ckce", features=20)}
    grid = {"C": [1e-3, 1e-1, 10.0]}
    search = GridSearchCV(LogisticRegression(max_iter=5000), grid, scoring=scorers, refit="nll")
    search.fit(x[two], y[two])
    assert search.best_params_["C"] == 10.0  # constant predictions are calibrated, but not good
    for name in scorers:
        assert np.isfinite(search.cv_results_[f"mean_test_{name}"]).all()


def test_functions__are_pickled_by_name():
    for name in metrics.__all__:
        function = getattr(metrics, name)
        assert pickle.loads(pickle.dumps(function)) is function
    # `skce` is a second name of `kce`
    of_classes = {name for name, kind in ESTIMATORS.items() if includes(kind.judges, "classes")}
    assert set(metrics.__all__) == {*of_classes, "skce"}


@pytest.mark.parametrize("name", metrics.__all__)
def test_functions__have_signatures_and_documentation(name):
    function = getattr(metrics, name)
    parameters = inspect.signature(function).parameters
    sections = inspect.getdoc(function).split("\n\n")
    (listed,) = (section for section in sections if section.startswith("Parameters\n---"))
    described = [line.partition(" : ")[0] for line in listed.splitlines()[2:] if line[0] != " "]
    assert described == list(parameters)
    assert list(parameters)[:4] == ["y_true", "y_prob", "labels", "sample_weight"]
