"""The verdict: one judgement and one sentence from all numbers of a result.

A number is evidence of miscalibration by its test, its noise floor, or its interval
(`calibscale.inference.evidence`).  As a result has many numbers, one of which lies beyond chance
more often than α, p-values are multiplied by the number of numbers (Bonferroni); those with a joint
null count as one.  With groups, all rows and the groups have half of the level each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scipy.special import ndtri

from calibscale.formatting import (
    group,
    joined,
    name_of,
    number,
    one_line,
    percent,
    plural,
    probability,
)
from calibscale.inference.evidence import (
    SCORES,
    Indication,
    evidence_of_estimates,
    evidence_of_tests,
    largest_crowded,
)
from calibscale.results import Estimate, ImpossibleRows
from calibscale.results.comparison_results import Difference, RankedModel
from calibscale.results.evaluation_results import Diagram, Evaluation, ReliabilityBin
from calibscale.results.inference_results import CalibrationTests
from calibscale.results.verdict_results import (
    FEW,
    MISCALIBRATED,
    NEGLIGIBLE,
    NOTHING,
    REFUTED,
    SMALL,
    UNCLEAR,
    WITHIN,
    ErrorSize,
    Judgement,
)

ALPHA = 0.05
_POWER = 0.8  # share of data sets in which a detectable error is seen
_WIDEST = 0.1  # detectable error above which rows are too few for a verdict
_LEAST_P = 1e-3  # smaller p-values are cited as "p < 0.001"
_MAX_DECIMALS = 9
_MANY = 3  # names in a sentence


@dataclass(frozen=True, eq=False)
class _Facts:
    """What a judgement follows from."""

    evidence: Sequence[Indication]
    rows: int
    alpha: float
    negligible: float
    impossible: ImpossibleRows | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    diagram: Diagram | None = None
    estimates: Sequence[Estimate] = ()

    @property
    def numbers(self) -> int:
        """Number of numbers looked at."""
        return len(self.evidence)

    @property
    def overall(self) -> list[Indication]:
        return [one for one in self.evidence if one.group is None]

    @property
    def groups(self) -> list[Indication]:
        return [one for one in self.evidence if one.group is not None]

    def adjusted(self, one: Indication) -> float:
        """p-value adjusted for the other numbers."""
        family = self.overall if one.group is None else self.groups
        joint = any(other.joint for other in family)
        units = sum(not other.joint for other in family) + joint
        both = bool(self.overall) and bool(self.groups)
        return min(1.0, one.p_value * units * (2 if both else 1))

    @property
    def found(self) -> list[Indication]:
        """Numbers that chance does not explain, though many were looked at."""
        return [one for one in self.evidence if self.adjusted(one) <= self.alpha]

    def numbered(self, name: str) -> Indication | None:
        """Evidence of an estimator on all rows."""
        return next((one for one in self.overall if one.name == name), None)

    @property
    def directed(self) -> Indication | None:
        """Evidence of the gap, or of the coverage of forecasts."""
        return next((one for one in self.overall if one.directed), None)


def judgement_of_evaluation(
    result: Evaluation,
    *,
    joint: Mapping[str, float | None] | None = None,
    negligible: float = NEGLIGIBLE,
) -> Judgement | None:
    """Judgement of an evaluation, from its estimates, groups and impossible labels.

    Parameters
    ----------
    joint : {label: p-value}, optional
        p-values of tests of the estimates of all rows, adjusted for each other.
    negligible : float
        Size in units of a probability, below which an error is small.

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
    intervals = (e.interval for e in result.estimates if e.interval is not None)
    alpha = next((1.0 - interval.level for interval in intervals), ALPHA)
    evidence = evidence_of_estimates(result.estimates, alpha, joint)
    for one in (result, *result.others):
        for key, estimates in one.groups.items():
            where = group(one.group_by, one_line(str(getattr(key, "name", f"{float(key):.10g}"))))
            evidence += evidence_of_estimates(estimates, alpha, group=where)
    facts = _Facts(
        evidence, result.n, alpha, negligible, result.impossible, result.source,
        result.reliability, result.estimates,
    )  # fmt: skip
    return _judged(facts)


