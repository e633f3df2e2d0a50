"""Sources of arrays: logits or probabilities of classes, and predictive distributions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from calibscale.data.array_layouts import (
    BFLOAT16_SPACING,
    as_numpy,
    in_memory,
    interval_ends,
    is_bfloat16,
    label_codes,
    rows_of,
    stacked,
)
from calibscale.data.call_hints import by_name, refuse_unknown, seem_exchanged
from calibscale.data.choices import ChoiceColumns, ChoiceOptions, of_choices
from calibscale.data.label_values import LABEL_OPTIONS, LETTERS, label_values, pieces_of
from calibscale.data.missing import as_floats
from calibscale.data.named_values import NamedColumns, headings, is_table, named_columns
from calibscale.data.percentages import SHARES, hint_of_texts, shares
from calibscale.data.row_shards import ConvertedRows, RowShards, check_shards, is_shards
from calibscale.data.source import ArraySource
from calibscale.errors import BinaryError, InvalidDataError, NoRowsError, OptionError, require
from calibscale.predictions import input_hints
from calibscale.predictions.distributions.quantile_names import forecast_of_columns
from calibscale.predictions.kinds import forecast_of, role_of
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.row_origins import row_text
from calibscale.predictions.soft_labels import axes_of_labels

INTEGERS = np.dtype(np.int64)
_log = logging.getLogger(__name__)


class SourceOptions(ChoiceOptions, total=False):
    """Choices and names of a source, with the meaning in `from_arrays`."""

    covariate_names: Sequence[str] | None
    class_names: Sequence[Any] | None
    positive: Any
    percent: bool
    label_names: Sequence[Any] | None
    name: str


class TableOptions(SourceOptions, total=False):
    """Options of the sources of tables, with the meaning in `from_arrays`."""

    ignore_index: Any
    binary: bool


@by_name("from_arrays(probabilities=p, labels=y)")
def from_arrays(
    *,
    logits: Any = None,
    probabilities: Any = None,
    predictions: Any = None,
    forecast: str | OutcomeTarget | None = None,
    intervals: Any = None,
    coverage: float | None = None,
    labels: Any,
    ignore_index: Any = None,
    covariates: Any = None,
    weights: Any = None,
    binary: bool = False,
    **named: Unpack[SourceOptions],
) -> ArraySource:
    """Describe predictions in arrays, which are neither read nor copied here.

    Parameters
    ----------
    logits, probabilities : (n, K) array-like
        Exactly one of the two: NumPy array, memory map, ``zarr.Array``, ``dask.array``,
        ``xarray.DataArray``, or a tensor of any device.  The matrices of a list are shards, such as
        the batches of a loop or memory maps of several files.  Shards are concatenated by rows and
        never copied as a whole.  Labels, covariates and weights may then be lists of shards as
        well, cut anywhere.  One column, (n,) or (n, 1), is P(y = 1) or its log-odds.  A logit of −∞
        masks a class: its probability is 0.  In memory also (n, K, …) with labels (n, …), such as
        the labels of pixels: each position is a row.  With ``binary=True`` also (n, L) with labels
        (n, L) that are true or false: each label of each row is a row, with the covariate ``label``
        to group by.  With `offsets`, `mask` or `top_k`: the choices of questions.
    predictions : (n, P) array-like, or tuple of its parts, optional
        In place of logits and probabilities: predictive distributions of the kind `forecast`.
    forecast : str, Forecast or Functional, optional
        Kind of the predictions: ``normal``, ``mixture``, ``ensemble``, `QuantileForecast`,
        `HistogramForecast` or `OrdinalForecast`.  Or a `Functional`, such as ``mean``,
        ``quantile(level=0.9)`` or ``interval(coverage=0.9)``.  Labels are then the observed numbers
        (n,), NaN where the outcome is not yet known.
    intervals : tuple of low and high (n,), or (n, 2) array-like, optional
        In place of predictions and their kind: prediction intervals.  A side that is None is open.
        Ends (n, 2, 1), as conformal packages return them for one coverage, are taken, too.
    coverage : float, optional
        Claimed probability that an interval contains its outcome, in (0, 1).
    labels : (n,) array-like
        Integers 0..K−1, and −1, NaN or None where the label is not yet known.  Also booleans, texts
        among `class_names`, or for two classes words such as ``"no"`` and ``"yes"``.  Other values
        are declared by `positive` or `class_names`, and labels that are −1 and 1 must be.  Also
        soft labels (n, K), floats with rows that sum to 1, such as the shares of annotators.
        Residuals are then q − label, and events are probabilities.  A row of soft labels is all NaN
        where the label is not yet known.
    ignore_index : int, str or several, optional
        Value of labels that means "not yet known", such as 255, −100, or ``"?"``.
    covariates : (n, d) array-like, or (n,) for one covariate, optional
        Numbers, or in memory also texts, a data frame, or a dictionary of columns (n,) by name.
        Results print the texts.
    covariate_names : d names, optional
        Default: the names of the columns of a data frame or dictionary, else ``x0, x1, …``.
    weights : (n,) array-like, optional
        Importance weights, not counts.  Their scale does not matter, and rows of weight 0 are
        ignored.  A row of weight 3 is one observation: for TCE2Debiased, JKCE, KCE, KLCE,
        CKCECentred, the default λ, intervals and p-values, it differs by design from three equal
        rows.
    binary : bool
        Declares that the predictions are one column, which is otherwise inferred.  It is needed for
        several labels of a row.
    positive : int, float, bool or str, optional
        Label of the event of two classes, which is class 1, such as ``1`` where labels are −1 and
        1, ``2`` where they are 1 and 2, or ``"default"``.  The labels have one other value.
    percent : bool, optional
        Whether the probabilities are in percent: numbers from 0 to 100, or texts such as ``"90%"``.
    class_names : K names, optional
        Names of the classes in the order of the columns, such as ``model.classes_``.  Labels that
        are numbers are names if all names are numbers, such as 1, 2, 3, and else positions.
    label_names : L names, optional
        Names of several labels of a row.  Default: 0, 1, …
    offsets : (n + 1,) array-like of integers, optional
        Questions with different numbers of choices: predictions are flat, question i has those of
        ``offsets[i]:offsets[i + 1]``, and its label is a position among them.  Questions are padded
        with choices of probability 0.
    mask : (n, K) array-like of booleans, optional
        The same for padded predictions (n, K): whether a choice exists.
    top_k : (n, k) array-like of integers, optional
        Classes of the k largest probabilities (n, k), among any number of classes to which `labels`
        refer.  Classes of the source are these k, by position, and the rest with the remaining
        probability.
    per_choice : bool, optional
        Whether each choice of each question is a row, P(the choice is right), with the covariates
        ``question`` (for ``cluster="question"``) and ``choice``, its position.  Logits become
        softmax probabilities of their question.  Sums of probabilities are not checked.
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
    A warning is logged if logits in memory look like probabilities.
    Intervals and tests of several labels together treat the labels of a row as independent.

    See Also
    --------
    from_frame : Predictions in columns of a data frame.
    from_file : Predictions in table files or npy files.
    open_arrays : Predictions in zarr arrays at paths or URLs.

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

    A question with two choices and one with three:

    >>> q, offsets = np.array([0.9, 0.1, 0.2, 0.5, 0.3]), [0, 2, 5]
    >>> calibscale.from_arrays(probabilities=q, offsets=offsets, labels=[0, 2]).values
    array([[0.9, 0.1, 0. ],
           [0.2, 0.5, 0.3]])
    """
    refuse_unknown("from_arrays", named, SourceOptions.__optional_keys__)
    if intervals is not None or coverage is not None:
        require(
            intervals is not None and coverage is not None,
            "intervals= and coverage= belong together",
        )
        others = (logits, probabilities, predictions, forecast)
        require(all(x is None for x in others), "intervals= are the only predictions")
        predictions, forecast = interval_ends(intervals), forecast_of("interval", coverage=coverage)
    if predictions is not None or forecast is not None:
        choices = ChoiceOptions.__optional_keys__
        with_choices = any(named.get(option) is not None for option in choices)
        of_classes = (
            binary or with_choices or named.get("percent") or named.get("positive") is not None
        )
        if not logits is probabilities is ignore_index is None or of_classes:
            raise OptionError("predictions= of a forecast= have no logits, … of classes")
        # The check alone: it raises an error unless predictions and their kind are both passed.
        role_of(forecast, predictions=predictions)
        assert forecast is not None
        heading = headings(predictions)
        kind_of_forecast = (
            forecast_of(forecast)
            if heading is None
            else forecast_of_columns(forecast, list(map(str, heading)))
        )
        assert kind_of_forecast is not None
        return _of_forecasts(kind_of_forecast, predictions, labels, covariates, weights, named)
    if (logits is None) == (probabilities is None):
        raise OptionError("give exactly one of logits= and probabilities=")
    class_names, covariate_names = named.get("class_names"), named.get("covariate_names")
    name = named.get("name", "arrays")
    kind = "logits" if logits is not None else "probabilities"
    values = probabilities if logits is None else logits
    # NumPy has no bfloat16, so that its spacing must be noted before the conversion to float32.
    rounded = any(map(is_bfloat16, values)) if is_shards(values) else is_bfloat16(values)
    spacing = BFLOAT16_SPACING if rounded else 0.0
    values, labels, covariates, weights = _joined(kind, values, labels, covariates, weights, name)
    values, labels = _held(values, kind), _held(labels, "labels")
    if named.get("percent"):
        require(kind == "probabilities", "percent= needs probabilities=")
        spacing = max(spacing, _spacing(values.dtype))
        values = _converted(values, partial(shares, name=name), SHARES)
    values = _column(values, kind)
    categories: dict[str, tuple[str, ...]] = {}
    times: dict[str, str] = {}
    if binary and len(values.shape) == 2 and values.shape == labels.shape and values.shape[1] > 1:
        require(covariates is None, "several labels of a row have no covariates but their names")
        covariates, categories["label"] = label_codes(values.shape, named.get("label_names"))
        covariate_names = ["label"]
    values, labels, weights, covariates = rows_of(
        values,
        labels,
        weights if weights is None else _column(weights, "weights"),
        covariates,
        binary=binary,
        ignore_index=None,
        name=name,
    )
    of_questions = any(named.get(option) is not None for option in ChoiceOptions.__optional_keys__)
    # `_column` refuses labels of other types, such as dates, below.
    if len(labels.shape) == 1 and np.dtype(labels.dtype).kind in "biufOUST":
        options = {**named, "ignore_index": ignore_index, "probabilities": probabilities}
        labels, class_names = _numbered(labels, values, binary, of_questions, options, name)
    labels = _column(labels, "labels")
    if covariates is not None and not categories:
        described = _covariates(covariates, covariate_names)
        covariates, covariate_names, categories, times = described
    if of_questions:
        require(not binary, "offsets, mask, top_k and per_choice are not for binary=True")
        require(len(labels.shape) < 2, "offsets, mask, … need integer labels (n,)")
        columns = ChoiceColumns(kind, values, labels, weights, covariates, covariate_names)
        columns = of_choices(columns, named, spacing, name)
        values, labels, weights, covariates, covariate_names = columns[1:]
    # One column stands for two classes, unless it has the only choice of each question.
    single = values.shape[1:] in ((), (1,))
    binary = binary or (single and (not of_questions or bool(named.get("per_choice"))))
    rows = _check(kind, values, labels, covariates, weights, binary, name)
    names = _names(covariates, covariate_names)
    # The check for probabilities reads the first rows, which is cheap from memory alone.
    is_held = in_memory(values) or hasattr(values, "frame") or isinstance(values, RowShards)
    if kind == "logits" and is_held and input_hints.seem_probabilities(values):
        _log.warning(input_hints.ARE_PROBABILITIES, name)
    source = ArraySource(kind, values, labels, covariates, names, weights, binary, rows, name)
    classes = None if class_names is None else tuple(map(str, class_names))
    if classes is not None and len(set(classes)) != source.classes:
        raise OptionError(
            f"{source.classes} classes need {source.classes} distinct names, not {list(classes)}"
        )
    return replace(source, class_names=classes, categories=categories, times=times, spacing=spacing)


def _of_forecasts(
    forecast: OutcomeTarget,
    predictions: Any,
    labels: Any,
    covariates: Any,
    weights: Any,
    named: SourceOptions,
) -> ArraySource:
    """Source of predictive distributions."""
    names, name = named.get("covariate_names"), named.get("name", "arrays")
    values, labels, covariates, weights = _joined(
        "predictions", stacked(predictions), labels, covariates, weights, name
    )
    values = _column(values, "predictions")
    labels = _column(labels, "outcomes")
    weights = weights if weights is None else _column(weights, "weights")
    categories: dict[str, tuple[str, ...]] = {}
    times: dict[str, str] = {}
    if covariates is not None:
        covariates, names, categories, times = _covariates(covariates, names)
    shape = tuple(values.shape)
    # A kind with one column takes predictions (rows,), too.
    single = len(shape) == 1 and forecast.columns == 1
    if not single and (len(shape) != 2 or 0 in shape[1:]):
        raise InvalidDataError(
            f"{name}: predictions of kind {forecast.name} must be (rows, columns), not of shape "
            f"{shape}"
        )
    forecast.check_columns(1 if single else int(shape[1]), name)
    _check_lengths("predictions", shape[0], labels, covariates, weights, name)
    return ArraySource(
        forecast.name,
        values,
        labels,
        covariates,
        _names(covariates, names),
        weights,
        rows=int(shape[0]),
        name=name,
        categories=categories,
        times=times,
        forecast=forecast,
    )


def _joined(
    kind: str, values: Any, labels: Any, covariates: Any, weights: Any, name: str
) -> tuple[Any, Any, Any, Any]:
    """Columns with one array in place of a list of shards.  Columns in memory are concatenated."""
    split = is_shards(values)
    if split:
        shards = tuple(_column(shard, kind) for shard in values)
        check_shards(shards, kind, name)
        # Shards of predictions are not joined, even in memory: this would double their memory.
        values = RowShards(shards)
    columns = []
    for role, column in (("labels", labels), ("covariates", covariates), ("weights", weights)):
        if is_shards(column, split):
            if any(hasattr(shard, "columns") for shard in column):
                raise InvalidDataError(
                    f"{name}: {role} are a list of data frames; join them (pandas.concat)"
                )
            shards = tuple(_held(shard, role) for shard in column)
            check_shards(shards, role, name)
            all_in_memory = all(map(in_memory, shards))
            column = np.concatenate(shards) if all_in_memory else RowShards(shards)
        columns.append(column)
    labels, covariates, weights = columns
    return values, labels, covariates, weights


def _covariates(covariates: Any, names: Sequence[str] | None) -> NamedColumns:
    """Covariates as numbers, with their names, categories and kinds of times."""
    if not is_table(covariates):
        covariates = _held(covariates, "covariates")
    columns = named_columns(covariates, names)
    return columns._replace(values=_column(columns.values, "covariates"))


def _names(covariates: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the covariates, distinct and as many as there are."""
    d = 0 if covariates is None else int((*covariates.shape, 1)[1])
    distinct = tuple(f"x{i}" for i in range(d)) if names is None else tuple(names)
    if len(distinct) != d or len(set(distinct)) != d:
        raise OptionError(f"{d} covariates need {d} distinct names, not {list(distinct)}")
    return distinct


