"""Calibration errors of arrays, one function for each estimator: ``ece(y_true, y_prob)``.

The functions are made from the registry of estimators, with the settings as keywords.  They are
scores of scikit-learn:

>>> from sklearn.metrics import make_scorer
>>> from calibscale.metrics import ece
>>> scorer = make_scorer(ece, response_method="predict_proba", greater_is_better=False)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from textwrap import indent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.array_layouts import BFLOAT16_SPACING, as_numpy, is_bfloat16
from calibscale.data.arrays import from_arrays
from calibscale.data.call_hints import seem_exchanged
from calibscale.data.label_values import WORDS, distinct_values, label_values, pieces_of
from calibscale.data.named_values import encoded
from calibscale.data.percentages import hint_of_texts, shares
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.estimators.known_estimators import ESTIMATORS, LOCAL, named
from calibscale.estimators.settings import build, hint, settings_of
from calibscale.estimators.skce import KLCE, SKCE
from calibscale.evaluation.evaluate import evaluate
from calibscale.formatting.lists import leading_values
from calibscale.kernels.features import RandomFourier
from calibscale.predictions import input_hints
from calibscale.predictions.claims import CLASSES, includes
from calibscale.session import Session

_NAMES = [n for n in ESTIMATORS.built_in if includes(ESTIMATORS[n].judges, CLASSES)]
__all__ = sorted(["skce", *_NAMES])

_ROWS = """\
y_true : (n,) array-like
    Labels: texts, booleans or numbers.  Rows whose label is None or NaN are skipped.
y_prob : (n,) or (n, K) array-like
    Probability of the positive class, which is the second of two; or probabilities of all classes,
    a column each.
labels : sequence, optional
    Classes in the order of the columns of `y_prob`, such as ``model.classes_``.  Default: the names
    of the columns of a data frame if `y_true` has no others, else the sorted distinct labels; if
    these are fewer than K, integers from 0 are numbers of columns.
sample_weight : (n,) array-like, optional
    Importance weights; see `calibscale.from_arrays`."""
_MEANING = """\
positive : optional
    Label of the event of two classes, in place of `labels`.
percent : bool
    Whether probabilities are in percent, such as 90 or ``"90%"``."""
_COVARIATES = """\
covariates : (n, d) array-like or data frame, or (n,){}
    Numbers or texts.  Names are those of the columns of a data frame, else ``x0, x1, …``."""
_OPTIONS = {"on_invalid": "raise", "tolerance": None}  # with the meaning in `Session.open`
_COLUMNS = {"probabilities": ("y_prob",), "labels": ("y_true",), "weights": ("sample_weight",)}
_DOCUMENTATION = """\
{summary}

Parameters
----------
{parameters}

Returns
-------
float
    Value of `calibscale.{kind}`; NaN where it is undefined, such as for too few rows.

Raises
------
OptionError
    If a setting is impossible, or `labels` does not match the columns.
InvalidDataError
    If a row is invalid, or a label is not among `labels`.

See Also
--------
calibscale.evaluate : many estimators in one pass, with intervals, of data of any size.

