"""Texts of job files for tests."""

from __future__ import annotations

SMALL = """
estimators = ["ece", "tce2_debiased", "ckce", "brier"]
[source]
path = "predictions/{date}.zarr"
"""


LARGE = """
name = "scores"
ledger = "kept/ledger"
model = "v3"
group_by = "region"
estimators = [
    "ece",
    "tce2_debiased",
    {name = "ckce", features = 50, bandwidth = 0.5, ridge = 0.03},
    {name = "klce", covariates = ["age"], covariate_bandwidth = {age = 3}, seed = 4},
]
windows = ["day", "7d", "2026-09-01/2026-09-30"]
confidence = 0.9
seed = 7

[source]
path = "predictions/{date}/{model}.parquet"
format = "files"
on_invalid = "drop"
tolerance = 1e-3
[source.columns]
probabilities = "p"
labels = "label"
covariates = ["age", "region"]
weights = "w"

[test]
statistics = ["ckce", "tce2_debiased"]
replicates = 1999
keep = true

[[thresholds]]
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = 0.01
group = "each"
[[thresholds]]
test = "ckce"
below = 0.001
[[thresholds]]
drift = "ckce"
below = 0.01
group = 2

[drift]
window = "7d"
baseline = "30d"

[alarms]
notions = ["top_label", "canonical"]
level = 0.01
since = 2026-09-01
learn_days = 14

[ranking]
models = ["v2", "v3"]
by = "ckce"

[report]
reliability = "top_label"
map = ["age"]
risk = true

[outputs]
json = "out/{date}.json"
prometheus = "/var/metrics/{name}.prom"
junit = "out/{date}.xml"
history = "out/history.parquet"
report = "out/report.html"

[run]
scheduler = "threads:2"
memory_limit = "1GB"
"""


BEFORE_TABLES = 'estimators = ["ece"]\nsource.path = "{date}"\n'
