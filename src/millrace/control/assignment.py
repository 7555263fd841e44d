"""What workers are told: the whole truth as of one revision, so that carrying it out twice changes nothing. Every node
gets its own part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millrace.model.graph import ACKER, TaskId, TopologyGraph


class Stamp(NamedTuple):
    """A later author's first revision is newer than an earlier author's last: what a master that was replaced still
    sends is old by its very number."""

    author: int
    revision: int

    def __str__(self) -> str:
        return f"{self.author}-{self.revision}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """The stamp of a text that `str` made; ValueError for anything else."""
        author, _, revision = text.partition("-")
        return cls(int(author), int(revision))


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker's data port is, and where it keeps others' fragments. `boot` names the running kernel: equal means
    ipc reaches it."""

    slot: int
    generation: int
    node: str
    boot: str
    ipc: str
    tcp: str
    backup_ipc: str = ""
    backup_tcp: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task runs. The incarnation is the plan version that put it there: a task that is placed anew is another
    incarnation, with channels that start at zero."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """One topology's part: its graph, where each task is, who owns which key groups, whether its spouts may emit."""

    number: int
    graph: TopologyGraph
    version: int
    active: bool
    places: list[tuple[TaskId, Place]]
    key_groups: dict[str, tuple[int, ...]]
    positions: list[tuple[TaskId, int]]  # where the replayable spouts go on
    losses: int  # grows with each worker lost: what was in flight before may be gone
    epoch: int = 0
    restore: tuple[int, int, int] = (0, 0, 0)  # wave to start from, the epoch it was prepared in, that of its manifest
    blocks: tuple[int, int] = (0, 0)  # raw and check blocks that a snapshot is cut into; 0, 0 for none
    holders: list[tuple[TaskId, list[int]]] = field(default_factory=list)  # slots that keep a task's blocks, by block


@dataclass(frozen=True, slots=True)
class Assignment:
    """`alive` has the numbers of all topologies there are: those that a part leaves out run, but not here."""

    revision: int
    workers: list[WorkerAddress] = field(default_factory=list)
    topologies: list[TopologyAssignment] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    author: int = 0

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.author, self.revision)

    def is_for(self, slot: int, generation: int) -> bool:
        """Whether it was made with this very worker in mind: neither before it joined nor after it was given up."""
        return any(worker.slot == slot and worker.generation == generation for worker in self.workers)

    def tasks_at(self, slot: int) -> dict[tuple[int, TaskId], int]:
        """(topology, task) -> incarnation, for one worker."""
        return {(topology.number, task): place.incarnation
                for topology in self.topologies for task, place in topology.places if place.slot == slot}


Hosted = Mapping[str, frozenset[str]]  # node -> components of a topology that have had a task there


def parts_of(whole: Assignment, hosted: Mapping[int, Hosted]) -> dict[str, Assignment]:
    """What the workers of each node must know. `hosted`, by topology number: a task that moved away may still be draining,
    and must know where its tuples go."""
    slots: dict[str, set[int]] = {}
    for worker in whole.workers:
        slots.setdefault(worker.node, set()).add(worker.slot)
    places = {topology.number: _Places(topology) for topology in whole.topologies}
    return {node: replace(whole, topologies=[
        _part_of_topology(topology, places[topology.number], own, hosted[topology.number][node])
        for topology in whole.topologies if hosted[topology.number].get(node)]) for node, own in sorted(slots.items())}


class _Places:
    """The places of a topology, looked up by component and by slot: with many nodes each needs only a few of them."""

    def __init__(self, topology: TopologyAssignment) -> None:
        self.by_component: dict[str, list[tuple[TaskId, Place]]] = {}
        self.by_slot: dict[int, list[tuple[TaskId, Place]]] = {}
        for task, place in topology.places:
            self.by_component.setdefault(task.component, []).append((task, place))
            self.by_slot.setdefault(place.slot, []).append((task, place))


def _part_of_topology(whole: TopologyAssignment, all_places: _Places, slots: set[int],
                      hosted: frozenset[str]) -> TopologyAssignment:
    """Its own tasks, those that they send to, and the ackers."""
    targets = {component.name for name in hosted if name != ACKER for component, _ in whole.graph.downstream(name)}
    wanted = {task: place for name in (*targets, ACKER) for task, place in all_places.by_component.get(name, ())}
    wanted.update(found for slot in slots for found in all_places.by_slot.get(slot, ()))
    places = sorted(wanted.items())
    own = {task for task, place in places if place.slot in slots}
    return replace(whole, places=places,
                   key_groups={name: owners for name, owners in whole.key_groups.items() if name in targets | hosted},
                   positions=[(task, position) for task, position in whole.positions if task in own],
                   holders=[(task, slots) for task, slots in whole.holders if task in own])
