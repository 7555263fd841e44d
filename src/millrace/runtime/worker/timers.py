"""Timers: calls that the worker's loop makes when they are due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from millrace.runtime.clock import Clock


class Timers:
    """Calls by due time. Never empty in a worker, which has its own periodic checks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], float | None]]] = []
        self._order = count()  # breaks ties

    def every(self, seconds: float, call: Callable[[], Any], while_: Callable[[], bool] = lambda: True,
              first: float | None = None) -> None:
        """Call at an interval, as long as `while_` holds. `first`: seconds until the first call, if they are others."""
        def run() -> float | None:
            if not while_():
                return None
            call()
            return seconds

        self._push(self._clock.now() + (seconds if first is None else first), run)

    def at(self, at: float, call: Callable[[], None]) -> None:
        self._push(at, call)

    def fire(self) -> None:
        """Make the calls that are due."""
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now:
            _, _, run = heapq.heappop(self._heap)
            again = run()
            if again is not None:
                self._push(now + again, run)

    def wait_seconds(self) -> float:
        """Seconds until the next call is due."""
        return max(0.0, self._heap[0][0] - self._clock.now())

    def _push(self, at: float, run: Callable[[], float | None]) -> None:
        heapq.heappush(self._heap, (at, next(self._order), run))
