"""Checks that a job lists: their tables in job files, their verdicts, and nights with them."""

from __future__ import annotations

import json
import logging
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from calibscale.errors import OptionError
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.label_check import UnlabelledShare
from calibscale.monitoring.checks.night_check import NightCheck
from calibscale.monitoring.checks.night_checks import check_result
from calibscale.monitoring.job.job_ledger import open_ledger
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.job.job_tables import Job, Source
from calibscale.monitoring.job.known_checks import CHECKS
from calibscale.monitoring.night import night
from calibscale.output.text import as_text
from calibscale.results.night_results import CheckResult, Night
from calibscale.results.schemas.result_models import validated
from tests.support.jobs import BEFORE_TABLES
from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_job
from tests.support.ten_nights import invoke

COMPLAINT = "https://user:secret@server/file\nis empty"


@dataclass(frozen=True)
class Settled(NightCheck):
    """Check of the values that its settings may have."""

    least: int
    tags: tuple[str, ...] = ("a",)
    limit: float | None = None
    strict: bool = False
    cache: str = field(default="", init=False, repr=False)
    name: ClassVar[str] = "settled"

    def __post_init__(self) -> None:
        if self.least < 0:
            raise TypeError("least is negative")

    def judge(self, day: JudgedDay) -> CheckResult:
        rows = np.float64(sum(entry.n for entry in day.entries(window="day")))
        day.notes.append(f"{day.model} was judged.")
        return CheckResult(self.label, rows < self.least, "Rows.", rows, float("nan"))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Faulty(NightCheck):
    """Check that fails in a way of its setting."""

    fault: str = "raise"
    name: ClassVar[str] = "faulty"

    def judge(self, day: JudgedDay) -> CheckResult:
        if self.fault == "raise":
            raise ZeroDivisionError(COMPLAINT)
        if self.fault == "exit":
            raise SystemExit(0)
        if self.fault == "text":
            return CheckResult(self.label, False, "", "many")  # type: ignore[arg-type]
        return None  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """Registry with the checks of this module."""
    monkeypatch.setattr(CHECKS, "_registered", {})
    for kind in (Settled, Faulty):
        CHECKS.register(kind.name, kind)
    return CHECKS


# ---------------------------------------------------------------- job files


def test_base__has_few_members():
    members = {name for name in vars(NightCheck) if not name.startswith("_")}
    assert members | {"name"} == {"judge", "label", "name"}
    with pytest.raises(TypeError, match="abstract"):
        NightCheck()


@pytest.mark.parametrize(
    "text",
    [
        'checks = [{name = "settled", least = 3}, "unlabelled_share"]\n' + BEFORE_TABLES,
        'checks = ["settled(least=3)", "Unlabelled-Share"]\n' + BEFORE_TABLES,
        BEFORE_TABLES + '[[checks]]\nname = "settled"\nleast = 3\n'
        '[[checks]]\nname = "unlabelled_share"\n',
    ],
    ids=["list", "calls", "tables"],
)
def test_forms_of_a_list__are_the_same_checks(job, text):
    parsed = job(text)
    assert parsed.built_checks() == (Settled(3), UnlabelledShare())
    assert parsed.to_dict()["checks"] == [
        {"name": "settled", "least": 3, "tags": ["a"], "limit": None, "strict": False},
        {"name": "unlabelled_share", "above": 0.2, "window": "7d"},
    ]


def test_jobs__without_checks_have_none(job):
    parsed = job(BEFORE_TABLES)
    assert parsed.checks == parsed.built_checks() == ()


