"""A sender starts, or a task is placed anew, by a plan that some worker does not get; then a task moves: the switch waits until
all senders know the incarnation whose channel they have to mark, and until that incarnation has started."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.config import ACKERS, GUARANTEE, HANDOVER_PREPARE_LIMIT, HANDOVER_SWITCH_LIMIT, MESSAGE_TIMEOUT
from millrace.control.assignment import SWITCH
from millrace.control.migrations import COMPLETED
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster.plain_parts import Numbers, Pass, Sink
from support.cluster.records import SEEN

LIMIT = 3000
FIRST, SECOND = TaskId("first", 0), TaskId("second", 0)
OLD, SENDER, LATE, TARGET = 3, 4, 5, 6
NEWEST = TARGET  # the worker that has joined last


class Chain(Topology):
    """Two bolts in a row; none has state."""

    numbers = Numbers.spec()
    first = Pass.spec(inputs=[numbers])
    second = Pass.spec(inputs={first: Grouping.SHUFFLE})
    sink = Sink.spec(inputs=[second])


def placed(guarantee: str, **config: Any) -> LocalCluster:
    """A cluster in which the first bolt is alone on a worker, the second on another, and two workers are empty."""
    cluster = LocalCluster(7)
    cluster.submit(Chain, name="chain", config={GUARANTEE.key: guarantee, ACKERS.key: 1, MESSAGE_TIMEOUT.key: 5.0,
                                                "limit": LIMIT, **config})
    cluster.run_until(lambda: cluster.master.topologies["chain"].status == "running")
    for task, slot in cluster.where("chain").items():
        target = {FIRST: SENDER, SECOND: OLD}.get(task, slot % OLD)
        if target != slot:
            cluster.move("chain", task, target)
    cluster.run_until(lambda: cluster.master.topologies["chain"].handover.at_rest)
    return cluster


def on_late(cluster: LocalCluster, slot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose a worker; what it had is placed on `LATE`, which gets no plan for now."""
    cluster.deaf.add(LATE)
    with monkeypatch.context() as patch:
        patch.setattr(type(cluster.master), "closed", property(lambda self: frozenset(self.workers) - {LATE}))
        cluster.kill(slot)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_a_sender_is_placed_anew_on_a_worker_that_gets_only_the_plan_of_the_switch(
        guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = placed(guarantee)
    state = cluster.master.topologies["chain"]
    on_late(cluster, SENDER, monkeypatch)
    assert state.places[FIRST].slot == LATE
    assert_moves_when_heard(cluster, LATE, guarantee)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_the_task_itself_was_placed_anew_and_its_sender_does_not_know(guarantee: str) -> None:
    cluster = placed(guarantee)
    state = cluster.master.topologies["chain"]
    cluster.deaf.add(SENDER)
    cluster.kill(OLD)
    assert state.places[SECOND].slot not in (OLD, SENDER)
    assert_moves_when_heard(cluster, SENDER, guarantee)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_the_task_itself_was_placed_anew_on_a_worker_that_gets_only_the_plan_of_the_switch(
        guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = placed(guarantee)
    on_late(cluster, OLD, monkeypatch)
    assert cluster.where("chain")[SECOND] == LATE
    assert_moves_when_heard(cluster, LATE, guarantee)


def test_the_newest_worker_is_lost_before_the_end_of_its_task_has_come() -> None:
    """The receivers of that task wait no longer for its end: they process what its next incarnation sends."""
    cluster = placed("at-least-once", **{"limit": 10**7})
    state = cluster.master.topologies["chain"]
    cluster.move("chain", SECOND, NEWEST)
    cluster.run_until(lambda: state.handover.at_rest)
    receiver = cluster.where("chain")[TaskId("sink", 0)]
    cluster.drop = lambda sender, to, frames: (sender, to) == (NEWEST, receiver) and state.handover.phase == SWITCH
    cluster.move("chain", SECOND, LATE)
    cluster.run_until(lambda: state.handover.at_rest)
    (sink,) = cluster.tasks("sink")
    cluster.run_until(lambda: bool(sink.inbox.succession.held))  # type: ignore[attr-defined]
    cluster.drop = lambda sender, to, frames: sender == NEWEST
    cluster.kill(NEWEST)
    seen = len(SEEN["sink"])
    cluster.run_until(lambda: len(SEEN["sink"]) > seen)


def assert_moves_when_heard(cluster: LocalCluster, late: int, guarantee: str) -> None:
    """Move the second bolt while a worker that sends to it is deaf. When that worker gets the newest plan, the move is done."""
    state = cluster.master.topologies["chain"]
    losses = state.losses
    cluster.move("chain", SECOND, TARGET)
    cluster.run(1.0)
    assert state.handover.phase != SWITCH
    cluster.hear(late)
    cluster.run_until(lambda: state.handover.at_rest, HANDOVER_SWITCH_LIMIT.default / 2)
    (record,) = cluster.migrations.past("chain")[-1:]
    assert (record["outcome"], state.losses) == (COMPLETED, losses), cluster.said
    if guarantee == "at-least-once":
        cluster.run_until(lambda: set(SEEN["sink"]) == set(range(LIMIT)))


def test_a_sender_that_never_gets_the_plan_cancels_the_move() -> None:
    cluster = placed("at-least-once", **{HANDOVER_PREPARE_LIMIT.key: 2.0})
    state = cluster.master.topologies["chain"]
    cluster.deaf.add(SENDER)
    cluster.move("chain", SECOND, TARGET)
    cluster.run_until(lambda: state.handover.at_rest)
    assert state.places[SECOND].slot == OLD and state.losses == 0
    assert f"chain: second[0] not moved: worker {SENDER} did not carry out the plan within 2 s" in cluster.said
