"""Key groups move along a chain of tasks in one batch, and one of the moves fails: every task has the groups that the plan
gives it, with their state."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import ACKERS
from millrace.control.assignment import SWITCH
from millrace.control.events import MoveTaken, Regrouped
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import LIMIT, finish_at_least, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
BUSY = 16  # workers, each with one task at most
GUARANTEES = [parts.AtLeast, parts.AtMost]


def switched(topology: Any, par: int, chain: int) -> LocalCluster:
    """A run with so many tasks of the tally, where each of the first `chain` gives every second group of its own to the next.
    Their state is lost on its way until `cluster.drop` is set anew."""
    name = topology.__name__.lower()
    cluster = start(topology, workers=BUSY, par={"tally": par}, **{ACKERS.key: 1})
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    cluster.drop = lambda sender, receiver, frames: isinstance(wire.decode_data(frames[0]), wire.StatePart)
    owners = enumerate(state.key_groups["tally"])
    cluster.tell(Regrouped(name, "tally", {group: owner + 1 for group, owner in owners if group % 2 == 0 and owner < chain}))
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    assert len(state.handover.batch) == chain
    return cluster


def check(cluster: LocalCluster, topology: Any) -> None:
    """Run to the end. At most once, tuples are lost with a worker, but none because a task lacks their group."""
    name = topology.__name__.lower()
    state = cluster.master.topologies[name]
    cluster.run_until(lambda: state.handover.at_rest and state.status == "running")
    if topology is parts.AtLeast:
        finish_at_least(cluster)
    else:
        cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
        cluster.run(1.0)
    for task in tasks(cluster, "tally"):
        planned = {group for group, owner in enumerate(state.key_groups["tally"]) if owner == task.name.index}
        assert task.snapshots.state.owned == planned, task.name
        assert task.meters.dead_letters == task.meters.failed == 0, task.name
    assert sum(parts.expected_counts(LIMIT, 1).values()) >= len({row[:2] for row in parts.WRITTEN}) > 0


@pytest.mark.parametrize("topology", GUARANTEES)
@pytest.mark.parametrize(("chain", "victim"), [(2, 0), (2, 2), (3, 0), (3, 1), (3, 3)])
def test_a_worker_is_lost(topology: Any, chain: int, victim: int) -> None:
    name, cluster = topology.__name__.lower(), switched(topology, chain + 1, chain)
    before = dict(cluster.master.topologies[name].places)
    cluster.kill(cluster.where(name)[TaskId("tally", victim)])
    cluster.run_until(lambda: cluster.master.topologies[name].handover.at_rest)
    places = cluster.master.topologies[name].places
    assert all(places[task].incarnation > before[task].incarnation for task in places if task.component == "tally")
    check(cluster, topology)


@pytest.mark.parametrize("topology", GUARANTEES)
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_task_cannot_take_its_groups(topology: Any, failing: int) -> None:
    cluster = switched(topology, 4, 3)
    state = cluster.master.topologies[topology.__name__.lower()]
    moving = state.handover.batch[failing]
    cluster.tell(MoveTaken(state.number, state.epoch, moving.number, error="its state is not readable"))
    assert state.handover.at_rest
    check(cluster, topology)


@pytest.mark.parametrize("topology", GUARANTEES)
def test_moves_of_other_tasks_go_on(topology: Any) -> None:
    """Only what is connected with the lost task by moves fails with it."""
    name = topology.__name__.lower()
    cluster = start(topology, workers=BUSY, par={"tally": 4}, **{ACKERS.key: 1})
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    held: list[Any] = []
    post = cluster.post
    cluster.post = lambda *message: (  # type: ignore[method-assign]
        held.append(message) if isinstance(wire.decode_data(message[2][0]), wire.StatePart) else post(*message))
    owners = enumerate(state.key_groups["tally"])
    cluster.tell(Regrouped(name, "tally", {group: owner + 1 for group, owner in owners if group % 2 == 0 and owner in (0, 2)}))
    cluster.run_until(lambda: len({wire.decode_data(frames[0]).move for _, _, frames in held}) == 2)
    before = dict(state.places)
    cluster.kill(cluster.where(name)[TaskId("tally", 0)])
    cluster.run_until(lambda: state.losses > 0)
    assert [(moving.task.index, moving.target.index) for moving in state.handover.batch] == [(2, 3)]
    cluster.post = post  # type: ignore[method-assign]
    for message in held:
        post(*message)
    check(cluster, topology)
    assert all(state.places[TaskId("tally", index)] == before[TaskId("tally", index)] for index in (2, 3))
    assert sorted(record["outcome"] for record in cluster.migrations.past() if record["strategy"] == "handover") == [
        "done", "rolled back"]
