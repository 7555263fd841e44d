"""The master's request socket: ipc, in a directory that only its user can enter.

    request: {"verb": "status", ...}    answer: {"ok": ...} or {"error": "...", "kind": "UnknownTopology"}
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zmq

from millrace.errors import AddressInUse, MillraceError
from millrace.runtime.leftovers import lock_file
from millrace.runtime.wire.transport import private_directory

MasterRequest = dict[str, Any]
LOCK_TRIES, LOCK_PAUSE = 20, 0.02  # the pause in seconds
Verb = Callable[[MasterRequest], Any]  # returns the answer, or a Future of it


def request_directory() -> Path:
    """The user's directory of request sockets. Its `.lock` files name the running clusters."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        return private_directory(os.path.join(base, "millrace"))
    return private_directory(os.path.join(tempfile.gettempdir(), f"millrace-user-{os.getuid()}"))


@dataclass(slots=True)
class RequestSocket:
    """Holds the cluster's name while the master's process lives."""

    name: str
    path: Path
    _lock: int

    @classmethod
    def open(cls, name: str) -> RequestSocket:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", name):
            raise MillraceError(f"{name[:60]!r} cannot name a cluster: use letters, digits and dashes, 50 at most")
        directory = request_directory()
        _sweep(directory)
        path = directory / f"{name}.lock"
        lock = _lock(path)
        if lock is None:
            holder = path.read_text() if path.exists() else ""
            raise AddressInUse(f"a Millrace cluster named {name!r} is running already (process {holder or 'unknown'}): "
                               "choose another name with --cluster, or stop that one")
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        return cls(name, directory / f"{name}.ipc", lock)

    def listen(self, context: zmq.Context[Any]) -> zmq.Socket[Any]:
        socket = context.socket(zmq.ROUTER)
        socket.linger = 200
        try:
            socket.bind(f"ipc://{self.path}")
        except zmq.ZMQError as error:
            raise MillraceError(f"cannot listen at {self.path}: {error.strerror}. Set XDG_RUNTIME_DIR, or TMPDIR, to another "
                                "directory") from None
        return socket

    def close(self) -> None:
        _remove(self.path.with_suffix(".lock"))
        os.close(self._lock)


def _lock(path: Path) -> int | None:
    """Lock the file; None if a master has it. A command that looks for masters has it for a moment only."""
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(OSError):
            return lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(LOCK_PAUSE)
    return None


def _sweep(directory: Path) -> None:
    """Remove the files of masters that have died. Their locks are free."""
    for path in directory.glob("*.lock"):
        with contextlib.suppress(OSError):  # in use, or removed meanwhile
            lock = lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB, make=False)
            _remove(path)
            os.close(lock)


def _remove(lock: Path) -> None:
    """Remove a master's files, by whoever holds the lock: `lock_file` notices that a file is no longer the one of its name."""
    lock.with_suffix(".ipc").unlink(missing_ok=True)
    lock.unlink(missing_ok=True)


class RequestServer:
    """Answers requests, on the master's thread. While a verb's answer is a Future that is not done, others are answered.
    `later` runs work on the master's thread and may be called from any thread."""

    def __init__(self, socket: zmq.Socket[Any], verbs: Mapping[str, Verb], later: Callable[[Callable[[], Any]], None]) -> None:
        self.socket, self._verbs, self._later = socket, verbs, later

    def listen(self) -> None:
        """Answer the requests that have arrived."""
        while self.socket.poll(0):
            *sender, body = self.socket.recv_multipart()
            future: Future[Any] = Future()
            try:
                answer = self._answer(msgspec.msgpack.decode(body))
                if isinstance(answer, Future):
                    future = answer
                else:
                    future.set_result(answer)
            except Exception as error:
                future.set_exception(error)
            if future.done():
                self._reply(sender, future)
            else:
                future.add_done_callback(partial(self._reply_later, sender))

    def _answer(self, request: MasterRequest) -> Any:
        verb = str(request.get("verb"))
        if verb not in self._verbs:
            raise MillraceError(f"unknown command {verb!r}; commands: {', '.join(self._verbs)}")
        return self._verbs[verb](request)

    def _reply_later(self, sender: list[bytes], future: Future[Any]) -> None:
        """Called on any thread."""
        self._later(lambda: self._reply(sender, future))

    def _reply(self, sender: list[bytes], future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            answer = {"ok": future.result()}
        else:
            known = isinstance(error, MillraceError)
            answer = {"error": str(error) if known else f"{type(error).__name__}: {error}", "kind": type(error).__name__}
        try:
            body = msgspec.msgpack.encode(answer)
        except (TypeError, OverflowError, ValueError) as failure:  # a user's own parameters may be anything
            body = msgspec.msgpack.encode({"error": f"the answer cannot be sent: {failure}", "kind": "MillraceError"})
        self.socket.send_multipart([*sender, body])