def test_settings__have_the_types_of_the_class(job):
    table = '[[checks]]\nname = "settled"\nleast = 3\ntags = ["b", "c"]\nlimit = 2\nstrict = true\n'
    (check,) = job(BEFORE_TABLES + table).built_checks()
    assert check == Settled(3, ("b", "c"), 2.0, True)
    assert check.label == "settled(least=3, tags=('b', 'c'), limit=2.0, strict=True)"


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        (['name = "settled"'], [(3, "checks[0].least: missing; settled has no default for it")]),
        (['name = "settled"', "least = 1.5"], [(5, ".least: must be a whole number, not 1.5")]),
        (['name = "settled"', "least = -1"], [(3, "checks[0]: settled: least is negative")]),
        (
            ['name = "settled"', "least = 1", "lest = 2", "strict = 0"],
            [
                (6, ".lest: settled has no such setting; did you mean 'least'?"),
                (7, ".strict: must be true or false, not 0"),
            ],
        ),
        (
            ['name = "settled"', "least = 1", 'cache = "x"'],
            [(6, ".cache: settled has no such setting; allowed: least, tags, limit, strict")],
        ),
        (
            ['name = "unlabelled_share"', "above = 1"],
            [(3, "unlabelled_share: above must be at least 0 and below 1, not 1.0")],
        ),
        (
            ['name = "unlabelled_share"', 'window = "week"'],
            [(3, "unlabelled_share: a window is 'day', '7d', 'all' or 'FIRST/LAST', not 'week'")],
        ),
        (
            ['name = "rows"'],
            [
                (
                    3,
                    "checks[0]: there is no check 'rows' in calibscale or in the installed "
                    "packages, which `calibscale plugins` lists; allowed: unlabelled_share, "
                    "settled, faulty",
                )
            ],
        ),
        (['name = "unlabeled share"'], [(3, "did you mean 'unlabelled_share'?")]),
        (["least = 1"], [(3, "name: missing; allowed: unlabelled_share, settled, faulty")]),
        (["name = 3"], [(3, "there is no check 3 in calibscale")]),
        (['name = "faulty(fault)"'], [(3, "is not a check: write a name, or a name and its")]),
        (['name = "faulty"', "[[checks]]", 'name = "faulty"'], [(5, "repeats checks[0]")]),
    ],
)
def test_faults__have_their_line(complaints, lines, problems):
    found = complaints(BEFORE_TABLES + "[[checks]]\n" + "\n".join(lines) + "\n")
    assert len(found) == len(problems)
    for (line, message), (expected, text) in zip(found, problems, strict=True):
        assert line == expected
        assert text in message


def test_lists__of_other_types_are_refused(complaints):
    assert complaints("checks = [3]\n" + BEFORE_TABLES) == [
        (1, "checks[0]: must be a name or a table, not 3")
    ]
    assert complaints('checks = "faulty"\n' + BEFORE_TABLES) == [
        (1, "checks: must be a list, not 'faulty'")
    ]


def test_jobs_of_programs__with_unknown_checks_are_refused_before_anything_is_written(tmp_path):
    job = Job(
        Source(str(tmp_path / "{date}.zarr")),
        ({"name": "ece"},),
        ledger=str(tmp_path / "ledger"),
        checks=({"name": "rows"},),
    )
    with pytest.raises(OptionError, match="there is no check 'rows'"):
        night(job, "2026-11-01")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- verdicts


def _write_labels(folder, k, shares):
    """Write a day of 400 rows, in which a share has no label."""
    columns = columns_of(k)
    for row in range(int(shares * 400)):
        columns["y"][row] = -1
    write_columns(folder / "days" / f"{day_name(k)}.parquet", columns)


WITH_CHECKS = """
checks = [
    "unlabelled_share(window=day)",
    "unlabelled_share",
    "faulty",
    {name = "settled", least = 10},
]
"""
OUTPUTS = "[outputs]\njunit = 'a.xml'\nprometheus = 'a.prom'\nreport = 'a.html'\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of a job and its two days, without labels in 10 % and in 50 % of the rows."""
    folder = tmp_path_factory.mktemp("checks")
    write_job(folder, WITH_CHECKS + JOB + OUTPUTS)
    for k, share in enumerate((0.1, 0.5)):
        _write_labels(folder, k, share)
    return folder


@pytest.fixture
def result(folder):
    """Night of the second day."""
    for k in range(2):
        judged = night(folder / "job.toml", day_name(k))
    return judged


@pytest.mark.long
def test_shares_of_labels__are_of_the_days_of_the_window(result):
    day, week, *_ = result.checks
    assert day.check == "unlabelled_share(window=day)"
    assert (day.value, day.limit, day.breached) == (0.5, 0.2, True)
    assert day.sentence == "200 of 400 rows over the day have no label yet (50 %)."
    assert week.check == "unlabelled_share"
    assert (week.value, week.breached) == (240 / 800, True)


@pytest.mark.long
def test_shares_of_labels__may_be_at_the_limit_and_need_rows(folder, result):
    job = read_job(folder / "job.toml")
    ledger = open_ledger(job)
    judged = UnlabelledShare(above=0.5, window="day").judge(JudgedDay(job, ledger, day_name(1)))
    assert not judged.breached
    # A week before the first day.
    window = "2026-10-01/2026-10-07"
    judged = UnlabelledShare(window=window).judge(JudgedDay(job, ledger, day_name(1)))
    assert judged == CheckResult(
        f"unlabelled_share(window={window})", False, "There are no rows.", None, 0.2
    )


