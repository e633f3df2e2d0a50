"""What `pairs` measures, in fresh processes, and the data that it is measured on."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

BANDWIDTH = 0.5  # of the rates: far from where a library's expf underflows, and slows down
SIDE = 256  # of the sub-tiles of the bare Gram product
_OPEN = ExitStack()  # panels stay until the process ends


# ---------------------------------------------------------------- data


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


# ---------------------------------------------------------------- the pair pass


def pair_pass(source: Any, kernel: Any, notion: str, precision: str) -> Callable[[int], float]:
    """What computes the sum over pairs alone, of panels already made, for a number of threads."""
    from calibscale import engine
    from calibscale.chunk import Rules
    from calibscale.pairs import Pairs, PairSum, _SumTask

    rules = Rules(source.kind, source.classes, max(1, source.chunk_rows), covariates=kernel.columns)
    tiled = replace(kernel, prediction="gaussian") if kernel.linear else kernel  # as `Pairs.sum`
    panels = _OPEN.enter_context(Pairs(source, rules).panels(tiled, notion, precision))
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
    scale = np.sqrt(0.5 * np.log2(np.e) if name.endswith("scaled for it") else 0.5) / BANDWIDTH
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


def klce(covariates: int, **options: Any) -> Any:
    from calibscale.estimators import KLCE

    return KLCE(tuple(f"x{i}" for i in range(covariates)), 0.1, 0.1, **options)


def series(n: int, covariates: int, store: str | None = None) -> Callable[[], Any]:
    """KLCE to 1e-9 in one pass over arrays, or a store."""
    from calibscale import evaluate

    estimator = klce(covariates, method="spectral", tolerance=1e-9)
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
    ways = (klce(covariates, method="spectral", tolerance=1e-9), klce(covariates, method="tiles"))

    def work() -> float:
        values = [evaluate(source, [way]).estimates[0].value for way in ways]
        return abs(values[0] - values[1])

    return work


def exact_ckce(store: str, warm: str) -> Callable[[], Any]:
    """CKCE by conjugate gradients on the kernel of all rows."""
    from calibscale import CKCE, evaluate

    evaluate(warm, [CKCE(method="exact")], scheduler="threads:2")

    def work() -> dict[str, Any]:
        (found,) = evaluate(store, [CKCE(method="exact")], scheduler="threads:2").estimates
        error = found.approximation.error
        return {"value": found.value, "stated_error": error, **found.details}

    return work
