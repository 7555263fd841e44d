"""A running bolt: processes one chunk of its inbox per step, then sends its output and acks its input.

    inbox         inbox.py         chunks that wait, wave alignment, credits
    pace          flow/pace.py     tuples that it takes in a given time
    execution     execution.py     runs the bolt's code
    settling      settling.py      sends the output and closes chunks with the ackers
    acks          manual_acks.py   acks by hand
    dead_letters  dead_letters.py  tuples that failed too often
    due           due_calls.py     ticks and timers

Only `execution` may run on the task's own thread; everything else runs on the worker's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.api.bolt import Bolt
from millrace.config import CHANNEL_SECONDS, MESSAGE_TIMEOUT
from millrace.model.graph import ComponentDef, TaskId
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.flow.overtaken import Overtaken
from millrace.runtime.flow.pace import Pace
from millrace.runtime.tasks.chunk_views import ChunkReader
from millrace.runtime.tasks.dead_letters import DeadLetters
from millrace.runtime.tasks.due_calls import DueCalls
from millrace.runtime.tasks.execution import Execution
from millrace.runtime.tasks.inbox import Inbox
from millrace.runtime.tasks.manual_acks import ManualAcks
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.settling import Settling
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.handover.arrival import Arrival
    from millrace.runtime.tasks.handover.group_arrival import GroupArrival
    from millrace.runtime.tasks.handover.group_departure import GroupDeparture
    from millrace.runtime.tasks.handover.succession import Incarnation
    from millrace.runtime.tasks.host import TaskHost, TaskTopology

STALE = 1.1  # message timeouts after which a chunk is not worth processing


class BoltTask(Task):
    """Runs a bolt: one chunk of its inbox per step."""

    component: Bolt

    def __init__(self, worker: TaskHost, topology: TaskTopology, name: TaskId, incarnation: int) -> None:
        super().__init__(worker, topology, name, incarnation)
        self.timeout: float = MESSAGE_TIMEOUT.of(topology.graph.config)
        self.broken = ""  # why a sink could not write its input, until that is reported
        self.pace = Pace(None if topology.graph.batched else CHANNEL_SECONDS.of(topology.graph.config))
        sink = topology.graph.is_sink(name.component) and not topology.graph.batched
        self._sink_meters = topology.meters if sink else None
        self._taken, self._taken_at = 0, 0.0  # tuples that it works on or whose output is held up, and since when
        self.reader = ChunkReader(topology)
        self.inbox = Inbox(self)
        self.execution = Execution(self)
        self.settling = Settling(self)
        self.acks = ManualAcks(self)
        self.dead_letters = DeadLetters(self)
        self.due = DueCalls(self)
        self.group_departures: dict[int, GroupDeparture] = {}  # by move: key groups that another task takes over
        self.group_arrivals: dict[int, GroupArrival] = {}  # by move: key groups that it takes over
        self.deliver = self.inbox.deliver
        self.ack, self.fail = self.acks.ack, self.acks.fail  # type: ignore[method-assign]  # a call less per tuple

    def on_start(self, due: Mapping[str, float]) -> None:
        self.acks.by_hand = self.component.acks_itself or not self.component.auto_ack
        self.inbox.taken_over()
        self.worker.start_timers(self, due)
        self.inbox.put_back(self.snapshots.take_in_flight())
        self.settling.settle()  # sends what initialize emitted

    def step(self, now: float) -> None:
        if self._taken and not self.busy and not self.blocked:
            self._took(now)
        if self.waves.pending:
            self.waves.run_next()
        if self.due.pending and self.started and not self.busy and not self.blocked:
            self.due.run()
        if self.departure is not None:
            self.departure.go_on()
        if self.group_arrivals and self.started and not self.busy:
            for arrival in list(self.group_arrivals.values()):
                arrival.take_over()
        inbox = self.inbox.waiting
        if not self.started or self.busy or self.blocked or self.captured or not inbox:
            if self.blocked and inbox and self.started and not self.busy and not self.captured:
                self.held_up(now)
            return
        delivery = self.inbox.take(max(self.pace.per_call, self.needed))
        if delivery.form >= wire.MARKS:
            self.settling.settle()
            if delivery.form == wire.WAVE:
                self.waves.prepare(delivery.body)
            elif (departing := self.group_departures.get(delivery.body)) is not None:
                departing.hand_over()
            self.worker.ready(self)
            return
        if delivery.lineage.roots and self.worker.clock.now() - delivery.lineage.birth > STALE * self.timeout:
            # Its root has timed out and will be replayed: a bolt that is behind must not work on stale chunks.
            self.meters.expired += delivery.count
            self.worker.consumed(self, delivery.inlet)
            self.worker.ready(self)
            return
        self._taken, self._taken_at = delivery.count, now
        self.on_own_thread(partial(self.execution.run, delivery), partial(self._executed, delivery))

    def _executed(self, delivery: Delivery) -> None:
        """Back on the loop: send the output, settle acks, return the credit."""
        self.busy = False
        if self._sink_meters is not None:
            now, birth = self.worker.clock.now(), delivery.lineage.birth  # no birth: restored with a wave
            self._sink_meters.sink_processed(now, delivery.count, now - birth if birth else 0.0, delivery.lineage.origin)
        if self.ended:
            return
        self.report_broken()
        self.settling.executed(delivery)
        if not self.inbox.waiting and not self.blocked:  # from now on it waits for input
            self._took(self.worker.clock.now())
        if not delivery.more:
            self.inbox.owe(delivery.inlet)
        if self.inbox.waiting or self.due.pending or self.waves.pending or self.departure is not None:
            self.worker.ready(self)

    def _took(self, now: float) -> None:
        self.pace.took(self._taken, now - self._taken_at)
        self._taken = 0

    def report_broken(self) -> None:
        """Tell the worker, on the loop, that a sink could not write; its code may have run on another thread."""
        if self.broken:
            self.worker.broken(self, self.broken)
            self.broken = ""

    def before_wave(self) -> None:
        self.execution.run_calls([self.component._before_wave])

    def send_waiting(self) -> None:
        self.settling.settle()
        self.report_broken()

    def overtake(self, mark: wire.WaveMark) -> Overtaken | None:
        self.settling.settle()
        return self.inbox.overtake(mark)

    def abandon_wave(self, wave: int) -> None:
        super().abandon_wave(wave)
        self.captured = False
        self.inbox.abandon_wave(wave)

    def unsendable(self, output: Output, row: Any, error: BaseException) -> None:
        super().unsendable(output, row, error)
        self.dead_letters.add_unsendable(output, row, error)

    def idle(self) -> bool:
        return (self.inbox.empty and not self.busy and not self.settling.open and not self.acks.unacked
                and not self.acks.verdicts and not self.due.pending)

    def drained(self, move: int, awaited: set[Incarnation], impatient: bool) -> bool:
        """Bolts that collect batches run them before they leave; others that ack by hand have time to ack what they hold."""
        held = bool(self.acks.unacked) and not self.component.auto_ack
        return self.inbox.empty and self.inbox.moved.get(move, set()) >= awaited and (impatient or not held)

    def redefine(self, definition: ComponentDef) -> None:
        super().redefine(definition)
        self.inbox.take_senders()

    def rewired(self) -> None:
        super().rewired()
        for departure in self.group_departures.values():
            departure.rewired()

    def leave(self) -> None:
        self.acks.fail_all()

    def due_in(self) -> dict[str, float]:
        return self.due.due_in()

    def arrival_of(self, move: int) -> Arrival | GroupArrival | None:
        return self.group_arrivals.get(move) or super().arrival_of(move)

    def abandon(self) -> None:
        self.inbox.clear()

    @property
    def queue_length(self) -> int:
        return self.inbox.tuples
