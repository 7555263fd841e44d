"""Hand-over marks that are lost: they are sent again, so the move ends without a roll-back and the stream stays in order."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.config import ACKERS, GUARANTEE, HANDOVER_SWITCH_LIMIT
from millrace.control.assignment import SWITCH
from millrace.control.events import Regrouped
from millrace.control.moves import RESTING
from millrace.model.graph import TaskId
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_once_in_order, flaws
from support.cluster.plain_parts import Numbers, Pass, Sink
from support.cluster.watched_moves import END, MOVE, START, kind_of
from support.cluster.wave_runs import assert_exact, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
SENDERS = {"one": "numbers", "two": "one", "tally": "one", "ledger": "tally"}
BUSY, SLOT = 14, 13  # workers, each with one task at most; the one that tasks move to


def started(topology: Any) -> LocalCluster:
    cluster = start(topology, workers=BUSY, **{HANDOVER_SWITCH_LIMIT.key: 5.0})
    until_wave(cluster, 1, topology.__name__.lower())
    return cluster


def lose_once(cluster: LocalCluster, kind: str, source: TaskId | None, target: TaskId | None) -> list[wire.Chunk]:
    """Lose the first mark of the kind from one task, to one task, or each channel's first if both are None."""
    [state] = cluster.master.topologies.values()
    lost: list[wire.Chunk] = []

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        if kind_of(frames) != kind:
            return False
        message = wire.decode_data(frames[0])
        assert isinstance(message, wire.Chunk)
        channel = state.graph.task(message.source), state.graph.task(message.target)
        chosen = (source is None or channel[0] == source) and (target is None or channel[1] == target)
        if not chosen or any((message.source, message.target) == (other.source, other.target) for other in lost):
            return False
        lost.append(message)
        return True

    cluster.drop = drop
    return lost


def assert_undisturbed(cluster: LocalCluster, name: str, epoch: int) -> None:
    """Run to the end: every tuple once and in order, and no roll-back, gap or replay."""
    state = cluster.master.topologies[name]
    assert [record["outcome"] for record in cluster.migrations.past()] == ["done"], cluster.said
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(1.5)
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert (state.epoch, state.losses) == (epoch, 0), cluster.said
    if name == "exact":
        finish(cluster)
        assert_exact()
    else:
        assert_once_in_order(cluster)


@pytest.mark.parametrize(("topology", "component", "index"), [
    (parts.Exact, "one", 0), (parts.Exact, "one", 1), (parts.Exact, "two", 1), (parts.Exact, "tally", 0),
    (parts.Exact, "tally", 1), (parts.Exact, "ledger", 0), (parts.Exact, "ledger", 2), (parts.AtLeast, "tally", 0),
    (parts.AtMost, "tally", 1)])
def test_a_sender_has_cut_its_channel(topology: Any, component: str, index: int) -> None:
    """`index`: of the sender whose mark is lost."""
    name = topology.__name__.lower()
    cluster, task = started(topology), TaskId(component, 0)
    state = cluster.master.topologies[name]
    epoch = state.epoch
    lost = lose_once(cluster, MOVE, TaskId(SENDERS[component], index), task)
    cluster.move(name, task, SLOT)
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert len(lost) == 1 and cluster.where(name)[task] == SLOT
    assert_undisturbed(cluster, name, epoch)


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast, parts.AtMost])
@pytest.mark.parametrize("kind", [MOVE, END])
def test_all_channels_lose_their_mark(topology: Any, kind: str) -> None:
    name = topology.__name__.lower()
    cluster, task = started(topology), TaskId("tally", 0)
    state = cluster.master.topologies[name]
    epoch = state.epoch
    lost = lose_once(cluster, kind, None, None)
    cluster.move(name, task, SLOT)
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert len(lost) == (len(state.graph.upstream("tally")) if kind == MOVE else 2)
    assert_undisturbed(cluster, name, epoch)


@pytest.mark.parametrize("component", ["numbers", "one"])
def test_the_end_of_a_task_is_lost_at_each_of_its_channels(component: str) -> None:
    cluster, task = started(parts.Exact), TaskId(component, 0)
    state = cluster.master.topologies["exact"]
    epoch = state.epoch
    lost = lose_once(cluster, END, task, None)
    cluster.move("exact", task, SLOT)
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert len(lost) == {"numbers": 2, "one": 5}[component]
    assert_undisturbed(cluster, "exact", epoch)


