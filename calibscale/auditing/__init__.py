"""Audits: is a model calibrated on covariates, where is it not, and would recalibration help?"""

from calibscale.auditing.compare import Against, PairedDifference, Scores
from calibscale.auditing.groups import Where
from calibscale.auditing.judged import Group
from calibscale.auditing.local import CovariateTest, LocalTests
from calibscale.auditing.maps import BiasCurve, Region
from calibscale.auditing.pipeline import audit
from calibscale.auditing.results import Audit
from calibscale.multiplicity import holm

__all__ = [
    "Against",
    "Audit",
    "BiasCurve",
    "CovariateTest",
    "Group",
    "LocalTests",
    "PairedDifference",
    "Region",
    "Scores",
    "Where",
    "audit",
    "holm",
]
