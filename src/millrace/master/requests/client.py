"""Requests to a running master from another process of the same user."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any

import msgspec
import zmq

from millrace import errors
from millrace.errors import MasterUnreachable, MillraceError
from millrace.master.requests.server import request_directory
from millrace.runtime.leftovers import lock_file

ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0  # between two looks whether the master is still there


def running_clusters() -> list[str]:
    """Names of this user's clusters on this machine whose master is alive."""
    names = []
    for path in sorted(request_directory().glob("*.lock")):
        try:
            os.close(lock_file(path, fcntl.LOCK_SH | fcntl.LOCK_NB, make=False))
        except FileNotFoundError:  # its master has just ended
            continue
        except OSError:
            names.append(path.stem)
    return names


def ask(cluster: str | None, verb: str, *, seconds: float = ANSWER_SECONDS, **arguments: Any) -> Any:
    """Send a request to a running master and return the answer. Without a name: to the only one running."""
    name = cluster or _only_cluster()
    path = request_directory() / f"{name}.ipc"
    if name not in running_clusters():
        raise MasterUnreachable(f"no Millrace cluster named {name!r} is running here; running: "
                                f"{', '.join(running_clusters()) or 'none'}. Start one with `millrace run`.")
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{path}")
        socket.send(msgspec.msgpack.encode({"verb": verb, **arguments}))
        _await_answer(socket, name, seconds)
        answer = msgspec.msgpack.decode(socket.recv())
    if "error" in answer:
        kind = getattr(errors, answer.get("kind", ""), MillraceError)
        raise kind(answer["error"])
    return answer["ok"]


def _await_answer(socket: zmq.Socket[bytes], cluster: str, seconds: float) -> None:
    """Wait for the answer. Some verbs take minutes: a master that ends meanwhile must not be waited for."""
    deadline = time.monotonic() + seconds
    while not socket.poll(int(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())) * 1000)):
        if time.monotonic() >= deadline:
            raise MasterUnreachable(f"the master of cluster {cluster!r} is running but did not answer within {seconds:g} s")
        if cluster not in running_clusters():
            raise MasterUnreachable(f"the master of cluster {cluster!r} has ended before it answered")


def cluster_running(topology: str) -> str:
    """Name of the cluster that runs the topology; if only one cluster is running, that one."""
    names = running_clusters()
    if len(names) < 2:
        return _only_cluster()
    matches = [name for name in names if _has(name, topology)]
    if len(matches) == 1:
        return matches[0]
    what = f"{len(matches)} of them run" if matches else "none of them runs"
    raise MasterUnreachable(f"{len(names)} clusters are running ({', '.join(names)}), and {what} a topology {topology!r}: "
                            "choose one with .option(\"cluster\", ...)")


def _has(cluster: str, topology: str) -> bool:
    """True if the cluster runs the topology. False if its master does not answer or is ending: nothing can be read from it."""
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
    raise MasterUnreachable(f"{len(names)} clusters are running ({', '.join(names)}): choose one, such as --cluster {names[0]}")
