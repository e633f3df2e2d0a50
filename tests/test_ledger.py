"""The ledger's folder: what it keeps, and what survives a kill, damage and two writers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.evaluation import prepared
from calibscale.files import aside_of
from calibscale.ledger.days import FORMAT, KEY, Ledger, Record
from calibscale.ledger.recipe import Recipe, decode, encode, open_ended
from calibscale.ledger.sums import keep_sums
from calibscale.wagers import Wagers

ESTIMATORS = (
    cs.ECE(bins=7, notion="positive"),
    cs.TCE2Debiased(edges="equal-mass", notion="positive"),
    cs.CWCE2(edges="netcal"),
    cs.SimplexECE(),
    cs.CKCE(cs.RandomFourier(10, seed=3)),
    cs.JKCE(cs.RandomFourier(10, bandwidth=0.4)),
    cs.KLCE(("age", "sex"), 0.2, {"age": 9.0}, categorical=("sex",), method="spectral"),
    cs.KLCE(("age",), method="features", n_features=20),
    cs.Brier(),
)


def _source(rng, n=300):
    p = rng.random(n)
    x = np.column_stack([rng.uniform(20, 80, n), rng.integers(0, 2, n)])
    x[:2, 0] = 20, 80  # the box of the series
    return cs.from_arrays(
        probabilities=p, labels=(rng.random(n) < p).astype(int), covariates=x, binary=True,
        covariate_names=("age", "sex"),
    )  # fmt: skip


def _recipe(source, estimators=ESTIMATORS):
    with prepared(source, estimators) as run:
        states = run.scan(s for e in run.fitting for s in e.needs).groups[None]
        frozen = tuple(e.frozen(*(states[s] for s in e.needs)) for e in run.fitting)
    return Recipe(2, frozen, (Wagers("positive"),), ("age", "sex"), seed=5)


def _state(recipe, source):
    with prepared(source, recipe.estimators) as run:
        states = run.scan(recipe.statistics).groups[None]
        return recipe.pack(states[s] for s in recipe.statistics)


def _records(states, info):
    """Of a number of rows and a vector of states by group."""
    return {
        group: Record(n, {"states": vector}, info if group is None else {})
        for group, (n, vector) in states.items()
    }


@pytest.fixture
def recipe(rng):
    return _recipe(_source(rng))


@pytest.fixture
def small(rng):
    return _recipe(_source(rng), (cs.ECE(notion="positive"),))


def test_recipe__comes_back_from_json(recipe):
    text = json.dumps(recipe.to_dict(), allow_nan=False)
    back = Recipe.from_dict(json.loads(text))
    assert back == recipe
    assert [e.needs for e in back.estimators] == [e.needs for e in recipe.estimators]
    assert back.statistics == recipe.statistics
    called = {"number": 5.0}  # a covariate that is called as JSON's infinity is kept
    for estimator in (
        cs.CMMD(level=1.5), cs.OneHot(((0.5, 0.5),)),
        cs.KLCE(("number",), covariate_bandwidth=called),
        cs.KLCE(("kind", "settings"), covariate_bandwidth={"kind": 1.0, "settings": 2.0}),
    ):  # fmt: skip
        assert decode(json.loads(json.dumps(encode(estimator)))) == estimator


def test_open_ended__takes_rows_that_nobody_has_seen(rng):
    """An age beyond the box counts as at its edge, a third sex as a category of its own."""
    source = _source(rng)
    estimators = (
        cs.KLCE(("age", "sex"), 0.2, {"age": 9.0}, categorical=("sex",), method="spectral"),
        cs.KLCE(("sex",), 0.2, {"sex": 0.7}, method="spectral"),
        cs.KLCE(("age", "sex"), 0.2, {"age": 9.0}, categorical=("sex",), method="features"),
    )
    frozen = _recipe(source, tuple(estimators)).estimators
    opened = tuple(open_ended(e) for e in frozen)
    recipe = Recipe.from_dict(json.loads(json.dumps(Recipe(2, opened).to_dict())))
    assert recipe == Recipe(2, opened)

    def values(estimators, made):
        with prepared(made, ()) as run:
            run = replace(run, chosen=estimators)
            states = run.scan(s for e in estimators for s in e.needs).groups[None]
        return [e.value(*(states[s] for s in e.needs)) for e in estimators]

    np.testing.assert_allclose(values(opened, source), values(frozen, source), rtol=1e-7)
    p, y = rng.random(50), rng.integers(0, 2, 50)
    x = np.column_stack([rng.uniform(20, 80, 50), rng.integers(0, 2, 50)])
    x[:3] = [[1e6, 1], [-300, 0], [50, 7]]

    def made(x):
        return cs.from_arrays(
            probabilities=p, labels=y, covariates=x, binary=True, covariate_names=("age", "sex")
        )

    found = values(opened[:1], made(x))
    low, high = opened[0].statistic.series.box
    x[:3] = [[high[1], 1], [low[1], 0], [50, 7]]
    same = values(opened[:1], made(x))
    np.testing.assert_allclose(found, same, rtol=1e-12)
    x[2, 1] = -5  # any other unknown value is of the same category
    np.testing.assert_allclose(values(opened[:1], made(x)), same, rtol=1e-12)


def test_recipe__refuses_what_it_does_not_know():
    with pytest.raises(cs.OptionError, match="cannot keep object"):
        encode(object())
    with pytest.raises(cs.OptionError, match="upgrade"):
        decode({"kind": "Tomorrow", "settings": {}})


def test_states__come_back_and_add_up_to_those_of_all_rows(rng, recipe, tmp_path):
    p, x = rng.random(700), np.column_stack([rng.uniform(20, 80, 700), rng.integers(0, 2, 700)])
    y = (rng.random(700) < p).astype(int)

    def rows(part):
        return cs.from_arrays(
            probabilities=p[part], labels=y[part], covariates=x[part], binary=True,
            covariate_names=("age", "sex"),
        )  # fmt: skip

    ledger = Ledger.create(tmp_path / "ledger", recipe)
    with ledger.writing():
        for k, start in enumerate(range(0, 700, 100)):
            vector = _state(recipe, rows(slice(start, start + 100)))
            records = _records({None: (100, vector)}, {"source": "test"})
            ledger.write(f"2026-02-{k + 1:02}", "v1", records)
    ledger = Ledger.open(tmp_path / "ledger")
    assert ledger.days() == [f"2026-02-0{k}" for k in range(1, 8)]
    assert ledger.models == ["v1"]
    assert [e.day for e in ledger.select("2026-02-03", "2026-02-04")] == [
        "2026-02-03",
        "2026-02-04",
    ]
    total = sum(ledger.read(entry) for entry in ledger.select())
    found = ledger.recipe.states(total)
    whole = recipe.states(_state(recipe, rows(slice(None))))
    for estimator in ledger.recipe.estimators:
        of_days = estimator.value(*(found[s] for s in estimator.needs))
        of_rows = estimator.value(*(whole[s] for s in estimator.needs))
        # the unbiased ones are differences of sums ten times as large
        assert of_days == pytest.approx(of_rows, rel=1e-12, abs=1e-14), estimator.name


def test_day__is_replaced_as_a_whole_and_its_slots_are_used_again(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    one = np.ones(small.sizes["states"])
    for turn in range(4):
        with ledger.writing():
            states = {None: (turn, turn * one), 1.0: (1, one), 2.0: (2, 2 * one)}
            ledger.write("2026-01-01", "v1", _records(states, {"turn": turn}))
        ledger = Ledger.open(tmp_path / "ledger")
        assert len(ledger.entries) == 3
        (entry,) = ledger.select()
        assert (entry.n, entry.info) == (turn, {"turn": turn})
        np.testing.assert_array_equal(ledger.read(entry), turn * one)
        np.testing.assert_array_equal(ledger.read(ledger.select(group=2.0)[0]), 2 * one)
    assert max(e.slot for e in ledger.entries) < 6
    with ledger.writing():
        ledger.remove("2026-01-01", "v1")
    assert Ledger.open(tmp_path / "ledger").entries == []


def test_two_writers__one_gets_an_error(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    other = Ledger.open(tmp_path / "ledger")
    with (
        ledger.writing(),
        pytest.raises(cs.StoreError, match="another writer"),
        other.writing(),
    ):
        pass
    with other.writing():
        pass


def test_damage__names_the_day_and_leaves_the_others(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    with ledger.writing():
        for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
            ledger.write(day, "v1", _records({None: (1, np.ones(small.sizes["states"]))}, {}))
    assert ledger.check() == []
    slots = {e.day: e.slot for e in ledger.entries}
    place = tmp_path / "ledger" / "states" / "c"
    file = place / str(slots["2026-01-02"]) / "0"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 4
    file.write_bytes(bytes(stored))
    (place / str(slots["2026-01-03"]) / "0").unlink()
    found = Ledger.open(tmp_path / "ledger")
    complaints = found.check()
    assert ["2026-01-02" in complaints[0], "2026-01-03" in complaints[1]] == [True, True]
    first, second, _ = found.select()
    np.testing.assert_array_equal(found.read(first), 1.0)
    with pytest.raises(cs.StoreError, match=r"2026-01-02 .*Run that day again"):
        found.read(second)


def test_open__says_what_is_wrong(small, tmp_path):
    with pytest.raises(cs.StoreError, match="no ledger"):
        Ledger.open(tmp_path / "nothing")
    store = tmp_path / "store.zarr"
    cs.LogitStore.create(store, classes=3)
    with pytest.raises(cs.StoreError, match="not a ledger"):
        Ledger.open(store)
    with pytest.raises(cs.StoreError, match="stands there"):
        Ledger.create(store, small)
    Ledger.create(tmp_path / "ledger", small)
    meta = tmp_path / "ledger" / "zarr.json"
    written = json.loads(meta.read_text())
    written["attributes"][KEY]["format"] = 9
    meta.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match="newer calibscale"):
        Ledger.open(tmp_path / "ledger")
    (tmp_path / "ledger" / "index.json").write_text("{")
    written["attributes"][KEY]["format"] = FORMAT
    meta.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match="index is damaged"):
        Ledger.open(tmp_path / "ledger")


def test_read__of_a_day_that_was_replaced_is_refused(small, tmp_path):
    """The slot that an old entry names may hold another day by now."""
    ledger = Ledger.create(tmp_path / "ledger", small)
    one = np.ones(small.sizes["states"])
    with ledger.writing():
        ledger.write("2026-01-01", "v1", _records({None: (1, one)}, {}))
        ledger.write("2026-01-02", "v1", _records({None: (1, one)}, {}))
    reader = Ledger.open(tmp_path / "ledger")
    old, kept = reader.select()
    with ledger.writing():
        ledger.write("2026-01-01", "v1", _records({None: (5, 5 * one)}, {}))
        ledger.write("2026-01-03", "v1", _records({None: (7, 7 * one)}, {}))
    assert ledger.select("2026-01-03")[0].slot == old.slot
    with pytest.raises(cs.StoreError, match=r"2026-01-01 .*was replaced"):
        reader.read(old)
    np.testing.assert_array_equal(reader.read(kept), 1.0)
    np.testing.assert_array_equal(reader.read(reader.select()[0]), 5.0)


@pytest.mark.parametrize(
    "damage",
    [
        {"day": 5}, {"day": None}, {"model": 3}, {"slot": "0"}, {"slot": -1}, {"slot": 2**30},
        {"slot": 1}, {"group": "x"}, {"n": None}, {"info": None},
    ],
)  # fmt: skip
def test_index__of_other_types_is_damaged(small, tmp_path, damage):
    ledger = Ledger.create(tmp_path / "ledger", small)
    with ledger.writing():
        for day in ("2026-01-01", "2026-01-02"):
            ledger.write(day, "v1", _records({None: (1, np.ones(small.sizes["states"]))}, {}))
    index = tmp_path / "ledger" / "index.json"
    written = json.loads(index.read_text())
    written["entries"][0].update(damage)
    index.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match="index is damaged"):
        Ledger.open(tmp_path / "ledger")
    index.write_text(json.dumps({**written, "entries": {}}))  # the next day would be the only one
    with pytest.raises(cs.StoreError, match="index is damaged"):
        Ledger.open(tmp_path / "ledger")


@pytest.mark.parametrize("change", [{"bins": 3}, {"bins": -3}])
def test_open__a_recipe_must_fit_the_states(small, tmp_path, change):
    Ledger.create(tmp_path / "ledger", small)
    meta = tmp_path / "ledger" / "zarr.json"
    written = json.loads(meta.read_text())
    written["attributes"][KEY]["recipe"]["estimators"][0]["settings"].update(change)
    meta.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match="ledger"):
        Ledger.open(tmp_path / "ledger")


def test_day__may_have_an_infinite_log_loss(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    endless = np.r_[np.inf, np.ones(small.sizes["states"] - 1)]
    with ledger.writing():
        ledger.write("2026-01-01", "v1", _records({None: (1, endless)}, {}))
        with pytest.raises(cs.OptionError, match="not a number"):
            ledger.write("2026-01-02", "v1", _records({None: (1, endless * np.nan)}, {}))
    np.testing.assert_array_equal(ledger.read(ledger.select()[0]), endless)


@pytest.mark.parametrize("day", ["2026-1-1", "20260101", "yesterday", "2026-02-30"])
def test_day__must_be_one(small, tmp_path, day):
    ledger = Ledger.create(tmp_path / "ledger", small)
    with ledger.writing(), pytest.raises(cs.OptionError, match="a day is written like"):
        ledger.write(day, "v1", _records({None: (1, np.ones(small.sizes["states"]))}, {}))


_WRITER = """
import sys
import time
import numpy as np
from calibscale.ledger.days import Ledger, Record
ledger = Ledger.open(sys.argv[1])
print("start", flush=True)
for turn in range(1, 10_000):
    with ledger.writing():
        value = float(turn)
        states = {"states": np.full(ledger.recipe.sizes["states"], value)}
        records = {None: Record(turn, states, {"turn": turn}), 1.0: Record(turn, states, {})}
        ledger.write("2026-01-01", "v1", records)
