"""The times at which load windows end and schedulers are asked, by a clock that the test turns."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.control.events import Say
from millrace.control.scheduling.schedule_generator import PERIOD, Choice
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.model.cluster import Cluster
from millrace.model.sample import WindowSample
from millrace.schedulers.registry import make_scheduler

TICK = 0.07  # the master's thread comes round at odd times


class Port(SimpleNamespace):
    """A master without workers or topologies."""

    def __init__(self) -> None:
        state = SimpleNamespace(topologies={}, workers={}, cluster=lambda: Cluster((), ()))
        super().__init__(state=state, observed={}, said=[])

    def say(self, message: Say) -> None:
        self.said.append(message)


class Clocked:
    """A scheduling loop whose windows only note when they end and why the scheduler would be asked."""

    def __init__(self, scheduler: str, **settings: Any) -> None:
        self.loop = SchedulingLoop("c", {"history.url": "none", **settings}, Port())  # type: ignore[arg-type]
        self.loop.generator.set(Choice.of(scheduler, make_scheduler(scheduler)), self.loop.generator.policy)
        self.asked: list[tuple[float, str]] = []
        self.ends: list[float] = []
        self.start = self.now = self.loop._first
        self.loop.end_window = self.end_window  # type: ignore[method-assign]

    def end_window(self, now: float) -> None:
        seconds, self.loop._monitor.since = now - self.loop._monitor.since, now
        self.ends.append(now - self.start)
        trigger = self.loop.generator.due(now, WindowSample(0.0, seconds), Cluster((), ()))
        if trigger is not None:
            self.asked.append((now - self.start, trigger))
            self.loop.generator.enacted(self.loop.generator.failed("", trigger, 0.0), now)  # as if it had been a plan

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK
            self.loop.tick(self.now)


def test_the_five_seconds_of_otd_are_five_seconds() -> None:
    """Whatever the load period is, however late the master comes round, and although each answer was enacted."""
    clocked = Clocked("otd", **{"load.period.secs": 20.0})
    clocked.run(600)
    assert len(clocked.asked) == pytest.approx(120, abs=1)
    assert all(trigger == PERIOD for _, trigger in clocked.asked[1:])
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(clocked.asked)) < 5 + 2 * TICK


@pytest.mark.parametrize(("period", "load_period", "windows"), [(300.0, 20.0, 20.0), (7.0, 5.0, 3.5), (50.0, 20.0, 50 / 3),
                                                              (5.0, 20.0, 5.0)])
def test_windows_end_with_the_period(period: float, load_period: float, windows: float) -> None:
    clocked = Clocked("tstorm", **{"load.period.secs": load_period})
    clocked.loop.generator.policy = clocked.loop.generator.policy.changed({"period": period, "cool_down": 0})
    assert clocked.loop.window_seconds == pytest.approx(windows)
    clocked.run(20 * period)
    assert len(clocked.asked) == pytest.approx(20, abs=1)


def test_without_a_scheduler_windows_have_the_load_period() -> None:
    loop = SchedulingLoop("c", {"history.url": "none", "load.period.secs": 3.0}, Port())  # type: ignore[arg-type]
    assert loop.window_seconds == 3.0
    loop.generator.policy = loop.generator.policy.changed({"load_period": 2.0})
    assert loop.window_seconds == 2.0, "it can be changed while topologies run"
