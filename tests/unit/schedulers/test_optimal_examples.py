"""Optimal against brute force, and its messages when it cannot be exact."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.instances import large_situation, random_situation
from millrace.schedulers.optimal import Least, Optimal, fits, least_traffic
from millrace.schedulers.problem import Problem


def situation(mhz: Sequence[float], cpu: Sequence[float], edges: dict[tuple[int, int], float],
              running: Sequence[int] | None = None) -> Situation:
    """Nodes of that many MHz with one slot each; tasks a[0], a[1], ...; edges in tuples a second."""
    graph = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", len(cpu), {}, (), (), False, "next_tuple"),), {})
    traffic = {(TaskId("a", source), TaskId("a", target)): rate for (source, target), rate in edges.items()}
    load = Load(1.0, {TaskId("a", index): TaskLoad(cpu_mhz=each) for index, each in enumerate(cpu)}, traffic)
    cluster = Cluster(tuple(Node(f"n{number}", 1, each, 1000) for number, each in enumerate(mhz)),
                      tuple(Slot(f"n{number}", f"e{number}", number) for number in range(len(mhz))))
    plans = {} if running is None else {"t": Plan(1, {TaskId("a", index): slot for index, slot in enumerate(running)})}
    return Situation((graph,), cluster, {"t": load}, plans)


def problem(case: Situation) -> Problem:
    return Problem.of(case.graphs, case.cluster, case.load, case.plan)


def ask(scheduler: Optimal, case: Situation) -> SchedulingResult:
    return scheduler.schedule(case.graphs, case.cluster, case.load, case.plan)


def brute_force(instance: Problem) -> float | None:
    """The least traffic of all placements that fit, one slot of each node standing for the node."""
    first = [int(np.flatnonzero(instance.slot_node == node)[0]) for node in range(instance.nodes)]
    every = (np.array(slots) for slots in itertools.product(first, repeat=instance.count))
    return min((instance.inter_node(slots) for slots in every if fits(instance, slots)), default=None)


@pytest.mark.parametrize("seed", range(25))
def test_it_is_the_best_of_all_placements(seed: int) -> None:
    instance = problem(random_situation(np.random.default_rng(seed), tasks=(2, 6), nodes=(1, 3)))
    result = least_traffic(instance)
    assert result.proven and result.assignment is not None and fits(instance, result.assignment)
    assert result.value == pytest.approx(instance.inter_node(result.assignment))
    assert result.value == pytest.approx(brute_force(instance), abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_equal_nodes_are_no_trap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = {(source, target): float(rng.integers(1, 100)) for source, target in itertools.combinations(range(6), 2)}
    instance = problem(situation([300.0] * 3, [100.0] * 6, edges))
    assert least_traffic(instance).value == pytest.approx(brute_force(instance))


def test_a_node_may_be_filled_to_the_last_mhz_and_no_further() -> None:
    exact = problem(situation([0.3, 0.3], [0.1] * 6, {(0, 1): 9, (1, 2): 9, (3, 4): 9, (4, 5): 9, (2, 3): 1}))
    assert least_traffic(exact).value == pytest.approx(1)
    above = problem(situation([300 * (1 - 1e-7), 400], [100.0] * 6, {(0, 1): 9, (1, 2): 9, (3, 4): 9, (4, 5): 9, (2, 3): 1}))
    result = least_traffic(above)
    assert result.assignment is not None and fits(above, result.assignment)
    assert result.value == pytest.approx(9), "three tasks are a hair too much for the first node"


def test_an_equally_good_plan_is_kept() -> None:
    result = ask(Optimal(), situation([200, 200], [100] * 4, {(0, 1): 50, (2, 3): 50, (0, 2): 10}, running=[1, 1, 0, 0]))
    assert result == NoChange("the plan has 10.0 tuples/s between nodes, the least possible")


def test_the_best_is_placed_where_fewest_move() -> None:
    result = ask(Optimal(), situation([200, 200], [100] * 4, {(0, 1): 50, (2, 3): 50, (0, 2): 10}, running=[1, 1, 0, 1]))
    assert isinstance(result, NewPlan) and list(result.plans["t"].placement.values()) == [1, 1, 0, 0]
    assert result.reason == "10.0 tuples/s between nodes, the least possible" and not result.overload


def test_headroom() -> None:
    case = situation([200, 200], [100] * 2, {(0, 1): 50}, running=[0, 0])
    assert isinstance(ask(Optimal(capacity=1.0), case), NoChange)
    assert isinstance(ask(Optimal(), case), NewPlan)


def test_too_many_tasks_are_left_alone_but_none_without_a_slot() -> None:
    case = situation([200, 200], [50] * 4, {(0, 1): 50}, running=[0, 1, 0, 1])
    assert ask(Optimal(max_tasks=3), case) == NoChange(
        "the plan stays: 4 tasks are more than max_tasks = 3. Raise it, or use a scheduler that is not exact")
    result = ask(Optimal(max_tasks=3), situation([200, 200], [50] * 4, {(0, 1): 50}, running=[0, 7, 0, 1]))
    assert isinstance(result, NewPlan) and list(result.plans["t"].placement.values()) == [0, 0, 0, 1]
    assert result.reason.endswith("; 1 tasks that had no slot are placed")


def test_tasks_that_cannot_fit_are_placed_with_little_overload_and_reported() -> None:
    case = situation([200, 200], [150] * 3, {(0, 1): 50}, running=[0, 0, 0])
    assert least_traffic(problem(case)) == Least(None, float("inf"), float("inf"))
    result = ask(Optimal(), case)
    assert isinstance(result, NewPlan) and len(set(result.plans["t"].placement.values())) == 2
    assert result.reason.startswith("no placement keeps every node and worker within its limits: 450 MHz, 0.0 loops and "
                                    "0 MB needed, 400 MHz, 2 loops and 2,000 MB on 2 nodes")
    assert str(result.overload[0]).endswith("would need 300 MHz and has 200")


def test_the_time_limit_ends_the_search_with_a_plan_that_can_be_run() -> None:
    case = large_situation(40, 16, np.random.default_rng(1))
    result = ask(Optimal(time_limit=0.05, max_tasks=40), case)
    placed = result.plans if isinstance(result, NewPlan) else case.plan
    assert not isinstance(result, CannotPlace) and set(placed["large"].placement) == set(case.graphs[0].tasks())
    assert "time limit left a gap" in result.reason or "within 0.05 s" in result.reason


def test_a_gap_is_not_proof() -> None:
    assert Least(np.zeros(1), 100.0, 100.0).proven and not Least(np.zeros(1), 100.0, 80.0).proven
    assert not Least(None, float("inf"), float("inf")).proven


def test_no_slots_and_no_load() -> None:
    assert isinstance(ask(Optimal(), situation([], [1], {})), CannotPlace)
    result = ask(Optimal(), situation([100, 100], [0] * 2, {}))
    assert isinstance(result, NewPlan) and list(result.plans["t"].placement.values()) == [0, 1]