"""


def test_kills__leave_the_old_or_the_new_day(small, tmp_path):
    """Of a process that does nothing but replace one day; each time both states are of one run."""
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, small)
    with ledger.writing():
        zero = np.zeros(small.sizes["states"])
        ledger.write("2026-01-01", "v1", _records({None: (0, zero), 1.0: (0, zero)}, {"turn": 0}))
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    turns = []
    for moment in (*rng.uniform(0, 0.3, 12), 2.0):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "start\n"
        time.sleep(moment)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        found = Ledger.open(path)
        whole, part = found.select()[0], found.select(group=1.0)[0]
        assert len(found.entries) == 2
        assert whole.n == part.n == whole.info["turn"]
        for entry in (whole, part):
            np.testing.assert_array_equal(found.read(entry), float(whole.n))
        turns.append(whole.n)
    assert max(turns) > 0
    with ledger.writing():
        pass
    assert [p for p in path.rglob(".*") if p.name != ".writer.lock"] == []
    assert len(list((path / "states" / "c").rglob("*"))) == 4


_STOPS = """
import os, sys, time
from pathlib import Path
import numpy as np
from calibscale.ledger import days
from calibscale.ledger.days import Ledger, Record
def hang(*_):
    print("midway", flush=True)
    time.sleep(600)
