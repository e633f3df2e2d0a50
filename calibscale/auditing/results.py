"""What an audit returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from calibscale.auditing.compare import Against, Scores
from calibscale.auditing.judged import Group
from calibscale.auditing.local import LocalTests
from calibscale.auditing.maps import BiasCurve, Histogram, Region
from calibscale.bias import BiasMap
from calibscale.results import Outcome, finite

AUDIT_SCHEMA = "calibscale.audit/1"
_OF_RUN = ("scheduler", "memory_limit", "on_invalid", "simplex_tolerance")  # told once


@dataclass(frozen=True, kw_only=True)
class Audit(Outcome):
    """What `audit` found.

    Attributes
    ----------
    covariates, categorical : tuple of str
    notion : str
        ``positive``: P(class 1); ``top_label``: the confidence in the predicted class.
    level : float
        Of the simultaneous intervals; 1 − level is what p-values are judged by.
    tests : LocalTests
        On all covariates, on none, and on each alone.
    overall : Group or None
        The bias over all rows.
    groups : tuple of Group
        By |z|, largest first.
    dispersion : float
        By how much more y − p varies than the predictions say, at least 1; see `Groups`.
    regions : tuple of Region
        The most biased places of the map.
    curves, histograms
        What the figure draws.
    recalibration : tuple of Scores
        On rows held out from the fits: before, then after each method; empty if not asked for.
    against : Against or None
        Another model of the same rows.
    bias_map : BiasMap or None
        The map that the regions are of; None where it would take too long (`notes` say so).
    """

    covariates: tuple[str, ...]
    categorical: tuple[str, ...]
    notion: str
    level: float
    tests: LocalTests
    overall: Group | None
    groups: tuple[Group, ...]
    dispersion: float
    regions: tuple[Region, ...]
    curves: tuple[BiasCurve, ...] = field(repr=False, compare=False)
    histograms: tuple[Histogram, ...] = field(repr=False)
    recalibration: tuple[Scores, ...] = ()
    against: Against | None = None
    bias_map: BiasMap | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float | None:
        """Of the test on all covariates together."""
        return self.tests.joint.p_value

    @property
    def miscalibrated(self) -> bool:
        """Whether that test rejects at 1 − level."""
        return self.p_value is not None and self.p_value <= 1 - self.level + 1e-12

    @property
    def biased_groups(self) -> tuple[Group, ...]:
        """The groups whose adjusted p-value is at most 1 − level."""
        alpha = 1 - self.level + 1e-12
        return tuple(g for g in self.groups if g.adjusted is not None and g.adjusted <= alpha)

    @property
    def verdict(self) -> str:
        """What the test on all covariates says, in words."""
        names = ", ".join(self.covariates)
        test = self.tests.joint
        if test.p_value is None:
            return f"no test of local calibration on {names}: {test.reason}"
        p = f"p {'≤' if test.exceedances == 0 else '='} {test.p_value:.3g}"
        if self.miscalibrated:
            return f"locally miscalibrated on {names} ({p})"
        return f"no evidence of local miscalibration on {names} ({p})"

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale audit --json``."""
        found = self.bias_map
        out = {
            **self.head(AUDIT_SCHEMA),
            "covariates": list(self.covariates),
            "categorical": list(self.categorical),
            "notion": self.notion,
            "level": self.level,
            "verdict": self.verdict,
            "p_value": self.p_value,
            "miscalibrated": self.miscalibrated,
            "tests": self.tests.to_dict(),
            "overall": None if self.overall is None else self.overall.to_dict(),
            "dispersion": self.dispersion,
            "groups": [group.to_dict() for group in self.groups],
            "map": None
            if found is None
            else {
                "parameters": {k: v for k, v in found.parameters.items() if k not in _OF_RUN},
                "points": len(found),
                "masked": int(found.masked.sum()),
                "regions": [region.to_dict() for region in self.regions],
            },
            "curves": [curve.to_dict() for curve in self.curves],
            "recalibration": [scores.to_dict() for scores in self.recalibration],
            "against": None if self.against is None else self.against.to_dict(),
            "notes": list(self.notes),
        }
        return finite(out)
