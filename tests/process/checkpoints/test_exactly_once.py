"""Exactly once with real processes and kill -9: the sink's files and the last checkpoint match an independent count."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from millrace.config import HEARTBEAT_TIMEOUT, LEASE
from support.processes.ending import kill_and_wait
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact, assert_never_less

pytestmark = pytest.mark.process
SLOTS = 4


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, nodes=SLOTS, settings={LEASE.key: SECONDS}) as cluster:  # a stopped process must survive
        yield cluster


@pytest.fixture
def cluster(shared: ForkedCluster) -> ForkedCluster:
    shared.make_whole(SLOTS, SECONDS)
    return shared


def test_without_faults(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path)
    stream.wave(2)
    assert_all_exact(stream.finish_both())


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("killed", [1, 2, 3])
def test_workers_are_killed(cluster: ForkedCluster, tmp_path: Path, guarantee: str, killed: int) -> None:
    stream = StatefulStream(cluster.master, tmp_path, guarantee=guarantee)
    stream.wave(2)
    for slot in sorted(stream.slots())[:killed]:
        cluster.kill(slot)
    stream.wave(2)
    result = stream.finish_both()
    (assert_all_exact if guarantee == "exactly-once" else assert_never_less)(result)


@pytest.mark.parametrize("phase", ["prepare", "commit", "init"])
def test_a_worker_is_killed_during(cluster: ForkedCluster, tmp_path: Path, phase: str) -> None:
    """While the master is in that phase and waits for a task of the worker. Recovery returns to the wave committed then."""
    stream = StatefulStream(cluster.master, tmp_path)
    stream.wave(1)
    cluster.master.call(cluster.master.events.clear)
    losses: list[int] = []

    def kill() -> None:
        losses.append(stream.state.losses)
        kill_and_wait(cluster.processes[1].pid)

    if phase == "init":  # a second fault during the recovery from the first
        wave = stream.in_phase(phase, kill, slot=1, first=partial(kill_and_wait, cluster.processes[0].pid))
        cluster.kill(0)  # already dead: reaps the process
    else:
        wave = stream.in_phase(phase, kill, slot=1)
    cluster.kill(1)
    stream.until(lambda: stream.state.losses > losses[0])
    stream.wave(2)
    events = [event["text"] for event in list(cluster.master.events)]
    restored = [text for text in events if "every task has restored the state of" in text]
    assert restored and restored[-1].endswith(f"wave {wave}"), restored
    assert_all_exact(stream.finish_both())


def test_workers_are_killed_and_restarted_in_turn(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path)
    for slot in (0, 1):
        stream.wave(1)
        cluster.kill(slot)
        cluster.start(slot)
        cluster.master.wait_for_workers(SLOTS, SECONDS)
    stream.wave(2)
    assert_all_exact(stream.finish_both())


def test_a_stopped_worker_is_fenced(tmp_path: Path) -> None:
    """Its silence is noticed, although its process exists. A late heartbeat of another worker would do no harm here."""
    settings = {LEASE.key: SECONDS, HEARTBEAT_TIMEOUT.key: HEARTBEAT_TIMEOUT.default}
    with ForkedCluster(SLOTS, nodes=SLOTS, settings=settings) as cluster:
        stream = StatefulStream(cluster.master, tmp_path)
        stream.wave(2)
        process = cluster.processes[1]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            stream.until(lambda: 1 not in cluster.master.state.workers)
            stream.wave(1)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        cluster.master.wait_for_workers(SLOTS, SECONDS)
        stream.wave(2)
        assert_all_exact(stream.finish_both())