Examples
--------
>>> import calibscale
>>> from calibscale.metrics import {name}
>>> y, p = ["no", "yes", "yes", "no"] * 25, [0.2, 0.9, 0.3, 0.6] * 25{more}
>>> value = {name}(y, p{argument})
>>> source = calibscale.from_arrays(
...     probabilities=p, labels=y, class_names=["no", "yes"], binary=True{argument}
... )
>>> value == calibscale.evaluate(source, calibscale.{kind}({names}))["{name}"].value
True
"""


def _metric(name: str) -> Callable[..., float]:
    """Function of arrays that returns the value of an estimator."""
    form = "klce" if name == "skce" else name  # forms of one estimator, with the same settings
    settings = settings_of(form)
    options = {option: default for option, default in _OPTIONS.items() if option not in settings}
    on_covariates = not settings.keys().isdisjoint(("covariates", "conditional_on"))
    defaults: dict[str, Any] = {"labels": None, "sample_weight": None}
    defaults |= {"covariates": None} if on_covariates else {}
    defaults |= {key: setting.default for key, setting in settings.items() if key not in defaults}
    defaults |= {**options, "positive": None, "percent": False}

    def metric(y_true: Any, y_prob: Any, **given: Any) -> float:
        for key in given:
            if key not in defaults:
                raise TypeError(f"{name}() has no parameter {key!r}; {hint(key, defaults)}")
        arguments = ("labels", "sample_weight", "covariates", "positive", "percent")
        rows = {key: given.pop(key, None) for key in arguments}
        rules = {option: given.pop(option, defaults[option]) for option in options}
        source = _source(y_true, y_prob, **rows)
        if "covariates" in settings:
            if name in LOCAL and rows["covariates"] is None:
                kce = "; without covariates it is kce" if name == "klce" else ""
                raise OptionError(f"{name} needs covariates={kce}")
            # Estimators take the names of covariates.  The arrays are columns of the source.
            given["covariates"] = source.covariate_names
        # Settings are Python numbers, and callers may pass numbers of NumPy.
        chosen = {key: v.tolist() if hasattr(v, "tolist") else v for key, v in given.items()}
        # Without a noise floor, which would draw labels and is not returned.
        (estimate,) = evaluate(source, build(form, chosen), floor=False, **rules).estimates
        return float("nan") if estimate.value is None else float(estimate.value)

    # Names as in scikit-learn, which passes both by position.
    of_arrays = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(key, of_arrays) for key in ("y_true", "y_prob")]
    for key, default in defaults.items():
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default))
    metric.__signature__ = inspect.Signature(parameters, return_annotation=float)  # type: ignore[attr-defined]
    metric.__name__ = metric.__qualname__ = name
    metric.__doc__ = _documentation(name, form, on_covariates, [*defaults])
    return metric


def _source(
    y_true: Any,
    y_prob: Any,
    labels: Any,
    sample_weight: Any,
    covariates: Any,
    positive: Any,
    percent: bool | None,
) -> ArraySource:
    """Source of arrays of any library in memory."""
    if seem_exchanged(y_true, y_prob):
        raise InvalidDataError(
            "y_true has the probabilities, and y_prob the labels: exchange them, as in ece(y, p)"
        )
    p = as_numpy(y_prob, "y_prob")
    if percent:
        p = shares(p, 0, "y_prob")
    if p.dtype.kind in "iubOUT":
        try:
            p = p.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidDataError(f"y_prob must be numbers{hint_of_texts(p)}: {error}") from error
    # One column is the probability of the positive class.
    p = p[:, 0] if p.ndim == 2 and p.shape[1] == 1 else p
    columns = getattr(y_prob, "column_names", getattr(y_prob, "columns", None))
    source = from_arrays(
        probabilities=p,
        labels=_positions(y_true, labels, positive, p.shape[1] if p.ndim == 2 else 2, columns),
        ignore_index=-1,
        covariates=covariates,
        weights=None if sample_weight is None else as_numpy(sample_weight, "sample_weight"),
        name="y_prob",
    )
    spacing = BFLOAT16_SPACING if is_bfloat16(y_prob) else source.spacing
    return replace(source, spacing=spacing, columns=_COLUMNS)


def _positions(
    y_true: Any, labels: Any, positive: Any, classes: int, columns: Any
) -> NDArray[np.int64]:
    """Column of each label (n,), −1 for None and NaN."""
    y = as_numpy(y_true, "y_true")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise InvalidDataError(
            f"y_true must be (n,), not of shape {y.shape}" + input_hints.of_shape(y.shape, y)
        )
    if positive is not None:
        require(labels is None, "give only one of positive= and labels=")
        meaning = label_values(pieces_of(y), classes, "y_true", positive=positive)
        return meaning.numbers(y, 0, "row {} of y_true".format)
    # Words such as yes and no have a meaning, whatever their alphabetical order.
    if y.dtype.kind in "OUT" and labels is None and classes == 2 and _are_words(y):
        return label_values(pieces_of(y), 2, "y_true").numbers(y, 0, "row {} of y_true".format)
    codes, names = encoded(y, "y_true", labels)
    if labels is None and columns is not None and set(names) <= set(columns):
        # Names of columns that contain all labels are the classes, in the order of the columns.
        codes, names = encoded(y, "y_true", list(columns))
    if len(names) == classes or not len(y):
        return codes
    # Fewer labels are numbers of columns, unless they may be counted from 1.
    are_positions = set(names) <= set(range(classes)) and (classes == 2 or 0 in names)
    if labels is not None or not are_positions:
        argument = "y_true" if labels is None else "labels="
        raise OptionError(
            f"{argument} has {len(names)} different values ({leading_values(names, 5)}), but "
            f"y_prob {classes} classes; name the classes in the order of the columns: "
            "labels=model.classes_"
        )
    return np.array([*names, -1], np.int64)[codes]


def _are_words(labels: NDArray[Any]) -> bool:
    """Whether labels are words of an event in any case, such as ``Yes`` and ``no``."""
    return {*distinct_values(labels)} <= WORDS.keys()


# ---------------------------------------------------------------- Documentation


def _sections(kind: Any) -> tuple[str, str]:
    """Text of a class or function before its first section, and its section of parameters."""
    text = re.split(r"\n\n(\w+(?: \w+)*)\n-+\n", inspect.cleandoc(kind.__doc__ or ""))
    return text[0], dict(zip(text[1::2], text[2::2], strict=True)).get("Parameters", "")


def _described(*kinds: Any) -> dict[str, str]:
    """Description of each parameter.  Later classes take precedence."""
    described = {}
    for kind in kinds:
        for entry in re.split(r"\n(?=\S)", _sections(kind)[1]):
            heading, _, text = entry.partition("\n")
            names, _, declared = heading.partition(" : ")
            for name in names.split(", "):
                described[name] = f"{name} : {declared}\n{text}".rstrip()
    return described


def _documentation(name: str, form: str, on_covariates: bool, parameters: list[str]) -> str:
    kind = SKCE if name == "skce" else ESTIMATORS[name]
    # Later classes replace earlier descriptions: the estimator itself comes last.
    described = _described(RandomFourier, KLCE, Session.open, *reversed(ESTIMATORS[form].__mro__))
    described["features"] = _described(RandomFourier)["n_features"].replace("n_", "", 1)
    local = name in LOCAL
    listed = [_ROWS]
    if on_covariates:
        listed.append(_COVARIATES.format("" if local else ", optional"))
    described_above = ("labels", "sample_weight", "covariates", "positive", "percent")
    listed += [described[key] for key in parameters if key not in described_above]
    listed.append(_MEANING)
    text = _DOCUMENTATION.format(
        summary=_sections(kind)[0],
        parameters="\n".join(listed),
        kind=kind.__name__,
        name=name,
        more='\n>>> x = ["north", "south"] * 50' if local else "",
        argument=", covariates=x" if local else "",
        names='("x0",)' if local else "",
    )
    return indent(text, "    ").lstrip()


globals().update({name: _metric(name) for name in __all__})


def __getattr__(name: str) -> Callable[..., float]:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        metric_name, settings = named(name)
    except OptionError as error:
        raise AttributeError(f"calibscale.metrics has no {name!r}: {error}") from None
    if metric_name not in __all__:
        kind = "of another package"
        if metric_name in ESTIMATORS.built_in:
            kind = "for predictive distributions"
        explanation = f"{metric_name} is {kind}: use calibscale.evaluate"
        raise AttributeError(f"calibscale.metrics has no {name!r}: {explanation}")
    # A synonym may stand for an estimator with settings, such as `ece` with edges="sweep".
    listed = "".join(f", {key}={value!r}" for key, value in settings.items())
    raise AttributeError(
        f"calibscale.metrics has no {name!r}; use {metric_name}(y_true, y_prob{listed})"
    )
