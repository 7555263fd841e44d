"""Where people reach a running master from another process: an ipc socket in a private directory of the user.

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

import msgspec
import zmq

from millrace import errors
from millrace.errors import AddressInUse, MasterUnreachable, MillraceError
from millrace.runtime.wire.transport import private_directory

ANSWER_SECONDS = 10.0


def desk_directory() -> Path:
    """One per user: the names of the running clusters are its `.lock` files."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        return private_directory(os.path.join(base, "millrace"))
    return private_directory(os.path.join(tempfile.gettempdir(), f"millrace-user-{os.getuid()}"))


@dataclass(slots=True)
class Desk:
    """The master's side: holds the cluster's name as long as the process lives."""

    name: str
    path: Path
    _lock: int

    @classmethod
    def open(cls, name: str) -> Desk:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", name):
            raise MillraceError(f"{name[:60]!r} cannot name a cluster: use letters, digits and dashes, 50 at most")
        directory = desk_directory()
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


def running_clusters() -> list[str]:
    """Names of the clusters of this user on this machine whose master is alive."""
    names = []
    for path in sorted(desk_directory().glob("*.lock")):
        with path.open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                names.append(path.stem)
    return names


def ask(cluster: str | None, verb: str, *, seconds: float = ANSWER_SECONDS, **arguments: Any) -> Any:
    """Ask a running master. Without a name: the one that is running, if there is just one."""
    name = cluster or _only_cluster()
    path = desk_directory() / f"{name}.ipc"
    if name not in running_clusters():
        raise MasterUnreachable(f"no Millrace cluster named {name!r} is running here; running: "
                                f"{', '.join(running_clusters()) or 'none'}. Start one with `millrace run`.")
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{path}")
        socket.send(msgspec.msgpack.encode({"verb": verb, **arguments}))
        if not socket.poll(int(seconds * 1000)):
            raise MasterUnreachable(f"the master of cluster {name!r} is there but does not answer within {seconds:g} s")
        answer = msgspec.msgpack.decode(socket.recv())
    if "error" in answer:
        kind = getattr(errors, answer.get("kind", ""), MillraceError)
        raise kind(answer["error"])
    return answer["ok"]


def cluster_of(topology: str) -> str:
    """The running cluster that has the topology; the only one there is, whatever it has."""
    names = running_clusters()
    if len(names) < 2:
        return _only_cluster()
    having = [name for name in names if _has(name, topology)]
    if len(having) == 1:
        return having[0]
    what = f"{len(having)} of them run" if having else "none of them runs"
    raise MasterUnreachable(f"{len(names)} clusters are running ({', '.join(names)}), and {what} a topology {topology!r}: say "
                            "which one with .option(\"cluster\", ...)")


def _has(cluster: str, topology: str) -> bool:
    """One that does not answer, or ends just now, is none that could be read from."""
    try:
        return bool(ask(cluster, "has", topology=topology))
    except MillraceError:
        return False


def _only_cluster() -> str:
    names = running_clusters()
    if len(names) == 1:
        return names[0]
    if not names:
        raise MasterUnreachable("no Millrace cluster is running on this machine. Start one with `millrace run "
                                "module:Topology`, or `millrace demo`.")
    raise MasterUnreachable(f"{len(names)} clusters are running ({', '.join(names)}): say which, such as --cluster {names[0]}")
