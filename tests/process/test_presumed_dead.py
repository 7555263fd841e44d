"""A live worker that is stopped (SIGSTOP) until it is presumed dead: it is fenced, restarts and is used again.

These tests do not wait for the silence itself; test_exactly_once.py and test_tcp.py do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import HEARTBEAT_SECONDS
from support.processes.ending import presumed_dead
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, AuditedStream, assert_exact, assert_nothing_lost

SLOTS = 3


@pytest.fixture
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, settings={"worker.lease.secs": SECONDS}) as cluster:
        yield cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(500)
    return stream


def generation(cluster: ForkedCluster, slot: int) -> int | None:
    worker = cluster.master.state.workers.get(slot)
    return worker.address.generation if worker is not None else None


def stop_until_presumed_dead(cluster: ForkedCluster, stream: AuditedStream, slot: int) -> None:
    """Stop the process until the master presumes it dead, but not while it writes a plan: that would block the plan store."""
    state = cluster.master.state
    stream.until(lambda: all(worker.revision == state.revision for worker in state.workers.values()))
    os.kill(cluster.processes[slot].pid, signal.SIGSTOP)
    stream.until(presumed_dead(cluster.master, slot))
    assert slot not in stream.slots()


def wake(cluster: ForkedCluster, slot: int) -> None:
    os.kill(cluster.processes[slot].pid, signal.SIGCONT)


def test_it_restarts_and_is_used_again(cluster: ForkedCluster, stream: AuditedStream) -> None:
    for slot in range(SLOTS):
        before = generation(cluster, slot)
        assert before is not None
        pid = cluster.processes[slot].pid
        stop_until_presumed_dead(cluster, stream, slot)
        stream.advance(500)
        wake(cluster, slot)
        stream.until(lambda slot=slot: slot in stream.slots())
        after = generation(cluster, slot)
        assert after is not None and after > before
        assert cluster.master.connections[slot].hello.pid == pid
        stream.advance(500)
    assert_nothing_lost(stream.finish(), ahead=True)


def test_all_at_once(cluster: ForkedCluster, stream: AuditedStream) -> None:
    for slot in range(SLOTS):
        os.kill(cluster.processes[slot].pid, signal.SIGSTOP)
        stream.until(presumed_dead(cluster.master, slot))
    assert stream.state.status == "waiting"
    for slot in range(SLOTS):
        wake(cluster, slot)
    stream.until(lambda: len(cluster.master.state.workers) == SLOTS and stream.state.status == "running")
    stream.advance(500)
    assert_nothing_lost(stream.finish(), ahead=True)


def test_its_slot_was_given_to_another_process(cluster: ForkedCluster, stream: AuditedStream) -> None:
    """Spark may restart the task elsewhere: the old process must end and not take the slot back."""
    old = cluster.processes[1]
    stop_until_presumed_dead(cluster, stream, 1)
    cluster.start(1)
    stream.until(lambda: 1 in stream.slots())
    winner = generation(cluster, 1)
    os.kill(old.pid, signal.SIGCONT)
    old.join(SECONDS)
    assert old.exitcode == 0
    stream.advance(500)
    assert generation(cluster, 1) == winner
    assert cluster.master.connections[1].hello.pid == cluster.processes[1].pid
    assert_nothing_lost(stream.finish(), ahead=True)


def test_a_shorter_stop_changes_nothing(tmp_path: Path) -> None:
    """Stopped for less than the timeout: no worker is lost, and nothing is sent twice."""
    with ForkedCluster(2) as cluster:
        assert cluster.master.worker_port.patience.timeout == HEARTBEAT_SECONDS > 1.0
        stream = AuditedStream(cluster.master, tmp_path)
        stream.advance(500)
        os.kill(cluster.processes[1].pid, signal.SIGSTOP)
        heard = cluster.master.connections[1].heard
        stream.until(lambda: cluster.master.connections[0].heard > heard + 1.0)
        wake(cluster, 1)
        stream.advance(500)
        assert stream.state.losses == 0
        assert_exact(stream.finish())
