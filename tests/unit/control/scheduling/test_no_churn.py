"""On a stationary stream that is measured with noise, tasks stay where they are once the scheduler has converged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millrace.model.situation import Situation
from millrace.schedulers.instances import large_situation, random_situation
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS
from support.scheduling.stationary import StationaryStream

SCHEDULES = 60
MOST = 1  # enacted plans in so many schedules
CONVERGED = 150  # schedules until then: noise makes some algorithms find better plans late, and otd moves one task at a time
SLOW = {"slstream": 20, "multilevel": 20, "optimal": 60}  # to compute: schedules until they have converged
QUICK: dict[str, dict[str, Any]] = {"slstream": {"particles": 8, "iterations": 10, "restarts": 2}}


def situations(scheduler: str) -> dict[str, Situation]:
    """Topologies of several sizes and shapes, on nodes with much and with little to spare."""
    if scheduler == "optimal":  # which is for few tasks
        return {"few": random_situation(np.random.default_rng(7), (7, 8), (2, 3), slack=(1.3, 2.0))}
    roomy = random_situation(np.random.default_rng(1), (12, 20), (3, 5), slack=(1.3, 2.0))
    if scheduler in SLOW:
        return {"roomy": roomy}
    return {"roomy": roomy,
            "tight": random_situation(np.random.default_rng(2), (16, 30), (3, 6), slack=(1.05, 1.3)),
            "one worker per node": large_situation(60, 12, np.random.default_rng(3), 1)}


def cost(stream: StationaryStream) -> float:
    """The traffic between nodes by the true load."""
    problem = Problem.of(stream.truth.graphs, stream.truth.cluster, stream.truth.load, stream.plan)
    return problem.inter_node(problem.current)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_after_convergence_at_most_one_plan_in_sixty_is_enacted(scheduler: str) -> None:
    for label, truth in situations(scheduler).items():
        stream = StationaryStream(truth, scheduler, seed=11, **QUICK.get(scheduler, {}))
        stream.schedules(SLOW.get(scheduler, CONVERGED))
        enacted = stream.schedules(SCHEDULES)
        assert len(enacted) <= MOST, f"{label}: {[(decision.trigger, decision.reason) for decision in enacted]}"


@pytest.mark.parametrize("scheduler", ["tstorm", "online", "otd", "erstream"])
def test_it_converges_to_less_traffic_though_every_window_is_noisy(scheduler: str) -> None:
    """Damping must not keep a plan that is much worse."""
    stream = StationaryStream(random_situation(np.random.default_rng(1), (12, 20), (3, 5), slack=(1.3, 2.0)), scheduler, seed=5)
    before = cost(stream)
    stream.schedules(CONVERGED)
    assert cost(stream) < 0.8 * before
