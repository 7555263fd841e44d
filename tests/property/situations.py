"""Generated scheduler inputs, hostile ones included: dead slots, implausible meters, other topologies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan, Scheduler, SchedulingResult

GROUPS = 8
ODD = st.sampled_from([0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e300, 5e-324])


def ask(scheduler: Scheduler, situation: Situation) -> SchedulingResult:
    return scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)


def after(situation: Situation, result: SchedulingResult) -> Situation:
    """Return the situation after the result is applied; everything else is unchanged."""
    plans: Mapping[str, Plan] = result.plans if isinstance(result, NewPlan) else {}
    return replace(situation, plan={**situation.plan, **plans})


def component(name: str, par: int, keyed: bool, sources: list[str], movable: bool = True) -> ComponentDef:
    grouping = Grouping.fields("x") if keyed else Grouping.SHUFFLE
    inputs = tuple(Input(source, "default", grouping) for source in sources)
    return ComponentDef(name, "bolt" if sources else "spout", "m:C", par, {}, (), inputs, False,
                        "process" if sources else "next_tuple", movable=bool(sources) or movable)


@st.composite
def graphs(draw: st.DrawFn, name: str, tasks: int = 4, workers: bool = True) -> TopologyGraph:
    """Draw a graph with a limited number of tasks; every bolt reads some of the components before it."""
    components: list[ComponentDef] = []
    pinned = draw(st.integers(0, 3)) == 1 and workers  # its spouts cannot be moved
    left = draw(st.integers(1, tasks))
    ackers = draw(st.integers(0, 1)) if left > 1 else 0
    left -= ackers
    while left:
        par = draw(st.integers(1, min(left, GROUPS)))  # a task without a key group could not be made
        before = [part.name for part in components]
        sources = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2, unique=True)) if before else []
        components.append(component(f"c{len(components)}", par, draw(st.booleans()), sources, not pinned))
        left -= par
    config: dict[str, object] = {"topology.key.groups": GROUPS}
    if workers and draw(st.integers(0, 4)) == 0:
        config["topology.workers"] = draw(st.integers(1, 3))
    return TopologyGraph(name, tuple(components), config, ackers)


@st.composite
def clusters(draw: st.DrawFn, least: int = 0, nodes: int = 4, weak: bool = True) -> Cluster:
    """Nodes that differ, or are all alike, some without a slot, listed in any order. `weak`: some can carry nothing or very
    little."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=nodes).filter(lambda sizes: sum(sizes) >= least))
    numbers = iter(draw(st.permutations(range(sum(sizes) + 2))))
    slots = [Slot(f"n{node}", f"e{slot}", next(numbers)) for node, size in enumerate(sizes) for slot in range(size)]
    clocks = st.sampled_from([2400.0, 1000.0, 3000.0, *([0.0, 10.0] if weak else [])])
    memories = st.sampled_from([4096, 8192, 65536, *([0, 200] if weak else [])])
    kinds = st.tuples(st.integers(1, 4), clocks, memories)
    alike = draw(kinds) if draw(st.booleans()) else None
    machines = [Node(f"n{node}", *(alike or draw(kinds))) for node in range(len(sizes))]
    return Cluster(tuple(draw(st.permutations(machines))), tuple(draw(st.permutations(slots))))


@st.composite
def loads(draw: st.DrawFn, graph: TopologyGraph, most_mhz: float = 3000.0, odd: bool = True) -> Load:
    """Draw a measured load. With `odd`, some values are impossible, some tasks are unknown and some no longer exist."""
    def measured(most: float) -> st.SearchStrategy[float]:
        plain = st.floats(0, most) | st.sampled_from([0.0, most])
        return plain | ODD if odd else plain

    tasks = [*graph.tasks(), *([TaskId("gone", 0)] if odd else [])]
    queues = st.sampled_from([0, 5, 2_000, 20_000, *([-3, 10**15] if odd else [])])
    seen = {task: TaskLoad(cpu_mhz=draw(measured(most_mhz)), memory_mb=draw(measured(500)), queue_length=draw(queues),
                           queue_floor=draw(queues))
            for task in tasks if not odd or draw(st.integers(0, 5))}
    ends = st.tuples(st.sampled_from(tasks), st.sampled_from(tasks))
    traffic = draw(st.dictionaries(ends, measured(1000.0), max_size=12))
    settling = draw(st.lists(st.sampled_from(tasks), max_size=2, unique=True)) if draw(st.integers(0, 3)) == 0 else []
    window = draw(st.sampled_from([1.0, 20.0]) | ODD) if odd else 10.0
    return Load(window, seen, traffic, tuple(settling))


@st.composite
def plans(draw: st.DrawFn, graph: TopologyGraph, places: st.SearchStrategy[int]) -> Plan:
    owners = {part.name: tuple(draw(st.lists(st.integers(0, part.par - 1), min_size=GROUPS, max_size=GROUPS)))
              for part in graph.bolts if part.keyed}
    return Plan(draw(st.integers(1, 9)), {task: draw(places) for task in graph.tasks()}, owners)


@st.composite
def hostile(draw: st.DrawFn, least_slots: int = 0) -> Situation:
    """Up to two topologies and eight tasks. They may run already, with another number of tasks, on slots that are dead; one
    that is not asked about may run too."""
    cluster = draw(clusters(least_slots))
    topologies = tuple(draw(graphs(name)) for name in draw(st.sampled_from(["", "a", "b", "ab"])))
    places = st.integers(0, len(cluster.slots) + 2)
    running = {}
    load = {}
    for graph in (*topologies, draw(graphs("other"))):
        if draw(st.booleans()):
            ran = graph if draw(st.booleans()) else draw(graphs(graph.name))
            running[graph.name] = draw(plans(ran, places))
        if draw(st.integers(0, 3)):
            load[graph.name] = draw(loads(graph))
    return Situation(topologies, cluster, load, running)


@st.composite
def settled(draw: st.DrawFn, most_mhz: float = 600.0, others: bool = True) -> Situation:
    """Draw topologies that run on live slots, with plausible loads, on nodes with capacity."""
    cluster = draw(clusters(least=1, weak=False))
    topologies = tuple(draw(graphs(name, workers=False)) for name in draw(st.sampled_from(["a", "ab", "abc"])))
    places = st.sampled_from([slot.number for slot in cluster.slots])
    every = (*topologies, *([draw(graphs("other"))] if others and draw(st.booleans()) else []))
    return Situation(topologies, cluster, {graph.name: draw(loads(graph, most_mhz, odd=False)) for graph in every
                                      if draw(st.integers(0, 4))},  # some have no load yet
                     {graph.name: draw(plans(graph, places)) for graph in every})


def with_pinned_spouts(situation: Situation) -> Situation:
    """The same situation with spouts that cannot be moved."""
    graphs = tuple(replace(graph, components=tuple(replace(part, movable=bool(part.inputs)) for part in graph.components))
                   for graph in situation.graphs)
    return replace(situation, graphs=graphs)