def _numbered(
    labels: Any,
    values: Any,
    binary: bool,
    of_questions: bool,
    options: Mapping[str, Any],
    name: str,
) -> tuple[Any, Sequence[Any] | None]:
    """Labels as numbers 0..K−1, converted at once if they are in memory, and names of classes."""
    # A single column is binary, whether it is declared or not.
    two_classes = binary or len(values.shape) < 2 or values.shape[1] == 1
    if of_questions:
        # Labels are positions among the choices of a row, as numbers or letters.
        two_classes = False
        classes = LETTERS
    else:
        classes = 2 if two_classes else int(values.shape[1])
    meaning = label_values(
        pieces_of(labels),
        classes,
        name,
        several=not two_classes,
        **{option: options.get(option) for option in LABEL_OPTIONS},
    )
    # Integers 0..K−1 stay as they are, so that large arrays on disk are not converted.
    if not meaning.keeps(labels.dtype):
        place = partial(row_text, name=name)
        try:
            labels = _converted(labels, partial(meaning.numbers, place=place), INTEGERS)
        except InvalidDataError as error:
            if options.get("probabilities") is not None and seem_exchanged(labels, values):
                fault = (
                    "labels= has the probabilities, and probabilities= the labels: exchange them"
                )
                raise InvalidDataError(f"{name}: {fault}", error.row) from error
            raise
    return labels, meaning.names


