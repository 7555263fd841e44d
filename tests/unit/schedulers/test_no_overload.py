"""No scheduler that looks at the load overloads a node or worker of a situation in which all tasks fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from millrace.cli.comparing import PLACE_NOTHING, VARIANTS, made
from millrace.model.situation import Situation
from millrace.schedulers.instances import random_situation
from millrace.schedulers.problem import Problem
from millrace.schedulers.rearranging import rearranged, with_less_overload
from millrace.schedulers.registry import SCHEDULERS
from millrace.simulation.compare import outcome

SWARM_ALONE = "slstream xi=1 published=true"  # knows no limits of workers, and nothing is moved after it
BY_LOAD = sorted(SCHEDULERS.keys() - PLACE_NOTHING - {"even"})
SLOW = ("slstream", "multilevel", "optimal")  # to compute
SITUATIONS, SLOW_SITUATIONS = 30, 6


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("text", [*BY_LOAD, *(text for text in VARIANTS if text != SWARM_ALONE)])
def test_neither_the_plan_that_it_wants_nor_that_in_force_overloads_anything(text: str, cores: int) -> None:
    # Random situations are made so that a placement fits. Each begins as `even` placed the tasks, often with an overload.
    rng, overloaded = np.random.default_rng(1), 0
    for number in range(SLOW_SITUATIONS if text.startswith(SLOW) else SITUATIONS):
        result = outcome(made(text), random_situation(rng, cores=cores), lambda: 0.0)
        overloaded += result.before.largest_load > 1
        assert result.error is None and not result.overloaded and not result.enacted_overloaded, number
    assert overloaded or cores > 1


@pytest.mark.parametrize("text", [*BY_LOAD, *(text for text in VARIANTS if text != SWARM_ALONE)])
def test_nor_does_it_where_memory_is_short_too(text: str) -> None:
    for seed in range(20, 26):
        case = with_little_memory(random_situation(np.random.default_rng(seed), cores=2, slack=(1.3, 2.0)))
        result = outcome(made(text), case, lambda: 0.0)
        assert result.error is None and not result.overloaded and not result.enacted_overloaded, seed


def with_little_memory(case: Situation) -> Situation:
    """The situation with nodes that have 1.4 times the memory that the tasks need, in proportion to their CPU."""
    needed = sum(task.memory_mb for load in case.load.values() for task in load.tasks.values())
    each = 1.4 * needed / sum(node.capacity_mhz for node in case.cluster.nodes)
    nodes = tuple(replace(node, memory_mb=int(each * node.capacity_mhz)) for node in case.cluster.nodes)
    return replace(case, cluster=replace(case.cluster, nodes=nodes))


@pytest.mark.parametrize("few_moves", [False, True])
def test_workers_are_rearranged_where_it_is_they_that_are_full(few_moves: bool) -> None:
    found = 0
    for seed in range(20):
        case = random_situation(np.random.default_rng(seed), cores=3, pinned=0.3)
        problem = Problem.of(case.graphs, case.cluster, case.load, case.plan)
        for assignment in rearranged(problem, problem.current, 1.0, few_moves):
            assert (assignment[problem.pinned] == problem.current[problem.pinned]).all() and (assignment >= 0).all()
        if problem.excess(problem.current) and not problem.node_load(problem.current)[0] > problem.node_capacity[0]:
            found += problem.excess(with_less_overload(problem, problem.current)) < problem.excess(problem.current)
    assert found
