"""
Recalibrate last month, apply to the next
=========================================

A model has drifted, and a new training takes months. Recalibration repairs its probabilities in a
minute. It is fitted to the labelled rows of last month, and applied to the predictions of the next
month. This page fits a recalibration, applies it, and tests on the new rows whether it has helped.
"""

# %%
# Two months of a model
# ---------------------
# A table for each month has the predicted probability that a customer leaves, the outcome, and the
# plan of the customer. The model is overconfident: its log-odds are 1.5 times too large, and
# customers of one plan leave more often than predicted.

import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())


def month(rows: int) -> pd.DataFrame:
    score = rng.normal(-1.5, 1.6, rows)
    plan = rng.choice(["basic", "family", "student"], rows)
    truth = 1 / (1 + np.exp(-(score / 1.5 - 0.5 + 0.6 * (plan == "student"))))
    left = np.where(rng.random(rows) < truth, "yes", "no")
    return pd.DataFrame({"p_leave": 1 / (1 + np.exp(-score)), "left": left, "plan": plan})


month(20_000).to_parquet(folder / "september.parquet")
month(20_000).to_parquet(folder / "october.parquet")

import calibscale

columns = {"probabilities": "p_leave", "labels": "left", "covariates": ["plan"]}
september = calibscale.from_file(folder / "september.parquet", **columns)
october = calibscale.from_file(folder / "october.parquet", **columns)

# %%
# Does the model need recalibration? The verdict on last month gives the size of the error, and says
# that chance does not explain it:

print(textwrap.fill(calibscale.check(september, n_replicates=199).verdict, 92))

# %%
# Fit to last month
# -----------------
# ``platt`` fits a slope and an intercept on log-odds. With two parameters it cannot follow the
# noise of one month. ``isotonic`` and ``bbq`` follow any shape and need more rows, and ``mc``
# corrects groups as well (:doc:`recalibration`).

fitted = calibscale.recalibrate(september, "platt")
print(fitted)

# %%
# The first sentence says whether the fit helps. On the rows of the fit, each fit looks better than
# it is, so each half of September is judged by a fit to the other half. ``fitted.improvement`` has
# the numbers.
#
# Keep it for the next month
# --------------------------
# A fit is a small JSON file. `transform` recalibrates arrays, such as one new prediction at a time.
# `apply` takes a source, which is recalibrated when it is read.

fitted.save(folder / "platt.json")
fitted = calibscale.load_recalibration(folder / "platt.json")
print(fitted.transform(probabilities=np.array([0.02, 0.3, 0.9])).round(3))

after = fitted.apply(october)

# %%
# Where new predictions are made without calibscale, the map runs as an SQL expression, which `sql`
# returns, or as an ONNX model (:ref:`served-recalibration`).
#
# Did it help?
# ------------
# Three questions have three answers, all of them from the new rows.
#
# **Are the probabilities better?** The log loss and the Brier score are proper scores. Their
# expectation is smallest for the true probabilities. `judged_on` compares both versions on the same
# rows, so that most of the noise cancels in the difference. The recalibration has helped if the
# interval of the change is below 0.

judged = fitted.judged_on(october)
print(textwrap.fill(judged.improvement.sentence, 92))

# %%
# The changes of the scores and their intervals are also numbers:

for change in judged.improvement.changes:
    print(f"{change.score}: {change.change:.4f} ({change.low:.4f} to {change.high:.4f})")

# %%
# **Are they calibrated now?** The verdict on the new rows answers this for each version. If it
# shows no miscalibration, it names the size of error that would have been seen:

versions = {"before": october, "after": after}
for name, source in versions.items():
    verdict = calibscale.check(source, n_replicates=199).verdict
    print(textwrap.fill(f"{name}: {verdict}", 92))

ax = calibscale.plot_reliability(
    [calibscale.reliability(source) for source in versions.values()], names=list(versions)
)

# %%
# **For whom?** One slope and one intercept for all rows cannot repair one plan. The mean prediction
# minus the frequency of each group shows this:

print(calibscale.evaluate(after, "confidence_gap", interval="jackknife", group_by="plan"))

# %%
# Which method?
# -------------
# Methods are compared in the same way: each is fitted to September and ranked on October. ``mc``
# corrects the plans, too. If methods cannot be distinguished, take the simplest one.

del versions["after"]
for method, covariates in {"platt": (), "isotonic": (), "mc": ("plan",)}.items():
    refitted = calibscale.recalibrate(september, method, covariates=covariates, validate=False)
    versions[method] = refitted.apply(october)
print(calibscale.rank(versions, calibscale.Brier()))

# %%
# Isotonic regression alone predicts exactly 0 for the lowest scores, where no event happened in
# September. One such event in October refutes that prediction, and its log loss is infinite.
# Therefore ``isotonic`` uses the rule of succession there, (0 + 1)/(n + 2) for n rows.
# ``isotonic(ends=pure)`` is the regression alone.
#
# On the command line
# -------------------
#
# .. code-block:: console
#
#    $ calibscale recalibrate september.parquet --labels left --probabilities p_leave \
#        --method platt --json platt.json --onnx platt.onnx
#    $ calibscale ingest october.parquet before.zarr --labels left --probabilities p_leave \
#        --covariates plan
#    $ calibscale recalibrate --load platt.json --validate before.zarr
#    $ calibscale recalibrate --load platt.json --apply before.zarr -o after.zarr
#    $ calibscale evaluate after.zarr --group-by plan
#
# Every month
# -----------
# A nightly job with a window of 30 days watches the recalibrated probabilities. A threshold or an
# alarm says when the next fit is due (:doc:`/guides/nightly`). Fit on days with complete labels,
# because labels that arrive early often belong to one outcome.
