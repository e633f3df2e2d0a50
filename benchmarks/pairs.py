"""Sums over all pairs: rates against C, pyKeOps and BLAS, the series, exact CKCE, stated errors."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measure import NotInstalled, Report, Settings, measure

RUNS = 5  # of what takes a second or less
GAUSSIAN_ROWS = 60_000
BANDWIDTH = 0.5  # of the rates: far from where a library's expf underflows, and slows down
SIDE = 256  # of the sub-tiles of the bare Gram product
DEVICE = "GAUSSIAN, float32, 2 threads"
GOLDEN_ROWS = 2000
C_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")
_Seconds = dict[str, float]


def run(settings: Settings) -> Report:
    report = Report("pairs", settings)
    _rates(report, settings)
    _gram(report, settings)
    _series(report, settings)
    _exact_ckce(report, settings)
    folder = os.environ.get("CALIBSCALE_DATA")
    if folder:
        _golden(report, Path(folder), settings)
    else:
        report.note("no reference values: CALIBSCALE_DATA names no folder with data/ and golden/")
    _stated_errors(report, settings)
    return report


# ---------------------------------------------------------------- rates


def _rates(report: Report, settings: Settings) -> None:
    """Pairs per second of the pair pass, all ways in turn, so that ratios are within one run."""
    n = settings.rows(GAUSSIAN_ROWS)
    libraries, compiler = _compiled(report, settings.folder)
    m = measure("pairs:rates", n, libraries, runs=1 if settings.small else RUNS)
    pairs = n * (n - 1) / 2
    for way in m.value["seconds"]:
        report.row(what=way, rows=n, pairs_per_second=pairs / _median(m, lambda s, w=way: s[w]))
    ours, values = "Gaussian in 3-D, float32, 2 threads", m.value["sums"]
    if libraries:
        report.note(compiler)
        for name in libraries:
            error = abs(values[name] / values[ours] - 1)
            report.check(f"{name}, distance of the sum from ours", error, 1e-5)

        def against_c(way: str) -> float:
            return _median(m, lambda s: min(s[name] for name in libraries) / s[way])

        for way, bound in ((ours, 1.1), ("JKCE, K = 10, float32, 2 threads", 0.6)):
            what = f"{way}, rate against the faster C loop"
            report.check(what, against_c(way), bound, "times", at_least=True, full_only=True)
    for kind in ("Gaussian in 3-D", "JKCE, K = 10"):
        one, two = (f"{kind}, float32, {threads}" for threads in ("1 thread", "2 threads"))
        report.row(what=f"{kind}, 2 threads against 1", times=_median(m, lambda s: s[one] / s[two]))
    what = "Gaussian in 3-D, pyKeOps on the CPU"
    try:
        runs = settings.runs
        k = measure("pairs:keops", n, runs=runs, python=settings.peers_python,
                    environment={"OMP_NUM_THREADS": "2"})  # fmt: skip
    except (NotInstalled, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        report.row(what=what, rows=n, pairs_per_second=None, missing=reason)
        return
    # it has no loop over half of the pairs; the pairs of a row with itself are taken off
    found = (k.value["sum"] - k.value["diagonal"]) / 2
    report.row(what=what, rows=n, pairs_per_second=pairs / k.median, version=k.value["version"],
               ordered_pairs_per_second=n * n / k.median)  # fmt: skip
    report.check(f"{what}, distance of the sum from ours", abs(found / values[ours] - 1), 1e-5)
    ratio = k.median / _median(m, lambda s: s[ours])
    report.check("Gaussian in 3-D, float32, 2 threads, rate against pyKeOps", ratio, 40.0, "times",
                 at_least=True, full_only=True)  # fmt: skip


def _median(m: Any, of: Callable[[_Seconds], float]) -> float:
    """The median over the runs of a number that each of them gives."""
    return statistics.median(of(value["seconds"]) for value in m.values)


def _compiled(report: Report, folder: Path) -> tuple[dict[str, str], str]:
    """The C loop with expf and with our polynomial, and by what it was compiled."""
    from calibscale.kernels.elementary import EXP2_SINGLE

    gcc = shutil.which("gcc")
    if gcc is None:
        report.note("no C loops: there is no gcc")
        return {}, ""
    polynomial = [f"-DC{i}={float(EXP2_SINGLE[i]).hex()}f" for i in range(1, 6)]
    libraries = {}
    ways: tuple[tuple[str, list[str]], ...] = (
        ("C, expf", []), ("C, our polynomial", ["-DOWN", *polynomial])
    )  # fmt: skip
    for number, (name, options) in enumerate(ways):
        path = str(folder / f"pair_sum_{number}.so")
        source = str(Path(__file__).with_name("pair_sum.c"))
        command = [gcc, *C_FLAGS, *options, "-o", path, source, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            report.note(f"no C loops: gcc failed: {done.stderr.strip().splitlines()[-1]}")
            return {}, ""
        libraries[name] = path
    version = subprocess.run([gcc, "--version"], capture_output=True, text=True).stdout
    return libraries, version.splitlines()[0] + " " + " ".join(C_FLAGS[:4])


def uniform(n: int, covariates: int) -> tuple[Any, Any, Any]:
    """Predictions, labels, covariates: uniform on [0, 1], labels of probability p²."""
    rng = np.random.default_rng(0)
    p, x = rng.random(n), rng.random((n, covariates))
    return p, (rng.random(n) < p * p).astype(np.int64), x


def binary(n: int, covariates: int) -> Any:
    """The same as a source."""
    from calibscale import from_arrays

    p, labels, x = uniform(n, covariates)
    return from_arrays(probabilities=p, labels=labels, covariates=x, binary=True)


def dirichlet(n: int, classes: int) -> Any:
    """Over-confident predictions of many classes, float32 logits in memory."""
    from calibscale import from_arrays
    from calibscale.simulate import configured

    draw = configured("ms-over", classes, None, 0).draw(0, 0, n)
    return from_arrays(logits=draw.logits.astype(np.float32), labels=draw.labels)


def pair_pass(
    stack: ExitStack, source: Any, kernel: Any, notion: str, precision: str
) -> Callable[[int], float]:
    """What computes the sum over pairs alone, of panels already made, for a number of threads."""
    from calibscale import engine
    from calibscale.chunk import Rules
    from calibscale.pairs import Pairs, PairSum, _SumTask

    rules = Rules(
        source.kind, source.classes, max(1, source.chunk_rows), covariates=kernel.columns
    )
    panels = stack.enter_context(Pairs(source, rules).panels(kernel, notion, precision))
    task = _SumTask(panels, spec=PairSum(kernel, notion, precision))
    for index in range(len(panels)):
        panels[index]

    def work(threads: int) -> float:
        return float(engine.fold(task, f"threads:{threads}").pairs)

    for threads in (1, 2):  # both are compiled
        work(threads)
    return work


def clock(ways: dict[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Seconds and result of every way, one after another."""
    seconds, sums = {}, {}
    for name, way in ways.items():
        started = time.perf_counter()
        sums[name] = way()
        seconds[name] = time.perf_counter() - started
    return {"seconds": seconds, "sums": sums}


