"""Waves and the end of a topology wait for tasks that make progress, within limits; failed waves are not repeated at once."""

from __future__ import annotations

import pytest

from millrace.control.master_state import MasterState
from millrace.control.topology_state import TopologyState
from millrace.control.wave_control import WaveControl
from millrace.control.waves import COMMIT, INIT, MOST_TIMEOUTS, PREPARE, ROLLBACK, Abandoned, Waves
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.wire.messages import Report

BUSY, STUCK = TaskId("sink", 0), TaskId("request", 0)
TIMEOUT = 60.0


def preparing() -> Waves:
    """Waves of two tasks in the middle of wave 1, which began at time 0."""
    waves = Waves(1.0, TIMEOUT)
    waves.restore([BUSY, STUCK], epoch=1, claim=False, now=0.0)
    for task in (BUSY, STUCK):
        waves.acked(INIT, 0, task, None, "", 0.0)
    waves.tick(0.0)
    assert waves.phase == PREPARE
    return waves


def is_abandoned(waves: Waves, now: float) -> bool:
    return any(isinstance(step, Abandoned) for step in waves.tick(now))


def test_a_wave_waits_while_a_task_ahead_of_it_works() -> None:
    waves = preparing()
    waves.progress([BUSY], TIMEOUT - 1)
    assert not is_abandoned(waves, TIMEOUT + 1)
    assert is_abandoned(waves, 2 * TIMEOUT - 1)


def test_progress_of_tasks_that_the_wave_has_passed_does_not_count() -> None:
    waves = preparing()
    waves.acked(PREPARE, 1, BUSY, None, "", 1.0)
    waves.progress([BUSY], TIMEOUT - 1)
    assert is_abandoned(waves, TIMEOUT)


def test_a_wave_does_not_wait_for_ever_for_tasks_that_are_kept_busy_by_ticks() -> None:
    waves, now = preparing(), 0.0
    while not is_abandoned(waves, now):
        waves.progress([BUSY], now)
        now += TIMEOUT / 2
        assert now <= MOST_TIMEOUTS * TIMEOUT
    assert now == MOST_TIMEOUTS * TIMEOUT


def test_a_report_says_which_tasks_the_wave_has_passed() -> None:
    tasks = [{"topology": 1, "task": 3, "executed": 7, "passed": True},
             {"topology": 1, "task": 4, "executed": 8, "passed": False}, {"topology": 2, "task": 0, "executed": 9}]
    report = Report(0, 1, 1, 0.0, tasks, [], [], [], [], {})
    assert report.executed() == ((1, 3, 7, True), (1, 4, 8, False), (2, 0, 9, False))


@pytest.mark.parametrize(("passed", "abandoned"), [(False, False), (True, True)])
def test_the_wave_does_not_wait_for_a_task_that_it_has_passed(passed: bool, abandoned: bool) -> None:
    """Its snapshot is taken: a store or another task that hangs must not keep the wave waiting."""
    control = WaveControl(MasterState())
    control.now = TIMEOUT - 1
    topology = TopologyState(1, TopologyGraph("t", (), {}), waves=preparing())
    control.progressed(topology, {BUSY: passed})
    assert topology.waves is not None and is_abandoned(topology.waves, TIMEOUT + 1) == abandoned


def test_a_request_does_not_cut_the_pause_after_failed_waves_short() -> None:
    """Queries that feed a topology request a wave every second."""
    waves, now, begun = preparing(), 0.0, 0
    while now < 600.0:
        if waves.phase == PREPARE:
            waves.abandon("no space left", now)
            begun += 1
            for task in (BUSY, STUCK):
                waves.acked(ROLLBACK, waves.wave, task, None, "", now)
        waves.request(now)
        waves.tick(now)
        now += 1.0
    assert begun < 40


def test_a_committed_wave_ends_the_pause() -> None:
    waves = preparing()
    waves.abandon("no space left", 0.0)
    for task in (BUSY, STUCK):
        waves.acked(ROLLBACK, 1, task, None, "", 0.0)
    waves.tick(1.0)
    for task in (BUSY, STUCK):
        waves.acked(PREPARE, 2, task, None, "", 1.0)
    waves.stored(2, "", 1.0)
    for task in (BUSY, STUCK):
        waves.acked(COMMIT, 2, task, None, "", 1.0)
    waves.request(1.0)
    waves.tick(1.0)
    assert waves.phase == PREPARE and waves.wave == 3
