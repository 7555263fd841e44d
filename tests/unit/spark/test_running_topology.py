"""The handle on a running topology, with a state machine and no master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.events import Event, MoveArmed, MoveTaken, Submitted, WorkerJoined, WorkerReported
from millrace.control.master_state import MasterState
from millrace.errors import TopologyError, UnknownName
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.spark.running_topology import RunningTopology

LINES = ComponentDef("lines", "spout", "m:C", 2, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple", movable=True)
COUNT = ComponentDef("count", "bolt", "m:C", 2, {}, (), (Input("lines", "default", Grouping.fields("line")),), False, "process")
COUNT0 = TaskId("count", 0)


class PaperMaster:
    """A topology on two workers. `records`: the migrations that it will have once it has been asked for one."""

    def __init__(self) -> None:
        self.state, self.on_its_thread = MasterState(), False
        self.records, self.known = list[dict[str, Any]](), list[dict[str, Any]]()
        self.superseded, self.observed, self.ended = "", dict[str, Any](), dict[str, Any]()
        for slot in range(2):
            self.state.handle(WorkerJoined(slot, slot + 1, Node("host", 4, 1000.0, 4096), "boot", "e", f"ipc {slot}", ""))
        self.state.handle(Submitted(TopologyGraph("words", (LINES, COUNT), {"topology.guarantee": "at-most-once"})))
        self.report()

    def report(self) -> None:
        """Every worker has carried out the plan."""
        for slot, worker in self.state.workers.items():
            self.state.handle(WorkerReported(slot, worker.address.generation, self.state.revision, ((1, 0),), ()))

    def call(self, work: Callable[[], Any]) -> Any:
        self.on_its_thread = True
        try:
            return work()
        finally:
            self.on_its_thread = False

    def tell(self, event: Event) -> None:
        assert self.on_its_thread
        self.state.handle(event)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def move(self, name: str, task: TaskId, slot: int, *more: Any) -> None: ...
    def rescale(self, name: str, par: Any) -> None: ...
    def pause(self, name: str) -> None: ...
    def unpause(self, name: str) -> None: ...
    def kill(self, name: str, wait: float = 10.0) -> None: ...

    def rebalance(self, name: str, placement: Any, strategy: str, parameters: Any) -> None:
        self.known += self.records

    def past_migrations(self, name: str) -> list[dict[str, Any]]:
        return list(self.known)


def test_key_groups_go_to_another_task_and_the_move_is_shown_until_it_is_over() -> None:
    master = PaperMaster()
    running = RunningTopology(master, "words")
    topology = master.state.topologies["words"]
    assert running.moves() == []
    group = topology.key_groups["count"].index(0)
    running.regroup("count", {group: 1})
    [row] = running.moves()
    assert row["topology"] == "words" and [(each["task"], each["groups"], each["to_task"]) for each in row["moving"]] == [
        ("count[0]", [group], "count[1]")]
    [moving] = topology.handover.batch
    master.report()
    master.state.handle(MoveArmed(topology.number, topology.epoch, moving.number, 0))
    master.state.handle(MoveTaken(topology.number, topology.epoch, moving.number))
    assert running.moves() == [] and topology.key_groups["count"][group] == 1
    with pytest.raises(UnknownName, match="has no task 7"):
        running.regroup("count", {group: 7})


@pytest.mark.parametrize("task", [COUNT0, "count[0]"])
def test_a_move_is_cancelled(task: TaskId | str) -> None:
    master = PaperMaster()
    running = RunningTopology(master, "words")
    topology = master.state.topologies["words"]
    group = topology.key_groups["count"].index(0)
    running.regroup("count", {group: 1})
    running.cancel_move(task)
    assert running.moves() == [] and topology.key_groups["count"][group] == 0
    with pytest.raises(TopologyError, match="is not being moved"):
        running.cancel_move(task)


def test_nothing_of_a_topology_that_has_ended_moves() -> None:
    assert RunningTopology(PaperMaster(), "ended").moves() == []


@pytest.mark.parametrize("strategy", ["storm", "rollback"])
def test_the_record_of_a_loss_is_not_that_of_the_migration(strategy: str) -> None:
    master = PaperMaster()
    master.records = [{"id": 1, "strategy": strategy, "cause": "person", "outcome": "rolled back"},
                      {"id": 2, "strategy": "rollback", "cause": "loss: worker 1 lost: died", "outcome": "done"}]
    assert RunningTopology(master, "words").rebalance({"count[0]": 1}, strategy) == master.records[0]
