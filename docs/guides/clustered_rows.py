"""
Rows of the same patient
========================

Rows of one patient, question, video or customer depend on each other: if a model is too sure of one
of them, it is too sure of all. Tests and intervals that take rows as independent then find errors
that are not there. This page names the column of the ids, and shows what changes.
"""

# %%
# Data of 150 patients
# --------------------
# Every patient has between 2 and 19 visits. The predictions are calibrated, but the outcomes of a
# patient share an effect that the model does not know.

import numpy as np
import pandas as pd
from scipy.stats import norm

rng = np.random.default_rng(6)
patient = np.repeat(np.arange(150), rng.integers(2, 20, 150))
effect, n = rng.normal(size=150)[patient], len(patient)
p = rng.uniform(0.05, 0.95, n)
visits = pd.DataFrame(
    {
        "p_relapse": p,
        "relapse": (np.sqrt(0.5) * (effect + rng.normal(size=n)) < norm.ppf(p)).astype(int),
        "patient": [f"patient {i}" for i in patient],
        "age": rng.normal(60, 12, 150)[patient],
    }
)

# %%
# The ids are texts or numbers, in any order.

import calibscale

source = calibscale.from_frame(
    visits,
    probabilities="p_relapse",
    labels="relapse",
    covariates=["patient", "age"],
)
names = ["confidence_gap", "ece", "tce2_debiased"]
print(calibscale.evaluate(source, names, interval="jackknife"))

# %%
# With ``cluster`` (``--cluster patient`` of a command) intervals leave out groups of patients, not
# of rows. The result has the number of clusters, the intraclass correlation of the residuals, and
# the design effect, the factor by which clusters increase the variance of a mean.

print(calibscale.evaluate(source, names, cluster="patient"))

# %%
# Tests
# -----
# Labels drawn from the predictions are independent. Labels that depend on each other have larger
# errors. The null ``wild_cluster`` changes the sign of all residuals of a patient together, which
# is valid under any dependence within patients, if there are many patients.

for cluster in (None, "patient"):
    tests = calibscale.calibration_test(source, ["jkce", "ece"], cluster=cluster, n_replicates=999)
    print(cluster, tests["jkce"].p_value, tests["ece"].p_value)

# %%
# An audit takes the clusters of its session (``calibscale audit --cluster patient``). `rank` has
# the parameter ``cluster`` as well.

with calibscale.Session.open(source) as session:
    audited = calibscale.audit(session.by_cluster("patient"), "age", n_replicates=199)
print(audited.verdict)

# %%
# Nights
# ------
# A job has the key ``cluster = "patient"``. Intervals and tests of the day and of its windows are
# by patient. A patient who comes again has the same sign, and is in the same part of the rows, on
# all days. Alarms have one factor for each patient and day: the product of all factors of the m
# rows of the patient that day, to the power 1/m. Its mean is at most 1 under any dependence within
# the day, so that the rate of false alarms holds. A drift takes longer to find. With 100 patients
# of 5 rows a night, effects as above and a temperature of 1.5, it took four nights instead of one.
# None of 100 calibrated models had an alarm in 60 nights, whereas 20 had an alarm without
# ``cluster``. With a tolerance, the size of the error is a mean in which every patient counts once.
#
# Limits
# ------
# * Few clusters: signs of 5 clusters have 16 different values, so that no p-value is below 0.06,
#   and groups of few clusters make wide intervals. Below 20 clusters read both with care.
# * A cluster with most of the rows decides everything. The result has a note.
# * The signs have the right level for 50 clusters and events that are not rare: `ece` rejects 4 to
#   6 % of calibrated data sets at the level of 5 %, for pairs of rows as well as for clusters of up
#   to 200. Squared errors such as `tce2` reject up to 9 % where nearly all predictions are below
#   0.1. Where you know that rows are independent, ``null="labels"`` is exact.
# * Clusters are of one kind: a question in a video of a patient needs the outermost ids.
# * The curves and the map of an audit, reliability diagrams, `select` and `power` take rows as
#   independent. An audit of clusters has neither recalibration nor a comparison of models. Alarms
#   take the days of a patient as independent given the past.
