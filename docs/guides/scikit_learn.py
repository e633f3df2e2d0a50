"""
scikit-learn
============

The module `calibscale.metrics` has a function ``f(y_true, y_prob)`` for every estimator of classes.
`sklearn.metrics.make_scorer` takes these functions. This page compares settings of a classifier by
their calibration error and Brier score, and judges the selected model on held-out rows.
"""

# %%
# Data with names of classes as labels
# ------------------------------------

import numpy as np
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

X, number = make_classification(
    4000, n_features=12, n_informative=6, n_classes=3, flip_y=0.1, random_state=0
)
y = np.array(["cat", "dog", "fox"])[number]
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# %%
# A scorer
# --------
# ``greater_is_better=False`` turns an error into a score. ``tce2_debiased`` has no bias that
# depends on the number of rows, so that folds of different sizes are comparable.

from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV

from calibscale.metrics import brier, tce2_debiased

search = GridSearchCV(
    RandomForestClassifier(50, random_state=0),
    {"min_samples_leaf": [1, 5, 20, 80]},
    scoring={
        "calibration": make_scorer(
            tce2_debiased, response_method="predict_proba", greater_is_better=False
        ),
        "brier": make_scorer(brier, response_method="predict_proba", greater_is_better=False),
    },
    refit="brier",
    cv=3,
).fit(X_train, y_train)
for leaf, calibration, score in zip(
    search.cv_results_["param_min_samples_leaf"],
    search.cv_results_["mean_test_calibration"],
    search.cv_results_["mean_test_brier"],
    strict=True,
):
    print(f"leaf {leaf:2d}: squared calibration error {-calibration:.4f}, Brier {-score:.4f}")

# %%
# Calibration alone is no reason to choose a model. A model that always predicts the class
# frequencies is calibrated. Therefore the search refits by the Brier score, and reports calibration
# beside it.
#
# Held-out rows
# -------------
# `evaluate` gives intervals. ``class_names`` lists the classes in the order of the columns.

import calibscale

model = search.best_estimator_
source = calibscale.from_arrays(
    probabilities=model.predict_proba(X_test), labels=y_test, class_names=model.classes_
)
names = ["accuracy", "confidence_gap", "ece", "tce2_debiased", "brier"]
print(calibscale.evaluate(source, names, interval="jackknife"))

# %%
# A forest gives a class the probability 0 if none of its trees votes for it. Two of these rows have
# such a class as their label, which refutes calibration with certainty (:doc:`/concepts/verdicts`).
# More trees, larger leaves or a bound such as ``p.clip(1e-4)``, divided by its sum, avoid
# probabilities of 0.
#
# Class by class
# --------------
# ``cwce2`` judges each column alone. Its value is a sum over classes, and ``details`` has the error
# of each class.

by_class = calibscale.evaluate(source, "cwce2")["cwce2"]
dict(zip(model.classes_, np.sqrt(by_class.details["by_class"]).round(3).tolist(), strict=True))

# %%
# A classifier with recalibrated probabilities
# --------------------------------------------
# `calibscale.sklearn.Recalibrator` is a classifier like others: it stands in pipelines and
# searches. It fits a recalibration to predictions of rows that the classifier has not seen, those
# of the folds of a cross-validation or, with ``cv="prefit"``, all rows of ``fit``. Without a
# ``method`` it chooses the simplest one with a log loss near the smallest.

from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB

from calibscale.sklearn import Recalibrator

bayes = GaussianNB().fit(X_train, y_train)
recalibrated = Recalibrator(GaussianNB()).fit(X_train, y_train)
print(f"log loss before {log_loss(y_test, bayes.predict_proba(X_test)):.3f}")
print(f"log loss after  {log_loss(y_test, recalibrated.predict_proba(X_test)):.3f}")
print(recalibrated.recalibration_.improvement.sentence)
