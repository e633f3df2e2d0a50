"""Base classes of recalibration methods, of their fits, and of their refits."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, TypeVar, Unpack

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from calibscale.array_types import Floats
from calibscale.compiled import random_draws as kernel_draws
from calibscale.data.derived_sources import left_out
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.inference.testable import has_centred_null
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES, includes
from calibscale.recalibration.logit_maps import LogitMap
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.sql_expressions import SQLScore
from calibscale.results.declarations import as_json
from calibscale.results.schemas.malformed import message_of
from calibscale.session import Session, SessionOptions, unsuitable, verb
from calibscale.statistics.label_table import LabelTable
from calibscale.statistics.null_distributions import Null, TestedEstimator
from calibscale.statistics.one_pass import PassResult

# One pass over the rows: statistics, covariates= that they need, and the covariate optional= of
# groups, which may be missing in a row.
Read = Callable[..., PassResult]


# ---------------------------------------------------------------- Files


_T = TypeVar("_T")
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e150)]  # its square is finite
# Null stands for a number that is not finite, such as the log loss of a certain row that was wrong.
Measured = NonNegative | None


class StoredFit(BaseModel):
    """State of a fit in a file: types, lengths and ranges, checked before arrays are made."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def read(cls, state: dict[str, Any]) -> Self:
        """State from a JSON object.  An OptionError names the first malformed value."""
        stored = read_json(TypeAdapter(cls), state, "state")
        require_keys(state, stored.model_dump(mode="json"), "state")
        return stored


def read_json(adapter: TypeAdapter[_T], value: dict[str, Any], where: str) -> _T:
    """Value of a type from a JSON object.  An OptionError names the first malformed value."""
    try:
        return adapter.validate_json(json.dumps(value))  # in this mode, lists are also tuples
    except ValidationError as error:
        raise OptionError(message_of(error, where)) from error


def require_keys(value: Any, complete: Any, where: str) -> None:
    """Require every key of a complete JSON value, because a fit may differ from a default."""
    if isinstance(value, list):
        for i, (item, template) in enumerate(zip(value, complete, strict=True)):
            require_keys(item, template, f"{where}[{i}]")
    elif isinstance(value, dict):
        for key, template in complete.items():
            require(key in value, f"{where} has no {key!r}")
            require_keys(value[key], template, f"{where}.{key}")


def increasing(values: Sequence[float], strictly: bool = True) -> bool:
    """Whether numbers are in increasing order."""
    if strictly:
        return all(a < b for a, b in pairwise(values))
    return all(a <= b for a, b in pairwise(values))


def short_of_certainty(corrected: Floats, original: Floats, rows: int) -> Floats:
    """Corrected probabilities, clipped so that no correction makes a prediction certain.

    A correction that `rows` rows support leaves at least 1/(rows + 2) to either label, which is
    Laplace's rule of succession for an event that none of them has, or what the original
    prediction left to it if that was less.
    """
    least = 1.0 / (rows + 2.0)
    return np.clip(corrected, np.minimum(original, least), np.maximum(original, 1.0 - least))


# ---------------------------------------------------------------- Methods and fits


