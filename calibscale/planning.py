"""What a run will cost, from a measurement on a few rows."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calibscale import engine
from calibscale.blocks import LONGEST_REMOTE_RUN, run_length
from calibscale.chunk import Rules
from calibscale.errors import OptionError
from calibscale.estimators import CKCE, JKCE, KLCE, Estimator
from calibscale.evaluation import DataSetup, listed, resolved
from calibscale.kernels import tiles
from calibscale.nulls import Null, replicates_of
from calibscale.pairs import PairSum
from calibscale.panels import Layout, panel_cuts
from calibscale.scan import Scan
from calibscale.store import as_source
from calibscale.views import width

_SAMPLE_SECONDS = 0.1
_FEW = 20  # replicates that the time of all is taken from
_COLUMNS = 64  # of a product that the time of all is taken from
_ITERATIONS = 6  # what block conjugate gradients took on real networks, to 1e-10: 4 to 6


@dataclass(frozen=True)
class Cost:
    """Of one piece of work.

    Attributes
    ----------
    work : str
        The pass, or an estimator.
    method : str
    pairs : int
        Unordered pairs of rows that are visited.
    seconds : float
    memory : int
        Bytes.
    bytes_read : int
    """

    work: str
    method: str
    pairs: int
    seconds: float
    memory: int
    bytes_read: int


@dataclass(frozen=True)
class ClusterCost:
    """Of the pass over the rows, on worker processes of one thread each.

    Attributes
    ----------
    blocks, tasks : int
        Blocks of rows, and runs of neighbouring blocks that go out together.
    merge_depth : int
        Levels of the tree in which the states of blocks merge.
    task_bytes, state_bytes, bytes_moved : int
        A task as it is sent, the state that comes back, and all of them.
    worker_memory, client_memory : int
        Bytes on top of those of an interpreter with the packages, about 200 MB.
    worker_seconds, client_seconds : float
        Work of one worker, and of the client, which merges the states of tasks.
    """

    blocks: int
    tasks: int
    merge_depth: int
    task_bytes: int
    state_bytes: int
    bytes_moved: int
    worker_memory: int
    client_memory: int
    worker_seconds: float
    client_seconds: float


@dataclass(frozen=True)
class Plan:
    """Costs of a run, piece by piece; `cluster` where its workers were named."""

    source: dict[str, Any]
    rows: int
    workers: int
    costs: tuple[Cost, ...]
    cluster: ClusterCost | None = None

    @property
    def seconds(self) -> float:
        return sum(cost.seconds for cost in self.costs)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "calibscale.plan/1",
            "source": self.source,
            "rows": self.rows,
            "workers": self.workers,
            "seconds": self.seconds,
            "costs": [asdict(cost) for cost in self.costs],
            "cluster": None if self.cluster is None else asdict(self.cluster),
        }


def plan(
    source: Any,
    estimators: Iterable[Estimator],
    *,
    unfit: str = "raise",
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    rows: int | None = None,
    workers: int | None = None,
    replicates: int = 0,
) -> Plan:
    """Estimate time, memory and reading of `evaluate` or `test` with these arguments.

    The pass is timed on its first block, pairs on a sample of 1,000 rows, both on this machine.

    Parameters
    ----------
    source, estimators, unfit, on_invalid, tolerance, scheduler, memory_limit
        As for `evaluate`.
    rows : int, optional
        Of a source like this one; default: its own.
    workers : int, optional
        Processes of a cluster, of one thread each; default: what the scheduler has, and no costs
        of a cluster.
    replicates : int
        Of a test, by labels drawn from the predictions; 0: no test.

    Raises
    ------
    OptionError, InvalidDataError, StoreError
        As `evaluate` would.

    Examples
    --------
    >>> import calibscale, numpy as np
    >>> source = calibscale.from_arrays(
    ...     probabilities=np.full((100, 4), 0.25), labels=np.zeros(100, int)
    ... )
    >>> planned = calibscale.plan(source, [calibscale.ECE()], rows=10**9, workers=64)
    >>> planned.cluster.blocks > planned.cluster.tasks > 12 * 64
    True
    """
    data = as_source(source)
    rules = Rules(
        data.kind, data.classes, max(1, data.chunk_rows), tolerance=tolerance, on_invalid=on_invalid
    )
    for name, count, least in (("rows", rows, 1), ("workers", workers, 1),
                               ("replicates", replicates, 0)):  # fmt: skip
        if count is not None and count < least:
            raise OptionError(f"{name} must be at least {least}, not {count}")
    setup = DataSetup(data, rules)
    rows = data.rows if rows is None else rows
    count = engine.workers(scheduler) if workers is None else workers
    found = [resolved(estimator, setup, unfit) for estimator in listed(estimators)]
    chosen = [e for e in found if isinstance(e, Estimator)]
    linear, cluster, task = _pass(data, rules, chosen, rows, count)
    limit = engine.parse_bytes(memory_limit)
    costs: list[Cost | None] = [linear]
    if replicates:
        costs.append(_draws(task, chosen, rows, count, replicates))
    for e in chosen:
        costs.append(_pairs(data, setup, e, rows, count, limit))
        if replicates:
            costs.append(_pair_draws(data, setup, e, rows, count, replicates))
    made = tuple(cost for cost in costs if cost is not None)
    return Plan(data.describe(), rows, count, made, None if workers is None else cluster)


def _pass(
    data: Any, rules: Rules, chosen: list[Estimator], rows: int, workers: int
) -> tuple[Cost, ClusterCost, Scan]:
    """The one pass over the rows, for all estimators that need it."""
    statistics = tuple(dict.fromkeys(s for e in chosen for s in e.needs))
    covariates = tuple(dict.fromkeys(name for e in chosen for name in e.covariates))
    size = data.block_rows
    full = Rules(
        **{
            **asdict(rules),
            "features": max((s.size(data.classes) for s in statistics), default=0),
            "covariates": tuple(data.covariate(name) for name in covariates),
            "large_chunks": any(s.large_chunks for s in statistics),
        }
    )
    task = Scan(data, statistics, full, size, -(-rows // size))
    with engine.one_thread():
        state = task.state(0)  # compile outside the clock
        sent = len(pickle.dumps(state)), len(pickle.dumps((task.part(0, 1), task.shared)))
        started = time.perf_counter()
        other = task.state(0)
        block = (time.perf_counter() - started) * size / max(1, min(size, data.rows))
        started = time.perf_counter()
        task.merge(state, other)
        merge = time.perf_counter() - started
    busy = min(workers, task.blocks)
    length = run_length(task, workers, LONGEST_REMOTE_RUN)
    tasks = -(-task.blocks // length)
    depth = (task.blocks - 1).bit_length()
    kept = task.state_bytes
    linear = Cost(
        "one pass", ", ".join(e.name for e in chosen if not e.pairwise) or "validation", 0,
        block * -(-task.blocks // busy),
        busy * (task.block_bytes + kept) + task.blocks.bit_length() * kept,
        rows * data.row_bytes,
    )  # fmt: skip
    cluster = ClusterCost(
        blocks=task.blocks,
        tasks=tasks,
        merge_depth=depth,
        task_bytes=sent[1],
        state_bytes=sent[0],
        bytes_moved=tasks * sum(sent),
        worker_memory=task.block_bytes + length.bit_length() * kept,
        client_memory=(2 * workers + depth) * kept,
        worker_seconds=-(-tasks // busy) * length * (block + merge),
        client_seconds=tasks * merge,
    )
    return linear, cluster, task


def _draws(
    task: Scan, chosen: list[Estimator], rows: int, workers: int, replicates: int
) -> Cost | None:
    """The replicates of a test that merge, from the time of a few."""
    drawn = replicates_of(
        (e for e in chosen if not e.pairwise), Null("labels", 0), 0, min(replicates, _FEW)
    )
    if not drawn:
        return None
    few = replace(task, statistics=tuple(drawn.values()))
    with engine.one_thread():
        few.state(0)  # compile outside the clock
        started = time.perf_counter()
        few.state(0)
        seconds = time.perf_counter() - started
    share = replicates / min(replicates, _FEW)
    seconds *= share * task.block_rows / max(1, min(task.block_rows, task.source.rows))
    names = ", ".join(e.name for e in chosen if any(s in drawn for s in e.needs))
    return Cost(
        f"{replicates:,} draws", names, 0, seconds * -(-task.blocks // min(workers, task.blocks)),
        int(share * few.state_bytes) * (min(workers, task.blocks) + task.blocks.bit_length()), 0,
    )  # fmt: skip


def _pair_draws(
    data: Any, setup: DataSetup, estimator: Estimator, n: int, workers: int, replicates: int
) -> Cost | None:
    """The replicates of a test that visit pairs: products of the kernel with drawn residuals."""
    if not estimator.pairwise or isinstance(estimator, CKCE):
        return None
    spec, _ = _work(estimator)
    cuts = panel_cuts(n, data.classes)
    columns = replicates * width(spec.notion, data.classes)
    at_once = min(columns, _COLUMNS)
    pairs = n * (n - 1) // 2
    rate = _rate(setup, spec, cuts[0][1] - cuts[0][0], at_once)
    return Cost(
        f"{replicates:,} draws", estimator.name, pairs,
        pairs * columns / at_once / (rate * workers), 2 * 8 * n * at_once, 0,
    )  # fmt: skip


def _pairs(
    data: Any, setup: DataSetup, estimator: Estimator, n: int, workers: int, limit: int | None
) -> Cost | None:
    """The sums over pairs of n rows of one estimator, if it has any."""
    if not estimator.pairwise:
        return None
    K = data.classes
    method = str(getattr(estimator, "method", "tiles"))
    spec, products = _work(estimator)
    if method == "pairs":
        pairs, products = int(getattr(estimator, "n_pairs", 0)), 1
    elif method == "blocks":
        block = int(getattr(estimator, "block", 1))
        pairs = n // block * (block * (block - 1) // 2)
    else:
        pairs = n * (n - 1) // 2
    cuts = panel_cuts(n, K)
    rows = cuts[0][1] - cuts[0][0]
    vectors = K if isinstance(estimator, CKCE) else 0
    rate = _rate(setup, spec, rows, vectors)
    held = 8 * (6 * K + 20)
    kept = min(n * held, 2**29 if limit is None else limit // 4)
    reads = 1 if n * held <= kept else max(1, len(cuts) // 2)
    return Cost(
        estimator.name, method, products * pairs, products * pairs / (rate * workers),
        2 * rows * held + kept + 4 * 8 * n * vectors,
        products * reads * n * data.row_bytes,
    )  # fmt: skip


def _work(estimator: Estimator) -> tuple[PairSum, int]:
    """The sum over pairs, and how many times it is taken."""
    if isinstance(estimator, CKCE):
        assert estimator.product is not None
        return PairSum(estimator.product, kernel_sums=True), _ITERATIONS
    assert isinstance(estimator, JKCE | KLCE)
    return estimator.pair_sum, 1


def _rate(setup: DataSetup, spec: PairSum, rows: int, vectors: int) -> float:
    """Unordered pairs per second of one core, in panels of so many rows that repeat a sample."""
    layout = Layout(spec.tiled, width(spec.notion, setup.classes), spec.precision)
    sample = setup.sample(spec.notion)
    repeated = sample.take(np.arange(rows if len(sample) else 0) % max(1, len(sample)))
    panel, _ = layout.panel(repeated)
    form, size = layout.form, panel.s.size
    V = np.zeros((vectors, size), panel.s.dtype)
    into = np.zeros((1, *V.shape), V.dtype), np.empty_like(V)
    strips = np.array(layout.strips(panel), np.int64)
    grid = layout.grid(panel, panel, False)

    def part(index: int) -> int:
        """Visit a few of the pairs; how many."""
        if vectors:
            strip = strips[[index % len(strips)]]
            tiles.row_sums(panel, panel, form, strip, True, V, V, *into)
            return int(size * (strip[0, 1] - strip[0, 0]))
        tile = grid[[index % len(grid)]]
        tiles.pair_sums(panel, panel, form, tile, spec.kernel_sums, np.zeros((1, 2)))
        i0, i1, j0, j1, _ = tile[0]
        return int((i1 - i0) * (j1 - j0))

    part(0)
    visited, index, started = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < _SAMPLE_SECONDS or not index:
        visited, index = visited + part(index), index + 1
    padding = (max(1, len(repeated)) / size) ** 2
    return visited * padding / elapsed
