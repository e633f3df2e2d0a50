"""Help, start-up, ``calibscale warmup`` and ``calibscale doctor``."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support.command_store import NAMES
from tests.support.commands import finish, start


@pytest.mark.cluster
def test_help__costs_little_and_loads_no_compiler():
    code = (
        "import sys, resource\n"
        "from calibscale.cli import main\n"
        "main(['--help'])\n"
        "heavy = {'numba', 'scipy', 'zarr', 'dask', 'distributed', 'rich'} & set(sys.modules)\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(sorted(heavy), usage.ru_utime + usage.ru_stime, file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.startswith("Usage: calibscale")
    heavy, seconds = ran.stderr.rsplit(" ", 1)
    assert heavy == "[]"
    assert float(seconds) < 1  # 0.15 s on an idle machine


@pytest.mark.parametrize(
    "command", ["evaluate", "simulate", "ingest", "info", "demo", "warmup", "doctor"]
)
def test_help__is_printed_by_every_command(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("-h", "--help"):
        ran = run(command, flag)
        assert ran.code == 0
        assert ran.out.startswith(f"Usage: calibscale {command} ")
        assert ran.err == ""
    assert command in run("--help").out


def test_help__states_the_exit_codes(run):
    text = " ".join(run("--help").out.split())
    assert (
        "0 success, 1 runtime error, 2 usage error, 3 threshold or check breached, 4 invalid data, "
        "5 days missing, broken or provisional (nightly), 75 inter" in text
    )


@pytest.mark.process
def test_version__is_printed_by_a_real_process():
    ran = finish(start("--version"))
    assert ran.code == 0
    assert re.fullmatch(r"calibscale, version \d+\.\d+\.\d+\S*\n", ran.out)


def test_cli__names_every_estimator_of_the_package(run):
    from calibscale.estimators.known_estimators import ESTIMATORS
    from calibscale.predictions.claims import includes

    kinds = ((name, kind) for name, kind in ESTIMATORS.items() if includes(kind.judges, "classes"))
    assert [name for name, kind in kinds if kind.by_default] == NAMES
    help_text = run("evaluate", "--help").out
    assert all(name in help_text for name in ESTIMATORS)


@pytest.mark.long
def test_warmup__says_where_the_kernels_are(run):
    ran = run("warmup")
    assert ran.code == 0
    assert re.fullmatch(r"kernels ready in .+ \(\d+\.\d s\)\n", ran.out)


EVERY_KIND = """
import importlib, pkgutil
import numpy as np
import calibscale.compiled
from calibscale.predictions.claims import includes
from calibscale.cli.commands.warmup import warm_up

def compiled():
    names = [module.name for module in pkgutil.iter_modules(calibscale.compiled.__path__)]
    modules = [importlib.import_module("calibscale.compiled." + name) for name in names]
    return {
        (module.__name__, name): set(function.signatures)
        for module in modules for name, function in vars(module).items()
        if getattr(getattr(function, "stats", None), "cache_path", None)
    }

warm_up()
before = compiled()
assert sum(map(len, before.values())) > 20, before
from calibscale import ECE, evaluate, from_arrays
from calibscale.session import default_estimators
q, y = np.full((5, 4), 0.25), np.arange(5) % 4
many = (*default_estimators(), ECE(edges="equal-mass"), ECE(edges="netcal"))
for dtype in (np.float16, np.float32, np.float64, ">f4"):
    for kind in ("logits", "probabilities"):
        evaluate(from_arrays(**{kind: q.astype(dtype)}, labels=y), many)
        evaluate(from_arrays(**{kind: np.asfortranarray(q.astype(dtype))}, labels=y), many)
evaluate(from_arrays(logits=q[:, 0], labels=y % 2, binary=True), [ECE(notion="positive")])
evaluate(
    from_arrays(logits=q, labels=y.astype("u1"), weights=y + 1.0, covariates=y[:, None]),
    many,
    group_by="x0",
)
evaluate(from_arrays(logits=np.ones((3000, 3)), labels=np.zeros(3000, int)), many)
new = {name: signatures - before[name] for name, signatures in compiled().items()}
assert not any(new.values()), new
"""


@pytest.mark.process
def test_warmup__leaves_nothing_to_compile():
    ran = subprocess.run(
        [sys.executable, "-c", EVERY_KIND], capture_output=True, text=True, timeout=900, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.process  # `platform` runs uname
def test_doctor__examines_the_machine(run):
    result = run("doctor", "--json", "-").json
    assert result["versions"]["calibscale"]
    assert result["versions"]["numpy"] == np.__version__
    assert result["threads"] >= 1
    assert result["python"] == sys.version.split()[0]
    lines = run("doctor").out.splitlines()
    assert f"numpy: {np.__version__}" in [line.strip() for line in lines]


def test_options__given_twice_are_rejected(run, store):
    twice = run("evaluate", store, "-e", "ece", "-e", "nll", "--seed", 5, "--seed", 10)
    assert twice.code == 2
    assert "--seed is given twice" in twice.err
    assert run("ledger", "check", "--help").code == 0
    assert run("evaluate", store, "-e", "ece", "-e", "nll", "--seed", 5).code == 0


def test_help__has_sections(run):
    text = run("evaluate", "--help").out
    sections = [
        "Options:",
        "Estimators:",
        "Settings of estimators:",
        "Reading and execution:",
        "Table files, and zarr arrays of other programs:",
    ]
    places = [text.index(f"\n{section}\n") for section in sections]
    assert places == sorted(places)
    assert places[0] < text.index("--estimator") < places[1] < text.index("\n  ckce ") < places[2]
    assert places[2] < text.index("--features") < places[3]
    assert "Examples:\n" in text
    assert "[STORE]\n  -e" not in text
    assert "Execution:" in run("nightly", "--help").out
