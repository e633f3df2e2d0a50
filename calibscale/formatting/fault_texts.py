"""Faults of dropped rows in words."""

from __future__ import annotations

from collections.abc import Mapping

from calibscale.formatting.number_texts import plural

_LISTED_FAULTS = 5  # a table may have a fault for each of many columns
_ROLES = ("probabilities", "logits", "predictions", "labels", "weights", "covariates")
_PLURAL_VERBS = {"is": "are", "has": "have", "does": "do"}


def fault_text(fault: str) -> str:
    """Fault of dropped rows as text.  Faults of earlier versions had underscores.

    Columns without names are called by their role, which takes a plural verb.

    >>> fault_text("p_cat is missing"), fault_text("not_finite")
    ('p_cat is missing', 'not finite')
    >>> fault_text("predictions has crossing quantiles")
    'predictions have crossing quantiles'
    """
    column, _, said = fault.partition(" ")
    verb, _, predicate = said.partition(" ")
    if column in _ROLES and verb in _PLURAL_VERBS:
        return f"{column} {_PLURAL_VERBS[verb]} {predicate}"
    return fault if said else fault.replace("_", " ")


def listed_faults(dropped: Mapping[str, int]) -> str:
    """Faults of dropped rows with their numbers, the most frequent ones first.

    >>> listed_faults({"y is not a class": 3, "score is missing": 190})
    'score is missing (190), y is not a class (3)'
    """
    ordered = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{fault_text(fault)} ({count:,})" for fault, count in ordered[:_LISTED_FAULTS]]
    n_unlisted = sum(count for _, count in ordered[_LISTED_FAULTS:])
    if n_unlisted:
        listed.append(f"other faults ({n_unlisted:,})")
    return ", ".join(listed)


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Sentence about dropped rows.

    >>> dropped_text({"score is missing": 1})
    '1 row was dropped: score is missing (1)'
    """
    number = sum(dropped.values())
    verb = "was" if number == 1 else "were"
    return f"{plural(number, 'row')} {verb} dropped: {listed_faults(dropped)}"
