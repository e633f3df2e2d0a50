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
GOLDEN_ROWS = 2000
C_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")
_OPEN = ExitStack()  # panels stay until the process ends


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


def _median(m: Any, of: Callable[[dict[str, float]], float]) -> float:
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


def pair_pass(source: Any, kernel: Any, notion: str, precision: str) -> Callable[[int], float]:
    """What computes the sum over pairs alone, of panels already made, for a number of threads."""
    from calibscale import engine
    from calibscale.chunk import Rules
    from calibscale.pairs import Pairs, PairSum, _SumTask

    rules = Rules(source.kind, source.classes, max(1, source.chunk_rows), covariates=kernel.columns)
    panels = _OPEN.enter_context(Pairs(source, rules).panels(kernel, notion, precision))
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
            work = pair_pass(data, kernel, notion, precision)
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

    return lambda: clock(ways)


def c_loop(path: str, name: str, p: Any, labels: Any, x: Any) -> Callable[[], float]:
    """The loop of a compiled pair_sum.c on the same points, scaled for its exponential."""
    call = ctypes.CDLL(path).pair_sum
    call.restype = ctypes.c_double
    call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long, ctypes.c_int]
    scale = np.sqrt(0.5 if name == "C, expf" else 0.5 * np.log2(np.e)) / BANDWIDTH
    columns = [(scale * (column - 0.5)).astype(np.float32) for column in (p, *x.T)]
    columns.append((p - labels).astype(np.float32))
    return lambda: call(*(column.ctypes.data for column in columns), len(p), 2)


def keops(n: int) -> Callable[[], Any]:
    """The Gaussian sum over all ordered pairs by pyKeOps, compiled before the clock starts."""
    from measure import installed
    from pykeops.numpy import LazyTensor

    p, labels, x = uniform(n, 2)
    points = (np.column_stack([p, x]) * np.sqrt(0.5) / BANDWIDTH).astype(np.float32)
    strengths = (p - labels).astype(np.float32)[:, None]

    def work() -> dict[str, Any]:
        a, b = LazyTensor(points[:, None, :]), LazyTensor(points[None, :, :])
        sums = (-((a - b) ** 2).sum(-1)).exp() @ strengths
        total = np.vdot(strengths.astype(np.float64), sums.astype(np.float64))
        diagonal = np.sum(strengths.astype(np.float64) ** 2)
        return {"sum": float(total), "diagonal": float(diagonal), "version": installed("pykeops")}

    work()
    return work


# ---------------------------------------------------------------- many classes against BLAS


def _gram(report: Report, settings: Settings) -> None:
    n = settings.rows(20_000)
    m = measure("pairs:gram", n, 100, runs=1 if settings.small else RUNS)
    pairs = n * (n - 1) / 2
    for way in m.value["seconds"]:
        report.row(what=way, rows=n, pairs_per_second=pairs / _median(m, lambda s, w=way: s[w]))
    ours, *bare = m.value["seconds"]
    ratio = _median(m, lambda s: s[ours] / min(s[way] for way in bare))
    what = f"{ours}, time against the bare Gram product"
    report.check(what, ratio, 2.5, "times", full_only=True)


def gram(n: int, classes: int) -> Callable[[], Any]:
    """The pair pass of the canonical JKCE, and the Gram product of the same pairs by BLAS alone."""
    import numba
    from scipy.special import softmax
    from threadpoolctl import threadpool_limits

    from calibscale.products import ProductKernel

    source = dirichlet(n, classes)
    ours = pair_pass(source, ProductKernel("linear+gaussian", BANDWIDTH), "canonical", "float32")
    A = softmax(source.values, axis=1).astype(np.float32)
    cuts = [(a, min(a + SIDE, n)) for a in range(0, n, SIDE)]
    tiles = np.array([(*i, *j) for k, i in enumerate(cuts) for j in cuts[k:]], np.int64)

    @numba.njit(parallel=True)
    def in_numba(A, tiles):
        for t in numba.prange(len(tiles)):
            i0, i1, j0, j1 = tiles[t]
            out = np.empty((i1 - i0, j1 - j0), np.float32)
            np.dot(A[i0:i1], A[j0:j1].T, out)

    def part(first: int) -> None:
        buffer = np.empty(SIDE * SIDE, np.float32)
        for i0, i1, j0, j1 in tiles[first::2].tolist():
            out = buffer[: (i1 - i0) * (j1 - j0)].reshape(i1 - i0, j1 - j0)
            np.dot(A[i0:i1], A[j0:j1].T, out)

    def in_threads() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(part, (0, 1)))

    numba.set_num_threads(2)
    threadpool_limits(1)
    ways: dict[str, Callable[[], Any]] = {
        f"JKCE, K = {classes}, float32, 2 threads": lambda: ours(2),
        "Gram product alone, Numba": lambda: in_numba(A, tiles),
        "Gram product alone, two Python threads": in_threads,
    }
    clock(ways)
    return lambda: clock(ways)


