"""Generator of the types of metrics: ``python -m tests.support.metrics_stub`` writes their file."""

from __future__ import annotations

import inspect
from pathlib import Path

from calibscale import metrics
from calibscale.estimators.settings import settings_of

PATH = Path(metrics.__file__).with_suffix(".pyi")
_HEAD = '''\
"""Types of the functions of `calibscale.metrics`, which are made from the estimators."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Arrays are of any library, and labels of any type, so that their type is Any.
'''
# Types of the parameters that are no settings of estimators.
_TYPES = {
    "y_true": "Any",
    "y_prob": "Any",
    "labels": "Sequence[Any] | None",
    "sample_weight": "Any",
    "covariates": "Any",
    "positive": "Any",
    "percent": "bool",
    "on_invalid": "str",
    "tolerance": "float | None",
}
# Types that metrics accept in place of the type of a setting.
_WIDER = {"int": "int | np.integer[Any]", "tuple[str, ...]": "Sequence[str]"}


def _function(name: str) -> str:
    """Declaration of a metric."""
    settings = settings_of("klce" if name == "skce" else name)
    lines = [f"def {name}("]
    keywords_follow = False
    for parameter in inspect.signature(getattr(metrics, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords_follow:
            lines.append("    *,")
            keywords_follow = True
        # Covariates are arrays here, and names in the settings of the estimator.
        if parameter.name in settings and parameter.name != "covariates":
            annotation = settings[parameter.name].annotation
            annotation = _WIDER.get(annotation, annotation)
        else:
            annotation = _TYPES[parameter.name]
        default = ""
        if parameter.default is not parameter.empty:
            default = f" = {parameter.default!r}".replace("'", '"')
        lines.append(f"    {parameter.name}: {annotation}{default},")
    return "\n".join([*lines, ") -> float: ..."])


def text_of_stub() -> str:
    """Text of the file of types."""
    functions = [_function(name) for name in metrics.__all__]
    names = "".join(f'    "{name}",\n' for name in metrics.__all__)
    return "\n".join([_HEAD, f"__all__ = [\n{names}]\n", *functions, ""])


if __name__ == "__main__":
    PATH.write_text(text_of_stub(), encoding="utf-8")
