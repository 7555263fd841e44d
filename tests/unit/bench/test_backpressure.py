"""The time to a committed wave, by the waves that the control makes."""

from __future__ import annotations

import pytest

from millrace.bench.backpressure import CommitTimes
from millrace.control.waves import Waves
from millrace.model.graph import TaskId

TASK = TaskId("sink", 0)


class TimedWaves:
    """Waves of one task, and the times of those that are committed."""

    def __init__(self) -> None:
        self.waves = Waves(1.0, 60.0)
        self.waves.restore([TASK], 1, False, 0.0)
        self.waves.acked("init", 0, TASK, None, "", 0.0)
        self.times = CommitTimes(self.waves.committed)

    def begin(self, now: float) -> None:
        self.waves.begin(now)
        self.times.look(self.waves, 0)

    def abandon(self, now: float) -> None:
        self.waves.abandon("not prepared", now)
        self.waves.acked("rollback", self.waves.wave, TASK, None, "", now)
        self.times.look(self.waves, 0)

    def commit(self, now: float) -> None:
        wave = self.waves.wave
        self.waves.acked("prepare", wave, TASK, None, "", now)
        self.waves.stored(wave, "", now)
        assert self.times.look(self.waves, self.times.commits + 1)
        self.waves.acked("commit", wave, TASK, None, "", now)
        assert not self.times.look(self.waves, self.times.commits + 1)


def test_abandoned_waves_count_and_the_first_commit_does_not() -> None:
    timed = TimedWaves()
    timed.begin(10.0)
    timed.commit(11.0)
    timed.begin(12.0)
    timed.commit(14.0)
    timed.begin(20.0)
    timed.abandon(80.0)
    timed.begin(81.0)
    timed.commit(83.0)
    assert timed.times.commits == 3
    assert timed.times.seconds == [2.0, 63.0]


def test_a_wave_that_was_begun_and_committed_between_two_looks_counts_from_its_beginning() -> None:
    timed = TimedWaves()
    timed.begin(10.0)
    timed.commit(11.0)
    timed.waves.begin(12.0)  # not looked at
    timed.commit(12.5)
    assert timed.times.seconds == [pytest.approx(0.5)]
