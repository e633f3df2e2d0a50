"""Start of a process that computes blocks."""

from __future__ import annotations

import pickle
import sys
from dataclasses import fields

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.source import ArraySource
from calibscale.planning.measured_times import sent_to_worker
from calibscale.planning.process_start import process_trial
from calibscale.session import Session
from calibscale.statistics.one_pass import scan_of


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("sent", [b"", pickle.dumps((1, 2))])
def test_process_trial__of_a_process_that_fails_is_unknown(sent):
    assert process_trial(sent) is None


@pytest.fixture
def sent(rng):
    """Pickled task of a small source."""
    source = cs.from_arrays(logits=rng.standard_normal((500, 3)), labels=rng.integers(0, 3, 500))
    with Session.open(source) as session:
        run = session.run(["ece"])
        needs = tuple(dict.fromkeys(s for e in run.fitting for s in e.needs))
        return sent_to_worker(scan_of(run.source, needs, run.rules))


@pytest.mark.cluster
@pytest.mark.process
def test_process_trial__books_shared_imports_as_the_start_of_the_process(sent):
    trial = process_trial(sent)
    assert trial.dask is not None
    assert trial.dask.task > 0
    # An interpreter with NumPy and Numba takes longer than the imports that Dask adds to them.
    assert trial.start.process > trial.start.dask > 0


@pytest.mark.parametrize("name", ["true", "python3"])
@pytest.mark.process
def test_process_trial__with_another_program_as_the_interpreter_is_unknown(
    sent, name, tmp_path, monkeypatch
):
    """A program that embeds Python may be named in its place, and print anything."""
    program = tmp_path / name
    program.write_text('#!/bin/sh\ncat > /dev/null\ntouch "$0.started"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert process_trial(sent) is None
    # A program that cannot be Python is not started.
    assert (tmp_path / f"{name}.started").exists() == (name == "python3")


def test_process_trial__of_a_frozen_program_is_unknown(sent, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert process_trial(sent) is None


def test_plan__of_a_source_with_a_local_class_has_no_start(rng):
    class LocalSource(ArraySource):
        """Source whose class pickle cannot find by name."""

    arrays = cs.from_arrays(probabilities=rng.dirichlet(np.ones(3), 50), labels=[0, 1] * 25)
    settings = {field.name: getattr(arrays, field.name) for field in fields(arrays) if field.init}
    planned = cs.plan(LocalSource(**settings), "ece", workers=2)
    assert planned.cluster.task_bytes == 0
    assert [time.kind for time in planned.parallel] == ["threads", "threads"]
    assert "The start of a process was not measured and is not in the totals." in planned.remarks