def judgement_of_tests(
    result: CalibrationTests, negligible: float = NEGLIGIBLE, alpha: float = ALPHA
) -> Judgement | None:
    """Judgement of calibration tests; None if no test has a p-value."""
    evidence = evidence_of_tests(result.results, alpha)
    return _judged(_Facts(evidence, result.n, alpha, negligible, result.impossible, result.source))


def _judged(facts: _Facts) -> Judgement | None:
    if facts.rows == 0:
        sentence = "Nothing to judge: there are no rows with a label and a positive weight."
        return Judgement(NOTHING, sentence, 0, negligible=facts.negligible)
    if not facts.evidence and facts.impossible is None:
        return None
    judgement = _of_numbers(facts) if facts.evidence else None
    if facts.impossible is not None:
        return _refuted(facts, facts.impossible, judgement)
    return judgement


def _refuted(facts: _Facts, impossible: ImpossibleRows, judgement: Judgement | None) -> Judgement:
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
    if judgement is None:
        return Judgement(REFUTED, sentence, 0, negligible=facts.negligible)
    if judgement.state in (MISCALIBRATED, SMALL):
        sentence = f"{sentence} {judgement.sentence}"
    return replace(judgement, state=REFUTED, sentence=sentence)


def _of_numbers(facts: _Facts) -> Judgement:
    first = min(facts.evidence, key=facts.adjusted)
    detectable = _detectable(facts)
    found = facts.found
    decided = _deciding(facts, found) if found else first
    size = decided.size if found else None
    if found and _is_small(facts, found):
        state = SMALL
    elif found:
        state = MISCALIBRATED
    elif any(one.beyond_chance for one in facts.evidence):
        state = UNCLEAR
    elif detectable is not None and detectable > _WIDEST:
        state = FEW
    else:
        state = WITHIN
    judgement = Judgement(
        state, "", facts.numbers, facts.adjusted(first), decided.label, decided.group, size,
        detectable, facts.negligible,
    )  # fmt: skip
    sentence = _error(facts, decided, state) if found else _chance(facts, judgement)
    # where the gap is cited, the bins do not matter
    crowded = "" if found and decided.directed else _crowded(facts)
    return replace(judgement, sentence=f"{sentence} {crowded}" if crowded else sentence)


def _deciding(facts: _Facts, found: Sequence[Indication]) -> Indication:
    """The number whose size is cited: of all rows before groups, and known before unknown sizes.

    The gap says in which direction predictions are wrong, and is cited unless the error is more
    than twice as large, so that most of it cancels.
    """
    overall = [one for one in found if one.group is None]
    sized = sorted(
        (one for one in overall or found if one.size is not None), key=lambda one: one.rank
    )
    if not sized:
        return min(overall or found, key=facts.adjusted)
    if not overall:  # the worst group
        return max(sized, key=lambda one: abs(one.size.value) if one.size else 0.0)
    undirected = [one for one in sized if not one.directed]
    if sized[0].directed and undirected:
        gap, error = sized[0].size, undirected[0].size
        assert gap is not None and error is not None  # noqa: PT018
        return undirected[0] if error.value > 2.0 * abs(gap.value) else sized[0]
    return sized[0]


# Notions whose errors are bounded by those of other notions with a size: for two classes all
# three judge the same probability.
_COVERED_BY = {
    "canonical": ("class_wise", "positive"),
    "class_wise": ("positive",),
}


def _is_small(facts: _Facts, found: Sequence[Indication]) -> bool:
    """Whether the size of every error is known to be below the size that matters.

    A number in units of its own, such as that of a kernel error, has the size of a binned error of
    the same predictions.
    """
    return all(
        _has_small_size(facts, one)
        if one.size is not None
        else any(_has_small_size(facts, other) for other in _same_predictions(facts, one))
        for one in found
    )


def _has_small_size(facts: _Facts, one: Indication) -> bool:
    return one.size is not None and one.size.largest < facts.negligible


def _same_predictions(facts: _Facts, one: Indication) -> list[Indication]:
    """Numbers with a size and without a direction that judge at least what the number judges."""
    notions = (one.notion, *_COVERED_BY.get(one.notion, ()))
    return [
        other
        for other in facts.evidence
        if other.group == one.group
        and other.notion in notions
        and other.size is not None
        and not other.directed
    ]


