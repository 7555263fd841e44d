"""Random situations: small ones for comparing schedulers with each other and with the optimum, large ones for measuring them,
and clusters for simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from millrace.api.grouping import Grouping
from millrace.errors import BadParameter
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan
from millrace.schedulers.even import Even
from millrace.schedulers.problem import Floats

WINDOW_SECONDS = 10.0
TUPLES = 1000.0  # per second, through a component, as the median
MHZ_PER_TUPLE = 0.5  # of a task, for each tuple per second in or out, as the median
SPREAD = 0.6  # standard deviation of the logarithm: two thirds lie within a factor of 1.8
SKEW = (0.3, 3.0)  # of keys over tasks (Dirichlet): low means that few tasks get most
LEAST = 0.1  # part of an even share that every task gets
SLACK = (1.05, 2.0)  # capacity of the cluster over the needs of its tasks
WIDTH = 20  # tasks of a component in a large situation, and so edges of a task
SHAPES = ("layered", "chain", "diamond", "star", "all-to-all")  # of topologies
SIMULATED_WIDTH = 6  # tasks of a component in a simulated cluster
SIMULATED_SIZE = 100  # tasks of a topology there, at most
SIMULATED_CORES = 4  # of a node there, and its slots
SIMULATED_SLACK = 3.0  # capacity of that cluster over the needs of its tasks
CORE_MHZ = (2000.0, 2500.0, 3000.0)  # of its nodes
LARGEST_TASK = 0.25  # of a core, there


def random_situation(rng: np.random.Generator, tasks: tuple[int, int] = (4, 12), nodes: tuple[int, int] = (2, 4),
                     topologies: tuple[int, int] = (1, 3), slack: tuple[float, float] = SLACK, shape: str = "layered",
                     cores: int = 1, pinned: float = 0.0) -> Situation:
    """Topologies of that shape under load on unequal nodes, running as Even placed them. The nodes together have 1.05 to 2
    times the capacity needed; some placement always fits. `cores`: of each node; a worker can use one. `pinned`: share of the
    topologies whose spouts cannot move."""
    total = int(rng.integers(tasks[0], tasks[1] + 1))
    count = min(int(rng.integers(topologies[0], topologies[1] + 1)), max(1, total // 3))
    graphs = tuple(_topology(f"t{number}", _parts(rng, size, 4), rng, shape, pinned)
                   for number, size in enumerate(_shares(rng, total, count)))
    load = {graph.name: _load(graph, rng) for graph in graphs}
    needs = [measured.cpu_mhz for each in load.values() for measured in each.tasks.values()]
    cluster = _cluster(needs, int(rng.integers(nodes[0], nodes[1] + 1)), float(rng.uniform(*slack)), rng, cores)
    return Situation(graphs, cluster, load, _running(graphs, cluster))


def simulated_situation(tasks: int, nodes: int, rng: np.random.Generator) -> Situation:
    """Topologies of all shapes on a cluster of unequal nodes with four cores each, a third full; no task runs yet. A fifth of
    the topologies have spouts that cannot move."""
    size = min(SIMULATED_SIZE, max(tasks // 4, 1))
    sizes = [size] * (tasks // size) + ([tasks % size] if tasks % size else [])
    graphs = tuple(_topology(f"t{number:03}", _parts(rng, own, max(2, 2 * own // SIMULATED_WIDTH)), rng,
                             SHAPES[number % len(SHAPES)], 0.2) for number, own in enumerate(sizes))
    names = [f"n{number:04}" for number in range(nodes)]
    cluster = Cluster(tuple(Node(name, SIMULATED_CORES, float(rng.choice(CORE_MHZ)), 1 << 16) for name in names),
                      tuple(Slot(names[number // SIMULATED_CORES], f"e{number}", number)
                            for number in range(nodes * SIMULATED_CORES)))
    load = {graph.name: _load(graph, rng) for graph in graphs}
    needs = sum(measured.cpu_mhz for each in load.values() for measured in each.tasks.values())
    factor = sum(node.capacity_mhz for node in cluster.nodes) / SIMULATED_SLACK / needs
    return Situation(graphs, cluster, {name: _scaled(each, factor) for name, each in load.items()}, {})


def _scaled(load: Load, factor: float) -> Load:
    """The load with its CPU changed by a factor, so that no task needs more than a part of a core."""
    most = LARGEST_TASK * min(CORE_MHZ)
    return replace(load, tasks={task: replace(measured, cpu_mhz=min(measured.cpu_mhz * factor, most))
                                for task, measured in load.tasks.items()})


def large_situation(tasks: int, slots: int, rng: np.random.Generator, slots_per_node: int = 4) -> Situation:
    """One topology of `tasks` tasks, about 20 edges each, on equal nodes that are two thirds full."""
    pars = [WIDTH] * (tasks // WIDTH) + ([tasks % WIDTH] if tasks % WIDTH else [])
    graph = _topology("large", pars, rng)
    load = _load(graph, rng)
    names = [f"n{number:04}" for number in range(math.ceil(slots / slots_per_node))]
    mhz = 1.5 * sum(measured.cpu_mhz for measured in load.tasks.values()) / slots
    cluster = Cluster(tuple(Node(name, slots_per_node, mhz, 1 << 20) for name in names),
                      tuple(Slot(names[number // slots_per_node], f"e{number}", number) for number in range(slots)))
    return Situation((graph,), cluster, {"large": load}, _running((graph,), cluster))


def _shares(rng: np.random.Generator, total: int, parts: int) -> list[int]:
    """`total` as a sum of `parts` whole numbers of at least 1."""
    cuts = np.sort(rng.choice(np.arange(1, total), parts - 1, replace=False)) if parts > 1 else np.zeros(0, dtype=np.int64)
    return [int(upper - lower) for lower, upper in pairwise([0, *cuts.tolist(), total])]


def _parts(rng: np.random.Generator, total: int, most: int) -> list[int]:
    """Tasks of each component: two to `most` components, if there are enough tasks."""
    return _shares(rng, total, min(total, int(rng.integers(2, most + 1))))


def _topology(name: str, pars: Sequence[int], rng: np.random.Generator, shape: str = "layered",
              pinned: float = 0.0) -> TopologyGraph:
    """A topology of that shape. Each bolt reads by fields or shuffled."""
    movable = not (pinned and rng.random() < pinned)
    components = []
    for number, par in enumerate(pars):
        inputs = tuple(Input(f"c{source}", "default", Grouping.fields("key") if rng.random() < 0.5 else Grouping.SHUFFLE)
                       for source in _sources(shape, number, len(pars), rng))
        components.append(ComponentDef(f"c{number}", "bolt" if number else "spout", "millrace.api:Component", par, {}, (),
                                       inputs, False, "process" if number else "next_tuple", movable=movable or number > 0))
    return TopologyGraph(name, tuple(components), {})


def _sources(shape: str, number: int, count: int, rng: np.random.Generator) -> list[int]:
    """The components that component `number` of `count` reads. layered: one of the three before it. chain: the one before it.
    diamond: the first, and the last one all others. star: the first bolt, which reads the spout. all-to-all: all before it."""
    if number == 0:
        return []
    match shape:
        case "layered":
            return [int(rng.integers(max(0, number - 3), number))]
        case "chain":
            return [number - 1]
        case "diamond":
            return list(range(1, number)) if number == count - 1 and number > 1 else [0]
        case "star":
            return [min(number - 1, 1)]
        case "all-to-all":
            return list(range(number))
    raise BadParameter(f"there is no shape {shape!r} of topologies; there are {', '.join(SHAPES)}")


def _load(graph: TopologyGraph, rng: np.random.Generator) -> Load:
    """Traffic between tasks as the groupings spread it, and CPU in proportion to the tuples in and out of a task."""
    traffic: dict[tuple[TaskId, TaskId], float] = {}
    out: dict[str, Floats] = {}  # tuples per second that each task of a component emits
    through: dict[TaskId, float] = {}
    for component in graph.components:
        came = TUPLES * rng.lognormal(0, SPREAD) * rng.dirichlet(np.full(component.par, 3.0))
        if component.inputs:
            came = np.zeros(component.par)
        for read in component.inputs:
            rates = np.outer(out[read.source], _spread(read, component.par, rng))
            for (source, target), rate in np.ndenumerate(rates):
                traffic[TaskId(read.source, source), TaskId(component.name, target)] = float(rate) * WINDOW_SECONDS
            came = came + rates.sum(axis=0)
        out[component.name] = came / came.sum() * TUPLES * rng.lognormal(0, SPREAD)
        through.update((TaskId(component.name, index), float(done))
                       for index, done in enumerate(came + out[component.name]))
    measured = {task: TaskLoad(executed=int(done * WINDOW_SECONDS), memory_mb=float(rng.uniform(10, 100)),
                               cpu_mhz=done * MHZ_PER_TUPLE * float(rng.lognormal(0, SPREAD)) + 1.0)
                for task, done in through.items()}
    return Load(WINDOW_SECONDS, measured, traffic)


def _spread(read: Input, par: int, rng: np.random.Generator) -> Floats:
    """Each task's share of the stream. However skewed the keys are, every task gets some: an optimum close to 0 would make
    every ratio meaningless."""
    even = np.full(par, 1 / par)
    if read.grouping.kind != "fields":
        return even
    shares: Floats = (1 - LEAST) * rng.dirichlet(np.full(par, rng.uniform(*SKEW))) + LEAST * even
    return shares


def _cluster(needs: Sequence[float], nodes: int, slack: float, rng: np.random.Generator, cores: int) -> Cluster:
    """Nodes of unequal size with `slack` times the capacity needed, or more if the tasks cannot be packed. With one core, that
    core is fast: a worker can use its whole node, so that only nodes have a limit. With several, a node has a slot for each
    core or more."""
    sizes = rng.uniform(0.5, 1.5, nodes)
    capacities = sizes / sizes.sum() * sum(needs) * slack
    while not _packs(needs, capacities, cores):
        capacities = capacities * 1.1
    names = [f"n{number}" for number in range(nodes)]
    slots = rng.integers(1, 4, nodes) if cores == 1 else cores + rng.integers(0, 2, nodes)
    places = [name for name, number in zip(names, slots) for _ in range(number)]
    return Cluster(tuple(Node(name, cores, float(capacity) / cores, 1 << 14) for name, capacity in zip(names, capacities)),
                   tuple(Slot(name, f"e{number}", number) for number, name in enumerate(places)))


def _packs(needs: Sequence[float], capacities: Floats, cores: int) -> bool:
    """True if all tasks fit when placed largest first, each on the core with most room."""
    room = np.repeat(capacities / cores, cores)
    for need in sorted(needs, reverse=True):
        core = int(room.argmax())
        if room[core] < need:
            return False
        room[core] -= need
    return True


def _running(graphs: Sequence[TopologyGraph], cluster: Cluster) -> dict[str, Plan]:
    placed = Even().schedule(graphs, cluster, {}, {})
    return dict(placed.plans) if isinstance(placed, NewPlan) else {}
