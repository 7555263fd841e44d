"""Reports of workers: the progress of topologies, and calls of user code that take too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from millrace.control.assignment import SWITCH
from millrace.control.events import Command, EndWorker, LongCallsSeen, Say, WorkerReported
from millrace.control.moving.slots import SlotControl
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, STARTING, STOPPING
from millrace.control.wave_control import WaveControl
from millrace.control.workers import WorkerView
from millrace.model.graph import TaskId


class ReportedTopologies(Protocol):
    """The part of the master's state that reports change. `call_limit`: seconds that user code may take for a chunk; 0: any
    time."""

    call_limit: float
    topologies: dict[str, TopologyState]
    workers: dict[int, WorkerView]

    def all_at(self, revision: int) -> bool:
        """True if every worker has carried out the revision."""

    def all_up(self, topology: TopologyState) -> list[Command]:
        """All tasks are up: let the spouts run, unless the topology is paused."""

    def drained(self, topology: TopologyState) -> bool:
        """True if its spouts have stopped and none of their tuples is in flight."""

    def give_up_worker(self, slot: int, cause: str) -> list[Command]:
        """Count the worker as lost."""


class WorkerReports:
    """Every method returns the commands to carry out. Reports of workers that were lost or replaced have no effect."""

    def __init__(self, master: ReportedTopologies, waves: WaveControl, slots: SlotControl) -> None:
        self._master, self._waves, self._slots = master, waves, slots

    def reported(self, event: WorkerReported, now: float) -> list[Command]:
        worker = self._reporting(event)
        if worker is None:
            return []
        worker.revision, worker.heard = max(worker.revision, event.revision), now
        self._slots.reported(event)
        by_number = {topology.number: topology for topology in self._master.topologies.values()}
        _note_positions(event, by_number)
        _note_reached(event, by_number)
        self._note_executed(event, by_number)
        commands: list[Command] = []
        in_flight, starting = dict(event.in_flight), dict(event.starting)
        for topology in list(self._master.topologies.values()):
            topology.starting[event.slot] = starting.get(topology.number, 0)
            topology.in_flight[event.slot] = in_flight.get(topology.number, 0)
            commands += self._progress(topology, event, in_flight.get(topology.number, 0))
        return commands

    def long_calls(self, event: LongCallsSeen) -> list[Command]:
        """Warn of calls that take long, and give up a worker in which one has taken longer than the limit."""
        worker = self._reporting(event)
        if worker is None:
            return []
        known = {call.what for call in worker.warnings()}
        worker.long_calls = event.calls
        limit = self._master.call_limit
        for call in event.calls:
            if call.of_user and 0 < limit < call.seconds:
                reason = f"{call}, longer than worker.call.limit.secs = {limit:g}"
                return [EndWorker(event.slot, reason), *self._master.give_up_worker(event.slot, reason)]
        return [Say(f"worker {event.slot}: {call}", level="warning", tasks=() if call.task is None else (call.task,))
                for call in worker.warnings() if call.what not in known]

    def _reporting(self, event: WorkerReported | LongCallsSeen) -> WorkerView | None:
        worker = self._master.workers.get(event.slot)
        return worker if worker is not None and worker.address.generation == event.generation else None

    def _note_executed(self, event: WorkerReported, by_number: Mapping[int, TopologyState]) -> None:
        """Find the tasks that have processed tuples since the last report."""
        busy: dict[int, dict[TaskId, bool]] = {}
        for number, task_number, executed, passed in event.executed:
            topology = by_number.get(number)
            if topology is None or topology.waves is None or event.revision < topology.ready_at:
                continue
            task = topology.graph.find(task_number)
            if task is not None and executed != topology.executed.get(task, 0):
                topology.executed[task] = executed
                busy.setdefault(number, {})[task] = passed
        for number, tasks in busy.items():
            self._waves.progressed(by_number[number], tasks)

    def _progress(self, topology: TopologyState, event: WorkerReported, in_flight: int) -> list[Command]:
        if topology.batched:
            return []
        if (topology.status == STARTING and topology.waves is None and self._master.all_at(topology.ready_at)
                and not any(topology.starting.values())):
            return self._master.all_up(topology)
        waits = topology.resting or topology.held_back or topology.status in (PAUSED, STOPPING)
        # During a switch, what is on its way between two incarnations is in no report, and neither is the position of a spout.
        if waits and event.revision >= topology.ready_at and topology.handover.phase != SWITCH:
            topology.quiet[event.slot] = topology.quiet.get(event.slot, 0) + 1 if in_flight == 0 else 0
            if topology.status == STOPPING and self._master.drained(topology):
                return self._waves.close(topology)
        return []


def _note_positions(event: WorkerReported, by_number: Mapping[int, TopologyState]) -> None:
    for number, source_number, position in event.positions:
        topology = by_number.get(number)
        if topology is None or topology.batched:  # its manifest has the positions of a batch
            continue
        if topology.waves is None or event.revision >= topology.ready_at:
            source = topology.graph.source(source_number)
            if source is not None:
                topology.positions[source] = max(position, topology.positions.get(source, 0))


def _note_reached(event: WorkerReported, by_number: Mapping[int, TopologyState]) -> None:
    for number, source_number, position in event.reached:
        topology = by_number.get(number)
        source = topology.graph.source(source_number) if topology is not None else None
        if topology is not None and source is not None:
            topology.reached[source] = max(position, topology.reached.get(source, 0))
