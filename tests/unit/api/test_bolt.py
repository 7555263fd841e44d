"""Batching bolts on their own, with a task handle that records their calls."""

from __future__ import annotations

from typing import Any

from diary import TICK, running, word

from millrace.api.bolt import BatchingBolt, TicklessBatchingBolt
from millrace.api.tuple import Tuple


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
    assert diary.take() == []  # the count has restarted


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
    assert diary.take() == []  # nothing is kept for later


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
