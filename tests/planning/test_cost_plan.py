"""Expected costs of a run, against costs of worker processes."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.statistics.one_pass import Scan

ROWS, CLASSES = 1_000_000, 10
ESTIMATORS = (cs.ECE(), cs.JKCE(cs.RandomFourier(100, bandwidth=0.5)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("plan") / "many.zarr"
    created = cs.LogitStore.create(path, classes=CLASSES)
    with created.writer() as writer:
        logits = rng.standard_normal((ROWS, CLASSES)).astype(np.float32)
        writer.append(logits, rng.integers(0, CLASSES, ROWS))
    return path


@pytest.fixture(scope="module")
def large_plan(store: Path) -> cs.Plan:
    return cs.plan(store, ESTIMATORS, rows=10**9, workers=64)


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
@pytest.mark.cluster
def test_plan__of_two_workers_agrees_with_two_workers(store: Path) -> None:
    from distributed import Client, LocalCluster
    from distributed.diagnostics.plugin import SchedulerPlugin

    class States(SchedulerPlugin):  # type: ignore[misc]
        """Sizes of the states that tasks return."""

        sizes: dict[str, int] = {}  # noqa: RUF012

        def transition(self, key: str, start: str, finish: str, *_: Any, **more: Any) -> None:
            if finish == "memory" and key.startswith("calibscale-") and key.count("-") == 3:
                self.sizes[key] = more["nbytes"]

    planned = cs.plan(store, ESTIMATORS, workers=2).cluster
    assert planned is not None
    few = cs.from_arrays(logits=np.zeros((4000, CLASSES)), labels=np.zeros(4000, int))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cs.evaluate(few, ESTIMATORS, scheduler=client)  # imports, compiled code
        before = client.run(_peak)
        states = States()
        cluster.scheduler.add_plugin(states)
        cs.evaluate(store, ESTIMATORS, scheduler=client)
        after = client.run(_peak)
    assert len(states.sizes) == planned.tasks
    # Dask counts objects, the plan their pickles
    assert sum(states.sizes.values()) == pytest.approx(planned.tasks * planned.state_bytes, rel=0.1)
    assert planned.blocks == -(-ROWS // cs.LogitStore.open(store).source.block_rows)
    # memory kept by the allocator, and zarr's threads
    slack = 30e6
    assert max(after[w] - before[w] for w in after) < planned.worker_memory + slack


@pytest.mark.cluster
def test_plan__of_more_rows_has_more_tasks_of_the_same_states(
    store: Path, large_plan: cs.Plan
) -> None:
    small, large = cs.plan(store, ESTIMATORS, workers=64), large_plan
    assert small.cluster is not None
    assert large.cluster is not None
    assert large.rows == 10**9
    assert large.costs[0].bytes_read == pytest.approx(small.costs[0].bytes_read * 10**9 / ROWS)
    assert large.cluster.blocks == -(-(10**9) // cs.LogitStore.open(store).source.block_rows)
    assert large.cluster.tasks >= 12 * 64  # so that the workers finish at similar times
    first, higher = Scan.arities
    depth = large.cluster.merge_depth
    assert first * higher ** (depth - 2) < large.cluster.blocks <= first * higher ** (depth - 1)
    assert large.cluster.state_bytes == small.cluster.state_bytes
    # The small store has fewer blocks than workers.
    idle = 64 - small.cluster.blocks
    for expected in small.parallel[1:]:
        assert expected.busy == small.cluster.blocks
        assert f"{idle} of them have nothing to do" in expected.sentence
    assert large.cluster.worker_memory < 3 * small.cluster.worker_memory


@pytest.mark.cluster
def test_plan__command_shows_the_cluster(run: Any, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    options = ("-e", "ece", "--rows", 10**9, "--workers", 64, "--json", path)
    table = run("plan", store, *options).out
    for text in ("1,000,000,000 rows", "64 workers", "tasks", "memory per worker"):
        assert text in table
    for text in ("64 threads", "64 Dask workers", "speed-up", "% of the time is"):
        assert text in table
    written = json.loads(path.read_text())
    assert written["cluster"]["tasks"] > 768
    assert [time["kind"] for time in written["parallel"]] == ["threads", "threads", "dask"]
    assert json.loads(run("plan", store, "-e", "ece", "--json", "-").out)["cluster"] is None
    assert run("plan", store, "--workers", 0).code == 2


@pytest.mark.long
def test_plan__of_no_worker_is_an_error(store: Path) -> None:
    with pytest.raises(cs.OptionError, match="workers must be at least 1"):
        cs.plan(store, ESTIMATORS, workers=0)


@pytest.mark.long
def test_plan__counts_the_draws_of_a_test() -> None:
    rng = np.random.default_rng(5)
    source = cs.from_arrays(logits=rng.standard_normal((3000, 3)), labels=rng.integers(0, 3, 3000))
    pairwise = cs.JKCE(cs.RandomFourier(bandwidth=0.5), method="tiles")
    estimators = (cs.ECE(), cs.Accuracy(), pairwise)
    without, few, many = (
        cs.plan(source, estimators, n_replicates=b, scheduler="serial").costs
        for b in (0, 100, 1000)
    )
    assert [c.work for c in few] == ["one pass", "100 draws", "jkce", "100 draws"]
    assert [c.method for c in few if "draws" in c.work] == ["ece", "jkce"]  # accuracy has no draws
    assert [c.work for c in without] == ["one pass", "jkce"]
    # Costs follow from differences of short times, which err in both directions where the machine
    # is busy: the median of five.
    again = [
        cs.plan(source, estimators, n_replicates=b, scheduler="serial").costs
        for b in (100, 1000)
        for _ in range(4)
    ]
    for k in (1, 3):
        single = median(costs[k].seconds for costs in (few, *again[:4]))
        ten = median(costs[k].seconds for costs in (many, *again[4:]))
        # ten times as many draws, on a machine with other work
        assert 2 < ten / single < 50
    with pytest.raises(cs.OptionError, match="n_replicates must be at least 0"):
        cs.plan(source, estimators, n_replicates=-1)


@pytest.mark.long
def test_plan__counts_the_draws_of_a_test_with_sums_of_its_own() -> None:
    rng = np.random.default_rng(5)
    z = rng.standard_normal((3000, 4))
    source = cs.from_arrays(logits=z, labels=rng.integers(0, 4, 3000))
    # The estimate has landmarks, and the replicates of its test have random features.
    costs = cs.plan(source, cs.KCE(method="nystrom"), n_replicates=100, scheduler="serial").costs
    assert [(c.work, c.method) for c in costs] == [("one pass", "kce"), ("100 draws", "kce")]
    # Each replicate has sums of 2,000 features by class.
    assert costs[1].memory >= 100 * 4 * 2000 * 8


@pytest.mark.long
def test_plan__of_many_rows_recombines_labels_and_says_what_a_second_look_takes() -> None:
    rng = np.random.default_rng(5)
    source = cs.from_arrays(logits=rng.standard_normal((3000, 3)), labels=rng.integers(0, 3, 3000))
    few = cs.plan(source, "cwce2", n_replicates=999, rows=3000, scheduler="serial")
    many = cs.plan(source, "cwce2", n_replicates=999, rows=30_000, scheduler="serial")
    assert not any("every replicate" in remark for remark in few.remarks)
    assert any("draws the labels of every replicate" in remark for remark in many.remarks)
    # Ten times the rows, each with 64 sets of labels instead of 999, on a machine with other work.
    assert many.costs[1].seconds < 5 * few.costs[1].seconds


@pytest.mark.cluster
def test_plan__of_workers_has_times_of_threads_and_of_dask_workers(large_plan: cs.Plan) -> None:
    assert [(time.kind, time.workers) for time in large_plan.parallel] == [
        ("threads", 1),
        ("threads", 64),
        ("dask", 64),
    ]
    serial, threads, dask = large_plan.parallel
    assert large_plan.cluster is not None
    blocks = large_plan.cluster.blocks
    for expected in (serial, threads, dask):
        assert expected.seconds == pytest.approx(sum(expected.steps.by_name().values()))
    # 64 workers share the blocks in whole rounds.
    share = -(-blocks // 64) / blocks
    for step in ("reading", "computing"):
        one, several = getattr(serial.steps, step), getattr(threads.steps, step)
        assert several == pytest.approx(share * one)
    for step in ("opening", "solving"):
        assert getattr(serial.steps, step) == getattr(dask.steps, step) > 0
    assert serial.steps.transport == threads.steps.transport == 0 < dask.steps.transport
    # Dask workers start after the client, and import Dask.
    assert dask.steps.start > 2 * serial.steps.start > 0


@pytest.mark.cluster
def test_plan__says_what_was_not_measured(large_plan: cs.Plan) -> None:
    remarks = " ".join(large_plan.remarks)
    assert "More were not measured: memory bandwidth" in remarks
    assert "lower bounds" in remarks
    assert "There is no time of Dask workers" not in remarks
    restored = cs.Plan.from_dict(json.loads(json.dumps(large_plan.to_dict())))
    assert restored.parallel == large_plan.parallel
    assert restored.remarks == large_plan.remarks


@pytest.mark.cluster
def test_plan__of_exact_pairs_has_at_most_as_many_busy_workers_as_pairs_of_panels() -> None:
    rng = np.random.default_rng(5)
    source = cs.from_arrays(logits=rng.standard_normal((3000, 3)), labels=rng.integers(0, 3, 3000))
    pairwise = cs.JKCE(cs.RandomFourier(bandwidth=0.5), method="tiles")
    # 40,000 rows are four panels, whose pairs are ten tasks.
    planned = cs.plan(source, pairwise, rows=40_000, workers=64)
    serial, threads, dask = planned.parallel
    assert planned.cluster is not None
    assert planned.cluster.panel_pairs == dask.busy == 10
    # One pair of panels takes an eighth of the work, instead of the even share of 1/64.  The client
    # receives its state, and the states of the pass.
    tail = (1 / 8 - 1 / 64) * serial.steps.pairs
    assert tail < planned.cluster.pair_tail < tail + dask.steps.transport
    # The client has tasks of ten pairs of panels, more than the tasks of the pass.
    assert planned.cluster.client_seconds >= dask.steps.transport
    states = planned.cluster.tasks * (planned.cluster.task_bytes + planned.cluster.state_bytes)
    assert planned.cluster.bytes_moved > states
    assert dask.steps.pairs >= serial.steps.pairs / 8  # a pair of panels is 1/8 of n²/2
    assert threads.steps.pairs < dask.steps.pairs
    # Threads read the panels one after another.
    assert threads.steps.panels == serial.steps.panels > 0


@pytest.mark.long
def test_plan__of_a_row_is_not_a_block_of_rows() -> None:
    """A block of one row takes the measured time, and not the time of a full block."""
    single_row = cs.from_arrays(probabilities=[[0.5, 0.5]], labels=[0])
    planned = cs.plan(single_row, "ece")
    many = cs.plan(single_row, "ece", rows=10**6)
    assert planned.remarks == ()
    # A full block has tens of thousands of rows, and there are several.
    assert many.seconds > 1000 * planned.seconds
    assert any("was extrapolated from 1 row" in remark for remark in many.remarks)


@pytest.mark.long
def test_plan__of_drawn_pairs_is_serial() -> None:
    rng = np.random.default_rng(5)
    source = cs.from_arrays(logits=rng.standard_normal((3000, 3)), labels=rng.integers(0, 3, 3000))
    drawn = cs.JKCE(cs.RandomFourier(bandwidth=0.5), method="pairs", n_pairs=10_000)
    one, many = (
        min(cs.plan(source, drawn, scheduler=f"threads:{n}").costs[-1].seconds for _ in range(2))
        for n in (1, 50)
    )
    # Both measurements are of a busy machine.
    assert many > one / 5


@pytest.mark.long
def test_plan__without_supported_estimators_says_why() -> None:
    source = cs.from_arrays(probabilities=np.full((100, 3), 1 / 3), labels=np.zeros(100, int))
    planned = cs.plan(source, "cox_slope(notion=positive)", on_unsupported="report")
    assert list(planned.left_out) == ["cox_slope"]
    assert planned.costs[0].method == "validation"
    with pytest.raises(cs.OptionError):
        cs.plan(source, "cox_slope(notion=positive)")
