"""Plans that the schedule generator enacts: one that it refuses for ever is as bad as none, however good it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand import cluster, graph, load, plan

from millrace.control.scheduling.schedule_generator import ASKED, ENACTED, Choice, Policy, ScheduleGenerator
from millrace.model.situation import Situation
from millrace.schedulers.instances import large_situation
from millrace.schedulers.registry import make_scheduler
from millrace.simulation.compare import outcome


def share_left(situation: Situation, name: str, parameters: dict[str, Any]) -> float:
    """The traffic between nodes when the scheduler has no more plans, or one is refused, over that at the start."""
    result = outcome(make_scheduler(name, parameters), situation, lambda: 0.0)
    assert result.enacted is not None, result.reason
    return result.enacted.inter_node / result.before.inter_node


@pytest.mark.parametrize(("name", "parameters", "most"), [
    ("tstorm", {}, 0.9), ("tstorm", {"gamma": 3.0}, 0.9), ("tstorm", {"improve": True}, 0.5), ("online", {}, 0.6),
    ("erstream", {}, 0.6), ("slstream", {}, 0.5), ("multilevel", {}, 0.5), ("otd", {}, 0.99)])
def test_plans_for_nodes_with_several_cores_are_enacted(name: str, parameters: dict[str, Any], most: float) -> None:
    assert share_left(large_situation(200, 24, np.random.default_rng(1)), name, parameters) < most


def test_plans_for_thousands_of_tasks_are_enacted_although_some_tasks_fill_a_worker_each() -> None:
    situation = large_situation(4000, 400, np.random.default_rng(1))
    assert max(task.cpu_mhz for task in situation.load["large"].tasks.values()) > situation.cluster.nodes[0].mhz
    assert share_left(situation, "multilevel", {}) < 0.4


@pytest.mark.parametrize("name", ["slstream", "multilevel"])
def test_new_plans_fill_workers_no_further_than_they_may(name: str) -> None:
    # Where nodes are so few, a piece that fits a node fills one of its workers a bit more than it should.
    assert share_left(large_situation(120, 12, np.random.default_rng(1)), name, {}) < 0.5


@pytest.mark.parametrize("busy", [0.91, 0.94, 0.97, 1.0])
@pytest.mark.parametrize("name", ["tstorm", "slstream", "multilevel", "erstream", "online", "optimal"])
def test_a_task_that_needs_more_than_is_filled_may_have_another_worker_to_itself(name: str, busy: float) -> None:
    # The spout cannot leave n2, where a worker is idle.
    measured = load({"a0 b0": 1000.0}, a0=100, b0=100, busy={"a0": 0.05, "b0": busy})
    case = Situation((graph(pinned="a", a=1, b=1),), cluster(n1=[0, 1], n2=[2, 3]), {"t": measured}, {"t": plan(a=[2], b=[0])})
    scheduler = make_scheduler(name)
    result = scheduler.schedule(case.graphs, case.cluster, case.load, case.plan)
    decision = ScheduleGenerator(Choice.of(name, scheduler), Policy()).decide(case, result, ASKED, 0.0)
    assert (decision.outcome, decision.moved) == (ENACTED, ("t/b[0]: worker 0 -> 3",)), decision.reason
