"""What selection asks of a family of calibration estimation functions h(p, p') [GB §4]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.chunk import Floats, Ints
from calibscale.errors import OptionError
from calibscale.landmarks import PointFeatures
from calibscale.selection.statistics import ResidualState
from calibscale.statistics import Statistic
from calibscale.views import View

ROW_NOTIONS = ("top_label", "class_wise", "positive")  # of one scalar prediction for each problem


class Part(NamedTuple):
    """The rows of a fold, or of several: their residuals and the states a family needs."""

    residuals: ResidualState
    states: tuple[Any, ...]


@dataclass(frozen=True)
class Setting:
    """What a family may know before the first pass.

    `features` is the map of ridge regressions that have none of their own.  `subset` are the
    views of the rows kept in memory, `folds` (rows,) their folds; `whole` says that these are all
    rows.  `shared` holds what families have in common.
    """

    notion: str
    classes: int
    features: PointFeatures | None
    subset: Sequence[View]
    folds: Ints
    whole: bool
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)

    def rows(self, fold: int) -> list[View]:
        """The kept rows of a fold."""
        return [view.take(self.folds == fold) for view in self.subset]


class PairSums(NamedTuple):
    """What the risk of a bilinear h needs, with the moments S and C of the judging part.

    Attributes
    ----------
    cross, square : (H,)
        tr(C B Cᵀ) and tr(S B S B), summed over problems.
    diagonal : (J, H, c)
        h(p_i, p_i).
    first : (H, c)
        φ_iᵀ B S B φ_i − 2 δ_iᵀ C B φ_i, summed over problems.
    """

    cross: Floats
    square: Floats
    diagonal: Floats
    first: Floats

    @classmethod
    def zero(cls, size: int, rows: Sequence[View]) -> PairSums:
        c = len(rows[0].rows)
        return cls(
            np.zeros(size), np.zeros(size), np.zeros((len(rows), size, c)), np.zeros((size, c))
        )


class Fitted(ABC):
    """A family fitted on the rows of all folds but one, for every hyper-parameter.

    Attributes
    ----------
    size : int
        H, the number of hyper-parameters.
    plug_in : bool
        Whether h(p, p') = ⟨r̂(p), r̂(p')⟩ with an r̂ that only rows can tell.
    anywhere : bool
        Whether it is known at every prediction.
    """

    size: int
    plug_in: ClassVar[bool]
    anywhere: ClassVar[bool] = True

    @abstractmethod
    def diagonal(self, rows: Sequence[View]) -> Floats:
        """h(p_i, p_i), (J, H, c)."""

    @abstractmethod
    def residuals(self, j: int, view: View) -> Floats:
        """r̂ of each row of problem j, (H, c, e): what h takes E[δ | p] to be."""

    @abstractmethod
    def pick(self, h: int) -> Fitted:
        """The same with one hyper-parameter only."""


class PlugIn(Fitted):
    """h(p, p') = ⟨r̂(p), r̂(p')⟩ for a function r̂ of the prediction."""

    plug_in = True

    def diagonal(self, rows: Sequence[View]) -> Floats:
        parts = [self.residuals(j, view) for j, view in enumerate(rows)]
        return np.stack([np.einsum("hce,hce->hc", r, r) for r in parts])


class Bilinear(Fitted):
    """h(p, p') = φᵀBφ': its pair sums follow from moments."""

    plug_in = False

    @abstractmethod
    def judge(self, part: Part, rows: Sequence[View], whole: bool) -> PairSums:
        """Pair sums of a part, and what those of its rows that are kept contribute.

        `whole` says that these are all rows of the part.
        """

    @abstractmethod
    def estimates(self, part: Part) -> Floats:
        """tr(B S)/Σw of a part [GB eq. 21], summed over problems, (H,)."""

    @abstractmethod
    def gains(self, part: Part, h: int) -> tuple[float, float]:
        """Means of ⟨r̂, δ⟩ and |r̂|² over a part, summed over problems, of one hyper-parameter."""


class Family(ABC):
    """Settings and hyper-parameters of one kind of h; a frozen dataclass."""

    name: ClassVar[str]
    notions: ClassVar[tuple[str, ...]] = ("top_label", "canonical", "class_wise", "positive")

    def resolve(self, setting: Setting) -> Self:
        """The same family with its grid and its feature map filled in.

        Raises
        ------
        OptionError
            If it does not fit the notion.
        """
        if setting.notion not in self.notions:
            raise OptionError(
                f"{self.name} is not for the notion {setting.notion!r}; it is for "
                + ", ".join(self.notions)
            )
        return self

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics of the first pass, whose states `fit` takes in that order."""
        return ()

    @property
    @abstractmethod
    def hyperparameters(self) -> list[dict[str, float]]:
        """The H points of the grid; empty dictionaries where nothing is chosen."""

    def found(self, fits: Sequence[Any]) -> dict[str, Any]:
        """Parameters that the fits of the k training sets found, for the result."""
        return {}

    @abstractmethod
    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> Fitted:
        """Fit on the parts of the training folds; `excluded` is the fold left out."""


def check_grid(name: str, grid: Sequence[float]) -> tuple[float, ...]:
    """The grid as floats without repetitions.

    Raises
    ------
    OptionError
        If it is empty, or a value is not positive and finite.
    """
    values = tuple(dict.fromkeys(float(value) for value in grid))
    if not values:
        raise OptionError(f"the grid of {name} is empty")
    for value in values:
        if not (np.isfinite(value) and value > 0):
            raise OptionError(f"the grid of {name} has {value}; values must be positive and finite")
    return values
