"""Places tasks that have no slot: those of a new topology, those lost with a worker, and those that are added.

That cannot wait for the process in which schedulers plan, so the rule that a built-in scheduler has for such tasks is called
here. Code of users never is: it might not return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import PlacesTasks, Scheduler, SchedulingResult
from millrace.schedulers.demands import declares
from millrace.schedulers.placing import place_homeless
from millrace.schedulers.problem import Problem
from millrace.schedulers.rules import check_result

MOST_TASKS = 20_000  # of a topology: a scheduler's rule takes less than a second for them


@dataclass(frozen=True, slots=True)
class Placed:
    """Slots for the tasks without one. `by`: the scheduler whose rule was used; empty if the engine's was. `warning`: why
    that is so although a scheduler is in use."""

    result: SchedulingResult
    by: str = ""
    warning: str = ""


class TaskPlacement:
    """The scheduler in use and the load that is known. `first`: the engine's own rule, which places tasks while no scheduler is
    in use, and those that nothing is known of unless the scheduler in use has a rule for them."""

    def __init__(self, first: Scheduler) -> None:
        self.first = first
        self.name = ""
        self.load: Mapping[str, Load] = {}
        self._scheduler: Scheduler | None = None

    def choose(self, name: str, scheduler: Scheduler | None) -> None:
        """Use the rule of this scheduler from now on. None: it is a user's own. No name: none is in use."""
        self.name, self._scheduler = name, scheduler

    def place(self, graph: TopologyGraph, others: Sequence[TopologyGraph], cluster: Cluster,
              plan: Mapping[str, Plan]) -> Placed:
        """Slots for the tasks of the topology that the plan has none for, or none that is alive. `others`: topologies whose
        tasks are all placed."""
        if not self.name or graph.batched:  # tasks that share a partition of a batch stay together, which `first` knows
            return Placed(self._evenly(graph, cluster, plan))
        if len(graph.tasks()) > MOST_TASKS:
            return Placed(self._evenly(graph, cluster, plan), warning=f"{len(graph.tasks()):,} tasks are more than scheduler "
                          f"{self.name} may place at once ({MOST_TASKS:,}): they are spread evenly, and it re-plans them later")
        if not isinstance(self._scheduler, PlacesTasks) and not self._known(graph):
            return Placed(self._evenly(graph, cluster, plan))
        situation = Situation((graph, *others), cluster, self.load, plan)
        try:
            return Placed(check_result(situation, self._by_scheduler(situation)), self.name)
        except Exception as error:  # a fault of a scheduler must not leave tasks without a slot
            return Placed(self._evenly(graph, cluster, plan), warning=f"scheduler {self.name} could not place tasks "
                          f"({type(error).__name__}: {error}): they are spread evenly")

    def _by_scheduler(self, situation: Situation) -> SchedulingResult:
        question = situation.graphs, situation.cluster, situation.load, situation.plan
        if isinstance(self._scheduler, PlacesTasks):
            return self._scheduler.place(*question)
        problem = Problem.of(*question)
        return place_homeless(problem) if problem.nodes else problem.no_slots()

    def _known(self, graph: TopologyGraph) -> bool:
        """True if something is known of the CPU or memory that tasks of the topology need."""
        return declares(graph) or (graph.name in self.load and bool(self.load[graph.name].tasks))

    def _evenly(self, graph: TopologyGraph, cluster: Cluster, plan: Mapping[str, Plan]) -> SchedulingResult:
        return self.first.schedule([graph], cluster, {}, plan)