# ---------------------------------------------------------------- the Fourier series


def _series(report: Report, settings: Settings) -> None:
    n, few = settings.rows(1_000_000), settings.rows(20_000)
    for covariates, bound in ((1, 0.6), (2, 2.0)):
        what = f"KLCE by a series, {covariates} covariate{'s' * (covariates > 1)}"
        m = measure("pairs:series", n, covariates, runs=1 if settings.small else RUNS)
        report.row(what=what, rows=n, seconds=m.median, cpu_seconds=m.cpu_median, **m.value)
        report.check(f"{what}, {n:,} rows in memory", m.median, bound, "s", full_only=True)
        m = measure("pairs:series_error", few, covariates, runs=1)
        report.check(f"{what}, {few:,} rows, distance from tiles", m.value, 1e-14)
    n = settings.rows(10_000_000)
    store = _written(settings.folder / f"uniform-{n}.zarr", n)
    for covariates in (1, 2):
        what = f"KLCE by a series, {covariates} covariate{'s' * (covariates > 1)}, from a store"
        m = measure("pairs:series", n, covariates, store, runs=settings.runs)
        report.row(what=what, rows=n, seconds=m.median, cpu_seconds=m.cpu_median,
                   peak_mb=m.peak / 1e6, **m.value)  # fmt: skip
        report.check(f"{what}, {n:,} rows", m.median, 15.0, "s", full_only=True)
        report.check(f"{what}, peak memory", m.peak / 1e6, 1000.0, "MB", full_only=True)


def _klce(covariates: int, **options: Any) -> Any:
    from calibscale.estimators import KLCE

    return KLCE(tuple(f"x{i}" for i in range(covariates)), 0.1, 0.1, **options)


def series(n: int, covariates: int, store: str | None = None) -> Callable[[], Any]:
    """KLCE to 1e-9 in one pass over arrays, or a store."""
    from calibscale import evaluate

    estimator = _klce(covariates, method="spectral", tolerance=1e-9)
    source = store or binary(n, covariates)
    evaluate(binary(20_000, covariates), [estimator], scheduler="threads:2")

    def work() -> dict[str, Any]:
        (found,) = evaluate(source, [estimator], scheduler="threads:2").estimates
        return {"value": found.value, "modes": found.parameters["modes"]}

    return work


def series_error(n: int, covariates: int) -> Callable[[], Any]:
    """|series − tiles|."""
    from calibscale import evaluate

    source = binary(n, covariates)
    ways = (_klce(covariates, method="spectral", tolerance=1e-9), _klce(covariates, method="tiles"))

    def work() -> float:
        values = [evaluate(source, [way]).estimates[0].value for way in ways]
        return abs(values[0] - values[1])

    return work


