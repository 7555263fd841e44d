"""Workers are removed and restarted while the stream runs: nothing is lost, and without a fault nothing is repeated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.control.assignment import ARM
from millrace.control.moves import BY_ROLLBACK, RESTING
from millrace.errors import NotEnoughSlots, TopologyError
from millrace.testing.local_cluster import LocalCluster
from support.cluster import records
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_once_in_order, flaws, until_processed
from support.cluster.plain_parts import FromQueue, Pass, Sink
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 2500
TOPOLOGIES = [parts.Exact, parts.AtLeast, parts.AtMost]


class Queued(Topology):
    """Its source cannot be read again, so its spout cannot be moved."""

    numbers = FromQueue.spec()
    through = Pass.spec(inputs=[numbers], par=3)
    sink = Sink.spec(inputs=[through], par=2)


def left(cluster: LocalCluster, slot: int) -> None:
    """Wait until the removal or restart is over."""
    cluster.run_until(lambda: slot in cluster.left)
    assert cluster.left.pop(slot) == ""


def test_a_worker_is_restarted_before_the_master_has_looked_at_its_clock_once() -> None:
    cluster = start(limit=LIMIT)
    cluster.restart(0)
    left(cluster, 0)
    end(cluster, "exact")


def end(cluster: LocalCluster, name: str) -> None:
    """Let the stream end, and compare the sink and the state with the truth."""
    if name == "exact":
        finish(cluster)
        assert_exact(LIMIT)
        return
    until_processed(cluster)
    assert_once_in_order(cluster, LIMIT)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_worker_is_removed(topology: Any, slot: int) -> None:
    name = topology.__name__.lower()
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    epoch, losses = state.epoch, state.losses
    cluster.remove(slot)
    left(cluster, slot)
    assert sorted(cluster.workers) == sorted({0, 1, 2} - {slot})
    assert set(cluster.where(name).values()) == {0, 1, 2} - {slot}
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    until_wave(cluster, 1, name)
    assert (state.epoch, state.losses) == (epoch, losses), cluster.said
    end(cluster, name)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_worker_is_restarted(topology: Any) -> None:
    name = topology.__name__.lower()
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name)
    places, epoch = cluster.where(name), cluster.master.topologies[name].epoch
    for slot in (0, 1, 2):
        generation = cluster.workers[slot].generation
        cluster.restart(slot)
        left(cluster, slot)
        assert cluster.workers[slot].generation > generation
        assert cluster.where(name) == places
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert cluster.master.topologies[name].epoch == epoch and cluster.master.topologies[name].losses == 0, cluster.said
    end(cluster, name)


def test_no_worker_leaves_during_a_migration() -> None:
    cluster = start(limit=LIMIT)
    until_wave(cluster, 1)
    task = next(task for task, slot in sorted(cluster.where("exact").items()) if slot == 0)
    cluster.move("exact", task, 2, BY_ROLLBACK)
    for leave in (cluster.remove, cluster.restart):
        with pytest.raises(TopologyError, match="'exact' is being migrated by rollback: try again when that is over"):
            leave(2)
    cluster.run_until(lambda: cluster.where("exact").get(task) == 2)
    end(cluster, "exact")


def test_workers_are_removed_until_one_is_left() -> None:
    cluster = start(limit=LIMIT)
    until_wave(cluster, 1)
    cluster.remove(0)
    cluster.remove(2)
    with pytest.raises(NotEnoughSlots):
        cluster.remove(1)
    left(cluster, 0)
    left(cluster, 2)
    assert set(cluster.where("exact").values()) == {1}
    cluster.start(3)  # as `workers add` does
    cluster.restart(1)
    left(cluster, 1)
    end(cluster, "exact")


def test_a_worker_that_was_added_takes_the_tasks_of_one_that_is_removed() -> None:
    cluster = start(limit=LIMIT, workers=1)
    until_wave(cluster, 1)
    cluster.start(1)
    cluster.remove(0)
    left(cluster, 0)
    assert set(cluster.where("exact").values()) == {1}
    end(cluster, "exact")


def test_the_only_worker_is_restarted() -> None:
    """Nothing can be handed over: spouts wait, a wave is committed, and everything begins from it."""
    cluster = start(limit=LIMIT, workers=1)
    until_wave(cluster, 1)
    cluster.restart(0)
    left(cluster, 0)
    assert cluster.master.topologies["exact"].losses == 1
    assert not cluster.master.topologies["exact"].resting
    end(cluster, "exact")


def test_a_spout_that_cannot_be_moved_loses_nothing_when_its_worker_restarts() -> None:
    cluster = LocalCluster(3)
    records.QUEUE.extend(range(400))
    cluster.submit(Queued, config={"topology.chunk.tuples": 5})
    cluster.run_until(lambda: len(records.SEEN["sink"]) > 50)
    [slot] = {place.slot for task, place in cluster.master.topologies["queued"].places.items() if task.component == "numbers"}
    cluster.restart(slot)
    left(cluster, slot)
    records.QUEUE.extend(range(400, 600))
    cluster.run_until(lambda: len(records.SEEN["sink"]) >= 600)
    cluster.run(0.5)
    assert Counter(records.SEEN["sink"]) == Counter(range(600))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 20, 120, 350, 700])
def test_a_worker_dies_meanwhile(restarts: bool, victim: int, steps: int) -> None:
    """The worker that leaves, or another, at any time."""
    cluster = start(limit=LIMIT)
    until_wave(cluster, 1)
    (cluster.restart if restarts else cluster.remove)(2)
    cluster.step(steps)
    if victim in cluster.workers:
        cluster.kill(victim)
        cluster.run(0.05)
        if victim != 2 or restarts:
            cluster.start(victim)
    cluster.run_until(lambda: 2 in cluster.left)
    assert not cluster.left[2]
    finish(cluster)
    assert_exact(LIMIT)


def test_a_worker_dies_meanwhile_at_least_once() -> None:
    for victim in (0, 2):
        for steps in (1, 60, 300):
            parts.forget()
            cluster = start(parts.AtLeast, limit=LIMIT)
            until_wave(cluster, 1, "atleast")
            cluster.remove(2)
            cluster.step(steps)
            if victim in cluster.workers:
                cluster.kill(victim)
                cluster.run(0.05)
            if victim != 2:
                cluster.start(victim)
            cluster.run_until(lambda cluster=cluster: 2 in cluster.left)
            finish_at_least(cluster, LIMIT)


def test_a_restarted_worker_that_does_not_come_back() -> None:
    """Its tasks run elsewhere, and the stream goes on; when it comes at last, it is used again."""
    cluster = start(limit=LIMIT)
    until_wave(cluster, 1)
    cluster.start_seconds = 200.0
    cluster.restart(2)
    cluster.run_until(lambda: 2 in cluster.left, 100.0)
    assert cluster.left[2].startswith("worker 2 has not come back within 60 s")
    assert cluster.master.topologies["exact"].handover.phase == RESTING
    finish(cluster)
    assert_exact(LIMIT)


def test_another_worker_joins_while_tasks_wait_for_the_restart_of_their_own() -> None:
    """They can be handed over after all."""
    cluster = start(workers=1, limit=LIMIT)
    until_wave(cluster)
    state = cluster.master.topologies["exact"]
    cluster.restart(0)
    cluster.run_until(lambda: state.resting)
    cluster.start(1)
    cluster.run_until(lambda: set(cluster.where("exact").values()) == {1} and not state.resting)
    left(cluster, 0)
    end(cluster, "exact")


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast])
def test_tasks_return_although_another_worker_is_lost_meanwhile(topology: Any) -> None:
    name = topology.__name__.lower()
    cluster = start(topology, limit=10**6)
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    homes = cluster.where(name)
    cluster.kill(0)
    cluster.run(0.2)
    cluster.start(0)
    cluster.run_until(lambda: state.handover.phase == ARM)
    cluster.kill(1)
    cluster.run(0.2)
    cluster.start(1)
    cluster.run_until(lambda: state.handover.at_rest and cluster.where(name) == homes)
