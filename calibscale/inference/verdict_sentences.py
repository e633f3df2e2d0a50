"""Sentences of verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibscale.estimators.known_estimators import SCORES
from calibscale.formatting.escapes import one_line
from calibscale.formatting.naming import joined, name_of, short
from calibscale.formatting.number_texts import (
    fixed,
    number,
    plural,
    probability,
    rounded,
    shares_apart,
)
from calibscale.formatting.response_texts import is_compared, range_text, response_text
from calibscale.inference.evidence import Indication, absolute, largest_crowded
from calibscale.inference.judged_numbers import JudgedNumbers
from calibscale.predictions.claims import SETS
from calibscale.results.evaluation_results import ReliabilityBin
from calibscale.results.verdict_results import FEW, SMALL, UNCLEAR, ErrorSize, Judgement

if TYPE_CHECKING:
    from calibscale.results.comparison_results import Difference, RankedModel

_LEAST_P = 1e-3  # smaller p-values are cited as "p < 0.001"
_MAX_DECIMALS = 9
_MANY = 3  # names in a sentence


def error_sentence(facts: JudgedNumbers, decided: Indication, state: str) -> str:
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
        limit = f"{100 * facts.negligible:g}"
        points = "point" if limit == "1" else "points"
        return f"Real but small: {text[0].lower()}{text[1:]}; less than {limit} {points}."
    return f"{text}."


def _direction(facts: JudgedNumbers, gap: Indication) -> str:
    """Direction and size of the gap, or of the coverage."""
    assert gap.size is not None
    size = f"{_points(gap.size)}{_ends(gap)}"
    if gap.name == "coverage":
        # Intervals that cover more outcomes than expected are too wide.
        direction = "Underconfident" if gap.size.value > 0 else "Overconfident"
        return f"{direction}: {_coverage(facts, gap)}"
    if gap.notion == "positive":
        names = facts.source.get("class_names")
        event = f"“{short(one_line(names[1]))}”" if names else "the event"
        frequency = "often" if gap.value > 0 else "rarely"
        return f"Predicts {event} too {frequency} by {size}"
    direction = "Overconfident" if gap.value > 0 else "Underconfident"
    return f"{direction} by {size}"


def _coverage(facts: JudgedNumbers, coverage: Indication) -> str:
    """Share of outcomes in the intervals of forecasts, and the share for calibrated forecasts."""
    of_sets = facts.source.get("claim") == SETS
    outcomes, regions = ("labels", "sets") if of_sets else ("outcomes", "intervals")
    details = coverage.details or {}
    level, expected = details.get("level", 0.0), details.get("expected", 0.0)
    return (
        f"{100 * coverage.value:.1f} % of the {outcomes} lie in the {100 * level:g} % {regions} "
        f"(expected {100 * expected:.1f} %)"
    )


def _miscalibrated(facts: JudgedNumbers, decided: Indication) -> str:
    """Size of an error without a direction, or of a group."""
    if decided.group is not None:
        within = replace(decided, group=None)
        text = _direction(facts, within) if decided.directed else _sized(facts, within)
        return f"Where {decided.group}: {text[0].lower()}{text[1:]}"
    return _sized(facts, decided, _though(facts, decided))


def _though(facts: JudgedNumbers, decided: Indication) -> str:
    """“ though right on average” if the whole interval of the gap is small against the error."""
    gap = facts.directed
    if gap is None or gap.size is None or gap.name == "coverage" or gap.beyond_chance:
        return ""
    if gap.size.largest > 0.5 * absolute(decided):
        return ""
    if gap.notion == "top_label" and decided.notion != "top_label":
        return " though the top label is right on average"
    return " though right on average"


def _sized(facts: JudgedNumbers, indication: Indication, though: str = "") -> str:
    """“Miscalibrated by 5.1 points (ece, 95 % interval 4.2 to 6.0)”, or with the number itself."""
    described = described_test(indication, facts.source.get("class_names"))
    if described:
        return f"Miscalibrated{though}: {described} ({indication.label})"
    if indication.size is None:
        value = f"{number(indication.value, 3)}{_ends(indication)}"
        return f"Miscalibrated{though}: {indication.label} is {value}"
    points, name = _points(indication.size), _named(indication)
    return f"Miscalibrated by {points}{though} ({name}{_interval_text(indication)})"


def described_test(indication: Indication, class_names: Sequence[str] | None) -> str:
    """Description of the error by a test statistic, empty for other numbers."""
    describe = _DESCRIPTIONS.get(indication.name)
    if describe is None or not indication.details:
        return ""
    text = describe(indication.details)
    k = indication.details.get("class")
    return text if k is None else f"{text}, most in class {_class_name(k, class_names)}"


def _class_name(k: int, class_names: Sequence[str] | None) -> str:
    return f"“{short(one_line(class_names[k]))}”" if class_names else str(k)


def _of_mean(details: Mapping[str, Any]) -> str:
    if is_compared(details):
        return response_text(details)
    gap = details["gap"]
    side = "high" if gap > 0 else "low"
    return f"predictions are {100 * abs(gap):.2g} points too {side}"


def _of_slope(details: Mapping[str, Any]) -> str:
    slope = details.get("slope")
    if slope is None or details["by_mean"]:
        return _of_mean(details)
    extreme = "extreme" if slope < 1 else "moderate"
    return f"predictions are too {extreme}, with a slope of {rounded(slope, 2)}"


def _of_spread(details: Mapping[str, Any]) -> str:
    excess = details["brier_excess"]
    side = "above" if excess > 0 else "below"
    extreme = "extreme" if excess > 0 else "moderate"
    score = f"a Brier score {rounded(abs(excess), 2)} {side} its expectation"
    return f"predictions are too {extreme}, with {score}"


def _of_temperature(details: Mapping[str, Any]) -> str:
    extreme = "extreme" if details["too_extreme"] else "moderate"
    return f"predictions are too {extreme}"


def _of_scan(details: Mapping[str, Any]) -> str:
    if is_compared(details):
        return range_text(details)
    predicted, observed = shares_apart(details["predicted"], details["observed"])
    low, high = details["low"], details["high"]
    return (
        f"between {number(low, 3)} and {number(high, 3)} about {predicted} is predicted and "
        f"{observed} happen"
    )


def _of_shape(details: Mapping[str, Any]) -> str:
    return "the shape of the calibration curve is wrong"


def _of_normal_scores(details: Mapping[str, Any]) -> str:
    mean = details["mean_score"]
    dispersion = details["dispersion"]
    if details["by_mean"]:
        side = "low" if mean > 0 else "high"
        return f"forecasts are {abs(mean):.2g} standard deviations too {side}"
    narrow = "narrow" if dispersion > 1 else "wide"
    return f"forecasts are too {narrow}, with outcomes {dispersion:.2g} times as far as predicted"


def _of_pit(details: Mapping[str, Any]) -> str:
    return "the forecasts have a wrong shape"


def _of_ranks(details: Mapping[str, Any]) -> str:
    return "the errors depend on the median or the width of the forecast"


def _of_local(details: Mapping[str, Any]) -> str:
    names = details.get("covariates")
    return f"predictions are wrong at some values of {joined(names, 3)}" if names else ""


def _of_segment(details: Mapping[str, Any]) -> str:
    return f"where {details['segment']}, {response_text(details)}"


_DESCRIPTIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "bias": response_text,
    "mean_score": _of_mean,
    "cox_score": _of_slope,
    "spread_score": _of_spread,
    "temperature_score": _of_temperature,
    "residual_scan": _of_scan,
    "smooth_test": _of_shape,
    "normal_scores": _of_normal_scores,
    "pit_smooth": _of_pit,
    "pit_by_forecast": _of_ranks,
    "klce": _of_local,
    "segment_scan": _of_segment,
}


def _named(indication: Indication) -> str:
    value, size = indication.value, indication.size
    squared = size is not None and abs(size.value - value) > 1e-12 * abs(value)
    by_class = " summed over classes" if indication.notion == "class_wise" else ""
    return f"root of {indication.label}{by_class}" if squared else indication.label


def _interval_text(indication: Indication) -> str:
    text = _ends(indication)
    return f", {text[2:-1]}" if text else ""


def _ends(indication: Indication) -> str:
    """Interval in brackets: in points if the number has a size, else as it is."""
    if indication.interval is None:
        return ""
    level = f"{100 * indication.interval.level:g} %"
    if indication.size is None or indication.size.low is None or indication.size.high is None:
        low, high = number(indication.interval.low, 3), number(indication.interval.high, 3)
        return f" ({level} interval {low} to {high})"
    decimals = _decimals(indication.size)
    ends = (indication.size.low, indication.size.high)
    if indication.size.high < 0.0:  # the sentence has the direction
        ends = (-indication.size.high, -indication.size.low)
    low, high = (_in_points(end, decimals) for end in ends)
    return f" ({level} interval {low} to {high})"


def _points(size: ErrorSize) -> str:
    return f"{_in_points(abs(size.value), _decimals(size))} points"


def _in_points(value: float, decimals: int) -> str:
    return fixed(100 * value, decimals)


def _decimals(size: ErrorSize) -> int:
    """Decimals of percentage points: two digits of the length, one of an end that excludes 0."""
    if size.low is None or size.high is None:
        sizes = [abs(size.value) / 10.0]
    else:
        sizes = [(size.high - size.low) / 10.0]
        if not size.low <= 0.0 <= size.high:
            sizes.append(min(abs(size.low), abs(size.high)))
    needed = [-math.floor(math.log10(100.0 * length)) for length in sizes if length > 0]
    return min(max(0, *needed), _MAX_DECIMALS) if needed else 0


def _cited(facts: JudgedNumbers, indication: Indication) -> str:
    """Adjusted p-value, and the number of numbers."""
    p = cited_p(facts, indication)
    text = "p < 0.001" if p < _LEAST_P else f"p = {rounded(p, 2)}"
    return f"{text}, adjusted for {facts.numbers} numbers" if facts.numbers > 1 else text


def cited_p(facts: JudgedNumbers, indication: Indication) -> float:
    """p-value of the gap for its direction.  Other errors share the smallest one of their rows."""
    if indication.directed:
        return facts.adjusted(indication)
    same_rows = [member for member in facts.evidence if member.group == indication.group]
    return min(map(facts.adjusted, same_rows))


def too_few_draws(limited: Sequence[Indication]) -> str:
    """Sentence about p-values that are as small as so few draws allow."""
    names = joined([indication.label for indication in limited], _MANY)
    verb = "has" if len(limited) == 1 else "have"
    return (
        f"No verdict from so few draws: {names} {verb} the smallest p-value that they can give; "
        "use more (n_replicates=, --replicates)."
    )


def chance_sentence(facts: JudgedNumbers, judgement: Judgement) -> str:
    """Sentence about numbers that chance explains together."""
    if judgement.state == UNCLEAR:
        return _unclear(facts)
    if judgement.state == FEW:
        return f"Too few rows to tell ({facts.rows:,}): only {_seen(facts, judgement)}."
    count = facts.numbers
    p = facts.adjusted(min(facts.evidence, key=facts.adjusted))
    if count == 1:
        text = f"chance explains {facts.evidence[0].label}"
        text = f"{text} (p = {rounded(p, 2)})" if p < 1 else text
    else:
        text = f"chance explains all {count} numbers that can tell"
        text = f"{text} (smallest adjusted p = {rounded(p, 2)})" if p < 1 else text
    if judgement.detectable is not None:
        text = f"{text}; {_seen(facts, judgement)}"
    return f"No miscalibration shown: {text}."


def _seen(facts: JudgedNumbers, judgement: Judgement) -> str:
    """“an average error of 2.1 points or more would be seen in 80 % of such data sets”."""
    assert judgement.detectable is not None
    points = 100 * judgement.detectable
    size = f"{points:.0f}" if points >= 10 else f"{points:.2g}"
    gap = facts.directed
    if gap is None or gap.interval is None:
        return f"an error above {size} points would exceed its noise"
    error = "an error of the coverage" if gap.name == "coverage" else "an average error"
    return f"{error} of {size} points or more would be seen in 80 % of such data sets"


def _unclear(facts: JudgedNumbers) -> str:
    """Sentence about numbers that are beyond chance alone, but not among all of them."""
    beyond = [indication for indication in facts.evidence if indication.beyond_chance]
    beyond.sort(key=facts.adjusted)
    names = [
        indication.label
        if indication.group is None
        else f"{indication.label} where {indication.group}"
        for indication in beyond
    ]
    p = facts.adjusted(beyond[0])
    verb = "is" if len(names) == 1 else "are"
    alone = f"{joined(names, _MANY)} {verb} beyond chance taken alone"
    if facts.numbers == 1:
        return f"No clear evidence of miscalibration: {alone} (p = {rounded(p, 2)})."
    return (
        f"No clear evidence of miscalibration: {alone}; adjusted for {facts.numbers} numbers, "
        f"p = {rounded(p, 2)}."
    )


# ---------------------------------------------------------------- where the error sits


def _where(facts: JudgedNumbers, decided: Indication) -> str:
    """Bin, level, classes or group with the largest part of the error, empty if unknown."""
    if decided.group is not None:
        return ""
    if decided.notion == "class_wise":
        return _worst_classes(facts, decided)
    places = []
    if not decided.directed:
        places.append(_worst_bin(facts, decided))
    places.append(_worst_group(facts, decided))
    return "; ".join(filter(None, places))


def _worst_bin(facts: JudgedNumbers, decided: Indication) -> str:
    """Bin of the reliability diagram that contributes most to the error.

    The diagram has the bins of the first binned error.  The bins of another number are elsewhere.
    """
    diagram = facts.diagram
    if diagram is None or diagram.notion != decided.notion:
        return ""
    bins = (decided.details or {}).get("bins")
    outside = diagram.curve.outside
    if not outside or (bins is not None and len(bins) != len(diagram.curve.bins)):
        return ""
    worst = max(outside, key=lambda row: row.weight * abs(row.gap or 0.0))
    return _described_bin(worst, diagram.notion)


def _described_bin(worst: ReliabilityBin, notion: str) -> str:
    assert worst.mean_p is not None and worst.frequency is not None  # noqa: PT018
    predicted, observed = shares_apart(worst.mean_p, worst.frequency)
    if notion == "pit":
        return f"{observed} of the outcomes lie below the predicted {predicted} quantile"
    if notion == "top_label":
        return f"most where the confidence is about {predicted} and {observed} are right"
    return f"most where about {predicted} is predicted and {observed} happen"


def _worst_classes(facts: JudgedNumbers, decided: Indication) -> str:
    """Classes with more than half of the largest error of a class."""
    by_class = (decided.details or {}).get("by_class")
    if not by_class:
        return ""
    # Classes with less than half of the largest error would blur the sentence.
    limit = max(by_class) / 2
    worst = sorted(
        (k for k, error in enumerate(by_class) if error > limit), key=lambda k: -by_class[k]
    )
    if len(worst) == len(by_class):
        return ""
    class_names = facts.source.get("class_names")
    names = [_class_name(k, class_names) for k in worst]
    noun = "class" if len(names) == 1 else "classes"
    return f"most in {noun} {joined(names, _MANY)}"


def _worst_group(facts: JudgedNumbers, decided: Indication) -> str:
    """Group with the largest error among the groups that exceed the error of all rows.

    The size is by the number that the verdict cites for all rows, if a group has one.
    """
    larger = [
        indication
        for indication in facts.unexplained
        if indication.group is not None and _exceeds_all_rows(facts, indication)
    ]
    if not larger:
        return ""
    # Sizes are compared between groups by one number: the number that the verdict cites, or else
    # the number of the first rank.
    comparable = [indication for indication in larger if indication.label == decided.label]
    if not comparable:
        first_rank = min(indication.rank for indication in larger)
        comparable = [indication for indication in larger if indication.rank == first_rank]
    worst = max(comparable, key=absolute)
    assert worst.size is not None
    return f"the most where {worst.group}, {_points(worst.size)} by {worst.label}"


def _exceeds_all_rows(facts: JudgedNumbers, indication: Indication) -> bool:
    """Whether the interval of a group's error lies above the error of all rows and its interval."""
    same_number = (member for member in facts.overall if member.label == indication.label)
    all_rows = next(same_number, None)
    if all_rows is None or all_rows.size is None or indication.size is None:
        return False
    return indication.size.smallest > max(all_rows.size.largest, absolute(all_rows))


def crowded_sentence(facts: JudgedNumbers) -> str:
    """Sentence about bins of equal width that hold most rows, empty if there are none."""
    crowded = largest_crowded(facts.estimates)
    if crowded is None:
        return ""
    label, share = crowded
    percent = f"{100 * share:.3g} %" if share < 0.9995 else "more than 99.9 %"
    text = f"{percent} of the weight lies in one equal-width bin of {label}"
    name = name_of(label)
    if not any(
        indication.name == name and indication.crowded is None for indication in facts.evidence
    ):
        return f"{text}, which shows little but the gap: use edges='equal-mass'."
    return f"{text}, so equal-mass bins are judged as well."


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
    """Sentence about the first model, which names the quantity that ranks the models.

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
        unlike = [
            d
            for d in differences
            if d.better == ranked[0].name and d.p_adjusted is not None and not d.distinguishable
        ]
        if unlike:
            worse = joined([one_line(d.worse) for d in unlike], _MANY)
            text += f"; chance explains its difference from {worse}"
    refuted = [
        f"{one_line(model.name)} gives {plural(model.impossible.count, 'label')} the probability 0"
        for model in models
        if model.impossible is not None
    ]
    return "; ".join([text, *refuted]) + "."
