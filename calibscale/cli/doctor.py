"""Facts about a machine for a bug report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from llvmlite import binding
from threadpoolctl import threadpool_info

from calibscale.engine import available_cpus
from calibscale.kernels import cache_folder

_PACKAGES = (
    *("calibscale", "numpy", "scipy", "numba", "llvmlite", "zarr", "numcodecs", "dask"),
    *("distributed", "finufft", "pyarrow", "matplotlib", "safetensors", "xarray", "fsspec"),
)


def examine() -> dict[str, Any]:
    """Return versions, processor, threads, BLAS and cache as a JSON object."""
    cache = cache_folder()
    files = list(cache.rglob("*.nbc")) if cache.is_dir() else []
    features = binding.get_host_cpu_features()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in _PACKAGES},
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


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
