"""The classifier of scikit-learn with recalibrated probabilities."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils import estimator_checks

import calibscale as cs
from calibscale.sklearn import Recalibrator
from tests.support.slow_cases import some_slow

pytestmark = pytest.mark.long
VERSION = tuple(map(int, sklearn.__version__.split(".")[:2]))


@pytest.fixture(scope="module")
def two_classes():
    """Features with copies, which make naive Bayes too certain, and labels."""
    X, y = make_classification(3000, n_features=6, n_informative=4, random_state=0)
    return np.hstack([X, X]), y


@pytest.fixture(scope="module")
def three_classes():
    X, y = make_classification(
        1500, n_features=6, n_informative=5, n_redundant=0, n_classes=3, random_state=1
    )
    return X, np.array(["ape", "bee", "cow"])[y]


def y_of(X):
    """Labels of three classes for the first 200 rows."""
    return np.digitize(X[:200, 0], [-0.5, 0.5])


def failed_checks(estimator):
    """Names of the checks of scikit-learn that an estimator fails."""
    if VERSION >= (1, 7):
        results = estimator_checks.check_estimator(estimator, on_fail=None)
        return [result["check_name"] for result in results if result["status"] == "failed"]
    names = []
    for subject, check in estimator_checks.check_estimator(estimator, generate_only=True):
        try:
            check(subject)
        except AssertionError:
            names.append(str(check))
    return names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", some_slow(["identity", "auto"], keep=["identity"]))
def test_checks_of_scikit_learn__pass(method):
    # Two folds and no choice of a method leave out time, but no part of the class.
    assert failed_checks(Recalibrator(method=method, cv=2 if method == "identity" else None)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn__pass_for_other_classifiers():
    """Weights are not repeated rows where the folds of the rows matter, as scikit-learn's own."""
    for classifier in (GaussianNB(), RandomForestClassifier(10, random_state=0)):
        failed = failed_checks(Recalibrator(classifier, cv=3))
        assert all("sample_weight_equivalence" in name for name in failed)


def test_probabilities__of_naive_bayes_are_better(two_classes):
    X, y = two_classes
    model = Recalibrator(GaussianNB()).fit(X[:2000], y[:2000])
    before = GaussianNB().fit(X[:2000], y[:2000]).predict_proba(X[2000:])
    after = model.predict_proba(X[2000:])
    assert log_loss(y[2000:], after) < 0.8 * log_loss(y[2000:], before)
    np.testing.assert_allclose(after.sum(axis=1), 1.0, rtol=1e-12)
    # The result promises an improvement, which the other rows confirm.
    assert model.recalibration_.improvement.changes[0].high < 0


@pytest.mark.skipif(VERSION < (1, 8), reason="scikit-learn has a temperature from 1.8 on")
def test_temperature__is_that_of_scikit_learn(three_classes):
    X, y = three_classes
    ours = Recalibrator(LogisticRegression(), method="temperature", cv=4).fit(X, y)
    theirs = CalibratedClassifierCV(
        LogisticRegression(), method="temperature", cv=4, ensemble=False
    ).fit(X, y)
    # Their optimiser ends at a relative 1e-6 or so of its parameter.
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def test_prefit__uses_the_classifier_as_it_is(two_classes):
    X, y = two_classes
    classifier = GaussianNB().fit(X[:1000], y[:1000])
    model = Recalibrator(classifier, method="platt", cv="prefit").fit(X[1000:], y[1000:])
    assert model.estimator_ is classifier
    p = np.maximum(classifier.predict_proba(X[1000:]), model.smallest_)
    source = cs.from_arrays(probabilities=p / p.sum(axis=1, keepdims=True), labels=y[1000:])
    expected = cs.recalibrate(source, "platt")
    assert model.recalibration_.estimates == pytest.approx(expected.estimates, rel=1e-12)


@pytest.mark.skipif(VERSION < (1, 6), reason="scikit-learn has FrozenEstimator from 1.6 on")
def test_frozen_estimators__are_prefit(two_classes):
    from sklearn.frozen import FrozenEstimator

    X, y = two_classes
    classifier = GaussianNB().fit(X[:1000], y[:1000])
    frozen = Recalibrator(FrozenEstimator(classifier), method="platt").fit(X[1000:], y[1000:])
    prefit = Recalibrator(classifier, method="platt", cv="prefit").fit(X[1000:], y[1000:])
    np.testing.assert_array_equal(frozen.predict_proba(X), prefit.predict_proba(X))


