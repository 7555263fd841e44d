"""Delays of all tasks of a worker: which turns of its loop and which pauses for the garbage collector are measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from millrace import Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.runtime.clock import ManualClock
from millrace.runtime.meters import LatencyHistogram
from millrace.runtime.worker.delays import CollectorPauses, LoopTurns
from millrace.testing.local_cluster import LocalCluster


class Numbers(GeneratorSpout):
    outputs = ["number"]

    def generate(self, position: int) -> list[int]:
        return [position]


class Alone(Topology):
    numbers = Numbers.spec(config={"limit": 3, "burst": 1})


def recorded(encoded: str) -> LatencyHistogram:
    histogram = LatencyHistogram()
    histogram.merge(encoded)
    return histogram


def about(milliseconds: float) -> object:
    return pytest.approx(milliseconds, rel=0.01)


def test_a_turn_lasts_from_the_wake_up_until_its_end() -> None:
    turns = LoopTurns(0.0)
    turns.begin(5.0, slept=True)
    turns.end(5.25, worked=True)
    assert turns.busy_seconds == 0.25
    assert turns.durations.percentile_ms(100) == about(250)


def test_a_turn_of_a_loop_that_did_not_sleep_begins_with_the_end_of_the_last() -> None:
    turns = LoopTurns(0.0)
    for began, ended in ((1.0, 1.5), (1.75, 2.5)):
        turns.begin(began, slept=began == 1.0)
        turns.end(ended, worked=True)
    assert turns.busy_seconds == 1.5
    assert (turns.durations.count, turns.durations.percentile_ms(100)) == (2, about(1000))


def test_a_turn_without_work_takes_time_and_is_not_recorded() -> None:
    turns = LoopTurns(0.0)
    turns.begin(1.0, slept=True)
    turns.end(1.5, worked=False)
    assert (turns.busy_seconds, turns.durations.count) == (0.5, 0)


def test_the_time_without_a_loop_is_in_no_turn() -> None:
    turns = LoopTurns(0.0)
    turns.restart(100.0)
    turns.begin(100.5, slept=False)
    turns.end(101.0, worked=True)
    assert turns.busy_seconds == 1.0


def test_a_step_says_if_a_task_was_ready() -> None:
    cluster = LocalCluster(1)
    worker = cluster.workers[0]
    assert not worker.step(), "it has no task"
    cluster.submit(Alone)
    cluster.run_until(lambda: bool(cluster.tasks("numbers")))
    worker.ready(cluster.tasks("numbers")[0])
    assert worker.step()


@pytest.fixture
def pauses() -> Iterator[CollectorPauses]:
    """Yield an open one with a clock by which a collection takes four milliseconds. Only the test begins collections."""
    clock, enabled = ManualClock(1000.0), gc.isenabled()
    pauses = CollectorPauses(clock.now)

    def take_time(phase: str, info: dict[str, int]) -> None:
        clock.advance(0.004 if phase == "start" else 0.0)

    gc.disable()
    pauses.open()
    gc.callbacks.append(take_time)
    yield pauses
    gc.callbacks.remove(take_time)
    if enabled:
        gc.enable()


def test_every_collection_is_a_pause(pauses: CollectorPauses) -> None:
    gc.collect()
    gc.collect(0)
    measured = recorded(pauses.take())
    assert (measured.count, measured.percentile_ms(50), measured.percentile_ms(100)) == (2, about(4), about(4))
    assert pauses.take() == "", "only those since the last report"
    pauses.close()


def test_no_collection_is_noticed_after_the_end(pauses: CollectorPauses) -> None:
    pauses.close()
    gc.collect()
    assert pauses.take() == ""
