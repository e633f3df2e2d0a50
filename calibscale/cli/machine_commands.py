"""Commands of the machine: warmup and doctor."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import click

from calibscale.cli import options as shared
from calibscale.cli.store_commands import print_facts

_PACKAGES = (
    *("calibscale", "numpy", "scipy", "numba", "llvmlite", "zarr", "numcodecs", "dask"),
    *("distributed", "finufft", "pyarrow", "matplotlib", "safetensors", "xarray", "fsspec"),
)


@click.command(cls=shared.Command, short_help="Compile all kernels ahead of time.")
def warmup() -> None:
    """Compile all kernels into the cache, so that later runs start at once."""
    from calibscale.compiled.kernel_cache import cache_folder

    started = time.perf_counter()
    warm_up()
    click.echo(f"kernels ready in {cache_folder()} ({time.perf_counter() - started:.1f} s)")


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of the package, by calls on a few rows."""
    import numpy as np

    from calibscale.data.arrays import from_arrays
    from calibscale.evaluation.evaluate import evaluate
    from calibscale.inference.calibration_test import calibration_test
    from calibscale.inference.nulls import NULLS, ClusterSigns
    from calibscale.selection.cross_validation import select
    from calibscale.session import default_estimators
    from calibscale.simulation import GENERATORS

    labels = np.array([1, 0, 1])
    estimators: list[Any] = [*default_estimators(), "ece(edges=equal-mass)"]
    for dtype in (np.float32, np.float64):
        halves = np.full((3, 2), 0.5, dtype)
        for source in (
            from_arrays(logits=halves, labels=labels),
            from_arrays(probabilities=halves, labels=labels),
        ):
            evaluate(source, estimators, scheduler="serial")
    pairwise = ("jkce(method=tiles)", "jkce(method=tiles, precision=float32)")
    evaluate(source, [*pairwise, "ckce(method=exact)"], scheduler="serial")
    kinds = (kind for kind in NULLS.values() if kind.draws)
    for null in (kind.name for kind in kinds if kind is not ClusterSigns):  # as `wild`
        tested = ("ckce", "ece", "ece(edges=equal-mass)", "cwce2", "simplex_ece")
        calibration_test(source, tested, null=null, n_replicates=2, scheduler="serial")
    evaluate(source, ["ece"], interval="jackknife", scheduler="serial")
    GENERATORS["ms-over"].draw(0, 0, 2)
    p = np.linspace(0.01, 0.99, 40)
    source = from_arrays(probabilities=p, labels=np.arange(40) % 2, binary=True)
    for notion in ("positive", "canonical"):
        select(source, notion, folds=2, test_fraction=0.4, features=4, scheduler="serial")


@click.command(cls=shared.Command, short_help="Print the machine and versions for a bug report.")
@shared.json_option
def doctor() -> None:
    """Print versions, processor, threads, BLAS and cache for a bug report."""
    print_facts(_examined())


def _examined() -> dict[str, Any]:
    """Versions, processor, threads, BLAS and cache as a JSON object."""
    from llvmlite import binding
    from threadpoolctl import threadpool_info

    from calibscale.compiled.kernel_cache import cache_folder
    from calibscale.engine.dask_backend import installed
    from calibscale.engine.dask_connection import available_cpus

    cache = cache_folder()
    files = list(cache.rglob("*.nbc")) if cache.is_dir() else []
    features = binding.get_host_cpu_features()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: installed(name) for name in _PACKAGES},
        "cpu": binding.get_host_cpu_name(),
        "cpu_flags": [f for f in ("avx2", "fma", "avx512f", "avx512dq", "neon") if features.get(f)],
        "threads": available_cpus(),
        "threads_of_machine": os.cpu_count(),
        "blas": [
            f"{lib.get('internal_api')} {lib.get('version')} ({lib.get('architecture')}, "
            f"{lib.get('num_threads')} threads)"
            for lib in threadpool_info()
            if lib.get("user_api") == "blas"
        ],
        "cache": str(cache),
        "cached_kernels": len(files),
        "cached_bytes": sum(file.stat().st_size for file in files),
        "environment": {
            name: os.environ[name]
            for name in sorted(os.environ)
            if name.startswith(("CALIBSCALE_", "NUMBA_", "OMP_", "OPENBLAS_", "MKL_"))
        },
    }
