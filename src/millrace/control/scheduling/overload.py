"""Overload of nodes and workers that lasts: their loads in the last windows, told apart from noise.

A scheduler may fill a place up to its packing limit. Such a place must not count as overloaded because a window happened to
show a bit more: its load has to be above the overload threshold, which is higher than the packing limit, as the mean of some
windows and by more than their noise.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from millrace.model.cluster import Cluster, Node
from millrace.model.sample import WindowSample

LASTING = 3  # windows whose mean has to be above the threshold, at least
WINDOWS_KEPT = 10
SURE = 4.0  # standard errors by which it has to be above: there are many places and windows
ROUNDING = 1e-9
FULL = 0.99, 1.01  # shares of a place as they are measured while it has no time or CPU left
LEAST_NOISE = 0.01  # standard deviation of a window: few windows may look more alike than they are
CHANGES_KEPT = 40  # of a place's load from window to window: few would tell little of its noise
FEW_CHANGES = 3.0
HELPED = 0.99  # of the memory that a node used before tasks left it: what is below has helped
FROM_MEDIAN = 1.4826 / math.sqrt(2)  # standard deviation of a window over the median difference between two


@dataclass(frozen=True, slots=True)
class PlaceLoad:
    """A worker with the share of its CPU, or of its loop's time if that is more, or a node with that of its CPU or its memory,
    in a window. `slots`: of its workers. `least`: the share up to which it is not overloaded, whatever the threshold; all
    memory may be used."""

    where: str  # "node a", "node a with b" if they have the same cores, "memory of node a", "worker 3"
    share: float
    text: str
    slots: tuple[int, ...] = ()
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The CPU that the workers of all nodes which have the same cores use in a window, in MHz, and the most that they can
    use; and the memory, in MB."""

    name: str
    nodes: tuple[str, ...]
    used: float
    capacity: float
    memory_used: float = 0.0
    memory: float = 0.0

    @property
    def share(self) -> float:
        return self.used / self.capacity if self.capacity > 0 else 0.0


def machine_loads(sample: WindowSample, cluster: Cluster) -> list[MachineLoad]:
    """The loads of all machines. A node's own part of a machine is no limit: what one does not use, others can have."""
    loads = []
    for name, nodes in _machines(cluster):
        seen = [sample.nodes[node.name] for node in nodes if node.name in sample.nodes]
        loads.append(MachineLoad(name, tuple(node.name for node in nodes),
                                 sum(node.cpu_mhz for node in seen), sum(node.capacity_mhz for node in nodes),
                                 sum(node.memory_used_mb for node in seen), sum(node.memory_mb for node in nodes)))
    return loads


def _machines(cluster: Cluster) -> list[tuple[str, list[Node]]]:
    """The nodes of each machine, with a name for all of them."""
    by_machine: defaultdict[str, list[Node]] = defaultdict(list)
    for node in cluster.nodes:
        by_machine[node.machine or node.name].append(node)
    return [(" with ".join(node.name for node in nodes), nodes) for nodes in by_machine.values()]


def places_of_nodes(cluster: Cluster) -> dict[str, str]:
    """The place that each node is or is a part of, as `PlaceLoad.where` names it."""
    return {node.name: f"node {name}" for name, nodes in _machines(cluster) for node in nodes}


def memory_of(node: str) -> str:
    """The place that the memory of a node is, as `PlaceLoad.where` names it, given that of the node."""
    return f"memory of {node}"


def place_loads(sample: WindowSample, cluster: Cluster) -> Iterator[PlaceLoad]:
    """The loads of all nodes and workers in a window; nodes that have the same cores are one place. A worker that waits in user
    code has a busy loop without using CPU."""
    places = places_of_nodes(cluster)
    for machine in machine_loads(sample, cluster):
        where = places[machine.nodes[0]]
        slots = tuple(sorted(slot.number for node in machine.nodes for slot in cluster.slots_of(node)))
        if machine.capacity > 0:
            yield PlaceLoad(where, machine.share, f"{where} uses {machine.used:,.0f} of {machine.capacity:,.0f} MHz", slots)
        if machine.memory > 0:
            text = f"{where} uses {machine.memory_used:,.0f} of {machine.memory:,.0f} MB of memory"
            yield PlaceLoad(memory_of(where), machine.memory_used / machine.memory, text, slots, least=1.0)
    for slot in cluster.slots:
        worker, core = sample.workers.get(slot.number), cluster.node_of(slot.number).mhz
        used, busy = (worker.cpu_mhz, worker.busy) if worker is not None else (0.0, 0.0)
        share = used / core if core > 0 else 0.0
        text = (f"worker {slot.number} uses {used:,.0f} of the {core:,.0f} MHz of a core" if share >= busy else
                f"the loop of worker {slot.number} was busy for {busy:.0%} of the time")
        yield PlaceLoad(f"worker {slot.number}", max(share, busy), text, (slot.number,))


