"""Faults at every step of a hand-over: exactly-once output stays exact, and at-least-once output is never short."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from millrace.control.assignment import ARM, SWITCH
from millrace.control.moves import REFRESH, RESTING
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.watched_moves import BETWEEN_WORKERS, kind_of
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1200


def moving(topology: Any, component: str, phase: str, steps: int) -> LocalCluster:
    """A cluster in which the first task of the component is being moved to the next worker, so many steps after the beginning
    of the phase."""
    name = topology.__name__.lower()
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    task = TaskId(component, 0)
    cluster.move(name, task, (cluster.where(name)[task] + 1) % 3)
    cluster.run_until(lambda: state.handover.phase == phase)
    cluster.step(steps)
    return cluster


@pytest.mark.parametrize(("component", "phase"), [
    *((component, phase) for component in ("numbers", "one", "tally", "ledger") for phase in (ARM, SWITCH)),
    ("numbers", REFRESH), ("tally", REFRESH)])  # tasks without state need no wave
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_worker_dies(component: str, phase: str, slot: int, steps: int) -> None:
    """The worker with the old incarnation, that with the new one, or another."""
    cluster = moving(parts.Exact, component, phase, steps)
    cluster.kill(slot)
    cluster.run(0.05)
    cluster.start(slot)
    finish(cluster)
    assert_exact(LIMIT)


@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
@pytest.mark.parametrize("phase", [ARM, SWITCH])
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_worker_dies_at_least_once(component: str, phase: str, slot: int) -> None:
    for steps in (0, 1, 2, 3):
        parts.forget()
        cluster = moving(parts.AtLeast, component, phase, steps)
        cluster.kill(slot)
        cluster.run(0.05)
        cluster.start(slot)
        finish_at_least(cluster, LIMIT)


@pytest.mark.parametrize(("phase", "steps", "outcome"), [
    (ARM, 0, "cancelled"), (REFRESH, 0, "cancelled"), (REFRESH, 50, "cancelled"),
    *((SWITCH, steps, "rolled back") for steps in (0, 1, 2, 5, 20, 50))])
def test_a_spout_begins_again_while_it_moves(phase: str, steps: int, outcome: str) -> None:
    """At least once, every spout replays after the loss of a worker, also of one that takes no part in its move."""
    cluster = moving(parts.AtLeast, "numbers", phase, steps)
    state, spout = cluster.master.topologies["atleast"], TaskId("numbers", 0)
    move = state.handover.moving(spout)
    assert move is not None and state.handover.phase == phase
    bystander = ({0, 1, 2} - {move.old.slot, move.new.slot}).pop()
    cluster.kill(bystander)
    assert state.handover.moving(spout) is None
    assert cluster.where("atleast")[spout] == (move.new if phase == SWITCH else move.old).slot
    assert [record["outcome"] for record in cluster.migrations.past("atleast") if record["strategy"] == "handover"] == [outcome]
    cluster.run_until(lambda: state.status == "running" and spout in {task.name for task in tasks(cluster, "numbers")},
                      seconds=1.0)
    finish_at_least(cluster, LIMIT)
    assert not any("lost while being moved" in text for text in cluster.said), cluster.said


@pytest.mark.parametrize("component", ["numbers", "tally", "ledger"])
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("seconds", [0.05, 20.0])
def test_a_worker_stands_still(component: str, slot: int, seconds: float) -> None:
    """For a moment, and for so long that the move takes too long."""
    for phase in (ARM, SWITCH):
        parts.forget()
        cluster = moving(parts.Exact, component, phase, 0)
        cluster.holding.add(slot)
        cluster.run(seconds)
        cluster.holding.discard(slot)
        finish(cluster)
        assert_exact(LIMIT)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_worker_learns_of_the_plans_late(slot: int) -> None:
    for phase, steps in ((ARM, 0), (SWITCH, 0), (SWITCH, 1)):
        parts.forget()
        cluster = moving(parts.Exact, "tally", phase, steps)
        cluster.deaf.add(slot)
        cluster.run(0.3)
        cluster.hear(slot)
        finish(cluster)
        assert_exact(LIMIT)


@pytest.mark.parametrize("kind", [wire.Armed, wire.Taken])
def test_an_answer_to_the_master_is_lost(kind: type) -> None:
    cluster, lost = moving(parts.Exact, "tally", ARM, 0), list[Any]()
    state = cluster.master.topologies["exact"]
    epoch = state.epoch

    def lose(message: Any) -> bool:
        if isinstance(message, kind) and len(lost) < 2:
            lost.append(message)
            return True
        return False

    cluster.lose = lose
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert len(lost) == 2
    finish(cluster)
    assert_exact(LIMIT)
    assert not any("roll" in text for text in cluster.said) and state.epoch == epoch


@pytest.mark.parametrize("kind", BETWEEN_WORKERS)
@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast])
def test_a_message_between_workers_is_lost(kind: str, topology: Any) -> None:
    cluster, lost = moving(topology, "tally", ARM, 0), list[Any]()

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        if not lost and kind_of(frames) == kind:
            lost.append(frames)
            return True
        return False

    cluster.drop = drop
    cluster.run(15.0)  # longer than a switch may take
    assert lost
    if topology is parts.Exact:
        finish(cluster)
        assert_exact(LIMIT)
    else:
        finish_at_least(cluster, LIMIT)


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast])
def test_every_message_between_workers_is_late(topology: Any) -> None:
    """Messages of each pair of workers stay in order, but pairs do not wait for each other."""
    cluster = moving(topology, "tally", ARM, 0)
    late: deque[tuple[float, Any, list[bytes]]] = deque()
    post = cluster.post

    def delayed(sender: int, address: Any, frames: list[bytes]) -> None:
        late.append((cluster.clock.now() + 0.003 * (1 + (3 * sender + address.slot) % 7), (sender, address), frames))

    cluster.post = delayed  # type: ignore[method-assign]
    for _ in range(1500):
        for message in sorted(late, key=lambda message: message[0]):
            if message[0] <= cluster.clock.now():
                late.remove(message)
                post(*message[1], message[2])
        cluster.step()
    cluster.post = post  # type: ignore[method-assign]
    for _, (sender, address), frames in late:
        post(sender, address, frames)
    assert any("tally[0] moved to worker" in text for text in cluster.said)
    if topology is parts.Exact:
        finish(cluster)
        assert_exact(LIMIT)
    else:
        finish_at_least(cluster, LIMIT)
