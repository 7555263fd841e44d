"""Few tasks that hardly fit the cores of their nodes: the best placement on nodes may have none on workers."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.schedulers.base import NewPlan
from millrace.schedulers.instances import random_situation
from millrace.schedulers.multilevel import Multilevel
from millrace.schedulers.optimal import least_traffic
from millrace.schedulers.problem import Problem


@pytest.mark.parametrize("seed", [12, 67, 143])
def test_multilevel_finds_the_least_traffic_on_nodes_of_several_cores(seed: int) -> None:
    case = random_situation(np.random.default_rng(seed), (5, 8), (2, 3), cores=4)
    problem = Problem.of(case.graphs, case.cluster, case.load, case.plan)
    least = least_traffic(problem)
    answer = Multilevel(capacity=1.0).schedule(case.graphs, case.cluster, case.load, case.plan)
    assert isinstance(answer, NewPlan) and least is not None and least.value > 0
    placed = Problem.of(case.graphs, case.cluster, case.load, answer.plans).current
    assert problem.excess(placed) == 0 and problem.inter_node(placed) == pytest.approx(least.value)
