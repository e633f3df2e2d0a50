"""Sources of predictions and labels: arrays of any kind behind one reader."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from calibscale import errors
from calibscale.data import Block, Rules, input_hints
from calibscale.data.array_layouts import (
    BFLOAT16_SPACING,
    as_numpy,
    in_memory,
    integer_labels,
    is_bfloat16,
    label_codes,
    rows_of,
)
from calibscale.data.named_values import encoded, is_named, named_columns
from calibscale.formatting import one_line
from calibscale.kernels import random_draws

_log = logging.getLogger(__name__)

KINDS = ("logits", "probabilities")

# attributes of arrays of dask and xarray, and of columns of frames, which belong to this process
LAZY = ("dask", "variable", "frame")
_BLOCK_NUMBERS = 2**21  # predictions in a block: a few megabytes
_TOLERANCE = 1e-4  # of row sums of probabilities in float32 or float64


class Level(float):
    """Value of a categorical covariate: a number that prints as its name."""

    name: str

    def __new__(cls, value: float, name: str) -> Level:
        level = super().__new__(cls, value)
        level.name = name
        return level

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.name

    def __format__(self, spec: str) -> str:
        return one_line(self.name) if spec.endswith("g") else super().__format__(spec)


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Columns of equal length, read one block of rows at a time and never as a whole.

    Created by `from_arrays` or by opening a store.  A column is anything with ``shape``, ``dtype``
    and slicing by rows: NumPy arrays, memory maps, ``zarr.Array``, ``dask.array``,
    ``xarray.DataArray``.  `spacing` is the distance from 1 to the next number of the type in which
    predictions were given, if it is above that of their present type.

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
    spacing: float = 0.0

    @property
    def classes(self) -> int:
        """K; a binary column stands for two classes."""
        return 2 if self.binary else int(self.values.shape[1])

    @property
    def chunk_rows(self) -> int:
        """Number of rows in a stored chunk; 1 for plain arrays."""
        chunks = getattr(self.values, "chunks", None)
        if not chunks:
            return 1
        first = chunks[0]
        return int(first[0] if isinstance(first, tuple) else first)

    @property
    def block_rows(self) -> int:
        """Number of rows in a block; depends on K and the stored chunks alone."""
        target = max(64, min(65536, 2 ** int(np.log2(_BLOCK_NUMBERS / self.classes))))
        chunk = self.chunk_rows
        return chunk * max(1, target // chunk)

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one row as stored and read."""
        columns = [c for c in self._columns if c is not None]
        return sum(np.dtype(c.dtype).itemsize * int(np.prod(c.shape[1:])) for c in columns)

    @property
    def in_memory(self) -> bool:
        """Whether a column is an array of this process, which other workers cannot read."""
        return any(
            isinstance(c, np.ndarray) or any(hasattr(c, name) for name in LAZY)
            for c in self._columns
        )

    @property
    def in_order(self) -> bool:
        """Whether reading blocks in order is faster, as for columns of frames."""
        return any(hasattr(c, "frame") for c in self._columns)

    def rules(self, on_invalid: str = "raise", tolerance: float | None = None) -> Rules:
        """Rules of validity of the rows.

        The default tolerance is 1e-4, or for float16 2⁻¹⁰ and bfloat16 2⁻⁷: numbers rounded to the
        spacing ε of 1 sum to 1 ± ε/2, and those computed in the same type have other errors.
        """
        if tolerance is None:
            spacing = float(np.finfo(self.values.dtype).eps)
            tolerance = max(_TOLERANCE, spacing, self.spacing)
        return Rules(self.kind, self.classes, max(1, self.chunk_rows), 0, tolerance, on_invalid)

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.values, self.labels, self.covariates, self.weights

    def describe(self) -> dict[str, Any]:
        """Description of the source, for results."""
        return {
            "name": self.name,
            "kind": self.kind,
            "rows": self.rows,
            "classes": self.classes,
            "binary": self.binary,
            "weighted": self.weights is not None,
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({"categories": dict(self.categories)} if self.categories else {}),
        }

    def level(self, covariate: str, value: float) -> float:
        """Value of a covariate; a `Level` if the covariate is categorical."""
        names = self.categories.get(covariate, ())
        named = float(value).is_integer() and 0 <= value < len(names)
        return Level(value, names[int(value)]) if named else float(value)

    def categorical(self, covariates: Iterable[str], also: Iterable[str] = ()) -> tuple[str, ...]:
        """Names in `also`, and those of `covariates` that are categorical."""
        named = (name for name in covariates if name in self.categories)
        return tuple(dict.fromkeys([*also, *named]))

    def covariate(self, name: str) -> int:
        """Position of a covariate; an OptionError that lists the names if there is none."""
        if not isinstance(name, str):
            raise errors.OptionError(f"give the name of one covariate, not {type(name).__name__}")
        if name not in self.covariate_names:
            names = ", ".join(self.covariate_names) or "none"
            raise errors.OptionError(f"there is no covariate {name!r}; the source has: {names}")
        return self.covariate_names.index(name)

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        """Read rows start..stop−1, unchecked; covariates only on request."""
        return Block(
            self.first_row + start,
            self._take(self.values, self.kind, start, stop),
            self._take(self.labels, "labels", start, stop),
            self._take(self.weights, "weights", start, stop),
            self.read_covariates(start, stop) if covariates else None,
            self.name,
        )

    def read_covariates(self, start: int, stop: int) -> Any:
        """Read the covariates of rows start..stop−1, unchecked (rows, d), if there are any."""
        x = self._take(self.covariates, "covariates", start, stop)
        return x[:, None] if x is not None and x.ndim == 1 else x

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
        covariates = self.covariates is not None
        if self.rows <= count:
            yield self.read(0, self.rows, covariates)
            return
        u = random_draws.table(2 * count, 1, seed, random_draws.SAMPLE)
        draws = (u.reshape(-1) * self.rows).astype(np.int64)
        _, first = np.unique(draws, return_index=True)
        chosen = np.sort(draws[np.sort(first)[:count]])
        chunk = self.chunk_rows
        for group in np.split(chosen, np.flatnonzero(np.diff(chosen // max(chunk, 1024))) + 1):
            block = self.read(int(group[0]), int(group[-1]) + 1, covariates)
            yield block.take(group - group[0], block.start)

    def _take(self, column: Any, name: str, start: int, stop: int) -> Any:
        if column is None:
            return None
        try:
            part = column[start:stop]
            if hasattr(part, "compute"):  # dask and xarray; the caller is parallel already
                part = part.compute(scheduler="synchronous")
            return np.asarray(part)
        except errors.CalibscaleError:
            raise
        except Exception as error:
            chunk = start // self.chunk_rows
            raise errors.StoreError(
                f"{self.name}: {name} cannot be read in rows {start}..{stop - 1} "
                f"(chunk {chunk} of {self.chunk_rows} rows): {error}. The chunk is damaged or "
                "unreachable; restore it or ingest its source again."
            ) from error


class SourceNames(TypedDict, total=False):
    """Names of a source, with the meaning in `from_arrays`."""

    covariate_names: Sequence[str] | None
    class_names: Sequence[Any] | None
    label_names: Sequence[Any] | None
    name: str


def from_arrays(
    *,
    logits: Any = None,
    probabilities: Any = None,
    labels: Any,
    ignore_index: int | None = None,
    covariates: Any = None,
    weights: Any = None,
    binary: bool = False,
    **named: Unpack[SourceNames],
) -> ArraySource:
    """Describe predictions in arrays; predictions are neither read nor copied here.

    Parameters
    ----------
    logits, probabilities : (n, K) array-like
        Exactly one of the two: NumPy array, memory map, ``zarr.Array``, ``dask.array`` or
        ``xarray.DataArray``; or a tensor of any device.  One column, (n,) or (n, 1), is P(y = 1)
        or its log-odds and needs ``binary=True``.  A logit of −∞ masks a class: its probability
        is 0.  In memory also (n, K, …) with labels (n, …), such as those of pixels: each position
        is a row.  With ``binary=True`` also (n, L) with labels (n, L) that are true or false: each
        label of each row is a row, with the covariate ``label`` to group by.
    labels : (n,) array-like of integers
        0..K−1; −1 where the label is not yet known.  Arrays in memory may also be booleans or
        floats with integer values, NaN meaning −1, or texts among `class_names`.
    ignore_index : int, optional
        Value of labels in memory that means −1, such as 255 or −100.
    covariates : (n, d) array-like, or (n,) for one covariate, optional
        Numbers, or in memory also texts or a data frame: results print the texts.
    covariate_names : d names, optional
        Default: the names of the columns of a data frame, else ``x0, x1, …``.
    weights : (n,) array-like, optional
        Importance weights, not counts.  Their scale does not matter, and rows of weight 0 are
        ignored.  A row of weight 3 is one observation: TCE2Debiased, JKCE, KCE, KLCE,
        CKCECentred, the default λ, intervals and p-values differ by design from those of three
        equal rows.
    binary : bool
        Whether the predictions are one column.
    class_names : K names, optional
        Names of the classes in the order of the columns, such as ``model.classes_``.
    label_names : L names, optional
        Names of several labels of a row.  Default: 0, 1, …
    name : str
        Name of the source in errors and results.

    Raises
    ------
    OptionError
        If both or neither of `logits` and `probabilities` are given, or names do not match.
    InvalidDataError
        If lengths, shapes or types are impossible.

    Notes
    -----
    A warning is logged if logits in memory look like probabilities, or if all labels are −1 or 1.
    Intervals and tests of several labels together treat those of a row as independent.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> calibscale.from_arrays(probabilities=p, labels=np.array([0, 1])).classes
    2

    Several labels of a row:

    >>> source = calibscale.from_arrays(
    ...     probabilities=p, labels=[[1, 0], [1, 1]], binary=True, label_names=["cat", "dog"]
    ... )
    >>> brier = calibscale.evaluate(source, "brier", group_by="label").groups
    >>> {f"{label:g}": round(estimate.value, 2) for label, (estimate,) in brier.items()}
    {'cat': 0.65, 'dog': 0.05}
    """
    if (logits is None) == (probabilities is None):
        raise errors.OptionError("give exactly one of logits= and probabilities=")
    if unknown := named.keys() - SourceNames.__annotations__:
        raise TypeError(f"from_arrays() has no parameter {min(unknown)!r}")
    class_names, covariate_names = named.get("class_names"), named.get("covariate_names")
    name = named.get("name", "arrays")
    kind = "logits" if logits is not None else "probabilities"
    values = probabilities if logits is None else logits
    spacing = BFLOAT16_SPACING if is_bfloat16(values) else 0.0
    values, labels = _column(values, kind), labels if _sliceable(labels) else as_numpy(labels)
    categories: dict[str, tuple[str, ...]] = {}
    if binary and len(values.shape) == 2 and values.shape == labels.shape and values.shape[1] > 1:
        errors.require(
            covariates is None, "several labels of a row have no covariates but their names"
        )
        covariates, categories["label"] = label_codes(values.shape, named.get("label_names"))
        covariate_names = ["label"]
    values, labels, weights, covariates = rows_of(
        values, labels, weights if weights is None else _column(weights, "weights"), covariates,
        binary=binary, ignore_index=ignore_index, name=name,
    )  # fmt: skip
    labels = integer_labels(_column(_numbered(labels, class_names), "labels"), name)
    if covariates is not None and not categories:
        if not (hasattr(covariates, "columns") or _sliceable(covariates)):
            covariates = as_numpy(covariates, "covariates")
        columns, covariate_names, categories = named_columns(covariates, covariate_names)
        covariates = _column(columns, "covariates")
    rows = _check(kind, values, labels, covariates, weights, binary, name)
    d = 0 if covariates is None else int((*covariates.shape, 1)[1])
    names = tuple(f"x{i}" for i in range(d)) if covariate_names is None else tuple(covariate_names)
    if len(names) != d or len(set(names)) != d:
        raise errors.OptionError(f"{d} covariates need {d} distinct names, not {list(names)}")
    held = in_memory(values) or hasattr(values, "frame")
    if kind == "logits" and held and input_hints.seem_probabilities(values):
        _log.warning(input_hints.ARE_PROBABILITIES, name)
    two = binary or int(values.shape[1]) == 2
    if two and in_memory(labels) and input_hints.negatives_lost(labels):
        _log.warning(input_hints.ARE_NEGATIVES, name)
    source = ArraySource(kind, values, labels, covariates, names, weights, binary, rows, name)
    classes = None if class_names is None else tuple(map(str, class_names))
    if classes is not None and len(set(classes)) != source.classes:
        raise errors.OptionError(
            f"{source.classes} classes need {source.classes} distinct names, not {list(classes)}"
        )
    return replace(source, class_names=classes, categories=categories, spacing=spacing)


def _numbered(labels: Any, class_names: Sequence[Any] | None) -> Any:
    """Convert labels that are texts to numbers, by the names of the classes."""
    if class_names is None or not is_named(labels):
        return labels
    return encoded(np.asarray(labels), "labels", class_names)[0]


def _column(array: Any, name: str) -> Any:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise errors.InvalidDataError(
            f"{name} have masked entries; remove those rows, or set their labels to −1"
        )
    if is_bfloat16(array) or not _sliceable(array):
        array = as_numpy(array, name)  # lists, and tensors with a dtype of their framework
    if np.dtype(array.dtype).kind not in "iufb":
        hint = input_hints.OF_NAMES * (name == "labels" and is_named(array))
        raise errors.InvalidDataError(
            f"{name} must be numbers, not {array.dtype} (object arrays are refused){hint}"
        )
    return array


def _sliceable(array: Any) -> bool:
    """Whether an array can be sliced by rows without converting it first."""
    try:
        np.dtype(array.dtype)
    except (AttributeError, TypeError):
        return False
    return hasattr(array, "shape") and hasattr(array, "__getitem__")


def _check(
    kind: str, values: Any, labels: Any, covariates: Any, weights: Any, binary: bool, name: str
) -> int:
    if any(s != s for s in values.shape):
        raise errors.InvalidDataError(
            f"{name}: the number of rows is unknown; call compute_chunk_sizes() on the dask array"
        )
    shape = tuple(int(s) for s in values.shape)
    if np.dtype(values.dtype).kind != "f":
        raise errors.InvalidDataError(f"{name}: {kind} must be floating point, not {values.dtype}")
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        raise errors.InvalidDataError(
            f"{name}: {kind} must be (rows, classes), not of shape {shape}"
            + input_hints.of_images(shape)
        )
    single = len(shape) == 1 or shape[1] == 1
    if single and not binary:
        raise errors.BinaryError(f"{name}: {kind} of shape {shape} are one column", declared=False)
    if binary and not single:
        what = f"{name}: binary is declared, but {kind} have shape {shape}"
        raise errors.BinaryError(what, declared=True)
    if np.dtype(labels.dtype).kind not in "iu":
        raise errors.InvalidDataError(
            f"{name}: labels must be integers 0..K−1 (−1: not yet known), not {labels.dtype}"
            + (
                input_hints.of_shape(labels.shape, labels)
                or "; convert them with numpy.asarray(labels, int)"
            )
        )
    for what, column, dims in (
        ("labels", labels, (1,)),
        ("covariates", covariates, (1, 2)),
        ("weights", weights, (1,)),
    ):
        if column is None:
            continue
        if len(column.shape) not in dims:
            raise errors.InvalidDataError(
                f"{name}: {what} must be ({shape[0]}{', d' if 2 in dims else ','}), not of shape "
                f"{column.shape}" + input_hints.of_shape(column.shape, column) * (what == "labels")
            )
        if int(column.shape[0]) != shape[0]:
            raise errors.InvalidDataError(
                f"{name}: {shape[0]} rows of {kind}, but {int(column.shape[0])} of {what}"
            )
    if shape[0] == 0:
        raise errors.NoRowsError(f"{name}: there are no rows")
    return shape[0]
