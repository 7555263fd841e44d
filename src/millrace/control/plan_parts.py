"""Parts of an assignment: for each node, its own tasks and what they need to know of others.

A part has the addresses of those workers only that tasks of the node may exchange messages with. So its size depends on the
neighbours of these tasks in their topologies, and not on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from millrace.control.assignment import Assignment, Move, Place, TopologyAssignment
from millrace.model.graph import ACKER, TaskId, TopologyGraph

Hosted = Mapping[str, frozenset[str]]  # node -> components of a topology that have had a task there
Keepers = Mapping[str, frozenset[int]]  # component -> slots that have kept blocks of its tasks' snapshots


def parts_of(whole: Assignment, hosted: Mapping[int, Hosted], keepers: Mapping[int, Keepers]) -> dict[str, Assignment]:
    """The part of each node. `hosted` and `keepers`, by topology number: nodes that had a task of a component keep its
    neighbours, because a task that moved away may still be draining, and its blocks may still be where they were."""
    slots: dict[str, set[int]] = {}
    for worker in whole.workers:
        slots.setdefault(worker.node, set()).add(worker.slot)
    contacts = {node: set(own) for node, own in slots.items()}
    topologies: dict[str, list[TopologyAssignment]] = {node: [] for node in slots}
    for topology in whole.topologies:
        parts = _TopologyParts(topology, hosted[topology.number], keepers[topology.number], slots)
        for node, components in hosted[topology.number].items():
            if node in slots and components:
                part, others = parts.part(slots[node], components)
                topologies[node].append(part)
                contacts[node] |= others
    addresses = {worker.slot: worker for worker in whole.workers}
    return {node: replace(whole, workers=[addresses[slot] for slot in sorted(contacts[node]) if slot in addresses],
                          topologies=topologies[node]) for node in sorted(slots)}


class _Neighbourhood(NamedTuple):
    """The part of a topology that is the same for all nodes that have hosted the same components. `places`: of the tasks that
    these send to, and of the ackers. `slots`: of the workers that they exchange messages with."""

    places: list[tuple[TaskId, Place]]
    tasks: frozenset[TaskId]  # of the places
    key_groups: dict[str, tuple[int, ...]]
    moves: list[Move]
    apart: list[TaskId]
    slots: frozenset[int]


class _TopologyParts:
    """Makes the parts of one topology. `slots`: those of each node."""

    def __init__(self, whole: TopologyAssignment, hosted: Hosted, keepers: Keepers, slots: Mapping[str, set[int]]) -> None:
        self._whole, self._keepers = whole, keepers
        self._positions, self._reached, self._holders = dict(whole.positions), dict(whole.reached), dict(whole.holders)
        self._places: dict[str, list[tuple[TaskId, Place]]] = {}  # by component
        self._local: dict[int, list[tuple[TaskId, Place]]] = {}  # by slot
        self._slots: dict[str, set[int]] = {}  # by component: where it has tasks, or has had some
        for task, place in whole.places:
            self._places.setdefault(task.component, []).append((task, place))
            self._local.setdefault(place.slot, []).append((task, place))
            self._slots.setdefault(task.component, set()).add(place.slot)
        for node, components in hosted.items():
            for name in components:
                self._slots.setdefault(name, set()).update(slots.get(node, ()))
        self._neighbourhoods: dict[frozenset[str], _Neighbourhood] = {}

    def part(self, slots: set[int], hosted: frozenset[str]) -> tuple[TopologyAssignment, set[int]]:
        """The part for these slots, and the slots of the workers whose addresses it needs."""
        near = self._neighbourhoods.get(hosted) or self._neighbourhoods.setdefault(hosted, self._neighbourhood(hosted))
        local = dict(local for slot in slots for local in self._local.get(slot, ()))
        added = local.keys() - near.tasks
        places = sorted([*near.places, *((task, local[task]) for task in added)]) if added else near.places
        sources = self._sources(local)
        holders = [(task, self._holders[task]) for task in sorted(local) if task in self._holders]
        part = replace(self._whole, places=places, key_groups=near.key_groups, moves=near.moves, apart=near.apart,
                       positions=[(source, self._positions[source]) for source in sources if source in self._positions],
                       reached=[(source, self._reached[source]) for source in sources if source in self._reached],
                       holders=holders)
        return part, {*near.slots, *(slot for _, keeping in holders for slot in keeping)}

    def _sources(self, local: Iterable[TaskId]) -> list[TaskId]:
        """The local tasks, and the splits that they own."""
        here, groups = set(local), self._whole.key_groups
        splits = {TaskId(name, split) for name in self._whole.graph.splits for split, owner in enumerate(groups.get(name, ()))
                  if TaskId(name, owner) in here}
        return sorted(here | splits)

    def _neighbourhood(self, hosted: frozenset[str]) -> _Neighbourhood:
        whole = self._whole
        targets, sources = _neighbours(whole.graph, hosted)
        near = hosted | targets | sources
        if ACKER in hosted:  # every task acks, and every spout gets verdicts
            near |= {component.name for component in whole.graph.components}
        moves = [move for move in whole.moves if move.task.component in hosted | targets | sources]
        slots = {slot for name in near | {ACKER} for slot in self._slots.get(name, ())}
        slots.update(slot for move in moves for slot in (move.old.slot, move.new.slot))
        slots.update(slot for name in hosted for slot in self._keepers.get(name, ()))
        places = sorted(place for name in targets | {ACKER} for place in self._places.get(name, ()))
        return _Neighbourhood(
            places, frozenset(task for task, _ in places),
            {name: owners for name, owners in whole.key_groups.items() if name in targets | hosted},
            moves, [task for task in whole.apart if task.component in targets | hosted], frozenset(slots))


def _neighbours(graph: TopologyGraph, hosted: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The components that these send to, and those that send to them."""
    components = hosted - {ACKER}
    targets = frozenset(component.name for name in components for component, _ in graph.downstream(name))
    sources = frozenset(read.source for name in components for read in graph.component(name).inputs)
    return targets, sources
