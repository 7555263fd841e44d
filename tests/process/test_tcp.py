"""Workers that believe they are on different hosts: tuples cross over tcp with CURVE, and connections may break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.config import HEARTBEAT_TIMEOUT
from support.processes.cutting import cut, established, port_of
from support.processes.forked import ForkedCluster
from support.topologies.audited import AuditedStream, StatefulStream, assert_exact, assert_in_order, assert_nothing_lost

SLOTS = 3
SOON = {"topology.message.timeout.secs": 1.5}  # tuples lost with a connection are replayed after this


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, bind="127.0.0.1", apart=True) as cluster:
        yield cluster


def data_ports(cluster: ForkedCluster) -> set[int]:
    return {port_of(worker.address.tcp) for worker in cluster.master.state.workers.values()}


def cut_everything(cluster: ForkedCluster, stream: AuditedStream) -> None:
    """Cut every connection between workers, while each worker has one to each other."""
    ports = data_ports(cluster)
    stream.until(lambda: len(established(ports)) >= SLOTS * (SLOTS - 1))
    before = established(ports)
    assert sum(cut(process.pid, port) for process in cluster.processes.values() for port in ports) >= len(before)
    assert not before & established(ports), "connections outlived the cut"


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_every_word_crosses_once(guarantee: str, cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = AuditedStream(cluster.master, tmp_path, par={"split": 1}, **{"topology.guarantee": guarantee})
    stream.advance(500)
    assert len(stream.slots()) == SLOTS
    assert len(established(data_ports(cluster))) >= SLOTS * (SLOTS - 1), "the words must have crossed over tcp"
    assert_exact(stream.finish())
    assert_in_order(tmp_path)


@pytest.mark.parametrize("window", [1, 4])
def test_broken_connections_between_workers(window: int, cluster: ForkedCluster, tmp_path: Path) -> None:
    """Chunks and credits on the wire are lost. No worker died, so only the stream itself can notice."""
    stream = AuditedStream(cluster.master, tmp_path, rate=8000, **SOON, **{"topology.channel.window": window})
    stream.advance(500)
    for _ in range(3):
        cut_everything(cluster, stream)
        stream.advance(500)
    assert stream.state.losses == 0
    assert_nothing_lost(stream.finish())


def test_at_most_once_continues_in_order_over_broken_connections(cluster: ForkedCluster, tmp_path: Path) -> None:
    """Words may be lost with a connection; none is repeated or overtaken, and most arrive."""
    stream = AuditedStream(cluster.master, tmp_path, rate=8000, par={"split": 1},
                           **{"topology.guarantee": "at-most-once", "topology.channel.window": 1})
    stream.advance(500)
    for _ in range(3):
        cut_everything(cluster, stream)
        stream.advance(500)
    result = stream.finish()
    assert (result.repeated, result.wrong, result.beyond, result.torn_bytes) == (0, 0, 0, 0), result
    assert result.tuples_out == result.tuples_in - result.lost > result.lost, result
    assert_in_order(tmp_path)


def test_workers_copy_what_they_store_in_a_directory(cluster: ForkedCluster, tmp_path: Path) -> None:
    """Hosts share a directory over the network, which tasks that survive a failure need not use."""
    stream = StatefulStream(cluster.master, tmp_path)
    stream.wave(1)
    slots = {place.slot for task, place in stream.state.places.items() if task.component == "count"}
    runtime = Path(cluster.setup().directory())
    stream.until(lambda: slots <= {slot for slot in range(SLOTS) if any((runtime / f"copies-{slot}").rglob("count*"))})
    stream.end()


def test_broken_connections_to_the_master(cluster: ForkedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers still get the next plan, by which they take over the tasks of the one that died."""
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(500)
    master = {port_of(cluster.master.endpoint)}
    before = established(master)
    for process in cluster.processes.values():
        assert cut(process.pid, *master) == 3  # control, heartbeats and the agent
    stream.until(lambda: len(established(master) - before) == 3 * SLOTS)
    stream.advance(500)
    assert stream.state.losses == 0
    cluster.kill(2)  # on another host as far as the master knows, so only its silence shows the loss
    with monkeypatch.context() as patch:  # a late heartbeat of another worker would do no harm here
        patch.setattr(cluster.master.worker_port.patience, "timeout", HEARTBEAT_TIMEOUT.default)
        stream.until(lambda: 2 not in cluster.master.state.workers)
    assert 2 not in stream.slots()
    stream.advance(500)
    cluster.start(2)
    stream.until(lambda: 2 in stream.slots())
    stream.advance(500)
    assert_nothing_lost(stream.finish())
