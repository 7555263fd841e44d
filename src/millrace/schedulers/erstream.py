"""Er-Stream's reconfiguration (Sun et al., J. Supercomputing 2025): where tasks go once their number is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.pairing import by_pairs, decide
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.problem import Problem


@dataclass(frozen=True, slots=True)
class ErStream:
    """Pairs of tasks in order of their traffic: two that are new go to the worker with the lowest CPU; one that is new goes
    to whichever worker with room adds the least traffic between workers. Then the same with workers and nodes. Tasks in no
    pair go last, to the least loaded. Carried out only if it lowers the traffic between nodes by enough.
    """

    u: float = parameter(0.8, "Share of its CPU up to which a worker or a node takes more.", low=0.01, high=1.0)
    tr_improve: float = parameter(0.1, "Tasks move only if traffic between nodes falls by at least this share.",
                                  low=0.0, high=1.0)

    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        found = by_pairs(problem, self.u, revise=False, each_topology=False)
        return decide(problem, found, self.u, self.tr_improve, more=False)
