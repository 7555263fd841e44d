"""Intruders at the tcp ports of a cluster are rejected and counted, and the stream stays exact."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from millrace.runtime.wire.transport import Keys, visit
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, AuditedStream, assert_exact

noise = random.Random(1).randbytes
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"  # greeting of ZeroMQ's protocol 3.0; the mechanism follows


def greeting(mechanism: bytes) -> bytes:
    return GREETING + mechanism.ljust(20, b"\0") + bytes(32)


RAW = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(500),
    "zeros": bytes(4096),
    "noise": noise(100_000),
    "half a greeting": GREETING[:10],
    "an old protocol": b"\x01\x00",
    "no security": greeting(b"NULL") + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH",
    "a password": greeting(b"PLAIN") + b"\x04\x10\x05HELLO\x01a\x01b",
    "half a handshake": greeting(b"CURVE") + b"\x04\xc8\x05HELLO",
    "a made-up handshake": greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + noise(194),
    "noise after the greeting": greeting(b"CURVE") + noise(2000),
}


def wrong_key(keys: Keys, client: zmq.Socket) -> None:
    """A client that knows the cluster's public key but uses another key pair."""
    client.curve_serverkey = keys.public
    client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()


def other_cluster(keys: Keys, client: zmq.Socket) -> None:
    visit(client, Keys.make())


def no_key(keys: Keys, client: zmq.Socket) -> None: ...


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForkedCluster]:
    """A cluster of two workers that reach each other over tcp."""
    with ForkedCluster(2, bind="127.0.0.1", apart=True) as cluster:
        yield cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(300)
    return stream


def refused(cluster: ForkedCluster, port: str) -> int:
    """The number of peers that the port of the master or of worker 0 has refused."""
    if port == "master":
        return cluster.master.worker_port.refused
    return cluster.master.connections[0].counters["refused_connections"]


def endpoint(cluster: ForkedCluster, port: str) -> str:
    return cluster.master.endpoint if port == "master" else cluster.master.state.workers[0].address.tcp


def assert_undisturbed(stream: AuditedStream) -> None:
    stream.advance(300)
    assert stream.state.losses == 0
    assert_exact(stream.finish())


@pytest.mark.parametrize("port", ["worker", "master"])
def test_peers_that_do_not_speak_zeromq(port: str, cluster: ForkedCluster, stream: AuditedStream) -> None:
    host, _, number = endpoint(cluster, port).removeprefix("tcp://").rpartition(":")
    for name, data in RAW.items():
        before = refused(cluster, port)
        with socket.create_connection((host, int(number)), timeout=SECONDS) as stranger:
            with contextlib.suppress(OSError):  # it may be disconnected before it has sent everything
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
            stream.until(lambda before=before: refused(cluster, port) > before)
        assert refused(cluster, port) == before + 1, name
    assert_undisturbed(stream)


def test_many_silent_connections(cluster: ForkedCluster, stream: AuditedStream) -> None:
    host, _, number = endpoint(cluster, "worker").removeprefix("tcp://").rpartition(":")
    before = refused(cluster, "worker")
    strangers = [socket.create_connection((host, int(number)), timeout=SECONDS) for _ in range(100)]
    stream.advance(300)
    for stranger in strangers:
        stranger.close()
    stream.until(lambda: refused(cluster, "worker") == before + len(strangers))
    assert_undisturbed(stream)


@pytest.mark.parametrize("port", ["worker", "master"])
@pytest.mark.parametrize("stranger", [wrong_key, other_cluster, no_key])
def test_clients_without_the_clusters_key(stranger: Callable[[Keys, zmq.Socket], None], port: str, cluster: ForkedCluster,
                                          stream: AuditedStream) -> None:
    before = refused(cluster, port)
    with zmq.Context() as context, context.socket(zmq.PUSH if port == "worker" else zmq.DEALER) as client:
        client.linger = 0
        stranger(cluster.master.keys, client)
        client.connect(endpoint(cluster, port))
        client.send(b"let me in")
        stream.until(lambda: refused(cluster, port) > before)
    malformed = [dict(connection.counters).get("malformed", 0) for connection in cluster.master.connections.values()]
    assert not any(malformed), "what it sent must not get in"
    assert cluster.master.worker_port.malformed == 0
    assert_undisturbed(stream)


def test_nothing_listens_on_tcp_by_default() -> None:
    with ForkedCluster(2) as cluster:
        assert [worker.address.tcp for worker in cluster.master.state.workers.values()] == ["", ""]
        assert cluster.master.endpoint.startswith("tcp://127.0.0.1:")
        mine = listening([process.pid for process in cluster.processes.values()])
        assert mine == set()


def listening(pids: list[int]) -> set[str]:
    """Local addresses on which these processes listen, from /proc."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = str(fd.readlink()) if fd.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}
