"""Verbs of users on running topologies, with a state machine and no master."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.events import Event, Killed, Moved, Paused, Submitted, Unpaused, WorkerJoined
from millrace.control.master_state import MasterState
from millrace.errors import UnknownName, UnknownTopology
from millrace.master.requests.handlers import TopologyVerbs
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, StreamDef, TaskId, TopologyGraph

LINES = ComponentDef("lines", "spout", "m:C", 2, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple", movable=True)


class FakeMaster:
    """A state with two workers, and the events made from requests."""

    def __init__(self, *names: str) -> None:
        self.state, self.events = MasterState(), list[Event]()
        for slot in range(2):
            self.state.handle(WorkerJoined(slot, slot + 1, Node("host", 4, 1000.0, 4096), "boot", "e", f"ipc {slot}", ""))
        for name in names:
            self.state.handle(Submitted(TopologyGraph(name, (LINES,), {"topology.guarantee": "at-most-once"})))

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.state.handle(event)

    def kill(self, name: str, wait: float) -> None:
        self.tell(Killed(name, wait, 0.0))

    def ask(self, verb: str, **request: Any) -> Any:
        return TopologyVerbs(self.state, self.tell, self.kill).verbs()[verb](request)


def test_each_verb_becomes_an_event() -> None:
    master = FakeMaster("words")
    assert [master.ask(verb, topology="words") for verb in ("pause", "unpause")] == ["words", "words"]
    assert master.ask("kill", topology="words", wait=3) == "words"
    paused, unpaused, killed = master.events
    assert (paused, unpaused) == (Paused("words"), Unpaused("words"))
    assert isinstance(killed, Killed) and (killed.name, killed.wait) == ("words", 3.0)


def test_a_task_is_moved_without_naming_its_topology() -> None:
    master = FakeMaster("words")
    source = master.state.topologies["words"].places[TaskId("lines", 1)].slot
    answer = master.ask("move", task="lines[1]", slot=1 - source)
    assert master.events == [Moved("words", TaskId("lines", 1), 1 - source)]
    assert (answer["topology"], answer["from"], answer["to"]) == ("words", source, 1 - source)
    wanted = master.state.topologies["words"].handover.waiting[TaskId("lines", 1)]
    assert wanted.slot == 1 - source, "it moves when the topology has started"


def test_an_ambiguous_task_or_component_is_an_error_that_says_how_to_choose() -> None:
    master = FakeMaster("words", "more")
    with pytest.raises(UnknownName, match=r"words, more all have a task lines\[0\]: choose one with --topology"):
        master.ask("move", task="lines[0]", slot=1)
    with pytest.raises(UnknownName, match="words, more all have 'lines': choose one with --topology"):
        master.ask("scale", par={"lines": 3})
    assert master.events == []


def test_an_unknown_task_is_an_error_that_lists_the_running_ones() -> None:
    with pytest.raises(UnknownName, match=r"no running topology has a task ghost\[0\]; there are lines\[0..1\]"):
        FakeMaster("words").ask("move", task="ghost[0]", slot=1)
    with pytest.raises(UnknownTopology, match="no topology named 'ghost' is running; running: words"):
        FakeMaster("words").ask("pause", topology="ghost")
