"""Placements that no single move and no exchange improves, and others that they lead to by a detour."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.schedulers.instances import random_situation
from millrace.schedulers.optimal import least_traffic
from millrace.schedulers.problem import Problem
from millrace.schedulers.refining import NodeLimits, refined_nodes
from millrace.schedulers.tstorm import TStorm
from millrace.simulation.compare import outcome

TASKS = tuple(TaskId("a", index) for index in range(4))


def two_pairs(capacity: float = 400.0) -> Problem:
    """Two pairs with much traffic inside, 13 tuples/s, and 12 in all between them; each is on a node of its own."""
    graph = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", 4, {}, (), (), False, "next_tuple"),), {})
    cluster = Cluster((Node("n0", 1, capacity, 1000), Node("n1", 1, capacity, 1000)), (Slot("n0", "e", 0), Slot("n1", "e", 1)))
    traffic = {(TASKS[0], TASKS[1]): 13.0, (TASKS[2], TASKS[3]): 13.0, (TASKS[0], TASKS[2]): 6.0, (TASKS[1], TASKS[3]): 6.0}
    load = {"t": Load(1.0, {task: TaskLoad(cpu_mhz=100.0) for task in TASKS}, traffic)}
    return Problem.of([graph], cluster, load, {"t": Plan(1, dict(zip(TASKS, (0, 0, 1, 1))))})


def test_a_pair_moves_by_a_detour_although_neither_task_gains_alone() -> None:
    problem = two_pairs()
    nodes, limits = problem.nodes_of(problem.current), NodeLimits.of(problem)
    assert refined_nodes(problem, nodes, limits).tolist() == [0, 0, 1, 1]
    assert len(set(refined_nodes(problem, nodes, limits, detours=True).tolist())) == 1


def test_a_detour_that_ends_in_an_overload_is_undone() -> None:
    problem = two_pairs(capacity=300.0)
    found = refined_nodes(problem, problem.nodes_of(problem.current), NodeLimits.of(problem), detours=True)
    assert found.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(10))
def test_detours_never_make_a_placement_worse_and_leave_fixed_tasks(seed: int) -> None:
    case = random_situation(np.random.default_rng(seed), pinned=0.5)
    problem = Problem.of(case.graphs, case.cluster, case.load, case.plan)
    nodes, limits = problem.nodes_of(problem.current), NodeLimits.of(problem)
    stays = np.arange(problem.count) % 3 == 0
    fixed, plain, better = (refined_nodes(problem, nodes, limits, movable, detours) for movable, detours in (
        (~stays, True), (None, False), (None, True)))
    assert (fixed[stays | problem.pinned] == nodes[stays | problem.pinned]).all()
    worth = [(problem.excess(slots), problem.cost(slots)) for slots in
             (np.searchsorted(problem.slot_node, each) for each in (plain, better))]
    assert worth[1] <= (worth[0][0] + 1e-9, worth[0][1] + 1e-6)


def test_t_storm_that_may_improve_comes_near_the_optimum() -> None:
    rng = np.random.default_rng(1)
    ratios = []
    for case in (random_situation(rng) for _ in range(25)):
        least = least_traffic(Problem.of(case.graphs, case.cluster, case.load, case.plan))
        ratios.append(outcome(TStorm(improve=True, gamma=100.0, capacity=1.0), case, lambda: 0.0, least).ratio)
    known = [ratio for ratio in ratios if ratio is not None]
    assert len(known) > 10 and np.mean(known) < 1.05
