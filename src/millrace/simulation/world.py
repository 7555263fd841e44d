"""The world of a simulation: what a situation tells about tasks, streams and machines, as arrays.

Rates follow the stream: a spout's task emits what its source offers, and every edge carries so many tuples for each tuple that
its source has processed. CPU and loop time are proportional to the tuples that a task processes. So a window of thousands of
tasks is a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from millrace.errors import BadSituation
from millrace.model.cluster import Cluster
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.inputs.machines import machine_capacities
from millrace.schedulers.inputs.traffic import clean
from millrace.schedulers.problem import NOWHERE, Flags, Floats, Ints, distances


@dataclass(frozen=True)
class World:
    """Arrays over tasks, and over edges from a task to a task it sends to. Costs are for each tuple that a task processes, or
    emits if it is a spout's."""

    graphs: tuple[TopologyGraph, ...]
    tasks: tuple[tuple[str, TaskId], ...]
    topology: Ints  # of each task: the position of its graph
    spout: Flags
    base_rate: Floats  # tuples per second in the situation
    cpu_cost: Floats  # MHz for a tuple per second
    busy_cost: Floats  # seconds for a tuple
    own_thread: Flags  # it blocks, so its time is not that of its worker's loop
    memory: Floats  # MB
    source: Ints
    target: Ints
    selectivity: Floats  # tuples on the edge for each tuple that its source processes
    tuple_bytes: Floats  # size of a tuple on the edge; 0 if it was not measured
    keyed: Flags  # of each edge: its tuples go where their key belongs
    fan: Ints  # edges with the same number go from one task to one component
    levels: tuple[Ints, ...]  # the edges that feed tasks, in the order of the stream; edges back to a spout are in none

    @classmethod
    def of(cls, situation: Situation) -> World:
        """The world that was measured. Raises `BadSituation` if it has no load."""
        graphs = situation.graphs
        tasks = tuple((graph.name, task) for graph in graphs for task in graph.tasks())
        number = {key: position for position, key in enumerate(tasks)}
        source, target, rate = _edges(number, situation.load, graphs)
        if not len(rate):
            raise BadSituation("the situation has no traffic between tasks, so there is nothing to simulate: save it with "
                               "`millrace load --save FILE` after the first load window of a running topology")
        sizes = [len(graph.tasks()) for graph in graphs]
        spouts = {(graph.name, spout.name) for graph in graphs for spout in graph.spouts}
        spout = np.array([(name, task.component) in spouts for name, task in tasks], dtype=bool)
        threaded = {(graph.name, part.name) for graph in graphs for part in graph.components if part.blocking}
        forward, levels = _levels(tasks, spout, source, target)
        loads = [_measured(situation.load, name, task) for name, task in tasks]
        base = _processed(loads, situation.load, tasks, spout, source[forward], target[forward], rate[forward], source, rate)
        cpu = clean([load.cpu_mhz for load in loads])
        busy = _busy(situation, tasks, loads, cpu)
        return cls(
            graphs=graphs, tasks=tasks, topology=np.repeat(np.arange(len(graphs)), sizes).astype(np.int64), spout=spout,
            base_rate=base, cpu_cost=_cost(cpu, base, graphs, tasks), busy_cost=_cost(busy, base, graphs, tasks),
            own_thread=np.array([(name, task.component) in threaded for name, task in tasks], dtype=bool),
            memory=clean([load.memory_mb for load in loads]), source=source, target=target,
            selectivity=_each(rate, base[source]), tuple_bytes=_tuple_bytes(tasks, situation.load, source, target),
            keyed=_keyed(graphs, tasks, source, target),
            fan=_fans(tasks, source, target), levels=levels)

    @property
    def count(self) -> int:
        return len(self.tasks)

    def shares(self, popularity: Floats) -> Floats:
        """The selectivity of each edge if the keys of a task are `popularity` times as frequent as in the situation. What a
        task sends to a component in all does not change."""
        weighted = self.selectivity * np.where(self.keyed, popularity[self.target], 1.0)
        before = np.bincount(self.fan, weights=self.selectivity)
        after = np.bincount(self.fan, weights=weighted)
        factor = np.divide(before, after, out=np.ones_like(before), where=after > 0)
        return weighted * factor[self.fan]

    def rates(self, offered: Floats, selectivity: Floats) -> Floats:
        """Tuples per second that each task processes, if the spouts' tasks emit `offered`."""
        rate = np.where(self.spout, offered, 0.0)
        for edges in self.levels:
            source, target = self.source[edges], self.target[edges]
            rate += np.bincount(target, weights=rate[source] * selectivity[edges], minlength=self.count)
        return rate

    def slots_of(self, plans: Mapping[str, Plan], position: Mapping[int, int]) -> Ints:
        """The place of each task, or NOWHERE. `position`: the place of each slot number."""
        return np.array([position.get(plans[name].placement.get(task, NOWHERE), NOWHERE) if name in plans else NOWHERE
                         for name, task in self.tasks], dtype=np.int64)


