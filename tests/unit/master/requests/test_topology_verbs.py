"""Verbs of users on running topologies, with a state machine and no master."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.events import (
    Event,
    Killed,
    LoadEstimated,
    Moved,
    Paused,
    Regrouped,
    Rescaled,
    Submitted,
    Unpaused,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.errors import TopologyError, UnknownName, UnknownTopology
from millrace.master.requests.handlers import TopologyVerbs
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.model.load import Load

LINES = ComponentDef("lines", "spout", "m:C", 2, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple", movable=True)
COUNT = ComponentDef("count", "bolt", "m:C", 2, {}, (), (Input("lines", "default", Grouping.fields("line")),), False, "process")


class FakeMaster:
    """A state with two workers, and the events made from requests."""

    def __init__(self, *names: str) -> None:
        self.state, self.events = MasterState(), list[Event]()
        for slot in range(2):
            self.state.handle(WorkerJoined(slot, slot + 1, Node("host", 4, 1000.0, 4096), "boot", "e", f"ipc {slot}", ""))
        for name in names:
            self.state.handle(Submitted(TopologyGraph(name, (LINES, COUNT), {"topology.guarantee": "at-most-once"})))

    def run(self) -> None:
        """Every worker has carried out the plan: the topologies run."""
        for slot, worker in self.state.workers.items():
            self.state.handle(WorkerReported(slot, worker.address.generation, self.state.revision, ((1, 0),), ()))

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


def test_a_strategy_can_be_asked_for() -> None:
    master = FakeMaster("words")
    source = master.state.topologies["words"].places[TaskId("lines", 1)].slot
    with pytest.raises(TopologyError, match="'words' takes no waves"):
        master.ask("move", task="lines[1]", slot=1 - source, strategy="rollback")
    assert master.events == [Moved("words", TaskId("lines", 1), 1 - source, "rollback")]


def test_a_placement_can_be_asked_for() -> None:
    master = FakeMaster("words")
    master.run()
    places = master.state.topologies["words"].places
    before = {task: places[task].slot for task in (TaskId("lines", 0), TaskId("count", 0))}
    answer = master.ask("rebalance", topology="words", strategy="storm", parameters={"message_timeout": 5},
                        placement={"lines[0]": 1 - before[TaskId("lines", 0)], "count[0]": before[TaskId("count", 0)]})
    assert answer == {"topology": "words", "strategy": "storm", "moves": [
        {"task": "lines[0]", "from": before[TaskId("lines", 0)], "to": 1 - before[TaskId("lines", 0)]}]}
    migration = master.state.topologies["words"].migration
    assert migration is not None and migration.parameters == {"message_timeout": 5}
    with pytest.raises(UnknownName, match="count"):
        master.ask("rebalance", topology="words", placement={"count": 1})


def test_the_parameters_of_a_migration_include_those_that_were_not_given() -> None:
    master = FakeMaster("words")
    master.run()
    source = master.state.topologies["words"].places[TaskId("lines", 0)].slot
    master.ask("move", task="lines[0]", slot=1 - source, strategy="nstorm", parameters={"worker_cycle": 5})
    migration = master.state.topologies["words"].migration
    assert migration is not None and migration.parameters == {"supervisor_cycle": 10.0, "worker_cycle": 5}


def test_an_ambiguous_task_or_component_is_an_error_that_says_how_to_choose() -> None:
    master = FakeMaster("words", "more")
    with pytest.raises(UnknownName, match=r"words, more all have a task lines\[0\]: choose one with --topology"):
        master.ask("move", task="lines[0]", slot=1)
    with pytest.raises(UnknownName, match="words, more all have 'lines': choose one with --topology"):
        master.ask("scale", par={"lines": 3})
    assert master.events == []


def test_an_unknown_task_is_an_error_that_lists_the_running_ones() -> None:
    with pytest.raises(UnknownName, match=r"no running topology has a task ghost\[0\]; there are count\[0..1\], lines\[0..1\]"):
        FakeMaster("words").ask("move", task="ghost[0]", slot=1)
    with pytest.raises(UnknownTopology, match="no topology named 'ghost' is running; running: words"):
        FakeMaster("words").ask("pause", topology="ghost")


def test_the_least_number_of_key_groups_that_move_is_that_for_the_distribution_aimed_at() -> None:
    master = FakeMaster("words")
    master.run()
    groups = len(master.state.topologies["words"].key_groups["count"])
    counts = [1e6] + [1e4] * (groups - 1)
    master.state.handle(LoadEstimated({"words": Load(10.0, key_groups={"count": counts})}))
    answer = master.ask("scale", par={"count": 3})
    assert answer["key_groups"]["count"][0] == 2 and answer["key_groups_minimum"] == 1, "only the hot group moves"


def test_key_groups_are_given_to_other_tasks() -> None:
    master = FakeMaster("words")
    master.run()
    owners = master.state.topologies["words"].key_groups["count"]
    group, kept = owners.index(0), owners.index(1)
    answer = master.ask("regroup", component="count", owners={str(group): 1, str(kept): 1})
    assert master.events == [Regrouped("words", "count", {group: 1, kept: 1})]
    assert answer == {"topology": "words", "component": "count", "groups": {group: {"from": 0, "to": 1}}, "splits": False,
                      "batched": False, "waits_for": [], "starting": False}
    again = master.ask("regroup", component="count", owners={str(group): 1})
    assert again["groups"] == {}, "they are on their way"
    back = master.ask("regroup", component="count", owners={str(group): 0}, topology="words")
    assert (back["groups"], back["waits_for"]) == ({group: {"from": 1, "to": 0}}, ["count[0]"])


def test_components_are_scaled() -> None:
    master = FakeMaster("words")
    master.run()
    answer = master.ask("scale", par={"count": 4})
    assert master.events == [Rescaled("words", {"count": 4})]
    assert (answer["from"], answer["to"], answer["changed"], answer["batched"]) == ({"count": 2}, {"count": 4}, True, False)
    assert answer["key_groups_moved"] is None, "it is under way"
    assert answer["key_groups_minimum"] == 64 and set(answer["key_groups"]["count"]) == set(range(4))


def test_the_same_number_of_tasks_changes_nothing() -> None:
    master = FakeMaster("words")
    master.run()
    answer = master.ask("scale", par={"count": 2})
    assert (answer["changed"], answer["key_groups_moved"], answer["key_groups_minimum"]) == (False, 0, 0)


def test_a_change_that_was_given_up_is_a_change_when_it_is_asked_for_again() -> None:
    """The numbers are the same; one of the tasks owns no key groups yet."""
    master = FakeMaster("words")
    master.run()
    topology = master.state.topologies["words"]
    topology.key_groups["count"] = (0,) * len(topology.key_groups["count"])
    answer = master.ask("scale", par={"count": 2})
    assert topology.scaling is not None and answer["from"] == answer["to"] == {"count": 2}
    assert answer["changed"] is True and answer["key_groups_moved"] is None and answer["key_groups_minimum"] == 64
    assert sorted(set(answer["key_groups"]["count"])) == [0, 1]


@pytest.mark.parametrize("named", [{}, {"topology": "words"}])
def test_key_groups_of_a_task_without_a_worker_can_be_kept(named: dict[str, str]) -> None:
    master = FakeMaster("words")
    topology = master.state.topologies["words"]
    group = topology.key_groups["count"].index(0)
    master.ask("regroup", component="count", owners={str(group): 1})
    for slot, worker in list(master.state.workers.items()):
        master.tell(WorkerLost(slot, worker.address.generation, "died"))
    assert TaskId("count", 0) not in topology.places
    assert ("count", group) in topology.handover.regrouping
    answer = master.ask("cancel move", task="count[0]", **named)
    assert answer == {"topology": "words", "task": "count[0]", "groups": [group], "splits": False, "worker": None}
    assert topology.handover.at_rest


def test_a_move_says_what_it_waits_for() -> None:
    master = FakeMaster("words")
    master.run()
    places = master.state.topologies["words"].places
    tasks = [TaskId("count", 0), TaskId("count", 1)]
    answers = [master.ask("move", task=str(task), slot=1 - places[task].slot)["waits_for"] for task in tasks]
    assert answers == [[], ["count[0]"]]


def test_a_move_waits_until_the_topology_has_started() -> None:
    master = FakeMaster("words")
    topology, count = master.state.topologies["words"], TaskId("count", 0)
    group, target = topology.key_groups["count"].index(0), 1 - topology.places[count].slot
    move = master.ask("move", task="count[0]", slot=target)
    regroup = master.ask("regroup", component="count", owners={str(group): 1})
    assert [(answer["starting"], answer["waits_for"]) for answer in (move, regroup)] == [(True, []), (True, [])]
    master.run()
    later = master.ask("move", task="count[1]", slot=1 - topology.places[TaskId("count", 1)].slot)
    assert not later["starting"]


def test_key_groups_of_an_unknown_component_are_refused() -> None:
    master = FakeMaster("words", "more")
    with pytest.raises(UnknownName, match="no running topology has 'ghost'; words has count, lines; more has count, lines"):
        master.ask("regroup", component="ghost", owners={"0": 1})
    with pytest.raises(UnknownName, match="words, more all have 'count': choose one with --topology"):
        master.ask("regroup", component="count", owners={"0": 1})
    with pytest.raises(UnknownTopology, match="no topology named 'ghost'"):
        master.ask("regroup", component="count", owners={"0": 1}, topology="ghost")
    assert master.events == []
