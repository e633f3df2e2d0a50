"""
In a notebook
=============

Three lines lead from predicted probabilities to a first answer: is the model over- or
underconfident, by how much, and is that more than chance?
"""

# %%
# A model predicts rows that it has not seen. `labels` are column numbers here. Names of classes
# work as well, see :doc:`/start/tasks`.

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
p = GaussianNB(var_smoothing=1e-3).fit(X_train, y_train).predict_proba(X_test)

# %%
# The three lines (the third prints):

import calibscale

source = calibscale.from_arrays(probabilities=p, labels=y_test)
result = calibscale.evaluate(
    source, ["confidence_gap", "ece", "tce2_debiased"], interval="jackknife"
)
print(result)

# %%
# The second line is the verdict, which follows from all numbers (:doc:`/concepts/verdicts`). It is
# also ``result.verdict``, and its parts are ``result.judgement``. Naive Bayes is so sure of itself
# that it gives the probability 0 to a label that is right, which no calibrated model does.
#
# ``ece`` is the average distance between confidence and accuracy. ``tce2_debiased`` is its squared
# form without sampling bias. ``root`` is on the scale of probabilities. Values are also numbers:

ece = result["ece"]
ece.value, ece.interval.low, ece.interval.high

# %%
# An ECE is positive for a calibrated model, too. A test draws labels from the predictions, which is
# what calibration means, and counts how often the drawn error is as large as the observed one:

print(calibscale.calibration_test(source, "ece", n_replicates=199))

# %%
# A reliability diagram shows where the errors are. The band is where points of a calibrated model
# would be.

ax = calibscale.reliability(source).plot()

# %%
# **Next**: :doc:`/concepts/choosing` says which estimator answers which question,
# :doc:`/guides/index` has one page a task.
