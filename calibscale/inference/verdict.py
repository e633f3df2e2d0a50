"""The verdict: one judgement from all numbers of a result.

A number is evidence of miscalibration by its test, its noise floor, or its interval
(`calibscale.inference.evidence`).  A result has many numbers, and at least one lies beyond chance
more often than α.  Hence p-values are adjusted for their number
(`calibscale.inference.judged_numbers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scipy.special import ndtri

from calibscale.errors import require
from calibscale.formatting.escapes import one_line
from calibscale.formatting.fault_texts import dropped_text
from calibscale.formatting.naming import group
from calibscale.formatting.number_texts import plural
from calibscale.inference.evidence import (
    Indication,
    absolute,
    evidence_of_estimates,
    evidence_of_tests,
)
from calibscale.inference.judged_numbers import JudgedNumbers
from calibscale.inference.multiple_testing import adjusted_tests
from calibscale.inference.verdict_sentences import (
    chance_sentence,
    cited_p,
    crowded_sentence,
    error_sentence,
    too_few_draws,
)
from calibscale.predictions.invalid_rows import remedy_of_dropped
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.source_rows import ImpossibleRows, rounding_advice
from calibscale.results.verdict_results import (
    FEW,
    MISCALIBRATED,
    NEGLIGIBLE,
    NOTHING,
    REFUTED,
    SMALL,
    UNCLEAR,
    WITHIN,
    Judgement,
)

if TYPE_CHECKING:
    from calibscale.results.inference_results import CalibrationTests, TestResult

ALPHA = 0.05
_POWER = 0.8  # share of data sets in which a detectable error is seen
_WIDEST = 0.1  # detectable error above which rows are too few for a verdict
_MAXIMA = ("mce",)  # errors of one bin, which exceed mean errors


def judgement_of_evaluation(
    result: Evaluation,
    *,
    joint: Mapping[str, float | None] | None = None,
    tests: Sequence[TestResult] = (),
    negligible: float = NEGLIGIBLE,
    alpha: float = ALPHA,
    least: float | None = None,
) -> Judgement | None:
    """Judgement of an evaluation, from its estimates, groups and impossible labels.

    Parameters
    ----------
    joint : {label: p-value}, optional
        p-values of tests of the estimates of all rows and of `tests`, adjusted for each other.
    tests : sequence of TestResult
        Further tests of all rows.
    negligible : float
        Size in units of a probability, below which an error is small.
    alpha : float
        Level at which chance does not explain the numbers.
    least : float, optional
        Smallest p-value that the draws of the tests can give.

    Returns
    -------
    Judgement or None
        None where no estimate has an interval, a noise floor or a p-value.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import evaluate, from_arrays
    >>> q, y = np.tile([0.9, 0.1, 0.0], (400, 1)), np.where(np.arange(400) % 10 < 6, 0, 1)
    >>> source = from_arrays(probabilities=q, labels=y)
    >>> result = evaluate(source, ["confidence_gap", "ece"], interval="jackknife")
    >>> judgement = judgement_of_evaluation(result)
    >>> judgement.state, judgement.size.estimator, round(judgement.size.value, 3)
    ('miscalibrated', 'confidence_gap', 0.3)
    """
    evidence = evidence_of_estimates(result.estimates, alpha, joint)
    adjusted = [(joint or {}).get(test.statistic) for test in tests]
    evidence += evidence_of_tests(tests, alpha, adjusted)
    for evaluation in (result, *result.others):
        for key, estimates in evaluation.groups.items():
            # Groups have names, or are numbers of the column.
            name = getattr(key, "name", None)
            value = float(key) if name is None else one_line(str(name))
            where = group(evaluation.group_by, value)
            evidence += evidence_of_estimates(estimates, alpha, group=where)
    facts = JudgedNumbers(
        evidence,
        result.n,
        alpha,
        negligible,
        result.impossible,
        result.source,
        result.reliability,
        result.estimates,
        least,
        result.dropped,
    )
    return _judged(facts)


def judgement_of_tests(
    result: CalibrationTests, negligible: float = NEGLIGIBLE, alpha: float = ALPHA
) -> Judgement | None:
    """Judgement of calibration tests, or None if no test has a p-value."""
    tests = result.results
    joint: list[float | None] = [None] * len(tests)
    if len(tests) > 1 and all(_shares_draws(test) for test in tests):
        joint = adjusted_tests(tests)
    evidence = evidence_of_tests(tests, alpha, joint)
    return _judged(
        JudgedNumbers(
            evidence,
            result.n,
            alpha,
            negligible,
            result.impossible,
            result.source,
            dropped=result.dropped,
        )
    )


def _shares_draws(test: TestResult) -> bool:
    """Whether the p-value of a test is the rank of its value among draws of all tests."""
    return test.null not in ("permute", "hoeffding") and not test.stopped


def check_negligible(negligible: float) -> None:
    """Raise an OptionError unless it is a size in units of a probability."""
    require(
        isinstance(negligible, int | float) and 0 <= negligible < 1,
        "negligible must be in [0, 1), in units of a probability: 0.01 is one point",
        negligible,
    )


def _judged(facts: JudgedNumbers) -> Judgement | None:
    if facts.rows == 0:
        sentence = f"Nothing to judge: {_why_no_rows(facts)}"
        return Judgement(NOTHING, sentence, 0, negligible=facts.negligible)
    if not facts.evidence and facts.impossible is None:
        return None
    judgement = _of_numbers(facts) if facts.evidence else None
    if facts.impossible is not None:
        return _refuted(facts, facts.impossible, judgement)
    return judgement


def _why_no_rows(facts: JudgedNumbers) -> str:
    """Sentence that says why no rows are left, and names the remedy."""
    if not facts.dropped:
        return "there are no rows with a label and a positive weight."
    return (
        f"no rows with a label are left. {dropped_text(facts.dropped)}; "
        f"{remedy_of_dropped(facts.dropped)}."
    )


def _refuted(
    facts: JudgedNumbers, impossible: ImpossibleRows, judgement: Judgement | None
) -> Judgement:
    """Judgement of labels of probability 0, with the sentence about the numbers if it agrees."""
    forecasts = facts.source.get("forecast") is not None
    label, predictions = ("outcome", "forecasts") if forecasts else ("label", "predictions")
    plural_verb = "have" if impossible.count != 1 else "has"
    first = "first" if impossible.count > 1 else "in"
    sentence = (
        f"Miscalibrated: {impossible.count:,} of {plural(facts.rows, label)} {plural_verb} the "
        f"predicted probability 0 ({first} row {impossible.first_row:,}), which calibrated "
        f"{predictions} exclude."
    )
    if impossible.decimals is not None:
        sentence = f"{sentence} {rounding_advice(impossible.decimals)}"
    if judgement is None:
        return Judgement(REFUTED, sentence, 0, negligible=facts.negligible)
    if judgement.state in (MISCALIBRATED, SMALL):
        besides = judgement.sentence
        sentence = f"{sentence} Besides, {besides[0].lower()}{besides[1:]}"
    return replace(judgement, state=REFUTED, sentence=sentence)


def _of_numbers(facts: JudgedNumbers) -> Judgement:
    """Judgement of a result with numbers that have a p-value."""
    limited = _limited(facts)
    # Groups are judged only when there are enough draws to judge all rows.
    if facts.unexplained and not limited:
        return _of_errors(facts)
    return _of_chance(facts, limited)


def _limited(facts: JudgedNumbers) -> list[Indication]:
    """Numbers of all rows that need more draws, unless another one of all rows is unexplained."""
    if any(indication.group is None for indication in facts.unexplained):
        return []
    return [indication for indication in facts.overall if facts.is_limited(indication)]


def _of_errors(facts: JudgedNumbers) -> Judgement:
    """Judgement of numbers that chance does not explain."""
    cited = _deciding(facts, facts.unexplained)
    state = SMALL if _is_small(facts, facts.unexplained) else MISCALIBRATED
    sentence = error_sentence(facts, cited, state)
    # Crowded bins hide errors from binned numbers, but not from the gap.
    if not cited.directed:
        sentence = _with_crowded_bins(facts, sentence)
    return Judgement(
        state=state,
        sentence=sentence,
        numbers=facts.numbers,
        p_value=cited_p(facts, cited),
        estimator=cited.label,
        group=cited.group,
        size=cited.size,
        detectable=_detectable(facts),
        negligible=facts.negligible,
    )


def _of_chance(facts: JudgedNumbers, limited: Sequence[Indication]) -> Judgement:
    """Judgement of numbers that chance explains, or of which the `limited` ones need more draws."""
    # Beyond chance taken alone, but not among all numbers.
    beyond = [indication for indication in facts.evidence if indication.beyond_chance]
    detectable = _detectable(facts)
    if limited or beyond:
        state = UNCLEAR
    elif detectable is not None and detectable > _WIDEST:
        state = FEW
    else:
        state = WITHIN
    strongest = facts.strongest_of(beyond or facts.evidence)
    judgement = Judgement(
        state=state,
        sentence="",
        numbers=facts.numbers,
        p_value=facts.adjusted(strongest),
        estimator=strongest.label,
        group=strongest.group,
        detectable=detectable,
        negligible=facts.negligible,
    )
    sentence = too_few_draws(limited) if limited else chance_sentence(facts, judgement)
    return replace(judgement, sentence=_with_crowded_bins(facts, sentence))


def _with_crowded_bins(facts: JudgedNumbers, sentence: str) -> str:
    """Sentence with a second one about crowded bins, if there are any."""
    crowded = crowded_sentence(facts)
    return f"{sentence} {crowded}" if crowded else sentence


def _deciding(facts: JudgedNumbers, unexplained: Sequence[Indication]) -> Indication:
    """Number that the verdict cites: of all rows before groups, and known before unknown sizes.

    The gap says in which direction predictions are wrong, and is cited unless another error is more
    than twice as large, so that most of it cancels or is in other classes.
    """
    overall = [indication for indication in unexplained if indication.group is None]
    sized = sorted(
        (indication for indication in overall or unexplained if indication.size is not None),
        key=lambda indication: indication.rank,
    )
    if not sized:
        return facts.strongest_of(overall or unexplained)
    # Among groups the largest error is cited.
    if not overall:
        return max(sized, key=absolute)
    undirected = [indication for indication in sized if not indication.directed]
    if not undirected:
        return sized[0]
    error = undirected[0]
    means = [indication for indication in undirected if indication.name not in _MAXIMA]
    largest = max(means, key=absolute, default=error)
    if absolute(largest) > 2.0 * absolute(error):
        error = largest
    # Directed numbers come first in the order of `rank`.
    gap = sized[0]
    return gap if gap.directed and absolute(error) <= 2.0 * absolute(gap) else error


# Notions with errors that the errors of other notions bound.  For two classes all three judge the
# same probability.
_COVERED_BY = {
    "canonical": ("class_wise", "positive"),
    "class_wise": ("positive",),
}


def _is_small(facts: JudgedNumbers, unexplained: Sequence[Indication]) -> bool:
    """Whether the size of every error is known to be below the size that matters.

    A number in units of its own, such as a kernel error, has the size of a binned error of the same
    predictions.
    """
    return all(
        _has_small_size(facts, indication)
        if indication.size is not None
        else any(_has_small_size(facts, sized) for sized in _same_predictions(facts, indication))
        for indication in unexplained
    )


def _has_small_size(facts: JudgedNumbers, indication: Indication) -> bool:
    return indication.size is not None and indication.size.largest < facts.negligible


def _same_predictions(facts: JudgedNumbers, indication: Indication) -> list[Indication]:
    """Numbers with a size and without a direction that judge at least the same predictions."""
    notions = (indication.notion, *_COVERED_BY.get(indication.notion, ()))
    return [
        candidate
        for candidate in facts.evidence
        if candidate.group == indication.group
        and candidate.notion in notions
        and candidate.size is not None
        and not candidate.directed
    ]


def _detectable(facts: JudgedNumbers) -> float | None:
    """Size of a gap that is called miscalibrated in 80 % of such data sets.

    It follows from the interval of the gap.  Without an interval it is the smallest size that
    exceeds a noise floor.
    """
    gap = facts.directed
    if gap is None or gap.interval is None:
        seen = [indication.seen for indication in facts.overall if indication.seen is not None]
        return min(seen, default=None)
    half = (gap.interval.high - gap.interval.low) / 2.0
    # Standard error of the gap.  A gap is seen with probability `_POWER` if it exceeds the critical
    # value by Φ⁻¹(`_POWER`) standard errors.
    error = half / float(ndtri(0.5 + gap.interval.level / 2))
    # Critical value of a two-sided test that is adjusted for all numbers.
    needed = float(ndtri(1.0 - facts.alpha / (2 * facts.looks(gap))))
    return min(1.0, error * (needed + float(ndtri(_POWER))))
