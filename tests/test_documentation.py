"""Documentation of public names: a docstring with an example, and an entry of the reference."""

from __future__ import annotations

import inspect
import re

import pytest

import calibscale
from calibscale import metrics
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