@dataclass(frozen=True)
class RecalibrationMethod(ABC):
    """Method of recalibration, with its settings as fields."""

    name: ClassVar[str]
    judges: ClassVar[tuple[str, ...]] = (CLASSES,)  # claims of the predictions that it maps
    two_classes: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    needs_settings: ClassVar[bool] = False  # whether a name alone is not enough for a fit
    # Rules of settings in files.  Pydantic reads this attribute of a dataclass.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False
    )

    def check_classes(self, classes: int) -> None:
        """Raise an OptionError if the method is not for this number of classes."""
        reason = self.unsuitable_with_settings(classes)
        if reason is not None:
            raise OptionError(f"{self.name} {reason}")

    def unsuitable_with_settings(self, classes: int) -> str | None:
        """`unsuitable`, with the settings of the method instead of its default settings."""
        return self.unsuitable(classes)

    @classmethod
    def unsuitable(cls, classes: int) -> str | None:
        """Why the method is not for this number of classes, after its name, or None if it is."""
        if not includes(cls.judges, CLASSES):
            return "is not for classes"
        if cls.two_classes and classes != 2:
            return f"is for two classes; there are {classes}. Temperature is for any number"
        return None

    def check_source(self, source: ArraySource) -> None:
        """Raise an OptionError if the method is not for the predictions of a source."""
        if not includes(self.judges, source.target.claim):
            raise unsuitable(self.name, source, self.judges)
        self.check_weights(source)
        if source.target.has_classes:
            source.need_integer_labels(self.name)
            self.check_classes(source.classes)

    @classmethod
    def check_weights(cls, source: ArraySource) -> None:
        """Raise an OptionError if rows have weights, which the method does not take."""
        if source.weights is not None and not cls.takes_weights:
            raise OptionError(
                f"{cls.name}: rows with weights are not exchangeable with new rows, so that its "
                "guarantee does not hold; leave the weights out"
            )

    @classmethod
    def of_settings(cls, settings: dict[str, Any]) -> Self:
        """Method of a stored fit, with the settings that it had if they were not stored."""
        method = read_json(TypeAdapter(cls), settings, "settings")
        require_keys(settings, asdict(method), "settings")
        return method

    @verb
    def fit(
        self,
        source: Any,
        near: FittedRecalibrator | None = None,
        **options: Unpack[SessionOptions],
    ) -> FittedRecalibrator:
        """Fit to the labelled rows of a source in a few passes.

        Parameters
        ----------
        source, **options
            See `calibscale.evaluate`.  A part of a source, see `part_of`, is accepted too.
        near : FittedRecalibrator, optional
            Fit of the same method to most of the same rows, such as all rows of which these are
            half.  A search starts there and ends with an error far below the standard errors, which
            is enough to judge a method and takes fewer passes.

        Raises
        ------
        InvalidDataError
            At the first invalid row.
        OptionError
            If the method or a setting does not suit the data, all labels are of one class, or the
            data do not determine the fit.
        StoreError
            If the source cannot be read.
        """
        with Session.open(source, **options) as session:
            data = session.source
            self.check_source(data)
            labels = LabelTable()
            counted = (labels,) if data.target.has_classes else ()

            def read(
                *statistics: Any, covariates: tuple[str, ...] = (), optional: str | None = None
            ) -> PassResult:
                result = session.scan(
                    (*statistics, *counted), covariates=covariates, optional=optional
                )
                if not result.counts.used:
                    raise OptionError(
                        f"{data.name}: there is no labelled row with a positive weight to fit to"
                    )
                if not counted:
                    return result
                # Every pass counts the labels, so that labels of one class are refused without a
                # pass of their own.
                seen = np.flatnonzero(result.groups[None][labels].counts.sum(axis=0))
                if len(seen) == 1:
                    (label,) = seen
                    name = str(label)
                    if data.class_names is not None:
                        name = f"“{data.class_names[label]}”"
                    raise OptionError(
                        f"{data.name}: all labels are equal ({name} in {result.counts.used:,} "
                        f"rows), which says nothing of how often other classes occur, so that "
                        f"{self.name} is not fitted; fit to rows of two classes or more"
                    )
                return result

            if near is None:
                fitted = self._fit(session.profile, read)
            else:
                fitted = self._fit_near(session.profile, read, near)
        counts = fitted.counts
        # Rows outside of the part are hidden as unlabelled rows, and are no part of the fit.
        counts = counts._replace(unlabelled=counts.unlabelled - left_out(data))
        return replace(
            fitted, counts=counts, source=data.describe(), tolerance=session.rules.tolerance
        )

    @classmethod
    @abstractmethod
    def fit_class(cls) -> type[FittedRecalibrator]:
        """Class of the fits, by which a stored fit is restored."""

    @abstractmethod
    def _fit(self, setup: DataProfile, read: Read) -> FittedRecalibrator:
        """Fit by one or more passes."""

    def _fit_near(
        self, setup: DataProfile, read: Read, near: FittedRecalibrator
    ) -> FittedRecalibrator:
        """Fit that may start at the fit to most of the same rows, see `fit`."""
        return self._fit(setup, read)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedRecalibrator(ABC):
    """Fitted recalibration, small enough to be sent to workers.

    `classes` is the number K of classes, or 0 of predictions without classes.

    `counts` are the numbers of rows of the fit, of rows not yet labelled, and of dropped rows by
    reason.  `passes` is the number of passes over the rows.  `source` describes the source of the
    fit.  `tolerance` is the allowed deviation from 1 of the sum of a row to be recalibrated.
    `loss_of_rows` is the mean log loss of the rows of the fit after recalibration, if the last pass
    has it to all digits.  It is not stored.
    """

    method: RecalibrationMethod
    classes: int
    counts: RowCounts
    passes: int
    notes: tuple[str, ...] = ()
    source: dict[str, Any] | None = None
    tolerance: float = 1e-4
    loss_of_rows: float | None = None
    stored: ClassVar[type[StoredFit]]
    parts: ClassVar[str] = "bins"  # what rows may have here and not in a fit to fewer rows

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates that a row's probabilities depend on."""
        return getattr(self.method, "covariates", ())

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Fitted parameters, as JSON values."""

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors of parameters, robust to a misspecified model [White 1982]."""
        return {}

    @property
    def state(self) -> dict[str, Any]:
        """JSON values of the fields that a class adds, from which `restored` makes the fit."""
        common = {entry.name for entry in fields(FittedRecalibrator)}
        names = (entry.name for entry in fields(self) if entry.name not in common)
        return as_json({name: getattr(self, name) for name in names})

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        """Fit with a `state`, and the fields of all fits."""
        stored = cls.stored.read(state)
        values = {name: getattr(stored, name) for name in cls.stored.model_fields}
        # Lists of JSON are arrays in fits.
        common |= {k: np.array(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**common)

    @abstractmethod
    def predictions(self, chunk: Chunk) -> Floats:
        """Recalibrated predictions of valid rows: probabilities (c, K), or values (c, columns).

        The covariates of the chunk have the columns `covariates`.
        """

    def intervals(self, chunk: Chunk) -> Floats:
        """Limits of P(y = 1), or for many classes of the predicted class, of valid rows (c, 2).

        An OptionError is raised without limits.
        """
        raise OptionError(
            f"{self.method.name} has no interval of a probability: fit venn_abers or histogram, "
            "or top_label_histogram for three classes or more"
        )

    def sql(self, score: SQLScore) -> str:
        """SQL expression of the recalibrated P(y = 1).  An OptionError is raised without one."""
        raise OptionError(f"{self.method.name} is no formula of one probability")

    @property
    def keeps_order(self) -> bool:
        """Whether P(y = 1) of two classes is mapped by an increasing function, without steps."""
        return False

    def share_unlike(self, other: Self) -> float:
        """Share of the rows of this fit for which a fit to fewer rows lacks the `parts`."""
        return 0.0

    @property
    def logit_map(self) -> LogitMap:
        """The recalibration as a linear map of logits.  An OptionError is raised for other maps."""
        raise OptionError(
            f"{self.method.name} is no linear map of logits: identity, temperature, platt, vector, "
            "matrix, dirichlet and structured are"
        )

    def onnx(self, score: OnnxScore) -> str:
        """Recalibrated probabilities, as a value of an ONNX graph.

        An OptionError is raised if the map is no formula of probabilities.
        """
        raise OptionError(f"{self.method.name} is no formula of probabilities, as ONNX needs it")

    @property
    def summary(self) -> dict[str, Any]:
        """Method, settings and fitted parameters, as JSON values."""
        settings, parameters = asdict(self.method), self.parameters
        return as_json({"method": self.method.name, "settings": settings, "parameters": parameters})

    def to_dict(self) -> dict[str, Any]:
        """A JSON object: `summary`, counts of the rows of the fit, and notes."""
        return as_json(
            {
                **self.summary,
                "n": self.counts.used,
                "n_unlabelled": self.counts.unlabelled,
                "n_dropped": sum(self.counts.dropped.values()),
                "dropped": self.counts.dropped,
                "passes": self.passes,
                "source": self.source,
                "notes": list(self.notes),
            }
        )


# ---------------------------------------------------------------- Refits


DRAWN = 2**21  # numbers of replicates in memory at once: 16 MB


@dataclass(frozen=True)
class Refits(Null):
    """Null with replicates that have the predictions of a refitted method.

    Replicate b of a row is (m_b(p), y*_b), with y*_b drawn from the recalibrated prediction (see
    `refits_of` for isotonic regression) and m_b refitted to labels of the fitting rows drawn in the
    same way.  A draw depends on (seed, row, replicate) only, and a refit on (seed, replicate) and
    the fitting rows only.  `note` is a limitation of the p-value, `columns` the number of columns
    of `carried`.
    """

    note: str | None = field(default=None, compare=False)
    max_replicates: int = 0
    columns: ClassVar[int] = 1
    name: ClassVar[str] = "refit"
    moves: ClassVar[bool] = True

    def unsupported(self, estimator: TestedEstimator) -> str | None:
        local = estimator.covariates and has_centred_null(estimator)
        return None if local else "null='refit' is only for klce with at least one covariate"

    @abstractmethod
    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        """Columns (c, columns) of a chunk that refits read as the last covariates.

        The chunk is not recalibrated.  `q` (c, K) are its recalibrated probabilities.
        """

    @abstractmethod
    def _versions(self, carried: Floats, p: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        """Probabilities that events are drawn with (c,), and predictions of the refits (B, c)."""

    def moved(self, notion: str, rows: NotionRows, first: int, last: int) -> Iterator[NotionRows]:
        """Rows of replicates first..last−1, one replicate after another."""
        carried = rows.covariates[:, -self.columns :]
        starts = np.zeros(len(rows))
        # A batch of replicates is as large as the memory allows.
        step = max(2, DRAWN // max(1, len(rows)) // 2 * 2)
        for low in range(first, last, step):
            high = min(last, low + step)
            base, refitted = self._versions(carried, rows.points[:, 0], low, high)
            delta = np.empty((high - low, len(rows)))
            kernel_draws.events(np.uint64(self.seed), rows.rows, base, starts, low, delta)
            # `events` gives base − y*, which becomes refitted − y*, the residual of the refitted
            # prediction.
            delta += refitted - base
            for p, d in zip(refitted, delta, strict=True):
                yield self._row(notion, rows, p, d)

    def _row(self, notion: str, rows: NotionRows, p: Floats, delta: Floats) -> NotionRows:
        return NotionRows(p[:, None], delta[:, None], *rows[2:])