def rates(n: int, libraries: dict[str, str]) -> Callable[[], Any]:
    """The Gaussian pair sum and the canonical JKCE by our engine, and the first by C."""
    from calibscale import JKCE, RandomFourier, evaluate
    from calibscale.estimators import KLCE
    from calibscale.products import ProductKernel

    stack = ExitStack()
    source, many = binary(n, 2), dirichlet(n, 10)
    product = ProductKernel("gaussian", BANDWIDTH, columns=(0, 1), bandwidths=(BANDWIDTH,) * 2,
                            centres=(0.5, 0.5))  # fmt: skip
    canonical = ProductKernel("linear+gaussian", BANDWIDTH)
    kinds = (
        ("Gaussian in 3-D", source, product, "positive"),
        ("JKCE, K = 10", many, canonical, "canonical"),
    )
    ways: dict[str, Callable[[], Any]] = {}
    for name, path in libraries.items():
        ways[name] = c_loop(path, name, *uniform(n, 2))
        ways[name]()
    for kind, data, kernel, notion in kinds:
        for precision in ("float32", "float64"):
            work = pair_pass(stack, data, kernel, notion, precision)
            for threads, label in ((2, "2 threads"), (1, "1 thread")):
                ways[f"{kind}, {precision}, {label}"] = lambda w=work, t=threads: w(t)
    whole = {
        "Gaussian in 3-D, float32, whole evaluate": (source, KLCE(
            ("x0", "x1"), BANDWIDTH, BANDWIDTH, method="tiles", precision="float32")),
        "JKCE, K = 10, float32, whole evaluate": (many, JKCE(
            RandomFourier(bandwidth=BANDWIDTH), method="tiles", precision="float32")),
    }  # fmt: skip
    for name, (data, estimator) in whole.items():
        ways[name] = lambda d=data, e=estimator: (
            evaluate(d, [e], scheduler="threads:2").estimates[0].value
        )
        ways[name]()

    def work() -> Any:
        with stack:
            return clock(ways)

    return lambda: clock(ways) if stack else work()


def c_loop(path: str, name: str, p: Any, labels: Any, x: Any) -> Callable[[], float]:
    """The loop of a compiled pair_sum.c on the same points, scaled for its exponential."""
    call = ctypes.CDLL(path).pair_sum
    call.restype = ctypes.c_double
    call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long, ctypes.c_int]
    scale = np.sqrt(0.5 if name == "C, expf" else 0.5 * np.log2(np.e)) / BANDWIDTH
    columns = [(scale * (column - 0.5)).astype(np.float32) for column in (p, *x.T)]
    columns.append((p - labels).astype(np.float32))
    return lambda: call(*(column.ctypes.data for column in columns), len(p), 2)
