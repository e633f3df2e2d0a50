"""Indexes of ledgers that have lost, swapped or repeated lines, and how they are repaired."""

from __future__ import annotations

import json

import google_crc32c
import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.ledger.alarms import AlarmBook
from calibscale.monitoring.ledger.broken_days import BrokenDays
from calibscale.monitoring.ledger.day_ledger import KEY, Ledger
from calibscale.monitoring.ledger.index import write_last
from tests.support.ledgers import records_of

DAYS = [f"2026-01-0{k}" for k in range(1, 6)]


@pytest.fixture
def path(small, tmp_path):
    """Path of a ledger of five days."""
    ledger = Ledger.create(tmp_path / "ledger", small)
    with ledger.writing():
        for k, day in enumerate(DAYS):
            _write(ledger, day, k)
    return tmp_path / "ledger"


def _write(ledger, day, value):
    vector = np.full(ledger.recipe.sizes["states"], float(value))
    ledger.write(day, "v1", records_of({None: (value, vector)}, {"turn": value}))


def _lines(path):
    return (path / "index.log").read_bytes().splitlines(keepends=True)


def _set_lines(path, lines):
    (path / "index.log").write_bytes(b"".join(lines))


def _without_link(line):
    """The line as an earlier version wrote it."""
    head, *facts = line[9:-1].split(b"\t")
    values = json.loads(head)
    del values["after"], values["key"]
    body = b"\t".join([json.dumps(values).encode(), *facts])
    return b"%08x %s\n" % (google_crc32c.value(body), body)


LOSSES = {
    "the first": ([1, 2, 3, 4], "line 1 was not the first line"),
    "the second": ([0, 2, 3, 4], "line 2 does not follow line 1"),
    "the first three": ([3, 4], "line 1 was not the first line"),
    "swapped": ([0, 2, 1, 3, 4], "line 2 does not follow line 1"),
    "repeated": ([0, 1, 1, 2, 3, 4], "line 3 does not follow line 2"),
    "an old one at the end": ([0, 1, 2, 3, 4, 0], "line 6 does not follow line 5"),
    "the last": ([0, 1, 2, 3], r"its last lines are missing: .* line 4 with change 4 of 5\."),
    "the last three": ([0, 1], r"its last lines are missing: .* line 2 with change 2 of 5\."),
    "all": ([], r"its last lines are missing: .* line 0 with change 0 of 5\."),
}


@pytest.mark.parametrize("name", LOSSES)
def test_lines__that_were_lost_swapped_or_repeated_are_an_error(path, name):
    order, words = LOSSES[name]
    reader = Ledger.open(path)
    lines = _lines(path)
    _set_lines(path, [lines[k] for k in order])
    with pytest.raises(cs.StoreError, match=rf"index\.log: {words}") as caught:
        Ledger.open(path)
    assert f"or keep the lines that are left by `calibscale ledger repair {path}`" in str(
        caught.value
    )
    with pytest.raises(cs.StoreError, match=words), reader.writing():
        pass


@pytest.mark.parametrize("name", LOSSES)
def test_repair__keeps_the_lines_that_are_left(path, name):
    order, _ = LOSSES[name]
    lines = _lines(path)
    _set_lines(path, [lines[k] for k in order])
    assert Ledger.repair(path) == []
    ledger = Ledger.open(path)
    remaining = sorted({*order})
    assert ledger.days() == [DAYS[k] for k in remaining]
    assert ledger.revision == 5  # the revisions of lost lines are not used again
    for k in remaining:
        np.testing.assert_array_equal(ledger.read(ledger.day(DAYS[k], "v1")[0]), k)
    with ledger.writing():
        for k, day in enumerate(DAYS):
            if k not in remaining:
                _write(ledger, day, k)
    ledger = Ledger.open(path)
    assert ledger.days() == DAYS
    assert ledger.check() == []


def test_line_end__that_is_damaged_is_a_lost_line(path):
    lines = _lines(path)
    _set_lines(path, [lines[0][:-1] + b"\x0b", *lines[1:]])
    with pytest.raises(cs.StoreError, match="line 2 does not follow line 1"):
        Ledger.open(path)
    (message,) = Ledger.repair(path)
    assert "line 1, the record of 2026-01-01 (v1), is damaged" in message
    assert Ledger.open(path).days() == DAYS[2:]


