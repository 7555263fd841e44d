"""Rows that a tap keeps: their numbers, what can be read of them, and what goes when it is committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.tap_rows import TapRows

ALL = 2**62


def kept(count: int) -> TapRows:
    rows = TapRows("a")
    for number in range(count):
        rows.add_readable((number,), f"origin {number}")
    return rows


def test_rows_are_numbered_from_nought() -> None:
    assert kept(3).read(0, ALL, 10) == (0, [(0,), (1,), (2,)])


def test_no_more_than_asked_for_at_once() -> None:
    rows = kept(5)
    assert rows.read(1, 4, 10) == (1, [(1,), (2,), (3,)])
    assert rows.read(1, ALL, 2) == (1, [(1,), (2,)])
    assert rows.read(5, ALL, 2) == (5, [])
    assert rows.read(3, 2, 2) == (3, [])


def test_what_is_committed_is_gone_and_comes_back_to_be_acked() -> None:
    rows = kept(4)
    rows.commit(2)
    assert (rows.first, rows.end, rows.unread) == (2, 4, 2)
    assert rows.take_done() == ["origin 0", "origin 1"]
    assert rows.take_done() == []
    assert rows.read(0, ALL, 10) == (2, [(2,), (3,)]), "what is left of the range"


def test_a_commit_that_comes_twice_or_late_changes_nothing() -> None:
    rows = kept(4)
    rows.commit(3)
    rows.commit(3)
    rows.commit(1)
    assert (rows.first, rows.take_done()) == (3, ["origin 0", "origin 1", "origin 2"])


def test_no_commit_beyond_what_can_be_read() -> None:
    rows = kept(2)
    rows.add((2,))
    rows.commit(ALL)
    assert (rows.first, rows.end) == (2, 3)


def test_rows_of_a_wave_can_be_read_when_it_is_committed() -> None:
    rows = TapRows()
    rows.add(("before",))
    rows.mark(1)
    rows.add(("after",))
    assert rows.read(0, ALL, 10) == (0, [])
    rows.commit_wave(1)
    rows.commit_wave(1)
    assert rows.read(0, ALL, 10) == (0, [("before",)])


def test_a_wave_that_was_given_up_is_covered_by_the_next() -> None:
    rows = TapRows()
    for wave in (1, 2, 3):
        rows.add((wave,))
        rows.mark(wave)
    rows.commit_wave(2)
    assert rows.read(0, ALL, 10) == (0, [(1,), (2,)])
    rows.commit_wave(3)
    assert rows.unread == 3


def test_numbers_go_on_after_a_restore() -> None:
    rows = TapRows()
    for number in range(4):
        rows.add((number,))
    rows.mark(1)
    rows.commit_wave(1)
    rows.commit(3)
    again = TapRows(rows.name, rows.first, rows.all())
    assert again.read(0, ALL, 10) == (3, []), "not before it is said that the wave is committed"
    again.show()
    again.add((4,))
    assert (again.name, again.end) == (rows.name, 5)
    assert again.read(0, ALL, 10) == (3, [(3,)])


def test_no_two_begin_with_the_same_name() -> None:
    assert TapRows().name != TapRows().name


@given(st.lists(st.tuples(st.sampled_from(["add", "commit", "read"]), st.integers(0, 30))))
def test_every_row_is_read_under_its_number_and_acked_once(steps: list[tuple[str, int]]) -> None:
    rows, acked, added = TapRows(), [], 0
    for step, number in steps:
        if step == "add":
            rows.add_readable((added,), added)
            added += 1
        elif step == "commit":
            rows.commit(number)
            acked += rows.take_done()
        else:
            start, found = rows.read(number, ALL, 5)
            assert found == [(each,) for each in range(start, min(start + 5, added))][: len(found)]
            assert len(found) == max(0, min(5, added - start))
    assert acked == list(range(rows.first))
    assert rows.end == added
