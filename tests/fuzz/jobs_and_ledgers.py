"""Mutated job files, ledgers and command lines."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from calibscale.cli import main
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.fuzz.mutations import changed_bytes, changed_text, changed_words
from tests.fuzz.readers import FORMATS
from tests.support.jobs import LARGE, SMALL
from tests.support.ten_nights import FILES, JOB

_DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")
_CODES = (0, 1, 2, 3, 4, 5, 75)
_LEDGER_JOB = FILES.replace('[source]\npath = "{date}.csv"', '[source]\npath = "days/{date}.csv"')


def job_case(folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """A job file with changes. Any job that can be read is right."""
    text = changed_text(rng.choice((SMALL, LARGE, JOB, FILES)), rng)
    path = folder / "job.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return None, lambda: (read_job(path), None)[1]


@cache
def _ledger_folder(root: Path) -> Path:
    """Folder of a ledger of three days, made once."""
    folder = root / "intact"
    (folder / "days").mkdir(parents=True)
    (folder / "job.toml").write_text(_LEDGER_JOB)
    for k, day in enumerate(_DAYS):
        lines = ["p,y,a,g"]
        lines += [f"0.{(7 * i + k) % 10},{i % 2},{i % 3},{i % 4}" for i in range(60)]
        (folder / "days" / f"{day}.csv").write_text("\n".join(lines) + "\n")
        night(folder / "job.toml", day)
    return folder


def _copied(folder: Path) -> Path:
    intact = _ledger_folder(folder.parent)
    copy = folder / "copy"
    shutil.copytree(intact, copy)
    return copy


def _ledger_of(folder: Path) -> Path:
    return next(path.parent for path in folder.rglob("index.log"))


def _states(place: Path) -> dict[Any, list[float]]:
    """States of the days of a ledger that can be read."""
    ledger = Ledger.open(place)
    damaged = ledger.check()
    states = {}
    for entry in ledger.entries:
        with contextlib.suppress(Exception if damaged else ()):  # named by `check` already
            key = (entry.day, entry.model, repr(entry.group), entry.n)
            states[key] = ledger.read(entry).tolist()
    return states


@cache
def _intact_states(root: Path) -> dict[Any, list[float]]:
    return _states(_ledger_of(_ledger_folder(root)))


def ledger_case(folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """A ledger with one file mutated or removed: its states are intact or named."""
    place = _ledger_of(_copied(folder))
    intact = _intact_states(folder.parent)
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.stat().st_size)
    small = [path for path in files if path.suffix in (".log", ".json", ".outputs")]
    path = rng.choice(small if rng.random() < 0.7 else files)
    if rng.random() < 0.1:
        path.unlink()
    else:
        path.write_bytes(changed_bytes(path.read_bytes(), rng))

    def read() -> Any:
        states = _states(place)
        wrong = [key for key, state in states.items() if intact.get(key) != state]
        return f"{len(wrong)} states differ, such as {wrong[0]}" if wrong else None

    return None, read


def night_case(folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """A night on a mutated ledger gives the numbers of one on the intact ledger, or an error."""
    copy = _copied(folder)
    place = _ledger_of(copy)
    small = [p for p in sorted(place.rglob("*")) if p.suffix in (".log", ".json", ".outputs")]
    path = rng.choice([p for p in small if p.stat().st_size])
    path.write_bytes(changed_bytes(path.read_bytes(), rng))

    def run() -> Any:
        intact = _intact_night(folder.parent)
        numbers = _numbers(night(copy / "job.toml", _DAYS[-1]))
        # a log with a damaged line is one of fewer days, which windows name
        wrong = [days for days in numbers if intact.get(days, numbers[days]) != numbers[days]]
        return f"the numbers of {wrong} differ: {numbers}, but {intact}" if wrong else None

    return None, run


def _numbers(result: Any) -> dict[tuple[str, ...], Any]:
    """Numbers of the windows of a night by their days."""
    return {
        window.days: [
            (estimate.estimator, estimate.value, estimate.n) for estimate in window.results
        ]
        for window in result.windows
    }


@cache
def _intact_night(root: Path) -> dict[tuple[str, ...], Any]:
    return _numbers(night(_ledger_folder(root) / "job.toml", _DAYS[-1]))


# ---------------------------------------------------------------- command lines

_SOURCE = ["rows.csv", "--probabilities", "p", "--labels", "y", "--binary"]
_COMMANDS = (
    ["evaluate", *_SOURCE, "-e", "ece", "-e", "brier", "--interval", "none", "--json", "-"],
    ["evaluate", *_SOURCE, "-e", "ckce(ridge=0.03,features=20)", "--covariates", "extra"],
    ["check", *_SOURCE, "-b", "19", "--group-by", "extra", "--memory-limit", "4GB", "-q"],
    ["test", *_SOURCE, "-s", "ece", "-b", "19", "--seed", "3", "--json", "-"],
    ["reliability", *_SOURCE, "--bins", "5", "--edges", "equal-mass", "--notion", "positive"],
    ["plan", *_SOURCE, "-e", "ece", "--rows", "1000", "--workers", "2"],
    ["ingest", "rows.csv", "new.zarr", "--probabilities", "p", "--labels", "y", "--overwrite"],
    ["info", "new.zarr", "--json", "-"],
    ["estimators", "ckce"],
    ["report", "result.json", "--output", "page.html", "--title", "A"],
    ["ledger", "list", "../intact/ledger"],
)
_WORD_LIST = """
    --json - -e ece klce --bins 0 -1 1e9 nan --seed --quiet --on-invalid drop --tolerance
    --memory-limit 1MB serial --scheduler threads:2 rows.csv missing.parquet ece(bins=0)
    ckce( ece(bins=1,bins=2) ece(edges=[0,1,0.5]) --group-by extra:5 extra:[1,2]
    extra:month y --labels --class-names a,b --positive 1 --percent --help evaluate rank
    audit bias select --confidence 1.0 --forecast normal --event level=0.5 ½ --axes logit
    --output p.svg --notion canonical --cluster
"""
_WORDS = (*_WORD_LIST.split(), "")


def command_case(folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """A command line with changes: a documented exit code, and no traceback."""
    words = changed_words(rng.choice(_COMMANDS), _WORDS, rng)
    _ledger_folder(folder.parent)
    (folder / "rows.csv").write_bytes(FORMATS["csv"].content)
    (folder / "result.json").write_text('{"schema": "calibscale.test/1"}')

    def run() -> Any:
        out, err = io.StringIO(), io.StringIO()
        before = os.getcwd()
        os.chdir(folder)
        code: Any = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(words)
        except SystemExit as end:
            code = end.code
        finally:
            os.chdir(before)
        if code not in _CODES or "Traceback" in err.getvalue():
            return f"{words}: exit code {code}, {err.getvalue()[-300:]}"
        if code in (1, 2, 4) and not err.getvalue().strip():
            return f"{words}: exit code {code} without a word"
        return None

    return None, run