def _spacing(dtype: Any) -> float:
    """Distance from 1 to the next number of a type of floating point."""
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 0.0


def _converted(array: Any, convert: Callable[..., Any], dtype: Any) -> Any:
    """Converted array; an array that is not in memory is converted by rows when it is read."""
    if in_memory(array):
        return convert(array, 0)
    return ConvertedRows(array, convert, dtype)


def _column(array: Any, name: str) -> Any:
    """Array of numbers that can be sliced by rows.  Missing entries are NaN."""
    array = _held(array, name)
    if isinstance(array, np.ndarray):
        array = as_floats(array)
    if np.dtype(array.dtype).kind not in "iufb":
        hint = hint_of_texts(array) if name == "probabilities" else ""
        raise InvalidDataError(
            f"{name} must be numbers, not {array.dtype} (object arrays are refused){hint}"
        )
    return array


def _held(array: Any, name: str) -> Any:
    """Array of any values that can be sliced by rows.  Missing entries are NaN or None."""
    rows = array if _is_plain(array) or _is_lazy(array) else as_numpy(array, name)
    if rows.shape == ():
        raise InvalidDataError(f"{name} must have rows, not be a single {type(array).__name__}")
    return rows


def _is_lazy(array: Any) -> bool:
    """Whether an array is read by slices, such as arrays of zarr, dask and xarray."""
    must_convert = isinstance(array, np.ndarray) or hasattr(array, "iloc") or is_bfloat16(array)
    return _sliceable(array) and not must_convert


