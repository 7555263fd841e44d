"""Connections between hosts are replaced soon after the network has failed, as the kernel's own limits would not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from millrace.control.assignment import WorkerAddress
from millrace.runtime.wire.transport import CONNECT_MS, UNACKED_MS, DataPort, Gate, Keys, SocketPeers, visit

KEYS = Keys.make()
LIMIT_MS = 20_000  # a safety limit


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context()
    gate = Gate(context, KEYS)
    yield context
    gate.close()
    context.destroy(linger=0)


def limits(port: int) -> list[int]:
    """Milliseconds for which bytes may stay unacknowledged, at each end of the connections of this process with that port."""
    found = []
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        try:
            copy = socket.socket(fileno=os.dup(fd))
        except OSError:  # not a socket, or closed meanwhile
            continue
        with copy:
            if copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM:
                try:
                    ends = copy.getsockname()[1], copy.getpeername()[1]
                except OSError:  # it listens
                    continue
                found += [copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)] if port in ends else []
    return found


def test_both_ends_of_a_connection_between_workers_are_limited(context: zmq.Context[Any], tmp_path: Path) -> None:
    port = DataPort(context, "w0", tmp_path, "127.0.0.1", KEYS)
    peers = SocketPeers(context, KEYS, "this host")
    try:
        peers.link(WorkerAddress(0, 1, "node", "another host", port.ipc, port.tcp)).send([b"hello"])
        assert port.sockets[1].poll(LIMIT_MS)
        assert limits(int(port.tcp.rpartition(":")[2])) == [UNACKED_MS, UNACKED_MS]
    finally:
        peers.close()
        port.close()


def test_an_attempt_to_connect_is_limited(context: zmq.Context[Any]) -> None:
    with context.socket(zmq.DEALER) as dealer:
        visit(dealer, KEYS)
        assert dealer.getsockopt(zmq.CONNECT_TIMEOUT) == CONNECT_MS
