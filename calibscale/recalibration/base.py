"""What all methods of recalibration, and what they found, have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from calibscale import engine
from calibscale.chunk import Chunk, Floats, RowCounts, Rules
from calibscale.errors import OptionError
from calibscale.evaluation import DataSetup
from calibscale.recalibration.sources import left_out
from calibscale.results import finite
from calibscale.scan import Pass, scan
from calibscale.store import as_source

Read = Callable[..., Pass]  # one pass: statistics, and the names of covariates= that they need


@dataclass(frozen=True)
class Method(ABC):
    """A way to recalibrate; its settings are its fields."""

    name: ClassVar[str]
    two_classes: ClassVar[bool] = True

    def fit(
        self,
        source: Any,
        *,
        on_invalid: str = "raise",
        tolerance: float = 1e-4,
        block_rows: int | None = None,
        scheduler: Any = None,
        memory_limit: int | str | None = None,
        progress: engine.Progress | None = None,
    ) -> Fitted:
        """Learn from the labelled rows of a source, or of a part of it, in a few passes.

        Parameters
        ----------
        source : path, URL, LogitStore or ArraySource
            See `part_of` for a part.
        on_invalid, tolerance, block_rows, scheduler, memory_limit, progress
            See `calibscale.evaluate`.

        Returns
        -------
        Fitted

        Raises
        ------
        InvalidDataError
            At the first bad row.
        OptionError
            If a setting or the method does not fit the data, or they do not determine it.
        StoreError
            If the source cannot be read.
        """
        data = as_source(source)
        if self.two_classes and data.classes != 2:
            raise OptionError(
                f"{self.name} is for two classes; there are {data.classes}. Temperature is for "
                "any number of them"
            )
        rules = Rules(
            data.kind, data.classes, max(1, data.chunk_rows), tolerance=tolerance,
            on_invalid=on_invalid,
        )  # fmt: skip
        with engine.session(scheduler, memory_limit) as opened:

            def read(*statistics: Any, covariates: tuple[str, ...] = ()) -> Pass:
                found = scan(
                    data, statistics, covariates=covariates, on_invalid=on_invalid,
                    tolerance=tolerance, block_rows=block_rows, scheduler=opened,
                    memory_limit=memory_limit, progress=progress,
                )  # fmt: skip
                if None not in found.groups:
                    raise OptionError(
                        f"{data.name}: there is no labelled row with a positive weight to fit to"
                    )
                return found

            found = self._fit(DataSetup(data, rules, opened), read)
        counts = found.counts
        known = counts._replace(unlabelled=counts.unlabelled - left_out(data))
        return replace(found, counts=known, source=data.describe(), tolerance=tolerance)

    @abstractmethod
    def _fit(self, setup: DataSetup, read: Read) -> Fitted:
        """What one or more passes find."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted(ABC):
    """A recalibrated model, small enough to be sent to workers.

    Attributes
    ----------
    method : Method
    classes : int
        K.
    counts : RowCounts
        Rows it was fitted to, not yet labelled ones, and those dropped by reason.
    passes : int
        How often the rows were read.
    notes : tuple of str
    source : dict
        The description of what it was fitted to.
    tolerance : float
        How far from 1 a row of probabilities may sum, to be recalibrated.
    """

    method: Method
    classes: int
    counts: RowCounts
    passes: int
    notes: tuple[str, ...] = ()
    source: dict[str, Any] | None = None
    tolerance: float = 1e-4

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates that a row's probabilities depend on."""
        return ()

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """What was found, as JSON values."""

    @abstractmethod
    def probabilities(self, chunk: Chunk) -> Floats:
        """The recalibrated probabilities of valid rows (c, K).

        Their covariates are those named by `covariates`, in that order.
        """

    @property
    def summary(self) -> dict[str, Any]:
        """The method, its settings and what it found, as JSON values."""
        settings = {f.name: _plain(getattr(self.method, f.name)) for f in fields(self.method)}
        return finite(
            {"method": self.method.name, "settings": settings, "parameters": self.parameters}
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON object: `summary`, the rows it was fitted to, and notes."""
        return finite(
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


def _plain(value: Any) -> Any:
    """A setting as a JSON value."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def check_weight(name: str, weight: Any) -> None:
    """Refuse a fit to rows without weight.

    Raises
    ------
    OptionError
    """
    if not weight > 0:
        raise OptionError(f"{name}: no labelled row has a positive weight")
