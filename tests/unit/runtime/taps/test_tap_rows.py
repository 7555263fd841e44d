"""A tap's rows: numbering, visibility and removal on commit."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.taps.messages import decode_rows, join_rows, split_rows
from millrace.runtime.taps.rows import READER_SECONDS, TapRows

ALL = 2**62


def read(rows: TapRows, start: int, stop: int, most: int, most_bytes: int = ALL) -> tuple[int, list[Any]]:
    begin, batch = rows.read(start, stop, most, most_bytes)
    return begin, decode_rows(join_rows(batch))


def kept(count: int) -> TapRows:
    rows = TapRows("a")
    for number in range(count):
        rows.add_readable((number,), f"origin {number}")
    return rows


def test_rows_are_numbered_from_nought() -> None:
    assert read(kept(3), 0, ALL, 10) == (0, [(0,), (1,), (2,)])


def test_no_more_than_asked_for_at_once() -> None:
    rows = kept(5)
    assert read(rows, 1, 4, 10) == (1, [(1,), (2,), (3,)])
    assert read(rows, 1, ALL, 2) == (1, [(1,), (2,)])
    assert read(rows, 5, ALL, 2) == (5, [])
    assert read(rows, 3, 2, 2) == (3, [])


def test_what_is_committed_is_gone_and_comes_back_to_be_acked() -> None:
    rows = kept(4)
    rows.commit(2)
    assert (rows.first, rows.end, rows.unread) == (2, 4, 2)
    assert rows.take_done() == ["origin 0", "origin 1"]
    assert rows.take_done() == []
    assert read(rows, 0, ALL, 10) == (2, [(2,), (3,)]), "what is left of the range"


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
    assert read(rows, 0, ALL, 10) == (0, [])
    rows.commit_wave(1)
    rows.commit_wave(1)
    assert read(rows, 0, ALL, 10) == (0, [("before",)])


def test_an_abandoned_wave_is_covered_by_the_next() -> None:
    rows = TapRows()
    for wave in (1, 2, 3):
        rows.add((wave,))
        rows.mark(wave)
    rows.commit_wave(2)
    assert read(rows, 0, ALL, 10) == (0, [(1,), (2,)])
    rows.commit_wave(3)
    assert rows.unread == 3


def test_numbering_continues_after_a_restore() -> None:
    rows = TapRows()
    for number in range(4):
        rows.add((number,))
    rows.mark(1)
    rows.commit_wave(1)
    rows.commit(3)
    again = TapRows(rows.name, rows.first, rows.all())
    assert read(again, 0, ALL, 10) == (3, []), "not before it is said that the wave is committed"
    again.show()
    again.add((4,))
    assert (again.name, again.end) == (rows.name, 5)
    assert read(again, 0, ALL, 10) == (3, [(3,)])


def test_no_more_bytes_than_asked_for_but_always_a_row() -> None:
    rows = TapRows()
    for size in (10, 10, 1000, 10):
        rows.add_readable((b"x" * size,), None)
    assert [len(row) for (row,) in read(rows, 0, ALL, 10, 100)[1]] == [10, 10]
    assert [len(row) for (row,) in read(rows, 2, ALL, 10, 100)[1]] == [1000]
    assert [len(row) for (row,) in read(rows, 3, ALL, 10, 100)[1]] == [10]


def test_bytes_count_from_when_they_can_be_read_until_they_are_committed() -> None:
    rows = TapRows()
    rows.add((b"x" * 100,))
    rows.mark(1)
    rows.add((b"x" * 1000,))
    assert rows.unread_bytes == 0
    rows.commit_wave(1)
    assert 100 < rows.unread_bytes < 120
    rows.show()
    assert 1100 < rows.unread_bytes < 1120
    again = TapRows(rows.name, rows.first, split_rows(join_rows(rows.all())))
    again.show()
    assert again.unread_bytes == rows.unread_bytes
    rows.commit(1)
    assert 1000 < rows.unread_bytes < 1010
    rows.commit(2)
    assert rows.unread_bytes == 0


def test_the_reader_that_began_last_has_the_rows() -> None:
    rows = TapRows()
    assert rows.claim("a", 0.0) is None
    assert rows.claim("b", 3.0) is None
    assert rows.claim("a", 4.0) == 1.0
    rows.hear("a", 5.0)
    rows.hear("b", 5.0)
    assert rows.claim("a", 7.0) == 2.0, "who has them is heard from while it reads"
    assert rows.claim("a", 5.0 + READER_SECONDS) is None, "its clock may be behind that of one that is gone"


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
            start, batch = read(rows, number, ALL, 5)
            assert batch == [(each,) for each in range(start, min(start + 5, added))][: len(batch)]
            assert len(batch) == max(0, min(5, added - start))
    assert acked == list(range(rows.first))
    assert rows.end == added
