"""Measurements of a simulated window, with noise: as arrays for the estimator, and as the values that a master would have."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TaskId
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.schedulers.inputs.measured import ABSENT, LoadOfColumns, PairColumns, TaskColumns, task_columns
from millrace.schedulers.problem import Flags, Floats, Ints
from millrace.simulation.estimates import TaskRows
from millrace.simulation.flow import WindowFlow
from millrace.simulation.world import Machines, World, sums_at

FEW = 20  # tasks that are read one by one
PROCESSED, CPU, BUSY, BLOCKED = range(4)  # rows of measured tasks: tuples per second, MHz, and two shares of the time


@dataclass(frozen=True)
class Noise:
    """Standard deviation of what is measured in a window, as a share of it: of CPU and busy time, and of traffic."""

    cpu: float = 0.1
    traffic: float = 0.2


@dataclass(frozen=True)
class Measured:
    """One window as measured. `lag`: tuples that wait at the source of each spout's task; 0 for bolts."""

    seconds: float
    tasks: TaskRows
    edges: Floats  # tuples per second
    queue: Ints
    offered: Floats  # tuples per second to each spout's task; 0 for bolts
    lag: Floats
    settling: Flags


class Meter:
    """Measures flows in a world, and turns measurements into loads."""

    def __init__(self, world: World, noise: Noise, rng: np.random.Generator) -> None:
        self._world, self._noise, self._rng = world, noise, rng
        self._topologies = [_Topology(world, number) for number in range(len(world.graphs))]

    def measure(self, parts: list[tuple[float, WindowFlow, Ints]], settling: Flags) -> Measured:
        """The window that consists of these parts: seconds, flow and slots of each."""
        world = self._world
        seconds = sum(length for length, _, _ in parts)
        rows = np.sum([length / seconds * self._tasks(flow, slots) for length, flow, slots in parts], axis=0)
        edges = np.sum([length / seconds * flow.edge_rate for length, flow, _ in parts], axis=0)
        noise = self._factors(self._noise.cpu, (2, world.count))
        rows = np.stack([rows[PROCESSED], rows[CPU] * noise[0], np.minimum(rows[BUSY] * noise[1], 1.0), rows[BLOCKED]])
        last, slots = parts[-1][1], parts[-1][2]
        spouts = sums_at(world.topology[world.spout], world.base_rate[world.spout], len(world.graphs))
        own = _each(world.base_rate, spouts[world.topology]) * world.spout  # each task's share of what its topology is offered
        return Measured(seconds, rows, edges * self._factors(self._noise.traffic, len(edges)), self._queues(last, slots),
                        own * last.offered[world.topology], own * last.waiting[world.topology], settling)

    def _factors(self, deviation: float, size: int | tuple[int, int]) -> Floats:
        return np.maximum(1 + deviation * self._rng.normal(size=size), 0.0)

    def _tasks(self, flow: WindowFlow, slots: Ints) -> TaskRows:
        """A task that is not on a full worker is blocked for as long as its topology is held up."""
        held_up = np.maximum(1 - flow.share, 0.0)[self._world.topology]
        free = (slots >= 0) & ~flow.full[slots]
        return np.stack([flow.rate, flow.cpu, flow.busy, np.where(free, held_up * np.maximum(1 - flow.busy, 0.0), 0.0)])

    def _queues(self, flow: WindowFlow, slots: Ints) -> Ints:
        """Little's law, as in `millrace.simulation.flow`: λ times the time at the task."""
        used = np.where(slots >= 0, np.minimum(flow.slot_busy[slots], 0.99), 0.0)
        return np.where(self._world.spout, 0, flow.busy / (1 - used)).astype(np.int64)

    # -- values ---------------------------------------------------------------------------------------------------------

    def sample(self, at: float, measured: Measured, machines: Machines, cluster: Cluster, slots: Ints,
               plans: Mapping[str, Plan]) -> WindowSample:
        """The window for the schedule generator."""
        placed, count = slots >= 0, len(machines.slot_node)
        cpu, busy, memory, queue = (sums_at(slots[placed], values[placed], count) for values in (
            measured.tasks[CPU], np.where(self._world.own_thread, 0.0, measured.tasks[BUSY]), self._world.memory,
            measured.queue.astype(np.float64)))
        of_nodes = zip(*(sums_at(machines.slot_node, values, len(machines.node_machine)).tolist() for values in (cpu, memory)))
        used = {node.name: row for node, row in zip(machines.cluster.nodes, of_nodes)}
        rows = list(zip(cpu.tolist(), memory.tolist(), queue.astype(np.int64).tolist(), np.minimum(busy, 1.0).tolist()))
        workers = {slot.number: WorkerLoad(slot.node, *rows[machines.position[slot.number]]) for slot in cluster.slots}
        nodes = {node.name: NodeLoad(used[node.name][0], node.capacity_mhz, used[node.name][1], used[node.name][1])
                 for node in cluster.nodes}
        return WindowSample(at, measured.seconds, self.loads(measured, measured.tasks, measured.edges), plans, workers, nodes)

    def loads(self, measured: Measured, tasks: TaskRows, edges: Floats) -> dict[str, Load]:
        """The load of each topology, with these estimates of tasks and edges."""
        return {topology.name: LoadOfArrays(topology, self._world, measured, tasks, edges) for topology in self._topologies}