def _measured(load: Mapping[str, Load], name: str, task: TaskId) -> TaskLoad:
    return load[name].tasks.get(task, TaskLoad()) if name in load else TaskLoad()


def sums_at(places: Ints, values: Floats, count: int) -> Floats:
    """The sum of the values at each of `count` places."""
    return np.bincount(places, weights=values, minlength=count).astype(np.float64)


def _each(total: Floats, count: Floats) -> Floats:
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def _cost(total: Floats, rate: Floats, graphs: Sequence[TopologyGraph], tasks: Sequence[tuple[str, TaskId]]) -> Floats:
    """For each tuple that a task processes. All ackers of a topology have the same cost: they do the same, and one that had no
    acks in the situation may have some elsewhere."""
    cost = _each(total, rate)
    for graph in graphs:
        if graph.ackers:
            own = [place for place, (name, task) in enumerate(tasks) if name == graph.name and task.component == ACKER]
            cost[own] = total[own].sum() / max(float(rate[own].sum()), 1e-9)
    return cost


def _edges(number: Mapping[tuple[str, TaskId], int], load: Mapping[str, Load],
           graphs: Sequence[TopologyGraph]) -> tuple[Ints, Ints, Floats]:
    """Pairs with their tuples per second. A task that exchanged messages with an acker has an edge with every acker of its
    topology: elsewhere it may use another."""
    rows = [(number[name, source], number[name, target], tuples / measured.window_seconds)
            for name, measured in load.items() if measured.window_seconds > 0
            for (source, target), tuples in measured.traffic.items()
            if (name, source) in number and (name, target) in number and source != target and tuples > 0]
    rows += [(*pair, 0.0) for graph in graphs if graph.ackers for pair in _other_ackers(number, graph, rows)]
    source, target, rate = zip(*rows) if rows else ((), (), ())
    return np.array(source, dtype=np.int64), np.array(target, dtype=np.int64), clean(rate)


def _other_ackers(number: Mapping[tuple[str, TaskId], int], graph: TopologyGraph,
                  rows: Sequence[tuple[int, int, float]]) -> list[tuple[int, int]]:
    """The pairs that exchanged nothing, of an acker of the topology and a task that exchanged messages with another one."""
    ackers = {number[graph.name, task] for task in graph.tasks() if task.component == ACKER}
    known = {(one, other) for one, other, _ in rows if one in ackers or other in ackers}
    to = {(one, acker) for one, other in known if other in ackers for acker in ackers}
    back = {(acker, other) for one, other in known if one in ackers for acker in ackers}
    return sorted((to | back) - known)


