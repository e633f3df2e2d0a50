"""A fitted recalibration as a result, which is applied to arrays and stores, saved and loaded."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from calibscale.addresses import raise_from, shown_address
from calibscale.array_types import Floats
from calibscale.atomic_files import write_whole
from calibscale.data.array_layouts import as_numpy
from calibscale.data.arrays import from_arrays
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.data.store import LogitStore
from calibscale.engine.merge_tree import Progress
from calibscale.errors import InvalidDataError, OptionError, StoreError, require
from calibscale.evaluation.reliability import reliability
from calibscale.formatting.naming import short
from calibscale.predictions.blocks import Block, RowCounts
from calibscale.predictions.claims import CLASSES, FORECASTS, FUNCTIONALS, includes
from calibscale.predictions.invalid_rows import DROP_REMEDY
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks, valid_rows
from calibscale.recalibration.improvements import NOT_JUDGED, improvement_on
from calibscale.recalibration.method_registry import METHODS
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.recalibrated_sources import fingerprint_of, recalibrated
from calibscale.recalibration.recalibrator import FittedRecalibrator, read_json
from calibscale.recalibration.sql_expressions import SQLScore
from calibscale.results.audit_results import RecalibrationResult
from calibscale.results.declarations import as_json
from calibscale.results.evaluation_results import Reliability
from calibscale.results.schemas.malformed import message_of, require_plain
from calibscale.results.schemas.result_models import validated
from calibscale.session import Session, SessionOptions

_log = logging.getLogger(__name__)

DIAGRAMS = ("before", "after recalibration")


@dataclass(frozen=True, kw_only=True, repr=False)
class FittedRecalibration(RecalibrationResult):
    """Fitted recalibration: its numbers (see `RecalibrationResult`), and methods that apply it.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> p = np.repeat([0.1, 0.9], 500)
    >>> y = np.where(np.arange(1000) % 4 == 0, p < 0.5, p > 0.5).astype(int)
    >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
    >>> calibscale.recalibrate(source).transform(np.array([0.1, 0.5, 0.9])).round(6)
    array([0.25, 0.5 , 0.75])
    """

    @cached_property
    def fit(self) -> FittedRecalibrator:
        """Fit that computes the recalibrated probabilities of rows."""
        method = METHODS[self.method].of_settings(self.settings)
        return method.fit_class().restored(
            self.state,
            method=method,
            classes=self.source.get("classes", 0),
            passes=self.passes,
            notes=tuple(self.notes),
            counts=RowCounts(self.n, self.n_unlabelled, self.dropped),
            source=self.source,
            tolerance=self.parameters["tolerance"],
        )

    def transform(
        self,
        probabilities: Any = None,
        *,
        logits: Any = None,
        predictions: Any = None,
        covariates: Any = None,
    ) -> Floats:
        """Recalibrated predictions in memory, in their shape and in float64.

        Parameters
        ----------
        probabilities, logits : (n, K) or (n,) array-like
            Exactly one of the two for classes.  (n,) is P(y = 1) or its log-odds.
        predictions : (n, columns) array-like
            Predictions of the kind of the fit, such as means and standard deviations.
        covariates : (n, d) array-like or data frame, optional
            Covariates of the fit in its order.  Columns of a data frame are matched by name.

        Raises
        ------
        InvalidDataError, OptionError
            At the first invalid row, for another number of classes, or for a missing covariate.
        """
        for given in (probabilities, logits, predictions):
            if isinstance(given, ArraySource | LogitStore | str | Path):
                raise OptionError(
                    "transform takes an array; for a source or a store use apply(source)"
                )
        if "classes" not in self.source:
            of_classes = probabilities is not None or logits is not None
            if predictions is None or of_classes:
                raise OptionError(f"a fit of {self.source['kind']} needs predictions= alone")
            return self._moved(predictions, covariates)
        if (probabilities is None) == (logits is None) or predictions is not None:
            raise OptionError("give exactly one of probabilities= and logits=")
        kind = "probabilities" if logits is None else "logits"
        values = as_numpy(probabilities if logits is None else logits, kind)
        columns: dict[str, Any] = {kind: values}
        binary = values.ndim == 1 or values.shape[1:] == (1,)
        # A data frame names its columns.  An array has the order of the fit.
        named = covariates is None or hasattr(covariates, "columns")
        source = from_arrays(
            **columns,
            # Labels are required by sources, and have no effect on predictions.
            labels=np.zeros(len(values), np.int64),
            binary=binary,
            covariates=covariates,
            covariate_names=None if named else self.fit.covariates,
        )
        out = self._recalibrated(source)
        return out[:, 1].reshape(values.shape) if binary else out

    def _moved(self, predictions: Any, covariates: Any) -> Floats:
        """Recalibrated predictions of outcomes, see `transform`."""
        settings: dict[str, Any] = self.source["forecast"]
        forecast = forecast_of(self.source["kind"], **settings)
        values = as_numpy(predictions, "predictions")
        # No outcome is known, and none is needed.
        named = covariates is None or hasattr(covariates, "columns")
        source = from_arrays(
            predictions=values,
            forecast=forecast,
            labels=np.full(len(values), np.nan),
            covariates=covariates,
            covariate_names=None if named else self.fit.covariates,
        )
        return self._recalibrated(source).reshape(values.shape)

    def _recalibrated(self, source: ArraySource) -> Floats:
        """Recalibrated predictions of all rows of arrays."""
        data = recalibrated(source, self.fit)
        try:
            blocks = [b.values for b, _ in _valid(data, data.rules(tolerance=self.fit.tolerance))]
        except InvalidDataError as error:
            # Arrays have no option to drop rows.
            text = str(error).replace(DROP_REMEDY, "Fix the row, or leave it out.")
            raise InvalidDataError(text, error.row) from None
        return np.concatenate(blocks)

    def interval(self, probabilities: Any = None, *, logits: Any = None) -> Floats:
        """Interval of a recalibrated probability of predictions in memory.

        It is of P(y = 1) by ``venn_abers`` or ``histogram`` for two classes, and of the probability
        that the predicted class is right by ``top_label_histogram`` for more.

        Parameters
        ----------
        probabilities, logits : (n,) or (n, K) array-like
            Exactly one of the two, see `transform`.

        Returns
        -------
        (n, 2) array of float64
            Lower and upper limits.  Of ``venn_abers``, they are the values p0 and p1 of two
            isotonic regressions: with the new row as no event, and as an event.  The limit that
            belongs to the label is calibrated if the row is exchangeable with the rows of the fit
            [Vovk & Petej 2014].  Of ``histogram``, they are for the frequency of events among new
            rows in the bin of the prediction, and hold in all bins at once with probability 1 − α
            [Gupta & Ramdas 2021, with the limits of Clopper & Pearson 1934].  Of
            ``top_label_histogram``, they are for the frequency with which the predicted class is
            right among new rows with the same predicted class in the bin [Gupta & Ramdas 2022].

        Raises
        ------
        InvalidDataError, OptionError
            At the first invalid row, or if the method has no interval.

        Examples
        --------
        >>> import numpy as np, calibscale
        >>> p, y = np.repeat([0.2, 0.8], 8), np.arange(16) % 8 < np.repeat([2, 5], 8)
        >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
        >>> fitted = calibscale.recalibrate(source, "venn_abers")
        >>> fitted.interval([0.2, 0.8]).round(3)
        array([[0.222, 0.333],
               [0.556, 0.667]])
        """
        classes = self.fit.classes
        require(classes, f"{self.method} has no interval of a probability")
        if (probabilities is None) == (logits is None):
            raise OptionError("give exactly one of probabilities= and logits=")
        kind = "probabilities" if logits is None else "logits"
        values = as_numpy(probabilities if logits is None else logits, kind)
        arguments: dict[str, Any] = {kind: values, "labels": np.zeros(len(values), np.int64)}
        source = from_arrays(**arguments, binary=values.ndim == 1 or values.shape[1:] == (1,))
        require(
            source.classes == classes, f"the interval is of {classes:,} classes", source.classes
        )
        rules = source.rules(tolerance=self.fit.tolerance)
        limits = [np.empty((0, 2))]
        for low in range(0, source.rows, source.block_rows):
            block = source.read(low, min(low + source.block_rows, source.rows))
            limits += [self.fit.intervals(chunk) for chunk, _ in chunks(block, rules)]
        return np.concatenate(limits)

    def sql(self, column: str, *, logits: bool = False) -> str:
        """Recalibrated P(y = 1) as an SQL expression of a column, for use in a data warehouse.

        It has only arithmetic, CASE, EXP and LN, and is NULL where the column is.

        Parameters
        ----------
        column : str
            Column of P(y = 1), or another SQL expression, which is used as it is.
        logits : bool
            Whether the column has log-odds.

        Raises
        ------
        OptionError
            If the fit is not of two classes, or no formula of one probability: ``identity``,
            ``temperature``, ``platt``, ``beta``, ``spline``, ``isotonic`` and ``histogram`` are,
            and ``prior_shift`` after one of them.

        Examples
        --------
        >>> import numpy as np, calibscale
        >>> p = np.repeat([0.1, 0.9], 500)
        >>> y = np.where(np.arange(1000) % 4 == 0, p < 0.5, p > 0.5).astype(int)
        >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
        >>> calibscale.recalibrate(source, "isotonic").sql("p")[:17]
        'CASE WHEN (p) <= '
        """
        require(self.source.get("classes") == 2, "an SQL expression is of two classes")
        return self.fit.sql(SQLScore(column, logits))

    def to_onnx(
        self, path: str | Path | None = None, *, logits: bool = False, dtype: str = "float32"
    ) -> Any:
        """ONNX model of the recalibration, for serving, and write it to a file.

        Its input ``probabilities`` or ``logits`` is (rows, K), with both classes of two, and its
        output ``recalibrated`` has the probabilities (rows, K).  All arithmetic is in double
        precision.  The extra ``onnx`` is needed.

        Parameters
        ----------
        path : str or Path, optional
            File to write.
        logits : bool
            Whether the input has logits, which must be finite.  ``histogram`` and
            ``top_label_histogram`` of scores that repeat take probabilities only.
        dtype : {"float32", "float64"}
            Type of the input and of the output.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        OptionError
            If onnx is not installed, if bins of repeated scores would take logits, or if the fit is
            no formula of probabilities: ``identity``, ``temperature``, ``ensemble_temperature``,
            ``platt``, ``beta``, ``spline``, ``isotonic``, ``histogram``, ``vector``, ``matrix``,
            ``dirichlet``, ``structured`` and ``top_label_histogram`` are, and ``prior_shift`` after
            one of them.

        See Also
        --------
        sql : SQL expression of two classes.
        """
        classes = self.fit.classes
        require(classes, "an ONNX model is of classes")
        score = OnnxScore(classes, logits, dtype)
        description = f"{self.method}, fitted by calibscale to {self.n:,} rows"
        model = score.model(self.fit.onnx(score), description)
        if path is not None:
            write_whole(path, model.SerializeToString())
        return model

    def apply(self, source: Any) -> ArraySource:
        """Source with recalibrated predictions, computed when read, see `recalibrated`.

        A warning is logged if it has the rows of the fit, because estimates on them are too
        optimistic: fit and judge on the two parts of `calibscale.data.derived_sources.part_of`.
        """
        data = as_source(source)
        if fingerprint_of(data) == self.fingerprint:
            _log.warning(
                "%s: the recalibration was fitted to these rows, on which it looks better than on "
                "new rows; judge it on others",
                data.name,
            )
        return recalibrated(data, self.fit)

    def write(
        self,
        source: Any,
        url: str | Path,
        *,
        on_invalid: str = "raise",
        overwrite: bool = False,
        progress: Progress | None = None,
        dtype: Any = np.float64,
    ) -> LogitStore:
        """Write a source with recalibrated predictions to a new store, one block at a time.

        An interrupted run leaves an unfinished store, which the same call replaces.

        Parameters
        ----------
        source : path, URL, LogitStore or ArraySource
        url : path or fsspec URL of the new store
        on_invalid : {"raise", "drop"}
            Raise an error at the first invalid row, or leave such rows out.  ``dropped`` among the
            notes of the store has their numbers.
        overwrite : bool
            Whether to replace an existing store.
        progress : callable, optional
            Called with the number of rows read and the total number of rows.
        dtype : float16, float32 or float64
            Type of the stored probabilities.

        Raises
        ------
        InvalidDataError, OptionError, StoreError
            At the first invalid row, as `recalibrated`, or if the store exists or cannot be
            written.
        """
        data: Any = recalibrated(source, self.fit)
        rules, root = data.rules(on_invalid, self.fit.tolerance), data
        # The new store must not be the store that is being read, however derived.
        while isinstance(root, DerivedSource):
            root = root.before
        place = shown_address(url)
        if os.path.realpath(place) == os.path.realpath(root.name):
            raise OptionError(f"{place} is also read: write the recalibrated store elsewhere")
        provenance = {"recalibrated": data.describe()}
        with suppress(StoreError):
            begun = LogitStore.open(url, unfinished=True)
            # An unfinished store of the same call is the rest of an interrupted run.
            overwrite |= not begun.finished and begun.provenance == provenance
        kind: dict[str, Any] = {"classes": data.classes, "kind": "probabilities"}
        if not data.target.has_classes:
            shape = data.values.shape
            columns = shape[1] if len(shape) > 1 else 1
            kind = {"forecast": data.forecast, "columns": columns}
        store = LogitStore.create(
            url,
            **kind,
            dtype=dtype,
            overwrite=overwrite,
            covariate_names=data.covariate_names,
            categories=data.categories,
            times=data.times,
            weights=data.weights is not None,
            class_names=data.class_names,
            provenance=provenance,
            expected_rows=data.rows,
        )
        total = RowCounts()
        with store.writer() as writer:
            for block, counts in _valid(data, rules, progress):
                writer.append(
                    block.values, block.labels, covariates=block.covariates, weights=block.weights
                )
                total += counts
            if total.dropped:
                writer.note("dropped", total.dropped)
        return store

    def judged_on(
        self,
        source: Any,
        *,
        cluster: str | None = None,
        group_by: str | Sequence[str] | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """Return the fit with its `improvement` on the rows of another source.

        Parameters
        ----------
        source, **options
            See `evaluate`.  The fit must not have used these rows.
        cluster : str, optional
            Name of a covariate.  Rows with equal values are one cluster, see `recalibrate`.
        group_by : str or several, optional
            Groups, see `recalibrate`.

        Raises
        ------
        InvalidDataError, OptionError, StoreError
            As `evaluate`, and if the source has the rows of the fit.
        """
        with Session.open(source, **options) as session:
            require_other_rows(session.source, self.fingerprint)
            cluster = session.cluster_column if cluster is None else cluster
            improvement = improvement_on(session, self.fit, cluster, group_by)
        # A reason why the improvement was not known before does not apply any more.
        notes = tuple(note for note in self.notes if not note.startswith(NOT_JUDGED))
        return replace(self, improvement=improvement, notes=notes)

    def diagrams(
        self, source: Any, **options: Unpack[SessionOptions]
    ) -> tuple[Reliability, Reliability]:
        """Reliability of a source before and after recalibration, with options as in `evaluate`."""
        with Session.open(source, **options) as session:
            data = session.source
            return reliability(session), reliability(session.on(self.apply(data)))

    def plot(
        self, source: Any, ax: Any = None, axes: str = "linear", **options: Unpack[SessionOptions]
    ) -> Any:
        """Draw the reliability diagrams of a source before and after recalibration.

        Parameters
        ----------
        source, **options
            See `evaluate`.  The fit should not have used these rows.
        ax : matplotlib axes, optional
            Default: axes of a new figure.
        axes : {"linear", "logit", "auto"}
            Scale of both axes, see `plot_reliability`.
        """
        from calibscale.output.plots.prediction_plots import plot_reliability

        diagrams = self.diagrams(source, **options)
        return plot_reliability(diagrams, ax=ax, names=DIAGRAMS, axes=axes)

    @classmethod
    def from_dict(cls, value: dict[str, Any], **further: Any) -> Self:
        """Fit from its JSON object.  Another or a damaged object raises an OptionError."""
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != cls.schema:
            shown = short(repr(schema), 80)
            raise OptionError(f"not a recalibration: its schema is {shown}, not {cls.schema!r}")
        try:
            # First of all, because deep nesting and huge numbers would fail inside of other checks.
            require_plain(value)
            validated(value)
            read_json(TypeAdapter(_Parameters), value["parameters"], "parameters")
            # JSON has no infinity: a log loss of null was infinite.
            names = cls.measures if "classes" in value["source"] else ()
            infinite = {name: math.inf for name in names if value[name] is None}
            fitted = super().from_dict({**value, **infinite}, **further)
            fitted._require_sound()
        except ValidationError as error:
            raise OptionError(f"the recalibration is damaged: {message_of(error)}") from error
        except OptionError as error:
            reason = short(" ".join(str(error).split()), 300)
            raise OptionError(f"the recalibration is damaged: {reason}") from error
        return fitted

    def _require_sound(self) -> None:
        """Raise an OptionError unless the fit can be restored and has the stated numbers."""
        method = METHODS[self.method].of_settings(self.settings)
        has_classes = "classes" in self.source
        claims = (CLASSES,) if has_classes else (FORECASTS, *FUNCTIONALS)
        if not any(includes(method.judges, claim) for claim in claims):
            raise OptionError(f"source has no kind of predictions that {self.method} is for")
        if has_classes:
            method.check_classes(self.source["classes"])
        parts: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
            ("estimates", self.estimates, self.fit.parameters),
            ("standard_errors", self.standard_errors, self.fit.standard_errors),
        )
        for part, stated, computed in parts:
            for name, number in as_json(computed).items():
                if name.startswith("log_loss"):  # in the file, of all labelled rows
                    continue
                require(name in stated, f"{part} has no {name!r}")
                # A fit is applied by its state.  Stated parameters that differ from it would
                # mislead.
                if not _equal(stated[name], number):
                    seen = short(repr(stated[name]), 40)
                    raise OptionError(f"{part}.{name} must be {number}, as in state, not {seen}")
        require(
            self.checksum in (None, self._digest()),
            "the checksum of its state, settings and source differs: save the fit again",
        )

    def _digest(self) -> str:
        """SHA-256 of all that recalibrated predictions depend on."""
        names: tuple[str, ...] = ("classes", "categories")
        if "classes" not in self.source:
            names = ("kind", "forecast", "categories")
        source = {key: self.source.get(key) for key in names}
        tolerance = self.parameters["tolerance"]
        value = as_json([self.method, self.settings, self.state, source, tolerance])
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class _Parameters(BaseModel):
    """Parameters of the run that a fit uses."""

    tolerance: Annotated[float, Field(ge=0.0, lt=1.0, strict=True)]


def _equal(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal to rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-300)
    return bool(a == b)


def require_other_rows(data: ArraySource, fingerprint: str) -> None:
    """Raise an OptionError if a source has the rows of a fit."""
    if fingerprint_of(data) == fingerprint:
        raise OptionError(
            f"{data.name}: the recalibration was fitted to these rows, on which it looks better "
            "than on new rows: judge it on others, or fit it again, which judges each half by a "
            "fit to the other"
        )


def load_recalibration(path: str | Path) -> FittedRecalibration:
    """Read a fit that `FittedRecalibration.save` or ``calibscale recalibrate --json`` has written.

    An OptionError is raised if the file is not a fit, a StoreError if it cannot be read.

    Examples
    --------
    >>> import tempfile, numpy as np, calibscale
    >>> p, path = np.full(4, 0.7), tempfile.mkdtemp() + "/fit.json"
    >>> source = calibscale.from_arrays(probabilities=p, labels=[1, 0, 1, 0], binary=True)
    >>> calibscale.recalibrate(source, "isotonic").save(path)
    >>> calibscale.load_recalibration(path).transform(p)
    array([0.5, 0.5, 0.5, 0.5])
    """
    try:
        return FittedRecalibration.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        fault = error.strerror or error
        reason = f"{shown_address(path)}: cannot be read: {fault}"
        raise_from(StoreError(reason), error, path)
    except (OptionError, ValueError, RecursionError) as error:
        raise OptionError(f"{path}: {error}") from error


def _valid(
    data: ArraySource, rules: Rules, progress: Progress | None = None
) -> Iterator[tuple[Block, RowCounts]]:
    """Blocks of a source without the rows that the rules drop, and the numbers of rows."""
    for low in range(0, data.rows, data.block_rows):
        block = data.read(low, min(low + data.block_rows, data.rows), covariates=True)
        keep, counts = valid_rows(block, rules)
        yield block.take(keep, block.start), counts
        if progress is not None:
            progress(low + len(keep), data.rows)
