"""Memory that nodes lack for some windows: an overload like others, with what to add."""

from __future__ import annotations

import pytest

from millrace.control.scheduling.overload import LASTING, OverloadWatch, place_loads, places_of_nodes
from millrace.control.scheduling.overload_warnings import Relief
from millrace.control.scheduling.schedule_generator import ENACTED, NOT_WORTH_IT, OVERLOAD, Choice, Policy, ScheduleGenerator
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan
from millrace.schedulers.registry import make_scheduler

CLUSTER = Cluster((Node("n1", 4, 1000.0, 1000), Node("n2", 4, 1000.0, 1000)), (Slot("n1", "e", 0), Slot("n2", "e", 1)))
ONE, OTHER = TaskId("a", 0), TaskId("a", 1)
GRAPH = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", 2, {}, (), (), False, "next_tuple"),), {})
PLAN = Plan(1, {ONE: 0, OTHER: 0})
LOAD = Load(1.0, {task: TaskLoad(cpu_mhz=10.0, memory_mb=600.0) for task in (ONE, OTHER)}, {(ONE, OTHER): 5.0})
MEMORY = "memory of node n1"


def window(*used: float) -> WindowSample:
    nodes = {f"n{number}": NodeLoad(20.0, 4000.0, 1000.0, each) for number, each in enumerate(used, 1)}
    return WindowSample(0.0, 20.0, {"t": LOAD}, {"t": PLAN}, {}, nodes)


def test_memory_is_overloaded_only_beyond_all_that_there_is() -> None:
    for used, lasting in ((990.0, []), (1200.0, [MEMORY])):
        watch = OverloadWatch()
        for _ in range(LASTING):
            watch.add(window(used), CLUSTER)
        assert [place.where for place in watch.lasting(0.5)] == lasting
    watch.forget([places_of_nodes(CLUSTER)["n1"]])
    assert not watch.lasting(0.5), "tasks have moved"


@pytest.mark.parametrize(("windows", "outcome"), [(LASTING, ENACTED), (1, NOT_WORTH_IT)])
def test_a_node_whose_memory_is_short_for_some_windows_is_relieved(windows: int, outcome: str) -> None:
    scheduler = make_scheduler("multilevel")
    generator = ScheduleGenerator(Choice.of("multilevel", scheduler), Policy())
    for _ in range(windows):
        generator.take(window(1200.0), CLUSTER)
    assert bool(generator.overloaded()) == (outcome == ENACTED)
    case = Situation((GRAPH,), CLUSTER, {"t": LOAD}, {"t": PLAN})
    result = scheduler.schedule(case.graphs, CLUSTER, case.load, case.plan)
    decision = generator.decide(case, result, OVERLOAD, 1.0)
    assert isinstance(result, NewPlan) and decision.outcome == outcome, decision.reason


@pytest.mark.parametrize(("other", "advice"), [
    (0.0, "Other nodes have room: choose another scheduler, or move tasks with `millrace move`"),
    (900.0, "Add nodes: all together have 2,000 MB, and 2,100 are used")])
def test_a_warning_says_how_much_memory_is_short_and_what_to_do(other: float, advice: str) -> None:
    sample = window(1200.0, other)
    (place,) = [place for place in place_loads(sample, CLUSTER) if place.where == MEMORY]
    text = Relief({"t": GRAPH}, {"t": PLAN}, sample, CLUSTER, "otd found nothing").of_place(place)
    assert text == f"node n1 uses 1,200 of 1,000 MB of memory, with 2 tasks. otd found nothing. {advice}"


@pytest.mark.parametrize(("after", "goes_on"), [(1200.0, False), (1190.0, False), (1150.0, True), (1300.0, False)])
def test_tasks_go_on_leaving_a_node_only_while_that_frees_memory(after: float, goes_on: bool) -> None:
    """A process may keep what its tasks have used."""
    watch = OverloadWatch()

    def lasting(used: float) -> tuple[bool, bool]:
        for _ in range(LASTING):
            watch.add(window(used), CLUSTER)
        return bool(watch.lasting(0.9)), bool(watch.to_relieve(0.9))

    assert lasting(1200.0) == (True, True)
    watch.forget([places_of_nodes(CLUSTER)["n1"]])
    assert lasting(after) == (True, goes_on)
    watch.add(window(900.0), CLUSTER)
    watch.forget([places_of_nodes(CLUSTER)["n1"]])
    assert lasting(1300.0) == (True, True), "it has had enough in between"
