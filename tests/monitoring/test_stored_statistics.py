"""What a ledger can store is declared, and does not depend on the modules that are imported."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

import pytest

import calibscale.estimators
import calibscale.statistics
from calibscale.errors import OptionError
from calibscale.monitoring.ledger.recipe import decode, encode
from calibscale.monitoring.ledger.stored_statistics import STATISTICS
from calibscale.statistics.bins import MergedCells
from calibscale.statistics.condensed_counts import CondensedCounts
from calibscale.statistics.condensed_residuals import CondensedResiduals
from calibscale.statistics.elementary_sums import ElementarySums
from calibscale.statistics.feature_sums import LandmarkFeatures
from calibscale.statistics.null_distributions import PooledResiduals
from calibscale.statistics.nystrom_map import Nystrom
from calibscale.statistics.ordered_sums import ConcentrationSums, OrderedResponses, RatioSums
from calibscale.statistics.outcome_pairs import OutcomePairs
from calibscale.statistics.recombined_draws import RecombinedReplicates
from calibscale.statistics.response_sums import ResidualMoments
from calibscale.statistics.row_moments import RowMoments
from calibscale.statistics.score_sums import Totals
from calibscale.statistics.shared_draws import NoiseReplicates
from calibscale.statistics.shift_sums import LabelledShiftSums, LabelWeights, ShiftSums
from calibscale.statistics.statistic import Replicates, Statistic


def _defined(package) -> set[type[Statistic]]:
    """Statistics that the modules of a package define, without their base classes."""
    modules = [
        import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__)
    ]
    return {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, Statistic)
        and not inspect.isabstract(kind)
        and kind.__module__ == module.__name__
    }


def test_table__has_every_statistic_that_an_estimator_can_need():
    needed = _defined(calibscale.statistics) | _defined(calibscale.estimators)
    # Replicates, and the residuals that nulls draw from, belong to a test of one day.  A ledger
    # stores the states of replicates only.  Landmarks are chosen among the rows of one day, and
    # jobs refuse estimators by landmarks.  Sums of charts are of one call, and so are moments of
    # rows: windows have intervals from groups of rows.  Pairs have no sums, and jobs refuse them.
    of_tests = {Replicates, PooledResiduals, MergedCells, ResidualMoments}
    of_tests |= {CondensedCounts, CondensedResiduals, NoiseReplicates, RecombinedReplicates}
    of_charts = {ConcentrationSums, ElementarySums, OrderedResponses, OutcomePairs, RatioSums}
    # Shifts of the class shares are between two sources.
    of_shifts = {LabelWeights, LabelledShiftSums, ShiftSums}
    stored = needed - of_charts - of_tests - of_shifts - {RowMoments, Nystrom, LandmarkFeatures}
    assert stored == {*STATISTICS.values()} & needed
    assert not {Nystrom, LandmarkFeatures} & {*STATISTICS.values()}


@dataclass(frozen=True)
class Undeclared(Totals):
    """Statistic that no entry point names."""


def test_statistics__that_no_registry_has_are_not_stored():
    with pytest.raises(OptionError, match="a ledger cannot store Undeclared, because no registry"):
        encode(Undeclared())


def test_classes__of_missing_packages_are_named():
    stored = {"kind": "far_gap", "package": "far-rows", "settings": {}}
    with pytest.raises(OptionError, match="'far_gap' of the package far-rows, which is not inst"):
        decode(stored)
    assert decode(encode(Totals())) == Totals()


KINDS = """
import sys
from dataclasses import dataclass
from importlib import import_module
for module in sys.argv[1:]:
    import_module(module)
from calibscale.monitoring.ledger.recipe import _kinds
print(*sorted(_kinds()))
"""
FURTHER = (
    "calibscale.selection.cross_validation",
    "calibscale.ranking.rank",
    "calibscale.recalibration.fits",
    "calibscale.auditing.audit",
)


@pytest.mark.process
@pytest.mark.long
def test_kinds__do_not_depend_on_imports():
    def kinds(*imported: str) -> str:
        command = [sys.executable, "-c", KINDS, *imported]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert kinds() == kinds(*FURTHER)
