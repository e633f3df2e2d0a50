"""Ledgers: what they store, and how they survive kills, damage and two writers."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import google_crc32c
import numpy as np
import pytest

import calibscale as cs
from calibscale.evaluation.later_rows import open_ended
from calibscale.inference.e_process import BettingEProcess
from calibscale.monitoring.ledger.day_ledger import FORMAT, KEY, Ledger
from calibscale.monitoring.ledger.index import write_last
from calibscale.monitoring.ledger.recipe import Recipe, decode, encode
from calibscale.session import Session
from tests.support.ledgers import recipe_of, records_of, source_of_loans


def _state(recipe, source):
    with Session.open(source) as session:
        run = session.run(recipe.estimators)
        states = run.scan(recipe.statistics).groups[None]
        return recipe.pack(states[s] for s in recipe.statistics)


@pytest.fixture
def recipe(rng):
    return recipe_of(source_of_loans(rng))


def test_recipe__comes_back_from_json(recipe):
    text = json.dumps(recipe.to_dict(), allow_nan=False)
    back = Recipe.from_dict(json.loads(text))
    assert back == recipe
    assert [e.needs for e in back.estimators] == [e.needs for e in recipe.estimators]
    assert back.statistics == recipe.statistics
    called = {"number": 5.0}  # a covariate may have the name of a JSON key
    for estimator in (
        cs.CMMD(exponent=1.5),
        cs.OneHot(((0.5, 0.5),)),
        cs.KLCE(("number",), covariate_bandwidth=called),
        cs.KLCE(("kind", "settings"), covariate_bandwidth={"kind": 1.0, "settings": 2.0}),
        cs.CertifiedL1("positive", covariates=("age",), cuts=((0, (30.0, 50.0)),)),
    ):
        assert decode(json.loads(json.dumps(encode(estimator)))) == estimator


def test_recipe__keeps_the_names_of_stored_classes_and_settings():
    chosen = cs.KLCE(("age",), bandwidth_share=0.3)
    assert encode(BettingEProcess("positive"))["kind"] == "Wagers"
    assert encode(chosen)["settings"]["choose"] == 0.3
    assert encode(cs.CKCE(method="exact", conditional_on="sex"))["settings"]["within"] == "sex"
    by_features = encode(cs.CKCE())
    assert by_features["settings"]["product"] is None  # the kernel of method="exact"
    assert decode(json.loads(json.dumps(by_features))) == cs.CKCE()
    for value in (
        BettingEProcess("positive"),
        chosen,
        cs.CKCE(method="exact", conditional_on="sex"),
    ):
        assert decode(json.loads(json.dumps(encode(value)))) == value


def test_recipe__of_an_earlier_version_keeps_its_bets():
    """Without a resolution: 18 cells, and one pattern of signs with a tolerance."""
    # bets as versions without a resolution stored them
    bets = [[0.5, 0.0], [1.8, 0.0]]
    settings = {"notion": "positive", "bets": bets, "learned": [], "column": None}
    exact = decode({"kind": "Wagers", "settings": settings})
    tolerant = decode({"kind": "TolerantEProcess", "settings": {**settings, "tolerance": 0.02}})
    assert [field.shape for field in exact.zero(2)[2:]] == [(4,), (18, 3)]
    assert [field.shape for field in tolerant.zero(2)[2:]] == [(3,), (18, 5)]
    assert exact.weights is tolerant.weights is None
    assert tolerant.shape == (38, 8)


def test_open_ended__accepts_unseen_values(rng):
    """An age outside the box is moved to its edge. A third sex is one more category."""
    source = source_of_loans(rng)
    estimators = (
        cs.KLCE(("age", "sex"), 0.2, {"age": 9.0}, categorical=("sex",), method="spectral"),
        cs.KLCE(("sex",), 0.2, {"sex": 0.7}, method="spectral"),
        cs.KLCE(("age", "sex"), 0.2, {"age": 9.0}, categorical=("sex",), method="features"),
    )
    frozen = recipe_of(source, tuple(estimators)).estimators
    opened = tuple(map(open_ended, frozen))
    recipe = Recipe.from_dict(json.loads(json.dumps(Recipe(2, opened).to_dict())))
    assert recipe == Recipe(2, opened)

    def values(estimators, rows):
        with Session.open(rows) as session:
            # frozen estimators, without a scan of the rows for settings
            run = session.run(())
            run = replace(run, chosen=estimators)
            states = run.scan(s for e in estimators for s in e.needs).groups[None]
        return [e.value(*(states[s] for s in e.needs)) for e in estimators]

    np.testing.assert_allclose(values(opened, source), values(frozen, source), rtol=1e-7)
    p, y = rng.random(50), rng.integers(0, 2, 50)
    x = np.column_stack([rng.uniform(20, 80, 50), rng.integers(0, 2, 50)])
    # ages outside the box, and a sex that the first day does not have
    x[:3] = [[1e6, 1], [-300, 0], [50, 7]]

    def rows(x):
        return cs.from_arrays(
            probabilities=p, labels=y, covariates=x, binary=True, covariate_names=("age", "sex")
        )

    moved = values(opened[:1], rows(x))
    # the box of ages in the series, to whose edges they are moved
    low, high = opened[0].statistic.series.box
    x[:3] = [[high[1], 1], [low[1], 0], [50, 7]]
    expected = values(opened[:1], rows(x))
    np.testing.assert_allclose(moved, expected, rtol=1e-12)
    x[2, 1] = -5  # any other unknown value is of the same category
    np.testing.assert_allclose(values(opened[:1], rows(x)), expected, rtol=1e-12)


def test_recipe__refuses_unknown_types():
    with pytest.raises(cs.OptionError, match="cannot store object"):
        encode(object())
    with pytest.raises(cs.OptionError, match="upgrade"):
        decode({"kind": "Tomorrow", "settings": {}})


@pytest.mark.long
def test_states__come_back_and_add_up_to_those_of_all_rows(rng, recipe, tmp_path):
    p, x = rng.random(700), np.column_stack([rng.uniform(20, 80, 700), rng.integers(0, 2, 700)])
    y = (rng.random(700) < p).astype(int)

    def rows(part):
        return cs.from_arrays(
            probabilities=p[part],
            labels=y[part],
            covariates=x[part],
            binary=True,
            covariate_names=("age", "sex"),
        )

    ledger = Ledger.create(tmp_path / "ledger", recipe)
    with ledger.writing():
        for k, start in enumerate(range(0, 700, 100)):
            vector = _state(recipe, rows(slice(start, start + 100)))
            records = records_of({None: (100, vector)}, {"source": "test"})
            ledger.write(f"2026-02-{k + 1:02}", "v1", records)
    ledger = Ledger.open(tmp_path / "ledger")
    assert ledger.days() == [f"2026-02-0{k}" for k in range(1, 8)]
    assert ledger.models == ["v1"]
    assert [e.day for e in ledger.select("2026-02-03", "2026-02-04")] == [
        "2026-02-03",
        "2026-02-04",
    ]
    total = sum(ledger.read(entry) for entry in ledger.select())
    totals = ledger.recipe.states(total)
    at_once = recipe.states(_state(recipe, rows(slice(None))))
    for estimator in ledger.recipe.estimators:
        of_days = estimator.value(*(totals[s] for s in estimator.needs))
        of_rows = estimator.value(*(at_once[s] for s in estimator.needs))
        # the unbiased ones are differences of sums ten times as large
        assert of_days == pytest.approx(of_rows, rel=1e-12, abs=1e-14), estimator.name


def test_day__is_replaced_as_a_whole_and_its_slots_are_used_again(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    vector = np.ones(small.sizes["states"])
    for turn in range(4):
        with ledger.writing():
            states = {None: (turn, turn * vector), 1.0: (1, vector), 2.0: (2, 2 * vector)}
            ledger.write("2026-01-01", "v1", records_of(states, {"turn": turn}))
        ledger = Ledger.open(tmp_path / "ledger")
        assert len(ledger.entries) == 3
        (entry,) = ledger.select()
        assert (entry.n, entry.info) == (turn, {"turn": turn})
        np.testing.assert_array_equal(ledger.read(entry), turn * vector)
        np.testing.assert_array_equal(ledger.read(ledger.select(group=2.0)[0]), 2 * vector)
    assert max(e.slot for e in ledger.entries) < 6
    with ledger.writing():
        ledger.remove("2026-01-01", "v1")
    assert Ledger.open(tmp_path / "ledger").entries == []


@pytest.mark.long
def test_two_writers__one_gets_an_error(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    second = Ledger.open(tmp_path / "ledger")
    with (
        ledger.writing(),
        pytest.raises(cs.StoreError, match="another writer"),
        second.writing(),
    ):
        pass
    with second.writing():
        pass


def test_damage__names_the_day_and_leaves_the_others(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    with ledger.writing():
        for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
            ledger.write(day, "v1", records_of({None: (1, np.ones(small.sizes["states"]))}, {}))
    assert ledger.check() == []
    slots = {e.day: e.slot for e in ledger.entries}
    place = tmp_path / "ledger" / "states" / "c"
    file = place / str(slots["2026-01-02"]) / "0"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 4
    file.write_bytes(bytes(stored))
    (place / str(slots["2026-01-03"]) / "0").unlink()
    damaged = Ledger.open(tmp_path / "ledger")
    complaints = damaged.check()
    assert ["2026-01-02" in complaints[0], "2026-01-03" in complaints[1]] == [True, True]
    first, second, _ = damaged.select()
    np.testing.assert_array_equal(damaged.read(first), 1.0)
    with pytest.raises(cs.StoreError, match=r"2026-01-02 .*Run that day again"):
        damaged.read(second)


def test_open__reports_the_problem(small, tmp_path):
    with pytest.raises(cs.StoreError, match="no ledger"):
        Ledger.open(tmp_path / "nothing")
    store = tmp_path / "store.zarr"
    cs.LogitStore.create(store, classes=3)
    with pytest.raises(cs.StoreError, match="not a ledger"):
        Ledger.open(store)
    with pytest.raises(cs.StoreError, match="already exists"):
        Ledger.create(store, small)
    Ledger.create(tmp_path / "ledger", small)
    meta = tmp_path / "ledger" / "zarr.json"
    written = json.loads(meta.read_text())
    written["attributes"][KEY]["format"] = 9
    meta.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match="newer calibscale"):
        Ledger.open(tmp_path / "ledger")
    written["attributes"][KEY]["format"] = 1
    meta.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match=r"format 1 .*older calibscale.*run its days again"):
        Ledger.open(tmp_path / "ledger")
    (tmp_path / "ledger" / "index.log").unlink()
    written["attributes"][KEY]["format"] = FORMAT
    meta.write_text(json.dumps(written))
    with pytest.raises(cs.StoreError, match="index is damaged"):
        Ledger.open(tmp_path / "ledger")


def test_read__of_a_day_that_was_replaced_is_refused(small, tmp_path):
    """The slot of an old entry may have another day by now."""
    ledger = Ledger.create(tmp_path / "ledger", small)
    vector = np.ones(small.sizes["states"])
    with ledger.writing():
        ledger.write("2026-01-01", "v1", records_of({None: (1, vector)}, {}))
        ledger.write("2026-01-02", "v1", records_of({None: (1, vector)}, {}))
    reader = Ledger.open(tmp_path / "ledger")
    old, unchanged = reader.select()
    with ledger.writing():
        ledger.write("2026-01-01", "v1", records_of({None: (5, 5 * vector)}, {}))
        ledger.write("2026-01-03", "v1", records_of({None: (7, 7 * vector)}, {}))
    assert ledger.select("2026-01-03")[0].slot == old.slot
    with pytest.raises(cs.StoreError, match=r"2026-01-01 .*was replaced"):
        reader.read(old)
    np.testing.assert_array_equal(reader.read(unchanged), 1.0)
    np.testing.assert_array_equal(reader.read(reader.select()[0]), 5.0)


def _changed(line, change):
    """Line with other values in its head, and the checksum of them."""
    head, *facts = line.rstrip(b"\n")[9:].split(b"\t")
    body = b"\t".join([json.dumps(json.loads(head) | change).encode(), *facts])
    return b"%08x %s\n" % (google_crc32c.value(body), body)


def _two_days(path, recipe):
    ledger = Ledger.create(path, recipe)
    with ledger.writing():
        for k, day in enumerate(("2026-01-01", "2026-01-02")):
            vector = np.full(recipe.sizes["states"], float(k))
            states = {None: (k, vector), 1.0: (1, vector)}
            ledger.write(day, "v1", records_of(states, {"turn": k}))
    return ledger


@pytest.mark.parametrize(
    "damage",
    [
        {"day": 5},
        {"day": None},
        {"day": "2026-02-30"},
        {"model": 3},
        {"revision": None},
        {"records": [["0", None, 1, []]]},
        {"records": [[-1, None, 1, []]]},
        {"records": 1},
        {"records": [[2**30, None, 1, []]]},
        {"records": [[0, "x", 1, []]]},
        {"records": [[0]]},
        {"records": [[0, None, None, []]]},
        {"records": [[0, None, 1, [[]]]]},
    ],
)
def test_log__a_line_of_other_types_is_named_and_other_days_can_be_used(small, tmp_path, damage):
    path = tmp_path / "ledger"
    _two_days(path, small)
    first, second = (path / "index.log").read_bytes().splitlines()
    changed = _changed(first, damage)
    after = {"after": changed[:8].decode()}
    (path / "index.log").write_bytes(changed + _changed(second, after))
    ledger = Ledger.open(path)
    (message,) = ledger.check()
    assert str(path) in message
    assert "damaged: " in message
    assert ("2026-01-01 (v1)" in message) == (not {"day", "model"} & damage.keys())
    np.testing.assert_array_equal(ledger.read(ledger.day("2026-01-02", "v1")[0]), 1.0)


def test_log__a_line_that_is_damaged_is_named_and_other_days_can_be_used(small, tmp_path):
    path = tmp_path / "ledger"
    ledger = _two_days(path, small)
    content = (path / "index.log").read_bytes()
    first, second = content.splitlines(keepends=True)
    for at in range(0, len(first) - 1, 7):
        changed = first[:at] + bytes([first[at] ^ 1]) + first[at + 1 :]
        (path / "index.log").write_bytes(changed + second)
        opened = Ledger.open(path)
        if changed.count(b"\n") == 1:
            (message,) = opened.check()
            assert f"{path / 'index.log'}: line 1" in message
            assert "checksum" in message
        assert opened.days() == ["2026-01-02"]
        np.testing.assert_array_equal(opened.read(opened.entries[0]), 1.0)
    (path / "index.log").write_bytes(first[:-9] + b"!" + first[-8:] + second)
    with Ledger.open(path).writing():
        pass
    assert (path / "states" / "c" / "0").exists()  # the owner of these slots is unknown
    opened = Ledger.open(path)
    with opened.writing():
        vector = np.ones(small.sizes["states"])
        opened.write("2026-01-03", "v1", records_of({None: (1, vector)}, {}))
        assert opened.entries[-1].slot == 4
        opened.write("2026-01-01", "v1", records_of({None: (1, vector)}, {}))
    assert Ledger.open(path).check() == []
    assert ledger.path == path


@pytest.mark.long
def test_truncated_log__has_the_days_before_or_after_the_write(small, tmp_path):
    """A kill during a write truncates the log. The next writer continues from there."""
    path = tmp_path / "ledger"
    _two_days(path, small)
    content = (path / "index.log").read_bytes()
    states = {None: (5, np.ones(small.sizes["states"]))}
    border = content.index(b"\n") + 1
    for end in (*range(0, len(content), 13), border - 1, border, border + 1, len(content) - 1):
        (path / "index.log").write_bytes(content[:end])
        (path / "index.last").unlink(missing_ok=True)
        write_last(path, content[:end].count(b"\n"))
        opened = Ledger.open(path)
        days = ["2026-01-01", "2026-01-02"][: content[:end].count(b"\n")]
        assert [opened.days(), [*opened._index.damaged]] == [days, []]
    with opened.writing():
        opened.write("2026-01-03", "v1", records_of(states, {}))
    opened = Ledger.open(path)
    assert opened.days() == ["2026-01-01", "2026-01-03"]
    assert opened.check() == []


def test_log__is_unchanged_by_a_failed_write(small, tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    ledger = _two_days(path, small)
    content = (path / "index.log").read_bytes()
    real = os.fsync
    with ledger.writing():

        def failing(handle):
            if os.path.samestat(os.fstat(handle), os.stat(path / "index.log")):
                monkeypatch.setattr(os, "fsync", real)
                raise OSError(5, "Input/output error")
            real(handle)

        monkeypatch.setattr(os, "fsync", failing)
        records = records_of({None: (5, np.ones(small.sizes["states"]))}, {})
        with pytest.raises(cs.StoreError, match=r"index\.log: cannot be written: Input"):
            ledger.write("2026-01-02", "v1", records)
        assert (path / "index.log").read_bytes() == content
        assert ledger.day("2026-01-02", "v1")[0].n == 1
        ledger.write("2026-01-02", "v1", records)
    assert Ledger.open(path).day("2026-01-02", "v1")[0].n == 5


@pytest.mark.long
def test_log__is_rewritten_when_most_of_its_lines_are_replaced(small, tmp_path):
    path = tmp_path / "ledger"
    ledger = _two_days(path, small)
    records = records_of({None: (1, np.ones(small.sizes["states"]))}, {})
    longest = 0
    for turn in range(80):
        with ledger.writing():
            ledger.write("2026-01-02", "v1", records)
            if turn % 10 == 9:
                ledger.write("2026-01-03", "v1", records)
                ledger.remove("2026-01-03", "v1")
        longest = max(longest, (path / "index.log").read_bytes().count(b"\n"))
    assert longest < 75
    opened = Ledger.open(path)
    assert opened.days() == ["2026-01-01", "2026-01-02"]
    assert opened.revision == 2 + 80 + 16
    with opened.writing():
        opened.remove("2026-01-02", "v1")
        for _ in range(70):
            opened.remove("2026-01-02", "v1")
    with opened.writing():
        pass
    assert (path / "index.log").read_bytes().count(b"\n") == 2
    assert Ledger.open(path).revision == 2 + 80 + 16 + 71  # rewriting keeps the revision


@pytest.mark.long
def test_log__grows_by_the_same_size_every_night(small, tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, small)
    sizes = []
    records = records_of({None: (1, np.ones(small.sizes["states"]))}, {"facts": "x" * 2000})
    log = path / "index.log"
    with ledger.writing():
        for k in range(60):
            before = log.stat()
            ledger.write(f"2026-{1 + k // 28:02}-{1 + k % 28:02}", "v1", records)
            assert log.stat().st_ino == before.st_ino
            sizes.append(log.stat().st_size - before.st_size)
    assert max(sizes) < 2300


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
        ledger.write("2026-01-01", "v1", records_of({None: (1, endless)}, {}))
        with pytest.raises(cs.OptionError, match="contains NaN"):
            ledger.write("2026-01-02", "v1", records_of({None: (1, endless * np.nan)}, {}))
    np.testing.assert_array_equal(ledger.read(ledger.select()[0]), endless)


@pytest.mark.parametrize("day", ["2026-1-1", "20260101", "yesterday", "2026-02-30"])
def test_day__must_be_a_date(small, tmp_path, day):
    ledger = Ledger.create(tmp_path / "ledger", small)
    with ledger.writing(), pytest.raises(cs.OptionError, match="a day must be a date"):
        ledger.write(day, "v1", records_of({None: (1, np.ones(small.sizes["states"]))}, {}))


def test_read__of_a_day_whose_slot_was_emptied_is_refused(small, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", small)
    vector = np.ones(small.sizes["states"])
    with ledger.writing():
        ledger.write("2026-01-01", "v1", records_of({None: (1, vector)}, {}))
    reader = Ledger.open(tmp_path / "ledger")
    (old,) = reader.select()
    with ledger.writing():
        ledger.write("2026-01-01", "v1", records_of({None: (2, 2 * vector)}, {}))
    with ledger.writing():
        pass
    assert not (tmp_path / "ledger" / "states" / "c" / str(old.slot)).exists()
    with pytest.raises(cs.StoreError, match=r"2026-01-01 .*was replaced"):
        reader.read(old)
    assert reader.damaged == {}
    np.testing.assert_array_equal(reader.read(reader.select()[0]), 2.0)
