"""Placement of tasks without a slot by the scheduler in use: at the start, after a loss, and when there is room again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from story import COUNT0, COUNT1, LINES, TOP0, TOP1, Story, graph, said

from millrace.config import COMPONENT_CPU, COMPONENT_MEMORY, WORKERS
from millrace.control.events import (
    ClusterMeasured,
    Command,
    Killed,
    LoadEstimated,
    SchedulerChosen,
    Submitted,
    Ticked,
    WorkerJoined,
)
from millrace.control.scheduling import task_placement
from millrace.control.topology_status import STARTING, WAITING
from millrace.model.cluster import Node, Slot
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.schedulers.base import NoChange, SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS, make_scheduler

WITHOUT_OWN_RULE = sorted(set(SCHEDULERS) - {"even", "tstorm", "resource-aware"})
TRAFFIC_AWARE = sorted(set(SCHEDULERS) - {"even", "resource-aware"})
WITH_OBJECTIVE = [name for name in TRAFFIC_AWARE if "minimise" in parameters_of(make_scheduler(name))]
MEMORY = 1024


class Nodes(Story):
    """Slots on nodes: `Nodes([0, 1], [2, 3])` has slots 0 and 1 on node0, 2 and 3 on node1."""

    def __init__(self, *slots: list[int], scheduler: str = "") -> None:
        super().__init__()
        self.node_of = {slot: f"node{number}" for number, local in enumerate(slots) for slot in local}
        for slot in self.node_of:
            self.join(slot)
        if scheduler:
            self.choose(scheduler)

    def join(self, slot: int) -> list[Command]:
        self.generation += 1
        node = Node(self.node_of[slot], 4, 1000.0, MEMORY)
        return self.on(WorkerJoined(slot, self.generation, node, f"boot of {node.name}", f"executor {slot}", f"ipc {slot}", ""))

    def choose(self, name: str, **parameters: Any) -> list[Command]:
        return self.on(SchedulerChosen(name, make_scheduler(name, parameters)))

    def measured(self, mhz: dict[TaskId, float], traffic: dict[tuple[TaskId, TaskId], float] | None = None) -> None:
        load = Load(1.0, {task: TaskLoad(cpu_mhz=used) for task, used in mhz.items()}, traffic or {})
        assert self.on(LoadEstimated({"words": load})) == []

    def slots(self, name: str = "words") -> set[int]:
        return {place.slot for place in self.places(name).values()}


def with_demands(of: TopologyGraph, setting: str, **values: float) -> TopologyGraph:
    return replace(of, components=tuple(replace(part, config={setting: values[part.name]}) if part.name in values else part
                                        for part in of.components))


# -- at the start --------------------------------------------------------------------------------------------------------


def test_without_a_scheduler_tasks_are_spread_over_all_workers() -> None:
    assert Nodes([0, 1], [2, 3]).running().slots() == {0, 1, 2, 3}


def test_tstorm_begins_with_one_worker_on_a_node() -> None:
    story = Nodes([0, 1], [2, 3], scheduler="tstorm")
    commands = story.on(Submitted(graph()))
    assert story.slots() == {0, 2}
    assert "placed on workers 0, 2 by tstorm" in " ".join(said(commands))


def test_tstorm_begins_with_no_more_workers_than_the_topology_asks_for() -> None:
    story = Nodes([0, 1], [2, 3], [4, 5], scheduler="tstorm").running(graph(**{WORKERS.key: 2}))
    assert len(story.slots()) == 2 and len({story.node_of[slot] for slot in story.slots()}) == 2


def test_declared_cpu_does_not_keep_tstorm_from_its_first_assignment() -> None:
    story = Nodes([0, 1], [2, 3], scheduler="tstorm").running(graph(**{COMPONENT_CPU.key: 10}))
    assert story.slots() == {0, 2}, "the CPU is known, but not the traffic"


def test_resource_aware_places_by_declared_memory() -> None:
    story = Nodes([0], [1], scheduler="resource-aware")
    story.running(with_demands(graph(**{COMPONENT_MEMORY.key: 1}), COMPONENT_MEMORY.key, lines=600, count=500))
    lines = story.places()[LINES].slot
    assert all(story.places()[count].slot != lines for count in (COUNT0, COUNT1)), "600 + 500 MB are more than a node has"


@pytest.mark.parametrize("name", WITHOUT_OWN_RULE)
def test_others_begin_evenly_while_nothing_is_known(name: str) -> None:
    evenly = Nodes([0, 1], [2, 3]).running().places()
    story = Nodes([0, 1], [2, 3], scheduler=name)
    assert not [text for text in said(story.on(Submitted(graph()))) if f"by {name}" in text]
    assert story.places() == evenly


@pytest.mark.parametrize("name", WITHOUT_OWN_RULE)
def test_others_use_the_cpu_that_components_declare(name: str) -> None:
    # Two counts with 300 % of a core each: together they would be more than the 4 cores of a node.
    story = Nodes([0], [1], scheduler=name).running(with_demands(graph(), COMPONENT_CPU.key, count=300))
    assert story.places()[COUNT0].slot != story.places()[COUNT1].slot
    assert all(story.places()[task].slot in (0, 1) for task in (LINES, TOP0, TOP1))


def test_a_topology_in_batches_begins_by_the_rule_of_its_engine() -> None:
    batched = replace(graph(), batched=True)
    evenly = Nodes([0, 1], [2, 3]).running(batched).places()
    assert Nodes([0, 1], [2, 3], scheduler="tstorm").running(batched).places() == evenly


# -- after a loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULERS)
def test_only_lost_tasks_are_placed_anew(name: str) -> None:
    story = Nodes([0, 1], [2, 3], [4], scheduler=name).running()
    story.measured(dict.fromkeys((LINES, COUNT0, COUNT1, TOP0, TOP1), 100.0), {(COUNT0, TOP0): 50.0, (COUNT1, TOP1): 50.0})
    before, slot = story.places(), min(story.slots())
    lost = story.on_slot(slot)
    assert lost
    story.lose(slot)
    after = story.places()
    assert {task: place for task, place in after.items() if task not in lost} == {
        task: place for task, place in before.items() if task not in lost}
    assert all(after[task].slot in (set(story.node_of) - {slot}) for task in lost)


@pytest.mark.parametrize("name", TRAFFIC_AWARE)
def test_a_lost_task_goes_where_its_traffic_is(name: str) -> None:
    story = Nodes([0], [1], [2], [3], [4], scheduler=name).running()
    assert len(story.slots()) == 5, "one task on each node"
    story.measured(dict.fromkeys((LINES, COUNT0, COUNT1, TOP0, TOP1), 100.0), {(COUNT0, TOP0): 500.0, (LINES, COUNT0): 5.0})
    lost, beside = story.places()[COUNT0].slot, story.places()[TOP0].slot
    story.lose(lost)
    assert story.places()[COUNT0].slot == beside


@pytest.mark.parametrize("name", TRAFFIC_AWARE)
def test_a_lost_task_does_not_overload_the_node_where_its_traffic_is(name: str) -> None:
    story = Nodes([0], [1], [2], [3], [4], scheduler=name).running()
    story.measured({LINES: 100.0, COUNT0: 600.0, COUNT1: 100.0, TOP0: 700.0, TOP1: 100.0}, {(COUNT0, TOP0): 500.0})
    story.lose(story.places()[COUNT0].slot)
    assert story.places()[COUNT0].slot != story.places()[TOP0].slot, "a worker has one core of 1,000 MHz"


WITH_PACKING = [("erstream", "u"), ("online", "limit"), ("otd", "high"), ("slstream", "capacity"), ("multilevel", "capacity"),
                ("optimal", "capacity"), ("tstorm", "capacity")]


@pytest.mark.parametrize(("name", "packing"), WITH_PACKING)
def test_a_lost_task_fills_a_worker_no_further_than_the_scheduler_does(name: str, packing: str) -> None:
    for share, together in ((0.8, False), (1.0, True)):
        story = Nodes([0], [1], [2], [3], [4], scheduler=name).running()
        story.choose(name, **{packing: share})
        story.measured({LINES: 100.0, COUNT0: 300.0, COUNT1: 100.0, TOP0: 600.0, TOP1: 100.0}, {(COUNT0, TOP0): 500.0})
        story.lose(story.places()[COUNT0].slot)
        assert (story.places()[COUNT0].slot == story.places()[TOP0].slot) == together, "900 of the 1,000 MHz of a core"


@pytest.mark.parametrize("name", WITH_OBJECTIVE)
def test_a_lost_task_goes_where_the_cost_that_is_minimised_is_least(name: str) -> None:
    story = Nodes([0], [1], [2], [3], [4], scheduler=name).running()
    beside, lost = story.node_of[story.places()[TOP0].slot], story.places()[COUNT0].slot
    near = next(node for slot, node in reversed(story.node_of.items()) if node != beside and slot != lost)
    links = {pair: 1.0 if near in pair else 50.0 for pair in combinations(sorted(set(story.node_of.values())), 2)}
    story.on(ClusterMeasured(links=links))
    story.choose(name, minimise="cost")
    story.measured({LINES: 100.0, COUNT0: 600.0, COUNT1: 100.0, TOP0: 700.0, TOP1: 100.0}, {(COUNT0, TOP0): 500.0})
    story.lose(lost)
    assert story.node_of[story.places()[COUNT0].slot] == near, "where its traffic goes there is no room"


# -- several topologies --------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """The questions to schedulers without a rule of their own."""
    problems: list[Problem] = []
    homeless = task_placement.place_homeless

    def noted(problem: Problem, capacity: float) -> SchedulingResult:
        problems.append(problem)
        return homeless(problem, capacity)

    monkeypatch.setattr(task_placement, "place_homeless", noted)
    return problems


def test_lost_tasks_of_all_topologies_are_placed_together(asked: list[Problem]) -> None:
    story = Nodes([0], [1], [2], scheduler="otd").running().running(graph("more"))
    used = dict.fromkeys((LINES, COUNT0, COUNT1, TOP0, TOP1), TaskLoad(cpu_mhz=150.0))
    story.on(LoadEstimated({name: Load(1.0, used) for name in ("words", "more")}))
    before = {name: story.places(name) for name in ("words", "more")}
    commands = story.lose(0)
    assert len(asked) == 1 and asked[0].count == 10
    for name, places in before.items():
        lost = {task for task, place in places.items() if place.slot == 0}
        assert lost and {task for task in places if story.places(name)[task] != places[task]} == lost
    assert sum("placed on worker" in text and "by otd" in text for text in said(commands)) == 2
    load = Counter(place.slot for name in before for place in story.places(name).values())
    assert load == {1: 5, 2: 5}, "150 of the 1,000 MHz of a worker for each"


def test_only_the_tasks_asked_about_are_limited(asked: list[Problem], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_placement, "MOST_TASKS", 7)
    story = Nodes([0], [1], scheduler="otd").running()
    story.measured(dict.fromkeys((LINES, COUNT0, COUNT1, TOP0, TOP1), 100.0))
    texts = said(story.on(Submitted(graph("more", **{COMPONENT_CPU.key: 10}))))
    assert len(asked) == 1 and asked[0].count == 5 and asked[0].slot_taken.sum() == 500.0, "others by what they use"
    assert any("placed on workers" in text and "by otd" in text for text in texts), texts


def test_a_topology_without_room_does_not_keep_others_from_being_placed() -> None:
    story = Nodes([0], [1], scheduler="resource-aware")
    story.running(with_demands(graph(**{COMPONENT_MEMORY.key: 1}), COMPONENT_MEMORY.key, lines=900))
    story.running(with_demands(graph("more", **{COMPONENT_MEMORY.key: 1}), COMPONENT_MEMORY.key, lines=900))
    story.running(graph("small", **{COMPONENT_MEMORY.key: 1}))
    lost = next(place.slot for task, place in story.places("words").items() if task == LINES)
    texts = said(story.lose(lost))
    assert story.status("words") == WAITING and LINES not in story.places("words")
    assert any("waits: cannot place" in text for text in texts)
    assert all(len(story.places(name)) == 5 and story.status(name) != WAITING for name in ("more", "small"))


def test_the_load_of_a_topology_that_has_ended_is_forgotten() -> None:
    story = Nodes([0, 1], [2, 3], scheduler="tstorm").running()
    story.measured({LINES: 100.0}, {(LINES, COUNT0): 5.0})
    story.on(Killed("words", 0.0, 0.0))
    story.on(Ticked(1.0))
    assert not story.state.topologies
    assert story.running().slots() == {0, 2}, "T-Storm's first assignment"


# -- what a scheduler must not do ----------------------------------------------------------------------------------------


class Raises:
    """A scheduler whose rule for tasks without a slot fails."""

    def schedule(self, *question: object) -> NoChange:
        return NoChange("")

    def place(self, *question: object) -> NoChange:
        raise KeyError("what was asked")


class Invents(Raises):
    """A scheduler whose rule places tasks where there is no slot."""

    def place(self, graphs, cluster, load, plan):  # type: ignore[no-untyped-def, override]
        moved = replace(cluster, slots=tuple(Slot(slot.node, slot.executor, slot.number + 100) for slot in cluster.slots))
        return Even().schedule(graphs, moved, load, plan)


@pytest.mark.parametrize(("scheduler", "why"), [(Raises(), "KeyError: 'what was asked'"), (Invents(), "it uses slot 100")])
def test_a_rule_that_fails_is_reported_and_tasks_are_spread(scheduler: Raises, why: str) -> None:
    evenly = Nodes([0, 1], [2, 3]).running().places()
    story = Nodes([0, 1], [2, 3])
    story.on(SchedulerChosen("broken", scheduler))
    texts = said(story.on(Submitted(graph())))
    assert any("scheduler broken could not place tasks" in text and why in text for text in texts), texts
    assert story.places() == evenly


def test_a_users_own_scheduler_is_not_called() -> None:
    evenly = Nodes([0, 1], [2, 3]).running().places()
    story = Nodes([0, 1], [2, 3])
    story.on(SchedulerChosen("mine:Own", None))
    story.running()
    assert story.places() == evenly
    story.measured(dict.fromkeys(evenly, 100.0), {(COUNT0, TOP0): 500.0})
    story.lose(story.places()[COUNT0].slot)
    nodes = [story.node_of[story.places()[task].slot] for task in (COUNT0, TOP0)]
    assert nodes[0] == nodes[1], "its load is known all the same"


def test_a_topology_with_very_many_tasks_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_placement, "MOST_TASKS", 4)
    story = Nodes([0, 1], [2, 3], scheduler="tstorm")
    texts = said(story.on(Submitted(graph())))
    assert any("5 tasks are more than scheduler tstorm may place at once (4)" in text for text in texts), texts
    assert story.slots() == {0, 1, 2, 3}


# -- memory is a hard limit ----------------------------------------------------------------------------------------------


def full() -> tuple[Nodes, TopologyGraph]:
    """A node whose memory is declared for the five tasks that run, and a topology that waits for as much."""
    story = Nodes([0], scheduler="resource-aware").running(graph(**{COMPONENT_MEMORY.key: MEMORY / 6}))
    more = graph("more", **{COMPONENT_MEMORY.key: MEMORY / 6})
    texts = said(story.on(Submitted(more)))
    assert story.status("more") == WAITING
    assert any("waits: cannot place 4 of 5 tasks" in text and COMPONENT_MEMORY.key in text for text in texts), texts
    return story, more


def test_demands_of_topologies_that_are_not_measured_yet_count() -> None:
    full()


def test_a_topology_that_waits_for_memory_starts_when_another_has_ended() -> None:
    story, _ = full()
    story.on(Killed("words", 0.0, 0.0))
    story.on(Ticked(1.0))
    assert story.status("more") == STARTING and len(story.places("more")) == 5


def test_a_topology_that_waits_for_memory_starts_when_a_worker_joins() -> None:
    story, _ = full()
    story.node_of[1] = "node1"
    story.join(1)
    assert story.status("more") == STARTING


def test_a_topology_that_waits_for_memory_starts_when_a_scheduler_is_chosen_that_does_not_count_it() -> None:
    story, _ = full()
    commands = story.choose("even")
    assert story.status("more") == STARTING and len(story.places("more")) == 5
    assert any("placed on worker 0 by even" in text for text in said(commands))
