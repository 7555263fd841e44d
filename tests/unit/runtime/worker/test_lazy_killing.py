"""A task that moved away drains: it stays for its time, and longer while it has work left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.runtime.clock import ManualClock
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.worker.lazy_killing import LazyKilling


class OldTask:
    """The old incarnation of a task, reduced to its end."""

    def __init__(self, number: int = 1, incarnation: int = 1) -> None:
        self.number, self.incarnation = number, incarnation
        self.started, self.is_idle = True, True
        self.worker = SimpleNamespace(ready=lambda task: None)

    def idle(self) -> bool:
        return self.is_idle


class Retired:
    def __init__(self) -> None:
        self.clock, self.ended = ManualClock(100.0), list[Any]()
        self.killing = LazyKilling(self.clock, 2.0, self.ended.append)

    def retire(self, task: Any) -> None:
        self.killing.retire(task)

    def after(self, seconds: float) -> list[Any]:
        """Advance the clock and return the tasks ended so far."""
        self.clock.advance(seconds)
        self.killing.end_drained(0.0)
        return self.ended


def test_an_idle_task_stays_for_its_time() -> None:
    retired, task = Retired(), OldTask()
    retired.retire(task)
    assert retired.after(1.9) == [] and list(retired.killing) == [task]
    assert retired.after(0.1) == [task] and list(retired.killing) == []


def test_a_task_with_work_left_stays_until_it_is_idle() -> None:
    retired, task = Retired(), OldTask()
    task.is_idle = False
    retired.retire(task)
    assert retired.after(60.0) == []
    task.is_idle = True
    assert retired.after(0.0) == [task]


def test_a_task_that_never_started_ends_with_input_left() -> None:
    retired, task = Retired(), OldTask()
    task.is_idle = task.started = False
    retired.retire(task)
    assert retired.after(1.9) == []
    assert retired.after(0.1) == [task]


def test_a_spout_ends_at_once() -> None:
    retired, spout = Retired(), SpoutTask.__new__(SpoutTask)
    retired.retire(spout)
    assert retired.ended == [spout] and list(retired.killing) == []


@pytest.mark.parametrize(("number", "incarnation", "is_there"), [(1, 1, True), (1, 2, False), (2, 1, False)])
def test_messages_reach_the_incarnation_that_drains(number: int, incarnation: int, is_there: bool) -> None:
    retired, task = Retired(), OldTask()
    retired.retire(task)
    assert (retired.killing.find(number, incarnation) is task) is is_there


def test_all_end_without_draining() -> None:
    retired, tasks = Retired(), [OldTask(), OldTask(2)]
    for task in tasks:
        task.is_idle = False
        retired.retire(task)
    retired.killing.end_all()
    assert retired.ended == tasks and list(retired.killing) == []
