"""Stores whose calibration errors are known: the generators of the papers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from calibscale.chunk import Floats, Ints
from calibscale.engine import available_cpus
from calibscale.errors import OptionError, StoreError
from calibscale.kernels import generators as kernel_generators
from calibscale.kernels import random
from calibscale.store import LogitStore

_BATCH_NUMBERS = 2**17  # predictions drawn together: a megabyte, some ten milliseconds


class Draw(NamedTuple):
    """Rows from `start` on: log P and logits (r, K), y ~ P (r,), covariates (r, d) or None.

    P is conditional on all that the model shows: where q is constant, so is P.
    """

    start: int
    log_p: Floats
    logits: Floats
    labels: Ints
    covariates: Floats | None = None


@dataclass(frozen=True)
class Generator(ABC):
    """How rows come about; the fields after K are the parameters, some with a smallest value."""

    description: str
    classes: int
    most_classes: ClassVar[float] = np.inf
    least: ClassVar[dict[str, float]] = {}

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= self.most_classes:
            raise OptionError(f"{self.classes} classes are impossible with this generator")
        for name, value in self.parameters.items():
            least = self.least.get(name, -np.inf)
            if not least <= value < np.inf or value == -np.inf:
                raise OptionError(f"{name} must be finite and at least {least:g}, not {value:g}")

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def draw(self, seed: int, start: int, stop: int) -> Draw:
        """Rows start..stop−1; a row is the same in every range that holds it."""


@dataclass(frozen=True)
class Dirichlet(Generator):
    """P ~ Dirichlet(alpha, …, alpha); q = softmax(sharpness · log P), over-confident above 1."""

    alpha: float
    sharpness: float
    least: ClassVar[dict[str, float]] = {"alpha": 1e-6}  # log P reaches −37/alpha

    def draw(self, seed: int, start: int, stop: int) -> Draw:
        log_p = np.empty((stop - start, self.classes))
        kernel_generators.log_gamma_rows(np.uint64(seed), start, float(self.alpha), log_p)
        labels = _labels(seed, start, log_p)
        logits = self.sharpness * log_p
        if self.sharpness == 0:
            log_p[:] = -np.log(self.classes)
        return Draw(start, log_p, logits, labels)


class _Binary(Generator):
    most_classes = 2

    def _draw(self, seed: int, start: int, true: Floats, z: Floats, x: Floats) -> Draw:
        """Rows of log-odds `true`, to which the model gives log-odds z, and covariates x."""
        log_p = np.column_stack([np.zeros_like(true), true])
        labels = _labels(seed, start, log_p)
        return Draw(start, log_p, np.column_stack([np.zeros_like(z), z]), labels, x)


@dataclass(frozen=True)
class Shift(_Binary):
    """x ~ N(alpha, scale²) on [−1, 1]; P(y=1) = sigmoid(x), q(1) = sigmoid(sharpness · x)."""

    alpha: float
    scale: float
    sharpness: float
    least: ClassVar[dict[str, float]] = {"scale": 1e-6}

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return ("x",)

    def draw(self, seed: int, start: int, stop: int) -> Draw:
        u = _uniforms(seed, start, stop, 1)[:, 0]
        # the inverse distribution function in logarithms, on the side where it is accurate
        location = abs(self.alpha)
        low, high = log_ndtr((np.array([-1.0, 1.0]) - location) / self.scale)
        x = location + self.scale * ndtri_exp(high + np.log(u + (1.0 - u) * np.exp(low - high)))
        x = np.copysign(1.0, self.alpha) * np.clip(x, -1.0, 1.0)
        return self._draw(seed, start, x, self.sharpness * x, x[:, None])


@dataclass(frozen=True)
class Missing(_Binary):
    """x ~ N(0, I_d); P(y=1) = sigmoid(Σx), q(1) = sigmoid of the sum without the last covariate."""

    d: float
    least: ClassVar[dict[str, float]] = {"d": 1}
    unseen: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d != int(self.d):
            raise OptionError(f"d must be a whole number, not {self.d:g}")

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return tuple(f"x{j + 1}" for j in range(int(self.d)))

    def draw(self, seed: int, start: int, stop: int) -> Draw:
        d = int(self.d)
        x = ndtri(_uniforms(seed, start, stop, d))
        return self._draw(seed, start, x.sum(axis=1), x[:, : d - self.unseen].sum(axis=1), x)


class Bayes(Missing):
    """`Missing` with a model that sees every covariate: P(y=1) = q(1) = sigmoid(Σx)."""

    unseen: ClassVar[int] = 0


GENERATORS: dict[str, Generator] = {
    "gb": Dirichlet("under-confident [GB, §5.1]", 5, 0.04, 0.3),
    "ms-true": Dirichlet("the true probabilities [MS, §5.1.1]", 10, 0.1, 1.0),
    "ms-marginal": Dirichlet("the marginal, calibrated and useless [MS, §5.1.1]", 10, 0.1, 0.0),
    "ms-under": Dirichlet("under-confident [MS, §5.1.1, C.1]", 10, 0.1, 0.5),
    "ms-over": Dirichlet("over-confident [MS, §5.1.1, C.1]", 10, 0.1, 2.0),
    "shift": Shift("over-confident, covariates at alpha [MS, §5.2.1]", 2, 0.0, 0.25, 5.0),
    "missing": Missing("blind to the last of d covariates [VF, §4]", 2, 2),
    "bayes": Bayes("locally calibrated, sees all d covariates [VF, §4]", 2, 2),
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
    progress: Callable[[int, int], None] | None = None,
) -> LogitStore:
    """Write a store of simulated logits, in memory that does not grow with the rows.

    Row i depends on `seed`, K, the parameters and i alone: a longer store begins with the rows
    of a shorter one.  A run that was cut short goes on where it stopped; one that is complete
    does nothing.

    Parameters
    ----------
    url : path or fsspec URL
    rows : int
    classes : int, optional
        K.  Default: that of the paper.
    generator : str
        A name of `GENERATORS`.
    seed : int
        0..2^64−1.
    parameters : mapping, optional
        Instead of the generator's own values; `GENERATORS` shows their names.
    dtype : float16, float32 or float64
        Of the stored logits.  Labels are drawn from the float64 P.
    overwrite : bool
        Replace what stands there.
    progress : callable, optional
        Called with the number of rows done and of rows in all.

    Returns
    -------
    LogitStore

    Raises
    ------
    OptionError, StoreError
        If a setting is impossible or a name unknown, or the store cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from calibscale.simulate import simulate
    >>> store = simulate(tempfile.mkdtemp() + "/toy.zarr", rows=100, generator="shift")
    >>> store.rows, store.classes, store.covariate_names
    (100, 2, ('x',))
    """
    made = configured(generator, classes, parameters, seed, rows=rows)
    settings = {"generator": generator, "rows": rows, "classes": made.classes, "seed": seed}
    told = {**settings, "parameters": made.parameters, "version": version("calibscale")}
    store = None if overwrite else _begun(url, told, dtype)
    store = store or LogitStore.create(
        url,
        classes=made.classes,
        dtype=dtype,
        covariate_names=made.covariate_names,
        provenance={"simulated": told},
        expected_rows=rows,
        overwrite=overwrite,
    )
    largest = np.finfo(dtype).max
    with store.writer() as writer:
        done = store.rows
        for draw in draws(made, seed, done, rows - done):
            stored = np.clip(draw.logits, -largest, largest).astype(dtype)
            writer.append(stored, draw.labels, covariates=draw.covariates)
            done += len(stored)
            if progress is not None:
                progress(done, rows)
    return store


def _begun(url: str | Path, told: dict[str, Any], dtype: Any) -> LogitStore | None:
    """The store of an earlier run with the same settings, if there is one."""
    try:
        store = LogitStore.open(url, unfinished=True)
    except StoreError:
        return None
    same = store.provenance.get("simulated") == told and store.dtype == np.dtype(dtype)
    return store if same else None


def draws(generator: Generator, seed: int, first: int, count: int) -> Iterator[Draw]:
    """`count` rows from `first` on, drawn by threads and handed out in order."""
    step = max(1, _BATCH_NUMBERS // generator.classes)
    workers = available_cpus()
    waiting: deque[Future[Draw]] = deque()
    with ThreadPoolExecutor(workers, "calibscale") as pool:
        for start in range(first, first + count, step):
            stop = min(start + step, first + count)
            waiting.append(pool.submit(generator.draw, seed, start, stop))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def configured(
    name: str,
    classes: int | None,
    parameters: Mapping[str, Any] | None,
    seed: int,
    **counts: int,
) -> Generator:
    """The generator of that name with everything given checked and set."""
    for what, count in counts.items():
        if count < 1:
            raise OptionError(f"{what} must be at least 1, not {count}")
    if not 0 <= seed < 2**64:
        raise OptionError(f"seed must be in 0..2^64−1, not {seed}")
    if name not in GENERATORS:
        raise OptionError(f"unknown generator {name!r}; there are: {', '.join(GENERATORS)}")
    generator = GENERATORS[name]
    known = ", ".join(generator.parameters)
    for parameter in parameters or {}:
        if parameter not in generator.parameters:
            raise OptionError(f"{name!r} has no parameter {parameter!r}; it has: {known}")
    K = generator.classes if classes is None else classes
    return replace(generator, classes=K, **(parameters or {}))


def _labels(seed: int, start: int, log_p: Floats) -> Ints:
    """y ~ softmax(log_p), which is normalised in place."""
    labels = np.empty(len(log_p), np.int64)
    kernel_generators.label_rows(np.uint64(seed), start, log_p, labels)
    return labels


def _uniforms(seed: int, start: int, stop: int, d: int) -> Floats:
    """Uniforms (rows, d) for covariates; a column does not depend on d."""
    u = np.empty((stop - start, -(-d // 2), 2))
    random.uniform_rows(np.uint64(seed), np.uint64(random.COVARIATES), start, u)
    return np.ascontiguousarray(u.reshape(len(u), -1)[:, :d])
