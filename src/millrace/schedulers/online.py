"""The online scheduler of Aniello, Baldoni and Querzoni ("Adaptive online scheduling in Storm", DEBS 2013)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.pairing import PairLimits, assign_in_two_phases, move_if_better
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.problem import Objective


@dataclass(frozen=True, slots=True)
class Online(Objective):
    """Takes, for each topology, its pairs of tasks in order of their traffic. If neither is placed, both go to the least loaded
    worker; else all ways to put the two into their workers and the least loaded one are compared, and the one with the least
    traffic between workers is taken. Then the same with workers and nodes. `topology.workers` limits the number of workers.
    """

    limit: float = parameter(0.9, "Share of a worker's core and of a node's CPU that may be used.", low=0.01, high=1.0)
    improvement: float = parameter(0.1, "Tasks move only if traffic between nodes falls by more than this share.",
                                   low=0.0, high=1.0)
    overload: float | None = parameter(None, "Tasks also move, whatever their traffic, if that relieves a worker or node that "
                                             "uses more than this share of its CPU or loop. Unset: 0.05 above limit.",
                                       low=0.01, high=1.0)

    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def packing(self) -> float:
        """Share of a node or worker that it fills."""
        return self.limit

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        assignment = assign_in_two_phases(problem, self.limit, revise=True, each_topology=True)
        return move_if_better(problem, assignment, PairLimits(FillLimits.of(self.limit, self.overload), self.improvement, True))
