"""Sources of several labels for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibscale.data.array_layouts import as_numpy
from calibscale.data.source import ArraySource, from_arrays
from calibscale.errors import InvalidDataError, OptionError


def from_multilabel(
    *,
    probabilities: Any = None,
    logits: Any = None,
    labels: Any,
    label_names: Sequence[Any] | None = None,
    weights: Any = None,
    name: str = "arrays",
) -> ArraySource:
    """Describe predictions of L labels, each of which is true or false, for each of n examples.

    The source has a row for each label of each example, n·L in all, and the name of the label as
    the covariate ``label``: with ``group_by="label"`` each label is evaluated by itself, and all of
    them together.

    Parameters
    ----------
    probabilities, logits : (n, L) array-like
        Exactly one of the two, in memory: P(label = 1) or its log-odds.
    labels : (n, L) array-like of 0 and 1, or booleans
        −1 or NaN where a label is not known.
    label_names : L names, optional
        Default: 0, 1, …
    weights : (n,) array-like, optional
        Importance weights of the examples; see `from_arrays`.
    name : str
        Name of the source in errors and results.

    Returns
    -------
    ArraySource

    Raises
    ------
    OptionError
        If both or neither of `logits` and `probabilities` are given, or names do not match.
    InvalidDataError
        If shapes or types are impossible.

    Notes
    -----
    Rows are ordered by label: row i + n·l is label l of example i.  Intervals and tests of all
    labels together treat the labels of an example as independent; those of one label do not need
    to.

    Examples
    --------
    >>> import calibscale
    >>> p = [[0.9, 0.2], [0.6, 0.4], [0.3, 0.1]]
    >>> y = [[1, 0], [0, 1], [0, 0]]
    >>> source = calibscale.from_multilabel(probabilities=p, labels=y, label_names=["cat", "dog"])
    >>> result = calibscale.evaluate(source, "brier", group_by="label")
    >>> {f"{label:g}": round(brier.value, 2) for label, (brier,) in result.groups.items()}
    {'cat': 0.31, 'dog': 0.27}
    """
    if (logits is None) == (probabilities is None):
        raise OptionError("give exactly one of logits= and probabilities=")
    p = as_numpy(probabilities if logits is None else logits)
    y = as_numpy(labels, "labels")
    if p.ndim != 2 or y.shape != p.shape:
        raise InvalidDataError(
            f"{name}: predictions and labels must both be (examples, labels), not of shapes "
            f"{p.shape} and {y.shape}"
        )
    n, count = p.shape
    names = tuple(map(str, range(count) if label_names is None else label_names))
    if len(set(names)) != count:
        raise OptionError(f"{count} labels need {count} distinct names, not {list(names)}")
    columns: dict[str, Any] = {"probabilities" if logits is None else "logits": p.T.reshape(-1)}
    source = from_arrays(
        **columns, labels=y.T.reshape(-1), covariates=np.repeat(np.arange(float(count)), n),
        weights=None if weights is None else np.tile(as_numpy(weights, "weights"), count),
        binary=True, covariate_names=["label"], name=name,
    )  # fmt: skip
    return replace(source, categories={"label": names})
