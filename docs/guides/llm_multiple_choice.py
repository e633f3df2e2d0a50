"""
LLM multiple choice
===================

A language model answers a multiple-choice question with the log-probabilities of the letters A to
D. This page asks whether its confidence is right, for which subjects it is not, and whether its
wording "I am 90 % sure" can be trusted; its last part has questions with 2 to 5 choices.
"""

# %%
# A log of answers
# ----------------
# An evaluation has written an object of JSON for each question: the log-probabilities of the four
# letters, the letter of the right answer, the subject, and what the model said about its
# confidence. Some answers state none. The log is drawn here: confidence is right in history, and
# 1.8 times too sharp in algebra.

import json
import tempfile
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
n = 6000
subject = rng.choice(["algebra", "history", "law"], n)
logits = rng.normal(size=(n, 4)) * 1.5
p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
answer = (p.cumsum(1) < rng.random((n, 1))).sum(1)
sharpness = np.select([subject == "algebra", subject == "law"], [1.8, 1.2], 1.0)
stated = np.round(p.max(1) * 1.1 * 20).clip(5, 20) * 5
silent = rng.random(n) < 0.03

log = Path(tempfile.mkdtemp()) / "answers.jsonl"
with log.open("w") as file:
    for row in range(n):
        line = {
            "subject": subject[row],
            "logprobs": (logits[row] * sharpness[row]).round(4).tolist(),
            "answer": "ABCD"[answer[row]],
            "confidence": None if silent[row] else f"{stated[row]:.0f}%",
            "correct": bool(p[row].argmax() == answer[row]),
        }
        file.write(json.dumps(line) + "\n")

print(log.read_text().splitlines()[0])

# %%
# The first command needs no option, as ``logprobs`` and ``answer`` are usual names:
#
# .. code-block:: console
#
#    $ calibscale check answers.jsonl
#    $ calibscale check answers.jsonl --group-by subject -o report.html
#
# In Python it is two lines. Letters are positions of the choices. Adding a constant to the
# log-probabilities of a row changes nothing, so that unnormalised ones of four letters among a
# whole vocabulary are right as they are.

import calibscale

print(calibscale.check(calibscale.from_file(log), n_replicates=199))

# %%
# Other names are declared: ``--logits scores --labels gold``, in Python ``logits="scores"``. Logs
# of lm-evaluation-harness, ``samples_TASK.jsonl``, are read as they are (:doc:`/guides/files`).
# Arrays in memory are ``from_arrays(logits=…, labels=…)``.
#
# Each subject
# ------------

source = calibscale.from_file(log, covariates="subject")
names = ["accuracy", "confidence_gap", "ece"]
print(calibscale.evaluate(source, names, group_by="subject", interval="jackknife"))

ax = calibscale.reliability(source, group_by="subject").plot()

# %%
# Position bias
# -------------
# The top label can hide that a letter is preferred. ``cwce2`` judges every letter:

letters = calibscale.evaluate(source, "cwce2")["cwce2"].details["by_class"]
dict(zip("ABCD", np.sqrt(letters).round(3).tolist(), strict=True))

# %%
# Stated confidence
# -----------------
# The event is "the answer was right", the column ``correct``, and its probability is the stated
# confidence. Two things are declared, because calibscale does not guess them: that the numbers are
# percentages, and that answers without a confidence are left out.
#
# .. code-block:: console
#
#    $ calibscale check answers.jsonl --probabilities confidence --labels correct
#    error: answers.jsonl: probabilities ('confidence') must be numbers, not text, such as '45%';
#    pass percent=True (--percent)
#    $ calibscale check answers.jsonl --probabilities confidence --labels correct \
#        --percent --on-invalid drop

columns = {"probabilities": "confidence", "labels": "correct", "percent": True}
stated_source = calibscale.from_file(log, **columns)
checked = calibscale.check(stated_source, on_invalid="drop", n_replicates=199)
print(checked)

# %%
# "100%" is a promise that the answer is right. Each wrong answer with that promise has the
# predicted probability 0, which refutes calibration whatever the other rows say: the verdict counts
# them (:doc:`/concepts/verdicts`). The rows that were left out are counted, too, by column and
# fault:

checked.dropped

# %%
# Stated confidences are multiples of 5 %, so that bins are decided by their edges: here each stated
# value is a bin of its own.

values = np.unique(stated) / 100
edges = tuple(np.r_[0, (values[1:] + values[:-1]) / 2, 1].tolist())
by_value = calibscale.evaluate(
    stated_source, calibscale.ECE(edges=edges), interval="jackknife", on_invalid="drop"
)
print(by_value)

# %%
# Questions with 2 to 5 choices
# -----------------------------
# A file with a JSON object a line, as many evaluations write: here a classifier reads handwritten
# digits, and chooses among 2 to 5 digits.

from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

images, digits = load_digits(return_X_y=True)
reader = GaussianNB(var_smoothing=0.01).fit(images[:800], digits[:800])
scores = reader.predict_joint_log_proba(images[800:])
path = log.with_name("questions.jsonl")
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

questions = calibscale.from_file(path, covariates="choices")
names = ["accuracy", "ece(edges=equal-mass)", "kce", "aurc"]
print(calibscale.evaluate(questions, names, group_by="choices"))

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