def _detectable(facts: _Facts) -> float | None:
    """Size of a gap that is seen in 80 % of such data sets, from the interval of the gap."""
    gap = facts.directed
    if gap is None or gap.interval is None:
        return None
    half = (gap.interval.high - gap.interval.low) / 2.0
    quantile = float(ndtri(0.5 + gap.interval.level / 2))
    return half * (quantile + float(ndtri(_POWER))) / quantile


# ---------------------------------------------------------------- sentences


def _error(facts: _Facts, decided: Indication, state: str) -> str:
    """Sentence about an error that chance does not explain."""
    cited = f"more than chance explains ({_cited(facts, decided)})"
    if decided.directed and decided.group is None:
        text = f"{_direction(facts, decided)}, {cited}"
    else:
        text = f"{_miscalibrated(facts, decided)}, {cited}"
    where = _where(facts, decided)
    if where:
        text = f"{text}; {where}"
    if state == SMALL:
        limit = percent(facts.negligible).removesuffix("\u00a0%").removesuffix(" %")
        points = "point" if limit == "1" else "points"
        return f"Real but small: {text[0].lower()}{text[1:]}; less than {limit} {points}."
    return f"{text}."


def _direction(facts: _Facts, gap: Indication) -> str:
    """Direction and size of the gap, or of the coverage."""
    assert gap.size is not None
    size = f"{_points(gap.size)}{_ends(gap)}"
    if gap.name == "coverage":
        return f"{'Underconfident' if gap.size.value > 0 else 'Overconfident'}: {_coverage(gap)}"
    if gap.notion == "positive":
        names = facts.source.get("class_names")
        event = f"“{one_line(names[1])}”" if names else "the event"
        return f"Predicts {event} too {'often' if gap.value > 0 else 'rarely'} by {size}"
    return f"{'Over' if gap.value > 0 else 'Under'}confident by {size}"


def _coverage(coverage: Indication) -> str:
    """Share of outcomes in the intervals of forecasts, and that of calibrated ones."""
    details = coverage.details or {}
    level, expected = details.get("level", 0.0), details.get("expected", 0.0)
    return (
        f"{100 * coverage.value:.1f} % of the outcomes lie in the {100 * level:g} % intervals "
        f"(expected {100 * expected:.1f} %)"
    )


def _miscalibrated(facts: _Facts, decided: Indication) -> str:
    """Size of an error without a direction, or of a group."""
    if decided.group is not None:
        within = replace(decided, group=None)
        text = _direction(facts, within) if decided.directed else _sized(within)
        return f"Where {decided.group}: {text[0].lower()}{text[1:]}"
    gap = facts.directed
    if gap is None or gap.beyond_chance or gap.name == "coverage":
        return _sized(decided)
    if gap.notion != decided.notion:
        return _sized(decided, " though the top label is right on average")
    return _sized(decided, " though right on average")


def _sized(one: Indication, though: str = "") -> str:
    """“Miscalibrated by 5.1 points (ece, 95 % interval 4.2 to 6.0)”, or with the number itself."""
    if one.size is None:
        return f"Miscalibrated{though}: {one.label} is {number(one.value, 3)}{_ends(one)}"
    return f"Miscalibrated by {_points(one.size)}{though} ({_named(one)}{_interval_text(one)})"


def _named(one: Indication) -> str:
    squared = one.size is not None and abs(one.size.value - one.value) > 1e-12 * abs(one.value)
    by_class = " summed over classes" if one.notion == "class_wise" else ""
    return f"root of {one.label}{by_class}" if squared else one.label


def _interval_text(one: Indication) -> str:
    text = _ends(one)
    return f", {text[2:-1]}" if text else ""


def _ends(one: Indication) -> str:
    """Interval in brackets: in points if the number has a size, else as it is."""
    if one.interval is None:
        return ""
    level = f"{100 * one.interval.level:g} %"
    if one.size is None or one.size.low is None or one.size.high is None:
        low, high = number(one.interval.low, 3), number(one.interval.high, 3)
        return f" ({level} interval {low} to {high})"
    decimals = _decimals(one.size)
    low, high = (_in_points(end, decimals) for end in (one.size.low, one.size.high))
    return f" ({level} interval {low} to {high})"


