"""Fixtures of all tests: real data, small random sources, and commands in this process."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale
from calibscale.cli import main
from tests.support.browser import chromium
from tests.support.commands import Ran

for _name in (
    *("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("COLUMNS", "LINES"),
):
    os.environ.pop(_name, None)  # tests read tables


# Markers of tests outside the quick loop, by the folder or by a fixture of the test.  `process` and
# `cluster` are written at the tests.
_FOLDERS = {"examples": "examples", "faults": "faults"}
_FIXTURES = {
    "data_folder": "golden",
    "golden_scores": "golden",
    "browser": "browser",
    "ten_nights": "long",
}
# Examples in docstrings, which cannot be marked, that start a process
_EXAMPLES_WITH_PROCESSES = {"calibscale.planning.cost_plan.plan"}
_MARKERS = {"process", "cluster", "benchmarks", "slow", *_FOLDERS.values(), *_FIXTURES.values()}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = {_FOLDERS[part] for part in item.path.parts if part in _FOLDERS}
        fixtures = {_FIXTURES[name] for name in item.fixturenames if name in _FIXTURES}  # type: ignore[attr-defined]
        for marker in sorted(folders | fixtures):
            item.add_marker(marker)
        if item.name in _EXAMPLES_WITH_PROCESSES:
            item.add_marker("process")
    # The files that take minutes begin first, so that no process works alone in the end.
    longest = ("test_site.py", "test_benchmarks.py")
    items.sort(key=lambda item: item.path.name not in longest)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    """Close the figures that a test has drawn, since matplotlib warns of more than 20."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


_running: pytest.Item | None = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _running
    _running = item
    try:
        return (yield)
    finally:
        _running = None


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test of the quick loop that starts a process."""
    if event not in ("subprocess.Popen", "os.fork", "os.posix_spawn") or _running is None:
        return
    if "ldconfig" in str(arguments[:1]):  # by which threadpoolctl may find libc
        return
    if not _MARKERS & {marker.name for marker in _running.iter_markers()}:
        raise AssertionError(f"{_running.nodeid} starts a process: mark it `process`")


sys.addaudithook(_refuse_processes)


def _shared(folder: str) -> Path:
    root = os.environ.get("CALIBSCALE_DATA")
    if not root:
        pytest.skip("CALIBSCALE_DATA does not name the folder of real data and golden values")
    path = Path(root) / folder
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="session")
def data_folder() -> Path:
    return _shared("data")


@pytest.fixture(scope="session")
def golden_scores() -> dict[str, dict[str, float]]:
    return json.loads((_shared("golden") / "first_2000_rows.json").read_text())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium with an empty profile."""
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session")
def scoringrules() -> Any:
    """The library of that name, which compiles its functions for seconds when it is imported."""
    return importlib.import_module("scoringrules")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture
def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """400 rows of 5 classes, labels drawn from tempered predictions, a group and weights."""
    logits = rng.normal(size=(400, 5)) * 2
    heat = np.exp(logits / 2)
    p = heat / heat.sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((400, 1))).sum(1)
    return {
        "logits": logits,
        "labels": labels,
        "covariates": rng.integers(0, 3, (400, 1)).astype(float),
        "weights": rng.uniform(0.2, 3.0, 400),
    }


@pytest.fixture
def source(arrays: dict[str, np.ndarray]) -> calibscale.ArraySource:
    return calibscale.from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        covariates=arrays["covariates"],
        covariate_names=["group"],
    )


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Ran]]:
    """Function that runs a command in this process."""
    monkeypatch.setenv("COLUMNS", "120")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: Any) -> Ran:
        capsys.readouterr()
        code: Any = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return Ran(code, *capsys.readouterr())

    yield run
    logging.getLogger("asyncio").setLevel(logging.NOTSET)
    for number, handler in before.items():
        signal.signal(number, handler)
