"""Spouts and bolts by themselves, with a task handle that writes down what they do."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from millrace.api.component import (
    SYSTEM_COMPONENT,
    TICK_STREAM,
    BatchingBolt,
    Bolt,
    Component,
    ReliableSpout,
    ReplayableSpout,
    Spout,
    TicklessBatchingBolt,
    Tuple,
)
from millrace.errors import NotRunning

TICK = Tuple.of("tick", SYSTEM_COMPONENT, TICK_STREAM, -1, (1,))


class Diary:
    """A task handle: every call becomes an entry."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def emit(self, values: Any, tup_id: Any, stream: Any, anchors: Any, direct_task: Any, need_task_ids: bool) -> None:
        named = list(anchors) if isinstance(anchors, tuple) else anchors
        self.entries.append(("emit", values, tup_id, stream, named, direct_task))

    def emit_arrow(self, batch: Any, tup_id: Any, stream: Any, anchors: Any, direct_task: Any) -> None:
        self.entries.append(("emit_arrow", batch, tup_id, stream, anchors, direct_task))

    def ack(self, tup: Any) -> None:
        self.entries.append(("ack", tup))

    def fail(self, tup: Any) -> None:
        self.entries.append(("fail", tup))

    def report_metric(self, name: str, value: Any) -> None:
        self.entries.append(("metric", name, value))

    def report_error(self, error: BaseException, tup: Any) -> None:
        self.entries.append(("error", str(error), tup))

    def take(self) -> list[tuple[Any, ...]]:
        entries, self.entries = self.entries, []
        return entries


def running(component: Component) -> Diary:
    """Attach the component to a diary, as the engine would to a task."""
    component._handle = diary = Diary()
    component.tracked = True
    return diary


@functools.cache
def word(text: str) -> Tuple:
    return Tuple.of(text, "split", "default", 7, (text,))


# ---- tuples and common members ----


def test_a_tuple_reads_like_streamparses() -> None:
    tup = Tuple.of("root", "split", "default", 7, ("a", 1))
    assert (tup.component, tup.stream, tup.task, tup.values) == ("split", "default", 7, ("a", 1))
    assert list(tup) == [tup.id, "split", "default", 7, ("a", 1)]
    assert (tup[1], tup[4], len(tup)) == ("split", ("a", 1), 5)


def test_ticks_and_heartbeats_are_told_apart() -> None:
    heartbeat = Tuple.of("h", "x", "__heartbeat", -1, ())
    assert Bolt.is_tick(TICK) and not Bolt.is_tick(word("a")) and not Bolt.is_tick(heartbeat)
    assert Component.is_heartbeat(heartbeat) and not Component.is_heartbeat(TICK)


@pytest.mark.parametrize("call", [lambda: Bolt().emit(["a"]), lambda: Bolt().ack("x"), lambda: Spout().emit(["a"]),
                                  lambda: Bolt().report_metric("m", 1), lambda: Spout().emit_arrow(None)])
def test_outside_a_task_a_component_says_so(call: Any) -> None:
    with pytest.raises(NotRunning, match=r"outside a running task.*in a topology"):
        call()


def test_what_must_be_defined_says_so() -> None:
    for call, method in ((Spout().next_tuple, "next_tuple"), (lambda: Bolt().process(TICK), "process"),
                         (lambda: BatchingBolt().process_batch(None, []), "process_batch"),
                         (lambda: ReplayableSpout().seek(1), "seek")):
        with pytest.raises(NotImplementedError, match=f"must define {method}"):
            call()


def test_log_levels(caplog: pytest.LogCaptureFixture) -> None:
    Bolt().log("careful", "warn")
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", "careful")]
    with pytest.raises(ValueError, match="'loud' is not one of trace, debug"):
        Bolt().log("x", "loud")


def test_emit_passes_everything_on() -> None:
    bolt, spout = Bolt(), Spout()
    diary = running(bolt)
    bolt.emit(["a"], stream="s", anchors=[TICK], direct_task=3)
    bolt.emit_arrow("batch", stream="s")
    bolt.report_metric("m", 1)
    bolt.raise_exception(ValueError("odd"), TICK)
    assert diary.take() == [("emit", ["a"], None, "s", [TICK], 3), ("emit_arrow", "batch", None, "s", None, None),
                            ("metric", "m", 1), ("error", "odd", TICK)]
    diary = running(spout)
    spout.emit(("a",), tup_id=5, stream="s", direct_task=3)
    assert diary.take() == [("emit", ("a",), 5, "s", None, 3)]


# ---- batching bolts ----