@pytest.mark.long
def test_checks__that_fail_are_breached_and_the_night_keeps_the_others(result):
    faulty, settled = result.checks[2:]
    assert result.status == "breached"
    assert len(result.windows) == 2
    assert (faulty.check, faulty.breached, faulty.failed) == ("faulty", True, True)
    reason = "ZeroDivisionError: https://***@server/file is empty"
    assert faulty.sentence == f"The check failed: {reason}"
    # Numbers of NumPy are plain numbers in results, and NaN is no number.
    assert settled == CheckResult("settled(least=10)", False, "Rows.", 200.0, None)
    assert type(settled.breached) is bool
    assert "default was judged." in result.notes


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ZeroDivisionError: https://***@server/file is empty"),
        pytest.param("exit", "SystemExit: 0", marks=pytest.mark.slow),
        ("none", "TypeError: judge returned NoneType instead of CheckResult"),
        pytest.param("text", "TypeError: must be real number, not str", marks=pytest.mark.slow),
    ],
)
def test_faults_of_any_kind__are_verdicts(folder, result, fault, reason, caplog):
    job = read_job(folder / "job.toml")
    day = JudgedDay(job, open_ledger(job), day_name(1))
    with caplog.at_level(logging.DEBUG, "calibscale"):
        judged = check_result(Faulty(fault), day)
    check = Faulty(fault).label
    assert judged == CheckResult(check, True, f"The check failed: {reason}", failed=True)
    assert "Traceback" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.long
def test_nights__with_a_failed_check_are_judged_again(folder, result, monkeypatch):
    job = folder / "job.toml"
    assert night(job, day_name(1)).fresh
    monkeypatch.setattr(Faulty, "judge", lambda self, day: CheckResult("faulty", False, "Fine."))
    healed = night(job, day_name(1))
    assert (healed.fresh, healed.checks[2].sentence) == (True, "Fine.")
    assert not night(job, day_name(1)).fresh


# ---------------------------------------------------------------- outputs


@pytest.mark.long
def test_results__with_and_without_checks_are_read_again(result):
    value = result.to_dict()
    restored = Night.from_dict(validated(json.loads(json.dumps(value))), fresh=True)
    assert restored.checks == result.checks
    del value["checks"]  # as in results of earlier versions
    for older in (value, validated(value)):
        restored = Night.from_dict(older, fresh=True)
        assert restored.checks == ()
        assert "checks" not in restored.to_dict()


@pytest.mark.long
def test_reports__have_the_sentences_of_checks(folder, result):
    text = " ".join(as_text(result).split())
    assert "Breached: 3 of 4 checks; labels are not complete for 1 Nov 2026 and 2 Nov" in text
    assert "unlabelled_share: 240 of 800 rows over 7 days have no label yet (30 %)." in text
    assert "checks breached: 3 (of 4)" in text
    assert "faulty failed – – The check failed" in text
    assert "settled(least=10) within 200 – Rows." in text
    page = (folder / "a.html").read_text()
    assert "The check failed: ZeroDivisionError" in page
    assert "secret" not in page + text


@pytest.mark.long
def test_exports__have_the_checks(folder, result):
    lines = (folder / "a.prom").read_text().splitlines()
    gauges = dict(line.rsplit(" ", 1) for line in lines if line.startswith("calibscale_check"))
    of_job = 'job="job",model="default",name='
    assert gauges[f'calibscale_check_breached{{{of_job}"faulty"}}'] == "1.0"
    assert gauges[f'calibscale_check_breached{{{of_job}"settled(least=10)"}}'] == "0.0"
    assert gauges[f'calibscale_check_value{{{of_job}"unlabelled_share"}}'] == "0.3"
    assert gauges[f'calibscale_check_limit{{{of_job}"unlabelled_share"}}'] == "0.2"
    assert f'calibscale_check_value{{{of_job}"faulty"}}' not in gauges
    (suite,) = ET.parse(folder / "a.xml").getroot()
    cases = {case.get("name"): [part.tag for part in case] for case in suite.iter("testcase")}
    assert cases["unlabelled_share"] == ["failure"]
    assert cases["faulty"] == ["error"]
    assert cases["settled(least=10)"] == []
    assert suite.get("errors") == "1"


@pytest.mark.long
def test_nights__of_breached_and_of_kept_checks_have_their_exit_codes(tmp_path):
    _write_labels(tmp_path, 0, 0.1)
    codes, texts = [], []
    for above in (0.2, 0.05):
        check = f'checks = ["unlabelled_share(above={above})"]\nprovisional = "fine"\n'
        job = write_job(tmp_path, check + JOB)
        ran = invoke("nightly", job, "--date", day_name(0))
        codes.append(ran.exit_code)
        texts.append(" ".join(ran.stdout.split()))
    assert codes == [0, 3]
    assert "Fine: none of 1 check is breached and there is no alarm" in texts[0]
    assert "Breached: 1 of 1 check" in texts[1]
