"""Base class of the checks that a job lists, which other packages derive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.results.night_results import CheckResult


@dataclass(frozen=True)
class NightCheck(ABC):
    """Check of a night, with its settings as fields.

    A check is a frozen dataclass.  The `checks` of a job file name it and its settings, which have
    the types ``bool``, ``int``, ``float``, ``str``, ``Literal`` or ``tuple[str, ...]``, also with
    ``None``.

    Attributes
    ----------
    name : str
        Name in job files, as in the entry point of the package.

    See Also
    --------
    JudgedDay : windows, groups and records that a check may judge

    Notes
    -----
    A verdict depends on the settings and on the ledger alone, because a night that has not changed
    is not judged again.  A check that raises an error counts as breached: the night keeps all other
    results, and the report shows the error.

    Examples
    --------
    A check of the number of rows, for a day of the ledger of a job:

    >>> from dataclasses import dataclass
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from typing import ClassVar
    >>> from calibscale import LogitStore
    >>> from calibscale.monitoring.checks.night_check import NightCheck
    >>> from calibscale.monitoring.job.known_checks import CHECKS
    >>> from calibscale.monitoring.night import night
    >>> from calibscale.results.night_results import CheckResult
    >>> @dataclass(frozen=True)
    ... class FewRows(NightCheck):
    ...     name: ClassVar[str] = "few_rows"
    ...     below: int = 1000
    ...
    ...     def judge(self, day):
    ...         rows = sum(entry.n for entry in day.entries(window="day"))
    ...         sentence = f"The day has {rows:,} rows."
    ...         return CheckResult(self.label, rows < self.below, sentence, rows, self.below)
    >>> CHECKS.register("few_rows", FewRows)
    >>> folder = Path(mkdtemp())
    >>> store = LogitStore.create(folder / "2026-11-20.zarr", classes=2, kind="probabilities")
    >>> with store.writer() as writer:
    ...     writer.append([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]], [0, 1, 0])
    >>> job = folder / "job.toml"
    >>> text = 'estimators = ["brier"]\\nchecks = ["few_rows"]\\nsource.path = "{date}.zarr"\\n'
    >>> _ = job.write_text(text)
    >>> result = night(job, "2026-11-20")
    >>> print(result.status, result.checks[0].sentence)
    breached The day has 3 rows.
    """

    name: ClassVar[str]

    @property
    def label(self) -> str:
        """Name and the settings that are not their defaults, such as ``few_rows(below=10)``."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.repr and getattr(self, field.name) != field.default
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    @abstractmethod
    def judge(self, day: JudgedDay) -> CheckResult:
        """Verdict on the ledger of a job as of a day."""
