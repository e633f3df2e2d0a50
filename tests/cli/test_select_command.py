"""``calibscale select``: results, table, plot and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibscale import LogitStore, select
from calibscale.formatting.number_texts import number

ROWS = 1500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    z = 2 * rng.normal(size=(ROWS, 3))
    y = np.where(rng.random(ROWS) < 0.8, z.argmax(1), rng.integers(0, 3, ROWS))
    path = tmp_path_factory.mktemp("select") / "day.zarr"
    with LogitStore.create(path, classes=3, dtype=np.float64).writer() as writer:
        writer.append(z, y)
    return path


@pytest.mark.long
def test_select__json_is_what_python_returns(run: Any, store: Path) -> None:
    result = run("select", store, "--json", "-", "--estimators", "bins,ukkr,temperature").json
    expected = select(store, "top_label", ["bins", "ukkr", "temperature"])
    assert result["schema"] == "calibscale.selection/1"
    assert result["candidates"] == json.loads(json.dumps(expected.to_dict()["candidates"]))
    assert result["selected"]["risk"] == min(c["risk"] for c in result["candidates"])
    assert set(result["selected"]) >= {
        *("estimator", "hyperparameter", "risk", "risk_folds", "estimate", "estimate_folds"),
        *("risk_standard_error", "difference_standard_error", "estimate_standard_error"),
    }
    assert result["features"]["rank"] > 5
    assert result["features"]["trace_residual"] < 1e-12
    assert result["seconds"] > 0


@pytest.mark.long
def test_select__the_table_names_the_chosen_one(run: Any, store: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("select", store, "--notion", "class_wise")
    assert ran.code == 0
    assert "…" not in " ".join(ran.out.split()).replace(" … ", "")
    best = select(store, "class_wise").selected
    assert f"{best.estimator} has the smallest risk" in ran.out
    assert number(best.estimate).replace("−", "-") in ran.out


def test_select__grids_of_means_go_to_their_default_estimators(run: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(4).gamma(2.0, size=(300, 2))
    np.savetxt(tmp_path / "means.csv", x, delimiter=",", header="x,y", comments="")
    columns = ("--predictions", "x", "--labels", "y", "--forecast", "mean")
    result = run(
        "select", tmp_path / "means.csv", *columns, "--grid", "ukkr=0.1,0.2", "--json", "-"
    ).json
    of_name: dict[str, list[float]] = {}
    for candidate in result["candidates"]:
        (value,) = candidate["hyperparameter"].values()
        of_name.setdefault(candidate["estimator"], []).append(value)
    assert set(of_name) == {"bins", "kkr", "ukkr"}
    assert of_name["ukkr"] == [0.1, 0.2]


def test_select__grids_split_and_settings_arrive(run: Any, store: Path, tmp_path: Path) -> None:
    folds = np.random.default_rng(0).integers(-1, 3, ROWS)
    np.save(tmp_path / "folds.npy", folds)
    result = run(
        *("select", store, "--json", "-", "--split", tmp_path / "folds.npy", "--bandwidth", 0.3),
        *("--grid", "ukkr=0.1,0.01", "--grid", "kde=0.05", "--estimators", "kde,ukkr", "--nested"),
    ).json
    grid = [(c["estimator"], c["hyperparameter"]) for c in result["candidates"]]
    assert grid == [("kde", {"h": 0.05}), ("ukkr", {"reg": 0.1}), ("ukkr", {"reg": 0.01})]
    assert len(result["selected"]["risk_folds"]) == 3
    assert result["features"]["bandwidth"] == 0.3
    assert len(result["nested"]["estimate_folds"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--estimators", "bins,nonsense"], "no 'nonsense'"),
        (["--grid", "ukkr=0.1,x"], "is not a number"),
        (["--grid", "ukkr=0.1,-2"], "positive"),
        (["--grid", "ukkr"], "NAME=VALUE"),
        (["--grid", "temperature=2"], "is not a selected estimator"),
        (["--grid", "isotonic=2", "--estimators", "isotonic"], "is not a selected estimator"),
        (["--grid", "kkr=1", "--estimators", "bins"], "is not a selected estimator"),
        (["--notion", "canonical", "--estimators", "bins"], "does not support the notion"),
        (["--notion", "positive"], "two classes"),
        (["--folds", "1"], "'--folds': 1 is not in the range x>=2"),
        (["--test-fraction", "1"], "'--test-fraction': 1.0 is not in the range"),
        (["--json", "a.svg", "--plot", "./a.svg"], "--json and --plot cannot both be"),
        (["--bandwidth", "0"], "bandwidth"),
        (["--kernel", "laplacian", "--features", "random"], "Gaussian"),
        (["--split", "nowhere.npy"], "cannot be read"),
        (["--json", "/nowhere/x.json"], "there is no folder /nowhere"),
        (["--plot", "picture.txt"], "end in"),
        (["--rank", "0"], "rank"),
    ],
)
def test_select__usage_errors_say_what_to_do(
    run: Any, store: Path, arguments: list[str], words: str
) -> None:
    ran = run("select", store, *arguments)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_select__a_picture_appears_whole(
    run: Any, store: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"risks.{suffix}"
    ran = run("select", store, "--estimators", "bins,kkr,temperature", "--plot", path, "-q")
    assert (ran.code, ran.out) == (0, "")
    assert path.stat().st_size > 5000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == "svg":
        text = path.read_text()
        assert "kkr" in text or "<path" in text


@pytest.mark.process
def test_select__the_core_does_not_import_matplotlib(store: Path) -> None:
    code = (
        "import sys, calibscale; calibscale.select(sys.argv[1], 'top_label', ['bins']); "
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(store)], check=True)
