"""scikit-learn classifiers with recalibrated probabilities."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.arrays import from_arrays
from calibscale.errors import OptionError, missing_package
from calibscale.recalibration.choice import AUTO
from calibscale.recalibration.fits import FittedRecalibration
from calibscale.recalibration.fitting import recalibrate
from calibscale.recalibration.recalibrator import RecalibrationMethod

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        MetaEstimatorMixin,
        TransformerMixin,
        clone,
    )
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, check_cv
    from sklearn.utils import _safe_indexing, indexable
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
    )
except ImportError as error:
    raise ImportError(missing_package("calibscale.sklearn", "scikit-learn", "sklearn")) from error

_FOLDS = 5  # by default, or as many as the rarest class has rows
PREFIT = "prefit"  # value of `cv` for a classifier that is fitted already


class Recalibrator(ClassifierMixin, TransformerMixin, MetaEstimatorMixin, BaseEstimator):
    """Classifier with recalibrated probabilities, as scikit-learn's estimators are used.

    The recalibration is fitted to predictions of rows that the classifier has not seen: those of
    the folds of a cross-validation, or all rows of `fit` if the classifier is fitted already.  The
    classifier itself is then fitted to all rows.

    Parameters
    ----------
    estimator : classifier, optional
        Classifier with `predict_proba` or `decision_function`, of which the latter is taken as
        log-odds or logits.  Default: `sklearn.linear_model.LogisticRegression`.
    method : str or calibscale.recalibration.recalibrator.RecalibrationMethod
        Method of `calibscale.recalibrate`.  Default, ``auto``: the simplest one with a log loss
        near the smallest, which may be the probabilities as they are.
    cv : int, splitter, iterable or {"prefit"}, optional
        Folds of the cross-validation, as in `sklearn.model_selection.cross_val_predict`.
        ``prefit``: the classifier is fitted, and has not seen the rows of `fit`.  A
        `sklearn.frozen.FrozenEstimator` is fitted, too.  Default: five folds, or as many as the
        rarest class has rows.

    Attributes
    ----------
    classes_ : (K,) array
        Names of the classes, in order.
    estimator_ : classifier
        Fitted classifier.
    recalibration_ : calibscale.FittedRecalibration
        Fitted recalibration, which says whether it helped (`improvement`), draws itself (`plot`)
        and is saved by `save`.
    smallest_ : float
        Half a row as a share of the rows of the fit.  Probabilities of the classifier below it are
        raised to it, because a class without a vote may occur in a new row.
    n_features_in_, feature_names_in_
        Number of features, and their names if there are any, as the classifier has them.

    See Also
    --------
    calibscale.recalibrate : Recalibration of stores, files and arrays of predictions.

    Examples
    --------
    >>> from calibscale.sklearn import Recalibrator
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = make_classification(4000, n_informative=4, random_state=0)
    >>> model = Recalibrator(GaussianNB(), method="beta").fit(X[:2000], y[:2000])
    >>> model.predict_proba(X[2000:]).shape
    (2000, 2)
    >>> log_loss = model.recalibration_.improvement.changes[0]
    >>> log_loss.score, log_loss.high < 0
    ('nll', True)
    """

    def __init__(
        self, estimator: Any = None, *, method: str | RecalibrationMethod = AUTO, cv: Any = None
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the classifier and the recalibration.

        Parameters
        ----------
        X : (n, d) array-like, sparse matrix or data frame
            Features, as the classifier takes them.
        y : (n,) array-like
            Classes.
        sample_weight : (n,) array-like, optional
            Weights of the recalibration, and of the classifier if it takes weights.

        Raises
        ------
        ValueError
            If there are fewer than two classes, or fewer rows of a class than folds, or if the
            method does not suit the classes (`calibscale.OptionError`).
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"there is only one class, {self.classes_.tolist()}, in {len(labels)} sample(s): "
                "nothing says how often other classes occur"
            )
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X)
        # A forest whose trees agree gives other classes the probability 0, which no temperature
        # changes: one such row would make the log loss infinite.
        self.smallest_ = 0.5 / len(labels)
        predictions = self._bounded(self._unseen(X, labels, weights))
        self.recalibration_: FittedRecalibration = recalibrate(
            _source_of(predictions, codes, weights), self.method
        )
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Recalibrated probabilities (n, K) of the classes, in the order of `classes_`."""
        check_is_fitted(self)
        predictions = self._bounded(_predicted(self.estimator_, X))
        out = self.recalibration_.transform(**predictions)
        return np.column_stack([1.0 - out, out]) if out.ndim == 1 else out

    def predict(self, X: Any) -> Any:
        """Most probable class of each row (n,) after recalibration."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def transform(self, X: Any) -> Any:
        """Recalibrated probabilities, as columns of the container that `set_output` requests."""
        return self.predict_proba(X)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the columns of `transform`."""
        check_is_fitted(self)
        return np.array([f"probability_{name}" for name in self.classes_], dtype=object)

    # ---------------------------------------------------------------- the classifier

    def _unseen(self, X: Any, y: Any, weights: Floats | None) -> dict[str, Any]:
        """Predictions of rows that the classifier has not seen, after fitting it to all rows."""
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        _response_of(estimator)  # refuses others before they are fitted
        is_frozen = type(estimator).__name__ == "FrozenEstimator"
        if is_frozen or (isinstance(self.cv, str) and self.cv == PREFIT):
            self.estimator_ = estimator
            check_is_fitted(estimator)
            if not np.array_equal(estimator.classes_, self.classes_):
                raise ValueError(
                    f"the classifier knows the classes {estimator.classes_.tolist()}, and the rows "
                    f"have {self.classes_.tolist()}"
                )
            return _predicted(estimator, X)
        parameters = {}
        if weights is not None and has_fit_parameter(estimator, "sample_weight"):
            parameters["sample_weight"] = weights
        predictions = self._by_folds(estimator, X, y, parameters)
        self.estimator_ = clone(estimator).fit(X, y, **parameters)
        return predictions

    def _by_folds(
        self, estimator: Any, X: Any, y: Any, parameters: dict[str, Any]
    ) -> dict[str, Any]:
        """Predictions of each fold by a classifier that is fitted to the other folds."""
        counts = np.unique(y, return_counts=True)[1]
        fewest = int(counts.min())
        cv = max(2, min(_FOLDS, fewest)) if self.cv is None else self.cv
        folds = check_cv(cv, y, classifier=True)
        if isinstance(folds, StratifiedKFold) and fewest < folds.n_splits:
            rarest = self.classes_[counts.argmin()]
            raise ValueError(
                f"the class {rarest} has {fewest} row(s), fewer than the {folds.n_splits} folds"
            )
        X, y = indexable(X, y)
        values: Any = None
        covered = np.zeros(len(y), bool)
        for fitting, judging in folds.split(X, y):
            weights = {name: value[fitting] for name, value in parameters.items()}
            fold = clone(estimator).fit(_safe_indexing(X, fitting), y[fitting], **weights)
            if len(fold.classes_) != len(self.classes_):
                raise ValueError(
                    "a fold leaves no row of a class to fit to: choose other folds by cv="
                )
            ((kind, part),) = _predicted(fold, _safe_indexing(X, judging)).items()
            if values is None:
                values = np.empty((len(y), *part.shape[1:]))
            values[judging] = part
            covered[judging] = True
        if not covered.all():
            raise ValueError("the folds of cv= must hold out every row")
        return {kind: values}

    def _bounded(self, predictions: dict[str, Any]) -> dict[str, Any]:
        """Predictions without probabilities below `smallest_`."""
        if "probabilities" not in predictions:
            return predictions
        p = np.maximum(predictions["probabilities"], self.smallest_)
        return {"probabilities": p / p.sum(axis=1, keepdims=True)}

    # scikit-learn from 1.6 on asks for tags by this method.
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = LogisticRegression() if self.estimator is None else self.estimator
        inner_tags = getattr(inner, "__sklearn_tags__", None)
        if inner_tags is not None:
            tags.input_tags = inner_tags().input_tags
        return tags


