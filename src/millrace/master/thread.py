"""The master's thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import zmq

from millrace.errors import MillraceError

log = logging.getLogger("millrace.master")
TICK_SECONDS = 0.1


class MasterThread:
    """Polls sockets, runs the work that other threads hand over, and ticks. `sources` returns the sockets and file descriptors
    to poll, before each turn; `hear` is called with those that are readable. `failed` is called with every exception that
    nobody else gets to see."""

    def __init__(self, sources: Callable[[], Iterable[Any]], hear: Callable[[Mapping[Any, int]], None],
                 tick: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._sources, self._hear, self._tick, self._failed = sources, hear, tick, failed
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any] | None]] = SimpleQueue()
        self._waiters: list[Waiter] = []
        self._thread: threading.Thread | None = None
        self._ending = False

    # -- from other threads ------------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        return self._thread is not None and not self._ending

    def start(self) -> None:
        self._wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._signal_fd, False)
        self._thread = threading.Thread(target=self._run, daemon=True, name="millrace master")
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work` on the thread and return its result, or raise its exception."""
        if self._ending or self._thread is None:
            raise MillraceError("the master is not running")
        if threading.current_thread() is self._thread:  # called by a condition or a listener
            return work()
        future: Future[Any] = Future()
        self._hand_over(work, future)
        while True:
            try:
                return future.result(timeout=1.0)
            except FutureTimeout:
                if not self._thread.is_alive():
                    raise MillraceError("the master has stopped") from None

    def later(self, work: Callable[[], Any]) -> None:
        """Run `work` on the thread soon, without waiting for it. Its exception is a failure of the thread."""
        self._hand_over(work, None)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is evaluated on the thread, holds. False if time ran out."""
        waiter = Waiter(condition)
        self.later(lambda: self._waiters.append(waiter))  # only the thread touches the list
        try:
            return bool(waiter.future.result(timeout=seconds))
        except FutureTimeout:
            return False
        finally:
            waiter.over = True

    def end(self) -> None:
        assert self._thread is not None
        self._ending = True
        self._wake()
        self._thread.join(timeout=10)

    def _hand_over(self, work: Callable[[], Any], future: Future[Any] | None) -> None:
        self._calls.put((work, future))
        if self._thread is not None:  # otherwise it finds the work when it starts
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a pipe full of wake-ups: one is enough
            os.write(self._signal_fd, b".")

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_tick = 0.0
        while not self._ending:
            try:
                ready = self._poll()
                self._hear(ready)
                self._run_calls(ready)
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_SECONDS
                    self._tick()
            except BaseException as error:  # a thread that ended would leave everyone waiting
                self._report(error)
                time.sleep(TICK_SECONDS)  # the cause may last
            self._ask_waiters()
        for waiter in self._waiters:
            waiter.ask()
            waiter.resolve(False)

    def _report(self, error: BaseException) -> None:
        log.error("unexpected error on the master's thread", exc_info=error)
        try:
            self._failed(error)
        except BaseException:
            log.exception("the failure could not be handled")

    def _poll(self) -> Mapping[Any, int]:
        poller = zmq.Poller()
        for source in (*self._sources(), self._wake_fd):
            poller.register(source, zmq.POLLIN)
        return dict(poller.poll(int(TICK_SECONDS * 1000)))

    def _run_calls(self, ready: Mapping[Any, int]) -> None:
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)
        while not self._calls.empty():
            work, future = self._calls.get()
            try:
                result = work()
            except BaseException as error:
                if future is None:
                    self._report(error)
                else:
                    future.set_exception(error)
            else:
                if future is not None:
                    future.set_result(result)

    def _ask_waiters(self) -> None:
        for waiter in self._waiters:
            waiter.ask()
        if any(waiter.over for waiter in self._waiters):
            self._waiters = [waiter for waiter in self._waiters if not waiter.over]


class Waiter:
    """A condition on the master's state that another thread waits for."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self.future: Future[bool] = Future()
        self.over = False

    def ask(self) -> None:
        try:
            if not self.over and self._condition():
                self.resolve(True)
        except Exception as error:
            self.over = True
            self.future.set_exception(error)

    def resolve(self, answer: bool) -> None:
        if not self.over:
            self.over = True
            self.future.set_result(answer)