def _is_plain(array: Any) -> bool:
    """Whether an array has numbers without masked ones, and can be sliced by rows."""
    if not _sliceable(array) or is_bfloat16(array):
        return False
    # Columns of pandas, which have `iloc`, would be sliced by the labels of their index.
    if isinstance(array, np.ma.MaskedArray) or hasattr(array, "iloc"):
        return False
    return np.dtype(array.dtype).kind in "iufb"


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
    """Number of rows.  An error is raised if shapes or types are impossible."""
    if any(s != s for s in values.shape):  # dask has NaN where a size is unknown
        raise InvalidDataError(
            f"{name}: the number of rows is unknown; call compute_chunk_sizes() on the dask array"
        )
    shape = tuple(int(s) for s in values.shape)
    if np.dtype(values.dtype).kind != "f":
        hint = "; in percent? pass percent=True (--percent)" if kind == "probabilities" else ""
        raise InvalidDataError(f"{name}: {kind} must be floating point, not {values.dtype}{hint}")
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        raise InvalidDataError(
            f"{name}: {kind} must be (rows, classes), not of shape {shape}"
            + input_hints.of_images(shape)
        )
    single = len(shape) == 1 or shape[1] == 1
    if single and not binary:
        raise InvalidDataError(f"{name}: every question has a single choice")
    if binary and not single:
        raise BinaryError(f"{name}: binary is declared, but {kind} have shape {shape}")
    letter = np.dtype(labels.dtype).kind
    axes = 1 if single else axes_of_labels(labels, shape)
    if axes == 1 and letter not in "iu":
        hint = input_hints.of_shape(labels.shape, labels)
        raise InvalidDataError(
            f"{name}: labels must be integers 0..K−1 (−1: not yet known), not {labels.dtype}"
            + (hint or "; convert them with numpy.asarray(labels, int)")
        )
    _check_lengths(kind, shape[0], labels, covariates, weights, name, axes)
    return shape[0]


def _check_lengths(
    kind: str, rows: int, labels: Any, covariates: Any, weights: Any, name: str, axes: int = 1
) -> None:
    """Check that columns have a row for each prediction, and labels so many axes."""
    for role, column, dims in (
        ("labels", labels, (axes,)),
        ("covariates", covariates, (1, 2)),
        ("weights", weights, (1,)),
    ):
        if column is None:
            continue
        shape = tuple(column.shape)
        if len(shape) not in dims:
            expected = f"({rows}, d)" if 2 in dims else f"({rows},)"
            hint = ""
            if role == "labels" and kind != "predictions":
                hint = input_hints.of_shape(shape, column)
            raise InvalidDataError(f"{name}: {role} must be {expected}, not of shape {shape}{hint}")
        if int(shape[0]) != rows:
            raise InvalidDataError(f"{name}: {rows} rows of {kind}, but {int(shape[0])} of {role}")
    if rows == 0:
        raise NoRowsError(f"{name}: there are no rows")