def test_pipelines_searches_and_clones__take_it(three_classes):
    X, y = three_classes
    model = make_pipeline(StandardScaler(), Recalibrator(LinearSVC(random_state=0)))
    scores = cross_val_score(model, X, y, scoring="neg_log_loss", cv=2)
    assert (scores > -np.log(3)).all()
    search = GridSearchCV(
        Recalibrator(GaussianNB()), {"method": ["identity", "temperature"]}, cv=2
    ).fit(X, y)
    assert search.best_params_["method"] in ("identity", "temperature")
    copy = clone(Recalibrator(GaussianNB(), method="temperature", cv=3))
    assert (copy.method, copy.cv) == ("temperature", 3)


def test_classes__have_their_names(three_classes):
    X, y = three_classes
    model = Recalibrator(GaussianNB()).fit(X, y)
    assert model.classes_.tolist() == ["ape", "bee", "cow"]
    assert set(model.predict(X)) <= {"ape", "bee", "cow"}
    assert model.score(X, y) > 0.5
    frame = model.set_output(transform="pandas").transform(pd.DataFrame(X))
    assert frame.columns.tolist() == ["probability_ape", "probability_bee", "probability_cow"]
    np.testing.assert_array_equal(frame.to_numpy(), model.predict_proba(X))


def test_features__may_be_frames_and_sparse(two_classes):
    X, y = two_classes
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    named = Recalibrator(method="platt").fit(frame, y)
    assert named.feature_names_in_.tolist() == frame.columns.tolist()
    sparse = Recalibrator(method="platt").fit(csr_array(X), y)
    np.testing.assert_allclose(
        sparse.predict_proba(csr_array(X)), named.predict_proba(frame), atol=1e-4
    )


def test_votes_of_forests__never_give_a_class_the_probability_zero(three_classes):
    X, y = three_classes
    forest = RandomForestClassifier(20, random_state=0)
    model = Recalibrator(forest).fit(X[:1000], y[:1000])
    assert (forest.fit(X[:1000], y[:1000]).predict_proba(X[1000:]) == 0).any()
    assert (model.predict_proba(X[1000:]) > 0).all()


def test_class_weights__may_name_the_classes(three_classes):
    X, y = three_classes
    weights = {"ape": 5.0, "bee": 1.0, "cow": 1.0}
    model = Recalibrator(LogisticRegression(class_weight=weights), method="identity").fit(X, y)
    plain = Recalibrator(method="identity").fit(X, y)
    assert model.predict_proba(X)[:, 0].mean() > plain.predict_proba(X)[:, 0].mean() + 0.1


def test_weights__reach_the_classifier_and_the_recalibration(two_classes):
    X, y = two_classes
    weights = np.where(y == 1, 3.0, 1.0)
    plain, weighted = (
        Recalibrator(GaussianNB(), method="platt").fit(X, y, w) for w in (None, weights)
    )
    assert weighted.estimator_.class_prior_[1] > plain.estimator_.class_prior_[1]
    assert weighted.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y: Recalibrator().fit(X, np.ones(len(y))), "only one class"),
        (lambda X, y: Recalibrator(Ridge()).fit(X, y), "neither predict_proba nor"),
        (
            lambda X, y: Recalibrator(SVC(decision_function_shape="ovo")).fit(X[:200], y_of(X)),
            "has no column for each class: set decision_function_shape='ovr'",
        ),
        (
            lambda X, y: Recalibrator(cv=4).fit(X, np.r_[0, 0, 0, np.ones(len(y) - 3)]),
            r"the class 0.0 has 3 row\(s\), fewer than the 4 folds",
        ),
        (lambda X, y: Recalibrator(method="plat").fit(X, y), "method must be one of auto"),
        (
            lambda X, y: Recalibrator(Perceptron().fit(X, y + 5), cv="prefit").fit(X, y),
            r"knows the classes \[.*5.*6.*\], and the rows have",
        ),
    ],
)
def test_errors__say_what_is_wrong(two_classes, make, message):
    with pytest.raises(ValueError, match=message):
        make(*two_classes)


@pytest.mark.parametrize("method", ["histogram", "spline"])
def test_methods_of_two_classes__lower_the_log_loss_of_new_rows(two_classes, method):
    X, y = two_classes
    model = Recalibrator(GaussianNB(), method=method).fit(X[:2000], y[:2000])
    plain = GaussianNB().fit(X[:2000], y[:2000])
    before, after = (log_loss(y[2000:], m.predict_proba(X[2000:])) for m in (plain, model))
    assert after < before
