"""Document of any result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calibscale.errors import require
from calibscale.formatting import number_texts
from calibscale.formatting.escapes import clean, one_line
from calibscale.output.documents import elements as doc
from calibscale.output.documents.printed_results import printed_result
from calibscale.registry import imported
from calibscale.results.declarations import Declared

# Import path of the function that makes the document of a result, by the name in its schema.  Each
# module is imported with the first result of its kind, so that a command loads one of them.
_FOLDER = "calibscale.output.documents."
DOCUMENTS: dict[str, str] = {
    function: f"{_FOLDER}{module}:{function}"
    for module, functions in {
        "bias_documents": ("audit", "bias"),
        "curve_documents": ("concentration", "double_lift", "murphy"),
        "evaluation_documents": ("check", "evaluation", "reliability", "test"),
        "model_documents": ("power", "ranking", "recalibration", "selection"),
        "night_report": ("nightly",),
        "shift_documents": ("label_shift",),
    }.items()
    for function in functions
}


def article_of(result: Declared) -> doc.Article:
    """Document of a result with texts that are safe to print.

    An OptionError is raised if there is no report of such results.
    """
    name = result.schema.removeprefix("calibscale.").partition("/")[0]
    kinds = ", ".join(sorted(DOCUMENTS))
    require(name in DOCUMENTS, f"no report can be made of {result.schema}; use one of: {kinds}")
    article: doc.Article = imported(DOCUMENTS[name])(result)
    seconds = getattr(result, "seconds", None)
    return article if seconds is None else replace(article, duration=number_texts.seconds(seconds))


def document(result: Any) -> doc.Article:
    """Document of a result, with the control characters of names escaped.

    Parameters
    ----------
    result : Evaluation, Reliability, CalibrationTests, Selection, BiasMap, Ranking, Audit, Power,
        FittedRecalibration, MurphyDiagram, ConcentrationCurve, DoubleLift, LabelShift or Night

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    >>> document(cs.evaluate(source, cs.Brier())).title
    'Calibration of arrays'
    """
    return article_of(printed_result(result, lambda text: clean(one_line(text))))