@pytest.mark.long
@pytest.mark.parametrize("number", range(5))
def test_damaged_line__is_named_and_other_days_can_be_used(path, number):
    """Also after a new line, and after the log was rewritten."""
    lines = _lines(path)
    for at in (0, 7, 9, 40, len(lines[number]) - 3):
        changed = bytearray(lines[number])
        changed[at] ^= 1
        _set_lines(path, [*lines[:number], bytes(changed), *lines[number + 1 :]])
        (message,) = Ledger.open(path).check()
        assert f"index.log: line {number + 1}" in message
    ledger = Ledger.open(path)
    with ledger.writing():
        for _ in range(80):
            _write(ledger, "2026-01-06", 7)
    with ledger.writing():  # the log is rewritten
        assert len(_lines(path)) == 6
        _write(ledger, "2026-01-07", 8)
    ledger = Ledger.open(path)
    assert len(ledger.check()) == 1
    assert ledger.days() == [*DAYS[:number], *DAYS[number + 1 :], "2026-01-06", "2026-01-07"]


def test_damaged_date__does_not_name_another_day(path):
    """A changed digit makes it the date of a day before or after it, or of no day."""
    lines = _lines(path)
    begin = lines[2].index(DAYS[2].encode())
    for at in range(begin, begin + len(DAYS[2])):
        for bit in range(8):
            changed = bytearray(lines[2])
            changed[at] ^= 1 << bit
            _set_lines(path, [*lines[:2], bytes(changed), *lines[3:]])
            if bytes(changed).count(b"\n") > 1:
                continue  # it is two lines
            ledger = Ledger.open(path)
            assert ledger.days() == [*DAYS[:2], *DAYS[3:]]
            (message,) = ledger.check()
            assert "index.log: line 3, the record of an unknown day, is damaged: " in message
            assert f"`calibscale ledger repair {path}`" in message
    changed = lines[2].replace(DAYS[2].encode(), DAYS[1].encode())
    _set_lines(path, [*lines[:2], changed, *lines[3:]])
    ledger = Ledger.open(path)
    with ledger.writing():
        _write(ledger, DAYS[1], 7)
    # A day that is run again is not the one that is damaged.
    assert len(Ledger.open(path).check()) == 1


def test_any_byte__of_the_index_or_a_record_is_noticed(path):
    """One bit of each byte of the index, and of each tenth byte of a record."""
    record = next((path / "states" / "c").glob("*/0"))
    for file, step in ((path / "index.log", 1), (record, 10)):
        stored = file.read_bytes()
        for at in range(0, len(stored), step):
            changed = bytearray(stored)
            changed[at] ^= 1 << at % 8
            file.write_bytes(bytes(changed))
            try:
                damaged = Ledger.open(path).check()
            except cs.StoreError as error:
                damaged = [str(error)]
            assert damaged, (file, at)
            assert str(path) in damaged[0]
        file.write_bytes(stored)
    assert Ledger.open(path).check() == []


def test_list_command__names_days_that_cannot_be_read(path, run):
    lines = _lines(path)
    _set_lines(path, [*lines[:2], lines[2].replace(b'"turn": 2', b'"turn": 3'), *lines[3:]])
    ran = run("ledger", "list", path)
    assert f"line 3, the record of {DAYS[2]} (v1), is damaged" in ran.err


@pytest.mark.parametrize("name", ["alarms.json", "broken.json"])
def test_check_command__verifies_alarms_and_broken_days(path, run, name):
    ledger = Ledger.open(path)
    with ledger.writing():
        book = AlarmBook(ledger)
        book.start("v1", DAYS[0])
        book.save()
        BrokenDays(path).add("v1", "2026-01-07", "no file")
    assert run("ledger", "check", path).code == 0
    file = path / name
    stored = file.read_bytes()
    file.write_bytes(stored.replace(b"2026-01-0", b"2026-02-0"))
    ran = run("ledger", "check", path)
    assert ran.code == 1
    assert name in ran.err
    assert "1 damaged" in ran.out


def test_broken_days__of_an_earlier_version_are_read(path):
    """Files of earlier versions have no checksum, and a model may be called like one."""
    reasons = {"checksum": {"2026-01-07": "no file"}}
    (path / "broken.json").write_text(json.dumps(reasons))
    broken = BrokenDays(path)
    assert broken.of("checksum") == reasons["checksum"]
    broken.add("v1", "2026-01-08", "no rows")
    again = BrokenDays(path)
    assert again.of("checksum") == reasons["checksum"]
    assert again.of("v1") == {"2026-01-08": "no rows"}


def test_empty_line__is_damage_and_not_a_loss(path):
    lines = _lines(path)
    _set_lines(path, [*lines[:2], b"\n", *lines[2:]])
    (message,) = Ledger.open(path).check()
    assert "index.log: line 3, the record of an unknown day, is damaged" in message
    assert Ledger.open(path).days() == DAYS


