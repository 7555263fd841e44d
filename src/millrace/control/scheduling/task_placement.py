"""Places tasks that have no slot: those of a new topology, those lost with a worker, and those that are added.

That cannot wait for the process in which schedulers plan, so the rule that a built-in scheduler has for such tasks is called
here. Code of users never is: it might not return.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, PlacesTasks, Scheduler, SchedulingResult
from millrace.schedulers.inputs.demands import declares
from millrace.schedulers.placing import place_homeless
from millrace.schedulers.problem import Objective, Problem
from millrace.schedulers.registry import PACKING, traits
from millrace.schedulers.rules import check_result

MOST_TASKS = 20_000  # asked about at once: a scheduler's rule takes less than a second for them


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
        return self.place_all([graph], others, cluster, plan)[graph.name]

    def place_all(self, graphs: Sequence[TopologyGraph], others: Sequence[TopologyGraph], cluster: Cluster,
                  plan: Mapping[str, Plan]) -> dict[str, Placed]:
        """The same for several topologies, by name. The scheduler's rule is asked once for all of them: it reads the whole
        cluster each time."""
        asked = [graph for graph in graphs if cluster.slots and self._has_rule_for(graph)]
        placed, warning = self._by_rule(asked, others, cluster, plan) if asked else ({}, "")
        warned = {graph.name for graph in asked}
        for graph in graphs:
            if graph.name not in placed:
                result = self.first.schedule([graph], cluster, {}, _with_plans(plan, placed))
                placed[graph.name] = Placed(result, warning=warning if graph.name in warned else "")
        return placed

    def _has_rule_for(self, graph: TopologyGraph) -> bool:
        if not self.name or graph.batched:  # tasks that share a partition of a batch stay together, which `first` knows
            return False
        return isinstance(self._scheduler, PlacesTasks) or self._known(graph)

    def _known(self, graph: TopologyGraph) -> bool:
        """True if something is known of the CPU or memory that tasks of the topology need."""
        return declares(graph) or (graph.name in self.load and bool(self.load[graph.name].tasks))

    def _by_rule(self, graphs: Sequence[TopologyGraph], others: Sequence[TopologyGraph], cluster: Cluster,
                 plan: Mapping[str, Plan]) -> tuple[dict[str, Placed], str]:
        """The answer for these topologies by the scheduler's rule; if there is none, the reason."""
        tasks, more = (sum(len(graph.tasks()) for graph in some) for some in (graphs, others))
        if tasks > MOST_TASKS:
            return {}, (f"{tasks:,} tasks are more than scheduler {self.name} may place at once ({MOST_TASKS:,}): they are "
                        "spread evenly, and it re-plans them later")
        if tasks + more > MOST_TASKS:
            others = ()  # their measured load counts all the same, by their plans
        try:
            return self._together(graphs, others, cluster, plan), ""
        except Exception as error:  # a fault of a scheduler must not leave tasks without a slot
            return {}, f"scheduler {self.name} could not place tasks ({type(error).__name__}: {error}): they are spread evenly"

    def _together(self, graphs: Sequence[TopologyGraph], others: Sequence[TopologyGraph], cluster: Cluster,
                  plan: Mapping[str, Plan]) -> dict[str, Placed]:
        """The topologies in one question or, if there is no room for all of them, one after the other: some may have room."""
        names = [graph.name for graph in graphs]
        situation = Situation((*graphs, *others), cluster, self._loads(names), plan)
        result = check_result(situation, self._ask(situation))
        if len(graphs) == 1 or not isinstance(result, CannotPlace):
            return dict.fromkeys(names, Placed(result, self.name))
        placed: dict[str, Placed] = {}
        for graph in graphs:
            placed |= self._together([graph], others, cluster, _with_plans(plan, placed))
            if not isinstance(placed[graph.name].result, CannotPlace):
                others = [*others, graph]
        return placed

    def _loads(self, names: Collection[str]) -> dict[str, Load]:
        """Loads of these topologies; of the others only what their tasks need, since traffic within them says nothing."""
        return {name: load if name in names else Load(load.window_seconds, load.tasks, settling=load.settling)
                for name, load in self.load.items()}

    def _ask(self, situation: Situation) -> SchedulingResult:
        """The rule of the scheduler; if it has none, the usual one with what the scheduler minimises and fills."""
        question, scheduler = (situation.graphs, situation.cluster, situation.load, situation.plan), self._scheduler
        if isinstance(scheduler, PlacesTasks):
            return scheduler.place(*question)
        problem = scheduler.problem(*question) if isinstance(scheduler, Objective) else Problem.of(*question)
        return place_homeless(problem, traits(scheduler).packing if scheduler is not None else PACKING)


def _with_plans(plan: Mapping[str, Plan], placed: Mapping[str, Placed]) -> dict[str, Plan]:
    """The plans once these topologies have their slots."""
    return {**plan, **{name: each.result.plans[name] for name, each in placed.items() if isinstance(each.result, NewPlan)}}
