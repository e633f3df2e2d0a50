"""What a run returns: frozen records that know how to become JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

EVALUATION_SCHEMA = "calibscale.evaluation/1"


@dataclass(frozen=True)
class Approximation:
    """How exact a value is.

    Attributes
    ----------
    kind : str
        ``exact``, or what was approximated: ``random_features``, ``histogram_edges``,
        ``landmarks``, ``low_rank`` (landmarks to rounding), ``cells``, ``subset``, ``float32``,
        ``sampled_pairs``, ``blocks`` (the pairs within blocks of rows alone).
    error : float or None
        Size of the error that the value is expected to stay within; 0 where exact, None where it
        cannot be told.
    corrected : float or None
        The value with the estimated bias of the approximation taken off.
    """

    kind: str = "exact"
    error: float | None = 0.0
    corrected: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `corrected` where there is one."""
        out: dict[str, Any] = {"kind": self.kind, "error": self.error}
        if self.corrected is not None:
            out["corrected"] = self.corrected
        return out


EXACT = Approximation()


# what an interval covers
POPULATION, THIS_N = "the population", "the expectation at this n"
BOTH = "the population and the expectation at this n"


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    low, high, level : float
    method : str
        ``clopper_pearson``, ``weighted_counts``, ``binned`` or ``quadratic_form`` where
        `calibscale.limits` has limits for the estimator, ``one_step`` of `select`, else
        ``jackknife`` or ``bootstrap``.
    parts : int
        Groups of rows, or rows, or folds, that were left out one at a time; 0 where none were.
    standard_error : float
        Of the jackknife or the one-step estimate, else the half-length over the normal quantile.
    covers : str
        What it covers: the population's value, the expectation at this n of a biased estimate, or
        both, from the lower limit of the first to the upper limit of the second.
    """

    low: float
    high: float
    level: float
    method: str
    parts: int
    standard_error: float
    covers: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Estimate:
    """One number and what is needed to trust it.

    Attributes
    ----------
    estimator, notion : str
    value : float or None
        None where it is not defined; `reason` says why.
    squared : bool
        Whether `value` is a squared error; then `root` is its square root.
    approximation : Approximation
    parameters : dict
        Every setting that the value depends on, defaults resolved.
    details : dict
        What else the estimator found: the bin table, a value for each class, parts of a
        decomposition.
    n : int
        Rows it was computed from.
    interval : Interval or None
        Of the value, where asked for.
    """

    estimator: str
    notion: str
    value: float | None
    squared: bool = False
    approximation: Approximation = EXACT
    parameters: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    n: int = 0
    reason: str | None = None
    interval: Interval | None = None

    @property
    def root(self) -> float | None:
        """√value of a squared error; None where that is negative (an unbiased estimate may be)."""
        if not self.squared or self.value is None or self.value < 0:
            return None
        return math.sqrt(self.value)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; NaN and ∞ are null, with the reason."""
        out: dict[str, Any] = {
            "estimator": self.estimator,
            "notion": self.notion,
            "value": self.value,
            "squared": self.squared,
            "root": self.root,
            "interval": None if self.interval is None else self.interval.to_dict(),
            "approximation": self.approximation.to_dict(),
            "parameters": self.parameters,
            "n": self.n,
        }
        if self.details:
            out["details"] = self.details
        reason = self.reason
        if reason is None and self.value is not None and not math.isfinite(self.value):
            reason = f"the value is {self.value}"
        if reason is None and self.squared and self.root is None and self.value is not None:
            reason = "a negative value has no root"
        if reason is not None:
            out["reason"] = reason
        return finite(out)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What every result says of the rows and the run that it comes from.

    Attributes
    ----------
    n, n_dropped, n_unlabelled : int
        Rows used (those of weight 0 are not), left out as invalid (by reason in `dropped`), and not
        yet labelled.
    """

    n: int
    n_unlabelled: int
    dropped: dict[str, int]
    source: dict[str, Any]
    seconds: float
    versions: dict[str, str]
    parameters: dict[str, Any]

    @property
    def n_dropped(self) -> int:
        return sum(self.dropped.values())

    def head(self, schema: str) -> dict[str, Any]:
        """How the JSON object of a result begins."""
        return {
            "schema": schema,
            "source": self.source,
            "n": self.n,
            "n_dropped": self.n_dropped,
            "n_unlabelled": self.n_unlabelled,
            "dropped": self.dropped,
            "seconds": self.seconds,
            "versions": self.versions,
            "parameters": self.parameters,
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation(Outcome):
    """All estimates of one pass over a source; `print` shows them as a table.

    Attributes
    ----------
    estimates : tuple of Estimate
        In the order asked for.
    groups : dict
        With ``group_by``: the same by value of the column.
    """

    estimates: tuple[Estimate, ...]
    group_by: str | None = None
    groups: dict[float, tuple[Estimate, ...]] = field(default_factory=dict)

    def __getitem__(self, estimator: str) -> Estimate:
        """The first estimate of that name.

        Raises
        ------
        KeyError
            If it was not asked for.
        """
        for estimate in self.estimates:
            if estimate.estimator == estimator:
                return estimate
        raise KeyError(not_there(estimator, (e.estimator for e in self.estimates)))

    def __str__(self) -> str:
        from calibscale.tables import evaluation_tables, plain

        return plain(evaluation_tables, self)

    def __repr__(self) -> str:
        found = ", ".join(f"{e.estimator}={e.value}" for e in self.estimates)
        return f"Evaluation(n={self.n}, {found})"

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale evaluate --json``."""
        results = [estimate.to_dict() for estimate in self.estimates]
        out: dict[str, Any] = {**self.head(EVALUATION_SCHEMA), "results": results}
        if self.group_by is not None:
            out["groups"] = {
                "column": self.group_by,
                "values": [
                    {
                        **as_level(value),
                        "n": estimates[0].n if estimates else 0,
                        "results": [estimate.to_dict() for estimate in estimates],
                    }
                    for value, estimates in self.groups.items()
                ],
            }
        return finite(out)


def as_level(value: float) -> dict[str, Any]:
    """A value of a covariate as JSON, with its name where it is a category."""
    name = getattr(value, "name", None)
    return {"value": float(value), **({} if name is None else {"name": name})}


def not_there(name: str, known: Iterable[str]) -> str:
    """What a KeyError says of a name."""
    return f"no {name!r} was computed; there is {', '.join(dict.fromkeys(known)) or 'nothing'}"


def finite(value: Any) -> Any:
    """The same JSON value with every NaN and infinity replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