def _components(tasks: Sequence[tuple[str, TaskId]]) -> Ints:
    """The component of each task, numbered in the order of the stream."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array([numbers.setdefault((name, task.component), len(numbers)) for name, task in tasks], dtype=np.int64)


def _levels(tasks: Sequence[tuple[str, TaskId]], spout: Flags, source: Ints, target: Ints) -> tuple[Flags, tuple[Ints, ...]]:
    """The edges that go on in the stream, and these by the distance of their target from the spouts. Acks of ackers go back to
    spouts and make no tuples there."""
    component = _components(tasks)
    forward = (component[source] < component[target]) & ~spout[target]
    distance = np.zeros(int(component.max(initial=-1)) + 1, dtype=np.int64)
    pairs = np.unique(np.stack([component[target[forward]], component[source[forward]]], axis=1), axis=0)
    for after, before in pairs.tolist():  # sources of a component come before it
        distance[after] = max(distance[after], distance[before] + 1)
    level = distance[component[target]]
    return forward, tuple(np.flatnonzero(forward & (level == number)) for number in range(1, int(level.max(initial=0)) + 1))


def _processed(loads: Sequence[TaskLoad], load: Mapping[str, Load], tasks: Sequence[tuple[str, TaskId]], spout: Flags,
               source: Ints, target: Ints, rate: Floats, any_source: Ints, any_rate: Floats) -> Floats:
    """Tuples per second that each task processed: those that came in; for a spout those that it emitted, or sent if that is not
    known. A spout's task that uses CPU and sends nothing counts as if it emitted one tuple per second: its CPU needs a rate to
    be in proportion to."""
    arrived = np.bincount(target, weights=rate, minlength=len(tasks))
    seconds = np.array([load[name].window_seconds if name in load else 0.0 for name, _ in tasks])
    emitted = _each(clean([each.emitted for each in loads]), seconds)
    sent = np.bincount(any_source, weights=any_rate, minlength=len(tasks))
    works = clean([each.cpu_mhz for each in loads]) > 0
    return np.where(spout, np.where(emitted > 0, emitted, np.where(sent > 0, sent, works)), arrived)


def _busy(situation: Situation, tasks: Sequence[tuple[str, TaskId]], loads: Sequence[TaskLoad], cpu: Floats) -> Floats:
    """Share of its worker's loop that each task used: in user code, or its CPU if that is more, as it is where a load has no
    times."""
    seconds = np.array([situation.load[name].window_seconds if name in situation.load else 0.0 for name, _ in tasks])
    busy = _each(clean([load.busy_seconds for load in loads]), seconds)
    mhz = {slot.number: situation.cluster.node_of(slot.number).mhz for slot in situation.cluster.slots}
    usual = max(mhz.values(), default=1.0)
    cores = np.array([mhz.get(situation.plan[name].placement.get(task, NOWHERE), usual) if name in situation.plan else usual
                      for name, task in tasks])
    return np.maximum(busy, _each(cpu, cores))


def _tuple_bytes(tasks: Sequence[tuple[str, TaskId]], load: Mapping[str, Load], source: Ints, target: Ints) -> Floats:
    """The size of a tuple on each edge. On edges that the situation had no tuples on, it is the mean of all between the two
    components."""
    rows = np.zeros((2, len(source)))  # bytes and tuples
    kinds: dict[tuple[str, str, str], int] = {}
    kind = np.zeros(len(source), dtype=np.int64)
    for edge, (one, other) in enumerate(zip(source.tolist(), target.tolist())):
        (name, sender), (_, receiver) = tasks[one], tasks[other]
        pair = sender, receiver
        rows[:, edge] = load[name].traffic_bytes.get(pair, 0.0), load[name].traffic.get(pair, 0.0)
        kind[edge] = kinds.setdefault((name, sender.component, receiver.component), len(kinds))
    sums = [sums_at(kind, row, len(kinds)) for row in rows]
    return np.where(rows[1] > 0, _each(rows[0], rows[1]), _each(sums[0], sums[1])[kind])


def _keyed(graphs: Sequence[TopologyGraph], tasks: Sequence[tuple[str, TaskId]], source: Ints, target: Ints) -> Flags:
    by_key = {(graph.name, read.source, component.name) for graph in graphs for component in graph.components
              for read in component.inputs if read.grouping.kind == "fields"}
    return np.array([(tasks[one][0], tasks[one][1].component, tasks[other][1].component) in by_key
                     for one, other in zip(source.tolist(), target.tolist())], dtype=bool)


def _fans(tasks: Sequence[tuple[str, TaskId]], source: Ints, target: Ints) -> Ints:
    component = _components(tasks)
    pairs = source * (int(component.max(initial=0)) + 1) + component[target]
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class Machines:
    """All machines, nodes and slots of a cluster as arrays; which of them are up changes."""

    cluster: Cluster
    slot_node: Ints
    slot_mhz: Floats  # of one core, the most that a worker can use
    node_machine: Ints  # of each node: the machine that its cores belong to
    machine_capacity: Floats  # MHz
    position: Mapping[int, int]  # of each slot number
    distance: Floats | None  # (nodes, nodes): cost of the link; None: 1 between any two nodes

    @classmethod
    def of(cls, cluster: Cluster) -> Machines:
        number = {node.name: position for position, node in enumerate(cluster.nodes)}
        whole = machine_capacities(cluster)
        machine = {name: position for position, name in enumerate(whole)}
        return cls(cluster, np.array([number[slot.node] for slot in cluster.slots], dtype=np.int64),
                   np.array([cluster.node_of(slot.number).mhz for slot in cluster.slots]),
                   np.array([machine[node.machine or node.name] for node in cluster.nodes], dtype=np.int64),
                   np.array(list(whole.values())),
                   {slot.number: position for position, slot in enumerate(cluster.slots)}, distances(cluster, list(number)))

    def without(self, away: frozenset[str]) -> Cluster:
        """The cluster as a master sees it while these nodes are away."""
        return replace(self.cluster, nodes=tuple(node for node in self.cluster.nodes if node.name not in away),
                       slots=tuple(slot for slot in self.cluster.slots if slot.node not in away))

