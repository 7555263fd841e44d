"""Drives a master state with a list of events and collects its commands."""

from __future__ import annotations

from millrace.api.grouping import Grouping
from millrace.control.assignment import Assignment, Place, WorkerAddress
from millrace.control.events import (
    Command,
    Distribute,
    Event,
    MoveArmed,
    Say,
    Submitted,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph

UNTRACKED = {"topology.guarantee": "at-most-once"}
LINES = TaskId("lines", 0)
COUNT0, COUNT1, TOP0, TOP1 = (TaskId(name, index) for name in ("count", "top") for index in (0, 1))


def bolt(name: str, source: str, grouping: Grouping) -> ComponentDef:
    return ComponentDef(name, "bolt", f"parts:{name}", 2, {}, (StreamDef("default", ("word",)),),
                        (Input(source, "default", grouping),), False, "process")


def graph(name: str = "words", **config: object) -> TopologyGraph:
    """lines[0] → count[0..1] → top[0..1]; without tracking unless the config says otherwise."""
    words = StreamDef("default", ("word",))
    lines = ComponentDef("lines", "spout", "parts:lines", 1, {}, (words,), (), False, "next_tuple")
    count, top = bolt("count", "lines", Grouping.fields("word")), bolt("top", "count", Grouping.SHUFFLE)
    return TopologyGraph(name, (lines, count, top), {**UNTRACKED, **config})


class Story:
    """A master state that counts revisions and generations, so that a test is a list of events."""

    def __init__(self, workers: int = 0) -> None:
        self.state = MasterState()
        self.generation = 0
        for slot in range(workers):
            self.join(slot)

    def on(self, event: Event) -> list[Command]:
        if isinstance(event, MoveArmed):  # the plan with the move has reached all workers
            self.report_all()
        return self.state.handle(event)

    def join(self, slot: int) -> list[Command]:
        self.generation += 1
        return self.on(joined(slot, self.generation))

    def lose(self, slot: int) -> list[Command]:
        return self.on(WorkerLost(slot, self.state.workers[slot].address.generation, "died"))

    def report(self, slot: int, in_flight: int = 0, revision: int | None = None, positions: tuple = (),
               number: int = 1) -> list[Command]:
        generation = self.state.workers[slot].address.generation
        return self.on(WorkerReported(slot, generation, self.state.revision if revision is None else revision,
                                      ((number, in_flight),), positions))

    def report_all(self, in_flight: int = 0) -> list[Command]:
        """Every worker carries out the newest revision."""
        revision = self.state.revision
        return [command for slot in list(self.state.workers) for command in self.report(slot, in_flight, revision)]

    def running(self, *graphs: TopologyGraph) -> Story:
        for each in graphs or (graph(),):
            self.on(Submitted(each))
        self.report_all()
        return self

    def status(self, name: str = "words") -> str:
        return self.state.topologies[name].status

    def places(self, name: str = "words") -> dict[TaskId, Place]:
        return dict(self.state.topologies[name].places)

    def on_slot(self, slot: int, name: str = "words") -> set[TaskId]:
        return {task for task, place in self.places(name).items() if place.slot == slot}


NODE = Node("host", 4, 1000.0, 4096)


def joined(slot: int, generation: int) -> WorkerJoined:
    return WorkerJoined(slot, generation, NODE, "boot", f"executor {slot}", f"ipc {slot}", f"tcp {slot}")


def address(slot: int, generation: int) -> WorkerAddress:
    return WorkerAddress(slot, generation, "host", "boot", f"ipc {slot}", f"tcp {slot}")


def distribute(whole: Assignment, node: str | None = "host") -> Distribute:
    """The node that all workers are on has a task of every component: its part is the whole."""
    return Distribute(whole, {node: whole} if node else {})


def said(commands: list[Command]) -> list[str]:
    return [command.text for command in commands if isinstance(command, Say)]


def last(commands: list[Command]) -> Assignment:
    return next(command.assignment for command in reversed(commands) if isinstance(command, Distribute))
