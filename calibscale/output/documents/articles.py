"""Document of any result, by the schema of its JSON object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from calibscale.errors import require
from calibscale.formatting import escapes, number_texts
from calibscale.formatting.escapes import clean, one_line
from calibscale.output.documents import elements as doc
from calibscale.output.documents import night_report
from calibscale.output.documents.bias_documents import audit, bias
from calibscale.output.documents.evaluation_documents import check, evaluation, reliability, test
from calibscale.output.documents.model_documents import power, ranking, recalibration, selection
from calibscale.results.declarations import Declared
from calibscale.results.night_results import Night


def nightly(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale nightly``."""
    return night_report.nightly(Night.from_dict(result, fresh=False))


DOCUMENTS: dict[str, Callable[[dict[str, Any]], doc.Article]] = {
    function.__name__: function
    for function in (
        *(audit, bias, check, evaluation, nightly, power),
        *(ranking, recalibration, reliability, selection, test),
    )
}


def article_of(result: dict[str, Any]) -> doc.Article:
    """Document of the JSON object of a result that has every key of its schema.

    An OptionError is raised if there is no report of such results.
    """
    name = result["schema"].removeprefix("calibscale.").partition("/")[0]
    kinds = ", ".join(DOCUMENTS)
    require(name in DOCUMENTS, f"no report can be made of {result['schema']}; use one of: {kinds}")
    article = DOCUMENTS[name](result)
    seconds = result.get("seconds")
    return article if seconds is None else replace(article, duration=number_texts.seconds(seconds))


class Completed(dict[str, Any]):
    """JSON object in which optional keys are None where they are missing, as in `read`."""

    def __missing__(self, key: str) -> None:
        return None


def document(result: Any) -> doc.Article:
    """Document of a result, with the control characters of names escaped.

    Parameters
    ----------
    result : Evaluation, Reliability, CalibrationTests, Selection, BiasMap, Ranking, Audit, Power,
        FittedRecalibration or Night

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    >>> document(cs.evaluate(source, cs.Brier())).title
    'Calibration of arrays'
    """
    value = escapes.printed(Declared.to_dict(result), lambda text: clean(one_line(text)), Completed)
    histograms = getattr(result, "histograms", ())
    value["histograms"] = {h.covariate: (h.edges, h.counts) for h in histograms}
    return article_of(value)
