"""Sentences about what a recalibration changed, on rows that the fit has not used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calibscale.formatting import naming, number_texts
from calibscale.results.audit_results import GroupChange, ScoreChange

_NAMED = 5  # groups that a sentence names
NO_INTERVAL = "no interval: "  # beginning of a note with the reason
# Names of scores in sentences.
IN_WORDS = {
    "nll": "log loss",
    "brier": "Brier score",
    "crps": "CRPS",
    "interval_score": "interval score",
    "pinball_loss": "pinball loss",
    "squared_error": "squared error",
}


def improvement(changes: Sequence[ScoreChange], judged: str) -> str:
    """What the change of the first score says, or of the next one if the first stays infinite."""
    first = changes[0]
    is_infinite = first.before is None and first.after is None
    others = [change for change in changes[1:] if change.change is not None]
    if not (is_infinite and others):
        return _improvement(first, judged)
    return (
        f"The {IN_WORDS[first.score]} is {_not_finite(first.score)} before and after "
        f"recalibration. {_improvement(others[0], judged)}"
    )


def _improvement(score: ScoreChange, judged: str) -> str:
    """What the change of a score says, which may be infinite or too large for a number."""
    noun = IN_WORDS[score.score]
    rows = "rows that the fit has not used"
    if judged == "cross_fitted":
        rows = "rows that the fit has not used (each half of the rows by a fit to the other)"
    if score.before is None or score.after is None:
        return _without_change(score, noun, rows)
    assert score.change is not None
    if score.low is None or score.high is None:
        return (
            f"It is not known whether recalibration helps on {rows}: the {noun} changes by "
            f"{number_texts.signed(score.change)}, {_without_interval(score)}."
        )
    if score.is_negligible:
        value = number_texts.number(score.after)
        return f"Recalibration keeps the {noun} of {rows} as it is ({value})."
    size = number_texts.number(abs(score.change), 2)
    low, high = (number_texts.number(end, 2) for end in (score.low, score.high))
    interval = f"(95 % interval of the change: {low} to {high})"
    if score.high < 0:
        return f"Recalibration lowers the {noun} of {rows} by {size} {interval}."
    if score.low > 0:
        return (
            f"Recalibration raises the {noun} of {rows} by {size} {interval}: keep the "
            "predictions as they are."
        )
    return (
        f"It is not known whether recalibration helps: the {noun} of {rows} changes by "
        f"{number_texts.signed(score.change)} {interval}."
    )


def _without_interval(score: ScoreChange) -> str:
    """Clause on an interval that is missing, with the reason in the note of the change."""
    for part in score.note.split("; "):
        if part.startswith(NO_INTERVAL):
            return f"without an interval, because {part.removeprefix(NO_INTERVAL)}"
    return "without an interval"


def _not_finite(score: str) -> str:
    """What is true of a score without a number.

    A log loss is infinite where a label has the probability 0.  The other scores are of numbers,
    whose sums may also exceed the largest number.
    """
    return "infinite" if score == "nll" else "infinite or too large for a number"


def _without_change(score: ScoreChange, noun: str, rows: str) -> str:
    """What a score says that is not finite before recalibration, or after it."""
    # The log loss alone is of labels, whose probability may be 0.
    is_log_loss = score.score == "nll"
    not_finite = _not_finite(score.score)
    if score.after is not None:
        reason = "Before, a label has the probability 0." if is_log_loss else "Before, it is not."
        value = number_texts.number(score.after)
        return f"Recalibration makes the {noun} of {rows} finite ({value}). {reason}"
    if score.before is not None:
        cause = ", as a label gets the probability 0" if is_log_loss else ""
        return (
            f"Recalibration makes the {noun} of {rows} {not_finite}{cause}: keep the predictions "
            "as they are."
        )
    return (
        f"It is not known whether recalibration helps on {rows}: the {noun} is {not_finite} "
        "before and after it."
    )


class OrderChange(NamedTuple):
    """Change of the order of the rows of two classes.

    `area` is the change of the area under the ROC curve, `keeps_order` says that the map is
    increasing, `in_halves` that both rows of a pair are in the same half, and `of_sample` that the
    area is of a sample of the rows.
    """

    area: ScoreChange
    keeps_order: bool
    in_halves: bool
    of_sample: bool = False


def costs(
    score: str,
    order: OrderChange | None,
    accuracy: ScoreChange | None,
    groups: Sequence[GroupChange],
) -> tuple[str, ...]:
    """What recalibration cost in order and accuracy, and which groups became worse by a score.

    Predictions that have no order or no accuracy have None.
    """
    sentences = []
    if order is not None:
        sentences.append(_order(order))
    if accuracy is not None:
        sentences.append(_accuracy(accuracy))
    if groups:
        sentences.append(_groups(score, groups))
    return tuple(sentences)


def _order(order: OrderChange) -> str:
    """What the change of the area under the ROC curve says, and where it may come from."""
    area = order.area
    noun = "the area under the ROC curve"
    pairs = "pairs of rows in the same half" if order.in_halves else ""
    sample = f"a random sample of {number_texts.count(area.n)} rows" if order.of_sample else ""
    if pairs or sample:
        noun += f" (of {' in '.join(part for part in (pairs, sample) if part)})"
    if area.before is None or area.after is None or area.change is None:
        return "There is no area under the ROC curve: it needs rows with and without the event."
    value = number_texts.number(area.after)
    if order.keeps_order and area.change == 0.0:
        return (
            "The map keeps the order of the predictions (rounding may tie some near 0 and 1), so "
            f"that {noun} stays {value}."
        )
    return f"{_cause(order)} {_change(noun, area, value)}"


def _cause(order: OrderChange) -> str:
    """What may have changed the area under the ROC curve."""
    area = order.area
    if not order.keeps_order:
        return "The map may change the order of the predictions or make ties:"
    if area.low is not None and area.low > 0:
        return (
            "Predictions near 0 and 1 were equal by rounding before, and the map tells them apart:"
        )
    if area.high is not None and area.high < 0:
        return "The map makes ties of predictions near 0 and 1:"
    return "Rounding may tie predictions near 0 and 1, before or after the map:"


def _accuracy(accuracy: ScoreChange) -> str:
    """What the change of the accuracy says."""
    if accuracy.change is None:
        return "It is not known whether recalibration changes the accuracy."
    value = number_texts.number(accuracy.after)
    # An interval has no length only if no row changes.
    if accuracy.low == accuracy.high == 0.0:
        return f"No prediction becomes right or wrong: the accuracy stays {value}."
    sentence = _change("the accuracy", accuracy, value)
    return sentence[0].upper() + sentence[1:]


def _change(noun: str, share: ScoreChange, value: str) -> str:
    """Whether a share has changed to a value, from its interval.  It begins in lower case."""
    assert share.change is not None
    if share.low is None or share.high is None:
        if share.change == 0.0:
            return f"{noun} stays {value} on these rows, {_without_interval(share)}."
        signed = number_texts.signed(share.change)
        return f"{noun} changes by {signed} to {value}, {_without_interval(share)}."
    if share.low == share.high == 0.0:
        return f"{noun} stays {value}."
    size = number_texts.number(abs(share.change), 2)
    low, high = (number_texts.number(end, 2) for end in (share.low, share.high))
    interval = f"(95 % interval of the change: {low} to {high})"
    if share.high < 0:
        return f"{noun} falls by {size} to {value} {interval}."
    if share.low > 0:
        return f"{noun} rises by {size} to {value} {interval}."
    signed = number_texts.signed(share.change)
    return f"it is not known whether {noun} changes: by {signed} {interval}."


def _groups(score: str, groups: Sequence[GroupChange]) -> str:
    """Names of the groups whose score has increased, by intervals that hold at once."""
    noun = IN_WORDS[score]
    judged = [group for group in groups if group.low is not None]
    worse = [group for group in groups if group.became_worse]
    unjudged = len(groups) - len(judged)
    counts = []
    if judged:
        counts.append(f"simultaneous 95 % intervals of {number_texts.plural(len(judged), 'group')}")
    if unjudged:
        counts.append(f"{number_texts.plural(unjudged, 'group')} without an interval")
    if worse:
        names = naming.joined([_with_change(score, group) for group in worse], _NAMED)
        return f"The {noun} became worse for {names} ({', '.join(counts)})."
    if not judged:
        return f"No group has an interval of its {noun}: it is not known which became worse."
    return f"No group is known to have become worse ({', '.join(counts)})."


def _with_change(score: str, group: GroupChange) -> str:
    """Name of a group, with the change of its score, or what the score has become."""
    change = _not_finite(score) if group.change is None else number_texts.signed(group.change)
    return f"{group.name} ({change})"
