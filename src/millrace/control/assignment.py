"""Assignments: the complete plan that workers carry out as of one revision. Carrying one out twice changes nothing. Every
node gets its own part, see `plan_parts.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.model.graph import TaskId, TopologyGraph


class Stamp(NamedTuple):
    """Version of a plan. A later author's first revision is newer than an earlier author's last, so plans that a replaced
    master still sends count as old."""

    author: int
    revision: int

    def __str__(self) -> str:
        return f"{self.author}-{self.revision}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """Read what `str` wrote; ValueError for anything else."""
        author, _, revision = text.partition("-")
        return cls(int(author), int(revision))


Ranges = list[tuple[int, int]]  # numbers, as the first and last of those in sequence


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """Numbers as ranges: a few bytes for thousands of workers or topologies that came one after the other."""
    ranges: Ranges = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges


def numbers_in(ranges: Ranges) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


class WorkerAddress(NamedTuple):
    """Addresses of a worker's data port and of its store for other workers' fragments. `boot` names the running kernel: workers
    with the same one reach each other by ipc."""

    slot: int
    generation: int
    node: str
    boot: str
    ipc: str
    tcp: str
    backup_ipc: str = ""
    backup_tcp: str = ""


class Place(NamedTuple):
    """Slot and incarnation of a task. The incarnation is the plan version that put it there: a task that is placed again is a
    new incarnation, with channels that start at zero."""

    slot: int
    incarnation: int


class SplitStart(NamedTuple):
    """The place where the next owner of a split goes on: its position and, as bytes, the `snapshot()` and the `hand_over()` of
    the instance before, if it has some."""

    position: int
    own: bytes = b""
    left: bytes = b""


ARM, SWITCH = "arm", "switch"  # phases of a move
NO_TASK = TaskId("", 0)


@dataclass(frozen=True, slots=True)
class Move:
    """The hand-over of a task to another worker, or of key groups to another task; see `control/moving/handover.py`. While it
    arms, the task stays at its old place and the new worker prepares an incarnation from the wave `base`; as soon as it
    switches, senders use the new place. `sources`: (task, incarnation) of the senders whose marks the old incarnation awaits.

    If only `groups` of the task's key groups move, both tasks run: `task` at `old`, and `target`, which takes them, at
    `new`. A task that `retires` gets no tuples from the beginning of its move on; `new` is its old place.

    The key groups of a spout are its splits. `starts`: where `target` begins to read each of them, once they switch."""

    number: int
    task: TaskId
    old: Place
    new: Place
    phase: str
    base: tuple[int, int, int] = (0, 0, 0)  # wave, epoch it was prepared in, epoch of its manifest; 0, 0, 0: no state
    sources: list[tuple[TaskId, int]] = field(default_factory=list)
    groups: tuple[int, ...] = ()
    target: TaskId = NO_TASK  # the task itself, unless only key groups move
    cold: bool = False  # state is copied only after the switch
    retires: bool = False  # the task ends: nobody takes over
    starts: dict[int, SplitStart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """One topology's part: graph, places of tasks, owners of key groups, and whether its spouts may emit."""

    number: int
    graph: TopologyGraph
    version: int
    active: bool
    places: list[tuple[TaskId, Place]]
    key_groups: dict[str, tuple[int, ...]]
    positions: list[tuple[TaskId, int]]  # from which the replayable spouts continue, by task or by split
    losses: int  # grows with each lost worker: tuples in flight before may be lost
    epoch: int = 0
    restore: tuple[int, int, int] = (0, 0, 0)  # wave to restore, epoch it was prepared in, epoch of its manifest
    blocks: tuple[int, int] = (0, 0)  # raw and check blocks that a snapshot is cut into; 0, 0 for none
    holders: list[tuple[TaskId, list[int]]] = field(default_factory=list)  # slots that keep a task's blocks, by block
    earlier: tuple[int, int] = (0, 0)  # last wave, and its epoch, of the run that a fresh one replaces: sinks publish it
    moves: list[Move] = field(default_factory=list)  # tasks that are being handed over
    capturing: bool = False  # a task that has prepared a wave which captures processes nothing more
    reached: list[tuple[TaskId, int]] = field(default_factory=list)  # positions before which spouts have sent all, if reported
    apart: list[TaskId] = field(default_factory=list)  # tasks that are starting or retiring: no tuples are routed to them

    @property
    def recovers(self) -> tuple[int, int]:
        """The wave whose output sinks publish when they start, and the epoch it was prepared in."""
        return self.restore[:2] if self.restore[0] else self.earlier


@dataclass(frozen=True, slots=True)
class Assignment:
    """The complete plan, or a node's part of it. `alive`: numbers of all running topologies, and `generations`: of all workers,
    including those that the part omits."""

    revision: int
    workers: list[WorkerAddress] = field(default_factory=list)
    topologies: list[TopologyAssignment] = field(default_factory=list)
    alive: Ranges = field(default_factory=list)
    author: int = 0
    generations: Ranges = field(default_factory=list)

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.author, self.revision)

    def is_for(self, slot: int, generation: int) -> bool:
        """True if the assignment lists this generation of the worker."""
        return any(worker.slot == slot and worker.generation == generation for worker in self.workers)

    def tasks_at(self, slot: int) -> dict[tuple[int, TaskId], int]:
        """(topology, task) -> incarnation, for one worker."""
        return {(topology.number, task): place.incarnation
                for topology in self.topologies for task, place in topology.places if place.slot == slot}
