from __future__ import annotations

import math

import pyarrow as pa
import pytest
from recording import attach, drain

from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout
from millrace.errors import TopologyError


class Numbers(GeneratorSpout):
    outputs = ["number"]

    def generate(self, position: int) -> list[int]:
        return [self.ordinal(position)]


class NumbersArrow(ArrowGeneratorSpout):
    outputs = ["number"]

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(first, first + count))], names=["number"])


class FakeClock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def positions(recorder) -> list[int]:
    return [emitted.tup_id for emitted in recorder.take()]


def test_as_fast_as_possible_emits_a_burst_for_each_call():
    spout, recorder = attach(Numbers, {"burst": 3})
    spout.next_tuple()
    assert positions(recorder) == [0, 1, 2]
    spout.next_tuple()
    assert positions(recorder) == [3, 4, 5]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_limit_is_shared_so_that_every_number_comes_once(parallelism):
    seen = []
    for index in range(parallelism):
        spout, recorder = attach(Numbers, {"limit": 20, "burst": 4}, index, parallelism)
        seen += [emitted.values[0] for emitted in drain(spout, recorder)]
        assert spout.exhausted
    assert sorted(seen) == list(range(20))


def test_a_task_with_no_share_is_exhausted_at_once():
    spout, recorder = attach(Numbers, {"limit": 1}, task_index=1, parallelism=2)
    assert spout.exhausted
    spout.next_tuple()
    assert recorder.emits == []


def test_paced_emits_what_is_due():
    clock = FakeClock()
    spout, recorder = attach(Numbers, {"rate": 20}, parallelism=2, clock=clock)  # 10 a second for this task
    spout.next_tuple()
    assert positions(recorder) == [0]  # the first is due at once
    spout.next_tuple()
    assert positions(recorder) == []
    clock.now += 0.35
    spout.next_tuple()
    assert positions(recorder) == [1, 2, 3]


def test_a_paced_spout_tells_when_its_next_tuple_is_due():
    clock = FakeClock()
    spout, recorder = attach(Numbers, {"rate": 64, "limit": 3}, clock=clock)
    assert spout.due_in() is None  # the timetable begins with the first call
    for number in range(3):
        spout.next_tuple()
        assert positions(recorder) == [number]
        clock.now += 0.5 / 64
        assert spout.due_in() == (0.5 / 64 if number < 2 else math.inf)  # no rounding; nothing follows the last one
        clock.now += 0.5 / 64
    free, _ = attach(Numbers, {}, clock=clock)
    assert free.due_in() is None


def test_splits_of_one_task_are_due_in_turns():
    clock = FakeClock()
    spouts = [attach(type("Shares", (Numbers,), {"splits": 2}), {"rate": 64}, index, 2, clock=clock)[0] for index in range(2)]
    for spout in spouts:
        spout.next_tuple()
    assert [spout.due_in() for spout in spouts] == [1 / 32, 1 / 64]


def test_paced_catches_up_after_it_was_held_and_says_how_far_it_is_behind():
    clock = FakeClock()
    spout, recorder = attach(Numbers, {"rate": 100, "burst": 50}, clock=clock)
    spout.next_tuple()
    clock.now += 1.205
    spout.next_tuple()
    assert spout.behind == 70
    assert ("behind", 70) in recorder.metrics
    spout.next_tuple()
    spout.next_tuple()
    assert spout.behind == 0
    assert positions(recorder) == list(range(121))


def pause(spout: GeneratorSpout) -> None:
    spout.deactivate()
    spout.activate()


@pytest.mark.parametrize("restart", [lambda spout: spout.seek(7), lambda spout: spout.activate(), pause])
def test_restart_does_not_catch_up_the_past(restart):
    clock = FakeClock()
    spout, recorder = attach(Numbers, {"rate": 64}, clock=clock)
    for _ in range(7):
        spout.next_tuple()
        clock.now += 1 / 64  # no rounding
    assert positions(recorder) == list(range(7))
    clock.now += 3600
    restart(spout)
    spout.next_tuple()
    assert positions(recorder) == [7]


@pytest.mark.parametrize("emitted", [0, 1, 7])
def test_the_timetable_goes_on_where_the_spout_moves_to(emitted):
    """The clock of another host shows another time; the time of day is the same."""
    clock, elsewhere = FakeClock(), FakeClock(50.0)
    spout, recorder = attach(Numbers, {"rate": 64, "burst": 1}, clock=clock, wall_clock=lambda: clock.now + 9e6)
    assert spout.lag() == 1
    clock.now += 0.5
    for _ in range(emitted):
        spout.next_tuple()
    assert spout.lag() == 33 - emitted
    left = spout.hand_over()
    again, recorder = attach(Numbers, {"rate": 64}, clock=elsewhere, wall_clock=lambda: elsewhere.now + 9e6 + 951.0)
    again.seek(emitted)
    again.take_over(left)
    again.activate()
    assert again.lag() == 33 - emitted + 32  # the move took from 1000.5 to 1001
    again.next_tuple()
    assert positions(recorder) == list(range(emitted, emitted + 32))


