"""README and pages of docs: blocks of code run unchanged, and links of the README have targets.

Building the documentation runs the blocks that have an output, and the scripts: `test_site`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from calibscale import LogitStore
from calibscale.cli import main
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.job.known_checks import CHECKS
from tests.support import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted(p for p in ROOT.glob("docs/**/*.md") if "generated" not in p.parts)]
FAST = {  # options that make slow commands fast
    "calibscale power": ["--trials", "10", "--replicates", "19", "--most", "400"],
    "calibscale demo": ["--rows", "2000"],
}


class Block(NamedTuple):
    """Fenced block, its page and its heading."""

    page: str
    section: str
    language: str
    text: str


def blocks(*languages: str, pages: Sequence[Path] = PAGES) -> list[Block]:
    """Blocks of these languages, in order. There are none beside an installed wheel."""
    result = []
    for page in filter(Path.exists, pages):
        section, fence, lines = page.stem, "", []
        for line in page.read_text().splitlines():
            if fence and line == "```":
                result.append(Block(page.stem, section, fence, "\n".join(lines)))
                fence = ""
            elif fence:
                lines.append(line)
            elif line.startswith("```"):
                fence, lines = line[3:] or "none", []
            elif line.startswith("## "):
                section = line[3:]
    return [block for block in result if block.language in languages]


def each(*languages: str) -> pytest.MarkDecorator:
    """Parametrize a test over blocks, named after their headings."""
    ids = []
    for (page, section), group in groupby(blocks(*languages), key=lambda b: (b.page, b.section)):
        ids += [f"{page}-{section.replace(' ', '-')}-{i}" for i, _ in enumerate(group)]
    return pytest.mark.parametrize("block", blocks(*languages), ids=ids)


def files() -> dict[str, Any]:
    """Functions that write the files of executed pages."""
    return runpy.run_path(str(ROOT / "docs" / "_ext" / "prepared_files.py"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """Folder with the files that pages assume."""
    folder = tmp_path_factory.mktemp("pages")
    predictions, write = itemgetter("predictions", "write_store")(files())
    arrays = predictions(600, 0)
    np.savez(folder / "predictions.npz", covariate_names=["region"], **arrays)
    write(folder / "predictions.zarr", arrays)
    for name, temperature in (("a", 1.0), ("b", 1.5), ("c", 2.0)):
        write(folder / f"{name}.zarr", predictions(600, 1, temperature=temperature))
    rng = np.random.default_rng(2)
    age, region = rng.uniform(20, 70, 800), rng.integers(0, 3, 800)
    p = rng.uniform(0.05, 0.95, 800)
    loans = LogitStore.create(
        folder / "loans.zarr",
        classes=2,
        kind="probabilities",
        binary=True,
        dtype=np.float64,
        covariate_names=["age", "region"],
    )
    with loans.writer() as writer:
        writer.append(p, (rng.random(800) < p).astype(int), covariates=np.c_[age, region])
    (folder / "predictions").mkdir()
    for number, day in enumerate(("2026-11-13", "2026-11-20")):
        write(folder / "predictions" / f"{day}.zarr", predictions(600, 3 + number))
    (folder / "out").mkdir()
    (folder / "job.toml").write_text(_job("nightly"))
    _frame().to_parquet(folder / "predictions.parquet")
    with contextlib.chdir(folder):
        files()["risks"](2000)
    _write_lake(folder / "lake")
    (folder / "lake.toml").write_text(_job("lake"))
    mean = rng.normal(10.0, 3.0, 400)
    demand = pd.DataFrame({"mean": mean, "sd": 2.0, "demand": rng.normal(mean, 2.5)})
    demand = demand.assign(q_10=mean - 2.56, q_50=mean, q_90=mean + 2.56)
    demand.to_parquet(folder / "demand.parquet")
    log = Path(__file__).parents[1] / "support" / "samples_local_choice.jsonl"
    shutil.copy(log, folder / "samples_arc_easy_2026-11-20.jsonl")
    (questions,) = (block.text for block in blocks("json") if block.page == "files")
    (folder / "questions.jsonl").write_text(f"{questions}\n" * 20)
    top = [{"p": [0.71, 0.2, 0.03], "classes": [4, 917, 12], "label": k} for k in (4, 917, 5)]
    pd.DataFrame(top * 20).to_parquet(folder / "top.parquet")
    (folder / "top.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in top * 20))
    return folder


def _frame() -> pd.DataFrame:
    """Columns p_cat, p_dog, p_fox, animal and region of a classifier of three classes."""
    arrays = files()["predictions"](300, 5, classes=3)
    heat = np.exp(arrays["logits"])
    names = np.array(["cat", "dog", "fox"])
    frame = pd.DataFrame(heat / heat.sum(1, keepdims=True), columns=[f"p_{n}" for n in names])
    region = np.array(["north", "south"])[arrays["covariates"][:, 0].astype(int)]
    return frame.assign(animal=names[arrays["labels"]], region=region)


def _job(page: str) -> str:
    """The job file of a page."""
    (job,) = (block.text for block in blocks("toml") if block.page == page)
    return job


def _write_lake(folder: Path) -> None:
    """Partitions of the same columns by date and region."""
    for day in ("2026-08-31", "2026-09-01", "2026-09-02"):
        for region, rows in _frame().groupby("region"):
            place = folder / f"date={day}" / f"region={region}"
            place.mkdir(parents=True)
            rows.drop(columns="region").to_parquet(place / "part-0.parquet")
        (folder / f"date={day}" / "_SUCCESS").touch()


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch) -> Path:
    """Working copy of `prepared`."""
    place = tmp_path / "work"
    shutil.copytree(prepared, place)
    monkeypatch.chdir(place)
    return place


def _faster(words):
    """Arguments of a command, with the options of `FAST` instead of its own."""
    fast = FAST.get(" ".join(words[:2]), [])
    arguments = words[1:]
    for option in fast[::2]:
        if option in arguments:
            at = arguments.index(option)
            arguments = arguments[:at] + arguments[at + 2 :]
    return [*arguments, *fast]


@each("console")
def test_commands__run(block, folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    assert commands
    if any(command.startswith("calibscale ingest") for command in commands):
        shutil.rmtree(folder / "predictions.zarr")
    if any(command.endswith("&") for command in commands):
        in_a_shell(commands)
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        for command in commands:
            words = shlex.split(command, comments=True)
            if "pip" in words and "&&" not in words:
                continue
            if "&&" in words:  # what follows an installation
                words = words[words.index("&&") + 1 :]
            if words[0] == "tox":
                continue
            assert words[0] == "calibscale"
            if "--memory-limit" in words:
                in_a_process(words[1:])
                continue
            code = 0
            try:
                main(_faster(words))
            except SystemExit as end:
                code = end.code
            assert code in (0, 3, 5), f"{command}: exit code {code}\n{capsys.readouterr().err}"
    finally:
        signal.signal(signal.SIGTERM, before)


def in_a_process(arguments: list[str]) -> None:
    """Run a command whose limit the memory of this process, after other tests, may exceed."""
    command = [sys.executable, "-m", "calibscale", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def in_a_shell(commands: list[str]) -> None:
    """Run all commands in one shell, and end its background processes.

    The scheduler takes any free port, and the shell waits for it.
    """
    text = "\n".join(commands).replace(
        "dask scheduler --scheduler-file scheduler.json &",
        "dask scheduler --port 0 --no-dashboard --scheduler-file scheduler.json &\n"
        "until [ -s scheduler.json ]; do sleep 0.1; done",
    )
    assert "--port 0" in text
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-e", "-c", text],
        env={**os.environ, "PATH": path},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        shell.wait(400)
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        out, _ = shell.communicate(timeout=30)
    assert shell.returncode == 0, out


@pytest.fixture(scope="module")
def names() -> Callable[[str], dict[str, Any]]:
    """Names that blocks of Python assume, and that they leave to later blocks of their page."""
    frame = _frame()
    p, animals = frame.iloc[:, :3].to_numpy(), frame["animal"].to_numpy()
    X, y = np.log(p), np.unique(animals, return_inverse=True)[1]
    arrays = files()["predictions"](300, 5)

    @cache
    def of_page(page: str) -> dict[str, Any]:
        return {
            "model": LogisticRegression().fit(X, y),
            "X": X,
            "y": y,
            "names": animals,
            "p": p,
            "frame": frame,
            "w": np.ones(300),
            "region": arrays["covariates"][:, 0],
            "batches": [(arrays["logits"], arrays["labels"], arrays["covariates"])],
            "loader": [(X, y)],
        }

    return of_page


@each("python")
def test_python__runs(block, names, folder, monkeypatch):
    for table in (ESTIMATORS, CHECKS):  # other tests list all names
        monkeypatch.setattr(table, "_registered", {})
    if "LogitStore.create" in block.text:
        shutil.rmtree(folder / "predictions.zarr")
    if "mlflow" in block.text:
        pytest.importorskip("mlflow", reason="needs mlflow-skinny and SQLAlchemy")
        pytest.importorskip("sqlalchemy", reason="needs mlflow-skinny and SQLAlchemy")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    namespace = names(block.page)
    # The imports from __future__ of this module are not those of a reader.
    code = compile(block.text, f"{block.page}, {block.section}", "exec", dont_inherit=True)
    exec(code, namespace)
    if block.page == "tasks":
        assert len([line for line in block.text.splitlines() if line.strip()]) <= 5
    if "np.savez" in block.text:
        main(["ingest", "predictions.npz", "again.zarr"])
        assert LogitStore.open("again.zarr").rows == len(namespace["y"])


def test_own_estimator__takes_at_most_60_lines_of_code():
    texts = [block.text for block in blocks("python") if block.page == "own_estimator"]
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    assert 0 < len(lines) <= 60 or not README.exists()


@each("toml")
def test_job_files__are_valid(block, tmp_path):
    # A part of the pyproject.toml of another package, or of a job with a check of it.
    if block.text.startswith(("[project", "[[checks]]")):
        assert tomllib.loads(block.text)
        return
    job = tmp_path / "job.toml"
    job.write_text(block.text)
    read_job(job)


@pytest.mark.skipif(not README.exists(), reason="no README beside an installed wheel")
def test_readme__is_short_and_its_links_lead_somewhere():
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    paths = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_and_scripts__exist(page):
    """Every option that a page names is one of calibscale's or of a script that it names."""
    if not page.exists():
        pytest.skip("no README beside an installed wheel")
    from calibscale.cli import cli

    def options(command) -> set[str]:
        by_name = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        return by_name.union(*(options(c) for c in getattr(command, "commands", {}).values()))

    foreign = {"--scheduler-file", "--nworkers", "--nthreads", "--help"}  # of dask, and of all
    text = page.read_text()
    for path in re.findall(r"`(?:python )?(examples/[\w./]+|benchmarks/[\w./]+)", text):
        assert (ROOT / path).exists(), path
        if path.endswith(".py"):
            foreign |= set(re.findall(r"\"(--[a-z][a-z-]+)", (ROOT / path).read_text()))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named - foreign <= options(cli)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """What an example prints."""

    def run(script: str, *arguments: object) -> str:
        path = str(ROOT / "examples" / script)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


def test_first_look__sees_an_overconfident_model(run, tmp_path):
    out = run("first_look.py")
    value, low, high = map(
        float, re.search(r"ece  ([\d.]+) in \[([\d.]+), ([\d.]+)\]", out).groups()
    )
    assert 0.05 < low < value < high
    assert len(re.findall(r"p = 0\.005", out)) == 2  # the least of 199 draws
    assert (tmp_path / "first_look.png").stat().st_size > 10_000


def test_first_look__takes_a_store(run, prepared):
    out = run("first_look.py", prepared / "predictions.zarr")
    assert "tce2_debiased" in out


def test_own_estimator__tells_over_from_under(run):
    out = run("own_estimator.py")
    groups = re.findall(r"under = (\d): overconfidence ([\d.]+), ECE ([\d.]+)", out)
    (_, over, ece), (_, under, ece_under) = [tuple(map(float, g)) for g in groups]
    assert over > 0.8 * ece > 0.01
    assert under < 0.2 * ece_under
    assert "p = 0.005" in out
