"""Clocks. Only `SystemClock` reads the time; tests use a `ManualClock`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds, comparable between processes of one host."""

    def wall(self) -> float:
        """Seconds since 1970, comparable between hosts with synchronized clocks."""

    def cpu(self) -> float:
        """CPU seconds used by this thread."""


class SystemClock:
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    cpu = staticmethod(time.thread_time)


class ManualClock:
    """A clock that stands still until `advance`."""

    def __init__(self, now: float = 0.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def cpu(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
