"""Calls of the checkpoint store, one after the other, on a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
Call = tuple[str, Callable[[], Any], "Future[Any]", bool]  # its name, the work, its result; True: made after the end, too


class StoreCalls:
    """Runs calls on a daemon thread: a store that hangs keeps neither the master nor the process from ending."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._current: tuple[str, float] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="checkpoints")
        self._thread.start()

    def submit(self, what: str, work: Callable[..., Any], *arguments: Any) -> None:
        """Run the work after all earlier work. `what` names it in messages. Nobody waits for it: an error is logged."""
        self.ask(what, work, *arguments).add_done_callback(partial(_log_error, what))

    def ask(self, what: str, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run the work after all earlier work; the caller takes its result or its error."""
        future: Future[T] = Future()
        self._queue.put((what, lambda: work(*arguments), future, False))
        return future

    def submit_undoing(self, what: str, work: Callable[..., None], *arguments: Any) -> None:
        """Run work that undoes an earlier call. It is done even if `close` comes first: nobody else would undo it."""
        future: Future[None] = Future()
        future.add_done_callback(partial(_log_error, what))
        self._queue.put((what, lambda: work(*arguments), future, True))

    def current(self) -> tuple[str, float] | None:
        """The call that is being made, and its age in seconds; None while there is nothing to do."""
        current = self._current
        return (current[0], time.monotonic() - current[1]) if current is not None else None

    def close(self, seconds: float) -> bool:
        """Drop the calls that have not begun, except those that undo others, and wait for the rest. False if they did not
        return in that time."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout=seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            what, work, future, undoes = call
            if (self._closed and not undoes) or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            self._current = what, time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                self._current = None


def _log_error(what: str, future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("a call of the checkpoint store failed (%s)", what, exc_info=error)
