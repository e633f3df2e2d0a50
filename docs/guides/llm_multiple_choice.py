"""
LLM multiple choice
===================

A language model answers a multiple-choice question with the log-probabilities of the letters A to
D. This page asks whether its confidence is right, for which subjects it is not, and whether its
wording "I am 90 % sure" can be trusted; its last part has questions with 2 to 5 choices.
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

# %%
# Questions with 2 to 5 choices
# -----------------------------
# A file with a JSON object a line, as many evaluations write: here a classifier reads handwritten
# digits, and chooses among 2 to 5 digits.

import json
import tempfile
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

images, digits = load_digits(return_X_y=True)
reader = GaussianNB(var_smoothing=0.01).fit(images[:800], digits[:800])
scores = reader.predict_joint_log_proba(images[800:])
path = Path(tempfile.mkdtemp()) / "questions.jsonl"
with path.open("w") as file:
    for score, digit in zip(scores, digits[800:], strict=True):
        others = rng.permutation(np.delete(np.arange(10), digit))[: rng.integers(1, 5)]
        choices = rng.permutation([digit, *others])
        question = {
            "logprobs": score[choices].tolist(),
            "choices": [f"a {choice}" for choice in choices],
            "label": f"a {digit}",
        }
        file.write(json.dumps(question) + "\n")

# %%
# ``calibscale ingest questions.jsonl questions.zarr --covariates choices`` makes a store of it, and
# `from_file` reads it. Choices that a question does not have are classes of probability 0. The
# number of choices is a covariate: more of them are harder, and the confidence should know it.
# ``aurc`` is the mean error rate if the least confident answers are withheld.

questions = calibscale.from_file(path, logits="logits", covariates="choices")
print(calibscale.evaluate(questions, ["accuracy", "ece", "kce", "aurc"], group_by="choices"))

# %%
# Each choice as a row
# --------------------
# The same predictions in memory are flat scores with offsets, where each choice may also be a row:
# is P(this choice is right) true? Choices of a question depend on each other, so that intervals and
# tests take ``cluster="question"``.

lines = [json.loads(line) for line in path.read_text().splitlines()]
right = [line["choices"].index(line["label"]) for line in lines]
choices = calibscale.from_arrays(
    logits=np.concatenate([line["logprobs"] for line in lines]),
    offsets=np.cumsum([0, *(len(line["choices"]) for line in lines)]),
    labels=right,
    per_choice=True,
)
print(calibscale.evaluate(choices, ["ece", "brier"], cluster="question", interval="jackknife"))

# %%
# Is a position preferred? ``group_by="choice"`` has the confidence minus the frequency of each one.

positions = calibscale.evaluate(choices, "confidence_gap", group_by="choice")
{f"{position:g}": round(gap.value, 3) for position, (gap,) in positions.groups.items()}
