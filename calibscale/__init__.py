"""calibscale: calibration of probabilities and forecasts, at any number of rows.

Symbols, in code as in the papers: rows i = 1..n, predicted probabilities ``q``, labels ``y`` in
0..K−1, residuals ``delta`` = q − e_y, features ``phi`` in R^m with moments ``S``, ``C``, ``D`` and
``t``, and ``ridge`` = λ.  Papers: [GB] Gruber & Bach 2025, [VF] Vashistha & Farahi 2025, [MS]
Moskvichev & Sejdinovic 2025.
"""

from __future__ import annotations

import sys
from typing import Any

import lazy_loader

from calibscale import output
from calibscale.results import exported

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # a function of Python 3.13 and later
    raise ImportError(
        "calibscale is not tested on free-threaded Python without its global lock, where threads "
        "might give wrong numbers: set PYTHON_GIL=1, or use a build that is not free-threaded"
    )

exported.connect(output)

# Names are imported on first use, so that `import calibscale` and `calibscale --help` load neither
# NumPy nor the compiler.  The stub `__init__.pyi` names the module of each one.
_import_name, _, _names = lazy_loader.attach_stub(__name__, __file__)

# `from calibscale import *` leaves `metrics` out, because scikit-learn has a module of this name.
__all__ = [name for name in _names if name != "metrics"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("calibscale")
    if name not in _names:
        raise AttributeError(f"module 'calibscale' has no attribute {name!r}")
    return _import_name(name)


def __dir__() -> list[str]:
    return list(__all__)
