"""Toy data and estimator grids of the selection tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import softmax

import calibscale as cs
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.notions import NOTIONS
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.selection.known_families import FAMILIES
from tests.support import naive


def candidate(selection, estimator, value=None):
    """Return the candidate with this hyper-parameter."""
    (match,) = [
        c
        for c in selection.candidates
        if c.estimator == estimator
        and (value is None or np.isclose(next(iter(c.hyperparameter.values())), value, rtol=1e-9))
    ]
    return match


@dataclass
class Toy:
    """Rows, folds and weights for a dense reference."""

    notion: str
    q: np.ndarray
    y: np.ndarray
    folds: np.ndarray
    weights: np.ndarray | None

    @property
    def source(self):
        if self.notion == "positive":
            return cs.from_arrays(
                probabilities=self.q[:, 1], labels=self.y, weights=self.weights, binary=True
            )
        return cs.from_arrays(probabilities=self.q, labels=self.y, weights=self.weights)

    @property
    def problems(self):
        return naive.notion_problems(self.notion, self.q, self.y)

    def select(self, families, **options):
        return cs.select(self.source, self.notion, families, folds=self.folds, **options)


def toy(notion, rows=200, k=3, weighted=False, seed=11):
    """Over-confident rows of three classes (two if positive). Some weights are zero."""
    rng = np.random.default_rng(seed)
    K = 2 if notion == "positive" else 3
    z = rng.normal(size=(rows, K)) * 1.5
    q = softmax(z, axis=1)
    # both columns add up to 1 to the last bit, as with one column
    if K == 2:
        q[:, 0] = 1 - q[:, 1]
    # labels of tempered predictions: the model is overconfident
    y = (softmax(z / 2, axis=1).cumsum(1) < rng.random((rows, 1))).sum(1)
    # -1 is the test part, and folds have equal sizes
    folds = rng.permutation(np.arange(rows) % (k + 1)) - 1
    weights = None
    if weighted:
        weights = rng.uniform(0.2, 3.0, rows)
        # rows without weight must not count
        weights[rng.random(rows) < 0.05] = 0.0
    return Toy(notion, q, y, folds, weights)


every_notion = pytest.mark.parametrize("notion", NOTIONS)

with_and_without_weights = pytest.mark.parametrize("weighted", [False, True])

SCORE_FAMILIES = ("isotonic", "bins_cube_root", "bins_sweep", "smooth_ece")

GRIDS = [
    cs.selection.Bins((5, 20)),
    cs.KDE((0.02, 0.3)),
    cs.KKR((1e-3, 1.0)),
    cs.UKKR((1e-2, 1.0)),
    cs.selection.Temperature(),
    *(FAMILIES[name]() for name in SCORE_FAMILIES),
]


def grids(notion):
    return [f for f in GRIDS if notion in f.notions]


def chunk_of(q, y, weights=None):
    rules = Rules("probabilities", Classes(q.shape[1]), 1)
    ((chunk, _),) = chunks(Block(0, q, y, weights, None), rules)
    return chunk
