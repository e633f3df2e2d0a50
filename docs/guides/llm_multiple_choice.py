"""
LLM multiple choice
===================

A language model answers a multiple-choice question with the log-probabilities of the letters A to
D. This page asks whether its confidence is right, for which subjects it is not, and whether its
wording "I am 90 % sure" can be trusted.
"""

# %%
# Log-probabilities of letters
# ----------------------------
# The arrays have the form that evaluation harnesses write: a log-probability for each option, the
# number of the right option, and a subject; ``calibscale ingest samples_TASK.jsonl`` reads the
# sample logs of lm-evaluation-harness (:doc:`/guides/files`). Here they are drawn: confidence is
# right in history, and 1.8 times too sharp in algebra.

import numpy as np

rng = np.random.default_rng(0)
n = 6000
subject = rng.choice(["algebra", "history", "law"], n)
logits = rng.normal(size=(n, 4)) * 1.5
p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
answer = (p.cumsum(1) < rng.random((n, 1))).sum(1)
sharpness = np.select([subject == "algebra", subject == "law"], [1.8, 1.2], 1.0)
log_probabilities = logits * sharpness[:, None]

# %%
# `evaluate` takes them as `logits`: adding a constant to a row changes nothing, so that
# unnormalised log-probabilities of the four letters among a whole vocabulary are right as they are.

import calibscale

source = calibscale.from_arrays(
    logits=log_probabilities,
    labels=answer,
    class_names=list("ABCD"),
    covariates=subject,
    covariate_names=["subject"],
)
names = ["accuracy", "confidence_gap", "ece"]
print(calibscale.evaluate(source, names, group_by="subject", interval="jackknife"))

# %%
# One reliability diagram for each subject
# ----------------------------------------

ax = calibscale.reliability(source, group_by="subject").plot()

# %%
# Position bias
# -------------
# The top label can hide that a letter is preferred. ``cwce2`` judges every letter:

letters = calibscale.evaluate(source, "cwce2")["cwce2"].details["by_class"]
dict(zip("ABCD", np.sqrt(letters).round(3).tolist(), strict=True))

# %%
# Verbalised confidence
# ---------------------
# Stated confidences are multiples of 5 %, so that bins are decided by their edges: here each stated
# value is a bin of its own. The event is "the answer was right".

stated = np.round(p.max(1) * 1.1 * 20).clip(5, 20) / 20
right = (p.argmax(1) == answer).astype(int)
values = np.unique(stated)
edges = tuple(np.r_[0, (values[1:] + values[:-1]) / 2, 1].tolist())
print(
    calibscale.evaluate(
        calibscale.from_arrays(probabilities=stated, labels=right, binary=True),
        [calibscale.ConfidenceGap(), calibscale.ECE(edges=edges)],
        interval="jackknife",
    )
)
