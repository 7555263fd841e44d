"""Memory limits every scheduler as CPU does: nodes that lack some are relieved, and none is given more than it has."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import cluster, graph, load, plan

from millrace.control.scheduling.schedule_generator import ASKED, ENACTED, Choice, Policy, ScheduleGenerator
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import MEGABYTES, NewPlan, Overload
from millrace.schedulers.optimal import least_traffic
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import make_scheduler

SCHEDULERS = ["resource-aware", "slstream", "multilevel", "tstorm", "online", "erstream", "otd", "optimal"]
MEMORY = {"a0": 1000.0, "b0": 2000.0, "b1": 2000.0}  # of a node's 4,096 MB


def situation(running: Plan, heavy: float) -> Situation:
    measured = load({"a0 b0": 10.0, "a0 b1": heavy}, memory=MEMORY, a0=100, b0=100, b1=100)
    return Situation((graph(pinned="a", a=1, b=2),), cluster(n1=[0, 1], n2=[2, 3]), {"t": measured}, {"t": running})


def problem_of(case: Situation) -> Problem:
    return Problem.of(case.graphs, case.cluster, case.load, case.plan)


def used(case: Situation, result: object) -> list[float]:
    """The memory that is used on each node."""
    plans = {**case.plan, **result.plans} if isinstance(result, NewPlan) else case.plan
    after = Problem.of(case.graphs, case.cluster, case.load, plans)
    return sorted(after.node_memory_used(after.current).tolist())


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_node_that_lacks_memory_is_relieved_though_its_traffic_rises(name: str) -> None:
    case = situation(plan(a=[0], b=[0, 1]), 10.0)
    scheduler = make_scheduler(name)
    result = scheduler.schedule(case.graphs, case.cluster, case.load, case.plan)
    decision = ScheduleGenerator(Choice.of(name, scheduler), Policy()).decide(case, result, ASKED, 0.0)
    assert decision.outcome == ENACTED and len(decision.moved) == 1, decision.reason
    assert used(case, result) == [2000.0, 3000.0] and isinstance(result, NewPlan) and result.overload == ()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_node_gets_more_memory_than_it_has_for_the_traffic(name: str) -> None:
    case = situation(plan(a=[0], b=[0, 2]), 1000.0)
    scheduler = make_scheduler(name)
    result = scheduler.schedule(case.graphs, case.cluster, case.load, case.plan)
    assert used(case, result)[-1] <= 4096
    decision = ScheduleGenerator(Choice.of(name, scheduler), Policy()).decide(case, result, ASKED, 0.0)
    assert name in ("resource-aware", "otd") or decision.outcome == ENACTED, "b0 and b1 change places"


def test_memory_counts_in_what_is_rated_and_reported() -> None:
    problem = problem_of(situation(plan(a=[0], b=[0, 1]), 10.0))
    assert problem.excess(problem.current, 0.5) == problem.excess(problem.current) == pytest.approx(5000 / 4096 - 1)
    assert problem.place_loads(problem.current)[-2:].tolist() == pytest.approx([5000 / 4096, 0.0])
    (over,) = problem.overload(problem.current)
    assert over == Overload("node n1", 5000.0, 4096.0, MEGABYTES)
    assert str(over) == "node n1 would need 5,000 MB of memory and has 4,096"


def test_the_optimum_keeps_within_the_memory_of_nodes() -> None:
    least = least_traffic(problem_of(situation(plan(a=[0], b=[0, 2]), 1000.0)))
    assert least.value == pytest.approx(10.0) and least.assignment is not None
    small = Situation((graph(a=1),), cluster(memory_mb=500, n1=[0]), {"t": load(memory={"a0": 600.0})}, {"t": plan(a=[0])})
    assert least_traffic(problem_of(small)).assignment is None


def test_a_task_may_fill_the_place_that_it_is_in_but_no_smaller_one() -> None:
    # 970 MHz need more than 0.95 of the largest core, and there is one with as much: on the other they are an overload.
    nodes = cluster(mhz=1000.0, n1=[0])
    nodes = type(nodes)((*nodes.nodes, *cluster(mhz=800.0, n2=[1]).nodes), (*nodes.slots, *cluster(n2=[1]).slots))
    problem = Problem.of([graph(a=1)], nodes, {"t": load(a0=970)}, {"t": plan(a=[0])})
    for share in (0.95, 1.0):
        assert not problem.excesses(np.array([0]), share, avoidable=True).any()
        assert problem.excesses(np.array([1]), share, avoidable=True).sum() == pytest.approx(0.17)