def hang_before_it_is_there(path, data, write=days.write_whole):
    os.replace = hang
    write(path, data)
ledger = Ledger.open(sys.argv[1])
if sys.argv[2] == "create":
    days._write_json = hang
    Ledger.create(sys.argv[3], ledger.recipe)
vector = np.ones(ledger.recipe.sizes["states"])
with ledger.writing():
    if sys.argv[2] == "slot":
        Path.replace = hang
    else:
        days.write_whole = hang_before_it_is_there
    records = {group: Record(1, {"states": vector}, {}) for group in (None, 1.0)}
    ledger.write("2026-01-02", "v1", records)
"""


@contextmanager
def _midway(*arguments):
    """A writer that has come so far, killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STOPS, *map(str, arguments)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("stage", "left"), [("slot", "0.*.partial"), ("index", "0")])
def test_killed_writer__what_it_leaves_in_the_ledger_goes(small, tmp_path, stage, left):
    ledger = Ledger.create(tmp_path / "ledger", small)
    one = np.ones(small.sizes["states"])
    with ledger.writing():
        ledger.write("2026-01-01", "v1", _records({None: (1, one)}, {}))
    slots = tmp_path / "ledger" / "states" / "c"
    with _midway(tmp_path / "ledger", stage):
        assert list(slots.glob(f"1/{left}"))
        assert len(list(ledger.path.glob(".index.json.*"))) == (stage == "index")
        with pytest.raises(cs.StoreError, match="another writer"), ledger.writing():
            pass
        assert ledger.check() == []
    assert list(slots.glob(f"1/{left}"))
    with ledger.writing():
        assert [p.name for p in slots.iterdir()] == ["0"]
        assert not list(ledger.path.glob(".index.json.*"))
    np.testing.assert_array_equal(ledger.read(ledger.select()[0]), one)


