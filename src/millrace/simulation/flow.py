"""The flow of tuples under a placement: traffic, loads of nodes and workers, backlog and latency.

Inboxes are bounded, so a worker that is at its limit slows its topologies down to their spouts, and tuples wait at the sources.
A topology therefore runs at one share of what its sources offer, the largest at which nothing that it uses is above its
capacity: the CPU and the loop of a worker, the CPU of a machine, the links of a node. Where there is a backlog, the share may
be above 1.

Latency is that of the queueing model of millrace.elastic, with one station for each task. A worker runs its tasks on one loop,
so what the other tasks there use is missing to a task: with a service time s and a worker that is busy for the share u, M/M/1
gives s / (1 - u). Hops between workers and nodes, and the wait at the source by Little's law, are added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.schedulers.problem import ROUNDING, Flags, Floats, Ints
from millrace.simulation.demand import Demand
from millrace.simulation.world import Machines, World, sums_at

TUPLE_BYTES = 100.0  # of a tuple whose size was not measured
MOST_BUSY = 0.99  # of a worker, for the model: at 1 its waiting time is infinite, and bounded inboxes prevent that


@dataclass(frozen=True)
class LinkModel:
    """The way between tasks: milliseconds for a hop to another worker of the node, and to another node over a link of cost 1;
    the time grows with the cost. `bytes_per_second`: the most that a node can send, and the most that it can receive."""

    worker_ms: float = 0.1
    node_ms: float = 0.5
    bytes_per_second: float = np.inf


@dataclass(frozen=True)
class WindowFlow:
    """One window under one placement. `share`: what each topology runs at, of what its sources offer. `waiting`: tuples that
    wait at the sources of each topology at the end. `latency`: seconds of each topology. `full`: workers at their limit."""

    share: Floats
    rate: Floats  # tuples per second of each task
    edge_rate: Floats
    cpu: Floats  # MHz of each task
    busy: Floats  # share of a loop of each task
    slot_cpu: Floats
    slot_busy: Floats
    full: Flags
    node_cpu: Floats
    inter_node: float
    inter_process: float
    nodes_used: int
    overloaded: bool
    offered: Floats  # tuples per second that are offered to each topology
    waiting: Floats
    latency: Floats


def flow(world: World, machines: Machines, links: LinkModel, demand: Demand, slots: Ints, waiting: Floats,
         seconds: float) -> WindowFlow:
    """The window of that length in which the tasks are on these slots, and so many tuples wait when it begins."""
    topologies = len(world.graphs)
    offered = sums_at(world.topology[world.spout], demand.rate[world.spout], topologies)
    uses = _Uses(world, machines, links, demand, slots)
    asked = 1 + np.divide(waiting, offered * seconds, out=np.zeros(topologies), where=offered > 0)
    share = asked / np.maximum(uses.worst(asked), 1.0)
    share = np.where(np.bincount(world.topology[slots < 0], minlength=topologies) > 0, 0.0, share)  # a task is nowhere
    after = np.maximum(waiting + (1 - share) * offered * seconds, 0.0)
    of_task = share[world.topology]
    rate, edge_rate = demand.rate * of_task, demand.edge_rate * of_task[world.source]
    slot_cpu, slot_busy, node_cpu = uses.loads(share)
    utilization = np.maximum(slot_busy, slot_cpu / machines.slot_mhz)
    return WindowFlow(
        share=share, rate=rate, edge_rate=edge_rate, cpu=world.cpu_cost * rate, busy=world.busy_cost * rate,
        slot_cpu=slot_cpu, slot_busy=slot_busy, full=utilization * ROUNDING >= 1, node_cpu=node_cpu,
        inter_node=float(edge_rate[uses.far].sum()), inter_process=float(edge_rate[uses.near].sum()),
        nodes_used=len(np.unique(machines.slot_node[slots[slots >= 0]])),
        overloaded=bool((uses.worst(np.ones(topologies)) > ROUNDING).any()), offered=offered, waiting=after,
        latency=_latency(world, links, uses, rate, edge_rate, utilization, (waiting + after) / 2, offered * share,
                         offered))


class _Uses:
    """Use of workers, nodes and links by each topology at a share of 1."""

    def __init__(self, world: World, machines: Machines, links: LinkModel, demand: Demand, slots: Ints) -> None:
        self.world, self.machines, self.links, self.slots = world, machines, links, slots
        self.placed = np.flatnonzero(slots >= 0)
        self.nodes = np.where(slots >= 0, machines.slot_node[slots], -1)
        self.cpu = world.cpu_cost * demand.rate
        self.busy = np.where(world.own_thread, 0.0, world.busy_cost * demand.rate)
        self.edge_rate = demand.edge_rate
        source, target = self.nodes[world.source], self.nodes[world.target]
        both = (source >= 0) & (target >= 0)
        self.far = both & (source != target)
        self.near = both & (source == target) & (slots[world.source] != slots[world.target])

    def loads(self, share: Floats) -> tuple[Floats, Floats, Floats]:
        """MHz and loop of each slot, and MHz of each node, at that share of each topology."""
        machines, tasks = self.machines, self.placed
        of_task = share[self.world.topology[tasks]]
        count = len(machines.slot_node)
        cpu = sums_at(self.slots[tasks], self.cpu[tasks] * of_task, count)
        busy = sums_at(self.slots[tasks], self.busy[tasks] * of_task, count)
        return cpu, busy, sums_at(machines.slot_node, cpu, len(machines.node_machine))

    def worst(self, share: Floats) -> Floats:
        """Use over capacity of the fullest worker, node or link that each topology uses. All uses are sums over topologies, so
        dividing every share by it leaves nothing above its capacity."""
        machines, world = self.machines, self.world
        cpu, busy, node = self.loads(share)
        ratio = np.maximum(cpu / machines.slot_mhz, busy)
        machine = sums_at(machines.node_machine, node, len(machines.machine_capacity)) / machines.machine_capacity
        ratio = np.maximum(ratio, machine[machines.node_machine[machines.slot_node]])
        worst = np.zeros(len(world.graphs))
        np.maximum.at(worst, world.topology[self.placed], ratio[self.slots[self.placed]])
        if np.isfinite(self.links.bytes_per_second):
            far = np.flatnonzero(self.far)
            of_edge = world.topology[world.source[far]]
            sizes = np.where(world.tuple_bytes[far] > 0, world.tuple_bytes[far], TUPLE_BYTES)
            rate = self.edge_rate[far] * share[of_edge] * sizes
            for ends in (self.nodes[world.source[far]], self.nodes[world.target[far]]):
                used = sums_at(ends, rate, len(machines.node_machine))
                np.maximum.at(worst, of_edge, (used / self.links.bytes_per_second)[ends])
        return worst


def _latency(world: World, links: LinkModel, uses: _Uses, rate: Floats, edge_rate: Floats, utilization: Floats, waiting: Floats,
             emitted: Floats, offered: Floats) -> Floats:
    """E[T] = Σ λ_i·E[T_i] / λ_0 of each topology in seconds, with hops and the wait at its sources."""
    topologies, bolts = len(world.graphs), uses.placed[~world.spout[uses.placed]]
    time = world.busy_cost[bolts] / (1 - np.minimum(utilization[uses.slots[bolts]], MOST_BUSY))
    total = sums_at(world.topology[bolts], rate[bolts] * time, topologies)
    distance = uses.machines.distance
    cost = 1.0 if distance is None else distance[uses.nodes[world.source], uses.nodes[world.target]]
    hop = np.where(uses.far, cost * links.node_ms / 1000, 0.0) + np.where(uses.near, links.worker_ms / 1000, 0.0)
    total += sums_at(world.topology[world.source], edge_rate * hop, topologies) + waiting
    divisor = np.where(emitted > 0, emitted, offered)  # of a topology that stands still, only the wait counts
    return np.divide(total, divisor, out=np.zeros(topologies), where=divisor > 0)
