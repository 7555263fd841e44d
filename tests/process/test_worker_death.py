"""Workers die by kill -9 while a stream runs at thousands of lines per second: every word still arrives."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.ending import kill_and_wait
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, UNHURRIED, AuditedStream, assert_exact, assert_nothing_lost

SLOTS = 4


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ForkedCluster) -> ForkedCluster:
    """The cluster with all slots alive."""
    shared_cluster.make_whole(SLOTS, SECONDS)
    return shared_cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    stream = AuditedStream(cluster.master, tmp_path, **UNHURRIED)
    stream.advance(500)
    return stream


def start_again(cluster: ForkedCluster, stream: AuditedStream, *slots: int) -> None:
    """Start the slots and wait until tasks run on them again."""
    for slot in slots:
        cluster.start(slot)
    stream.until(lambda: set(slots) <= stream.slots())


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_exact_without_deaths(guarantee: str, cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = AuditedStream(cluster.master, tmp_path, **{"topology.guarantee": guarantee})
    stream.advance(500)
    assert_exact(stream.finish())


def test_one_worker(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victim = random.Random(1).randrange(SLOTS)
    cluster.kill(victim)
    stream.until(lambda: stream.state.losses == 1 and victim not in stream.slots())
    stream.advance(500)
    start_again(cluster, stream, victim)
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_two_workers_at_once(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victims = random.Random(3).sample(range(SLOTS), 2)
    for victim in victims:
        os.kill(cluster.processes[victim].pid, signal.SIGKILL)
    for victim in victims:
        cluster.kill(victim)  # already dead: reaps the process
    stream.until(lambda: stream.state.losses == 2)
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_each_worker_in_turn(cluster: ForkedCluster, stream: AuditedStream) -> None:
    order = random.Random(4).sample(range(SLOTS), SLOTS)
    for victim in order:
        cluster.kill(victim)
        stream.advance(300)
        start_again(cluster, stream, victim)
        stream.advance(300)
    assert stream.state.losses == SLOTS
    assert_nothing_lost(stream.finish())


def test_each_worker_in_turn_without_a_pause(cluster: ForkedCluster, stream: AuditedStream) -> None:
    """Each worker dies as soon as the previous one is back, while tasks are still moving home."""
    for victim in random.Random(5).sample(range(SLOTS), SLOTS):
        cluster.kill(victim)
        start_again(cluster, stream, victim)
    stream.until(lambda: stream.state.handover.at_rest)  # a loss in the end would leave tuples to replay
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_all_workers_but_one(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victims = random.Random(6).sample(range(SLOTS), SLOTS - 1)
    for victim in victims:
        cluster.kill(victim)
    stream.until(lambda: len(stream.slots()) == 1)
    stream.advance(500)
    start_again(cluster, stream, *victims)
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_all_workers(cluster: ForkedCluster, stream: AuditedStream) -> None:
    before = stream.positions()
    for victim in range(SLOTS):
        cluster.kill(victim)
    stream.until(lambda: stream.state.status == "waiting" and not stream.slots())
    warnings = [event["text"] for event in list(cluster.master.events) if event["level"] == "warning"]
    assert any(text.startswith("waits: ") and "slot" in text for text in warnings), warnings
    for slot in range(SLOTS):
        cluster.start(slot)
    stream.until(lambda: stream.state.status == "running")
    stream.advance(500)
    assert all(stream.positions()[task] > position for task, position in before.items())
    assert_nothing_lost(stream.finish())


def test_while_it_drains(cluster: ForkedCluster, stream: AuditedStream) -> None:
    """A crash during a pause: the pause completes, and the stream can continue afterwards."""
    victim = random.Random(7).randrange(SLOTS)

    def pause_and_kill() -> bool:
        """Returns True if nothing more was in flight."""
        cluster.master.pause(stream.name)
        drained = cluster.master.state.drained(stream.state)
        kill_and_wait(cluster.processes[victim].pid)
        return drained

    assert not cluster.master.call(pause_and_kill)
    cluster.kill(victim)  # already dead: reaps the process
    stream.until(lambda: cluster.master.state.drained(stream.state))
    cluster.master.unpause(stream.name)
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_a_random_storm_of_kills(cluster: ForkedCluster, stream: AuditedStream) -> None:
    schedule = random.Random(8)
    for _ in range(6):
        alive = sorted(cluster.processes)
        for victim in schedule.sample(alive, schedule.randint(1, max(1, len(alive) - 1))):
            cluster.kill(victim)
        stream.advance(schedule.choice([1, 200, 600]))
        for slot in sorted(set(range(SLOTS)) - set(cluster.processes)):
            if schedule.random() < 0.7:
                cluster.start(slot)
    stream.advance(500)
    assert_nothing_lost(stream.finish())
