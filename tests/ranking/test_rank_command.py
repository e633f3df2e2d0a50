"""The command `calibscale rank`."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import numpy as np
import pytest

from calibscale import ECE, LogitStore
from calibscale.cli import main
from calibscale.ranking.rank import rank
from tests.support.models import sources_of


@pytest.fixture
def run(capsys, monkeypatch):
    """(code, out, err) of a command in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: Any, width: int = 80) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        code: Any = 0
        try:
            main(["rank", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
        return (code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def stores(data, tmp_path):
    models, y = data
    paths = []
    for name in ("bold", "true"):
        paths.append(tmp_path / f"{name}.zarr")
        store = LogitStore.create(paths[-1], classes=3, dtype=np.float64)
        with store.writer() as writer:
            writer.append(models[name], y)
    return paths


@pytest.mark.long
def test_rank__models_are_named_after_their_files(stores):
    assert set(rank(stores, ECE()).names) == {"bold", "true"}
    assert rank(str(stores[0]), ECE()).names == ("bold",)
    assert rank([LogitStore.open(stores[1])], ECE()).names == ("true",)


@pytest.mark.long
def test_cli__ranks_two_stores(run, stores, data, tmp_path):
    models, y = data
    path = tmp_path / "r.json"
    code, out, err = run(*stores, "--json", path, "--subset-size", 100, "--trials", 10)
    assert code == 0, err
    result = json.loads(path.read_text())
    expected = rank(
        sources_of({name: models[name] for name in ("bold", "true")}, y), subset_size=100, trials=10
    ).to_dict()
    assert result["schema"] == "calibscale.ranking/1"
    for name in ("common", "differences", "agreement", "p_order", "paired"):
        assert result[name] == expected[name]
    assert [model["name"] for model in result["models"]] == ["true", "bold"]
    assert [model["rank_probabilities"] for model in result["models"]] == [
        model["rank_probabilities"] for model in expected["models"]
    ]
    lines = out.splitlines()
    assert lines[0].startswith("Ranking by ckce_centred: 600 rows")
    start = next(i for i, line in enumerate(lines) if line.startswith("model "))
    assert lines[start + 1].split()[:2] == ["true", "1"]
    assert lines[start + 2].split()[:2] == ["bold", "2"]
    assert "10 random subsets of 100 rows" in out
    assert err == f"wrote {path}\n"


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
def test_cli__tables_fit_the_screen(run, stores, width):
    names = ["--name", "a network of many layers", "--name", "another_network_of_many_more_layers"]
    code, out, _ = run(*stores, *names, "--subset-size", 200, "--trials", 4, width=width)
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in re.sub(r"(?<=\d) ?… ?(?=[\d−])", "", out)


@pytest.mark.long
def test_cli__options_reach_the_estimator(run, stores):
    options = ["--bandwidth", "0.5", "--features", "30", "--seed", "7", "--json", "-"]
    code, out, err = run(*stores, "--by", "cmmd(ridge=0.1, exponent=2)", *options)
    assert code == 0, err
    result = json.loads(out)
    assert result["estimator"] == "cmmd"
    assert result["parameters"]["seed"] == 7
    common = {
        name: result["common"][name] for name in ("bandwidth", "ridge", "exponent", "features")
    }
    assert common == {"bandwidth": 0.5, "ridge": 0.1, "exponent": 2.0, "features": 30}
    assert run(*stores, "--by", "ece(bins=9)", "--seed", 7, "--quiet")[:2] == (0, "")


@pytest.mark.long
def test_cli__invalid_arguments_exit_with_an_error(run, stores, tmp_path, data):
    assert run()[0] == 2
    assert run(*stores, "--name", "a")[0] == 2
    assert run(*stores, "--name", "a", "--name", "a")[0] == 2
    assert run(*stores, "--by", "accuracy")[0] == 2
    assert run(*stores, "--by", "ece", "--bandwidth", 0.1)[0] == 2
    assert run(*stores, "--subset-size", 10_000)[0] == 2
    assert "'--confidence': 95.0 is not in" in run(*stores, "--confidence", 95)[2]
    assert run(stores[0], tmp_path / "none.zarr")[0] == 1
    wide = LogitStore.create(tmp_path / "wide.zarr", classes=4, dtype=np.float64)
    with wide.writer() as writer:
        writer.append(np.zeros((5, 4)), np.zeros(5, int))
    code, _, err = run(stores[0], tmp_path / "wide.zarr")
    assert code == 2
    assert "different numbers of classes" in err


def test_cli__a_single_rank_gives_no_order(run, stores, tmp_path):
    empty = LogitStore.create(tmp_path / "empty.zarr", classes=3, dtype=np.float64)
    with empty.writer() as writer:
        writer.append(np.zeros((5, 3)), np.full(5, -1))
    code, out, _ = run(stores[0], tmp_path / "empty.zarr", "--by", "ece")
    assert code == 0
    assert "empty has no rank" in out
    assert "complete order" not in out


@pytest.mark.long
def test_cli__notes_different_rows(run, stores, data):
    with LogitStore.open(stores[1]).writer() as writer:
        writer.append(data[0]["true"][:3], np.array([0, -1, 1]))
    code, out, _ = run(*stores, "--by", "ece")
    assert code == 0
    assert "600 to 602 rows" in out
    assert "without a label yet" in out
    names = ("--name", "a", "--name", "b[/x][red]")  # shown as text, not interpreted as markup
    code, out, _ = run(*stores, "--by", "ece", *names)
    assert code == 0
    assert re.search(r"^b\[/x\]\[red\] +without a label yet +1$", out, re.MULTILINE)
    assert "independent samples" in out.replace("\n", " ")


@pytest.mark.long
def test_cli__equal_models_share_a_rank(run, stores):
    code, out, _ = run(stores[0], stores[0], stores[1], "--json", "-")
    assert code == 0
    assert [model["rank"] for model in json.loads(out)["models"]] == [1, 2, 2]
    code, out, _ = run(stores[0], stores[0], stores[1])
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model "))
    ranks = [re.search(r" {2,}(\d) ", line) for line in lines[start + 1 : start + 4]]
    assert [rank[1] for rank in ranks if rank] == ["1", "2", "2"]


@pytest.mark.long
def test_cli__many_models_are_compared_in_pairs(run, stores):
    code, out, _ = run(*stores, *stores, *stores, "--by", "ece")
    assert code == 0
    assert "of 15 pairs differ" in out
    assert out.count("true (2)") == 7  # the verdict, the table, and five pairs
