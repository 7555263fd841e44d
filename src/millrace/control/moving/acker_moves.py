"""Moves of ackers, which need no switch: places change at once, ledgers follow them, and messages that come too early or too
late are passed on. A move has ended when every worker has carried out the plan with the new places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from millrace.control.assignment import Place
from millrace.control.events import Command, Distribute, Migrated
from millrace.control.migrations import CANCELLED, COMPLETED, ROLLED_BACK, Migration, TaskMove
from millrace.control.moves import BY_HANDOVER, Cause
from millrace.control.topology_state import TopologyState
from millrace.control.workers import WorkerView
from millrace.model.graph import TaskId


class AckerTopologies(Protocol):
    """The part of the master's state that moves of ackers use."""

    workers: dict[int, WorkerView]
    revision: int

    def all_at(self, revision: int) -> bool:
        """True if every worker has carried out the revision."""

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A move that has not ended. `revision`: the first with the new places. `generations`: of the workers that it concerns, by
    slot. `record`: as if it had ended at once."""

    revision: int
    generations: dict[int, int]
    record: Migration


class AckerMoves:
    """The moves of ackers that are under way, of all topologies."""

    def __init__(self, master: AckerTopologies) -> None:
        self._master = master
        self._under_way: list[_UnderWay] = []

    def begin(self, topology: TopologyState, moves: Mapping[TaskId, int], cause: Cause, now: float) -> list[Command]:
        topology.handover.supersede(topology.plan)
        topology.version += 1
        moved = tuple(TaskMove(task, topology.places[task].slot, slot) for task, slot in sorted(moves.items()))
        for task, slot in moves.items():
            topology.places[task] = Place(slot, topology.version)
        record = Migration(topology.graph.name, BY_HANDOVER, str(cause), COMPLETED, "", topology.version - 1, topology.version,
                           now, now, now, moved, sum(topology.in_flight.values()))
        slots = {slot for move in moved for slot in (move.source, move.target)}
        generations = {slot: worker.address.generation for slot, worker in self._master.workers.items() if slot in slots}
        distribute = self._master.distribute()
        self._under_way.append(_UnderWay(self._master.revision, generations, record))
        return [distribute]

    def tick(self, now: float) -> list[Command]:
        """The records of the moves that have ended."""
        ends: list[Command] = []
        for move in list(self._under_way):
            if lost := self._lost(move):
                ends.append(self._end(move, now, ROLLED_BACK, f"worker {lost[0]} was lost"))
            elif self._master.all_at(move.revision):
                ends.append(self._end(move, now, COMPLETED, ""))
        return ends

    def ended(self, topology: str, how: str, now: float) -> list[Command]:
        """The records of the moves that are under way in a topology that ends."""
        return [self._end(move, now, CANCELLED, f"the topology ended: {how}") for move in list(self._under_way)
                if move.record.topology == topology]

    def _lost(self, move: _UnderWay) -> list[int]:
        workers = self._master.workers
        return [slot for slot, generation in sorted(move.generations.items())
                if slot not in workers or workers[slot].address.generation != generation]

    def _end(self, move: _UnderWay, now: float, outcome: str, reason: str) -> Command:
        self._under_way.remove(move)
        return Migrated(replace(move.record, ended=now, outcome=outcome, reason=reason))
