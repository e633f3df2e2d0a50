"""Sample logs of lm-evaluation-harness, written by version 0.4.12 for a task of 2 to 5 choices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.ingest import ingest

LOG = Path(__file__).parents[1] / "support" / "samples_local_choice.jsonl"
SAMPLES = [json.loads(line) for line in LOG.read_text().splitlines()]


def _ingested(tmp_path, samples, **keys):
    path = tmp_path / "samples_task.jsonl"
    path.write_text("\n".join(map(json.dumps, samples)) + "\n")
    ingest([path], tmp_path / "log.zarr", keys=keys)
    return cs.LogitStore.open(tmp_path / "log.zarr")


def test_log__has_probabilities_labels_and_accuracy_of_the_harness(tmp_path):
    store = _ingested(tmp_path, SAMPLES, covariates="choices,doc.subject")
    with cs.Session.open(store) as session:
        block = session.source.read(0, len(SAMPLES), True)
    assert block.values.shape == (len(SAMPLES), 5)
    for logits, label, sample in zip(block.values, block.labels, SAMPLES, strict=True):
        likelihoods = [float(value) for value, _ in sample["filtered_resps"]]
        np.testing.assert_array_equal(logits[: len(likelihoods)], np.float64(likelihoods))
        q = np.exp(logits - logits.max())
        assert not q[len(likelihoods) :].any()
        assert label == int(sample["target"])
    assert block.covariates[:, 0].tolist() == [len(s["filtered_resps"]) for s in SAMPLES]
    accuracy = cs.evaluate(store, "accuracy")["accuracy"].value
    assert accuracy == np.mean([sample["acc"] for sample in SAMPLES])
    subjects = store.categories["doc.subject"]
    found = [subjects[int(code)] for code in block.covariates[:, 1]]
    assert found == [sample["doc"]["subject"] for sample in SAMPLES]


def _with_texts(target, texts, likelihoods, accuracy):
    arguments = {
        f"gen_args_{i}": {"arg_0": "Question", "arg_1": f" {t}"} for i, t in enumerate(texts)
    }
    responses = [[str(value), "False"] for value in likelihoods]
    return SAMPLES[0] | {
        "target": target, "arguments": arguments, "filtered_resps": responses, "acc": accuracy,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sample", "label"),
    [
        (_with_texts(" B", "ABC", [-1, -2, -3], 0.0), 1),
        # "2" is the third choice, or the choice with this text, the second one
        (_with_texts("2", "123", [-1, -2, -0.5], 1.0), 2),
        (_with_texts("2", "123", [-1, -0.1, -0.5], 1.0), 1),
        (_with_texts("2", "123", [-1, -0.1, -0.5], 0.0), 2),
    ],
)
def test_target__is_a_number_or_a_text(tmp_path, sample, label):
    store = _ingested(tmp_path, [sample, *SAMPLES])
    with cs.Session.open(store) as session:
        assert session.source.read(0, 1, False).labels[0] == label


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "7"}, "line 3.*target '7' is none of its"),
        ({"filtered_resps": ["some text"]}, "line 3.*not a sample of a multiple-choice task"),
        ({"arguments": {}}, "line 3.*not a sample of a multiple-choice task"),
    ],
)
def test_samples__of_other_tasks_are_named(tmp_path, change, message):
    with pytest.raises(cs.InvalidDataError, match=message):
        _ingested(tmp_path, [*SAMPLES[:2], SAMPLES[2] | change])
