"""python packaging/check_distributions.py FOLDER: build, check and install the distributions.

The sdist and the wheel that is built from it are checked by twine, and each is installed in an
environment of its own, where commands and the examples of `evaluate` run.  The extras are installed
after that, because nothing else may need them.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = """
import doctest, sys
import calibscale
from calibscale.evaluation import evaluate
from calibscale.results.schemas.schema_files import names, schema

assert "site-packages" in calibscale.__file__, calibscale.__file__
assert all(schema(name)["title"] == name for name in names())
failed, run = doctest.testmod(evaluate)
sys.exit(failed or run == 0)
"""


def call(*command: str | Path) -> None:
    print("$", *command[:6], flush=True)
    subprocess.run(command, check=True)


def check(folder: Path) -> None:
    built = folder / "dist"
    call(sys.executable, "-m", "build", "--installer", "uv", "--outdir", built, ROOT)
    files = sorted(built.iterdir())
    wheel, sdist = (next(f for f in files if f.name.endswith(end)) for end in (".whl", ".tar.gz"))
    call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    inside = zipfile.ZipFile(wheel).namelist()
    package = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "calibscale").rglob("*")
                     if path.is_file() and "__pycache__" not in path.parts)  # fmt: skip
    assert sorted(n for n in inside if ".dist-info/" not in n) == package
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*package, "LICENSE", "README.md", "pyproject.toml"} <= names
    for file in (wheel, sdist):
        environment = folder / file.name.rpartition(".")[2]
        call("uv", "venv", "--clear", "--python", sys.executable, environment)
        python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        call("uv", "pip", "install", "--python", python, file)
        call("uv", "pip", "check", "--python", python)
        command, store = python.with_name("calibscale"), environment / "demo.zarr"
        call(command, "demo", "--rows", "1000", "--keep", store, "--quiet")
        call(python, "-I", "-c", EXAMPLES)
        on_dask = [command, "evaluate", store, "--scheduler", "local:1", "--quiet"]
        refused = subprocess.run(on_dask, stderr=subprocess.PIPE, text=True, check=False)
        assert "pip install 'calibscale[cluster]'" in refused.stderr, refused.stderr
        call("uv", "pip", "install", "--python", python, f"calibscale[all] @ {file.as_uri()}")
        call("uv", "pip", "check", "--python", python)
        call(*on_dask)


if __name__ == "__main__":
    check(Path(sys.argv[1]).resolve())
