"""Warnings about overload that the scheduler cannot relieve: what is overloaded, and what to add. Each is reported once, is
shown as long as it lasts, and its end is reported."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.config import ACKERS
from millrace.control.events import Say
from millrace.control.scheduling.bottlenecks import SATURATED, Bottleneck, TaskTime, around_user_code, task_time
from millrace.control.scheduling.overload import PlaceLoad, machine_loads, place_loads
from millrace.errors import MillraceError
from millrace.model.cluster import Cluster
from millrace.model.graph import ACKER, ComponentDef, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.model.rescaling import check_tasks
from millrace.model.sample import WindowSample

CAUSE = "measured load"
UNEVEN = 0.5  # if fewer of its tasks are full, a keyed component has uneven keys rather than too few tasks
TASKS_NAMED = 4


@dataclass(frozen=True, slots=True)
class Relief:
    """Means to relieve an overload. `tried`: why the scheduler in use does not; empty if none is in use."""

    graphs: Mapping[str, TopologyGraph]
    plans: Mapping[str, Plan]
    sample: WindowSample
    cluster: Cluster
    tried: str = ""

    def of_bottleneck(self, bottleneck: Bottleneck) -> str:
        """The overload in words: why it stays, and what to add."""
        graph = self.graphs[bottleneck.topology]
        component = graph.component(bottleneck.component)
        full = ", ".join(f"{task} {share:.0%}" for task, share in list(bottleneck.busy.items())[:TASKS_NAMED])
        text = (f"{component.name} cannot keep up: {bottleneck.evidence}, and {len(bottleneck.busy)} of its {component.par} "
                f"tasks are busy all the time ({full})")
        if not bottleneck.alone:
            return f"{text}: their workers are full. {self._tried()}{self._workers(0.0)}"
        if component.keyed and component.par > 1 and len(bottleneck.alone) < UNEVEN * component.par:
            return (f"{text}, while the others have time. Their keys have more tuples than those of others: even the key "
                    "groups out with `millrace scheduler set balance`, or with `--balance` beside another scheduler, or make "
                    "the bolt faster")
        advice, added = self._more_tasks(graph, component, math.ceil(bottleneck.needed))
        more = self._workers(added * SATURATED) if added else ""
        return f"{text}. No other placement helps{advice}" + (f". {more}" if more.startswith("Add") else "")

    def of_place(self, place: PlaceLoad) -> str:
        tasks = self._tasks_at(place.slots)
        heaviest = max(tasks, key=lambda row: row[2].most, default=None)
        here = f", with {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}" if tasks else ""
        if heaviest is not None and place.where.startswith("worker") and heaviest[2].full:
            name, task, time = heaviest
            return (f"{place.text}{here}. {task} of {name} alone needs {time.most:.0%}, so no other placement helps"
                    f"{self._more_like(self.graphs[name], task)}")
        advice = self._memory() if place.where.startswith("memory") else self._workers(0.0)
        return f"{place.text}{here}. {self._tried()}{advice}"

    def _tried(self) -> str:
        return f"{self.tried}. " if self.tried else "No scheduler is in use that could move tasks: `millrace scheduler set`. "

    def _more_like(self, graph: TopologyGraph, task: TaskId) -> str:
        """Advice for a task that needs a worker for itself."""
        if task.component == ACKER:
            return (f": start the topology with more than {graph.ackers} {'acker' if graph.ackers == 1 else 'ackers'} "
                    f"({ACKERS.key}), which share its tuples")
        return self._more_tasks(graph, graph.component(task.component))[0]

    def _more_tasks(self, graph: TopologyGraph, component: ComponentDef, wanted: int = 0) -> tuple[str, int]:
        """The advice to add tasks until there are as many as wanted, one at least and no more than it can have; and how many
        that adds."""
        tasks = max(component.par + 1, wanted)
        refused = self._refusal(graph, component.name, tasks)
        possible = next((fewer for fewer in range(tasks, component.par, -1)
                         if not self._refusal(graph, component.name, fewer)), 0)
        if not possible:
            return f", and it cannot have more tasks: {refused}. Or make it faster", 0
        return f": add tasks with `millrace scale {component.name}={possible}`", possible - component.par

    def _refusal(self, graph: TopologyGraph, name: str, tasks: int) -> str:
        try:
            check_tasks(graph, graph.component(name), tasks)
        except MillraceError as error:
            return str(error)
        return ""

    def _workers(self, more: float) -> str:
        """The workers or nodes to add for the load as it is and `more` loops, in words."""
        places = list(place_loads(self.sample, self.cluster))
        workers = [place.share for place in places if place.where.startswith("worker")]
        missing = math.ceil((sum(workers) + more) / SATURATED) - len(workers)
        nodes = [place for place in places if place.where.startswith("node")]
        crowded = [place for place in nodes if place.share >= SATURATED]
        if nodes and len(crowded) == len(nodes):
            return f"Add nodes: {'all' if len(nodes) > 1 else 'the'} {len(nodes)} use {SATURATED:.0%} of their CPU or more"
        if missing > 0:
            return f"Add {missing} {'worker' if missing == 1 else 'workers'} with `millrace workers add {missing}`"
        return "Other workers have room: choose another scheduler, or move tasks with `millrace move`"

    def _memory(self) -> str:
        """The nodes to add for the memory that is used, in words."""
        machines = machine_loads(self.sample, self.cluster)
        used, has = sum(machine.memory_used for machine in machines), sum(machine.memory for machine in machines)
        if used > has:
            return f"Add nodes: all together have {has:,.0f} MB, and {used:,.0f} are used"
        return "Other nodes have room: choose another scheduler, or move tasks with `millrace move`"

    def _tasks_at(self, slots: Collection[int]) -> list[tuple[str, TaskId, TaskTime]]:
        """The tasks of these workers: topology, task, and its time."""
        around = around_user_code(self.sample)
        rows = []
        for name, plan in self.plans.items():
            load = self.sample.loads.get(name)
            for task, slot in plan.placement.items():
                if slot in slots and load is not None and task in load.tasks and name in self.graphs:
                    blocking = task.component != ACKER and self.graphs[name].component(task.component).blocking
                    time = task_time(load, task, self.cluster.node_of(slot).mhz, 1.0 if blocking else around.get(slot, 1.0))
                    rows.append((name, task, time))
        return rows


@dataclass(slots=True)
class OverloadWarnings:
    """The overloads that stay, by what is overloaded."""

    _known: dict[tuple[str, str], str] = field(default_factory=dict)  # (topology or "", component or place) -> text

    def update(self, bottlenecks: Sequence[Bottleneck], places: Iterable[PlaceLoad], relief: Relief) -> list[Say]:
        """Take the overloads that last and are not being relieved. Returns the news: those that are new, and those that are
        over."""
        found = {(each.topology, each.component): relief.of_bottleneck(each) for each in bottlenecks}
        explained = {f"worker {relief.plans[each.topology].placement[task]}" for each in bottlenecks for task in each.busy
                     if task in relief.plans[each.topology].placement}
        found |= {("", place.where): relief.of_place(place) for place in places if place.where not in explained}
        news = [Say(text, name, "warning", CAUSE) for (name, what), text in found.items() if (name, what) not in self._known]
        news += [Say(f"{what} keeps up again" if name else f"{what} is no longer overloaded", name, cause=CAUSE)
                 for name, what in self._known if (name, what) not in found]
        self._known = found
        return news

    def warnings(self) -> list[str]:
        return [f"{name}: {text}" if name else text for (name, _), text in sorted(self._known.items())]
