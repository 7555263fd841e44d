"""The scheduler interface and its three possible answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from millrace.model.cluster import Cluster
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan, initial_key_groups, rescaled_key_groups

# Units of what can be overloaded: CPU, the time of workers' loops, and memory.
MHZ, LOOPS, MEGABYTES = "MHz", "loops", "MB"


@dataclass(frozen=True, slots=True)
class Overload:
    """A node or worker that would get more load than it has capacity for."""

    where: str  # "node a", "worker 3"
    asked: float
    has: float
    unit: str = MHZ

    def __str__(self) -> str:
        if self.unit == LOOPS:
            return f"{self.where} would be busy for {self.asked:.0%} of the time"
        of_what = "MB of memory" if self.unit == MEGABYTES else "MHz"
        return f"{self.where} would need {self.asked:,.0f} {of_what} and has {self.has:,.0f}"


@dataclass(frozen=True, slots=True)
class NewPlan:
    """Plans to carry out: one for each topology in the question, including those that stay as they are."""

    plans: Mapping[str, Plan]
    reason: str
    overload: tuple[Overload, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", FrozenMap(self.plans))


@dataclass(frozen=True, slots=True)
class NoChange:
    """Keep the plans in force, even if something is overloaded."""

    reason: str
    overload: tuple[Overload, ...] = ()


@dataclass(frozen=True, slots=True)
class CannotPlace:
    """No plan is possible: the tasks without a place, by topology, and how much capacity is missing."""

    missing: Mapping[str, tuple[TaskId, ...]]
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "missing", FrozenMap(self.missing))


SchedulingResult = NewPlan | NoChange | CannotPlace


class Scheduler(Protocol):
    """Places tasks on slots. Its parameters are the fields of a frozen dataclass; its class may also set the constants
    described in registry.Traits."""

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        """Called when a topology, the cluster or the load changed. `load` and `plan` are by topology name; a new topology
        has neither. A plan whose topology is not among the graphs must not change, but its tasks use capacity. Must be a
        pure function: the same arguments give the same answer, and the call changes nothing.
        """
        ...


@runtime_checkable
class PlacesTasks(Protocol):
    """A scheduler that has a rule of its own for tasks without a slot, even if nothing is known of their load."""

    def place(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
              plan: Mapping[str, Plan]) -> SchedulingResult:
        """Slots for the tasks that have none: at the start, after a loss, and for tasks that are added. All others stay. The
        arguments are those of `Scheduler.schedule`. Called while a stream waits for its tasks, so it must be quick."""
        ...


def next_plan(graph: TopologyGraph, old: Plan | None, placement: Mapping[TaskId, int]) -> Plan:
    """Returns the plan with this placement: `old` itself if nothing differs, else the next version."""
    new = Plan(old.version + 1 if old else 1, placement, key_groups_for(graph, old))
    if old is not None and old.placement == new.placement and old.key_groups == new.key_groups:
        return old
    return new


def key_groups_for(graph: TopologyGraph, old: Plan | None) -> dict[str, tuple[int, ...]]:
    """Owners of the key groups of every keyed component, and of the splits of every spout that has some: unchanged if its
    parallelism is, else redistributed."""
    owners: dict[str, tuple[int, ...]] = {}
    before = old.parallelism if old else {}
    for component in graph.components:
        groups = graph.groups_of(component)
        if not groups:
            continue
        current = old.key_groups.get(component.name) if old else None
        if current is None:
            current = initial_key_groups(groups, component.par)
        elif before.get(component.name) != component.par:
            current = rescaled_key_groups(current, component.par)
        owners[component.name] = current
    return owners
