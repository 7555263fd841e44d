"""Requests to a running master from another process of the same user."""

from __future__ import annotations

import fcntl
from typing import Any

import msgspec
import zmq

from millrace import errors
from millrace.errors import MasterUnreachable, MillraceError
from millrace.master.requests.server import request_directory

ANSWER_SECONDS = 10.0


def running_clusters() -> list[str]:
    """Names of the clusters of this user on this machine whose master is alive."""
    names = []
    for path in sorted(request_directory().glob("*.lock")):
        with path.open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                names.append(path.stem)
    return names


def ask(cluster: str | None, verb: str, *, seconds: float = ANSWER_SECONDS, **arguments: Any) -> Any:
    """Ask a running master. Without a name: the one that is running, if there is just one."""
    name = cluster or _only_cluster()
    path = request_directory() / f"{name}.ipc"
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
