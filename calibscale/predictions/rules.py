"""Requirements on rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calibscale.errors import OptionError, require
from calibscale.predictions.target import Target

DRAWN_LABELS = 2**21  # drawn labels of a chunk, 8 MB, if the chunk is not large for other reasons
_NUMBERS = 2**20  # numbers of the rows of a chunk: 8 MB
_LEAST_ROWS = 512  # of a chunk
_MOST_ROWS = 8192  # of a chunk with features of its rows, or with replicates
_PLAIN_ROWS = 2**15  # of a chunk with neither, unless it has a cost of its own
# Rows of a chunk whose rows have many numbers.  Each chunk reads and writes sums of products, which
# takes much of its time if it has few rows.  The numbers of a chunk limit its memory to 32 MB.
_WIDE_ROWS, _WIDE_NUMBERS = 1024, 2**22


@dataclass(frozen=True)
class Rules:
    """Requirements on rows, and the treatment of rows that violate them.

    Parameters
    ----------
    kind : str
        ``logits``, ``probabilities``, or the kind of the forecasts.
    target : Target
        What the predictions claim.
    chunk_rows : int
        Rows in a stored chunk, which errors name, or 1 where they name no chunks.
    features : int
        Largest number of features that a chunk holds for each of its rows.
    tolerance : float
        Allowed deviation of a row's sum of probabilities from 1.  Softmax outputs in float16 and
        float32 deviate by rounding, rows with a missing class by far more.
    on_invalid : {"raise", "drop"}
    group : int, optional
        Position of the covariate that groups rows, which must not be infinite.
    covariates : tuple of int
        Positions of covariates that must be finite.
    optional : int, optional
        Position of a covariate that statistics read, which may be missing and must not be infinite.
    large_chunks : bool
        Whether each chunk has a cost of its own.
    replicates : int
        Number of replicates of a null, which are drawn for each chunk.
    segment_rows : int, optional
        A chunk ends where the number of a row is a multiple of it.
    cluster : int, optional
        Position of the covariate with the hash of the cluster.
    columns : {role: names}
        Names of the columns of each role, by which errors name them.
    """

    kind: str
    target: Target
    chunk_rows: int = 1
    features: int = 0
    tolerance: float = 1e-4
    on_invalid: str = "raise"
    group: int | None = None
    covariates: tuple[int, ...] = ()
    optional: int | None = None
    large_chunks: bool = False
    replicates: int = 0
    segment_rows: int | None = None
    cluster: int | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.on_invalid not in ("raise", "drop"):
            raise OptionError(f"on_invalid must be 'raise' or 'drop', not {self.on_invalid!r}")
        require(0 <= self.tolerance < 1, "tolerance must be in [0, 1)", self.tolerance)

    @property
    def reads_covariates(self) -> bool:
        return bool(self.covariates) or {self.group, self.optional, self.cluster} != {None}

    @property
    def compute_rows(self) -> int:
        """Number of rows in a chunk.

        Chunks are large, because each costs calls of Python, for which threads wait for each other.
        A chunk with m features of each row has some megabytes, to stay in cache.  Replicates with
        drawn labels have a cost per chunk, as each reads and writes its sums.  They take more rows,
        but not so many that the labels leave the cache.
        """
        rows = max(_NUMBERS // self.target.n_features, _LEAST_ROWS)
        if self.large_chunks:  # such as a factorisation of each chunk
            return rows
        if not (self.features or self.replicates):
            return min(rows, _PLAIN_ROWS)
        numbers = 2 * self.target.n_features + self.features
        rows = max(_NUMBERS // numbers, min(_WIDE_ROWS, _WIDE_NUMBERS // numbers))
        if self.replicates and self.target.has_single_labels:
            rows = max(rows, min(2048, 2**21 // numbers))
            rows = min(rows, DRAWN_LABELS // self.replicates)
        return min(max(rows, _LEAST_ROWS), _MOST_ROWS)
