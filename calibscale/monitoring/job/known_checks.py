"""Checks of a night by name, which a job lists as ``checks``."""

from __future__ import annotations

from typing import Any

from calibscale.errors import OptionError
from calibscale.estimators.settings import hint, shown
from calibscale.registry import Registry, RegistryEntry

# The classes judge the day of a job, so that this module of jobs cannot import their base.
CHECKS: Registry[type[Any]] = Registry(
    "check",
    [
        RegistryEntry(
            "unlabelled_share",
            "calibscale.monitoring.checks.label_check:UnlabelledShare",
            "share of the rows of a window that have no label",
        )
    ],
    group="calibscale.checks",
    base="calibscale.monitoring.checks.night_check:NightCheck",
)


def named_check(name: Any) -> str:
    """Name of the check that a name means, without regard to case, ``-`` and ``_``.

    An OptionError is raised if there is no such check.  The message says which there are.
    """
    if name is None:
        raise OptionError(f"name: missing; {hint(name, CHECKS)}")
    spelt = CHECKS.spelt(name)
    if spelt is None:
        raise OptionError(
            f"there is no check {shown(name)} in calibscale or in the installed packages, which "
            f"`calibscale plugins` lists; {hint(name, CHECKS)}"
        )
    return spelt
