"""Settings of the feature map of the kernel of `KKR` and `UKKR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibscale.errors import OptionError, require
from calibscale.kernels.landmarks import (
    FourierFeatures,
    Gaussian,
    Kernel,
    PointFeatures,
    choose_landmarks,
    unit_interval_landmarks,
)
from calibscale.predictions.notions import NotionView
from calibscale.selection.point_ranks import PointRanks


@dataclass(frozen=True)
class KernelFeatures:
    """Settings of a feature map of the kernel of kkr and ukkr.

    Parameters
    ----------
    kind : {"landmarks", "random"}
        Landmarks (exact to rounding if `rank` of them suffice), or `rank`/2 random frequencies.
    kernel : Kernel, optional
        Default: `Gaussian` with bandwidth 1/√2.
    rank : int
        Maximum number of features m.
    trace_tolerance : float
        Landmarks are added until the mean of k(p, p) − |φ(p)|² is below this value.  For scalar
        notions they are added until rounding or `rank` is reached.
    """

    kind: str = "landmarks"
    kernel: Kernel = Gaussian()  # noqa: RUF009  (frozen)
    rank: int = 1000
    trace_tolerance: float = 1e-13

    def __post_init__(self) -> None:
        if self.kind not in ("landmarks", "random"):
            raise OptionError(f"features must be 'landmarks' or 'random', not {self.kind!r}")
        if self.kind == "random" and not isinstance(self.kernel, Gaussian):
            raise OptionError("random features need the Gaussian kernel; use landmarks")
        require(self.rank >= 1, "rank must be at least 1", self.rank)
        if not 0 <= self.trace_tolerance < 1:
            raise OptionError(f"trace_tolerance must be in [0, 1), not {self.trace_tolerance}")

    def of(
        self, subset: Sequence[NotionView], seed: int, ranks: PointRanks | None = None
    ) -> PointFeatures:
        """Feature map for predictions of rows in the order of the source, or for their ranks."""
        e = subset[0].points.shape[1]
        if self.kind == "random":
            assert isinstance(self.kernel, Gaussian)
            return FourierFeatures(self.kernel, max(1, self.rank // 2), e, seed)
        if e == 1:
            return unit_interval_landmarks(self.kernel, self.rank, seed)
        n = len(subset[0].rows)  # candidates are spread over all rows
        spread = np.unique(np.linspace(0, n - 1, min(n, 8 * self.rank)).astype(np.int64))
        points = subset[0].points[spread]
        if ranks is not None:
            points = ranks(points)
        return choose_landmarks(self.kernel, points, self.rank, self.trace_tolerance, seed)
