"""Key groups that are hotter than a task can carry: found from the measured load, and reported once with their hottest key.

A key group belongs to one task, so neither more tasks nor another placement or assignment of key groups can help against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.control.events import Say
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan

HOT = 0.8  # of a task's time in user code: the rest goes to routing, encoding and sending
COOL = 0.6  # a group that was hot is not any more below this share
LEAST_TUPLES = 3000  # of a component in the window: fewer are too few to judge by a sample
MOST_OF = 0.5  # the share of a group's tuples from which on a single key is the reason

GroupName = tuple[str, str, int]  # topology, component, key group


@dataclass(frozen=True, slots=True)
class HotGroup:
    """A key group that fills a task. `share`: of the task's time that its tuples need. `key`: the most frequent one as text,
    with its share of the group's tuples; empty if none was seen."""

    topology: str
    task: TaskId
    group: int
    share: float
    key: str = ""
    key_share: float = 0.0

    def describe(self) -> str:
        if not self.key:
            why = "Make the bolt faster, or give it fewer tuples of these keys"
        elif self.key_share >= MOST_OF:
            why = (f"The key {self.key} has about {self.key_share:.0%} of its tuples. Declare a `merge` in the bolt, so that "
                   "its senders merge tuples of a key, or make it faster (process_rows, process_arrow)")
        else:
            why = (f"Its most frequent key, {self.key}, has only about {self.key_share:.0%} of its tuples, so more key groups "
                   "would help: start the topology anew with a larger topology.key.groups")
        return (f"key group {self.group} of {self.task.component}, in {self.task}, needs about {self.share:.0%} of a task's "
                f"time, and tasks cannot share a key group: more tasks, or `balance`, do not help. {why}")


def hot_groups(graph: TopologyGraph, load: Load, plan: Plan, least: float = HOT) -> list[HotGroup]:
    """The key groups whose tuples need at least this share of a task's time, if all come that the sources offer."""
    found = []
    for component in graph.bolts:
        counts, owners = load.key_groups.get(component.name, ()), plan.key_groups.get(component.name, ())
        rate = load.true_processing_rate(component.name)
        if rate is None or len(counts) != len(owners) or sum(counts) < LEAST_TUPLES or load.window_seconds <= 0:
            continue
        busy_per_tuple = pressure(graph, load, component.name) / (rate * load.window_seconds)
        for group, tuples in enumerate(counts):
            if tuples * busy_per_tuple >= least:
                keys = [key for key in load.heavy_keys.get(component.name, ()) if key.group == group]
                key = max(keys, key=lambda key: key.tuples, default=None)
                found.append(HotGroup(graph.name, TaskId(component.name, owners[group]), group, tuples * busy_per_tuple,
                                      key.key if key else "", min(key.tuples / tuples, 1.0) if key else 0.0))
    return found


def pressure(graph: TopologyGraph, load: Load, component: str) -> float:
    """The tuples that the sources of a component offer over those that they emitted; 1 if that is all, or not known."""
    sources, above = {component}, [component]
    while above:
        for read in graph.component(above.pop()).inputs:
            if read.source not in sources:
                sources.add(read.source)
                above.append(read.source)
    spouts = [measured for task, measured in load.tasks.items()
              if task.component in sources and graph.component(task.component).kind == "spout"]
    emitted = sum(measured.emitted for measured in spouts)
    return max(sum(measured.offered for measured in spouts) / emitted, 1.0) if emitted else 1.0


@dataclass(slots=True)
class HotGroups:
    """The key groups that are hot now, of all topologies."""

    _known: dict[GroupName, HotGroup] = field(default_factory=dict)

    def observe(self, graphs: Mapping[str, TopologyGraph], loads: Mapping[str, Load], plans: Mapping[str, Plan]) -> list[Say]:
        """Take the loads of a window. Returns a warning for each group that has become hot."""
        hot = [group for name, graph in graphs.items() if name in loads and name in plans
               for group in hot_groups(graph, loads[name], plans[name], COOL)]
        now = {(group.topology, group.task.component, group.group): group for group in hot}
        fresh = [group for name, group in now.items() if name not in self._known and group.share >= HOT]
        self._known = {name: group for name, group in now.items() if name in self._known or group.share >= HOT}
        return [Say(group.describe(), group.topology, "warning", "measured load", (group.task,)) for group in fresh]

    def warnings(self) -> list[str]:
        return [f"{group.topology}: {group.describe()}" for _, group in sorted(self._known.items())]
