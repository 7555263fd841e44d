"""The socket where a master takes requests: ipc, in a directory that only its user can enter.

    request: {"verb": "status", ...}    answer: {"ok": ...} or {"error": "...", "kind": "UnknownTopology"}
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from millrace.errors import AddressInUse, MillraceError
from millrace.runtime.wire.transport import private_directory


def request_directory() -> Path:
    """One per user: the names of the running clusters are its `.lock` files."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        return private_directory(os.path.join(base, "millrace"))
    return private_directory(os.path.join(tempfile.gettempdir(), f"millrace-user-{os.getuid()}"))


@dataclass(slots=True)
class RequestSocket:
    """Holds the cluster's name for as long as the master's process lives."""

    name: str
    path: Path
    _lock: int

    @classmethod
    def open(cls, name: str) -> RequestSocket:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", name):
            raise MillraceError(f"{name[:60]!r} cannot name a cluster: use letters, digits and dashes, 50 at most")
        directory = request_directory()
        lock = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(lock, 32).decode() or "unknown"
            os.close(lock)
            raise AddressInUse(f"a Millrace cluster named {name!r} is running already (process {holder}): "
                               "choose another name with --cluster, or stop that one") from None
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
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)