class LoadOfArrays(LoadOfColumns):
    """A load whose tasks and traffic are made from arrays when they are first read: few windows are looked at in full, and a
    hundred thousand pairs in each would take most of the time of a simulation. Schedulers read its columns."""

    __slots__ = ("_bytes", "_measured", "_rows", "_sent", "_topology", "_traffic", "_world", "tasks")
    tasks: Mapping[TaskId, TaskLoad]
    _topology: _Topology
    _world: World
    _measured: Measured
    _rows: TaskRows
    _sent: Floats
    _traffic: Mapping[tuple[TaskId, TaskId], float] | None
    _bytes: Mapping[tuple[TaskId, TaskId], float] | None

    def __init__(self, topology: _Topology, world: World, measured: Measured, tasks: TaskRows, edges: Floats) -> None:
        settling = np.flatnonzero(measured.settling[topology.places]).tolist()
        for name, value in (("_topology", topology), ("_world", world), ("_measured", measured), ("_rows", tasks),
                            ("_sent", edges), ("tasks", _TasksOfArrays(topology, self._task_loads)), ("_traffic", None),
                            ("_bytes", None if topology.sizes.any() else FrozenMap()), ("window_seconds", measured.seconds),
                            ("settling", tuple(topology.tasks[place][0] for place in settling)),
                            ("key_groups", FrozenMap()), ("heavy_keys", FrozenMap())):
            object.__setattr__(self, name, value)

    def task_columns(self, tasks: Sequence[TaskId]) -> TaskColumns:
        if tasks != self._topology.in_graph:
            return task_columns(Load(self.window_seconds, self.tasks, settling=self.settling), tasks)
        own = self._topology.in_order
        rows, queue = self._rows[:, own], self._measured.queue[own].astype(np.float64)
        return TaskColumns(np.ones(len(own), dtype=bool), self._measured.settling[own], rows[CPU], self._world.memory[own],
                           rows[BUSY], queue, queue)

    def pair_columns(self, numbers: Mapping[TaskId, int]) -> PairColumns:
        topology, seconds = self._topology, self.window_seconds
        tuples = self._sent[topology.edges] * seconds
        size = self._sent[topology.edges] * topology.sizes * seconds
        kept = np.flatnonzero(tuples > 0)
        number = np.array([numbers.get(task, ABSENT) for task, _ in topology.tasks], dtype=np.int64)
        return PairColumns(number[topology.ends[:, kept]], tuples[kept] / seconds,
                           np.where(size[kept] > 0, size[kept], np.nan) / seconds)

    @property
    def traffic(self) -> Mapping[tuple[TaskId, TaskId], float]:
        traffic = self._traffic
        if traffic is None:
            sent = (self._sent[self._topology.edges] * self.window_seconds).tolist()
            traffic = {pair: tuples for pair, tuples in zip(self._topology.pairs, sent) if tuples > 0}
            object.__setattr__(self, "_traffic", traffic)
        return traffic

    @property
    def traffic_bytes(self) -> Mapping[tuple[TaskId, TaskId], float]:
        sizes = self._bytes
        if sizes is None:
            sent = (self._sent[self._topology.edges] * self._topology.sizes * self.window_seconds).tolist()
            sizes = {pair: size for pair, size in zip(self._topology.pairs, sent) if size > 0}
            object.__setattr__(self, "_bytes", sizes)
        return sizes

    def _task_loads(self, rows: slice) -> Iterator[tuple[TaskId, TaskLoad]]:
        """The loads of these tasks, in the order of the topology's."""
        seconds, own, measured, world = self.window_seconds, self._topology.places[rows], self._measured, self._world
        of_task = self._rows[:, own]
        columns = (np.rint(of_task[PROCESSED] * seconds).astype(np.int64), of_task[CPU], of_task[BUSY] * seconds,
                   of_task[BLOCKED] * seconds, world.memory[own], measured.queue[own],
                   np.rint(measured.offered[own] * seconds).astype(np.int64), measured.lag[own].astype(np.int64),
                   world.spout[own])
        for (task, _), (done, cpu, busy, blocked, memory, queue, offered, lag, spout) in zip(
                self._topology.tasks[rows], zip(*(column.tolist() for column in columns))):
            yield task, TaskLoad(emitted=done if spout else 0, executed=0 if spout else done, queue_length=queue,
                                 queue_floor=queue, busy_seconds=busy, blocked_seconds=blocked, offered=offered,
                                 lag=lag if spout else None, cpu_mhz=cpu, memory_mb=memory)


