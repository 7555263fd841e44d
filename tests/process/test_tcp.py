"""Workers that take themselves to be on different hosts: tuples cross over tcp with CURVE, and connections may break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.cutting import cut, port_of
from support.processes.forked import ForkedCluster
from support.topologies.audited import AuditedStream, assert_exact, assert_nothing_lost

SLOTS = 3
SOON = {"topology.message.timeout.secs": 1.5}  # what was lost with a connection is sent again after this


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, bind="127.0.0.1", apart=True) as cluster:
        yield cluster


def data_ports(cluster: ForkedCluster) -> list[int]:
    return [port_of(worker.address.tcp) for worker in cluster.master.state.workers.values()]


def cut_everything(cluster: ForkedCluster) -> int:
    """All connections between workers, at the side that listens."""
    return sum(cut(process.pid, port) for process in cluster.processes.values() for port in data_ports(cluster))


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_every_word_crosses_once(guarantee: str, cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = AuditedStream(cluster.master, tmp_path, **{"topology.guarantee": guarantee})
    stream.advance(500)
    assert len(stream.slots()) == SLOTS
    assert cut_count(cluster) > 0, "the words must have crossed over tcp"
    assert_exact(stream.finish())


def cut_count(cluster: ForkedCluster) -> int:
    """Established tcp connections at the workers' data ports."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = set(data_ports(cluster))
    return sum(row[3] == "01" and int(row[1].rpartition(":")[2], 16) in ports for row in rows)


@pytest.mark.parametrize("window", [1, 4])
def test_broken_connections_between_workers(window: int, cluster: ForkedCluster, tmp_path: Path) -> None:
    """Chunks and credits that were on the wire are gone. Nobody died, so only the stream itself can find out."""
    stream = AuditedStream(cluster.master, tmp_path, rate=8000, **SOON, **{"topology.channel.window": window})
    stream.advance(500)
    for _ in range(3):
        assert cut_everything(cluster) > 0
        stream.advance(500)
    assert stream.state.losses == 0
    assert_nothing_lost(stream.finish())


def test_at_most_once_goes_on_over_broken_connections(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = AuditedStream(cluster.master, tmp_path, rate=8000, **{"topology.guarantee": "at-most-once",
                                                                   "topology.channel.window": 1})
    stream.advance(500)
    for _ in range(3):
        assert cut_everything(cluster) > 0
        stream.advance(500)
    found = stream.finish()
    assert (found.repeated, found.wrong, found.beyond) == (0, 0, 0), found


def test_broken_connections_to_the_master(cluster: ForkedCluster, tmp_path: Path) -> None:
    """The workers must still get the next plan, by which they take over what was on the one that died."""
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(500)
    for process in cluster.processes.values():
        assert cut(process.pid, port_of(cluster.master.endpoint)) == 3  # control, heartbeats and the agent
    stream.advance(500)
    assert stream.state.losses == 0
    cluster.kill(2)  # not known to be on the master's host: only its silence tells
    stream.until(lambda: 2 not in stream.slots())
    stream.advance(500)
    cluster.start(2)
    stream.until(lambda: 2 in stream.slots())
    stream.advance(500)
    assert_nothing_lost(stream.finish())
