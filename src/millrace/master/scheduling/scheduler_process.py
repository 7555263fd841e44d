"""Runs schedulers in a separate process: one that hangs is killed, one that crashes does no other harm, and the master
keeps listening to its workers while ten thousand tasks are being placed. scheduler_child.py is the other end."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec

from millrace.errors import MillraceError, SchedulerFailed
from millrace.model.situation import Situation
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.rules import check_result, result_from_json

log = logging.getLogger("millrace.master")
START_SECONDS = 60.0  # for the process to start: importing takes a while on a busy machine
LENGTH = struct.Struct("<Q")
SchedulerAnswer = dict[str, Any]
OnAnswer = Callable[[SchedulerAnswer | SchedulerFailed], None]


class SchedulerProcess:
    """`ask` returns at once; `done` is called later, on this class's thread, with the answer or the failure.

    `keep`: use one process for all requests, until it fails or `renew` is called; otherwise a new one for each request.
    """

    def __init__(self, keep: bool = True) -> None:
        self._keep = keep
        self._requests: SimpleQueue[tuple[int, SchedulerAnswer, float, OnAnswer] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: _Child | None = None
        self._era = 0  # requests of earlier eras are dropped
        self._closing = False

    def ask(self, request: SchedulerAnswer, time_limit: float, done: OnAnswer) -> None:
        """Send the request. A situation in it is encoded on this class's thread: a large one takes a while."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="millrace scheduler")
            self._thread.start()
        self._requests.put((self._era, request, time_limit, done))

    def _run(self) -> None:
        while (todo := self._requests.get()) is not None:
            era, request, time_limit, done = todo
            try:
                answer: SchedulerAnswer | SchedulerFailed = self._answer(era, request, time_limit)
            except Exception as error:  # the next request gets a new process
                self._end_child()
                answer = (error if isinstance(error, SchedulerFailed)
                          else SchedulerFailed(f"its process failed: {type(error).__name__}: {error}"))
            if not self._keep:
                self._end_child()
            try:
                done(answer)
            except Exception:
                log.exception("an unexpected error after a scheduler's answer")
        self._end_child()

    def _answer(self, era: int, request: SchedulerAnswer, time_limit: float) -> SchedulerAnswer | SchedulerFailed:
        self._check_current(era)
        if self._child is None or not self._child.alive:
            self._end_child()
            self._child = _Child()
            self._check_current(era)
            self._child.receive(START_SECONDS, "its process did not start in time")
        self._child.send(request)
        answer = self._child.receive(time_limit, f"it gave no answer within {time_limit:g} s and was stopped: give it more "
                                                 "time with `millrace scheduler set ... --time-limit`, or choose another one")
        return SchedulerFailed(answer["error"]) if "error" in answer else answer

    def _check_current(self, era: int) -> None:
        if self._closing or era != self._era:
            raise SchedulerFailed("the request was dropped: the master is ending, or another scheduler was chosen")

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def renew(self) -> None:
        """Drop all pending requests, and read users' code again for the next one. Called on the thread that asks."""
        self._era += 1
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._requests.put(None)
            self.renew()  # a request may be running that never ends
            self._thread.join(timeout=10)


class _Child:
    """The process. Requests and answers go through separate pipes, so that user code may print."""

    def __init__(self) -> None:
        request_read, self._to = os.pipe()
        self._from, answer_write = os.pipe()
        code = f"from millrace.master.scheduling.scheduler_child import serve; serve({request_read}, {answer_write})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=(request_read, answer_write),
                                         stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
                                         stdout=sys.stderr.fileno() if _has_fd() else subprocess.DEVNULL)
        os.close(request_read)
        os.close(answer_write)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, request: SchedulerAnswer) -> None:
        plain = {key: value.to_json() if isinstance(value, Situation) else value for key, value in request.items()}
        write_message(self._to, msgspec.msgpack.encode(plain))

    def receive(self, seconds: float, too_late: str) -> SchedulerAnswer:
        deadline, data = time.monotonic() + seconds, bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise SchedulerFailed(too_late)
                piece = os.read(self._from, 1 << 20)
                if not piece:
                    raise SchedulerFailed(f"its process ended with code {self._process.wait()} before it answered")
                data += piece
        answer: SchedulerAnswer = msgspec.msgpack.decode(data[LENGTH.size:])
        return answer

    def kill(self) -> None:
        """Kill the process and all that it has started: it leads its own session."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        self.kill()
        os.close(self._to)
        os.close(self._from)


def _has_fd() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.fileno() >= 0
    except (OSError, ValueError):  # a test or a notebook has replaced it
        return False


def write_message(fd: int, body: bytes) -> None:
    view = memoryview(LENGTH.pack(len(body)) + body)
    while view:
        view = view[os.write(fd, view):]


def read_message(fd: int) -> bytes | None:
    """The next message; None when the other end is closed."""
    with os.fdopen(os.dup(fd), "rb", buffering=0) as stream:
        head = stream.read(LENGTH.size)
        if not head:
            return None
        body, wanted = bytearray(), LENGTH.unpack(head)[0]
        while len(body) < wanted:
            piece = stream.read(wanted - len(body))
            if not piece:
                return None
            body += piece
        return bytes(body)


def checked_answer(situation: Situation, answer: SchedulerAnswer | SchedulerFailed) -> SchedulingResult | SchedulerFailed:
    """The scheduler's answer, checked; called beside the master's thread, since a large plan takes a while."""
    if isinstance(answer, SchedulerFailed):
        return answer
    try:
        return check_result(situation, result_from_json(answer))
    except (MillraceError, KeyError, TypeError, ValueError) as error:
        return SchedulerFailed(str(error))
    except Exception as error:  # without a result, the scheduler would never be asked again
        return SchedulerFailed(f"its answer cannot be read: {type(error).__name__}: {error}")
