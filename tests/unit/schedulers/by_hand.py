"""Small situations written by hand, for the examples of the schedulers."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.api.grouping import Grouping
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan


def cluster(cores: int = 4, mhz: float = 1000.0, memory_mb: int = 4096, **slots: list[int]) -> Cluster:
    """`cluster(n1=[0, 1], n2=[2])`: node names and their slot numbers."""
    return Cluster(tuple(Node(name, cores, mhz, memory_mb) for name in slots),
                   tuple(Slot(name, f"e{number}", number) for name, numbers in slots.items() for number in numbers))


def graph(name: str = "t", config: dict[str, object] | None = None, **pars: int) -> TopologyGraph:
    """`graph(a=2, b=3)`: components in a line, the first a spout, and how many tasks each has."""
    names = list(pars)
    return TopologyGraph(name, tuple(
        ComponentDef(part, "bolt" if place else "spout", "m:C", pars[part], {}, (),
                     (Input(names[place - 1], "default", Grouping.SHUFFLE),) if place else (), False,
                     "process" if place else "next_tuple")
        for place, part in enumerate(names)), config or {})


def task(text: str) -> TaskId:
    """`a1` is a[1]."""
    return TaskId(text[0], int(text[1:]))


def load(traffic: Mapping[str, float] | None = None, settling: tuple[str, ...] = (), queue: Mapping[str, int] | None = None,
         memory: Mapping[str, float] | None = None, **mhz: float) -> Load:
    """`load({"a0 b0": 5}, a0=100)`: tuples a second between tasks, and the MHz of each."""
    queue, memory = queue or {}, memory or {}
    tasks = {task(text): TaskLoad(cpu_mhz=mhz.get(text, 0.0), queue_length=queue.get(text, 0),
                                  queue_floor=queue.get(text, 0), memory_mb=memory.get(text, 0.0))
             for text in {*mhz, *queue, *memory}}
    pairs = {(task(pair.split()[0]), task(pair.split()[1])): rate for pair, rate in (traffic or {}).items()}
    return Load(1.0, tasks, pairs, tuple(map(task, settling)))


def plan(version: int = 1, **slots: list[int]) -> Plan:
    """`plan(a=[0, 1])`: the slot of each task of `a`."""
    return Plan(version, {TaskId(part, index): slot for part, numbers in slots.items()
                          for index, slot in enumerate(numbers)})
