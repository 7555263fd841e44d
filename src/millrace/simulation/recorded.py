"""Situations and loads from the history of a real run.

The history has what was measured and not the topologies themselves. Where no situation was saved, their graphs are rebuilt from
the tasks and their traffic: a component that gets nothing is a spout, and everything counts as movable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Protocol

import numpy as np

from millrace.api.grouping import Grouping
from millrace.errors import BadSituation
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.base import key_groups_for
from millrace.simulation.demand import Demand, ReplayedLoad
from millrace.simulation.world import World

SUMMED = ("emitted", "transferred", "executed", "acked", "failed", "offered", "cpu_seconds", "busy_seconds", "blocked_seconds")


class HistoryWindow(Protocol):
    """A window of the history, as millrace.master.load reads it."""

    @property
    def seconds(self) -> float: ...
    @property
    def loads(self) -> Mapping[str, Load]: ...
    @property
    def placements(self) -> Mapping[str, Mapping[TaskId, int]]: ...
    @property
    def workers(self) -> Mapping[int, WorkerLoad]: ...
    @property
    def nodes(self) -> Mapping[str, NodeLoad]: ...


def recorded_situation(windows: Sequence[HistoryWindow], saved: Situation | None = None) -> Situation:
    """The situation at the beginning of the run, with its mean load. Topologies and nodes are those of the last window, and
    only windows with the same tasks count. `saved`: has the graphs and the capacity of the nodes, if it is known. Raises
    `BadSituation` if its topologies have other tasks than the run had."""
    usable = _usable(windows)
    last, first = usable[-1], usable[0]
    known = {graph.name: graph for graph in saved.graphs} if saved else {}
    loads = {name: _mean([window.loads[name] for window in usable]) for name in last.loads}
    for name in known.keys() & loads.keys():
        _check_tasks(known[name], loads[name])
    graphs = tuple(known.get(name) or graph_of_load(name, load) for name, load in loads.items())
    return Situation(graphs, _cluster(last, saved), loads, _plans(graphs, first, saved))


def recorded_situations(windows: Sequence[HistoryWindow], saved: Situation | None = None) -> list[Situation]:
    """Every window as a situation of its own, with the plan that was in force."""
    whole = recorded_situation(windows, saved)
    return [replace(whole, load=window.loads, plan=_plans(whole.graphs, window, saved)) for window in _usable(windows)]


def recorded_demands(world: World, windows: Sequence[HistoryWindow]) -> ReplayedLoad:
    """The load of the run, window by window: what its sources offered, also where it did not keep up."""
    return ReplayedLoad([(window.seconds, _demand(world, window.loads)) for window in _usable(windows)])


def _usable(windows: Sequence[HistoryWindow]) -> list[HistoryWindow]:
    """The windows in which the tasks of the last one ran and traffic was measured."""
    measured = [window for window in windows if window.seconds > 0 and any(load.traffic for load in window.loads.values())]
    if not measured:
        raise BadSituation(f"the history has no window with traffic between tasks, of {len(windows)} in all: run a topology "
                           "for some load windows first, or name its cluster with --cluster")
    tasks = {name: load.tasks.keys() for name, load in measured[-1].loads.items()}
    return [window for window in measured if {name: load.tasks.keys() for name, load in window.loads.items()} == tasks]


def _check_tasks(graph: TopologyGraph, load: Load) -> None:
    """Ackers may be missing in the load: earlier versions did not measure them."""
    expected, measured = (Counter(task.component for task in tasks if task.component != ACKER)
                          for tasks in (graph.tasks(), load.tasks))
    for component in sorted(expected.keys() | measured.keys()):
        if expected[component] != measured[component]:
            raise BadSituation(f"the situation has {expected[component]} tasks of {component!r} in {graph.name!r}, and the "
                               f"history has {measured[component]}: give one that was saved during that run, or leave out "
                               "--situation")


def _mean(loads: Sequence[Load]) -> Load:
    """One load over the whole time."""
    seconds = sum(load.window_seconds for load in loads)
    pairs = {pair for load in loads for pair in load.traffic}
    measured = {pair for load in loads for pair in load.traffic_bytes}
    return Load(seconds, {task: _mean_task([(load.window_seconds / seconds, load.tasks[task]) for load in loads])
                          for task in loads[-1].tasks},
                {pair: sum(load.traffic.get(pair, 0.0) for load in loads) for pair in pairs},
                traffic_bytes={pair: sum(load.traffic_bytes.get(pair, 0.0) for load in loads) for pair in measured})


def _mean_task(parts: Sequence[tuple[float, TaskLoad]]) -> TaskLoad:
    values = {field.name: sum(getattr(load, field.name) for _, load in parts) for field in fields(TaskLoad)
              if field.name in SUMMED}
    return replace(parts[-1][1], **values, cpu_mhz=sum(share * load.cpu_mhz for share, load in parts),
                   memory_mb=sum(share * load.memory_mb for share, load in parts))


def graph_of_load(name: str, load: Load) -> TopologyGraph:
    """A graph with these tasks and streams, in the order of the stream."""
    tasks = Counter(task.component for task in load.tasks if task.component != ACKER)
    reads: dict[str, set[str]] = {component: set() for component in tasks}
    for source, target in load.traffic:
        if source.component in tasks and target.component in tasks and source.component != target.component:
            reads[target.component].add(source.component)
    ordered: list[str] = []
    while len(ordered) < len(reads):
        ready = [component for component in reads if component not in ordered and reads[component] <= set(ordered)]
        if not ready:
            raise BadSituation(f"the streams of {name!r} go in a circle, by the recorded traffic: give a situation of the same "
                               "run with --situation, which has its graph")
        ordered += ready
    components = tuple(ComponentDef(
        component, "bolt" if reads[component] else "spout", "millrace.api:Component", tasks[component], {}, (),
        tuple(Input(source, "default", Grouping.SHUFFLE) for source in sorted(reads[component])), False,
        "process" if reads[component] else "next_tuple") for component in ordered)
    return TopologyGraph(name, components, {}, sum(task.component == ACKER for task in load.tasks))


def _cluster(window: HistoryWindow, saved: Situation | None) -> Cluster:
    """The nodes and workers of that window. The number of cores is not recorded: one for each worker, unless it is known."""
    known = {node.name: node for node in saved.cluster.nodes} if saved else {}
    workers = Counter(worker.node for worker in window.workers.values())
    nodes = [known.get(name) or Node(name, max(workers[name], 1), load.capacity_mhz / max(workers[name], 1), 1 << 20)
             for name, load in window.nodes.items()]
    return Cluster(tuple(nodes), tuple(Slot(worker.node, str(slot), slot) for slot, worker in window.workers.items()))


def _plans(graphs: Sequence[TopologyGraph], window: HistoryWindow, saved: Situation | None) -> dict[str, Plan]:
    """The plans of that window. Tasks without a load, which the window does not know, are where they were saved."""
    known = {name: plan.placement for name, plan in saved.plan.items()} if saved else {}
    return {graph.name: Plan(1, {**known.get(graph.name, {}), **window.placements[graph.name]}, key_groups_for(graph, None))
            for graph in graphs if graph.name in window.placements}


def _demand(world: World, loads: Mapping[str, Load]) -> Demand:
    """The tuples that the sources offered, and what follows from them by the selectivity of every edge in this window."""
    seconds = np.array([loads[name].window_seconds for name, _ in world.tasks])
    edges = np.array([loads[world.tasks[one][0]].traffic.get((world.tasks[one][1], world.tasks[other][1]), 0.0)
                      for one, other in zip(world.source.tolist(), world.target.tolist())])
    into = np.concatenate(world.levels) if world.levels else np.zeros(0, dtype=np.int64)
    arrived = np.bincount(world.target[into], weights=edges[into], minlength=world.count)
    measured = [loads[name].tasks.get(task, TaskLoad()) for name, task in world.tasks]
    emitted = np.array([float(task.emitted) for task in measured])
    sends = np.bincount(world.source, weights=edges, minlength=world.count)
    processed = np.where(world.spout, np.where(emitted > 0, emitted, sends), arrived)
    sent = processed[world.source]
    selectivity = np.divide(edges, sent, out=np.zeros(len(edges)), where=sent > 0)
    offered = np.maximum(np.array([float(task.offered) for task in measured]), processed) / np.maximum(seconds, 1e-9)
    rate = world.rates(offered, selectivity)
    return Demand(rate, rate[world.source] * selectivity)
