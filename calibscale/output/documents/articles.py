"""Document of any result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from calibscale.errors import require
from calibscale.formatting import number_texts
from calibscale.formatting.escapes import clean, one_line
from calibscale.output.documents import elements as doc
from calibscale.output.documents.bias_documents import audit, bias
from calibscale.output.documents.curve_documents import concentration, double_lift, murphy
from calibscale.output.documents.evaluation_documents import check, evaluation, reliability, test
from calibscale.output.documents.model_documents import power, ranking, recalibration, selection
from calibscale.output.documents.night_report import nightly
from calibscale.output.documents.printed_results import printed_result
from calibscale.output.documents.shift_documents import label_shift
from calibscale.results.declarations import Declared

# Function that makes the document of a result, by the name in its schema.
DOCUMENTS: dict[str, Callable[[Any], doc.Article]] = {
    function.__name__: function
    for function in (
        *(audit, bias, check, concentration, double_lift, evaluation, label_shift, murphy),
        *(nightly, power, ranking, recalibration, reliability, selection, test),
    )
}


def article_of(result: Declared) -> doc.Article:
    """Document of a result with texts that are safe to print.

    An OptionError is raised if there is no report of such results.
    """
    name = result.schema.removeprefix("calibscale.").partition("/")[0]
    kinds = ", ".join(DOCUMENTS)
    require(name in DOCUMENTS, f"no report can be made of {result.schema}; use one of: {kinds}")
    article = DOCUMENTS[name](result)
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
