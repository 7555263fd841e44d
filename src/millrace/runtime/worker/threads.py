"""One thread for each blocking task. Results return to the loop through a queue and a pipe that wakes it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from millrace.errors import ThreadDied
from millrace.runtime.tasks.checkpointing.snapshot import StoreThread
from millrace.runtime.tasks.user_errors import describe
from millrace.runtime.worker.long_calls import RunningJob

CLOSE_SECONDS = 2.0
Job = tuple[Callable[[], None], Callable[[], None]]


class TaskThreads:
    """Runs work of blocking tasks. `wake_fd` becomes readable when work is done; then call `finish`."""

    def __init__(self) -> None:
        self._queues: dict[Any, SimpleQueue[Job | None]] = {}
        self._running: dict[Any, tuple[int, float]] = {}  # by key: the thread that runs a job, and since when
        self._threads: list[threading.Thread] = []
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._signal_fd, False)

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(key, queue), daemon=True, name=f"task {key.name}")
            self._threads = [*(old for old in self._threads if old.is_alive()), thread]
            thread.start()
        queue.put((work, done))

    def post(self, call: Callable[[], None]) -> None:
        """Make a call on the loop, from any thread."""
        self._done.put(call)
        self.wake()

    def end(self, key: Any) -> None:
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.put(None)

    def finish(self) -> None:
        """Run the callbacks of finished jobs, on the loop."""
        with suppress(BlockingIOError):  # another wake-up may have emptied the pipe already
            os.read(self.wake_fd, 4096)
        while not self._done.empty():
            self._done.get()()

    def running(self) -> list[RunningJob]:
        """The jobs that are being run. From any thread."""
        return [job_of(key, thread, since) for key, (thread, since) in self._running.copy().items()]

    def _serve(self, key: Any, queue: SimpleQueue[Job | None]) -> None:
        thread = threading.get_ident()
        while (job := queue.get()) is not None:
            work, done = job
            self._running[key] = thread, time.monotonic()
            try:
                work()
            except BaseException as error:  # of the engine: errors of user code are caught where it is called
                self.died(error)
                return
            finally:
                self._running.pop(key, None)
            self.post(done)

    def died(self, error: BaseException) -> None:
        """Let the loop raise an error that ends the calling thread: what the thread has not done would be missed by no one."""
        name = threading.current_thread().name

        def end_worker() -> None:
            raise ThreadDied(f"its thread {name!r} died: {describe(error)}") from error

        self.post(end_worker)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # a pipe full of wake-ups: one is enough
            os.write(self._signal_fd, b".")

    def close(self) -> None:
        """Give the threads some time to return from user code and close their components."""
        for key in list(self._queues):
            self.end(key)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        # The pipe stays open: a thread that is still in user code will write to it once more.


def job_of(key: Any, thread: int, since: float) -> RunningJob:
    """A job of this key, which is a task or a thread of the store."""
    if isinstance(key, StoreThread):
        return RunningJob(key.name, "", None, thread, since)
    return RunningJob(str(key.name), key.topology.graph.name, key.name, thread, since)
