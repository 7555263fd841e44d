"""What comes in from other workers: checked, and given to the task or tracker that it is for.

Plans do not reach all workers at the same moment. What is for a task or topology that a newer plan may bring here is kept
until that plan comes; what is of an older one is counted and dropped, and replayed if it is tracked.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from millrace.control.assignment import Assignment
from millrace.errors import UnknownName
from millrace.runtime.clock import Clock
from millrace.runtime.flow.channel import Delivery, Inlet
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.topology_run import TopologyRun
from millrace.runtime.worker.wiring import inlet_of

log = logging.getLogger("millrace.worker")
STASH_LIMIT = 4096  # chunks kept for tasks that a newer plan, not yet seen here, has put on this worker
STASH_SECONDS = 10.0  # after that the plan is not coming: the topology has been killed, or the task moved on


class Arrivals:
    """`topologies` are the worker's own, as they are at any time. A plan is told first (`learn`), then carried out, then
    what waited for it is given out (`unstash` for each new task, `settle` at the end)."""

    def __init__(self, clock: Clock, topologies: Mapping[int, TopologyRun], counters: Counter[str]) -> None:
        self._clock, self._topologies, self._counters = clock, topologies, counters
        self._generations: dict[int, int] = {}  # of the workers, by slot
        self._newest = 0  # generation of the worker that joined last, as far as is known here
        self._highest = 0  # number of the topology that was submitted last, as far as is known here
        self._alive: set[int] = set()  # of all topologies, also those that have no task here
        self._early: deque[tuple[float, Any]] = deque()  # acks and roots for a topology that is not known here yet
        self._stash: dict[tuple[int, int, int], list[tuple[wire.Chunk, Any, float]]] = {}  # by topology, task, incarnation

    # -- plans -------------------------------------------------------------------------------------------------------

    def learn(self, assignment: Assignment) -> None:
        """Which workers and topologies there are."""
        self._generations = {address.slot: address.generation for address in assignment.workers}
        self._newest = max(self._newest, *self._generations.values(), 0)
        self._alive = set(assignment.alive)
        self._highest = max(self._highest, *assignment.alive, 0)

    def unstash(self, task: Task) -> None:
        """Give a new task what has already come for it."""
        for chunk, body, _ in self._stash.pop((task.topology.number, task.number, task.incarnation), []):
            self._on_chunk(chunk, body)

    def settle(self) -> None:
        """The plan has been carried out: what came before it may have its topology now."""
        early, self._early = self._early, deque()
        for since, message in early:
            self._on_tracking(message, since)

    def forget_old(self) -> None:
        """What has waited for its plan too long."""
        now = self._clock.now()
        for key in [key for key, kept in self._stash.items() if now - kept[-1][2] > STASH_SECONDS]:
            self._counters["stale"] += len(self._stash.pop(key))

    # -- messages ----------------------------------------------------------------------------------------------------

    def receive(self, frames: list[Any]) -> None:
        """A message of another worker. Anything malformed or stale is counted and dropped."""
        try:
            message = wire.decode_data(frames[0] if frames else b"")
        except wire.WireError as error:
            self._counters["malformed"] += 1
            log.warning("dropped: %s", error)
            return
        known = self._generations.get(message.worker)
        if message.generation < known if known is not None else message.generation <= self._newest:
            self._counters["fenced"] += 1  # given up; one that is not known but newer than all others has just come
            return
        if isinstance(message, wire.Chunk):
            if len(frames) != 2:
                self._counters["malformed"] += 1
                return
            self._on_chunk(message, frames[1])
        elif isinstance(message, wire.Credits):
            for credit in message.consumed:
                self._on_credit(*credit)
        elif isinstance(message, wire.Probe):
            self._on_probe(message)
        else:
            self._on_tracking(message, self._clock.now())

    def _on_chunk(self, chunk: wire.Chunk, body: Any) -> None:
        run = self._topologies.get(chunk.topology)
        task = run.find(chunk.target, chunk.target_incarnation) if run is not None and chunk.epoch >= run.epoch else None
        if not isinstance(task, BoltTask):
            self._not_here(chunk, body)
            return
        try:
            inlet = inlet_of(task, chunk.source, chunk.source_incarnation, chunk.worker, None)
            delivery = Delivery(inlet, chunk.stream, body, chunk.count, chunk.form, False, chunk.edge, tuple(chunk.roots),
                                chunk.attempt, self._clock.now() - chunk.age)
        except (KeyError, IndexError):
            self._counters["malformed"] += 1  # a source or stream that the topology does not have
            return
        if chunk.seq != inlet.next_seq:
            if chunk.seq < inlet.next_seq:
                task.meters.repeats += 1
                return
            _skip(task, inlet, chunk.seq)
        inlet.next_seq = chunk.seq + 1
        task.deliver(delivery)

    def _not_here(self, chunk: wire.Chunk, body: Any) -> None:
        """For a task that a newer plan puts here: keep it. For one that is no longer here: drop it, it is counted and,
        if tracked, replayed."""
        run = self._topologies.get(chunk.topology)
        if run is not None:
            known = chunk.version <= run.version
        else:
            known = chunk.topology <= self._highest and chunk.topology not in self._alive
        if known or sum(map(len, self._stash.values())) >= STASH_LIMIT:
            self._counters["stale"] += 1
            return
        key = (chunk.topology, chunk.target, chunk.target_incarnation)
        self._stash.setdefault(key, []).append((chunk, body, self._clock.now()))

    def _on_probe(self, probe: wire.Probe) -> None:
        """The sender of a full channel asks whether anything got lost on the way."""
        run = self._topologies.get(probe.topology)
        task = run.find(probe.target, probe.target_incarnation) if run is not None else None
        if not isinstance(task, BoltTask):
            return
        try:
            inlet = inlet_of(task, probe.source, probe.source_incarnation, probe.worker, None)
        except UnknownName:
            self._counters["malformed"] += 1
            return
        _skip(task, inlet, probe.seq)
        task.worker.credit(task, inlet)

    def _on_credit(self, topology: int, source: int, source_incarnation: int, target: int, incarnation: int,
                   consumed: int) -> None:
        run = self._topologies.get(topology)
        task = run.find(source, source_incarnation) if run is not None else None
        channel = task.channels.get(target) if task is not None else None
        if channel is not None and channel.target_incarnation == incarnation and channel.slot is not None:
            channel.credit(consumed)

    def _on_tracking(self, message: Any, since: float) -> None:
        run = self._topologies.get(message.topology)
        if run is None:
            self._keep_early(message, since)
        elif isinstance(message, wire.Acks):
            run.tracker.on_acks(message.pairs, message.version)
        elif isinstance(message, wire.Roots):
            run.tracker.on_roots(message.owner, message.pairs, message.version)
        elif isinstance(message, wire.Fails):
            run.tracker.on_fails(message.roots, message.version)
        elif isinstance(message, wire.Handover):
            run.tracker.on_handover(message.acker, message.sums, message.failed, message.version)
        elif isinstance(message, wire.Verdicts):
            run.on_verdicts(message.owner, message.owner_incarnation, message.finished, message.failed)

    def _keep_early(self, message: Any, since: float) -> None:
        """For a topology that has nothing here, as far as is known: a plan that brings it an acker may be on its way."""
        may_come = message.topology in self._alive or message.topology > self._highest
        if may_come and self._clock.now() - since < STASH_SECONDS and len(self._early) < STASH_LIMIT:
            self._early.append((since, message))
        else:
            self._counters["stale"] += 1


def _skip(task: BoltTask, inlet: Inlet, seq: int) -> None:
    """Chunks before `seq` that are not here were lost: counted, and credited, or their sender would wait for ever."""
    lost = max(0, seq - inlet.next_seq)
    task.meters.gaps += lost
    inlet.consumed += lost
    inlet.next_seq += lost
    if lost and task.topology.graph.exactly_once:
        task.worker.broken(task, f"{lost} chunks on their way to {task.name} were lost")
