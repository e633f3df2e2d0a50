"""The population values of estimators on simulated data: residuals without label noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from calibscale.chunk import Block, Chunk, Floats, Rules, chunks
from calibscale.engine import one_thread
from calibscale.estimators import JKCE, TCE2, Estimator, JKCEBiased, TCE2Debiased, TCE2Kumar
from calibscale.evaluation import BANDWIDTH_ROWS, DataSetup
from calibscale.results import Estimate
from calibscale.simulate import Draw, configured, draws
from calibscale.source import from_arrays

_FRESH = 2**62  # rows from here on are in no store


def truth(
    estimators: Sequence[Estimator],
    *,
    rows: int,
    classes: int | None = None,
    generator: str = "ms-over",
    seed: int = 0,
    parameters: Mapping[str, float] | None = None,
    sample: int = 200_000,
) -> tuple[Estimate, ...]:
    """What the estimators would find on infinitely many rows of a generator.

    They run on `sample` fresh rows, independent of those in a store, whose residual is q − P
    instead of q − e_y: no noise of labels is left, nor any bias from it.  Estimators that are
    biased on n rows (ECE, MCE, TCE₂, CWCE₂, simplex ECE, biased JKCE, CKCE, CMMD, the calibration
    parts of the decompositions) lie off this truth by their bias.

    Parameters
    ----------
    estimators : sequence of Estimator
        A bandwidth that is not given is the median of 1,000 fresh rows.
    rows : int
        Rows of the store to compare with: a ridge that is not given is rows^(−1/4).
    classes, generator, seed, parameters
        As given to `simulate`.
    sample : int
        Fresh rows; what is left of chance is of order 1/√sample.

    Returns
    -------
    tuple of Estimate
        In the order of `estimators`; their `n` is `sample`.

    Raises
    ------
    OptionError
        If a setting is impossible, or an estimator does not fit the generator.

    Examples
    --------
    >>> from calibscale import ECE
    >>> from calibscale.truth import truth
    >>> truth([ECE()], rows=1000, generator="ms-true", sample=5000)[0].value
    0.0
    """
    made = configured(generator, classes, parameters, seed, rows=rows, sample=sample)
    rules = Rules("logits", made.classes, chunk_rows=1)
    first = made.draw(seed, _FRESH, _FRESH + min(sample, BANDWIDTH_ROWS))
    setup = DataSetup(from_arrays(logits=first.logits, labels=first.labels), rules)
    chosen = [_noiseless(estimator, rows).resolve(setup) for estimator in estimators]
    states = {s: s.zero(made.classes) for e in chosen for s in e.needs}
    with one_thread():  # as in the engine: the same bits whatever the machine's BLAS does
        for draw in draws(made, seed, _FRESH, sample):
            for chunk in soft_chunks(draw, rules):
                states = {s: s.accumulate(state, chunk) for s, state in states.items()}
    return tuple(
        replace(e.finalize(*(states[s] for s in e.needs)), estimator=asked.name)
        for asked, e in zip(estimators, chosen, strict=True)
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftChunk(Chunk):
    """Rows with the probabilities P (c, K) of the labels: every score is its mean over y ~ P."""

    P: Floats

    @cached_property
    def delta(self) -> Floats:
        return self.q - self.P

    @cached_property
    def hit(self) -> Floats:
        return self.P[np.arange(len(self)), self.top]


def soft_chunks(draw: Draw, rules: Rules) -> Iterator[SoftChunk]:
    predicted = Block(draw.start, draw.logits, draw.labels, None, draw.covariates)
    true = predicted._replace(values=draw.log_p)
    for (chunk, _), (exact, _) in zip(chunks(predicted, rules), chunks(true, rules), strict=True):
        q, P = chunk.q, exact.q
        logits = draw.logits[chunk.rows - draw.start]
        log_q = logits - logits.max(axis=1, keepdims=True) + np.log(chunk.confidence)[:, None]
        parts = {field.name: getattr(chunk, field.name) for field in fields(Chunk)}
        parts["brier"] = np.sum((q - P) ** 2, axis=1) + 1.0 - np.sum(P * P, axis=1)
        parts["nll"] = -np.sum(P * log_q, axis=1)
        yield SoftChunk(**parts, P=P)


def _noiseless(estimator: Estimator, rows: int) -> Estimator:
    """An estimator of the same population value, for residuals without noise."""
    if isinstance(estimator, TCE2Debiased | TCE2Kumar):  # there is no label noise to take off
        return TCE2(estimator.bins, estimator.edges, estimator.notion)
    if isinstance(estimator, JKCEBiased):  # the sample's own bias can be avoided
        return JKCE(estimator.features, estimator.kernel)
    if getattr(estimator, "ridge", 0.0) is None:
        return replace(estimator, ridge=rows**-0.25)  # type: ignore[type-var]
    return estimator
