"""Sources of the predictions of several models for the same rows, and of probabilities as means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from calibscale.array_types import Bools
from calibscale.compiled import scored_rows
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.predictions.blocks import Block
from calibscale.predictions.functionals.functional import Functional
from calibscale.predictions.functionals.means import MeanPrediction
from calibscale.predictions.invalid_rows import first_fault

# ---------------------------------------------------------------- probabilities as means


@dataclass(frozen=True, eq=False, repr=False)
class _EventMeans(DerivedSource):
    """Probabilities of class 1 of two as predictions of the mean of the event, which is 0 or 1."""

    def _changed(self, block: Block) -> Block:
        # Rows are judged by the rules of probabilities.  Those of means would accept a 1.2.
        rules = self.before.rules()
        chunk, status = rules.target.read(block, rules)
        with np.errstate(invalid="ignore"):  # invalid rows have any numbers
            p = np.ascontiguousarray(chunk.q[:, 1])  # without δ, which needs valid labels
            happened = chunk.positive.astype(np.float64)
        invalid = status > scored_rows.UNLABELLED
        p[invalid] = np.nan
        happened[status != scored_rows.OK] = np.nan
        faults = {}
        if invalid.any():  # an error names the first invalid row alone
            row, fault = first_fault(block, rules, status)
            faults[row] = fault
        return block._replace(values=p, labels=happened, faults=faults)


def functional_source(source: ArraySource, user: str) -> ArraySource:
    """Source of predictions of a functional: the source itself, or the mean of an event.

    Probabilities of two classes predict the mean of the event, which is 0 or 1.  An OptionError
    with the name of the function `user` is raised for other predictions.
    """
    target = source.target
    if isinstance(target, Functional):
        return source
    if target.has_classes and target.n_features == 2:
        source.need_integer_labels(user)
        mean = MeanPrediction()
        return _EventMeans.of(
            source, kind=mean.name, forecast=mean, binary=False, class_names=None, columns={}
        )
    words = f"probabilities of {target.in_words}" if target.has_classes else target.in_words
    raise OptionError(
        f"{user} is for predictions of a functional, such as from_arrays(predictions=x, "
        f"forecast='mean', labels=y), and for probabilities of two classes; {source.name} has "
        f"{words}"
    )


# ---------------------------------------------------------------- several models


@dataclass(frozen=True, eq=False, repr=False)
class _Joined(DerivedSource):
    """Rows of a first model, with the predictions of the other models as their only covariates.

    A row without a label in one of the models is unlabelled.
    """

    others: tuple[ArraySource, ...] = field(kw_only=True)

    @property
    def in_memory(self) -> bool:
        return any(source.in_memory for source in (self.before, *self.others))

    @property
    def row_bytes(self) -> int:
        return sum(source.row_bytes for source in (self.before, *self.others))

    def describe(self) -> dict[str, Any]:
        return {**self.before.describe(), "name": self.name}

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        others = tuple(other.part(start, stop) for other in self.others)
        return replace(super().part(start, stop), others=others)

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        block = self.before.read(start, stop)
        values = block.values.astype(np.float64).reshape(len(block.labels), -1)
        # Unlabelled rows are NaN in every model, as outcomes of functionals are floats.
        labels = block.labels.astype(np.float64)
        faults = dict(block.faults)
        predictions = []
        for other in self.others:
            second = other.read(start, stop)
            self._check_rows(block, labels, second)
            x = second.values.astype(np.float64).reshape(len(labels), -1)
            y = second.labels.astype(np.float64)
            target: Any = other.target
            status = target.status(x, y)
            # A prediction that is invalid in one model makes the row invalid for all of them.
            invalid = status > scored_rows.UNLABELLED
            values[invalid] = np.nan
            for i in np.flatnonzero(invalid)[:1]:  # an error names the first row alone
                fault = second.faults.get(block.start + int(i)) or _fault(target, x[i], y[i])
                faults.setdefault(block.start + int(i), f"in {other.name}, {fault}")
            # A score of one model without that of the others could not be paired.
            labels = np.where(np.isnan(y), np.nan, labels)
            predictions.append(x[:, 0])
        columns = np.column_stack(predictions) if covariates else None
        return block._replace(
            values=values, labels=labels, covariates=columns, faults=faults, name=self.name
        )

    def _check_rows(self, block: Block, labels: Any, second: Block) -> None:
        """Raise an InvalidDataError if two models have different labels or weights of a row."""
        own, others = _of_one_precision(labels, second.labels.astype(np.float64), block, second)
        _refuse_differences(block, second, "label", own, others)
        if block.weights is not None and second.weights is not None:
            _refuse_differences(block, second, "weight", block.weights, second.weights)


def _of_one_precision(a: Any, b: Any, block: Block, second: Block) -> tuple[Any, Any]:
    """Labels of two blocks in the narrower of their types, in which equal numbers are equal."""
    types = block.labels.dtype, second.labels.dtype
    if any(dtype.kind != "f" for dtype in types):
        return a, b
    narrower = min(types, key=lambda dtype: dtype.itemsize)
    return a.astype(narrower), b.astype(narrower)


def _refuse_differences(block: Block, second: Block, noun: str, a: Any, b: Any) -> None:
    """Raise an InvalidDataError for the first row with two numbers (c,) that are not equal."""
    # NaN is a missing label, which the other model may know.
    differ: Bools = (a != b) & ~np.isnan(a) & ~np.isnan(b)
    if differ.any():
        i = int(np.argmax(differ))
        row = block.start + i
        raise InvalidDataError(
            f"row {row} has the {noun} {float(a[i])} in {block.name}, and {float(b[i])} in "
            f"{second.name}: "
            "the models need the same rows, in the same order",
            row,
        )


def _fault(target: Any, values: Any, y: Any) -> str:
    """What is wrong with a row of a model, as the end of a sentence."""
    if not np.isfinite(values).all():
        return f"its prediction is {values[0]:g}, not a finite number"
    reason = int(target.status(values[None], np.array([y]))[0])
    return str(target.explained(reason, values, float(y)))


def joined(models: Mapping[str, ArraySource]) -> ArraySource:
    """Source of the rows that several models of one functional share.

    Predictions are those of the first model.  The covariates are the predictions of the others, in
    their order, and have the names of these models.

    Raises
    ------
    OptionError
        If the models predict different functionals, have different numbers of rows, or are
        weighted in part.
    InvalidDataError
        On reading, if a row has different labels or weights in two models.
    """
    first, *others = models.values()
    # Errors name the model of a row, and not its file, which both models may share.
    named = {
        name: replace(source, name=name) if len(models) > 1 else source
        for name, source in models.items()
    }
    for name, source in list(named.items())[1:]:
        same = source.target.described == first.target.described
        if not same:
            kinds = ", ".join(f"{n}: {s.target.described['forecast']}" for n, s in named.items())
            raise OptionError(f"the models predict different functionals ({kinds})")
        lead = next(iter(named))
        require(
            source.rows == first.rows,
            f"{name} has {source.rows:,} rows and {lead} has {first.rows:,}: the models need the "
            "same rows, in the same order",
        )
        both = (source.weights is None) == (first.weights is None)
        require(both, f"one of {lead} and {name} has weights: give both models the same weights")
    if not others:
        return first
    lead_source, *rest = named.values()
    # Covariates of the models make way for the predictions of the others.
    return _Joined.of(
        lead_source,
        others=tuple(rest),
        covariates=None,
        covariate_names=tuple(named)[1:],
        categories={},
        times={},
        name=" and ".join(named),
    )