def test_the_mark_of_key_groups_is_lost_in_a_channel_that_is_idle() -> None:
    """Nothing follows it that would show the gap."""
    cluster = started(parts.Exact)
    state = cluster.master.topologies["exact"]
    epoch = state.epoch
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(0.5)
    lost = lose_once(cluster, MOVE, None, TaskId("tally", 0))
    groups = [group for group, owner in enumerate(state.key_groups["tally"]) if owner == 0]
    cluster.tell(Regrouped("exact", "tally", dict.fromkeys(groups[::2], 1)))
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert len(lost) == 4
    assert_undisturbed(cluster, "exact", epoch)


def test_moves_leave_nothing_behind() -> None:
    """Tasks, and key groups between the same tasks, move many times: what tasks remember of moves does not grow."""
    cluster = start(parts.Exact, limit=10**6)
    until_wave(cluster, 1)
    state = cluster.master.topologies["exact"]
    for turn in range(8):
        for task in (TaskId("one", 0), TaskId("tally", 0)):
            cluster.move("exact", task, (cluster.where("exact")[task] + 1) % 3)
            cluster.run_until(lambda: state.handover.at_rest)
        groups = [group for group, owner in enumerate(state.key_groups["tally"]) if owner == turn % 2]
        cluster.tell(Regrouped("exact", "tally", dict.fromkeys(groups[:8], 1 - turn % 2)))
        cluster.run_until(lambda: state.handover.at_rest)
        cluster.run(0.1)
        assert_forgotten(cluster)
    assert state.losses == 0 and len(cluster.migrations.past()) == 24, cluster.said


def assert_forgotten(cluster: LocalCluster) -> None:
    """No task remembers anything of moves; of the last end of each sender it may, if it began after that."""
    for task in [task for worker in cluster.workers.values() for run in worker.topologies.values() for task in run.everyone()]:
        assert not task.cuts
        if isinstance(task, BoltTask):
            assert not task.inbox.moved and not task.inbox.taken_lanes
            senders = [sender for sender, _, _ in task.inbox.succession._ended]
            assert len(senders) == len(set(senders))


def test_ends_without_a_successor_do_not_pile_up() -> None:
    """At least once, a receiver goes on without a START that was lost. The end of the sender before it is remembered, but not
    for long."""
    cluster = start(parts.AtLeast, workers=BUSY, limit=10**6, **{ACKERS.key: 1})
    until_wave(cluster, 1, "atleast")
    state = cluster.master.topologies["atleast"]
    places = set(cluster.where("atleast").values())
    free = sorted(set(range(BUSY)) - places)[:2]
    cluster.drop = lambda sender, receiver, frames: kind_of(frames) == START
    for turn in range(8):
        cluster.move("atleast", TaskId("tally", 0), free[turn % 2])
        cluster.run_until(lambda: state.handover.at_rest)
        cluster.run(0.5)
        for task in tasks(cluster, "ledger"):
            assert len(task.inbox.succession._ended) <= 1
    assert state.losses == 0, cluster.said


class Quiet(Topology):
    """One task of the second bolt gets nothing from the first, so it has no channel from it until a mark comes."""

    numbers = Numbers.spec(config={"limit": 10**6})
    first = Pass.spec(inputs=[numbers])
    second = Pass.spec(inputs={first: Grouping.GLOBAL}, par=2)
    sink = Sink.spec(inputs=[second])


def test_the_only_message_of_a_sender_was_its_end() -> None:
    """The receiver has heard of the next incarnation before, and waits for that end all the same."""
    cluster = LocalCluster(BUSY)
    cluster.submit(Quiet, name="quiet", config={GUARANTEE.key: "at-most-once"})
    state = cluster.master.topologies["quiet"]
    cluster.run_until(lambda: state.status == "running")
    lost = lose_once(cluster, END, TaskId("first", 0), TaskId("second", 1))
    cluster.move("quiet", TaskId("first", 0), SLOT)
    cluster.run_until(lambda: state.handover.at_rest and bool(lost))
    cluster.run(3.0)  # it is probed for once in a second
    held = [task.inbox.succession.held for task in cluster.tasks("second") if isinstance(task, BoltTask)]
    assert not any(held), cluster.said