class Joined(BatchingBolt):
    """Emits each batch as one tuple; a batch of the group "bad" raises."""

    def group_key(self, tup: Tuple) -> str:
        return str(tup.values[0])[:3]

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        if key == "bad":
            raise ValueError("bad batch")
        self.emit([key, len(tups)])


def test_a_batch_runs_when_the_ticks_exceed_the_number_set() -> None:
    bolt = Joined()
    diary = running(bolt)
    tups = [word("one1"), word("one2"), word("two")]
    for tup in tups:
        bolt.process(tup)
    bolt.process_tick(TICK)
    assert diary.take() == []  # with ticks_between_batches = 1 the second tick runs the batches
    bolt.process_tick(TICK)
    assert diary.take() == [("emit", ["one", 2], None, None, tups[:2], None), ("ack", tups[0]), ("ack", tups[1]),
                            ("emit", ["two", 1], None, None, tups[2:], None), ("ack", tups[2])]
    bolt.process(tups[0])
    bolt.process_tick(TICK)
    assert diary.take() == []  # the count began anew


def test_ticks_are_counted_while_there_is_nothing_to_process() -> None:
    bolt = Joined()
    diary = running(bolt)
    for _ in range(5):
        bolt.process_tick(TICK)
    bolt.process(word("one"))
    bolt.process_tick(TICK)
    assert [entry[0] for entry in diary.take()] == ["emit", "ack"]


def test_ticks_between_batches_can_be_set() -> None:
    class Rare(Joined):
        ticks_between_batches = 3

    bolt = Rare()
    diary = running(bolt)
    bolt.process(word("one"))
    for _ in range(3):
        bolt.process_tick(TICK)
    assert diary.take() == []
    bolt.process_tick(TICK)
    assert len(diary.take()) == 2


def test_a_batch_that_raises_is_failed_and_the_others_still_run() -> None:
    bolt = Joined()
    diary = running(bolt)
    bad, good = [word("bad1"), word("bad2")], word("good")
    for tup in (*bad, good):
        bolt.process(tup)
    bolt.process_batches()
    assert diary.take() == [("error", "bad batch", bad[0]), ("fail", bad[0]), ("fail", bad[1]),
                            ("emit", ["goo", 1], None, None, [good], None), ("ack", good)]
    bolt.process_batches()
    assert diary.take() == []  # nothing is kept for another time


def test_the_switches_of_a_batching_bolt() -> None:
    class Quiet(Joined):
        auto_anchor = auto_ack = auto_fail = False

    bolt = Quiet()
    diary = running(bolt)
    bolt.process(word("bad"))
    bolt.process(word("one"))
    bolt.process_batches()
    assert [entry[0] for entry in diary.entries] == ["error", "emit"]
    assert diary.take()[1][4] is None


def test_anchors_that_are_given_win_over_the_batch() -> None:
    class Choosy(BatchingBolt):
        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            self.emit(["x"], anchors=tups[:1])

    bolt = Choosy()
    diary = running(bolt)
    bolt.process(word("a"))
    bolt.process(word("b"))
    bolt.process_batches()
    assert diary.take()[0] == ("emit", ["x"], None, None, [word("a")], None)


def test_a_tickless_bolt_batches_by_timer_and_ignores_ticks() -> None:
    class Timed(TicklessBatchingBolt):
        secs_between_batches = 0.5

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            self.emit([len(tups)])

    bolt = Timed()
    diary = running(bolt)
    bolt.process(word("a"))
    for _ in range(9):
        bolt.process_tick(TICK)
    assert diary.take() == []
    assert bolt._timer_seconds() == 0.5
    bolt._on_timer()
    assert [entry[0] for entry in diary.take()] == ["emit", "ack"]
    assert Joined()._timer_seconds() is None
    assert TicklessBatchingBolt.secs_between_batches == 2


# ---- spouts that send again ----


def test_a_reliable_spout_needs_an_id() -> None:
    spout = ReliableSpout()
    diary = running(spout)
    with pytest.raises(ValueError, match=r"reliable.*tup_id.*\['a'\]"):
        spout.emit(["a"])
    with pytest.raises(ValueError, match="emit_arrow needs a tup_id"):
        spout.emit_arrow(object())
    assert diary.take() == [] and spout.unacked_tuples == {}


def test_a_failed_tuple_is_sent_max_fails_times_more_and_then_given_up() -> None:
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


def test_a_tuple_that_is_given_up_does_not_hold_the_position() -> None:
    spout = ReplayableSpout()
    running(spout)
    spout.emit(["a"], tup_id=0)
    for _ in range(4):
        spout.fail(0)
    assert spout.position() == 1
