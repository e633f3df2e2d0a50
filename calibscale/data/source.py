"""Sources of predictions and labels: arrays of any kind behind one reader."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  (cannot be imported while the process ends)
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from calibscale.addresses import raise_from, without_secrets
from calibscale.array_types import Ints
from calibscale.compiled import random_draws
from calibscale.data.direct_arrays import DirectArray, is_zarr
from calibscale.data.file_systems import address_of, server_failure
from calibscale.data.row_shards import read_rows, shards_of
from calibscale.data.times import time_label
from calibscale.engine.dask_connection import available_cpus
from calibscale.engine.threads import WorkerThreads, threads_can_start
from calibscale.errors import CalibscaleError, OptionError, StoreError, require
from calibscale.formatting.naming import NO_LEVEL, missing_name
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.rules import Rules
from calibscale.predictions.soft_labels import SoftLabels
from calibscale.predictions.target import Target
from calibscale.results.levels import NO_NUMBER, Level

KINDS = ("logits", "probabilities")
PREDICTIONS = (*KINDS, "predictions")  # roles of arrays and columns

# Attributes of arrays of dask and xarray, and of columns of frames.  These belong to this process.
LAZY = ("dask", "variable", "frame")
_BLOCK_NUMBERS = 2**21  # predictions in a block: a few megabytes
_SAMPLED = 1000  # outcomes that determine the kernel on targets
_SAMPLED_BYTES = 2**26  # for the chunks of a sample that are read at the same time
_MOST_THREADS = 4  # that read a sample
_TOLERANCE = 1e-4  # deviation from 1 of row sums of probabilities in float32 or float64


def sum_tolerance(values: Any, spacing: float) -> float:
    """Default tolerance of row sums of probabilities, see `ArraySource.rules`."""
    return max(_TOLERANCE, float(np.finfo(values.dtype).eps), spacing)


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Columns of equal length, read one block of rows at a time and never as a whole.

    `from_arrays` creates a source, and so does opening a store.  A column is anything with
    ``shape``, ``dtype`` and slicing by rows: NumPy arrays, memory maps, ``zarr.Array``,
    ``dask.array``, ``xarray.DataArray``, or shards of these.  `spacing` is the distance from 1 to
    the next number of the type in which predictions were given, if it is above the spacing of their
    present type.  `columns` are the names that predictions, labels and weights have in a table, by
    role.  A `copied` source is a temporary copy of a file.  Errors do not name its chunks.

    See Also
    --------
    from_arrays, from_frame, from_file, open_arrays : Functions that describe sources.
    LogitStore : Predictions on disk.

    Examples
    --------
    >>> from calibscale import ArraySource, from_arrays
    >>> source = from_arrays(probabilities=[0.2, 0.9], labels=[0, 1], binary=True)
    >>> isinstance(source, ArraySource), source.rows
    (True, 2)
    """

    kind: str
    values: Any
    labels: Any
    covariates: Any = None
    covariate_names: tuple[str, ...] = ()
    weights: Any = None
    binary: bool = False
    rows: int = 0
    name: str = "arrays"
    first_row: int = 0
    class_names: tuple[str, ...] | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)  # kinds of dates and times, see `times`
    spacing: float = 0.0
    forecast: OutcomeTarget | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copied: bool = False

    def with_covariates(
        self,
        covariates: Any,
        names: tuple[str, ...],
        categories: Mapping[str, tuple[str, ...]],
    ) -> Self:
        """Source with other covariates, their names, and the names of their categories."""
        return replace(self, covariates=covariates, covariate_names=names, categories=categories)

    def __repr__(self) -> str:
        """Name, number of rows, and kind of the predictions.  Columns may be large."""
        predictions = self.target.in_words
        if self.target.has_classes:
            predictions = f"{self.kind} of {predictions}"
        return f"ArraySource({str(self.name)!r}, {self.rows:,} rows, {predictions})"

    @property
    def classes(self) -> int:
        """Number K of classes, or 0 without classes.  A binary column stands for two classes."""
        return self.target.n_features if self.target.has_classes else 0

    @property
    def n_features(self) -> int:
        """Length of a residual: K, or the length of the embeddings of forecasts."""
        return self.target.n_features

    @property
    def target(self) -> Target:
        """What the predictions claim: the declared kind, or probabilities of classes."""
        return self.forecast or self._classes_of_columns()

    def _classes_of_columns(self) -> Classes:
        # A derived source may have two columns for the single column of its source.
        columns = int(self.values.shape[1]) if len(self.values.shape) > 1 else 1
        classes = 2 if self.binary or columns == 1 else columns
        # Labels with a column for each class are probabilities of the classes.
        several = self.labels is not None and len(self.labels.shape) == 2
        return (SoftLabels if several else Classes)(classes, self.binary)

    def need_integer_labels(self, user: str) -> None:
        """Raise an OptionError for soft labels, which the function `user` does not take."""
        message = f"{user} needs integer labels; those of {self.name} are soft"
        require(self.target.has_single_labels or not self.target.has_classes, message)

    @property
    def chunk_rows(self) -> int:
        """Number of rows in a stored chunk, or 1 for plain arrays."""
        chunks = getattr(self.values, "chunks", None)
        if not chunks:
            return 1
        # zarr has the size of its chunks, and dask the sizes of all chunks by axis.
        first = chunks[0]
        return int(first[0] if isinstance(first, tuple) else first)

    @property
    def named_chunk_rows(self) -> int:
        """Number of rows in a chunk that errors name, or 1 where they name no chunks."""
        return 1 if self.copied else max(1, self.chunk_rows)

    @property
    def block_rows(self) -> int:
        """Number of rows in a block.

        The number depends on the length of q and the stored chunks alone, so that results do not
        depend on the workers or their memory.
        """
        # Blocks have whole chunks, so that no chunk is decoded twice.
        target = max(64, min(65536, 2 ** int(np.log2(_BLOCK_NUMBERS / self.n_features))))
        chunk = self.chunk_rows
        return chunk * max(1, target // chunk)

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one row as stored and read."""
        return sum(np.dtype(c.dtype).itemsize * int(np.prod(c.shape[1:])) for c in self._columns)

    @property
    def in_memory(self) -> bool:
        """Whether a column is an array of this process, which other workers cannot read."""
        return any(
            isinstance(shard, np.ndarray) or any(hasattr(shard, name) for name in LAZY)
            for column in self._columns
            for shard in shards_of(column)
        )

    @property
    def in_order(self) -> bool:
        """Whether reading blocks in order is faster, as for columns of frames."""
        shards = (shard for column in self._columns for shard in shards_of(column))
        return any(hasattr(shard, "frame") for shard in shards)

    def rules(self, on_invalid: str = "raise", tolerance: float | None = None) -> Rules:
        """Rules of validity of the rows.

        The default tolerance is 1e-4, or for float16 2⁻¹⁰ and bfloat16 2⁻⁷.  Numbers that are
        rounded to the spacing ε of 1 sum to 1 ± ε/2, and numbers that are computed in the same type
        have further errors.
        """
        target = self.with_target().target
        if target.sum_tolerance is not None:
            tolerance = target.sum_tolerance
        elif tolerance is None:
            tolerance = sum_tolerance(self.values, self.spacing)
        return Rules(
            self.kind,
            target,
            self.named_chunk_rows,
            0,
            tolerance,
            on_invalid,
            columns={**self.columns, "covariates": self.covariate_names},
        )

    def with_target(self) -> ArraySource:
        """Source with the kernel on the targets of its forecasts, from a sample of outcomes."""
        target = self.target
        if target.bound:
            return self
        outcomes = [block.labels for block in self.sample(_SAMPLED)]
        return replace(self, forecast=target.with_target(np.concatenate(outcomes)).declared)

    @property
    def _columns(self) -> tuple[Any, ...]:
        columns = (self.values, self.labels, self.covariates, self.weights)
        return tuple(column for column in columns if column is not None)

    def describe(self) -> dict[str, Any]:
        """Description of the source, for results."""
        return {
            "name": str(self.name),  # a plain text, without the files of its rows
            "kind": self.kind,
            "rows": self.rows,
            **self.target.described,
            "weighted": self.weights is not None,
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({"categories": dict(self.categories)} if self.categories else {}),
        }

    def level(self, covariate: str, value: float) -> float:
        """Value of a covariate; a `Level` if the covariate is categorical, a time, or missing."""
        names = self.categories.get(covariate)
        kind = self.times.get(covariate)
        if value == (NO_NUMBER if names is None else NO_LEVEL):
            return Level(value, missing_name(names or ()))
        if names is not None and float(value).is_integer() and 0 <= value < len(names):
            return Level(value, names[int(value)])
        return float(value) if kind is None else Level(value, time_label(value, kind))

    def categorical(self, covariates: Iterable[str], also: Iterable[str] = ()) -> tuple[str, ...]:
        """Names in `also`, and the names of categorical covariates among `covariates`."""
        named = (name for name in covariates if name in self.categories)
        return tuple(dict.fromkeys([*also, *named]))

    def covariate(self, name: str) -> int:
        """Position of a covariate.  An OptionError lists the names if there is none."""
        if not isinstance(name, str):
            raise OptionError(f"give the name of one covariate, not {type(name).__name__}")
        if name not in self.covariate_names:
            names = ", ".join(self.covariate_names) or "none"
            raise OptionError(f"there is no covariate {name!r}; the source has: {names}")
        return self.covariate_names.index(name)

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        """Read rows start..stop−1, unchecked, and covariates only on request."""
        return Block(
            self.first_row + start,
            self._take(self.values, self.kind, start, stop),
            self._take(self.labels, "labels", start, stop),
            self._take(self.weights, "weights", start, stop),
            self.read_covariates(start, stop) if covariates else None,
            self.name,
        )

    def read_covariates(self, start: int, stop: int) -> Any:
        """Read the covariates of rows start..stop−1, unchecked (rows, d), if there are any.

        A missing value of a categorical covariate is a level of its own.
        """
        x = self._take(self.covariates, "covariates", start, stop)
        if x is None:
            return None
        x = x[:, None] if x.ndim == 1 else x
        named = [j for j, name in enumerate(self.covariate_names) if name in self.categories]
        missing = np.isnan(x[:, named])
        if missing.any():
            x = np.array(x)
            x[:, named] = np.where(missing, NO_LEVEL, x[:, named])
        return x

    def part(self, start: int, stop: int, covariates: bool = False) -> ArraySource:
        """Source of rows start..stop−1 in memory, to be sent to a worker."""
        block = self.read(start, stop, covariates)
        names = ("values", "labels", "weights", "covariates")
        columns = {name: getattr(block, name) for name in names}
        return replace(self, **columns, rows=stop - start, first_row=self.first_row + start)

    def sample(self, count: int, seed: int = 0) -> Iterator[Block]:
        """Sample about `count` distinct rows by a counter hash, in blocks of one or a few rows.

        The blocks contain the covariates, if there are any.
        """
        return self.read_sample(count, seed)

    def read_sample(self, count: int, seed: int = 0) -> Iterator[Block]:
        """Sample rows as `sample` does, but as `read` returns them.

        In a part of a source, rows of other parts then have no label.
        """
        covariates = self.covariates is not None
        # A sample of all rows is read at once.
        if self.rows <= count:
            yield self.read(0, self.rows, covariates)._replace(left_out=None)
            return
        u = random_draws.table(2 * count, 1, seed, random_draws.SAMPLE)
        # 2·count draws have at least about count distinct rows, as count < rows.  The first ones
        # in the order of the draws are a uniform sample.
        draws = (u.reshape(-1) * self.rows).astype(np.int64)
        _, first = np.unique(draws, return_index=True)
        chosen = np.sort(draws[np.sort(first)[:count]])
        chunk = max(self.chunk_rows, 1024)

        def read(group: Ints) -> Block:
            block = self.read(int(group[0]), int(group[-1]) + 1, covariates)
            # A sample has rows outside of a part, too.
            return block.take(group - group[0], block.start)._replace(left_out=None)

        # Neighbouring rows, and rows of a chunk, are read together.  A sample has rows of nearly
        # all chunks of a store of many classes.
        groups = np.split(chosen, np.flatnonzero(np.diff(chosen // chunk)) + 1)
        threads = self._sampling_threads(chunk)
        if threads == 1 or not threads_can_start():
            yield from map(read, groups)
            return
        with WorkerThreads(threads) as workers:
            yield from workers.in_order(read, groups, 2 * threads)

    def _sampling_threads(self, chunk: int) -> int:
        """Number of threads that read chunks of a sample.

        It is 1 unless all columns are zarr arrays, which several threads may read.
        """
        shards = [shard for column in self._columns for shard in shards_of(column)]
        if not all(isinstance(shard, DirectArray) or is_zarr(shard) for shard in shards):
            return 1
        room = _SAMPLED_BYTES // max(2 * chunk * self.row_bytes, 1)  # as stored and as decoded
        return max(1, min(available_cpus(), _MOST_THREADS, room))

    def _take(self, column: Any, name: str, start: int, stop: int) -> Any:
        if column is None:
            return None
        try:
            return read_rows(column, start, stop)
        except CalibscaleError:
            raise
        except Exception as error:
            address = address_of(column, self.name)
            chunk = start // self.chunk_rows
            damaged = StoreError(
                f"{self.name}: {name} cannot be read in rows {start}..{stop - 1} (chunk {chunk} of "
                f"{self.chunk_rows} rows): {without_secrets(str(error), address)}. The chunk is "
                "damaged or unreachable; restore it or ingest its source again."
            )
            raise_from(server_failure(address, error) or damaged, error, address)
