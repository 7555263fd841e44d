"""A tap reader's positions and the ranges that it reads."""

from __future__ import annotations

from millrace.runtime.taps.messages import Seen
from millrace.runtime.taps.reader import TapAddress, TapRange, first_offset, last_offset, ranges_between, taken_by_another
from millrace.runtime.wire.transport import Keys


def at(**tasks: tuple[str, int]) -> dict[str, dict[str, object]]:
    return {task.removeprefix("t"): {"tap": name, "next": number} for task, (name, number) in tasks.items()}


def test_a_new_reader_begins_with_what_is_kept() -> None:
    assert first_offset({1: ("b", Seen(0, 0)), 0: ("a", Seen(7, 9))}) == at(t0=("a", 7), t1=("b", 0))


def test_to_the_end_of_what_can_be_read() -> None:
    assert last_offset(at(t0=("a", 7)), {0: ("a", Seen(7, 9))}) == at(t0=("a", 9))


def test_a_task_that_does_not_answer_stays_where_it_is() -> None:
    start = at(t0=("a", 7), t1=("b", 3))
    assert last_offset(start, {1: ("b", Seen(3, 4))}) == at(t0=("a", 7), t1=("b", 4))
    assert last_offset(start, {}) == start


def test_a_task_that_began_anew_and_has_nothing_makes_no_batch() -> None:
    start = at(t0=("a", 7))
    assert last_offset(start, {0: ("b", Seen(0, 0))}) == start
    assert last_offset(start, {0: ("b", Seen(0, 2))}) == at(t0=("b", 2))


def test_never_backwards() -> None:
    assert last_offset(at(t0=("a", 7)), {0: ("a", Seen(2, 5))}) == at(t0=("a", 7))


def test_a_task_that_comes_later() -> None:
    assert last_offset({}, {0: ("a", Seen(0, 2))}) == at(t0=("a", 2))
    assert ranges_between({}, at(t0=("a", 2))) == [TapRange(0, "a", 0, 2)]


def test_one_range_for_each_task_that_has_something_new() -> None:
    assert ranges_between(at(t0=("a", 7), t1=("b", 3), t2=("c", 5)), at(t0=("a", 9), t1=("b", 3), t2=("d", 4))) == [
        TapRange(0, "a", 7, 9), TapRange(2, "d", 0, 4)]


def test_rows_that_another_reader_took() -> None:
    wanted = [TapRange(0, "a", 7, 9), TapRange(1, "b", 0, 4)]
    assert taken_by_another(wanted, {0: ("a", Seen(7, 9)), 1: ("b", Seen(0, 4))}) == ""
    assert taken_by_another(wanted, {0: ("a", Seen(3, 9)), 1: ("c", Seen(2, 4))}) == "", "kept longer; of another incarnation"
    assert taken_by_another(wanted, {}) == ""
    assert taken_by_another(wanted, {1: ("b", Seen(3, 4))}) == "rows 0 to 2 of task 1"


def test_no_key_is_shown() -> None:
    keys = Keys.make()
    shown = repr(TapAddress("tcp://127.0.0.1:1", keys, "t", "out", False))
    assert keys.secret.decode() not in shown and keys.public.decode() not in shown