def overloads(sample: WindowSample, cluster: Cluster, share: float) -> Iterator[str]:
    """Descriptions of the nodes and workers with at least this load in the window."""
    return (place.text for place in place_loads(sample, cluster) if 0 < place.share >= max(share, place.least))


@dataclass(slots=True)
class OverloadWatch:
    """The loads of nodes and workers in the last windows."""

    _shares: dict[str, deque[float]] = field(default_factory=dict)
    _changes: dict[str, deque[float]] = field(default_factory=dict)  # from one window to the next
    _newest: dict[str, PlaceLoad] = field(default_factory=dict)
    _left: dict[str, float] = field(default_factory=dict)  # loads of memory that tasks have left, at that time

    def add(self, sample: WindowSample, cluster: Cluster) -> None:
        self._newest = {place.where: place for place in place_loads(sample, cluster)}
        self._shares = {where: self._shares.get(where, deque(maxlen=WINDOWS_KEPT)) for where in self._newest}
        self._changes = {where: self._changes.get(where, deque(maxlen=CHANGES_KEPT)) for where in self._newest}
        self._left = {where: load for where, load in self._left.items()
                      if where in self._newest and self._newest[where].share > self._newest[where].least}
        for where, place in self._newest.items():
            shares = self._shares[where]
            if shares:
                self._changes[where].append(abs(place.share - shares[-1]))
            shares.append(place.share)

    def forget(self, places: Collection[str]) -> None:
        """Forget the loads of places whose tasks have changed: they tell nothing of those to come."""
        memory = {*map(memory_of, places)} & self._newest.keys()
        self._left.update((where, self._newest[where].share) for where in memory
                          if self._newest[where].share > self._newest[where].least)
        places = {*places, *memory}
        self._shares = {where: shares for where, shares in self._shares.items() if where not in places}
        self._changes = {where: changes for where, changes in self._changes.items() if where not in places}

    def lasting(self, threshold: float) -> list[PlaceLoad]:
        """The places that have been overloaded for some windows, with their load in the newest."""
        least = {where: max(threshold, place.least) for where, place in self._newest.items()}
        return [self._newest[where] for where, shares in self._shares.items()
                if max(shares) >= least[where] - ROUNDING and lasts(list(shares), least[where], self._changes[where])]

    def to_relieve(self, threshold: float) -> list[PlaceLoad]:
        """Those of the lasting overloads that moves may relieve. A process may keep the memory of tasks that have left it: if
        memory did not fall when some left, more would leave for nothing."""
        return [place for place in self.lasting(threshold)
                if place.share < HELPED * self._left.get(place.where, math.inf)]


def lasts(shares: list[float], threshold: float, changes: Collection[float] = ()) -> bool:
    """True if the mean of the newest windows, three or more, is above the threshold by more than noise would explain.

    The noise is estimated by how much the load changes from one window to the next: a load that has risen once, however much,
    makes one change large and leaves the others as they were. `changes`: those of more windows than `shares` has. Few changes
    may be small by chance, so more noise is assumed where there are few. A place that is full has no room for noise above the
    threshold: it is enough there that at least half of all windows kept show it as good as full."""
    if len(shares) < LASTING or max(shares) < threshold - ROUNDING:
        return False
    changes = changes or [abs(new - old) for old, new in pairwise(shares)]
    noise = max(FROM_MEDIAN * median(changes) * (1 + FEW_CHANGES / len(changes)), LEAST_NOISE)
    if (len(shares) == WINDOWS_KEPT and fmean(shares) >= threshold and median(shares) >= max(FULL[0], threshold)
            and max(shares) <= FULL[1]):
        return True
    return any(fmean(shares[-count:]) - SURE * noise / math.sqrt(count) >= threshold - ROUNDING
               for count in range(LASTING, len(shares) + 1))
