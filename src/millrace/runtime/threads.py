"""Threads for tasks that block, one each. Results come back to the loop through a queue and a pipe that wakes it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Job = tuple[Callable[[], None], Callable[[], None]]


class TaskThreads:
    """`wake_fd` becomes readable when something is done; then call `finish`."""

    def __init__(self) -> None:
        self._queues: dict[Any, SimpleQueue[Job | None]] = {}
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._signal_fd, False)

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = SimpleQueue()
            threading.Thread(target=self._serve, args=(queue,), daemon=True, name=f"task {key.name}").start()
        queue.put((work, done))

    def end(self, key: Any) -> None:
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.put(None)

    def finish(self) -> None:
        """Called on the loop: run what follows the jobs that are done."""
        with suppress(BlockingIOError):  # another wake-up may have emptied the pipe already
            os.read(self.wake_fd, 4096)
        while not self._done.empty():
            self._done.get()()

    def _serve(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            work, done = job
            work()
            self._done.put(done)
            self.wake()

    def wake(self) -> None:
        with suppress(BlockingIOError):  # a pipe full of wake-ups: one is enough
            os.write(self._signal_fd, b".")

    def close(self) -> None:
        for key in list(self._queues):
            self.end(key)
        # The pipe stays open: a thread that is still in user code will write to it once more.
