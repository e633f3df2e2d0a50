"""Ledgers of older formats, made into ones of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from calibscale.chunk import Floats
from calibscale.errors import StoreError
from calibscale.ledger.days import FORMAT, STATES, Entry, Ledger, Record, group_of
from calibscale.ledger.recipe import Recipe
from calibscale.store.places import complaints, local_path, put_in_place
from calibscale.wagers import WagerState


def upgrade(path: str | Path) -> int:
    """Bring a ledger to the format of today; it appears as a whole.  Returns the format it had.

    Raises
    ------
    StoreError
        If there is none, or a record of it is damaged.
    """
    place = local_path(path)
    with complaints(path):
        group, meta = group_of(path, "r")
        known = int(meta["format"])
        if known == 1:
            put_in_place(place, lambda aside: _from_1(place, group, meta, aside), replace=True)
        elif known != FORMAT:
            raise StoreError(f"{path}: a newer calibscale wrote format {known}: upgrade this one")
    return known


def _from_1(place: Path, group: zarr.Group, meta: dict[str, Any], aside: str) -> None:
    """Format 1 had the sums of fixed bets behind the states, and no learned bets."""
    recipe = Recipe.from_dict(meta["recipe"])
    made = Ledger.create(aside, recipe)
    states: Any = group[STATES]
    days: dict[tuple[str, str], dict[float | None, Record]] = {}
    for written in json.loads((place / "index.json").read_text())["entries"]:
        entry = Entry(**written)
        vector = np.asarray(states[entry.slot])
        if np.isnan(vector).any():
            raise StoreError(f"{place}: the record of {entry.day} ({entry.model}) is damaged")
        cut = recipe.sizes.get(STATES, 0)
        vectors = {STATES: vector[:cut]} if cut else {}
        if recipe.wagers:
            vectors["wagers"] = recipe.pack(_wagers_of_1(recipe, vector[cut:]))
        info = entry.info if entry.group is not None else {**_FACTS, **entry.info}
        records = days.setdefault((entry.day, entry.model), {})
        records[entry.group] = Record(entry.n, vectors, info)
    with made.writing():
        for (day, model), records in days.items():
            made.write(day, model, records)


_FACTS: dict[str, Any] = {"mark": None, "bets": [], "tests": []}  # that a night looks for


def _wagers_of_1(recipe: Recipe, vector: Floats) -> list[WagerState]:
    found, at = [], 0
    for wagers in recipe.wagers:
        state, k = wagers.zero(recipe.classes), len(wagers.bets)
        state.n[...], state.certain[...] = vector[at : at + 2]
        state.logs[:k] = vector[at + 2 : at + 2 + k]
        at += 2 + k
        found.append(state)
    return found