def test_killed_writer__a_ledger_that_it_had_begun_goes(small, tmp_path):
    Ledger.create(tmp_path / "other", small)
    with _midway(tmp_path / "other", "create", tmp_path / "ledger"):
        (aside,) = tmp_path.glob(".ledger.*.new")
        ledger = Ledger.create(tmp_path / "ledger", small)
        with ledger.writing():
            assert aside.exists()
    with ledger.writing():
        assert not aside.exists()


def test_killed_writer__a_sum_that_it_had_begun_goes(small, tmp_path):
    """Also if it has another name by now."""
    ledger = Ledger.create(tmp_path / "ledger", small)
    aside = aside_of(ledger.path / "sums" / "v1-46188-0123456789abcdef.sum")
    aside.parent.mkdir()
    aside.write_bytes(b"half")
    with ledger.writing():
        keep_sums(ledger)
    assert list(aside.parent.iterdir()) == []


def test_read__of_a_day_whose_slot_was_emptied_is_refused(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    one = np.ones(small.sizes["states"])
    with ledger.writing():
        ledger.write("2026-01-01", "v1", _records({None: (1, one)}, {}))
    reader = Ledger.open(tmp_path / "ledger")
    (old,) = reader.select()
    with ledger.writing():
        ledger.write("2026-01-01", "v1", _records({None: (2, 2 * one)}, {}))
    with ledger.writing():
        pass
    assert not (tmp_path / "ledger" / "states" / "c" / str(old.slot)).exists()
    with pytest.raises(cs.StoreError, match=r"2026-01-01 .*was replaced"):
        reader.read(old)
    assert reader.damaged == {}
    np.testing.assert_array_equal(reader.read(reader.select()[0]), 2.0)
