"""Calls of user code that take longer than a switch may: no worker is lost, so no task is, and the move waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import HANDOVER_PREPARE_LIMIT, HANDOVER_SWITCH_LIMIT, WAVE_TIMEOUT
from millrace.control.assignment import SWITCH
from millrace.control.events import Regrouped
from millrace.control.moves import RESTING
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.blocking_parts import Blocking
from support.cluster.wave_runs import assert_exact, finish, start, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1200
LIMITS: dict[str, Any] = {HANDOVER_SWITCH_LIMIT.key: 3.0, HANDOVER_PREPARE_LIMIT.key: 12.0, WAVE_TIMEOUT.key: 100.0}
LONG = 5.0  # seconds of a call: longer than a switch may take
TALLY = TaskId("tally", 0)


def started(topology: Any = Blocking) -> LocalCluster:
    cluster = start(topology, workers=4, limit=LIMIT, **LIMITS)
    until_wave(cluster, 1, topology.__name__.lower())
    return cluster


def begin(cluster: LocalCluster, what: str) -> None:
    """Begin to move a task, or half of its key groups to another one."""
    [name] = cluster.master.topologies
    if what == "task":
        cluster.move(name, TALLY, (cluster.where(name)[TALLY] + 1) % 4)
    else:
        groups = [group for group, owner in enumerate(cluster.master.topologies[name].key_groups["tally"]) if owner == 0]
        cluster.tell(Regrouped(name, "tally", dict.fromkeys(groups[::2], 1)))


def outcomes(cluster: LocalCluster) -> list[tuple[str, str]]:
    return [(record["outcome"], record["reason"]) for record in cluster.migrations.past()]


def assert_undisturbed(cluster: LocalCluster, name: str) -> None:
    state = cluster.master.topologies[name]
    assert outcomes(cluster) == [("done", "")], cluster.said
    assert state.losses == 0 and not any("lost" in text for text in cluster.said), cluster.said
    finish(cluster, name)
    assert_exact(LIMIT)


@pytest.mark.parametrize("what", ["task", "groups"])
@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
def test_a_call_begins_while_the_move_switches(what: str, component: str) -> None:
    """In a task further up, in a sender, in the task itself, and in a receiver, whose full channels stop it."""
    cluster = started()
    state = cluster.master.topologies["blocking"]
    begin(cluster, what)
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    cluster.hanging.update(TaskId(component, index) for index in range(3))
    cluster.run(LONG)
    if component in ("one", "tally"):
        assert state.handover.phase == SWITCH, cluster.said
        assert [event.level for event in cluster.events if "waits:" in event.text] == ["warning"], cluster.said
    cluster.hanging.clear()
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert_undisturbed(cluster, "blocking")


@pytest.mark.parametrize("what", ["task", "groups"])
@pytest.mark.parametrize("component", ["one", "tally", "ledger"])
def test_a_move_does_not_switch_while_a_call_lasts(what: str, component: str) -> None:
    cluster = started()
    state = cluster.master.topologies["blocking"]
    cluster.hanging.update(TaskId(component, index) for index in range(3))
    cluster.run(3.0)
    begin(cluster, what)
    cluster.run(LONG)
    assert state.handover.phase != SWITCH and state.handover.batch, "it may not switch now"
    cluster.hanging.clear()
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert_undisturbed(cluster, "blocking")


@pytest.mark.parametrize("how", ["in_call", "holding"])
@pytest.mark.parametrize("who", ["old", "new", "sender", "receiver"])
@pytest.mark.parametrize("what", ["task", "groups"])
def test_a_call_stops_the_loop_of_a_worker(what: str, who: str, how: str) -> None:
    """With the interpreter lock (`holding`) or without."""
    cluster = started(parts.Exact)
    state = cluster.master.topologies["exact"]
    begin(cluster, what)
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    [moving] = state.handover.batch
    places = cluster.where("exact")
    slot = {"old": moving.old.slot, "new": moving.new.slot, "sender": places[TaskId("one", 0)],
            "receiver": places[TaskId("ledger", 0)]}[who]
    stopped: set[int] = getattr(cluster, how)
    stopped.add(slot)
    cluster.run(LONG)
    stopped.clear()
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert_undisturbed(cluster, "exact")


def test_a_move_is_cancelled_because_a_call_lasts_too_long() -> None:
    cluster = started()
    state, at = cluster.master.topologies["blocking"], cluster.where("blocking")[TALLY]
    cluster.hanging.add(TaskId("one", 0))
    cluster.run(3.0)
    begin(cluster, "task")
    cluster.run_until(lambda: state.handover.phase == RESTING)
    [(outcome, reason)] = outcomes(cluster)
    assert outcome == "cancelled" and reason.startswith("one[0] has not returned for ")
    assert reason.endswith("so no switch could begin within 12 s")
    assert cluster.where("blocking")[TALLY] == at
    cluster.hanging.clear()
    finish(cluster, "blocking")
    assert_exact(LIMIT)


def test_a_call_elsewhere_does_not_stop_a_move() -> None:
    """Nothing of the move depends on a task of the same component that takes no part."""
    cluster = started()
    state = cluster.master.topologies["blocking"]
    begin(cluster, "task")
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    cluster.hanging.add(TaskId("tally", 2))
    cluster.run_until(lambda: state.handover.phase == RESTING, seconds=2.0)
    cluster.hanging.clear()
    assert_undisturbed(cluster, "blocking")


def test_a_worker_that_dies_in_a_long_call_is_lost() -> None:
    cluster = started()
    state = cluster.master.topologies["blocking"]
    begin(cluster, "task")
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    [moving] = state.handover.batch
    cluster.hanging.add(TALLY)
    cluster.run(LONG)
    cluster.kill(moving.old.slot)
    assert state.handover.phase == RESTING and state.losses == 1
    cluster.hanging.clear()
    cluster.start(moving.old.slot)
    finish(cluster, "blocking")
    assert_exact(LIMIT)
