"""The traffic of ackers, which depends on the placement: a spout's task uses an acker on its own worker if there is one, and
all of them in turn if not. What it emits is acked there, by every bolt that processes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from millrace.model.graph import ACKER
from millrace.schedulers.problem import Flags, Floats, Ints
from millrace.simulation.demand import Demand
from millrace.simulation.world import World


class AckRouting:
    """The ackers that the acks of all topologies go to, given the slots of their tasks."""

    def __init__(self, world: World) -> None:
        self._topologies = [_TopologyAcks(world, number) for number in range(len(world.graphs))
                            if world.graphs[number].ackers]

    def routed(self, demand: Demand, slots: Ints) -> Demand:
        """The same load with the acks going where these slots make them go."""
        if not self._topologies:
            return demand
        rate, edge_rate = demand.rate.copy(), demand.edge_rate.copy()
        for topology in self._topologies:
            topology.route(rate, edge_rate, slots)
        return replace(demand, rate=rate, edge_rate=edge_rate)


class _TopologyAcks:
    """The edges to and from the ackers of a topology: one row for each task that sends or receives acks, one column for each
    acker."""

    def __init__(self, world: World, number: int) -> None:
        own = np.flatnonzero(world.topology == number)
        acker = np.array([task.component == ACKER for _, task in world.tasks], dtype=bool)
        self.ackers, self.spouts = own[acker[own]], own[world.spout[own]]
        column = {int(task): place for place, task in enumerate(self.ackers)}
        edges = np.flatnonzero(world.topology[world.source] == number)
        self.senders, self.sent = _table(world.source, world.target, edges[acker[world.target[edges]]], column)
        self.told, self.tells = _table(world.target, world.source, edges[acker[world.source[edges]]], column)

    def route(self, rate: Floats, edge_rate: Floats, slots: Ints) -> None:
        """Distribute the acks anew, in place."""
        chosen = self._chosen(slots)
        emitted = rate[self.spouts]
        total = float(emitted.sum())
        mixed = emitted @ chosen / total if total > 0 else chosen.mean(axis=0)  # of all roots, as bolts get them
        of_spout: Mapping[int, Floats] = dict(zip(self.spouts.tolist(), chosen))
        for tasks, edges in ((self.senders, self.sent), (self.told, self.tells)):
            shares = np.array([of_spout.get(task, mixed) for task in tasks.tolist()]).reshape(edges.shape)
            edge_rate[edges] = edge_rate[edges].sum(axis=1)[:, np.newaxis] * shares
        rate[self.ackers] = edge_rate[self.sent].sum(axis=0)

    def _chosen(self, slots: Ints) -> Floats:
        """(spouts, ackers): the share of each spout's roots that each acker gets: all to the first on its own worker."""
        here: Flags = np.equal.outer(slots[self.spouts], slots[self.ackers]) & (slots[self.ackers] >= 0)
        first = np.zeros(here.shape)
        first[np.arange(len(here)), here.argmax(axis=1)] = 1.0
        shares: Floats = np.where(here.any(axis=1, keepdims=True), first, 1 / len(self.ackers))
        return shares


def _table(ends: Ints, ackers: Ints, edges: Ints, column: Mapping[int, int]) -> tuple[Ints, Ints]:
    """The tasks at the other end of these edges, and (tasks, ackers) the edge of each two; every pair has one."""
    tasks = np.unique(ends[edges])
    table = np.zeros((len(tasks), len(column)), dtype=np.int64)
    table[np.searchsorted(tasks, ends[edges]), [column[int(acker)] for acker in ackers[edges]]] = edges
    return tasks, table
