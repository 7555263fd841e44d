"""On a stationary stream that is measured with noise, tasks stay where they are once the scheduler has converged."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.model.situation import Situation
from millrace.schedulers.instances import large_situation, random_situation
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS
from support.scheduling.stationary import StationaryStream

SCHEDULES = 60
MOST = 1  # enacted plans in so many schedules
SEEDS = range(1, 11)
CONVERGED = 150  # schedules until then: noise makes some algorithms find better plans late, and otd moves one task at a time
FROM_SCRATCH = ("tstorm", "online")  # noise changes their answers most
QUICK = ("tstorm", "online", "otd", "erstream")  # to compute
SLOW = ("slstream", "multilevel", "optimal")
QUICK_BLOCKS, BLOCKS = 2, 3  # of so many schedules, one after the other
FEW_SCHEDULES = 90  # until few tasks have converged: a plan makes later ones harder for 60


def few() -> Situation:
    return random_situation(np.random.default_rng(4), (5, 6), (3, 3), topologies=(1, 1), slack=(1.2, 1.5))


def situations() -> dict[str, Situation]:
    """Topologies of several sizes and shapes, on nodes with much and with little to spare."""
    return {"few": few(),
            "roomy": random_situation(np.random.default_rng(1), (12, 20), (3, 5), slack=(1.3, 2.0)),
            "tight": random_situation(np.random.default_rng(2), (16, 30), (3, 6), slack=(1.05, 1.3)),
            "one worker per node": large_situation(60, 12, np.random.default_rng(3), 1)}


def cost(stream: StationaryStream) -> float:
    """The traffic between nodes by the true load."""
    problem = Problem.of(stream.truth.graphs, stream.truth.cluster, stream.truth.load, stream.plan)
    return problem.inter_node(problem.current)


def check(truth: Situation, scheduler: str, seed: int, converged: int, blocks: int) -> None:
    """At most one plan is enacted in each of so many blocks."""
    stream = StationaryStream(truth, scheduler, seed)
    stream.schedules(converged)
    for block in range(blocks):
        enacted = stream.schedules(SCHEDULES)
        assert len(enacted) <= MOST, (block, [(decision.trigger, decision.moved, decision.reason) for decision in enacted])


@pytest.mark.parametrize(("scheduler", "seed"), [
    (scheduler, seed) for scheduler in QUICK for seed in (SEEDS if scheduler in FROM_SCRATCH else SEEDS[:4])])
def test_after_convergence_at_most_one_plan_in_sixty_is_enacted(scheduler: str, seed: int) -> None:
    check(few(), scheduler, seed, FEW_SCHEDULES, QUICK_BLOCKS)


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS.keys() - set(QUICK) - set(SLOW)))
def test_schedulers_that_depend_less_on_noise_enact_as_few(scheduler: str) -> None:
    check(few(), scheduler, 1, 10, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("label", situations())
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_as_few_with_more_tasks(scheduler: str, label: str, seed: int) -> None:
    if scheduler == "optimal" and label != "few":
        pytest.skip("it is for few tasks")
    check(situations()[label], scheduler, seed, FEW_SCHEDULES if scheduler in SLOW else CONVERGED, BLOCKS)


@pytest.mark.parametrize("scheduler", QUICK)
def test_it_converges_to_less_traffic_though_every_window_is_noisy(scheduler: str) -> None:
    """Damping must not keep a plan that is much worse."""
    stream = StationaryStream(random_situation(np.random.default_rng(1), (12, 20), (3, 5), slack=(1.3, 2.0)), scheduler, seed=5)
    before = cost(stream)
    stream.schedules(40)
    assert cost(stream) < 0.8 * before
