"""Lazy killing: the old incarnation of a task that moved drains its inbox before it ends.

A plan does not reach all workers at the same moment. Upstream tasks that still have the old plan send to the old incarnation.
Ending it at once would lose these chunks: they would have to be replayed, or an exactly-once topology would have to roll back.
So the old incarnation stays for at least `task.drain.limit.secs`, and longer while it has work left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.spout import SpoutTask

if TYPE_CHECKING:
    from millrace.runtime.clock import Clock
    from millrace.runtime.tasks.task import Task


class LazyKilling:
    """Tasks of one topology that moved away from this worker and are draining. `end` ends a task for good."""

    def __init__(self, clock: Clock, drain_seconds: float, end: Callable[[Task], None]) -> None:
        self._clock, self._drain_seconds, self._end = clock, drain_seconds, end
        self._stays_until: dict[Task, float] = {}

    def __iter__(self) -> Iterator[Task]:
        return iter(self._stays_until)

    def find(self, number: int, incarnation: int) -> Task | None:
        return next((task for task in self if task.number == number and task.incarnation == incarnation), None)

    def retire(self, task: Task) -> None:
        """Let a task that moved drain. A spout ends at once: only replayable ones are moved, and they have no inbox."""
        if isinstance(task, SpoutTask):
            self._end(task)
        else:
            self._stays_until[task] = self._clock.now() + self._drain_seconds
            task.worker.ready(task)

    def end_drained(self, unacked_before: float) -> None:
        """End the tasks that are idle and have stayed long enough. A task that never started cannot drain: its input is
        replayed elsewhere. Chunks that arrived before `unacked_before` and were never acked are forgotten."""
        now = self._clock.now()
        for task, until in list(self._stays_until.items()):
            if isinstance(task, BoltTask):
                task.acks.expire(unacked_before)
            if now >= until and (task.idle() or not task.started):
                del self._stays_until[task]
                self._end(task)

    def end_all(self) -> None:
        """End all of them without draining."""
        tasks, self._stays_until = list(self._stays_until), {}
        for task in tasks:
            self._end(task)