def _response_of(estimator: Any) -> tuple[str, str]:
    """Kind of the predictions of a classifier, and the method that returns them."""
    for kind, method in (("probabilities", "predict_proba"), ("logits", "decision_function")):
        if hasattr(estimator, method):
            return kind, method
    name = type(estimator).__name__
    raise OptionError(f"{name} has neither predict_proba nor decision_function")


def _predicted(estimator: Any, X: Any) -> dict[str, Any]:
    """Predictions of a fitted classifier as arguments of `FittedRecalibration.transform`."""
    kind, method = _response_of(estimator)
    values = np.asarray(getattr(estimator, method)(X))
    # Support vector machines may return votes of pairs of classes, which are no logits.
    pairs = getattr(estimator, "decision_function_shape", "ovr") == "ovo"
    several = values.ndim == 2 and kind == "logits"
    if several and (pairs or values.shape[1] != len(estimator.classes_)):
        raise OptionError(
            f"the decision function of {type(estimator).__name__} has no column for each class: "
            "set decision_function_shape='ovr'"
        )
    return {kind: values}


def _source_of(predictions: dict[str, Any], codes: Ints, weights: Floats | None) -> Any:
    """Source of predictions with the numbers of classes as labels."""
    ((kind, values),) = predictions.items()
    values = np.asarray(values)
    columns: dict[str, Any] = {kind: values}
    return from_arrays(
        **columns,
        labels=codes,
        weights=weights,
        binary=values.ndim == 1,
        name="cross-validated predictions",
    )
