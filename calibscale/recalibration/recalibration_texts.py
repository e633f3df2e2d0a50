"""Sentences about what a recalibration changed, on rows that the fit has not used."""

from __future__ import annotations

from collections.abc import Sequence

from calibscale.formatting import naming, number_texts
from calibscale.results.audit_results import GroupChange, ScoreChange

_NAMED = 5  # groups that a sentence names
# Names of scores in sentences.
IN_WORDS = {
    "nll": "log loss",
    "crps": "CRPS",
    "interval_score": "interval score",
    "pinball_loss": "pinball loss",
    "squared_error": "squared error",
}


def improvement(score: ScoreChange, judged: str) -> str:
    """What the change of the first score says, which is infinite at a label of probability 0."""
    noun = IN_WORDS[score.score]
    rows = "rows that the fit has not used"
    if judged == "cross_fitted":
        rows = "rows that the fit has not used (each half of the rows by a fit to the other)"
    if score.before is None and score.after is not None:
        return (
            f"Recalibration makes the {noun} of {rows} finite "
            f"({number_texts.number(score.after)}). Before, a label has the probability 0."
        )
    if score.before is not None and score.after is None:
        return (
            f"Recalibration makes the {noun} of {rows} infinite, as a label gets the probability "
            "0: keep the predictions as they are."
        )
    if score.change is None or score.low is None or score.high is None:
        return (
            f"It is not known whether recalibration helps on {rows}: the {noun} is infinite, or "
            "there are too few rows or clusters for an interval."
        )
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


def costs(
    score: str,
    accuracy: ScoreChange | None,
    groups: Sequence[GroupChange],
    keeps_order: bool | None,
) -> tuple[str, ...]:
    """What recalibration cost in accuracy, and which groups became worse by a score.

    `keeps_order` says whether a map of two classes is increasing, and is None for other classes.
    """
    sentences = [] if accuracy is None else [_accuracy(accuracy, keeps_order)]
    if groups:
        sentences.append(_groups(IN_WORDS[score], groups))
    return tuple(sentences)


def _accuracy(accuracy: ScoreChange, keeps_order: bool | None) -> str:
    """What the change of the accuracy says, and whether the order of the rows has changed."""
    order = ""
    if keeps_order:
        order = "The map keeps the order of the predictions, and so the area under the ROC curve. "
    elif keeps_order is False:
        order = (
            "The map may change the order of the predictions or make ties, and with them the area "
            "under the ROC curve. "
        )
    if accuracy.change is None or accuracy.low is None or accuracy.high is None:
        return f"{order}It is not known whether recalibration changes the accuracy."
    value = number_texts.number(accuracy.after)
    # An interval has no length only if no row changes.
    if accuracy.low == accuracy.high == 0.0:
        return f"{order}No prediction becomes right or wrong: the accuracy stays {value}."
    size = number_texts.number(abs(accuracy.change), 2)
    low, high = (number_texts.number(end, 2) for end in (accuracy.low, accuracy.high))
    interval = f"(95 % interval of the change: {low} to {high})"
    if accuracy.high < 0:
        return f"{order}The accuracy falls by {size} to {value} {interval}."
    if accuracy.low > 0:
        return f"{order}The accuracy rises by {size} to {value} {interval}."
    signed = number_texts.signed(accuracy.change)
    return f"{order}It is not known whether the accuracy changes: by {signed} {interval}."


def _groups(noun: str, groups: Sequence[GroupChange]) -> str:
    """Names of the groups whose score has increased, by intervals that hold at once."""
    judged = [group for group in groups if group.low is not None]
    worse = [group for group in groups if group.became_worse]
    count = number_texts.plural(len(judged), "group")
    if worse:
        names = naming.joined([_with_change(group) for group in worse], _NAMED)
        return f"The {noun} became worse for {names}: simultaneous 95 % intervals of {count}."
    if not judged:
        return f"No group has an interval of its {noun}: it is not known which became worse."
    return f"No group is known to have become worse ({count}, simultaneous 95 % intervals)."


def _with_change(group: GroupChange) -> str:
    """Name of a group, with the change of its score."""
    change = "infinite" if group.change is None else number_texts.signed(group.change)
    return f"{group.name} ({change})"
