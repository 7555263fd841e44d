"""Delays of all tasks of a worker: turns of its loop, and pauses for Python's garbage collector."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable

from millrace.runtime.meters import LatencyHistogram


class LoopTurns:
    """Measures the turns of a worker's loop. While one goes on, every other task and every message waits."""

    def __init__(self, now: float) -> None:
        self.busy_seconds = 0.0  # in which the loop was not waiting for anything to do
        self.durations = LatencyHistogram()  # of the turns since the last report in which there was work
        self._began = self._ended = now

    def restart(self, now: float) -> None:
        """Begin to measure again, after a time in which the loop did not run."""
        self._ended = now

    def begin(self, now: float, slept: bool) -> None:
        """A turn begins. If the loop did not sleep before it, the time since the last turn is work, too."""
        self._began = now if slept else self._ended

    def end(self, now: float, worked: bool) -> None:
        """The turn has ended. One in which the loop only looked for work delays nothing, and is not recorded."""
        seconds, self._ended = now - self._began, now
        self.busy_seconds += seconds
        if worked:
            self.durations.record(seconds)


class CollectorPauses:
    """Measures the pauses for the garbage collector. All threads wait for a collection, which may begin on any of them and at
    any point of the code: so its end only notes the pause, and `take` makes the histogram."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._pauses: deque[float] = deque()  # in seconds

    def open(self) -> None:
        gc.callbacks.append(self._notice)

    def close(self) -> None:
        gc.callbacks.remove(self._notice)

    def _notice(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = self._now()
        else:
            self._pauses.append(self._now() - self._began)

    def take(self) -> str:
        """The histogram since the last `take`, encoded."""
        histogram = LatencyHistogram()
        while self._pauses:
            histogram.record(self._pauses.popleft())
        return histogram.take()