class _TasksOfArrays(Mapping[TaskId, TaskLoad]):
    """The loads of a topology's tasks, made when they are first read: a few of them one by one, more all at once. It is known
    before which tasks there are."""

    def __init__(self, topology: _Topology, make: Callable[[slice], Iterator[tuple[TaskId, TaskLoad]]]) -> None:
        self._topology, self._make = topology, make
        self._read = 0  # one by one

    @cached_property
    def _made(self) -> dict[TaskId, TaskLoad]:
        return dict(self._make(slice(None)))

    def __getitem__(self, task: TaskId) -> TaskLoad:
        self._read += 1
        if self._read > FEW:
            return self._made[task]
        row = self._topology.rank[task]
        return next(self._make(slice(row, row + 1)))[1]

    def items(self) -> ItemsView[TaskId, TaskLoad]:
        return self._made.items()

    def values(self) -> ValuesView[TaskLoad]:
        return self._made.values()

    def __contains__(self, task: object) -> bool:
        return task in self._topology.rank

    def __iter__(self) -> Iterator[TaskId]:
        return (task for task, _ in self._topology.tasks)

    def __len__(self) -> int:
        return len(self._topology.tasks)


class _Topology:
    """The tasks and edges of a topology with their places in the arrays, in the order in which a load keeps them."""

    def __init__(self, world: World, number: int) -> None:
        self.name = world.graphs[number].name
        own = np.flatnonzero(world.topology == number).tolist()
        self.tasks: list[tuple[TaskId, int]] = sorted((world.tasks[place][1], place) for place in own)
        self.places: Ints = np.array([place for _, place in self.tasks], dtype=np.int64)
        self.in_graph = world.graphs[number].tasks()
        self.in_order: Ints = np.array(own, dtype=np.int64)  # the places of the tasks as the graph has them
        self.rank = rank = {task: row for row, (task, _) in enumerate(self.tasks)}
        edges = np.flatnonzero(world.topology[world.source] == number).tolist()
        pairs = sorted(((world.tasks[int(world.source[edge])][1], world.tasks[int(world.target[edge])][1]), edge)
                       for edge in edges)
        self.pairs: list[tuple[TaskId, TaskId]] = [pair for pair, _ in pairs]
        self.ends: Ints = np.array([[rank[one], rank[other]] for (one, other), _ in pairs], dtype=np.int64).reshape(-1, 2).T
        self.edges: Ints = np.array([edge for _, edge in pairs], dtype=np.int64)
        self.sizes: Floats = world.tuple_bytes[self.edges]


def _each(total: Floats, count: Floats) -> Floats:
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)
