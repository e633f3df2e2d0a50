"""Documents of results: one function of the JSON object of each result, for text and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from calibscale import formatting
from calibscale.formatting import one_line
from calibscale.output.document import Article
from calibscale.output.documents import articles
from calibscale.output.documents.audit_document import audit
from calibscale.output.documents.night_report import nightly
from calibscale.output.reading import read

_DOCUMENTS: dict[str, Callable[[dict[str, Any]], Article]] = {
    "audit": audit,
    "bias": articles.bias,
    "evaluation": articles.evaluation,
    "nightly": nightly,
    "power": articles.power,
    "ranking": articles.ranking,
    "reliability": articles.reliability,
    "selection": articles.selection,
    "test": articles.test,
}


def document_of_json(value: Any, where: str) -> Article:
    """Document of the JSON object of a result.

    Raises
    ------
    OptionError
        If the value is malformed, or its schema has no report.
    """
    result = read(value, where)
    return _document(result)


def document(result: Any) -> Article:
    """Document of a result; control characters of names are escaped.

    Parameters
    ----------
    result : Evaluation, Reliability, CalibrationTests, Selection, BiasMap, Ranking, Audit, Power
        or Night

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    >>> document(cs.evaluate(source, cs.Brier())).title
    'Calibration of arrays'
    """
    value = read(_escaped(result.to_dict()))
    histograms = getattr(result, "histograms", ())
    value["histograms"] = {one.covariate: (one.edges, one.counts) for one in histograms}
    return _document(value)


def _document(result: dict[str, Any]) -> Article:
    name = result["schema"].removeprefix("calibscale.").partition("/")[0]
    article, seconds = _DOCUMENTS[name](result), result.get("seconds")
    return article if seconds is None else replace(article, duration=formatting.seconds(seconds))


def _escaped(value: Any) -> Any:
    """Return the JSON value with `formatting.one_line` applied to its texts."""
    if isinstance(value, dict):
        return {one_line(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return one_line(value) if isinstance(value, str) else value
