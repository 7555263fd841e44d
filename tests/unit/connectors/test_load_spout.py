"""The spout of load patterns: what is due, what is late, and the same tuples again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from millrace.connectors.load import LOAD_FIELDS, LoadSpout
from millrace.errors import TopologyError
from millrace.testing.components import drain, start, take

STEP = {"pattern": "step", "rate": 10, "peak": 30, "at": 1, "keys": 8, "zipf": 1.0}


class SetClock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def spout_at(config: dict, clock: SetClock, **more) -> LoadSpout:
    return start(LoadSpout, config, clock=clock, wall_clock=clock, **more)


def rows(spout: LoadSpout) -> list[tuple]:
    return [tuple(emitted.values) for emitted in drain(spout)]


def test_tuples_come_when_they_are_due():
    clock = SetClock()
    spout = spout_at(STEP, clock)
    assert rows(spout) == [] and spout.lag() == 0
    clock.now += 1.0
    due = rows(spout)
    assert [row[1] for row in due] == list(range(10)) and [row[3] for row in due] == pytest.approx([n / 10 for n in range(10)])
    clock.now += 1.0
    assert [row[1] for row in rows(spout)] == list(range(10, 40))


def test_lag_counts_tuples_that_are_due_and_not_emitted():
    clock = SetClock()
    spout = spout_at({**STEP, "burst": 4}, clock)
    spout.next_tuple()
    clock.now += 2.0
    assert spout.lag() == 40
    spout.next_tuple()
    assert len(take(spout)) == 4 and spout.lag() == 36
    drain(spout)
    assert spout.lag() == 0


def test_it_tells_when_its_next_tuple_is_due():
    clock = SetClock()
    spout = spout_at({**STEP, "limit": 12}, clock)
    assert rows(spout) == [] and spout.due_in() == 0.0
    clock.now += 0.95
    assert len(rows(spout)) == 10
    assert spout.due_in() == pytest.approx(0.05)
    clock.now += 10
    assert len(rows(spout)) == 2 and spout.due_in() == math.inf


def test_tasks_share_the_load():
    clock = SetClock()
    spouts = [spout_at({**STEP, "begin": 1000.0}, clock, task_index=index, parallelism=3) for index in range(3)]
    clock.now += 1.5
    assert [spout.lag() for spout in spouts] == [9, 8, 8]
    emitted = sorted((row[3], row[0], row[1]) for spout in spouts for row in rows(spout))
    assert [position * 3 + task for _, task, position in emitted] == list(range(25))


def test_a_replay_has_the_same_tuples():
    clock = SetClock()
    config = {**STEP, "shift": 0.5, "begin": 1000.0}
    spout = spout_at(config, clock)
    clock.now += 2.0
    first = rows(spout)
    again = spout_at(config, clock)
    again.seek(7)
    assert rows(again) == first[7:]
    spout.seek(30)
    assert rows(spout) == first[30:]


def test_a_timetable_without_begin_continues_with_the_tuple_that_is_sought():
    clock = SetClock()
    spout = spout_at(STEP, clock)
    spout.seek(10)
    assert rows(spout) == []
    clock.now += 0.101
    assert [row[1] for row in rows(spout)] == [10, 11, 12, 13]  # 30 a second by then


@pytest.mark.parametrize("emitted", [0, 3])
def test_a_split_that_moves_keeps_its_backlog(emitted):
    """Also one that has emitted nothing: its pattern has begun."""
    clock = SetClock()
    split = spout_at({**STEP, "burst": 1}, clock, task_index=1, parallelism=2)
    assert split.lag() == 0
    clock.now += 2.0
    for _ in range(emitted):
        split.next_tuple()
    assert split.lag() == 20 - emitted
    split.deactivate()
    again = spout_at(STEP, clock, task_index=1, parallelism=2)
    again.seek(emitted)
    again.take_over(split.hand_over())
    again.activate()
    assert again.lag() == 20 - emitted
    clock.now += 1.0
    assert again.lag() == 35 - emitted and [row[1] for row in rows(again)] == list(range(emitted, 35))


def test_a_pause_makes_tuples_late():
    clock = SetClock()
    spout = spout_at(STEP, clock)
    drain(spout)
    clock.now += 1.0
    spout.deactivate()
    spout.activate()
    assert len(rows(spout)) == 10


def test_a_begin_long_ago_makes_everything_due():
    assert len(rows(start(LoadSpout, {**STEP, "begin": 0, "limit": 500}))) == 500


def test_a_begin_in_the_future_is_awaited():
    clock = SetClock()
    spout = spout_at({**STEP, "begin": 1005.0}, clock)
    assert rows(spout) == [] and spout.lag() == 0
    clock.now = 1006.0
    assert len(rows(spout)) == 10


def test_a_trace_that_ends_ends_the_spout(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("0,10\n2,0\n")
    clock = SetClock()
    spouts = [spout_at({"pattern": "trace", "trace": str(path)}, clock, task_index=index, parallelism=3) for index in range(3)]
    for spout in spouts:
        drain(spout)
    clock.now += 100.0
    assert [len(rows(spout)) for spout in spouts] == [7, 7, 6]
    assert all(spout.exhausted for spout in spouts)
    spouts[0].seek(7)
    assert rows(spouts[0]) == []


@pytest.mark.parametrize("config", [
    {"rate": 10}, {"pattern": "ramp", "rate": 10, "peak": 20, "until": 5},
    {"pattern": "sine", "rate": 10, "peak": 20, "period": 5},
    {"pattern": "burst", "rate": 10, "peak": 20, "period": 5, "length": 1}], ids=str)
def test_every_pattern_can_be_declared(config):
    clock = SetClock()
    spout = spout_at(config, clock)
    drain(spout)
    clock.now += 5.0
    assert len(rows(spout)) == spout.pattern.due_count(5.0)
    assert list(LOAD_FIELDS) == LoadSpout.outputs


@pytest.mark.parametrize(("config", "reason"), [
    ({}, "needs the setting 'rate'"), ({"pattern": "saw", "rate": 1}, "must be one of burst"),
    ({"pattern": "step", "rate": 1, "peak": 2}, "needs the setting 'at'"), ({"pattern": "trace"}, "needs the setting 'trace'"),
    ({"rate": -1}, "at least 0"), ({"rate": 1, "keys": 0}, "at least 1"), ({"rate": 1, "shift": 0}, "at least 0.001")])
def test_bad_settings_are_refused(config, reason):
    with pytest.raises(TopologyError, match=reason):
        start(LoadSpout, config)
