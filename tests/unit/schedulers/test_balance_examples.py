"""Key-group rebalancing, on loads small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

from by_hand import cluster

from millrace.api.grouping import Grouping
from millrace.control.scheduling.schedule_generator import ENACTED, NOT_WORTH_IT, Choice, Policy, ScheduleGenerator
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.balance import Balance
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.registry import make_scheduler, traits

GROUPS = 6
GRAPH = TopologyGraph("t", (
    ComponentDef("a", "spout", "m:A", 1, {}, (), (), False, "next_tuple"),
    ComponentDef("count", "bolt", "m:B", 2, {}, (), (Input("a", "default", Grouping.fields("x")),), False, "process"),
    ComponentDef("sink", "bolt", "m:C", 1, {}, (), (Input("count", "default", Grouping.SHUFFLE),), False, "process"),
), {"topology.key.groups": GROUPS}, batched=True)
CLUSTER = cluster(n1=[0], n2=[1])
PLACES = {TaskId("a", 0): 0, TaskId("count", 0): 0, TaskId("count", 1): 1, TaskId("sink", 0): 1}
HALVES = (0, 0, 0, 1, 1, 1)


def asked(counts: tuple[float, ...], owners: tuple[int, ...] = HALVES, graph: TopologyGraph = GRAPH,
          scheduler: Balance | None = None) -> SchedulingResult:
    return (scheduler or Balance()).schedule([graph], CLUSTER, {"t": Load(5.0, key_groups={"count": counts})},
                                             {"t": Plan(3, PLACES, {"count": owners})})


def owners_of(result: SchedulingResult) -> tuple[int, ...]:
    assert isinstance(result, NewPlan)
    assert result.plans["t"].placement == PLACES and result.plans["t"].version == 4
    return result.plans["t"].key_groups["count"]


def test_the_group_that_makes_two_tasks_alike_moves_and_no_other() -> None:
    # 1,300 and 300: 500 of the 1,000 between them should go, and the group of 400 is nearest. 900 and 700 is 1.125 of the mean,
    # so one of 100 follows.
    result = asked((800.0, 400.0, 100.0, 100.0, 100.0, 100.0))
    assert owners_of(result) == (0, 1, 1, 1, 1, 1)
    assert result.reason == ("t: 2 key groups of count move to other tasks: the most loaded task falls from 1.62 to 1.00 "
                             "times the mean")


def test_a_group_that_is_hotter_than_the_mean_is_left_alone_with_its_task() -> None:
    assert owners_of(asked((5000.0, 100.0, 100.0, 100.0, 100.0, 100.0))) == (0, 1, 1, 1, 1, 1)
    again = asked((5000.0, 100.0, 100.0, 100.0, 100.0, 100.0), (0, 1, 1, 1, 1, 1))
    assert isinstance(again, NoChange)
    assert again.reason == "t: the most loaded task of count has 1.82 times the mean; one key group alone has 1.82 times"


def test_a_component_with_state_of_its_own_only_keeps_its_key_groups_and_that_is_said() -> None:
    spout, count, sink = GRAPH.components
    result = asked((5000.0, 100.0, 100.0, 100.0, 100.0, 100.0),
                   graph=replace(GRAPH, components=(spout, replace(count, own_state=True), sink)))
    assert isinstance(result, NoChange)
    assert result.reason.startswith("t: count keeps its key groups: all its state is the result of snapshot()")


def test_within_the_tolerance_nothing_moves() -> None:
    near = (400.0, 400.0, 300.0, 350.0, 350.0, 300.0)  # 1,100 and 1,000: 1.048
    assert isinstance(asked(near), NoChange)
    assert isinstance(asked(near, scheduler=Balance(tolerance=0.01)), NewPlan)


def test_two_groups_change_places_where_no_single_one_helps() -> None:
    # From 600 + 400 + 400 and 600 + 400 to 400 + 400 + 400 and 600 + 600.
    assert owners_of(asked((600.0, 400.0, 400.0, 600.0, 400.0, 0.0))) == (1, 0, 0, 1, 0, 1)


def test_where_such_steps_end_too_soon_everything_is_shared_out_anew() -> None:
    # 300 + 100 + 200 and 500 + 900 + 600: with the 600 moved, 1,200 and 1,400, and no step helps. 1,300 each can be had.
    owners = owners_of(asked((300.0, 500.0, 100.0, 900.0, 600.0, 200.0), (0, 1, 0, 1, 1, 0)))
    assert owners == (0, 1, 0, 0, 1, 1)


def test_few_tuples_say_nothing() -> None:
    result = asked((90.0, 0.0, 0.0, 1.0, 0.0, 0.0))
    assert isinstance(result, NoChange) and result.reason == "t: count got 91 tuples, too few to judge"
    assert isinstance(Balance().schedule([GRAPH], CLUSTER, {}, {"t": Plan(3, PLACES, {"count": HALVES})}), NoChange)
    assert isinstance(asked((5000.0, 5.0)), NoChange), "counted when there were other key groups"


def test_key_groups_of_a_resident_topology_are_balanced_too() -> None:
    loads = (5000.0, 900.0, 900.0, 1.0, 1.0, 1.0)
    resident, batched = (asked(loads, graph=replace(GRAPH, batched=batched)) for batched in (False, True))
    assert isinstance(resident, NewPlan) and isinstance(batched, NewPlan)
    assert resident.plans["t"].key_groups == batched.plans["t"].key_groups


def test_a_component_with_one_task_has_nothing_to_share() -> None:
    parts = (GRAPH.components[0], replace(GRAPH.components[1], par=1), GRAPH.components[2])
    places = {task: slot for task, slot in PLACES.items() if task != TaskId("count", 1)}
    alone = {"t": Plan(3, places, {"count": (0,) * GROUPS})}
    result = Balance().schedule([replace(GRAPH, components=parts)], CLUSTER, {}, alone)
    assert isinstance(result, NoChange) and result.reason == "t has no key groups to balance"


def test_tasks_without_a_worker_are_placed() -> None:
    result = Balance().schedule([GRAPH], CLUSTER, {}, {})
    assert isinstance(result, NewPlan) and set(result.plans["t"].placement) == set(PLACES)
    assert isinstance(Balance().schedule([GRAPH], cluster(), {}, {}), CannotPlace)


def test_it_is_asked_often_and_decides_alone() -> None:
    assert traits(make_scheduler("balance", {"tolerance": 0.2})) == (5.0, True, 10.0, "ewma", 0.9)


def test_key_groups_that_move_are_a_decision() -> None:
    load = {"t": Load(5.0, key_groups={"count": (5000.0, 100.0, 100.0, 100.0, 100.0, 100.0)})}
    situation = Situation((GRAPH,), CLUSTER, load, {"t": Plan(3, PLACES, {"count": HALVES})})
    result = asked(load["t"].key_groups["count"])
    generator = ScheduleGenerator(Choice("balance", {}, 5.0, weighs_itself=True), Policy())
    decision = generator.decide(situation, result, "period", 0.0)
    assert (decision.outcome, decision.moved) == (ENACTED, ("t/count: 2 key groups, task 0 -> 1",))
    picky = ScheduleGenerator(Choice("balance", {}, 5.0, weighs_itself=True), Policy(min_gain=0.02))
    assert picky.decide(situation, result, "period", 0.0).outcome == ENACTED, "the most loaded task has less to do"
    pickier = ScheduleGenerator(Choice("balance", {}, 5.0, weighs_itself=True), Policy(min_gain=0.9))
    assert pickier.decide(situation, result, "period", 0.0).outcome == NOT_WORTH_IT
