"""The command ``calibscale report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibscale.output.report import report
from tests.support.html_page import checked
from tests.support.report_results import command_results, night


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Ledger with nights of two models. One of them has a slash in its name."""
    folder = tmp_path / "ledger"
    for name, model in (("v3", "v3"), ("team%2Fv4", "team/v4")):
        (folder / "results" / name).mkdir(parents=True)
        for day in ("2026-11-19", "2026-11-20"):
            text = json.dumps(night() | {"model": model, "day": day})
            (folder / "results" / name / f"{day}.json").write_text(text)
    (folder / "index.log").write_text("")
    return folder


@pytest.mark.long
def test_cli_report__of_files(run: Any, tmp_path: Path) -> None:
    paths = []
    for kind in ("test", "ranking"):
        paths.append(tmp_path / f"{kind}.json")
        paths[-1].write_text(json.dumps(command_results()[kind]))
    out = tmp_path / "out.html"
    ran = run("report", *paths, "-o", out, "--title", "Both")
    assert (ran.code, ran.err) == (0, f"wrote {out}\n")
    assert checked(out.read_text()).text.strip().startswith("Both")
    assert run("report", paths[0], "-o", "-").out == report([command_results()["test"]])


@pytest.mark.slow
def test_cli_report__of_a_ledger_contains_the_latest_night_of_each_model(
    run: Any, ledger: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    assert run("report", ledger, "-o", out).code == 0
    page = checked(out.read_text())
    assert page.count("article") == 2
    assert "Night of 19 Nov" not in page.text
    assert run("report", ledger, "-o", out, "--model", "team/v4", "--date", "2026-11-19").code == 0
    page = checked(out.read_text())
    assert page.count("article") == 1
    assert "team/v4" in page.text
    assert "Night of 19 Nov 2026" in page.text


@pytest.mark.slow
@pytest.mark.process
def test_cli_report__does_not_import_storage_libraries(ledger: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from calibscale.cli import main\n"
        f"try: main(['report', {str(ledger)!r}, '-o', {str(tmp_path / 'out.html')!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'zarr', 'dask', 'numba', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("missing.json", "-o", "out.html"), 2, "missing.json: there is no such file"),
        (("text.json", "-o", "out.html"), 2, "text.json: not JSON"),
        (("list.json", "-o", "out.html"), 2, "list.json: not a result of calibscale"),
        (
            ("newer.json", "-o", "out.html"),
            2,
            "newer.json: calibscale.test/7 was written by a newer",
        ),
        (("good.json", "-o", "no/such/folder/out.html"), 2, "cannot be written"),
        (("good.json", "-o", "folder"), 2, "is a folder"),
        (("folder", "-o", "out.html"), 2, "neither a result nor a ledger"),
        (
            ("good.json", "-o", "out.html", "--date", "2026-11-19"),
            2,
            "need a LEDGER, whose nights they select",
        ),
        (("good.json",), 2, "--output"),
        (("ledger", "-o", "out.html", "--model", "v9"), 2, "no night of model 'v9'; models: "),
        (("ledger", "-o", "out.html", "--date", "2026-01-01"), 2, "no night of 2026-01-01"),
    ],
)
def test_cli_report__errors_name_the_cause(
    run: Any, ledger: Path, monkeypatch: Any, arguments: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(ledger.parent)
    Path("text.json").write_text("{")
    Path("list.json").write_text("[]")
    Path("newer.json").write_text(
        json.dumps(command_results()["test"] | {"schema": "calibscale.test/7"})
    )
    Path("good.json").write_text(json.dumps(command_results()["test"]))
    Path("folder").mkdir()
    ran = run("report", *arguments)
    assert ran.code == code
    assert message in ran.err
    assert not Path("out.html").exists()
