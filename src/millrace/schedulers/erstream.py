"""Er-Stream's reconfiguration (Sun et al., J. Supercomputing 2025): places tasks once their number is decided.

The two phases, tasks into workers and workers onto nodes, are `assign_in_two_phases` in pairing.py.
"""

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
class ErStream(Objective):
    """Takes pairs of tasks in order of their traffic. If neither is placed, both go to the worker with the lowest CPU; if one
    is, the other goes to the worker with room that adds the least traffic between workers. Then the same with workers and
    nodes. Tasks in no pair go last, to the least loaded worker. Tasks move only if traffic between nodes falls enough, or if
    that relieves an overload.
    """

    u: float = parameter(0.8, "CPU utilization up to which a worker or node accepts more tasks.", low=0.01, high=1.0)
    tr_improve: float = parameter(0.1, "Tasks move only if traffic between nodes falls by at least this share.",
                                  low=0.0, high=1.0)
    overload: float | None = parameter(None, "Tasks also move, whatever their traffic, if that relieves a worker or node that "
                                             "uses more than this share of its CPU or loop. Unset: 0.05 above u.",
                                       low=0.01, high=1.0)

    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def packing(self) -> float:
        """Share of a node or worker that it fills."""
        return self.u

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        assignment = assign_in_two_phases(problem, self.u, revise=False, each_topology=False)
        return move_if_better(problem, assignment, PairLimits(FillLimits.of(self.u, self.overload), self.tr_improve, False))
