"""Documentation of public names: a docstring with an example, and an entry of the reference."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import calibscale
from calibscale import metrics
from calibscale.errors import OptionError
from calibscale.estimators.known_estimators import ESTIMATORS, LOCAL
from tests.support import ROOT

REFERENCE = ROOT / "docs" / "reference"
NAMES = [(calibscale, name) for name in dir(calibscale)]
NAMES += [(metrics, name) for name in metrics.__all__]


@pytest.mark.parametrize(
    ("module", "name"), NAMES, ids=lambda part: getattr(part, "__name__", part)
)
def test_names__have_an_example(module, name):
    text = inspect.cleandoc(getattr(module, name).__doc__ or "")
    assert re.search(r"^Examples\n--------\n(.|\n)*^>>> ", text, re.MULTILINE)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="no docs beside an installed wheel")
def test_names__are_in_the_reference():
    for page, names in (("api", dir(calibscale)), ("metrics", metrics.__all__)):
        listed = re.findall(r"^   (\w+)$", (REFERENCE / f"{page}.md").read_text(), re.MULTILINE)
        assert sorted(listed) == sorted(names)


def _predictions(kind: str) -> calibscale.ArraySource:
    """A hundred rows of classes or forecasts with two covariates."""
    rng = np.random.default_rng(0)
    covariates = {"covariates": rng.integers(0, 3, (100, 2)), "covariate_names": ["a", "b"]}
    if kind == "forecasts":
        mean, deviation = rng.normal(size=100), np.ones(100)
        outcomes = rng.normal(mean, deviation)
        return calibscale.from_arrays(
            predictions=(mean, deviation), forecast="normal", labels=outcomes, **covariates
        )
    p = rng.random(100)
    p = np.column_stack([1 - p, p])
    return calibscale.from_arrays(probabilities=p, labels=rng.integers(0, 2, 100), **covariates)


def _is_tested(source: calibscale.ArraySource, name: str) -> bool:
    """Whether `calibration_test` accepts an estimator, with covariates if it needs them."""
    try:
        statistic = name
        if name in LOCAL:
            statistic = f'{name}(covariates=["a","b"])'
        calibscale.calibration_test(source, statistic, n_replicates=1)
    except OptionError:
        return False
    return True


@pytest.mark.long
@pytest.mark.skipif(not REFERENCE.is_dir(), reason="no docs beside an installed wheel")
@pytest.mark.parametrize("kind", ["classes", "forecasts"])
def test_testable_statistics__are_listed(kind):
    page = (ROOT / "docs" / "concepts" / "tests.md").read_text()
    (row,) = re.findall(rf"^\| {kind} \| (.*) \|$", page, re.MULTILINE)
    source = _predictions(kind)
    accepted = [name for name in ESTIMATORS if _is_tested(source, name)]
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(accepted)
