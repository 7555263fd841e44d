"""A spout that knows when its next tuple is due is called then, and not in between; others are called after the spout wait."""

from __future__ import annotations

from typing import Any

import pytest

from millrace import ReplayableSpout, Topology
from millrace.runtime.clock import Clock
from millrace.runtime.tasks.spout import LONGEST_WAIT
from millrace.testing.local_cluster import STEP_SECONDS, LocalCluster

WAIT = 7.5 * STEP_SECONDS  # it is over with the eighth step
PERIOD = 19.5 * STEP_SECONDS  # between two tuples
STEPS = 40


class Ticking(ReplayableSpout):
    """Emits a number, then says when the next one is due."""

    outputs = ["number"]
    clock: Clock
    expected: float | None = None

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.calls: list[float] = []
        self.due = 0.0

    def seek(self, position: int) -> None:
        self._next_position = position

    def next_tuple(self) -> None:
        now = type(self).clock.now()
        self.calls.append(now)
        if now >= self.due:
            self.emit([self._next_position], self._next_position)
            self.due = now + PERIOD

    def due_in(self) -> float | None:
        return self.expected


class OneSpout(Topology):
    ticking = Ticking.spec()


def calls_of(monkeypatch: pytest.MonkeyPatch, expected: float | None) -> list[int]:
    """The steps, counted from the first emission, in which `next_tuple` was called."""
    cluster = LocalCluster(workers=1)
    monkeypatch.setattr(Ticking, "clock", cluster.clock, raising=False)
    monkeypatch.setattr(Ticking, "expected", expected)
    cluster.submit(OneSpout, config={"topology.spout.wait.ms": WAIT * 1000})
    cluster.run_until(lambda: bool(cluster.tasks("ticking")[0].component.calls))
    cluster.step(STEPS)
    calls = cluster.tasks("ticking")[0].component.calls
    return sorted({round((at - calls[0]) / STEP_SECONDS) for at in calls})


def test_a_spout_is_called_when_its_next_tuple_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls_of(monkeypatch, PERIOD) == [0, 20, 40]


@pytest.mark.parametrize("expected", [0.0, -1e9])
def test_a_spout_that_does_not_emit_what_is_due_is_called_after_the_wait(
    monkeypatch: pytest.MonkeyPatch, expected: float
) -> None:
    assert calls_of(monkeypatch, expected) == [0, 8, 16, 24, 32, 40]


def test_a_spout_that_does_not_know_is_called_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls_of(monkeypatch, None) == [0, 8, 16, 24, 32, 40]


def test_no_spout_sleeps_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.runtime.tasks.spout.LONGEST_WAIT", 15.5 * STEP_SECONDS)
    assert calls_of(monkeypatch, 1e9)[:2] == [0, 16]
    assert LONGEST_WAIT <= 0.1


def test_a_spout_that_is_activated_is_called_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(workers=1)
    monkeypatch.setattr(Ticking, "clock", cluster.clock, raising=False)
    monkeypatch.setattr(Ticking, "expected", 1e9)
    cluster.submit(OneSpout)
    cluster.step()
    task: Any = cluster.tasks("ticking")[0]
    cluster.run_until(lambda: task.component.calls and not task.queued)
    before = len(task.component.calls)
    task.set_active(False)
    task.set_active(True)
    cluster.step()
    assert len(task.component.calls) > before
