"""Simulated predictions, and the population values of estimators on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.data.arrays import from_arrays
from calibscale.data.store import LogitStore
from calibscale.engine.dask_connection import available_cpus
from calibscale.engine.threads import WorkerThreads
from calibscale.errors import OptionError, StoreError, require
from calibscale.estimators.base import Estimator
from calibscale.formatting.progress import reporting
from calibscale.kernels.data_profile import BANDWIDTH_ROWS
from calibscale.kernels.pairwise import Pairwise
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.rules import Rules
from calibscale.predictions.soft_labels import SoftChunk
from calibscale.predictions.validation import chunks
from calibscale.results.estimate import Estimate
from calibscale.session import Session

_BATCH_NUMBERS = 2**17  # predictions drawn together: 1 MB, about 10 ms


class Draw(NamedTuple):
    """Rows from `start` on: log P and logits (r, K), y ~ P (r,), covariates (r, d) or None.

    P is conditional on the predictions of the model: where q is constant, so is P.
    """

    start: int
    log_p: Floats
    logits: Floats
    labels: Ints
    covariates: Floats | None = None


@dataclass(frozen=True)
class Generator(ABC):
    """Distribution of rows.  Fields after `classes` are its parameters, with minima in `minima`."""

    description: str
    classes: int
    max_classes: ClassVar[float] = np.inf
    minima: ClassVar[dict[str, float]] = {}

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= self.max_classes:
            raise OptionError(f"{self.classes} classes are not supported by this generator")
        for name, value in self.parameters.items():
            minimum = self.minima.get(name, -np.inf)
            if not minimum <= value < np.inf or value == -np.inf:
                raise OptionError(f"{name} must be finite and at least {minimum:g}, not {value:g}")

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def draw(self, seed: int, start: int, stop: int) -> Draw:
        """Draw rows start..stop−1.  A row is the same in every range that contains it."""


@dataclass(frozen=True)
class Dirichlet(Generator):
    """P ~ Dirichlet(alpha, …, alpha) and q = softmax(sharpness·log P), over-confident above 1."""

    alpha: float
    sharpness: float
    minima: ClassVar[dict[str, float]] = {"alpha": 1e-6}  # log P reaches −37/alpha

    def draw(self, seed: int, start: int, stop: int) -> Draw:
        log_p = np.empty((stop - start, self.classes))
        # Gamma(alpha) variables divided by their sum are Dirichlet(alpha).  `_labels` divides them.
        random_draws.log_gamma_rows(np.uint64(seed), start, float(self.alpha), log_p)
        labels = _labels(seed, start, log_p)
        logits = self.sharpness * log_p
        if self.sharpness == 0:
            # Predictions are constant: given them, P is the mean of the Dirichlet distribution.
            log_p[:] = -np.log(self.classes)
        return Draw(start, log_p, logits, labels)


class _Binary(Generator):
    max_classes = 2

    def _draw(self, seed: int, start: int, true: Floats, z: Floats, x: Floats) -> Draw:
        """Rows with true log-odds `true`, predicted log-odds z and covariates x."""
        log_p = np.column_stack([np.zeros_like(true), true])
        labels = _labels(seed, start, log_p)
        return Draw(start, log_p, np.column_stack([np.zeros_like(z), z]), labels, x)


@dataclass(frozen=True)
class Shift(_Binary):
    """x ~ N(alpha, scale²) on [−1, 1], P(y=1) = sigmoid(x), q(1) = sigmoid(sharpness · x)."""

    alpha: float
    scale: float
    sharpness: float
    minima: ClassVar[dict[str, float]] = {"scale": 1e-6}

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return ("x",)

    def draw(self, seed: int, start: int, stop: int) -> Draw:
        u = _uniforms(seed, start, stop, 1)[:, 0]
        # The inverse distribution function is accurate in logarithms and on this side.
        location = abs(self.alpha)
        low, high = log_ndtr((np.array([-1.0, 1.0]) - location) / self.scale)
        x = location + self.scale * ndtri_exp(high + np.log(u + (1.0 - u) * np.exp(low - high)))
        # The distribution for −alpha is the mirror image.
        x = np.copysign(1.0, self.alpha) * np.clip(x, -1.0, 1.0)
        return self._draw(seed, start, x, self.sharpness * x, x[:, None])


@dataclass(frozen=True)
class Missing(_Binary):
    """x ~ N(0, I_d), P(y=1) = sigmoid(Σx), q(1) = sigmoid of the sum without the last covariate."""

    d: float
    minima: ClassVar[dict[str, float]] = {"d": 1}
    unseen: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d == int(self.d), f"d must be a whole number, not {self.d:g}")

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return tuple(f"x{j + 1}" for j in range(int(self.d)))

    def draw(self, seed: int, start: int, stop: int) -> Draw:
        d = int(self.d)
        x = ndtri(_uniforms(seed, start, stop, d))
        return self._draw(seed, start, x.sum(axis=1), x[:, : d - self.unseen].sum(axis=1), x)


class Bayes(Missing):
    """`Missing` with a model that uses every covariate: P(y=1) = q(1) = sigmoid(Σx)."""

    unseen: ClassVar[int] = 0


GENERATORS: dict[str, Generator] = {
    "gb": Dirichlet("under-confident [GB, §5.1]", 5, 0.04, 0.3),
    "ms-true": Dirichlet("true probabilities [MS, §5.1.1]", 10, 0.1, 1.0),
    "ms-marginal": Dirichlet("marginal distribution, calibrated [MS, §5.1.1]", 10, 0.1, 0.0),
    "ms-under": Dirichlet("under-confident [MS, §5.1.1, C.1]", 10, 0.1, 0.5),
    "ms-over": Dirichlet("over-confident [MS, §5.1.1, C.1]", 10, 0.1, 2.0),
    "shift": Shift("over-confident, covariate centred at alpha [MS, §5.2.1]", 2, 0.0, 0.25, 5.0),
    "missing": Missing("ignores the last of d covariates [VF, §4]", 2, 2),
    "bayes": Bayes("uses all d covariates, locally calibrated [VF, §4]", 2, 2),
}


def simulate(
    url: str | Path,
    *,
    rows: int,
    classes: int | None = None,
    generator: str = "ms-over",
    seed: int = 0,
    parameters: Mapping[str, float] | None = None,
    dtype: Any = np.float32,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | bool | None = None,
) -> LogitStore:
    """Write a store of simulated logits, with memory use independent of the number of rows.

    Row i depends only on `seed`, K, the parameters and i: a longer store begins with the rows of a
    shorter one.  An interrupted run is resumed.  A complete store is left unchanged.

    Parameters
    ----------
    url : path or fsspec URL
    rows : int
        Number of rows.
    classes : int, optional
        Number of classes K.  Default: the classes of the paper.
    generator : str
        A name of `GENERATORS`.
    seed : int
        Seed in 0..2^64−1.
    parameters : mapping, optional
        Values that replace parameters of the generator.  `GENERATORS` shows their names.
    dtype : float16, float32 or float64
        Type of the stored logits.  Labels are drawn from the float64 P.
    overwrite : bool
        Replace an existing store.
    progress : callable or bool, optional
        Called with the number of rows written and the total number of rows.  True: show a bar.

    Raises
    ------
    OptionError, StoreError
        If a setting or name is invalid, or the store cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from calibscale.simulation import simulate
    >>> store = simulate(tempfile.mkdtemp() + "/toy.zarr", rows=100, generator="shift")
    >>> store.rows, store.classes, store.covariate_names
    (100, 2, ('x',))
    """
    configuration = configured(generator, classes, parameters, seed, rows=rows)
    provenance = {
        "generator": generator,
        "rows": rows,
        "classes": configuration.classes,
        "seed": seed,
        "parameters": configuration.parameters,
        "version": version("calibscale"),
    }
    store = None if overwrite else _begun(url, provenance, dtype)
    store = store or LogitStore.create(
        url,
        classes=configuration.classes,
        dtype=dtype,
        covariate_names=configuration.covariate_names,
        provenance={"simulated": provenance},
        expected_rows=rows,
        overwrite=overwrite,
    )
    largest = np.finfo(dtype).max
    with store.writer() as writer, reporting(progress, "simulating", "rows") as report:
        n_written = store.rows
        for draw in draws(configuration, seed, n_written, rows - n_written):
            # A logit beyond the range of the stored type would become infinite.
            stored = np.clip(draw.logits, -largest, largest).astype(dtype)
            writer.append(stored, draw.labels, covariates=draw.covariates)
            n_written += len(stored)
            if report is not None:
                report(n_written, rows)
    return store


def _begun(url: str | Path, provenance: dict[str, Any], dtype: Any) -> LogitStore | None:
    """Store of an earlier run with the same settings, or None."""
    try:
        store = LogitStore.open(url, unfinished=True)
    except StoreError:
        return None
    matches = store.provenance.get("simulated") == provenance and store.dtype == np.dtype(dtype)
    return store if matches else None


def draws(generator: Generator, seed: int, first: int, count: int) -> Iterator[Draw]:
    """Yield `count` rows from `first` on in order, drawn by threads."""
    # Batches hold about equally many numbers, whatever the number of classes.
    step = max(1, _BATCH_NUMBERS // generator.classes)
    starts = range(first, first + count, step)

    def batch(start: int) -> Draw:
        return generator.draw(seed, start, min(start + step, first + count))

    threads = available_cpus()
    with WorkerThreads(threads) as workers:
        # Draws leave in order, and at most two for each thread wait, so that memory does not grow
        # with the number of rows.
        yield from workers.in_order(batch, starts, 2 * threads + 1)


def configured(
    name: str,
    classes: int | None,
    parameters: Mapping[str, Any] | None,
    seed: int,
    **counts: int,
) -> Generator:
    """Return the generator with the given settings after checking them."""
    for name_of_count, count in counts.items():
        require(count >= 1, f"{name_of_count} must be at least 1", count)
    require(0 <= seed < 2**64, "seed must be in 0..2^64−1", seed)
    require(name in GENERATORS, f"unknown generator {name!r}; available: {', '.join(GENERATORS)}")
    generator = GENERATORS[name]
    for parameter in parameters or {}:
        if parameter not in generator.parameters:
            available = ", ".join(generator.parameters)
            raise OptionError(f"{name!r} has no parameter {parameter!r}; available: {available}")
    K = generator.classes if classes is None else classes
    return replace(generator, classes=K, **(parameters or {}))


def _labels(seed: int, start: int, log_p: Floats) -> Ints:
    """Draw y ~ softmax(log_p), which normalises `log_p` in place."""
    labels = np.empty(len(log_p), np.int64)
    random_draws.label_rows(np.uint64(seed), start, log_p, labels)
    return labels


def _uniforms(seed: int, start: int, stop: int, d: int) -> Floats:
    """Uniform numbers (rows, d) for covariates.  A column does not depend on d."""
    # A block of the counter-based generator has two numbers, so that pairs of columns are drawn
    # together.
    u = random_draws.table(stop - start, -(-d // 2), seed, random_draws.COVARIATES, start)
    return np.ascontiguousarray(u.reshape(len(u), -1)[:, :d])


# ---------------------------------------------------------------- Population values


_FIRST_ROW = 2**62  # no store has rows from this index on


@runtime_checkable
class HasPopulation(Protocol):
    """Settings of an estimator with another form for residuals without label noise.

    `truth` asks for it, as its labels are probabilities.
    """

    def population(self, rows: int) -> Estimator:
        """Return the estimator of the same population value.

        A ridge that is not set is the default for the given number of rows.
        """
        ...


def _of_population(estimator: Estimator, rows: int) -> Estimator:
    """Estimator of the same population value for residuals without label noise."""
    return estimator.population(rows) if isinstance(estimator, HasPopulation) else estimator


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
    """Population values of estimators: their limits for infinitely many rows of a generator.

    The estimators run on `sample` rows that are independent of the rows of any store, with
    residuals q − P instead of q − e_y, which removes label noise and its bias.  Estimates that are
    biased on n rows (ECE, MCE, TCE₂, CWCE₂, simplex ECE, biased JKCE, CKCE, CMMD, the calibration
    parts of the decompositions) differ from this truth by their bias.

    Parameters
    ----------
    estimators : sequence of Estimator
        A bandwidth that is not set is the median distance of 1,000 rows.
    rows : int
        Number of rows of the store to compare with: a ridge that is not set is rows^(−1/4).
    classes, generator, seed, parameters
        See `simulate`.
    sample : int
        Number of rows drawn.  The random error is of order 1/√sample.

    Returns
    -------
    tuple of Estimate
        Estimates in the order of `estimators`, with `sample` as their `n`.

    Raises
    ------
    OptionError
        If a setting is invalid, or an estimator does not support the generator or needs pairs of
        rows.

    Examples
    --------
    >>> from calibscale import ECE
    >>> from calibscale.simulation import truth
    >>> truth([ECE()], rows=1000, generator="ms-true", sample=5000)[0].value
    0.0
    """
    configuration = configured(generator, classes, parameters, seed, rows=rows, sample=sample)
    first = configuration.draw(seed, _FIRST_ROW, _FIRST_ROW + min(sample, BANDWIDTH_ROWS))
    source = from_arrays(logits=first.logits, labels=first.labels)
    with Session.open(source, scheduler="serial") as session:
        # Only settings that depend on n, such as a ridge, use the number of rows of the store.
        run = session.run([_of_population(estimator, rows) for estimator in estimators])
        chosen = run.fitting
        for bound in chosen:
            if isinstance(bound, Pairwise):
                raise OptionError(
                    f"{bound.name}: a population value needs sums over rows, and this method "
                    "has sums over pairs of rows; give method='features' or method='landmarks'"
                )
        states = {s: s.zero(configuration.classes) for e in chosen for s in e.needs}
        for draw in draws(configuration, seed, _FIRST_ROW, sample):
            for chunk in soft_chunks(draw, session.rules):
                states = {s: s.accumulate(state, chunk) for s, state in states.items()}
    return tuple(
        replace(e.finalize(*(states[s] for s in e.needs)), estimator=estimator.name)
        for estimator, e in zip(estimators, chosen, strict=True)
    )


def soft_chunks(draw: Draw, rules: Rules) -> Iterator[Chunk]:
    """Rows of a draw as chunks with label probabilities P.  Scores are means over y ~ P."""
    predicted = Block(draw.start, draw.logits, draw.labels, None, draw.covariates)
    # P is read like predictions, so that its chunks have the same rows as the chunks of q.
    true = predicted._replace(values=draw.log_p)
    for (chunk, _), (exact, _) in zip(chunks(predicted, rules), chunks(true, rules), strict=True):
        q, P = chunk.q, exact.q
        # log q = z − max z + log(max q) has no rounding errors where q is tiny, unlike log(q).
        logits = draw.logits[chunk.rows - draw.start]
        log_q = logits - logits.max(axis=1, keepdims=True) + np.log(chunk.confidence)[:, None]
        # E‖q − e_y‖² = ‖q − P‖² + 1 − ‖P‖² over y ~ P.
        brier = np.sum((q - P) ** 2, axis=1) + 1.0 - np.sum(P * P, axis=1)
        columns = {f.name: getattr(chunk, f.name) for f in fields(chunk)}
        columns |= {"brier": brier, "nll": -np.sum(P * log_q, axis=1)}
        yield SoftChunk(**columns, soft=P)