def _written(path: Path, n: int) -> str:
    """A store of uniform predictions and two covariates."""
    from calibscale import LogitStore, StoreError

    try:
        if LogitStore.open(path).rows == n:
            return str(path)
    except StoreError:
        pass
    store = LogitStore.create(
        path, classes=2, kind="probabilities", binary=True, covariate_names=("x0", "x1"),
        expected_rows=n, overwrite=True,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for start in range(0, n, 500_000):
            p, x, u = (rng.random((min(500_000, n - start), d)) for d in (1, 2, 1))
            writer.append(p, (u < p * p)[:, 0].astype(np.int64), covariates=x)
    return str(path)


# ---------------------------------------------------------------- exact values


def _golden(report: Report, folder: Path, settings: Settings) -> None:
    from calibscale import CKCE, JKCE, JKCEBiased, RandomFourier, evaluate, from_arrays
    from calibscale.estimators import KLCE

    golden = json.loads((folder / "golden" / "klce.json").read_text())
    for name, expected in golden.items():
        if settings.small and name not in ("heart_lr", "compas_rf"):
            continue
        with np.load(folder / "data" / f"{name}.npz") as data:
            names = tuple(map(str, data["x_names"]))
            source = from_arrays(
                probabilities=data["p"], labels=data["y"].astype(np.int64),
                covariates=data["x"], covariate_names=names, binary=True,
            )  # fmt: skip
        # exp(−((p − p')/w)²)·exp(−gamma·|x − x'|²)
        widths = expected["prob_width"] / np.sqrt(2), 1 / np.sqrt(2 * expected["gamma"])
        for method, tolerance in (("tiles", 1e-12), ("spectral", 1e-12)):
            for key, norm in (("eq4", "pairs"), ("kite_value", "kernel_sum")):
                estimator = KLCE(
                    names, *widths, method=method, tolerance=tolerance, normalization=norm
                )
                value = evaluate(source, [estimator]).estimates[0].value
                error = abs(value / expected[key] - 1)
                what = f"{name}, KLCE, {key}, {method}, relative error"
                if method == "tiles":
                    report.check(what, error, 1e-10)
                else:
                    report.row(what=what, error=error)
    golden = json.loads((folder / "golden" / "first_2000_rows.json").read_text())
    features = RandomFourier(bandwidth=1.0)
    exact = {
        "ckce": CKCE(features, method="exact"),
        "jkce_unbiased": JKCE(features, method="tiles"),
        "jkce_biased": JKCEBiased(features, method="tiles"),
    }
    for name in ["cifar10_resnet50"] if settings.small else list(golden):
        with np.load(folder / "data" / f"{name}.npz") as data:
            source = from_arrays(
                logits=data["logits"][:GOLDEN_ROWS].astype(np.float64),
                labels=data["labels"][:GOLDEN_ROWS],
            )
        found = evaluate(source, exact.values()).estimates
        for key, estimate in zip(exact, found, strict=True):
            error = abs(estimate.value / golden[name][key] - 1)
            report.check(f"{name}, {key}, every pair, relative error", error, 1e-10)


def _exact_ckce(report: Report, settings: Settings) -> None:
    n = settings.rows(100_000)
    m = measure("pairs:exact_ckce", settings.store(n, 10), settings.store(1000, 10), runs=1)
    report.row(what="CKCE, exact, K = 10", rows=n, seconds=m.median, cpu_seconds=m.cpu_median,
               peak_mb=m.peak / 1e6, **m.value)  # fmt: skip
    report.check(f"CKCE, exact, {n:,} x 10", m.median, 240.0, "s", full_only=True)


def exact_ckce(store: str, warm: str) -> Callable[[], Any]:
    """CKCE by conjugate gradients on the kernel of all rows."""
    from calibscale import CKCE, evaluate

    evaluate(warm, [CKCE(method="exact")], scheduler="threads:2")

    def work() -> dict[str, Any]:
        (found,) = evaluate(store, [CKCE(method="exact")], scheduler="threads:2").estimates
        error = found.approximation.error
        return {"value": found.value, "stated_error": error, **found.details}

    return work


# ---------------------------------------------------------------- stated errors


def _stated_errors(report: Report, settings: Settings) -> None:
    """How often the exact value is within the stated error, and that the latter is not idle."""
    from calibscale import JKCE, OptionError, RandomFourier, evaluate

    seeds, n = (40, 1000) if settings.small else (100, 5000)
    many, local = dirichlet(n, 10), binary(n, 2)
    features = RandomFourier(bandwidth=BANDWIDTH)
    cases: tuple[tuple[str, Any, Any, Callable[[int], Any]], ...] = (
        ("JKCE, 20,000 sampled pairs", many, JKCE(features, method="tiles"),
         lambda seed: JKCE(features, method="pairs", n_pairs=20_000, seed=seed)),
        ("KLCE, 200 random features", local, _klce(2, method="tiles"),
         lambda seed: _klce(2, method="features", n_features=200, seed=seed)),
        ("KLCE, 200 landmarks", local, _klce(2, method="tiles"),
         lambda seed: _klce(2, method="nystrom", n_features=200, seed=seed)),
    )  # fmt: skip
    for what, source, exact, sampled in cases:
        truth = evaluate(source, [exact]).estimates[0].value
        try:
            found = evaluate(source, [sampled(seed) for seed in range(seeds)]).estimates
        except OptionError as error:
            report.note(f"{what}: not run: {error}")
            continue
        errors = np.array([e.value for e in found]) - truth
        stated = np.array([e.approximation.error for e in found])
        covered = 100 * float(np.mean(np.abs(errors) <= stated))
        rms = float(np.sqrt(np.mean(errors**2)))
        report.check(f"{what}, stated error covers", covered, 90, f"% of {seeds} seeds",
                     at_least=True)  # fmt: skip
        ratio = float(np.median(stated)) / rms
        report.check(f"{what}, median stated error / true RMS", ratio, 3.0)
