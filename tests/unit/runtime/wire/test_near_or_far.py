"""Processes that share a kernel and process ids talk through ipc only if they share the sockets' directory too."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from millrace.control.assignment import WorkerAddress
from millrace.runtime.wire.transport import DataPort, Gate, Keys, SocketPeers, ipc_answers, reached_by_ipc

KEYS = Keys.make()
BOOT = "the same kernel"
LIMIT_MS = 20_000  # a safety limit


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context()
    gate = Gate(context, KEYS)
    yield context
    gate.close()
    context.destroy(linger=0)


@pytest.fixture
def port(context: zmq.Context[Any], tmp_path: Path) -> Iterator[DataPort]:
    port = DataPort(context, "w0", tmp_path, "127.0.0.1", KEYS)
    yield port
    port.close()


def address(port: DataPort, ipc: str, boot: str = BOOT) -> WorkerAddress:
    return WorkerAddress(0, 1, "node", boot, ipc, port.tcp)


def received_on(context: zmq.Context[Any], port: DataPort, to: WorkerAddress) -> str:
    """Send through a new link; returns the kind of socket that the message came through."""
    peers = SocketPeers(context, KEYS, BOOT)
    poller = zmq.Poller()
    for one in port.sockets:
        poller.register(one, zmq.POLLIN)
    try:
        peers.link(to).send([b"hello"])
        (ready, _), *more = poller.poll(LIMIT_MS)
        assert not more and ready.recv() == b"hello"
        return "ipc" if ready is port.sockets[0] else "tcp"
    finally:
        peers.close()


def test_ipc_is_used_where_its_socket_answers(context: zmq.Context[Any], port: DataPort) -> None:
    assert received_on(context, port, address(port, port.ipc)) == "ipc"


def test_tcp_is_used_where_the_directory_is_not_shared(context: zmq.Context[Any], port: DataPort, tmp_path: Path) -> None:
    """As in a container with its own /tmp: the path is not there, or another container's old socket is."""
    assert received_on(context, port, address(port, f"ipc://{tmp_path}/elsewhere/w0.ipc")) == "tcp"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "dead.ipc"))
    assert received_on(context, port, address(port, f"ipc://{tmp_path}/dead.ipc")) == "tcp"


def test_tcp_is_used_between_kernels_whatever_the_path(context: zmq.Context[Any], port: DataPort) -> None:
    assert received_on(context, port, address(port, port.ipc, boot="another kernel")) == "tcp"


def test_a_socket_whose_queue_is_full_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(tmp_path / "busy.ipc"))
        busy.listen(0)
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        waiting.connect(str(tmp_path / "busy.ipc"))
        assert ipc_answers(f"ipc://{tmp_path}/busy.ipc")
        waiting.close()


@pytest.mark.parametrize("own, boot, tcp, near", [
    (BOOT, BOOT, "", True), (BOOT, BOOT, "tcp://127.0.0.1:1", False), (BOOT, "other", "", False), ("", "", "", False)])
def test_a_process_without_tcp_is_not_tried(own: str, boot: str, tcp: str, near: bool, tmp_path: Path) -> None:
    assert reached_by_ipc(own, boot, f"ipc://{tmp_path}/missing.ipc", tcp) is near
