"""Public names of the package, which are imported on first use."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import calibscale
from calibscale.estimators.known_estimators import ESTIMATORS


@pytest.mark.process
def test_import__loads_no_other_library():
    code = (
        "import sys, calibscale\n"
        "libraries = {'numpy', 'numba', 'scipy', 'zarr', 'dask', 'matplotlib', 'rich', 'click'}\n"
        "print(*libraries & set(sys.modules))\n"
        "modules = [name for name in sys.modules if name.startswith('calibscale.')]\n"
        "print(*modules)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    # Results are connected to the functions that show them, which are not imported yet.
    modules = {"calibscale.output", "calibscale.results", "calibscale.results.exported"}
    assert set(process.stdout.split()) == modules


def test_names__have_every_estimator():
    classes = {kind.__name__ for kind in ESTIMATORS.values()}
    assert classes <= set(dir(calibscale))


def test_names__are_the_same_in_each_list():
    namespace: dict[str, object] = {}
    exec("from calibscale import *", namespace)
    del namespace["__builtins__"]
    assert sorted(namespace) == calibscale.__all__ == dir(calibscale)
    assert "metrics" not in namespace  # scikit-learn has a module of this name
    assert calibscale.metrics.__name__ == "calibscale.metrics"


@pytest.mark.parametrize("name", dir(calibscale))
def test_names__are_pickled_by_the_module_that_defines_them(name):
    value = getattr(calibscale, name)
    assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.process
def test_unknown_name__is_an_error_with_a_suggestion():
    command = [sys.executable, "-c", "import calibscale; calibscale.evaluat"]
    process = subprocess.run(command, capture_output=True, text=True)
    message = "AttributeError: module 'calibscale' has no attribute 'evaluat'"
    assert process.stderr.endswith(f"{message}. Did you mean: 'evaluate'?\n")
    with pytest.raises(ImportError, match="cannot import name 'evaluat' from 'calibscale'"):
        exec("from calibscale import evaluat")
