"""Options that declare labels and probabilities, alike in all commands."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

N = 300
RNG = np.random.default_rng(5)
P = RNG.random(N).round(2)
Y = (RNG.random(N) < P).astype(int)


@pytest.fixture
def signs(tmp_path):
    path = tmp_path / "signs.csv"
    frame = {"p": [f"{100 * p:.0f}%" for p in P], "y": 2 * Y - 1}
    pd.DataFrame(frame).to_csv(path, index=False)
    return path


NAMED = ("--labels", "y", "--probabilities", "p")
COMMANDS = (("evaluate",), ("check", "-b", 9), ("plan",), ("reliability",), ("test", "-b", 9))


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands__take_the_same_declarations(run, signs, command):
    """Refused with the option, and taken with it, with and without --binary."""
    name, *options = command
    percent = run(name, signs, *NAMED, *options)
    assert (percent.code, "pass percent=True (--percent)" in percent.err) == (4, True)
    refused = run(name, signs, *NAMED, "--percent", *options)
    assert (refused.code, "--positive 1" in refused.err) == (4, True)
    for binary in ((), ("--binary",)):
        ran = run(name, signs, *NAMED, "--percent", "--positive", 1, *binary, *options)
        assert ran.code == 0, ran.err


def test_ingest__takes_the_same_declarations(run, signs, tmp_path):
    store = tmp_path / "s.zarr"
    assert "--percent" in run("ingest", signs, store, *NAMED).err
    assert "--positive 1" in run("ingest", signs, store, *NAMED, "--percent").err
    assert not store.exists()
    for binary in ((), ("--binary",)):
        options = ("--percent", "--positive", 1, "--overwrite", *binary)
        assert run("ingest", signs, store, *NAMED, *options).code == 0
    result = run("evaluate", store, "-e", "accuracy", "--json", "-").json
    # about 1 % of the rows are ties at 50 %
    assert result["results"][0]["value"] == pytest.approx(((P > 0.5) == Y).mean(), abs=0.02)
    assert result["source"]["class_names"] == ["-1", "1"]
    assert run("evaluate", store, "--binary", "-e", "accuracy").code == 0


@pytest.mark.long
def test_logprobs__are_known_in_every_command(run, tmp_path):
    """Lists of log-probabilities, and answers that are letters."""
    q = RNG.dirichlet(np.ones(4), N)
    right = RNG.integers(0, 4, N)
    lines = [
        {"logprobs": np.log(row).tolist(), "answer": "ABCD"[k], "choices": ["w", "x", "y", "z"]}
        for row, k in zip(q, right, strict=True)
    ]
    path, store = tmp_path / "questions.jsonl", tmp_path / "q.zarr"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for command in (("evaluate", path, "-e", "accuracy"), ("check", path, "-b", 9)):
        assert run(*command).code == 0
    assert run("ingest", path, store).code == 0
    value = run("evaluate", store, "-e", "accuracy", "--json", "-").json["results"][0]["value"]
    assert value == pytest.approx((q.argmax(1) == right).mean())


def test_names__of_the_field_are_estimators(run, signs):
    """The same on the command line."""
    options = (*NAMED, "--percent", "--positive", 1, "--json", "-")
    names = ("ECE", "brier-score", "log_loss")
    ran = run("evaluate", signs, *options, *(part for name in names for part in ("-e", name)))
    assert [entry["estimator"] for entry in ran.json["results"]] == ["ece", "brier", "nll"]
    sentence = run("evaluate", signs, *options, "-e", "static_ece")
    assert (sentence.code, "use cwce2" in sentence.err) == (2, True)
