"""A running bolt: takes a chunk at a time from its inbox, keeps account of what it has not acked, and sends on. The bolt's own
code is run by execution.py; what is here is on the worker's loop, but for what that calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.api.bolt import Bolt
from millrace.api.tuple import DEAD_LETTERS, SYSTEM_COMPONENT, TICK_STREAM, Tuple
from millrace.config import MESSAGE_TIMEOUT, TICK_SECONDS
from millrace.errors import EncodingError
from millrace.model.graph import TaskId
from millrace.runtime.flow.channel import Delivery, Inlet
from millrace.runtime.flow.routing import rows_of
from millrace.runtime.tasks.alignment import Alignment
from millrace.runtime.tasks.chunk_views import Reader
from millrace.runtime.tasks.execution import Execution
from millrace.runtime.tasks.outbox import Group
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.task import Task
from millrace.runtime.tasks.unacked import Held
from millrace.runtime.tasks.user_errors import USER_ERRORS, describe
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.worker.topology_run import TopologyRun
    from millrace.runtime.worker.worker import Worker

STALE = 1.1  # message timeouts after which a chunk is not worth working on
HELD_TUPLES = 200_000  # tuples in chunks that a bolt may hold on to before its senders have to wait
OPEN_DELIVERIES = 64  # a bolt settles after so many input chunks even if they made it emit little


class BoltTask(Task):
    """Runs a bolt: one chunk of its inbox per step."""

    component: Bolt

    def __init__(self, worker: Worker, topology: TopologyRun, name: TaskId, incarnation: int) -> None:
        super().__init__(worker, topology, name, incarnation)
        self.timeout: float = MESSAGE_TIMEOUT.of(topology.graph.config)
        self.due: dict[str, Callable[[], None]] = {}  # ticks and timers that wait for their turn
        self.owed: deque[Inlet] = deque()  # credits kept back while too much is held
        self.inbox: deque[Delivery] = deque()
        self.inlets: dict[tuple[int, int], Inlet] = {}
        self.open: list[Delivery] = []  # executed, but what they emitted has not been sent
        self.held = Held()
        self.verdicts: list[tuple[Tuple | str, bool]] = []  # acked or failed by hand, not settled yet
        self.by_hand = False  # the bolt acks, not the engine
        self.broken = ""  # why what it was given could not be written, until that is told
        self.alignment = Alignment(map(topology.graph.number, topology.graph.upstream(name.component)))
        self.reader = Reader(topology)
        execution = Execution(self)
        self._execute, self._execute_calls = execution.run, execution.run_calls

    def on_start(self) -> None:
        self.by_hand = self.component.acks_itself or not self.component.auto_ack
        self.worker.start_timers(self)
        self.settle()  # what initialize emitted

    # -- input -----------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        if self.ended:
            return
        delivery.arrived = self.worker.clock.now()
        if delivery.form == wire.WAVE:
            self._on_mark(delivery)
            return
        if self.alignment.mark is not None and self.alignment.holds(delivery.inlet.source):
            self.alignment.ahead.append(delivery)
            return
        self.inbox.append(delivery)
        if not self.queued:
            self.worker.ready(self)

    # -- waves -----------------------------------------------------------------------------------------------------

    def _on_mark(self, delivery: Delivery) -> None:
        """A wave has come on a channel. When it has on all, it takes its place in the inbox: behind everything that was
        sent before it, and before what was held back."""
        alignment = self.alignment
        try:
            mark = delivery.body if delivery.local else wire.decode_mark(delivery.body)
        except wire.WireError:
            self.worker.counters["malformed"] += 1
            return
        self.worker.consumed(self, delivery.inlet)
        if alignment.is_late(mark):
            return
        if alignment.is_other(mark):
            self._let_flow()
        if alignment.passes(mark, delivery.inlet.source):
            delivery.body = mark
            self.inbox.append(delivery)
            self._let_flow()

    def _let_flow(self) -> None:
        for held in self.alignment.release():
            self.deliver(held)
        self.worker.ready(self)

    def give_up_wave(self, wave: int) -> None:
        super().give_up_wave(wave)
        if self.alignment.mark is not None and self.alignment.mark.wave <= wave:
            self._let_flow()
        self.alignment.give_up(wave)
        self.inbox = deque(delivery for delivery in self.inbox
                           if delivery.form != wire.WAVE or delivery.body.wave > wave)

    def before_wave(self) -> None:
        self._execute_calls([self.component._before_wave])

    def send_waiting(self) -> None:
        self.settle()
        self._tell_broken()

    @property
    def queue_length(self) -> int:
        return sum(delivery.count for delivery in self.inbox) + sum(delivery.count for delivery in self.alignment.ahead)

    def idle(self) -> bool:
        return not (self.inbox or self.busy or self.open or self.held or self.verdicts or self.due or self.alignment.ahead)

    def abandon(self) -> None:
        self.inbox.clear()
        self.alignment.release()

    # -- work ------------------------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self._waves:
            self.take_waves()
        if self.due and self.started and not self.busy and not self.blocked:
            self._run_due()
        if not self.started or self.busy or self.blocked or not self.inbox:
            return
        delivery = self.inbox.popleft()
        if delivery.form == wire.WAVE:
            self.settle()
            self.prepare_wave(delivery.body)
            return
        if delivery.roots and self.worker.clock.now() - delivery.birth > STALE * self.timeout:
            # Its root has timed out and comes again: a bolt that is behind must not work on what nobody waits for.
            self.meters.expired += delivery.count
            self.worker.consumed(self, delivery.inlet)
            self.worker.ready(self)
            return
        self.on_own_thread(partial(self._execute, delivery), partial(self._executed, delivery))

    # -- when something failed -------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """A new instance, if the component asked for one; the old one stays if the new one cannot be made."""
        old = self.component
        if not old.exit_on_exception:
            return
        try:
            self.component = self._make(anew=False)  # type: ignore[assignment]
            self.initialize()
        except USER_ERRORS as error:
            self.report_error(error, None)
            self.component = old
            self._attach_emit(old)

    def give_up_or_fail(self, tup: Tuple, delivery: Delivery, error: BaseException | str) -> None:
        """A tuple that failed too often, or that nothing would send again, becomes a dead letter; else its root fails."""
        if delivery.roots and delivery.attempt < self.max_fails:
            delivery.failed = True
            return
        self.meters.dead_letters += 1
        output = self.outbox.by_stream[DEAD_LETTERS]
        letter = self._letter(delivery.stream, tup.values, error if isinstance(error, str) else describe(error))
        self.worker.errors.dead_letter(self, letter)
        if self.by_hand:
            self.outbox.add(output, letter, (tup,), None, None)
            self.verdicts.append((tup, True))
        else:
            output.rows.append(letter)

    def _letter(self, stream: str, values: Iterable[Any], text: str) -> tuple[Any, ...]:
        """A row for the dead letters. Values that cannot be encoded, which may be why it is one, are shown instead."""
        row, given = self.outbox.by_stream[DEAD_LETTERS].row, [self.name.component, self.name.index, stream]
        try:
            return row([*given, list(values), text])
        except EncodingError:
            return row([*given, [repr(value) for value in values], text])

    # -- settling --------------------------------------------------------------------------------------------------

    def _executed(self, delivery: Delivery) -> None:
        """Back on the loop: send what was emitted, give the credit back, settle acks."""
        self.busy = False
        if self.ended:
            return
        self._tell_broken()
        self.open.append(delivery)
        if not self.inbox or len(self.open) >= OPEN_DELIVERIES or self.waiting() >= self.chunk_tuples:
            self.settle()
        self.owed.append(delivery.inlet)
        self._pay()
        if self.inbox or self.due:
            self.worker.ready(self)

    def _pay(self) -> None:
        """Give credits back, unless the bolt holds on to more chunks than it should or has no room: then its senders wait."""
        owed = self.owed
        while owed and self.held.tuples < HELD_TUPLES and self.component._takes_more():
            self.worker.consumed(self, owed.popleft())

    def settle(self) -> None:
        opened, self.open = self.open, []
        if self.verdicts and not self.by_hand:
            self._settle_failures(opened)
        take = self.outbox.take
        while groups := take():  # sending may add dead letters
            for group in groups:
                self._send_group(group, opened)
        for delivery in opened:
            self._finish(delivery)
        if self.verdicts:
            self._settle_verdicts()

    def _send_group(self, group: Group, opened: list[Delivery]) -> None:
        deliveries = (opened if group.anchors is None and self.component.auto_anchor
                      else self._anchored(group.anchors or [], opened))
        roots = tuple(dict.fromkeys(root for delivery in deliveries for root in delivery.roots))
        attempt = max((delivery.attempt for delivery in deliveries), default=0)
        birth = min((delivery.birth for delivery in deliveries), default=0.0) or self.worker.clock.now()
        try:
            edges = self.send(group, roots, attempt, birth)
        except USER_ERRORS as error:  # of a custom grouping
            self.meters.failed += 1
            self.report_error(error, None)
            if roots and attempt < self.max_fails:
                self._fail_all(deliveries, opened)
                return
            edges = self._send_singly(group, roots, attempt, birth)
        for root in roots:
            self.topology.tracker.add(root, edges)

    def _fail_all(self, deliveries: list[Delivery], opened: list[Delivery]) -> None:
        for delivery in deliveries:
            delivery.failed = True
            if not any(one is delivery for one in opened) and self.held.let_go(delivery):
                self._close(delivery)

    def _send_singly(self, group: Group, roots: tuple[int, ...], attempt: int, birth: float) -> int:
        """The last attempt: every tuple by itself, so that only those that cannot be sent are given up."""
        edges = 0
        for row in group.body if isinstance(group.body, list) else rows_of(group.body):
            try:
                edges ^= self.send(group._replace(body=[row]), roots, attempt, birth)
            except USER_ERRORS as error:
                self.unsendable(group.output, row, error)
        return edges

    def unsendable(self, output: Output, row: Any, error: BaseException) -> None:
        super().unsendable(output, row, error)
        if output.name != DEAD_LETTERS:
            self.outbox.by_stream[DEAD_LETTERS].rows.append(self._letter(output.name, row, describe(error)))

    def _anchored(self, anchors: Iterable[Tuple | str], opened: list[Delivery]) -> list[Delivery]:
        """The chunks that explicit anchors belong to."""
        found = (self.held.find(anchor, opened)[0] for anchor in anchors)
        return list({id(delivery): delivery for delivery in found if delivery is not None}.values())

    def _finish(self, delivery: Delivery) -> None:
        if self.by_hand and not delivery.failed:
            if delivery.left and (delivery.roots or (self.component.acks_itself and self.component.auto_ack)):
                self.held.add(delivery)
            return
        self._close(delivery)

    def _close(self, delivery: Delivery) -> None:
        """Nothing is left to do for this chunk: tell the ackers."""
        if delivery.failed:
            self.topology.tracker.fail(delivery.roots)
        elif delivery.left >= 0:
            for root in delivery.roots:
                self.topology.tracker.add(root, delivery.edge)
            self.meters.acked += delivery.count
        self.meters.process_latency.record(self.worker.clock.now() - delivery.arrived, delivery.count)

    # -- acks by hand ----------------------------------------------------------------------------------------------

    def ack(self, tup: Tuple | str) -> None:
        self.verdicts.append((tup, True))

    def fail(self, tup: Tuple | str) -> None:
        self.verdicts.append((tup, False))

    def _settle_verdicts(self) -> None:
        verdicts, self.verdicts = self.verdicts, []
        for tup, good in verdicts:
            delivery, index = self.held.find(tup)
            if delivery is not None:
                self._settle_one(delivery, index, tup, good)

    def _settle_failures(self, opened: list[Delivery]) -> None:
        """The engine acks for this bolt, so an ack by hand says nothing new; but what it fails is failed."""
        verdicts, self.verdicts = self.verdicts, []
        for tup, good in verdicts:
            delivery, index = self.held.find(tup, opened)
            if delivery is not None and not good and not delivery.failed and any(one is delivery for one in opened):
                self._fail_by_hand(delivery, index, tup)

    def _fail_by_hand(self, delivery: Delivery, index: int, tup: Tuple | str) -> None:
        self.meters.failed += 1
        if not isinstance(tup, Tuple):
            tup = Tuple(self.reader.rows(delivery, self.component.named_rows)[index], delivery, index)
        self.give_up_or_fail(tup, delivery, "failed by the bolt")

    def _settle_one(self, delivery: Delivery, index: int, tup: Tuple | str, good: bool) -> None:
        if delivery.done is None:
            delivery.done = set()
        if index in delivery.done or delivery.failed:
            return
        if not good:
            self._fail_by_hand(delivery, index, tup)
            if not delivery.failed:
                self.settle()  # the dead letter; its own verdict closes the tuple
                return
        delivery.done.add(index)
        delivery.left -= 1
        if delivery.failed or not delivery.left:
            self.held.let_go(delivery)
            self._close(delivery)
            self._pay()

    def forget_held(self, before: float) -> None:
        """Chunks whose tuples the bolt never acked: their roots have long timed out."""
        self.held.forget(before)
        self._pay()

    # -- ticks -----------------------------------------------------------------------------------------------------

    def tick_seconds(self) -> float | None:
        seconds: float | None = TICK_SECONDS.of(self.component.storm_conf)
        return seconds

    def tick(self) -> None:
        self._fall_due("tick", lambda: self.component.process_tick(Tuple((self.tick_seconds(),), TICK_ORIGIN)))

    def on_timer(self) -> None:
        self._fall_due("timer", lambda: self.component._on_timer())

    def _fall_due(self, name: str, call: Callable[[], None]) -> None:
        """It runs before the next chunk, when the task is neither busy nor blocked; once, however often it fell due."""
        self.due[name] = call
        self.worker.ready(self)

    def _run_due(self) -> None:
        """User code that belongs to no chunk: what it emits is untracked unless it names anchors."""
        self.settle()
        calls, self.due = list(self.due.values()), {}
        self.on_own_thread(partial(self._execute_calls, calls), self._after_call)

    def _tell_broken(self) -> None:
        """On the loop: user code may have run on a thread of its own."""
        if self.broken:
            self.worker.broken(self, self.broken)
            self.broken = ""

    def _after_call(self) -> None:
        self.busy = False
        if not self.ended:
            self._tell_broken()
            self.settle()
            self._pay()  # there may be room again
            self.worker.ready(self)


class _TickOrigin:
    component, stream, task = SYSTEM_COMPONENT, TICK_STREAM, -1

    def tuple_id(self, index: int) -> str:
        return "tick"


TICK_ORIGIN = _TickOrigin()
