"""Reliable spouts on their own, with a task handle that records their calls."""

from __future__ import annotations

import pytest
from diary import running

from millrace.api.spout import ReliableSpout, ReplayableSpout


def test_a_reliable_spout_needs_an_id() -> None:
    spout = ReliableSpout()
    diary = running(spout)
    with pytest.raises(ValueError, match=r"reliable.*tup_id.*\['a'\]"):
        spout.emit(["a"])
    with pytest.raises(ValueError, match="emit_arrow needs a tup_id"):
        spout.emit_arrow(object())
    assert diary.take() == [] and spout.unacked_tuples == {}


def test_a_failed_tuple_is_sent_max_fails_times_more_and_then_dropped() -> None:
    spout = ReliableSpout()
    diary = running(spout)
    sent = ("emit", ["a"], 1, "s", None, 4)
    spout.emit(["a"], tup_id=1, stream="s", direct_task=4)
    for _ in range(3):
        spout.fail(1)
    assert diary.take() == [sent] * 4
    assert (spout.failed_tuples[1], list(spout.unacked_tuples)) == (3, [1])
    spout.fail(1)
    assert diary.take() == []
    assert not spout.failed_tuples and not spout.unacked_tuples
    spout.fail(1)
    spout.ack(1)  # unknown by now: noted in the log, not raised
    assert diary.take() == []


@pytest.mark.parametrize("cause", ["timeout", "lost"])
def test_only_errors_count_towards_max_fails(cause: str) -> None:
    spout = ReliableSpout()
    diary = running(spout)
    spout.emit(["a"], tup_id=1)
    spout.fail_cause = cause
    for _ in range(10):
        spout.fail(1)
    assert len(diary.take()) == 11
    spout.fail_cause = "error"
    for _ in range(3):
        spout.fail(1)
    assert 1 in spout.unacked_tuples  # three errors, as if the ten had not been
    spout.fail(1)
    assert 1 not in spout.unacked_tuples


def test_max_fails_can_be_set() -> None:
    class Once(ReliableSpout):
        max_fails = 0

    spout = Once()
    diary = running(spout)
    spout.emit(["a"], tup_id=1)
    spout.fail(1)
    assert len(diary.take()) == 1 and not spout.unacked_tuples


def test_an_ack_clears_the_failures() -> None:
    spout = ReliableSpout()
    running(spout)
    spout.emit(["a"], tup_id=1)
    spout.fail(1)
    spout.ack(1)
    assert not spout.unacked_tuples and not spout.failed_tuples


def test_a_failed_batch_is_sent_as_a_batch() -> None:
    spout = ReliableSpout()
    diary = running(spout)
    spout.emit_arrow("batch", tup_id=1, stream="s", direct_task=2)
    # A str stands in for a record batch: what is neither list nor tuple is one.
    spout.fail(1)
    assert diary.take() == [("emit_arrow", "batch", 1, "s", None, 2)] * 2


def test_without_tracking_nothing_is_kept() -> None:
    spout = ReliableSpout()
    running(spout)
    spout.tracked = False
    spout.emit(["a"], tup_id=1)
    spout.emit_arrow("batch", tup_id=2)
    assert not spout.unacked_tuples


def test_the_position_is_the_lowest_that_is_not_done() -> None:
    spout = ReplayableSpout()
    running(spout)
    assert spout.position() == 0
    for position in (4, 5, 6):
        spout.emit([position], tup_id=position)
    assert spout.position() == 4
    spout.ack(5)
    assert spout.position() == 4
    spout.ack(4)
    assert spout.position() == 6
    spout.fail(6)  # sent again: still not done
    assert spout.position() == 6
    spout.ack(6)
    assert spout.position() == 7


def test_the_position_without_tracking_is_that_of_the_next_tuple() -> None:
    spout = ReplayableSpout()
    running(spout)
    spout.tracked = False
    spout.emit(["a"], tup_id=8)
    spout.emit_arrow("batch", tup_id=9)
    assert spout.position() == 10


class OwnFail(ReliableSpout):
    """Emits a failed tuple again by itself, and then another one with the same id."""

    def fail(self, tup_id: int) -> None:
        self.emit(["again"], tup_id=tup_id)
        self.emit(["beside"], tup_id=tup_id)


def test_an_emit_of_the_failed_id_is_its_replay_and_the_next_one_is_not() -> None:
    spout = OwnFail()
    diary = running(spout)
    spout.emit(["a"], tup_id=1)
    spout._notify_of_failure(1)
    *sent, (_, values, repeat, *_) = diary.take()
    assert [(values, key) for _, values, key, *_ in sent] == [(["a"], 1), (["again"], 1)]
    assert values == ["beside"] and repeat.tup_id == 1
    assert spout.unacked_tuples[1][0] == ["again"] and list(spout._repeats) == [repeat]
    spout.ack(1)
    spout._notify_of_failure(repeat)  # the first one is gone
    (_, values, again, *_), (_, _, third, *_) = diary.take()
    assert (values, again) == (["again"], repeat) and third.tup_id == 1 and third is not repeat
    assert spout.unacked_tuples == {} and set(spout._repeats) == {repeat, third}


@pytest.mark.parametrize("emit", ["emit", "emit_arrow"])
def test_a_position_that_could_not_be_emitted_can_be_emitted_again(emit: str) -> None:
    """The true error is raised each time, and not one about its position."""
    spout = ReplayableSpout()
    diary = running(spout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diary, emit, refuse)
        for _ in range(2):
            with pytest.raises(TypeError, match="cannot be encoded"):
                getattr(spout, emit)(["a"], tup_id=3)
    assert spout.position() == 0
    getattr(spout, emit)(["a"], tup_id=3)
    assert spout.position() == 3


def refuse(*arguments: object) -> None:
    raise TypeError("cannot be encoded")


def test_a_dropped_tuple_does_not_hold_the_position() -> None:
    spout = ReplayableSpout()
    running(spout)
    spout.emit(["a"], tup_id=0)
    for _ in range(4):
        spout.fail(0)
    assert spout.position() == 1