def _points(size: ErrorSize) -> str:
    return f"{_in_points(abs(size.value), _decimals(size))} points"


def _in_points(value: float, decimals: int) -> str:
    return f"{100 * value:z.{decimals}f}".replace("-", "−")


def _decimals(size: ErrorSize) -> int:
    """Decimals of percentage points: two digits of the length, one of an end that excludes 0."""
    if size.low is None or size.high is None:
        sizes = [abs(size.value) / 10.0]
    else:
        sizes = [(size.high - size.low) / 10.0]
        if not size.low <= 0.0 <= size.high:
            sizes.append(min(abs(size.low), abs(size.high)))
    needed = [-math.floor(math.log10(100.0 * one)) for one in sizes if one > 0]
    return min(max(0, *needed), _MAX_DECIMALS) if needed else 0


def _cited(facts: _Facts, one: Indication) -> str:
    """Adjusted p-value, and the number of numbers.

    That of the gap is for its direction, other errors share the smallest one of their rows.
    """
    same = [other for other in facts.evidence if other.group == one.group]
    p = facts.adjusted(one) if one.directed else min(map(facts.adjusted, same))
    text = "p < 0.001" if p < _LEAST_P else f"p = {p:.2g}"
    return f"{text} among {facts.numbers} numbers" if facts.numbers > 1 else text


def _chance(facts: _Facts, judgement: Judgement) -> str:
    """Sentence about numbers that chance explains together."""
    if judgement.state == UNCLEAR:
        return _unclear(facts)
    if judgement.state == FEW:
        return (
            f"Too few rows to tell ({facts.rows:,}): only {_a_gap(facts, judgement)} would be "
            "seen in 80 % of such data sets."
        )
    count = facts.numbers
    p = facts.adjusted(min(facts.evidence, key=facts.adjusted))
    if count == 1:
        text = f"chance explains {facts.evidence[0].label}"
        text = f"{text} (p = {p:.2g})" if p < 1 else text
    else:
        text = f"chance explains all {count} numbers"
        text = f"{text} (smallest adjusted p = {p:.2g})" if p < 1 else text
    seen = ""
    if judgement.detectable is not None:
        seen = f"; {_a_gap(facts, judgement)} would be seen in 80 % of such data sets"
    return f"No miscalibration shown: {text}{seen}."


def _a_gap(facts: _Facts, judgement: Judgement) -> str:
    """“an average error of 2.1 points”."""
    assert judgement.detectable is not None
    gap = facts.directed
    what = "an error of the coverage" if gap and gap.name == "coverage" else "an average error"
    return f"{what} of {100 * judgement.detectable:.2g} points"


def _unclear(facts: _Facts) -> str:
    """Sentence about numbers that are beyond chance alone, but not among all of them."""
    beyond = [one for one in facts.evidence if one.beyond_chance]
    beyond.sort(key=lambda one: one.p_value)
    names = [one.label if one.group is None else f"{one.label} where {one.group}" for one in beyond]
    p = facts.adjusted(beyond[0])
    verb = "is" if len(names) == 1 else "are"
    return (
        f"No clear evidence of miscalibration: {joined(names, _MANY)} {verb} beyond chance taken "
        f"alone, but not among {plural(facts.numbers, 'number')} (adjusted p = {p:.2g})."
    )


# ---------------------------------------------------------------- where the error sits


def _where(facts: _Facts, decided: Indication) -> str:
    """Bin, level, classes or group with the largest part of the error; empty if unknown."""
    if decided.group is not None:
        return ""
    if decided.notion == "class_wise":
        return _worst_classes(facts, decided)
    places = []
    if not decided.directed:
        places.append(_worst_bin(facts, decided))
    places.append(_worst_group(facts))
    return "; ".join(filter(None, places))


