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


def _conda_requirements(requirements: list[str]) -> list[str]:
    """Requirements of PyPI as those of conda-forge."""
    pattern = re.compile(r"([\w-]+)(>=[\d.]+)")
    parts = [pattern.fullmatch(text) for text in requirements]
    return [f"{CONDA.get(part[1], part[1])} {part[2]}" for part in parts]


def _names_of_all(extras: dict[str, list[str]]) -> list[str]:
    """Names of the extras that the extra `all` installs."""
    (requirement,) = extras["all"]
    return requirement.removeprefix("calibscale[").removesuffix("]").split(",")


def test_extra_all__has_every_extra_for_users(project):
    extras = project["project"]["optional-dependencies"]
    assert set(_names_of_all(extras)) == extras.keys() - {"all", "docs", "test"}


def test_conda_recipe__has_the_requirements_of_the_project(project):
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe/recipe.yaml").read_text())
    metadata = project["project"]
    expected = _conda_requirements(metadata["dependencies"])
    assert recipe["requirements"]["run"] == ["python >=${{ python_min }}", *expected]
    extras = metadata["optional-dependencies"]
    optional = [text for name in _names_of_all(extras) for text in extras[name]]
    assert recipe["requirements"]["run_constraints"] == _conda_requirements(optional)
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
