"""Even, by example: small enough to check by eye."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Scheduler
from millrace.schedulers.even import Even


def cluster(**slots: list[int]) -> Cluster:
    """`cluster(n1=[0, 1], n2=[2])`: node names and their slot numbers."""
    return Cluster(tuple(Node(name, 4, 2400.0, 4096) for name in slots),
                   tuple(Slot(name, f"e{number}", number) for name, numbers in slots.items() for number in numbers))


def graph(name: str = "t", ackers: int = 0, **pars: int) -> TopologyGraph:
    return TopologyGraph(name, tuple(ComponentDef(part, "spout", "m:C", par, {}, (), (), False, "next_tuple")
                                     for part, par in pars.items()), {}, ackers)


def plan(version: int = 1, **slots: list[int]) -> Plan:
    """`plan(a=[0, 1])`: the slot of each task of `a`."""
    return Plan(version, {TaskId(part, index): slot for part, numbers in slots.items()
                          for index, slot in enumerate(numbers)})


EVEN: Scheduler = Even()


def test_tasks_go_round_the_slots_and_nodes_take_turns() -> None:
    result = EVEN.schedule([graph(a=2, b=3, ackers=1)], cluster(n1=[0, 1], n2=[2, 3]), {}, {})
    assert result == NewPlan({"t": plan(a=[0, 2], b=[1, 3, 0], __acker=[2])}, "6 tasks placed and 0 moved, on 4 slots")


def test_tasks_of_a_dead_slot_go_to_the_least_loaded() -> None:
    result = EVEN.schedule([graph(a=5)], cluster(n1=[0], n2=[1]), {}, {"t": plan(4, a=[0, 0, 1, 9, 9])})
    assert result == NewPlan({"t": plan(5, a=[0, 0, 1, 1, 0])}, "2 tasks placed and 0 moved, on 2 slots")


def test_tasks_of_all_topologies_are_counted() -> None:
    plans = {"t": plan(a=[0]), "not asked about": plan(x=[1, 1, 1])}
    result = EVEN.schedule([graph(a=1), graph("u", b=2)], cluster(n1=[0], n2=[1]), {}, plans)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0]), "u": plan(b=[0, 0])}


def test_a_slot_that_came_back_gets_its_share() -> None:
    plans = {"t": plan(a=[0, 0, 1, 1, 1, 0])}
    result = EVEN.schedule([graph(a=6)], cluster(n1=[0], n2=[1], n3=[2]), {}, plans)
    assert isinstance(result, NewPlan)
    assert sorted(result.plans["t"].placement.values()) == [0, 0, 1, 1, 2, 2]
    assert len(Plan.diff(plans["t"], result.plans["t"]).moved) == 2
    stay = Even(spread_back=False).schedule([graph(a=6)], cluster(n1=[0], n2=[1], n3=[2]), {}, plans)
    assert isinstance(stay, NoChange)


def test_an_uneven_plan_becomes_even_again() -> None:
    result = EVEN.schedule([graph(a=5)], cluster(n1=[0], n2=[1]), {}, {"t": plan(a=[0, 0, 0, 0, 1])})
    assert result == NewPlan({"t": plan(2, a=[0, 0, 0, 1, 1])}, "0 tasks placed and 1 moved, on 2 slots")
    stay = Even(spread_back=False).schedule([graph(a=5)], cluster(n1=[0], n2=[1]), {}, {"t": plan(a=[0, 0, 0, 0, 1])})
    assert isinstance(stay, NoChange)


def test_tasks_of_a_component_that_are_together_are_spread_again() -> None:
    # Both slots have two tasks, as a scheduler may place them that puts tasks together which exchange most.
    result = EVEN.schedule([graph(a=2, b=2)], cluster(n1=[0], n2=[1]), {}, {"t": plan(a=[0, 0], b=[1, 1])})
    assert result == NewPlan({"t": plan(2, a=[0, 1], b=[1, 0])}, "0 tasks placed and 2 moved, on 2 slots")


def test_one_worker_per_node() -> None:
    slots = cluster(n1=[0, 1], n2=[2, 3])
    result = Even(one_worker_per_node=True).schedule([graph(a=4), graph("u", b=4)], slots, {}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 2, 0, 2]), "u": plan(b=[1, 3, 1, 3])}


def test_one_worker_per_node_gathers_what_is_on_two() -> None:
    slots = cluster(n1=[0, 1], n2=[2])
    result = Even(one_worker_per_node=True).schedule([graph(a=4)], slots, {}, {"t": plan(a=[0, 1, 1, 2])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[2, 1, 1, 2])}


def test_one_worker_per_node_does_not_move_back_and_forth() -> None:
    # Slot 1 stays empty, because the topology is on slot 0 of that node; the rest is level after one move.
    slots = cluster(n1=[0, 1], n2=[2], n3=[3])
    result = Even(one_worker_per_node=True).schedule([graph(a=5)], slots, {}, {"t": plan(a=[0, 0, 0, 2, 2])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0, 3, 2, 2])}


def test_a_node_that_the_topology_has_left_is_open_to_it_again() -> None:
    slots = cluster(n1=[0, 1], n2=[2], n3=[3])
    plans = {"t": plan(a=[0, 2, 2]), "not asked about": plan(x=[0, 0, 0])}
    result = Even(one_worker_per_node=True).schedule([graph(a=3)], slots, {}, plans)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[3, 2, 1])}


def test_among_equal_slots_the_one_with_fewer_of_the_same_component_is_taken() -> None:
    result = EVEN.schedule([graph(a=2, b=1)], cluster(n1=[0], n2=[1]), {}, {"t": plan(a=[0, 9], b=[1])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 1], b=[1])}


def test_the_component_with_most_tasks_on_a_slot_gives_them_up() -> None:
    result = EVEN.schedule([graph(a=1, b=4)], cluster(n1=[0], n2=[1]), {}, {"t": plan(a=[0], b=[0, 0, 0, 0])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0], b=[0, 0, 1, 1])}


def test_no_slots() -> None:
    result = EVEN.schedule([graph(a=2), graph("u", b=3)], cluster(n1=[], n2=[]), {}, {})
    assert isinstance(result, CannotPlace)
    assert result.missing == {"t": graph(a=2).tasks(), "u": graph(b=3).tasks()}
    assert result.reason.startswith("cannot place 5 tasks (2 of 't', 3 of 'u'): at least 1 slot is needed, and none of "
                                    "the cluster's 2 nodes has a live one.")


def test_nothing_to_do() -> None:
    assert isinstance(EVEN.schedule([], cluster(n1=[]), {}, {}), NoChange)


def test_ten_thousand_tasks() -> None:
    pars: dict[str, Any] = {f"c{number}": 1000 for number in range(10)}
    big = graph(**pars)
    before = cluster(**{f"n{node}": [node] for node in range(100)})
    first = EVEN.schedule([big], before, {}, {})
    assert isinstance(first, NewPlan)
    grown = cluster(**{f"n{node}": [node] for node in range(101)})
    second = EVEN.schedule([big], grown, {}, first.plans)
    assert isinstance(second, NewPlan)
    assert len(Plan.diff(first.plans["t"], second.plans["t"]).moved) == 99


def test_a_topology_uses_no_more_workers_than_it_asks_for() -> None:
    asking = replace(graph(a=4), config={"topology.workers": 2})
    result = EVEN.schedule([asking], cluster(n1=[0, 1], n2=[2, 3]), {}, {})
    assert isinstance(result, NewPlan) and result.plans["t"] == plan(a=[0, 2, 0, 2])


def test_when_one_of_its_workers_is_lost_another_takes_its_place() -> None:
    asking = replace(graph(a=4), config={"topology.workers": 2})
    result = EVEN.schedule([asking], cluster(n1=[0, 1], n2=[3]), {}, {"t": plan(a=[0, 2, 0, 2])})
    assert isinstance(result, NewPlan) and result.plans["t"] == plan(2, a=[0, 3, 0, 3])


def test_the_reason_counts_tasks_and_not_steps() -> None:
    # Tasks pass through other slots while the slots are levelled.
    running = plan(a=[0] * 20, b=[1] * 20, c=[2] * 20, d=[9] * 2)
    result = EVEN.schedule([graph(a=20, b=20, c=20, d=2)], cluster(n1=[0, 1], n2=[2, 3], n3=[4]), {}, {"t": running})
    assert isinstance(result, NewPlan)
    moved = sum(slot != result.plans["t"].placement[task] for task, slot in running.placement.items()) - 2
    assert result.reason == f"2 tasks placed and {moved} moved, on 5 slots"
