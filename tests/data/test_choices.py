"""Questions with different numbers of choices, choices as rows, and top-k classes."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from scipy.special import logsumexp, softmax

from calibscale import InvalidDataError, OptionError, calibration_test, evaluate, from_arrays
from tests.support import naive

N, CLASSES, K = 400, 12, 3
SCORES = ["accuracy", "brier", "nll", "confidence_gap"]


@pytest.fixture
def questions(rng):
    """Logits of each question, and labels, some not yet known."""
    logits = [rng.normal(size=rng.integers(2, 6)) for _ in range(N)]
    labels = np.array([rng.integers(0, len(z)) for z in logits])
    labels[::17] = -1
    return logits, labels


def offsets_of(questions):
    return np.cumsum([0, *map(len, questions)])


def values(result):
    return {e.estimator: e.value for e in result.estimates}


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_offsets__are_questions_padded_with_impossible_choices(questions, kind):
    logits, labels = questions
    probable = kind == "probabilities"
    rows = [softmax(z) if probable else z for z in logits]
    padded = np.full((N, 5), 0.0 if probable else -np.inf)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    source = from_arrays(
        **{kind: np.concatenate(rows)},
        offsets=offsets_of(rows),
        labels=labels,
        covariates=[len(row) for row in rows],
        covariate_names=["choices"],
    )
    np.testing.assert_array_equal(source.values, padded)
    result = evaluate(source, [*SCORES, "ckce"], group_by="choices")
    dense = from_arrays(**{kind: padded}, labels=labels)
    expected = values(evaluate(dense, [*SCORES, "ckce"]))
    assert values(result) == pytest.approx(expected, rel=1e-12)
    for count, estimates in result.groups.items():
        members = [i for i in range(N) if len(rows[i]) == count and labels[i] >= 0]
        expected = naive.scores(np.array([logits[i] for i in members]), labels[members])
        assert {e.estimator: e.value for e in estimates[:4]} == pytest.approx(expected, rel=1e-9)
    garbage = np.where(padded == (0.0 if probable else -np.inf), 7.0, padded)
    exists = np.arange(5) < np.array([len(row) for row in rows])[:, None]
    masked = from_arrays(**{kind: garbage}, mask=exists, labels=labels)
    np.testing.assert_array_equal(masked.values, padded)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_per_choice__each_choice_is_a_row_of_its_question(questions, kind):
    logits, labels = questions
    logits[1][:2] = 0.0, 60.0
    rows = [softmax(z) if kind == "probabilities" else z for z in logits]
    subject = np.where(np.arange(N) % 2, "law", "art")
    source = from_arrays(
        **{kind: np.concatenate(rows)},
        offsets=offsets_of(rows),
        labels=labels,
        per_choice=True,
        weights=np.arange(1.0, N + 1),
        covariates=subject,
        covariate_names=["subject"],
    )
    assert source.covariate_names == ("subject", "question", "choice")
    expected = [
        (float(subject[i] == "law"), i, k, labels[i] if labels[i] < 0 else labels[i] == k, i + 1)
        for i in range(N)
        for k in range(len(rows[i]))
    ]
    columns = np.column_stack([source.covariates, source.labels, source.weights])
    np.testing.assert_array_equal(columns, np.array(expected, float))
    if kind == "logits":
        alternatives = [logsumexp(np.delete(z, k)) for z in logits for k in range(len(z))]
        np.testing.assert_allclose(source.values, np.concatenate(logits) - alternatives, rtol=1e-12)
    else:
        np.testing.assert_array_equal(source.values, np.concatenate(rows))
    masked = from_arrays(
        probabilities=[[0.5, 0.9, 0.5], [0.2, 0.3, 0.5]],
        labels=[2, 0],
        per_choice=True,
        mask=[[True, False, True], [True, True, True]],
    )
    assert masked.values.tolist() == [0.5, 0.5, 0.2, 0.3, 0.5]
    assert masked.covariates[:, 1].tolist() == [0, 2, 0, 1, 2]
    assert masked.labels.tolist() == [0, 1, 1, 0, 0]
    plain = from_arrays(probabilities=[[0.5, 0.5], [0.2, 0.8]], labels=[1, -1], per_choice=True)
    assert plain.labels.tolist() == [0, 1, -1, -1]
    tests = calibration_test(
        masked, ["ece"], cluster="question", null="wild_cluster", n_replicates=9
    )
    assert tests.clusters.count == 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_top_k__has_the_rest_as_a_class(rng, dtype):
    q = rng.dirichlet(np.full(CLASSES, 0.2), N)
    labels = rng.integers(-1, CLASSES, N)
    order = np.argsort(-q, axis=1)[:, :K]
    top = np.take_along_axis(q, order, axis=1).astype(dtype)
    source = from_arrays(probabilities=top, top_k=order, labels=labels)
    position = [
        -1 if y < 0 else [*row].index(y) if y in row else K
        for y, row in zip(labels, order, strict=True)
    ]
    assert source.labels.tolist() == position
    remainder = np.clip(1 - top.astype(float).sum(axis=1), 0, None)
    # float16 rounds probabilities by up to 2.4e-4, and the remainder by a multiple of it
    assert source.values == pytest.approx(np.column_stack([top, remainder]), abs=1e-3)
    assert evaluate(source, "brier").n == (labels >= 0).sum()
    choices = from_arrays(probabilities=top, top_k=order, labels=labels, per_choice=True)
    assert len(choices.values) == N * K
    hits = np.where(labels[:, None] < 0, -1, order == labels[:, None])
    np.testing.assert_array_equal(choices.labels, hits.reshape(-1))


def test_top_k__warns_if_the_rest_is_the_top_label(caplog):
    p, classes = [[0.3, 0.2], [0.6, 0.2]], [[0, 1], [2, 1]]
    from_arrays(probabilities=p, top_k=classes, labels=[0, 9])
    assert "in 1 of 2 rows the rest is more probable" in caplog.text


P, Y = np.full((4, 3), 1 / 3), np.zeros(4, int)
FLAT, OFFSETS = np.full(8, 0.5), np.arange(0, 9, 2)
TOP = np.tile(np.arange(3), (4, 1))
TWICE, BELOW, OVER, PRESENT = TOP.copy(), TOP.copy(), P.copy(), np.ones((4, 3), bool)
TWICE[2, 1], BELOW[1, 0], OVER[3, 0], PRESENT[2, 0] = 2, -1, 0.5, False
NONE = np.ones((4, 3), bool) & (np.arange(4) < 3)[:, None]


FLATS = dict(probabilities=FLAT, offsets=OFFSETS, labels=Y)
MASKED = dict(probabilities=P, mask=PRESENT, labels=Y)
TOPS = dict(probabilities=P, top_k=TOP, labels=Y)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (FLATS | dict(offsets=OFFSETS[:-1]), "4 rows are 5 integers"),
        (
            FLATS | dict(probabilities=P),
            r"with offsets= \(choices,\), not float64 of shape \(4, 3\)",
        ),
        (FLATS | dict(probabilities=FLAT.astype(int)), "must be floating point .* not int64"),
        (FLATS | dict(labels=0), "labels must have rows, not be a single int"),
        (FLATS | dict(offsets=[0, 2, 2, 4, 8]), "^row 1 .* 0 choices"),
        (FLATS | dict(offsets=[0, 2, 4, 6, 7]), "number of choices, 8"),
        (FLATS | dict(labels=[0, 0, 2, 0]), "^row 2 .*label is 2.* choices are 0, 1;"),
        (FLATS | dict(labels=[0, -2, 2, 0]), "^row 1 .*label is -2"),
        (FLATS | dict(weights=np.ones(2)), "4 rows .* weights of shape"),
        (FLATS | dict(probabilities=zarr.array(FLAT)), "calibscale ingest"),
        (MASKED, "^row 2 .*label is 0.* choices are 1, 2;"),
        (MASKED | dict(mask=PRESENT.astype(int)), "mask must be booleans"),
        (MASKED | dict(mask=NONE, labels=Y - 1), "^row 3 .* choices are none"),
        (TOPS | dict(top_k=TWICE), "^row 2 .* a class twice"),
        (TOPS | dict(top_k=BELOW), "^row 1 .* negative class"),
        (TOPS | dict(probabilities=OVER), "^row 3 .* sum to more than 1"),
        (TOPS | dict(top_k=TOP[:, :2]), r"of shape \(4, 2\)"),
        (dict(probabilities=P, per_choice=True, labels=Y[:3]), "4 rows .*, but labels"),
        (
            dict(probabilities=P[0], per_choice=True, labels=Y[:3]),
            r"floating point \(rows, choices\)",
        ),
    ],
)
def test_choices__that_do_not_fit_are_named(arguments, says):
    with pytest.raises(InvalidDataError, match=says):
        from_arrays(**arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (FLATS | dict(mask=PRESENT), "only one of offsets="),
        (FLATS | dict(binary=True), "not for binary"),
        (dict(logits=P, top_k=TOP, labels=Y), "top_k= needs probabilities="),
        (
            dict(predictions=P[:, :2], forecast="normal", labels=Y, per_choice=True),
            "predictions= of a forecast",
        ),
    ],
)
def test_choices__options_that_exclude_each_other_are_named(arguments, says):
    with pytest.raises(OptionError, match=says):
        from_arrays(**arguments)
