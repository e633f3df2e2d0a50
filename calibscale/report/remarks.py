"""Sections that every report ends with: what was left out, notes, terms, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from calibscale.report import words
from calibscale.report.blocks import Block, Folded, Listing, Section, Table, Words, section, table


def left_out(result: dict[str, Any]) -> Table | None:
    """Rows that were not used and why; none where all were."""
    rows = [("not labelled yet", words.count(result["n_unlabelled"]))] * bool(
        result["n_unlabelled"]
    )
    rows += [
        (why.replace("_", " "), words.count(n)) for why, n in (result["dropped"] or {}).items()
    ]
    if not rows:
        return None
    used = ("used", words.count(result["n"]))
    return table("Rows", ("what", "rows"), [used, *rows])


def rows_told(result: dict[str, Any]) -> str:
    """The same as a remark."""
    told = []
    if result["n_unlabelled"]:
        told.append(f"{words.count(result['n_unlabelled'])} without a label yet")
    if result["n_dropped"]:
        told.append(f"{words.count(result['n_dropped'])} dropped")
    return " and ".join(told) if told else "none left out"


def notes(found: Iterable[str]) -> Section | None:
    """Sentences for people."""
    items = tuple(dict.fromkeys(found))
    return section("notes", "Notes", Listing(items)) if items else None


def estimator_notes(results: Iterable[dict[str, Any]]) -> list[str]:
    """What estimators remarked."""
    found = []
    for estimate in results:
        details = estimate.get("details")
        remarks = details.get("notes") if isinstance(details, dict) else None
        if isinstance(remarks, list):
            found += [f"{words.label(estimate)}: {remark}" for remark in remarks]
    return found


def terms(names: Iterable[str], estimators: Iterable[str] = ()) -> Section:
    """A sentence for each term that the report uses."""
    found = [(name, words.ESTIMATORS[name]) for name in dict.fromkeys(estimators)
             if name in words.ESTIMATORS]  # fmt: skip
    titles = {
        "root": "root", "map": "bias", "expectation": "at this n", "critical": "95 % of the null",
        "approximation": "±",
    }  # fmt: skip
    found += [(titles.get(name, name), words.TERMS[name]) for name in dict.fromkeys(names)]
    return Section("terms", "How to read this", (Listing(terms=tuple(found)),))


def settings(result: dict[str, Any], **others: Any) -> Section:
    """Every parameter and version."""
    blocks: list[Block] = []
    values = {**others, **(result.get("parameters") or {})}
    flat = list(_flat(values))
    if flat:
        blocks.append(table("Settings", ("parameter", "value"), flat))
    source = result.get("source")
    if source:
        blocks.append(table("Source", ("property", "value"), list(_flat(source))))
    versions = result.get("versions") or {}
    if versions:
        named = [(name, words.plain(version)) for name, version in versions.items()]
        blocks.append(table("Versions", ("of", "version"), named))
    if not blocks:
        blocks.append(Words("The result names no parameters."))
    folded = Folded("Every parameter and version", tuple(blocks))
    return Section("settings", "Parameters", (folded,))


def _flat(value: dict[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as dotted names."""
    for key, item in value.items():
        name = f"{before}{key}"
        if isinstance(item, dict) and item:
            yield from _flat(item, f"{name}.")
        elif isinstance(item, list) and any(isinstance(one, dict | list) for one in item):
            for i, one in enumerate(item):
                inner = one if isinstance(one, dict) else {"": one}
                yield from _flat(
                    inner, f"{name}[{i}]." if isinstance(one, dict) else f"{name}[{i}]"
                )
        else:
            yield name, words.plain(item)


def only(*sections: Section | None) -> tuple[Section, ...]:
    """The sections that have content."""
    return tuple(one for one in sections if one is not None)


def interval_terms(results: Sequence[dict[str, Any]]) -> list[str]:
    """Terms that a list of estimates needs."""
    found = []
    if any(e["interval"] is not None for e in results):
        found.append("interval")
    if any(
        e["interval"] is not None and e["interval"]["covers"] not in (None, "the population")
        for e in results
    ):
        found.append("expectation")
    if any(e["squared"] for e in results):
        found.append("root")
    if any((e["approximation"] or {}).get("kind") not in (None, "exact") for e in results):
        found.append("approximation")
    return found
