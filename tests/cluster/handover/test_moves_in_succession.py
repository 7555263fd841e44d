"""A task moves again as soon as it has arrived, although other workers do not know of its last move yet: nothing is lost,
repeated or reordered."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import ACKERS
from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import Regrouped
from millrace.control.moves import REFRESH
from millrace.model.graph import TaskId
from millrace.runtime.tasks.handover.departure import Departure
from millrace.testing.local_cluster import LocalCluster
from support.cluster import watched_moves as watched
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_once_in_order, at_rest, flaws, until_processed
from support.cluster.wave_runs import assert_exact, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
TALLY = TaskId("tally", 0)
APART = 4  # the worker with the sinks and nothing else
ROUTE = (0, 1, 2, 3, 0, 2)


def name_of(topology: Any) -> str:
    return str(topology.__name__.lower())


def with_sinks_apart(topology: Any) -> LocalCluster:
    """A cluster in which one worker has the sinks and nothing else, and the first task of the tally is on worker 3."""
    name = name_of(topology)
    cluster = start(topology, workers=5)
    until_wave(cluster, 1, name)
    for task, slot in cluster.where(name).items():
        target = APART if task.component == "ledger" else 3 if task == TALLY else slot % APART
        if target != slot:
            cluster.move(name, task, target)
    cluster.run_until(lambda: at_rest(cluster, name))
    assert {task.component for task, slot in cluster.where(name).items() if slot == APART} == {"ledger"}
    return cluster


def travel(cluster: LocalCluster, name: str) -> None:
    for slot in ROUTE:
        cluster.move(name, TALLY, slot)
        cluster.run_until(lambda: at_rest(cluster, name))
        assert cluster.where(name)[TALLY] == slot, cluster.said


def assert_undisturbed(cluster: LocalCluster, topology: Any, epoch: int) -> None:
    """Run to the end: every tuple once and in order, and no roll-back, gap or replay."""
    name = name_of(topology)
    if topology is parts.Exact:
        cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    else:
        until_processed(cluster)
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert cluster.master.topologies[name].epoch == epoch, cluster.said
    if topology is parts.Exact:
        finish(cluster)
        assert_exact()
    else:
        assert_once_in_order(cluster)


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast, parts.AtMost])
def test_a_receiver_misses_every_plan_but_the_last(topology: Any) -> None:
    name = name_of(topology)
    cluster = with_sinks_apart(topology)
    epoch = cluster.master.topologies[name].epoch
    cluster.deaf.add(APART)
    travel(cluster, name)
    cluster.hear(APART)
    assert_undisturbed(cluster, topology, epoch)


def deaf_to_switches(cluster: LocalCluster, name: str, slot: int) -> None:
    """Let the worker miss every plan with a move that switches."""
    tell = cluster.tell
    handover = cluster.master.topologies[name].handover

    def missing_switches(event: Any) -> None:
        if handover.phase in (ARM, REFRESH):
            cluster.deaf.add(slot)
            tell(event)
            if handover.phase != SWITCH:
                cluster.hear(slot)
        else:
            tell(event)

    cluster.tell = missing_switches  # type: ignore[method-assign]


@pytest.mark.parametrize(("topology", "steps"), [(parts.Exact, 0), (parts.Exact, 50), (parts.AtLeast, 0), (parts.AtMost, 50)])
@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
@pytest.mark.parametrize("again", ["same", "downstream", "groups"])
def test_a_worker_takes_over_before_it_learns_of_the_switch(topology: Any, component: str, again: str, steps: int) -> None:
    """The state can come before the plan, and the next plan can be that of another move."""
    name, first = name_of(topology), TaskId(component, 0)
    cluster = start(topology, workers=14, **{ACKERS.key: 1})
    until_wave(cluster, 2, name)
    state = cluster.master.topologies[name]
    target, other = sorted(set(range(14)) - set(cluster.where(name).values()))[:2]  # a sender would have to know
    epoch = state.epoch
    deaf_to_switches(cluster, name, target)
    cluster.move(name, first, target)
    cluster.run_until(lambda: state.handover.at_rest)
    assert cluster.where(name)[first] == target and target in cluster.deaf
    del cluster.tell
    if again == "same":
        second = first
    else:
        second = TaskId({"numbers": "one", "one": "tally"}.get(component, "ledger"), 0)
    if again == "groups":
        groups = [group for group, owner in enumerate(state.key_groups["tally"]) if owner == 0]
        cluster.tell(Regrouped(name, "tally", dict.fromkeys(groups, 1)))
    else:
        cluster.move(name, second, other)
    cluster.step(steps)
    cluster.hear(target)
    cluster.run_until(lambda: state.handover.at_rest)
    assert_undisturbed(cluster, topology, epoch)


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast, parts.AtMost])
def test_incarnations_that_have_handed_over_say_nothing_more(topology: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there for a while to be asked for lost chunks. Receivers have forgotten the oldest of them."""
    name = name_of(topology)
    cluster = start(topology)
    until_wave(cluster, 2, name)
    state = cluster.master.topologies[name]
    epoch = state.epoch
    with monkeypatch.context() as patch:
        patch.setattr(Departure, "over", False)
        for _ in range(4):
            for task in (TaskId("numbers", 0), TaskId("one", 0), TaskId("tally", 0)):
                cluster.move(name, task, (cluster.where(name)[task] + 1) % 3)
                cluster.run_until(lambda: state.handover.at_rest)
    assert_undisturbed(cluster, topology, epoch)


@pytest.mark.parametrize("topology", [watched.Short, watched.ShortAtLeast])
def test_moves_to_the_worker_of_a_receiver_are_cancelled(topology: Any) -> None:
    """The receiver is connected with each incarnation that was prepared beside it, and still knows the one that works."""
    move = watched.WatchedMove(topology, watched.TASK, 600)
    cluster, task = move.cluster, watched.TALLY
    for _ in range(3):
        cluster.move(move.name, task, move.slots[watched.DOWNSTREAM])
        assert move.state.handover.phase == ARM
        cluster.step(2)
        cluster.move(move.name, task, move.slots[watched.OLD])
        assert move.at_rest
        cluster.step(20)
    assert not any(task.meters.gaps for task in tasks(cluster, "ledger")), cluster.said
    assert [record["outcome"] for record in cluster.migrations.past(move.name)] == 3 * ["cancelled"]
    move.end()
    assert move.state.epoch == move.epoch, cluster.said
