"""Clusters of the rows of a run, and what they allow: tests by random signs, and intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from calibscale.results.declarations import Computed, Count, Declared, Later, Omitted, Share

_LARGE_SHARE = 0.2  # of the rows, above which one cluster is large
_FEWEST_OTHERS = 100  # effective number of clusters beside a large one that tests need


@dataclass(frozen=True)
class Clusters(Declared):
    """Clusters of the rows of a run.

    Attributes
    ----------
    column : str
        Covariate with a value for each cluster.
    count : int
        Number of clusters, exact below 16,384, else with a relative standard error of 0.8 %.
    largest_share : float
        Share of the rows in the largest cluster of the sample.
    intraclass_correlation, design_effect : float or None
        Of the residuals of the default scalar notion, by an analysis of variance without weights of
        at most 16,384 clusters.  The design effect is the factor by which clusters increase the
        variance of a mean.  None if every cluster has one row, or there is only one.
    effective_count : float or None
        Number of clusters of equal size that say as much, (Σm)²/Σm² of the sizes m, if rows of a
        cluster agree.  It is far below `count` if one cluster has a large share of the rows, and
        None for a result of an earlier version.
    """

    column: str
    count: Count
    exact: bool
    largest_share: Share
    intraclass_correlation: float | None
    design_effect: float | None
    effective_count: Later[Omitted[float | None]] = None

    @classmethod
    def of_days(cls, days: Iterable[tuple[int, Mapping[str, Any]]]) -> Clusters | None:
        """Bounds of the clusters of several days from the number of rows and the JSON of each.

        With the sizes m_d of the clusters on day d, |Σ_d m_d| ≤ Σ_d |m_d| for the root of the sum
        of squares and for the largest size, with equality if every cluster has the same share each
        day.  The returned number of clusters and effective number are therefore lower bounds, and
        the returned largest share is an upper bound.  None if a day does not state its clusters.
        """
        total = largest = norm = 0.0
        counts, column = [0], ""
        for rows, description in days:
            if not description or description.get("effective_count") is None:
                return None
            total += rows
            largest += rows * description["largest_share"]
            # Σm² = n²/n_eff gives the norm of the sizes on a day: |m| = n/√n_eff.
            norm += rows / math.sqrt(description["effective_count"])
            counts.append(description["count"])
            column = description["column"]
        if not total:
            return None
        effective = (total / norm) ** 2
        return cls(column, max(counts), False, largest / total, None, None, effective)

    @property
    def refusal(self) -> str | None:
        """Why random signs of these clusters do not test calibration, or None if they do.

        Beside a large cluster the sums of the others must be symmetric, for which they must be
        many.  At a share of 30 to 80 % of the rows, default tests at 5 % rejected 4.6 to 6.0 % of
        calibrated data sets with 100 other clusters or more, and 5.6 to 10.2 % with 20 to 80.
        Fewer than five clusters never reject.
        """
        if self.effective_count is None or self.count < 5 or self.largest_share <= _LARGE_SHARE:
            return None
        # Σ of the squared shares of all other clusters.
        squares = 1.0 / self.effective_count - self.largest_share**2
        if squares <= 0.0:
            return None
        effective_others = (1.0 - self.largest_share) ** 2 / squares
        if effective_others >= _FEWEST_OTHERS - 0.5:
            return None
        return (
            f"one cluster has {100 * self.largest_share:.0f} % of the rows, and the others are "
            f"effectively {effective_others:.0f}, fewer than {_FEWEST_OTHERS}, so that a test "
            "may reject calibrated predictions too often; use smaller units as clusters, add rows "
            "of other clusters, or leave out the large one"
        )

    @property
    def notes(self) -> Computed[tuple[str, ...]]:
        """Limitations of intervals and tests with these clusters."""
        notes = []
        if self.count < 5:
            notes.append(
                f"{self.count} clusters are too few: intervals are wide or missing, and p-values "
                f"are at least {0.5 ** max(self.count - 1, 0):.2g}"
            )
        if self.largest_share > 0.5:
            share = f"{100 * self.largest_share:.0f} %"
            notes.append(f"one cluster has {share} of the rows: intervals and tests rest on it")
        return tuple(notes)
