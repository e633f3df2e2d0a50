"""Work and data of the benchmark `pairs`, for fresh processes."""

from __future__ import annotations

import ctypes
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


def dirichlet(n: int, classes: int, scale: float = 1.0) -> Any:
    """Over-confident predictions of many classes, float32 logits in memory, times a scale."""
    from calibscale import from_arrays
    from calibscale.simulation import configured

    draw = configured("ms-over", classes, None, 0).draw(0, 0, n)
    return from_arrays(logits=(scale * draw.logits).astype(np.float32), labels=draw.labels)


# ---------------------------------------------------------------- the pair pass


def pair_pass(source: Any, kernel: Any, notion: str, precision: str) -> Callable[[int], float]:
    """Function of the thread count that sums over pairs of prepared panels."""
    from calibscale.engine.execution import Execution
    from calibscale.engine.fold import fold
    from calibscale.kernels.pair_sums import Pairs
    from calibscale.kernels.pair_tasks import PairSum, PairSumTask

    rules = replace(source.rules(), covariates=kernel.columns)
    tiled = replace(kernel, prediction="gaussian") if kernel.linear else kernel  # as `Pairs.sum`
    pairs = Pairs(source, rules, Execution())
    panels = _OPEN.enter_context(pairs.panels(tiled, notion, precision))
    task = PairSumTask(panels, spec=PairSum(kernel, notion, precision))
    for index in range(len(panels)):
        panels[index]

    def work(threads: int) -> float:
        return float(fold(task, f"threads:{threads}").pairs)

    for threads in (1, 2):  # both are compiled
        work(threads)
    return work


def gaussian_pairs(
    n: int, precision: str, threads: int, bandwidth: float = BANDWIDTH
) -> Callable[[], float]:
    """The sum of a Gaussian in three coordinates."""
    from calibscale.kernels.product_kernel import ProductKernel

    kernel = ProductKernel(
        "gaussian", bandwidth, columns=(0, 1), bandwidths=(bandwidth,) * 2, centres=(0.5, 0.5)
    )
    work = pair_pass(binary(n, 2), kernel, "positive", precision)
    return lambda: work(threads)


def jkce_pairs(
    n: int, classes: int, precision: str, threads: int, scale: float = 1.0
) -> Callable[[], float]:
    """The sum of the canonical JKCE of logits times a scale."""
    from calibscale.kernels.product_kernel import ProductKernel

    kernel = ProductKernel("linear+gaussian", BANDWIDTH)
    work = pair_pass(dirichlet(n, classes, scale), kernel, "canonical", precision)
    return lambda: work(threads)


def whole(n: int, name: str) -> Callable[[], float]:
    """`evaluate` of KLCE or JKCE in float32, from arrays in memory to the value."""
    from calibscale import JKCE, KLCE, RandomFourier, evaluate

    options = {"method": "tiles", "precision": "float32"}
    if name == "klce":
        source, estimator = binary(n, 2), KLCE(("x0", "x1"), BANDWIDTH, BANDWIDTH, **options)
    else:
        source, estimator = dirichlet(n, 10), JKCE(RandomFourier(bandwidth=BANDWIDTH), **options)

    def work() -> float:
        return float(evaluate(source, [estimator], scheduler="threads:2").estimates[0].value)

    work()
    return work


def features(n: int, classes: int, scale: float) -> Callable[[], float]:
    """`evaluate` of JKCE by random features of logits times a scale."""
    from calibscale import JKCE, RandomFourier, evaluate

    source, estimator = dirichlet(n, classes, scale), JKCE(RandomFourier(bandwidth=BANDWIDTH))

    def work() -> float:
        return float(evaluate(source, [estimator], scheduler="threads:2").estimates[0].value)

    work()
    return work


def c_loop(n: int, path: str, scaled: bool) -> Callable[[], float]:
    """The loop of a compiled pair_sum.c on the same points, scaled for its exponential or not."""
    p, labels, x = uniform(n, 2)
    call = ctypes.CDLL(path).pair_sum
    call.restype = ctypes.c_double
    call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long, ctypes.c_int]
    scale = np.sqrt(0.5 * np.log2(np.e) if scaled else 0.5) / BANDWIDTH
    columns = [(scale * (column - 0.5)).astype(np.float32) for column in (p, *x.T)]
    columns.append((p - labels).astype(np.float32))

    def work() -> float:
        return float(call(*(column.ctypes.data for column in columns), n, 2))

    work()
    return work


def keops(n: int) -> Callable[[], Any]:
    """The Gaussian sum over all ordered pairs by pyKeOps, compiled before timing starts."""
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


def gram(n: int, classes: int, how: str) -> Callable[[], None]:
    """The Gram product alone of the same pairs by BLAS: of the rows as panels hold them."""
    import numba
    from threadpoolctl import threadpool_limits

    from calibscale.engine.execution import Execution
    from calibscale.kernels.pair_sums import Pairs
    from calibscale.kernels.product_kernel import ProductKernel

    source = dirichlet(n, classes)
    pairs = Pairs(source, source.rules(), Execution())
    with pairs.panels(ProductKernel("gaussian", BANDWIDTH), "canonical", "float32") as panels:
        loaded = [panels[index] for index in range(len(panels))]
        A = np.concatenate([h.panel.A[h.place, :classes] for h in loaded])
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
    work = (lambda: in_numba(A, tiles)) if how == "Numba" else in_threads
    work()
    return work


# ---------------------------------------------------------------- the Fourier series


def klce(covariates: int, **options: Any) -> Any:
    from calibscale import KLCE

    return KLCE(tuple(f"x{i}" for i in range(covariates)), 0.1, 0.1, **options)


def series(n: int, covariates: int, store: str | None = None) -> Callable[[], Any]:
    """KLCE to 1e-9 in one pass over arrays, or a store."""
    from calibscale import evaluate

    estimator = klce(covariates, method="spectral", tolerance=1e-9)
    source = store or binary(n, covariates)
    evaluate(binary(20_000, covariates), [estimator], scheduler="threads:2")

    def work() -> dict[str, Any]:
        (result,) = evaluate(source, [estimator], scheduler="threads:2").estimates
        return {"value": result.value, "modes": result.parameters["modes"]}

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
        (result,) = evaluate(store, [CKCE(method="exact")], scheduler="threads:2").estimates
        error = result.approximation.error
        return {"value": result.value, "stated_error": error, **result.details}

    return work
