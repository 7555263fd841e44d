"""Finds calls in a worker that do not return: on the loop, on the threads of blocking tasks, and on those of the store.

The heartbeat thread asks, and costs the loop nothing but one time stamp for each task's turn, in which it processes a chunk.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import PurePath
from types import FrameType
from typing import NamedTuple, Protocol

from millrace.api.component import Component
from millrace.control.workers import LongCall
from millrace.model.graph import TaskId

REPORTED_SECONDS = 2.0  # shorter calls are not worth a look


class RunningJob(NamedTuple):
    """A job on a thread of its own. `task`: None unless it is user code. `since`: time of its start."""

    name: str
    topology: str
    task: TaskId | None
    thread: int
    since: float


class Jobs(Protocol):
    def running(self) -> Iterable[RunningJob]:
        """The jobs that are being run."""


class LongCalls:
    """Made on the thread of the loop. `turned`: the time of the loop's last turn. `began`: when the last task got its turn in
    it. A turn of the loop may be long because there are many tasks."""

    def __init__(self, jobs: Jobs, began: Callable[[], float], now: Callable[[], float] = time.monotonic) -> None:
        self._jobs, self._began, self._now, self._loop = jobs, began, now, threading.get_ident()
        self.turned = now()

    def loop_seconds(self) -> float:
        """Seconds since the loop's last turn."""
        return self._now() - self.turned

    def seen(self) -> list[LongCall]:
        """The calls that have not returned for a while, the longest first."""
        calls, now = [], self._now()
        if (seconds := now - max(self.turned, self._began())) >= REPORTED_SECONDS:
            calls.append(LongCall(running_code(self._loop) or "the worker's loop", seconds, on_loop=True))
        for job in self._jobs.running():
            if now - job.since >= REPORTED_SECONDS:
                of_user = job.task is not None
                calls.append(LongCall((running_code(job.thread) if of_user else "") or job.name, now - job.since, of_user,
                                      job.topology, job.task))
        return sorted(calls, key=lambda call: -call.seconds)


def running_code(thread: int) -> str:
    """The task whose component runs on the thread, and the line of its code; empty if none does."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Component):
            code = frame.f_code
            line = f"{PurePath(code.co_filename).name}:{frame.f_lineno}"
            return f"{code.co_name} of {TaskId(owner.component_name, owner.task_index)} of {owner.topology_name!r} ({line})"
        frame = frame.f_back
    return ""
