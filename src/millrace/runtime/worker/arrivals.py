"""Receives messages from other workers, checks them and passes them to their task or tracker.

Plans do not reach all workers at the same moment. A message for a task or topology that a newer plan may place here is kept
until that plan arrives. A message of an older plan is counted and dropped; tracked tuples are replayed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from millrace.control.assignment import Assignment, numbers_in
from millrace.errors import UnknownName
from millrace.runtime.clock import Clock
from millrace.runtime.flow.channel import UNTRACKED, Delivery, Inlet, Lineage
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.known_workers import KnownWorkers
from millrace.runtime.worker.topology_run import TopologyRun
from millrace.runtime.worker.wiring import inlet_of

log = logging.getLogger("millrace.worker")
STASH_LIMIT = 4096  # chunks kept for tasks that a newer plan, not yet seen here, places on this worker
STASH_SECONDS = 10.0  # after which the plan is not expected: the topology was killed, or the task moved on


class Arrivals:
    """`topologies` and `workers` are the worker's own, live values. For a new plan, call `learn` first, carry it out, then
    deliver what was kept for it: `unstash` for each new task, `settle` at the end."""

    def __init__(self, clock: Clock, topologies: Mapping[int, TopologyRun], workers: KnownWorkers,
                 counters: Counter[str]) -> None:
        self._clock, self._topologies, self._workers, self._counters = clock, topologies, workers, counters
        self._highest = 0  # number of the topology that was submitted last, as known here
        self._alive: set[int] = set()  # all topologies, including those without a task here
        self._early: deque[tuple[float, Any]] = deque()  # acks and roots for a topology that is not known here yet
        self._stash: dict[tuple[int, int, int], list[tuple[wire.Chunk, Any, float]]] = {}  # by topology, task, incarnation

    # -- plans -------------------------------------------------------------------------------------------------------

    def learn(self, assignment: Assignment) -> None:
        """Record the topologies of a new plan."""
        self._alive = set(numbers_in(assignment.alive))
        self._highest = max(self._highest, *self._alive, 0)

    def unstash(self, task: Task) -> None:
        """Deliver the chunks that arrived before the task was here."""
        for chunk, body, _ in self._stash.pop((task.topology.number, task.number, task.incarnation), []):
            self._on_chunk(chunk, body)

    def settle(self) -> None:
        """After a plan: deliver early messages whose topology is here now, and chunks whose senders are known now."""
        for task in [task for number, target, incarnation in self._stash if (run := self._topologies.get(number)) is not None
                     and (task := run.find(target, incarnation)) is not None]:
            self.unstash(task)
        early, self._early = self._early, deque()
        for since, message in early:
            self._on_tracking(message, since)

    def forget_old(self) -> None:
        """Drop chunks that have waited too long for their plan."""
        now = self._clock.now()
        for key in [key for key, kept in self._stash.items() if now - kept[-1][2] > STASH_SECONDS]:
            self._counters["stale"] += len(self._stash.pop(key))

    # -- messages ----------------------------------------------------------------------------------------------------

    def receive(self, frames: list[Any]) -> None:
        """Handle a message of another worker. Malformed and stale ones are counted and dropped."""
        try:
            message = wire.decode_data(frames[0] if frames else b"")
        except wire.WireError as error:
            self._counters["malformed"] += 1
            log.warning("dropped: %s", error)
            return
        if self._workers.is_fenced(message.worker, message.generation):
            self._counters["fenced"] += 1
            return
        if isinstance(message, wire.Chunk):
            if len(frames) != 2:
                self._counters["malformed"] += 1
                return
            self._on_chunk(message, frames[1])
        elif isinstance(message, wire.StatePart):
            if len(frames) != 2:
                self._counters["malformed"] += 1
                return
            self._on_state(message, bytes(frames[1]))
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
        if run is None or not isinstance(task, BoltTask):
            self._not_here(chunk, body)
            return
        try:
            inlet = inlet_of(task, chunk.source, chunk.source_incarnation, chunk.worker, None)
            now, age = self._clock.now(), chunk.origin_age
            lineage = Lineage(tuple(chunk.roots), chunk.attempt, now - chunk.age, now - age if age > 0 else age)
            delivery = Delivery(inlet, chunk.stream, body, chunk.count, chunk.form, False, chunk.edge, lineage, chunk.lane)
        except (KeyError, IndexError):
            if run.graph.find(chunk.source) is None and chunk.version > run.version:  # a sender that a newer plan has started
                self._keep(chunk, body)
            else:
                self._counters["malformed"] += 1  # a source or stream that the topology does not have
            return
        if chunk.seq != inlet.next_seq:
            if chunk.seq < inlet.next_seq:
                task.meters.repeats += 1
                return
            _skip(task, inlet, chunk.seq)
        inlet.next_seq = chunk.seq + 1
        if chunk.count:
            task.meters.hop(inlet.component).wire_latency.record(self._clock.wall() - chunk.sent, chunk.count)
        task.deliver(delivery)

    def _not_here(self, chunk: wire.Chunk, body: Any) -> None:
        """Keep a chunk for a task that a newer plan may place here; count and drop it if the task is no longer here."""
        run = self._topologies.get(chunk.topology)
        if run is not None:
            known = chunk.version <= run.version
        else:
            known = chunk.topology <= self._highest and chunk.topology not in self._alive
        if known:
            self._counters["stale"] += 1
        else:
            self._keep(chunk, body)

    def _keep(self, chunk: wire.Chunk, body: Any) -> None:
        """Keep a chunk until a newer plan arrives."""
        if sum(map(len, self._stash.values())) >= STASH_LIMIT:
            self._counters["stale"] += 1
            return
        key = (chunk.topology, chunk.target, chunk.target_incarnation)
        self._stash.setdefault(key, []).append((chunk, body, self._clock.now()))

    def _on_state(self, part: wire.StatePart, body: bytes) -> None:
        """Pass on a part of the state of a task that is handed over to this worker."""
        run = self._topologies.get(part.topology)
        task = run.find(part.target, part.target_incarnation) if run is not None and run.epoch == part.epoch else None
        arrival = task.arrival_of(part.move) if task is not None else None
        if arrival is None:
            self._counters["stale"] += 1
        else:
            arrival.on_part(part, body)

    def _on_probe(self, probe: wire.Probe) -> None:
        """Answer the sender of a channel that asks whether chunks were lost."""
        run = self._topologies.get(probe.topology)
        task = run.find(probe.target, probe.target_incarnation) if run is not None else None
        if not isinstance(task, BoltTask):
            return
        forgotten = task.inbox.forgotten(probe.source, probe.source_incarnation)
        try:
            inlet = inlet_of(task, probe.source, probe.source_incarnation, probe.worker, None)
        except UnknownName:
            self._counters["malformed"] += 1
            return
        if forgotten:  # it was, because it had sent its end
            inlet.next_seq = inlet.consumed = max(inlet.consumed, probe.seq)
        elif probe.mark is not None and inlet.next_seq == probe.seq - 1:  # the mark alone was lost
            inlet.next_seq = probe.seq
            task.deliver(Delivery(inlet, 0, probe.mark, 0, wire.HANDOVER, True, 0, UNTRACKED))
        else:
            _skip(task, inlet, probe.seq)
        task.worker.credit(task, inlet)

    def _on_credit(self, topology: int, source: int, source_incarnation: int, target: int, incarnation: int,
                   consumed: int, allowance: int, chunk: int) -> None:
        run = self._topologies.get(topology)
        task = run.find(source, source_incarnation) if run is not None else None
        channel = task.channel_to(target, incarnation) if task is not None else None
        if channel is not None and channel.slot is not None:
            channel.credit(consumed, max(1, allowance), max(1, chunk))

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
        elif isinstance(message, wire.LedgerHandover):
            run.tracker.on_handover(message.acker, message.sums, message.failed, message.version)
        elif isinstance(message, wire.Verdicts):
            run.on_verdicts(message.owner, message.owner_incarnation, message.finished, message.failed)

    def _keep_early(self, message: Any, since: float) -> None:
        """Keep a message for a topology with nothing here: a plan that places an acker here may be on its way."""
        may_come = message.topology in self._alive or message.topology > self._highest
        if may_come and self._clock.now() - since < STASH_SECONDS and len(self._early) < STASH_LIMIT:
            self._early.append((since, message))
        else:
            self._counters["stale"] += 1


def _skip(task: BoltTask, inlet: Inlet, seq: int) -> None:
    """Count chunks before `seq` that have not arrived as lost, and credit them, or their sender would wait forever. The end of
    a sender may be among them: nobody waits for that any longer."""
    lost = max(0, seq - inlet.next_seq)
    task.meters.gaps += lost
    inlet.consumed += lost
    inlet.next_seq += lost
    if lost and task.topology.graph.exactly_once:
        task.worker.broken(task, f"{lost} chunks on their way to {task.name} were lost")
    if lost:
        task.inbox.end_of(inlet)
