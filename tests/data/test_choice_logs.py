"""Questions of 2 to 5 choices: logs that lm-evaluation-harness 0.4.12 wrote, and JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.ingest.ingestion import ingest

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
    names = [subjects[int(code)] for code in block.covariates[:, 1]]
    assert names == [sample["doc"]["subject"] for sample in SAMPLES]


def _with_texts(target, texts, likelihoods, accuracy):
    arguments = {
        f"gen_args_{i}": {"arg_0": "Question", "arg_1": f" {t}"} for i, t in enumerate(texts)
    }
    responses = [[str(value), "False"] for value in likelihoods]
    return SAMPLES[0] | {
        "target": target,
        "arguments": arguments,
        "filtered_resps": responses,
        "acc": accuracy,
    }


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
        ({"filtered_resps": ["some text"]}, "line 3.*not a multiple-choice question"),
        ({"arguments": {}}, "line 3.*not a multiple-choice question"),
    ],
)
def test_samples__of_other_tasks_are_named(tmp_path, change, message):
    with pytest.raises(cs.InvalidDataError, match=message):
        _ingested(tmp_path, [*SAMPLES[:2], SAMPLES[2] | change])


# ---------------------------------------------------------------- JSON Lines


def _questions(rng, n=250):
    """Scores, texts of choices, and labels of questions, the 12th with an unknown one."""
    counts = rng.integers(2, 6, n)
    counts[0] = 4
    scores = [rng.dirichlet(np.ones(k)) for k in counts]
    labels = rng.integers(0, counts).tolist()
    labels[11] = None
    return scores, [[f"{j} of {i}" for j in range(k)] for i, k in enumerate(counts)], labels


LAYOUTS = {
    "texts": lambda p, t, y: {"probabilities": p, "choices": t, "label": y if y is None else t[y]},
    "numbers": lambda p, t, y: {"logprobs": np.log(p).tolist(), "label": y},
    "named": lambda p, t, y: {"model": {"p": p}, "answer": y if y is None else t[y], "choices": t},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("through", ["ingest", "from_file"])
def test_json_lines__of_questions_are_padded(tmp_path, rng, layout, through):
    scores, texts, labels = _questions(rng)
    lines = [
        LAYOUTS[layout](p.tolist(), t, y) | {"subject": "art" if len(t) < 4 else "law"}
        for p, t, y in zip(scores, texts, labels, strict=True)
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    names = {"probabilities": "model.p", "labels": "answer"} if layout == "named" else {}
    if through == "ingest":
        ingest([path], tmp_path / "s.zarr", keys=names | {"covariates": "choices,subject"})
        source = cs.LogitStore.open(tmp_path / "s.zarr").source
    else:
        source = cs.from_file(path, **names, covariates=["choices", "subject"])
    counts = np.array([len(p) for p in scores])
    codes = [-1 if y is None else y for y in labels]
    expected = cs.from_arrays(
        probabilities=np.concatenate(scores), offsets=np.r_[0, np.cumsum(counts)], labels=codes
    )
    assert source.kind == ("logits" if layout == "numbers" else "probabilities")
    q = np.exp(source.values[:]) if layout == "numbers" else source.values[:]
    np.testing.assert_allclose(q, expected.values, rtol=1e-14)
    assert source.labels[:].tolist() == codes
    assert source.covariates[:].tolist() == [[k, float(k > 3)] for k in counts]
    assert source.categories["subject"] == ("art", "law")
    brier = [cs.evaluate(data, "brier")["brier"].value for data in (source, expected)]
    assert brier[0] == pytest.approx(brier[1], rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "x"}, "line 121: .*'x' is not one of its choices"),
        ({"label": "a", "choices": ["a", "a", "b"]}, "line 121: .*'a' is not one of its choices"),
        ({"label": 3}, "line 121: .*label is 3, but there are 3 choices, from 0"),
        ({"label": -2}, r"row 120 of .* \(line 121\): 'labels' is -2"),
        ({"choices": ["a", "b"]}, "line 121: .*3 probabilities, but 2 choices"),
        ({"probabilities": 0.5}, "line 121: .*'probabilities' must be a list of numbers"),
        ({"probabilities": [0.5, "x", 0.5]}, "line 121: .*'probabilities' is"),
        ({"choices": None}, "line 121: 'labels' is 'a', not double"),
    ],
)
def test_json_lines__of_impossible_questions_are_named(tmp_path, change, message):
    good = {"probabilities": [0.5, 0.3, 0.2], "choices": ["a", "b", "c"], "label": "a"}
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, [*[good] * 120, good | change])))
    with pytest.raises(cs.InvalidDataError, match=message):
        ingest([path], tmp_path / "s.zarr")


def test_json_lines__of_equal_lengths_need_choices_to_differ_later(tmp_path):
    line = {"probabilities": [0.5, 0.5], "labels": 0}
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, [*[line] * 120, line | {"probabilities": [0.5, 0.3, 0.2]}]))
    )
    with pytest.raises(
        cs.InvalidDataError, match=r"line 121: .*2 numbers; .* need a list `choices`"
    ):
        ingest([path], tmp_path / "s.zarr")


def _lines_of(path, scores_of, missing=()):
    """File of 250 questions with answers that are letters. Scores of some lines are null."""
    scores, _, labels = _questions(np.random.default_rng(3))
    with open(path, "w") as file:
        for i, (p, y) in enumerate(zip(scores, labels, strict=True)):
            answer = None if y is None else "ABCDE"[y]
            row = {"answer": answer, **scores_of(None if i in missing else p)}
            file.write(json.dumps(row) + "\n")
    questions = [i for i in range(len(scores)) if i not in missing]
    counts = [len(scores[i]) for i in questions]
    return cs.from_arrays(
        probabilities=np.concatenate([scores[i] for i in questions]),
        offsets=np.r_[0, np.cumsum(counts)],
        labels=[-1 if labels[i] is None else labels[i] for i in questions],
    )


ANSWERS = {
    "a list called choices": (
        lambda p: {"choices": None if p is None else p.tolist()},
        {"probabilities": "choices"},
    ),
    "a list of log-probabilities": (
        lambda p: {"scores": None if p is None else np.log(p).tolist()},
        {"logits": "scores"},
    ),
    "an object of letters": (
        lambda p: {"logprobs": None if p is None else dict(zip("ABCDE", np.log(p), strict=False))},
        {"logits": "logprobs"},
    ),
}


@pytest.mark.parametrize("layout", ANSWERS)
@pytest.mark.parametrize("missing", [(), (0, 7, 200)])
def test_json_lines__of_answers_that_are_letters(tmp_path, layout, missing):
    scores_of, names = ANSWERS[layout]
    path = tmp_path / "answers.jsonl"
    expected = _lines_of(path, scores_of, missing)
    source = cs.from_file(path, labels="answer", **names)
    result = cs.evaluate(source, ["brier", "ece"], on_invalid="drop")
    reference = cs.evaluate(expected, ["brier", "ece"])
    assert result.n == reference.n == 249 - len(missing)
    assert [estimate.value for estimate in result] == pytest.approx(
        [estimate.value for estimate in reference], rel=1e-9
    )
    if missing:
        with pytest.raises(cs.InvalidDataError, match=r"row 0 of .* is missing"):
            cs.evaluate(source, "brier")


def test_json_lines__with_letters_in_between_that_are_missing(tmp_path):
    path = tmp_path / "answers.jsonl"
    lines = [{"p": {"A": 0.5, "C": 0.5}, "y": "C"}, {"p": {"A": 0.2, "B": 0.8}, "y": "B"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    source = cs.from_file(path, labels="y", probabilities="p")
    assert source.values[:].tolist() == [[0.5, 0.0, 0.5], [0.2, 0.8, 0.0]]
