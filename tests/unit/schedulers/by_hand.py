"""Small situations written by hand, for the examples of the schedulers."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.api.grouping import Grouping
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan


def cluster(cores: int = 4, mhz: float = 1000.0, memory_mb: int = 4096, links: Mapping[str, float] | None = None,
            **slots: list[int]) -> Cluster:
    """`cluster(n1=[0, 1], n2=[2], links={"n1 n2": 3.0})`: node names and their slot numbers, and the cost of links."""
    pairs = {(pair.split()[0], pair.split()[1]): cost for pair, cost in (links or {}).items()}
    return Cluster(tuple(Node(name, cores, mhz, memory_mb) for name in slots),
                   tuple(Slot(name, f"e{number}", number) for name, numbers in slots.items() for number in numbers), pairs)


def one_core(**slots: list[int]) -> Cluster:
    """The same with one core of 1,000 MHz on each node, which its workers share."""
    return cluster(cores=1, **slots)


def graph(name: str = "t", config: dict[str, object] | None = None, pinned: str = "", blocking: str = "",
          **pars: int) -> TopologyGraph:
    """`graph(a=2, b=3)`: components in a line, the first a spout, and how many tasks each has. Those in `pinned` cannot move,
    and those in `blocking` have threads of their own."""
    names = list(pars)
    return TopologyGraph(name, tuple(
        ComponentDef(part, "bolt" if place else "spout", "m:C", pars[part], {}, (),
                     (Input(names[place - 1], "default", Grouping.SHUFFLE),) if place else (), part in blocking.split(),
                     "process" if place else "next_tuple", movable=part not in pinned.split())
        for place, part in enumerate(names)), config or {})


def task(text: str) -> TaskId:
    """`a1` is a[1]."""
    return TaskId(text[0], int(text[1:]))


def load(traffic: Mapping[str, float] | None = None, settling: tuple[str, ...] = (), queue: Mapping[str, int] | None = None,
         memory: Mapping[str, float] | None = None, busy: Mapping[str, float] | None = None,
         size: Mapping[str, float] | None = None, **mhz: float) -> Load:
    """`load({"a0 b0": 5}, a0=100)`: tuples a second between tasks, and the MHz of each. `busy`: the share of its time that a
    task is in user code; `size`: bytes a second between tasks."""
    queue, memory, busy = queue or {}, memory or {}, busy or {}
    tasks = {task(text): TaskLoad(cpu_mhz=mhz.get(text, 0.0), queue_length=queue.get(text, 0), busy_seconds=busy.get(text, 0.0),
                                  queue_floor=queue.get(text, 0), memory_mb=memory.get(text, 0.0))
             for text in {*mhz, *queue, *memory, *busy}}
    return Load(1.0, tasks, _pairs(traffic), tuple(map(task, settling)), traffic_bytes=_pairs(size))


def _pairs(rates: Mapping[str, float] | None) -> dict[tuple[TaskId, TaskId], float]:
    return {(task(pair.split()[0]), task(pair.split()[1])): rate for pair, rate in (rates or {}).items()}


def plan(version: int = 1, **slots: list[int]) -> Plan:
    """`plan(a=[0, 1])`: the slot of each task of `a`."""
    return Plan(version, {TaskId(part, index): slot for part, numbers in slots.items()
                          for index, slot in enumerate(numbers)})