def test_a_spout_that_was_never_called_or_is_paused_hands_no_timetable_over():
    spout, _ = attach(Numbers, {"rate": 64}, clock=FakeClock())
    assert spout.hand_over() is None
    spout.next_tuple()
    assert spout.hand_over() is not None
    spout.deactivate()
    assert spout.hand_over() is None


def test_seek_begins_again_there_with_the_same_values():
    spout, recorder = attach(Numbers, {"burst": 10, "limit": 12})
    first = drain(spout, recorder)
    assert spout.exhausted
    spout.seek(5)
    assert not spout.exhausted
    assert drain(spout, recorder) == first[5:]
    spout.seek(12)
    assert spout.exhausted


def test_position_is_the_lowest_that_is_not_acked():
    spout, _ = attach(Numbers, {"burst": 4})
    spout.next_tuple()
    assert spout.position() == 0
    for position in (0, 1, 3):
        spout.ack(position)
    assert spout.position() == 2
    spout.ack(2)
    assert spout.position() == 4


def test_failed_tuple_is_sent_again():
    spout, recorder = attach(Numbers, {"burst": 2})
    spout.next_tuple()
    recorder.take()
    spout.fail(1)
    assert [(emitted.values, emitted.tup_id) for emitted in recorder.emits] == [((1,), 1)]


def test_untracked_remembers_nothing():
    spout, _ = attach(Numbers, tracked=False)
    spout.next_tuple()
    assert spout.unacked_tuples == {}
    assert spout.position() == 32


def test_the_position_is_kept_when_generate_raises():
    class Stumbles(Numbers):
        def generate(self, position):
            if position == 2:
                raise RuntimeError("no")
            return [position]

    spout, recorder = attach(Stumbles, {"limit": 5})
    with pytest.raises(RuntimeError):
        spout.next_tuple()
    assert not spout.exhausted
    assert positions(recorder) == [0, 1]
    assert spout._next_position == 2


@pytest.mark.parametrize(("config", "message"), [
    ({"rate": "fast"}, "'rate' must be a number, not 'fast'"),
    ({"rate": -1}, "'rate' must be at least 0"),
    ({"rate": float("nan")}, "'rate' must be at least 0"),
    ({"limit": 1.5}, "'limit' must be a whole number"),
    ({"limit": True}, "'limit' must be a whole number"),
    ({"burst": 0}, "'burst' must be at least 1"),
])
def test_settings_are_checked(config, message):
    with pytest.raises(TopologyError, match=message):
        attach(Numbers, config)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_arrow_batches_hold_the_same_numbers(parallelism):
    seen = []
    for index in range(parallelism):
        spout, recorder = attach(NumbersArrow, {"limit": 23, "batch": 5}, index, parallelism)
        emits = drain(spout, recorder)
        assert [emitted.tup_id for emitted in emits] == list(range(len(emits)))
        seen += [number for emitted in emits for number in emitted.values.column(0).to_pylist()]
    assert sorted(seen) == list(range(23))


def test_arrow_rate_counts_rows():
    clock = FakeClock()
    spout, recorder = attach(NumbersArrow, {"rate": 100, "batch": 50, "burst": 9}, clock=clock)
    spout.next_tuple()
    clock.now += 1.01
    spout.next_tuple()
    assert [emitted.values.num_rows for emitted in recorder.take()] == [50, 50, 50]


def test_arrow_batch_is_sent_again():
    spout, recorder = attach(NumbersArrow, {"batch": 2})
    spout.next_tuple()
    spout.fail(0)
    assert [emitted.values.to_pydict() for emitted in recorder.emits] == [{"number": [0, 1]}] * 2


def test_lag_is_what_is_due_and_not_emitted():
    clock = FakeClock()
    spout, _ = attach(Numbers, {"rate": 200, "burst": 3, "limit": 1000}, 0, 2, clock=clock)
    spout.next_tuple()
    assert spout.lag() == 0
    clock.now += 0.5
    assert spout.lag() == 50
    spout.next_tuple()
    assert spout.lag() == 47
    clock.now += 100
    assert spout.lag() == 500 - 4, "no more than its share of the limit"
    spout.seek(100)
    assert spout.lag() == 1


def test_without_a_rate_the_lag_is_not_known():
    assert attach(Numbers, {"limit": 1000})[0].lag() is None


def test_the_lag_of_batches_is_in_tuples():
    clock = FakeClock()
    spout, _ = attach(NumbersArrow, {"rate": 1000, "batch": 100}, clock=clock)
    spout.next_tuple()
    clock.now += 1.0
    assert spout.lag() == 1000
