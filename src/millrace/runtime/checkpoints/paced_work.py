"""The pace of long work beside running tasks: a thread that decodes state holds the interpreter, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RESTS = 16.0  # seconds of rest for each second of work: several workers of a host may do such work at the same time
MOST_SECONDS = 12.0  # of rest in one piece of work, however long it is: moves have a time limit


class PacedWork:
    """Turns that the threads of a worker take, one at a time. Each turn ends with a rest."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        self._sleep, self._clock = sleep, clock
        self._turn = threading.Lock()

    @contextmanager
    def turn(self, of: int) -> Iterator[None]:
        """Take one of that many turns of a piece of work."""
        with self._turn:
            began = self._clock()
            yield
            self._sleep(min(RESTS * (self._clock() - began), MOST_SECONDS / of))