def test_log__of_an_earlier_version_gets_its_chain_from_the_next_write_on(path):
    _set_lines(path, map(_without_link, _lines(path)))
    (path / "index.last").unlink()
    ledger = Ledger.open(path)
    assert ledger.days() == DAYS
    with ledger.writing():
        _write(ledger, "2026-01-06", 6)
        _write(ledger, "2026-01-07", 7)
    assert Ledger.open(path).check() == []
    lines = _lines(path)
    for lost in (4, 5, 6):  # the line before the new ones, and the new ones
        _set_lines(path, [*lines[:lost], *lines[lost + 1 :]])
        with pytest.raises(cs.StoreError, match=r"index\.log: "):
            Ledger.open(path)


def test_kill__between_the_log_and_the_number_of_its_last_line_is_no_damage(path):
    write_last(path, 4)
    ledger = Ledger.open(path)
    assert (ledger.days(), ledger.revision) == (DAYS, 5)


@pytest.mark.parametrize("text", [b"", b"5", b"00000000 9\n", b"\xff" * 9])
def test_number_of_the_last_line__is_ignored_if_it_is_damaged(path, text):
    (path / "index.last").write_bytes(text)
    ledger = Ledger.open(path)
    assert ledger.days() == DAYS
    with ledger.writing():
        _write(ledger, "2026-01-06", 6)
    _set_lines(path, _lines(path)[:-1])
    with pytest.raises(cs.StoreError, match="last lines are missing"):
        Ledger.open(path)


def test_write__succeeds_if_the_number_of_the_last_line_cannot_be_written(path):
    (path / "index.last").unlink()
    (path / "index.last").mkdir()
    (path / "index.last" / "file").touch()
    ledger = Ledger.open(path)
    with ledger.writing():
        _write(ledger, "2026-01-06", 6)
    assert Ledger.open(path).days() == [*DAYS, "2026-01-06"]


def test_repair__keeps_the_latest_of_swapped_lines_of_a_day(path):
    ledger = Ledger.open(path)
    with ledger.writing():
        _write(ledger, DAYS[0], 8)
        _write(ledger, DAYS[0], 9)
    lines = _lines(path)
    _set_lines(path, [*lines[:5], lines[6], lines[5]])
    Ledger.repair(path)
    assert Ledger.open(path).day(DAYS[0], "v1")[0].n == 9


@pytest.mark.long
def test_repair_command__names_what_is_damaged_and_what_is_left(path, run):
    lines = _lines(path)
    changed = lines[1].replace(b"2026-01-02", b"2026-01-03")
    _set_lines(path, [lines[0], changed, *lines[3:]])
    assert "line 3 does not follow line 2" in run("ledger", "check", path).err
    ran = run("ledger", "repair", path)
    assert ran.code == 0
    assert "line 2, the record of an unknown day, is damaged" in ran.err
    assert "3 days left, from 2026-01-01 to 2026-01-05; run the missing days again" in ran.out
    assert run("ledger", "check", path).code == 0
    ran = run("ledger", "repair", path.parent)
    assert (ran.code, "there is no ledger" in ran.err) == (1, True)
    with Ledger.open(path).writing():
        assert "another writer" in run("ledger", "repair", path).err


# ---------------------------------------------------------------- other files of a ledger


def test_recipe__with_a_changed_digit_is_an_error(path):
    meta = path / "zarr.json"
    text = meta.read_text()
    recipe = Ledger.open(path).recipe
    changed = text.replace('"seed": 5', '"seed": 4')
    assert changed != text
    meta.write_text(changed)
    with pytest.raises(cs.StoreError, match=r"recipe of the ledger in zarr\.json is damaged"):
        Ledger.open(path)
    written = json.loads(text)
    del written["attributes"][KEY]["checksum"]  # as ledgers of earlier versions
    meta.write_text(json.dumps(written))
    assert Ledger.open(path).recipe == recipe
    assert Ledger.open(path).notes == {}


def test_alarms__with_a_changed_digit_are_an_error(path):
    ledger = Ledger.open(path)
    book = AlarmBook(ledger)
    book.start("v1", "2026-01-01")
    with ledger.writing():
        book.save()
    file = path / "alarms.json"
    text = file.read_text()
    assert AlarmBook(ledger).start("v1", "2026-01-09") == "2026-01-01"
    file.write_text(text.replace("2026-01-01", "2026-01-02"))
    with pytest.raises(cs.StoreError, match=r"alarms\.json: .* its checksum does not match"):
        AlarmBook(ledger)
    earlier = json.loads(text)
    del earlier["checksum"]
    file.write_text(json.dumps(earlier))
    assert AlarmBook(ledger).start("v1", "2026-01-09") == "2026-01-01"
