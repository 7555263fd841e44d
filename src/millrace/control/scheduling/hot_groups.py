"""Key groups that are hotter than a task can carry: found from the measured load, and reported once with their hottest key.

A key group belongs to one task, so neither more tasks nor another placement or assignment of key groups can help against it.
Tuples are counted by key group in a sample. A group is judged by the newest windows, by as few of them as make the error of its
count small: one window of a fast stream, many of a slow one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from millrace.control.events import Say
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import SAMPLED, Load
from millrace.model.plan import Plan

HOT = 0.8  # of a task's time in user code: the rest goes to routing, encoding and sending
COOL = 0.6  # a group that was hot is not any more below this share
SURE = 2.33  # standard errors of a sampled count: with 99 % certainty, it is not further above the truth
WINDOWS = 60  # of which groups are judged at most
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
            why = (f"The key {self.key} has about {self.key_share:.0%} of its tuples. Declare a `merge` in the bolt, or "
                   "a `combine` in its grouping, so that its senders merge tuples of a key, or make it faster (process_rows, "
                   "process_arrow)")
        else:
            why = (f"Its most frequent key, {self.key}, has only about {self.key_share:.0%} of its tuples, so more key groups "
                   "would help: start the topology anew with a larger topology.key.groups")
        return (f"key group {self.group} of {self.task.component}, in {self.task}, needs about {self.share:.0%} of a task's "
                f"time, and tasks cannot share a key group: more tasks, or `balance`, do not help. {why}")


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """The tuples of each key group of a component in a window, by the sample. `whole`: the share of a task's time that all
    of them need, if all come that the sources offer."""

    seconds: float
    whole: float
    total: float
    counts: tuple[float, ...]


def counts_of(graph: TopologyGraph, load: Load, component: ComponentDef) -> GroupCounts | None:
    """None if too little was measured. Where all tuples have a key, their number is known exactly."""
    counts, rate = load.key_groups.get(component.name, ()), load.true_processing_rate(component.name)
    if load.window_seconds <= 0 or (rate is None and any(counts)):
        return None
    total = tuples = sum(counts)
    if all(read.grouping.kind == "fields" for read in component.inputs):
        tuples = sum(measured.executed for task, measured in load.tasks.items() if task.component == component.name)
    busy = pressure(graph, load, component.name) / (rate * load.window_seconds) if rate is not None else 0.0
    return GroupCounts(load.window_seconds, tuples * busy, total, counts)


def judged_share(windows: Sequence[GroupCounts], group: int) -> float | None:
    """The share of a task's time that the tuples of the group need, by the newest windows, the oldest first; None if they are
    too few to tell: a group that is `HOT` by its count might be `COOL`, or the other way round."""
    tuples = total = seconds = whole = 0.0
    for window in reversed(windows):
        tuples, total, seconds = tuples + window.counts[group], total + window.total, seconds + window.seconds
        whole += (window.whole - whole) * window.seconds / seconds  # the mean, by time
        low, high = interval(tuples / SAMPLED, total / SAMPLED)
        part = tuples / total if total else 0.0
        if high * whole < COOL or (part and low >= COOL / HOT * part):
            return part * whole
    return None


def interval(found: float, sample: float) -> tuple[float, float]:
    """The share of all tuples that such a part of a sample stands for: at least and at most, by Wilson's score interval."""
    if not sample:
        return 0.0, 1.0
    part, spread = found / sample, SURE**2 / sample
    middle, half = part + spread / 2, SURE * math.sqrt(part * (1 - part) / sample + spread / (4 * sample))
    return max((middle - half) / (1 + spread), 0.0), min((middle + half) / (1 + spread), 1.0)


def hot_group(topology: str, load: Load, task: TaskId, group: int, share: float) -> HotGroup:
    """The group with its most frequent key in the window."""
    keys, counts = load.heavy_keys.get(task.component, ()), load.key_groups.get(task.component, ())
    key = max((key for key in keys if key.group == group), key=lambda key: key.tuples, default=None)
    if key is None or group >= len(counts) or not counts[group]:
        return HotGroup(topology, task, group, share)
    return HotGroup(topology, task, group, share, key.key, min(key.tuples / counts[group], 1.0))


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
    _windows: dict[tuple[str, str], deque[GroupCounts]] = field(default_factory=dict)  # by topology and component

    def observe(self, graphs: Mapping[str, TopologyGraph], loads: Mapping[str, Load], plans: Mapping[str, Plan]) -> list[Say]:
        """Take the loads of a window, as measured. Returns a warning for each group that has become hot."""
        before, self._known, windows, self._windows = self._known, {}, self._windows, {}
        for name, graph in graphs.items():
            for component in graph.bolts if name in loads and name in plans else ():
                counted = counts_of(graph, loads[name], component)
                owners = plans[name].key_groups.get(component.name, ())
                kept = self._windows[name, component.name] = windows.get((name, component.name), deque(maxlen=WINDOWS))
                if counted is not None and owners and len(counted.counts) == len(owners):
                    kept.append(counted)
                self._judge(graph, loads[name], component.name, owners, kept, before)
        fresh = [group for name, group in self._known.items() if name not in before]
        return [Say(group.describe(), group.topology, "warning", "measured load", (group.task,)) for group in fresh]

    def _judge(self, graph: TopologyGraph, load: Load, component: str, owners: Sequence[int], windows: Sequence[GroupCounts],
               before: Mapping[GroupName, HotGroup]) -> None:
        """Note the groups of a component that are hot now. A hot one stays so until it is known to have cooled down."""
        for group, owner in enumerate(owners if windows else ()):
            name, task = (graph.name, component, group), TaskId(component, owner)
            share = judged_share(windows, group)
            if share is None and name in before:
                self._known[name] = replace(before[name], task=task)
            elif share is not None and share >= (COOL if name in before else HOT):
                self._known[name] = hot_group(graph.name, load, task, group, share)

    @property
    def hot(self) -> list[HotGroup]:
        return [group for _, group in sorted(self._known.items())]

    def warnings(self) -> list[str]:
        return [f"{group.topology}: {group.describe()}" for group in self.hot]
