"""Subnormal numbers: no inner loop meets them, and flushing them to 0 changes no result.

Libraries built with -ffast-math switch the thread that loads them to flushing, and new threads
inherit the mode.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.compiled import scored_rows, tiles
from calibscale.engine.execution import Execution
from calibscale.kernels.pair_sums import Pairs
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.statistics.score_sums import Moments
from tests.support import ROOT
from tests.support.slow_cases import some_slow

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SWITCH = """
#include <xmmintrin.h>
__attribute__((constructor)) static void flush(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
"""
# the processor records that an operand (2) or a result (16) was subnormal
MET = """
#include <xmmintrin.h>
unsigned met(void) { unsigned m = _mm_getcsr(); _mm_setcsr(m & ~0x3fu); return m & 0x12u; }
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a mode of x86"),
    pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="not the compiled loops"),
]
both_precisions = pytest.mark.parametrize("precision", ["float32", "float64"])


def _library(folder: Path, code: str) -> Path:
    assert COMPILER is not None
    source, library = folder / "of_the_test.c", folder / "of_the_test.so"
    source.write_text(code)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


# ---------------------------------------------------------------- inner loops


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """Whether this thread met a subnormal number since the last call."""
    call = ctypes.CDLL(str(_library(tmp_path_factory.mktemp("met"), MET))).met
    call.restype = ctypes.c_uint
    call()
    assert (np.array([1e-310]) * 2.0)[0] > 0
    assert call()
    return lambda: bool(call())


@pytest.fixture(scope="module")
def extreme():
    """Softmax outputs of every size down to the smallest number, and covariates near 0."""
    rng = np.random.default_rng(3)
    n = 900
    logits = rng.normal(size=(n, 7)) * np.exp(rng.uniform(-1, 7, (n, 1)))
    labels = np.where(rng.random(n) < 0.7, logits.argmax(1), rng.integers(0, 7, n))
    x = rng.normal(size=(n, 2)) * 10.0 ** -rng.uniform(0, 60, (n, 2))
    names = ("age", "income")
    many = cs.from_arrays(logits=logits, labels=labels, covariates=x, covariate_names=names)
    two = cs.from_arrays(
        logits=logits[:, 0], labels=labels > 2, covariates=x, covariate_names=names, binary=True
    )
    return {"canonical": many, "positive": two}


def _panels(source, kernel, notion, precision):
    rules = Rules(source.kind, Classes(source.classes), 1, covariates=kernel.columns)
    with Pairs(source, rules, Execution()).panels(kernel, notion, precision) as panels:
        (laid_out,) = (panels[index] for index in range(len(panels)))
        return panels.layout, laid_out.panel


@both_precisions
@pytest.mark.parametrize("notion", ["canonical", "positive"])
@pytest.mark.parametrize("bandwidth", some_slow([0.5, 0.16, 0.02, 1e-3], keep=[0.16]))
@pytest.mark.parametrize(
    "options",
    [
        dict(prediction="gaussian"),
        dict(prediction="linear+gaussian"),
        dict(prediction="gaussian", columns=(0, 1), covariate="gaussian"),
        dict(prediction="laplace", columns=(0, 1), covariate="matern52"),
        dict(prediction="matern32", columns=(0,), covariate="laplace"),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_pair_loops__meet_no_subnormal_number(met, extreme, precision, notion, bandwidth, options):
    columns = len(options.get("columns", ()))
    kernel = ProductKernel(
        **options,
        prediction_bandwidth=bandwidth,
        bandwidths=(bandwidth,) * columns,
        centres=(0.0,) * columns,
    )
    layout, panel = _panels(extreme[notion], kernel, notion, precision)
    grid, form = layout.grid(panel, panel, True), layout.form
    V = np.zeros((2, panel.s.size), precision)
    strips = np.array(layout.strips(panel), np.int64)
    into = np.zeros((len(strips), *V.shape), precision), np.zeros_like(V)
    for kernel_sums in (False, True):
        out = np.zeros((len(grid), 2))
        met()
        tiles.pair_sums(panel, panel, form, grid, kernel_sums, out)
        assert not met()
        assert np.isfinite(out).all()
    V[:] = panel.s
    met()
    tiles.row_sums(panel, panel, form, strips, True, V, V, *into)
    assert not met()


def test_moments__meet_no_subnormal_number(met, extreme):
    source = extreme["canonical"]
    rules = Rules(source.kind, Classes(source.classes), 1, features=107)
    statistic = Moments(cs.RandomFourier(50, bandwidth=0.5))
    ((chunk, _),) = chunks(source.read(0, source.rows), rules)
    state = statistic.zero(source.classes)
    met()
    statistic.accumulate(state, chunk)
    assert not met()
    assert state.S.any()


def test_scores__meet_no_subnormal_number(met, extreme):
    source = extreme["canonical"]
    block = source.read(0, source.rows)
    met()
    ((chunk, _),) = chunks(block, Rules(source.kind, Classes(source.classes), 1))
    assert chunk.q.min() == 0
    assert not met()
    assert chunk.q[chunk.q > 0].min() >= scored_rows.SMALLEST


# ---------------------------------------------------------------- every verb


def _results(*libraries: object) -> dict:
    command = [sys.executable, "-m", "tests.support.every_verb", *map(str, libraries)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
def test_every_verb__gives_the_same_bits_where_subnormal_numbers_are_0(tmp_path):
    usual, flushed = _results(), _results(_library(tmp_path, SWITCH))
    assert not usual.pop("flushed")
    assert flushed.pop("flushed")
    for verb, expected in usual.items():
        assert flushed[verb] == expected, verb
