"""Files that package and publish calibscale."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONDA = {
    "dask": "dask-core",
    "matplotlib": "matplotlib-base",
    "prometheus-client": "prometheus_client",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_conda_recipe__has_the_requirements_of_the_project(project):
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe/recipe.yaml").read_text())
    metadata = project["project"]
    pattern = re.compile(r"([\w-]+)(>=[\d.]+)")
    parts = [pattern.fullmatch(text) for text in metadata["dependencies"]]
    expected = [f"{CONDA.get(part[1], part[1])} {part[2]}" for part in parts]
    assert recipe["requirements"]["run"] == ["python >=${{ python_min }}", *expected]
    assert metadata["requires-python"] == f">={recipe['context']['python_min']}"
    assert recipe["context"]["version"] == metadata["version"]
    (build,) = project["build-system"]["requires"]
    assert build.replace(">=", " >=") in recipe["requirements"]["host"]
    scripts = [f"{name} = {target}" for name, target in metadata["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["license"] == metadata["license"]


def test_workflows__call_environments_of_tox(project):
    tox = (ROOT / "tox.ini").read_text()
    environments = set(re.findall(r"^\[testenv:(\w+)", tox, re.MULTILINE)) | {"docs"}
    called = set()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        for job in workflow["jobs"].values():
            commands = " ".join(step.get("run", "") for step in job["steps"])
            called |= set(re.findall(r"tox -e (\w+)", commands))
    assert called >= {"full", "oldest", "package", "docs"}
    assert called <= environments
    versions = [c.rpartition(" ")[2] for c in project["project"]["classifiers"] if "3." in c]
    assert versions == re.findall(r"3\.1\d", "3.11 3.12 3.13 3.14")
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert matrix["jobs"]["pythons"]["strategy"]["matrix"]["python"] == versions
