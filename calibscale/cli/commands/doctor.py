"""``calibscale doctor``."""

from __future__ import annotations

import os
import platform
from typing import Any

from calibscale.cli import blas_threads
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command

_PACKAGES = (
    *("calibscale", "numpy", "scipy", "numba", "llvmlite", "zarr", "numcodecs", "dask"),
    *("distributed", "finufft", "pyarrow", "matplotlib", "safetensors", "xarray", "fsspec"),
)


@command
@shared.json_option
def doctor() -> None:
    """Print versions, processor, threads, BLAS and cache for a bug report."""
    outputs.print_facts(_examined())


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
        "environment": _environment(),
    }


def _environment() -> dict[str, str]:
    """Variables of the environment that change how libraries run."""
    variables = {
        name: os.environ[name]
        for name in sorted(os.environ)
        if name.startswith(("CALIBSCALE_", "NUMBA_", "OMP_", "OPENBLAS_", "MKL_"))
    }
    if blas_threads.is_limited():
        variables[blas_threads.VARIABLE] += " (set by this command)"
    return variables