def _worst_bin(facts: _Facts, decided: Indication) -> str:
    """Bin of the reliability diagram that contributes most to the error."""
    diagram = facts.diagram
    if diagram is None or diagram.notion != decided.notion:
        return ""
    outside = diagram.curve.outside
    if not outside:
        return ""
    worst = max(outside, key=lambda one: one.weight * abs(one.gap or 0.0))
    return _described_bin(worst, diagram.notion)


def _described_bin(worst: ReliabilityBin, notion: str) -> str:
    assert worst.mean_p is not None and worst.frequency is not None  # noqa: PT018
    predicted, observed = (_share(x) for x in (worst.mean_p, worst.frequency))
    if notion == "pit":
        return f"{observed} of the outcomes lie below the predicted {predicted} quantile"
    if notion == "top_label":
        return f"most where the confidence is about {predicted} and {observed} are right"
    return f"most where about {predicted} is predicted and {observed} happen"


def _share(value: float) -> str:
    return f"{100 * value:.2g} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def _worst_classes(facts: _Facts, decided: Indication) -> str:
    """Classes with more than half of the largest error of a class."""
    by_class = (decided.details or {}).get("by_class")
    if not by_class:
        return ""
    limit = max(by_class) / 2
    worst = sorted(
        (k for k, error in enumerate(by_class) if error > limit), key=lambda k: -by_class[k]
    )
    if len(worst) == len(by_class):
        return ""
    class_names = facts.source.get("class_names")
    names = [f"“{one_line(class_names[k])}”" if class_names else str(k) for k in worst]
    return f"most in {'class' if len(names) == 1 else 'classes'} {joined(names, _MANY)}"


def _worst_group(facts: _Facts) -> str:
    """Group with the largest error of those that chance does not explain."""
    found = [one for one in facts.found if one.group is not None and one.size is not None]
    if not found:
        return ""
    worst = max(found, key=lambda one: abs(one.size.value) if one.size else 0.0)
    assert worst.size is not None
    return f"the most where {worst.group}, {_points(worst.size)} by {worst.label}"


def _crowded(facts: _Facts) -> str:
    """Sentence about bins of equal width that hold most rows; empty if there are none."""
    crowded = largest_crowded(facts.estimates)
    if crowded is None:
        return ""
    label, share = crowded
    held = f"{100 * share:.3g} % of the rows lie in one equal-width bin of {label}"
    name = name_of(label)
    if not any(one.name == name and one.crowded is None for one in facts.evidence):
        return f"{held}, which shows little but the gap: use {label}(edges='equal-mass')."
    return f"{held}, so equal-mass bins decide."


# ---------------------------------------------------------------- rankings


_SCORE_NAMES = {
    "brier": "Brier score",
    "nll": "log loss",
    "crps": "CRPS",
    "log_score": "log score",
    "pinball_loss": "pinball loss",
}


def sentence_of_ranking(
    estimator: str, models: Sequence[RankedModel], differences: Sequence[Difference]
) -> str:
    """Sentence about the first model, which names what the models are ranked by.

    A score is smallest for a model that is both calibrated and informative, so that the model with
    the smallest score need not be the best calibrated one.
    """
    ranked = [model for model in models if model.rank is not None]
    if not ranked:
        return "No model has a value."
    first = [one_line(model.name) for model in ranked if model.rank == ranked[0].rank]
    count = plural(len(models), "model")
    name = name_of(estimator)
    if name in SCORES:
        verb = "has" if len(first) == 1 else "have"
        text = f"{joined(first)} {verb} the smallest {_SCORE_NAMES.get(name, name)} of {count}"
    else:
        verb = "is" if len(first) == 1 else "are equally"
        text = f"{joined(first)} {verb} the best calibrated of {count} by {estimator}"
    if len(first) == 1 and len(ranked) > 1:
        best = ranked[0].p_best
        text += f" with probability {probability(best)}" if best is not None else ""
        unlike = [d for d in differences if d.better == ranked[0].name and not d.distinguishable]
        if unlike:
            others = joined([one_line(d.worse) for d in unlike], _MANY)
            text += f"; chance explains its difference from {others}"
    refuted = [
        f"{one_line(model.name)} gives {plural(model.impossible.count, 'label')} the probability 0"
        for model in models
        if model.impossible is not None
    ]
    return "; ".join([text, *refuted]) + "."
