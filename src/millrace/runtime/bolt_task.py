"""A running bolt: takes a chunk at a time from its inbox, keeps account of what it has not acked, and sends on."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from millrace.api.component import DEAD_LETTERS, SYSTEM_COMPONENT, TICK_STREAM, Bolt, Tuple
from millrace.config import MESSAGE_TIMEOUT, TICK_SECONDS
from millrace.errors import EncodingError, MillraceError
from millrace.model.graph import TaskId
from millrace.runtime import wire
from millrace.runtime.alignment import Alignment
from millrace.runtime.channel import Delivery, Inlet
from millrace.runtime.output import Output
from millrace.runtime.routing import rows_of
from millrace.runtime.task import USER_ERRORS, Group, Task, describe

if TYPE_CHECKING:
    from millrace.runtime.topology_run import TopologyRun
    from millrace.runtime.worker import Worker

PLAIN_ROWS = wire.row_decoder(tuple)
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
        self.held: dict[str, Delivery] = {}  # chunks with tuples that the bolt will ack by hand
        self.holding = 0  # tuples in them
        self.verdicts: list[tuple[Tuple | str, bool]] = []  # acked or failed by hand, not settled yet
        self.by_hand = False  # the bolt acks, not the engine
        self._broken = ""  # why the chunk at hand could not be written
        self.alignment = Alignment(map(topology.graph.number, topology.graph.upstream(name.component)))
        self._decoders: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._run = {"process": self._run_each, "process_rows": self._run_rows,
                     "process_arrow": self._run_arrow}[self.definition.mode]

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
        self._guarded([self.component._before_wave])

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

    def _row_type(self, delivery: Delivery) -> tuple[Any, Any]:
        """The named tuple of the delivery's stream, and its decoder."""
        key = (delivery.component, delivery.stream_index)
        found = self._decoders.get(key)
        if found is None:
            fields = self.topology.graph.component(delivery.component).outputs[delivery.stream_index].fields
            title = re.sub(r"[\W_]", "", f"{delivery.component}_{delivery.stream}".title())
            row_type = NamedTuple(f"T{title}Tuple", [(field, Any) for field in fields])  # type: ignore[misc]
            found = self._decoders[key] = (list[row_type], wire.row_decoder(row_type))
        return found

    def rows(self, delivery: Delivery) -> list[Any]:
        """The chunk's tuples as named tuples, wherever they came from."""
        body = delivery.body
        if delivery.form == wire.ARROW:
            body, local = rows_of(self._received_batch(delivery)), True
        else:
            local = delivery.local
        if not self.component.named_rows:
            return body if local else PLAIN_ROWS.decode(body)
        row_type, decoder = self._row_type(delivery)
        if local:
            return msgspec.convert(body, row_type)
        return decoder.decode(body)

    def _received_batch(self, delivery: Delivery) -> pa.RecordBatch:
        return delivery.body if delivery.local else wire.decode_batch(delivery.body)

    def _as_batch(self, delivery: Delivery, rows: list[Any]) -> pa.RecordBatch:
        fields = self.topology.graph.component(delivery.component).outputs[delivery.stream_index].fields
        return pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], names=list(fields))

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

    def _execute(self, delivery: Delivery) -> None:
        """User code, perhaps on a thread of the task's own."""
        clock = self.worker.clock
        start, cpu = clock.now(), clock.cpu()
        try:
            self._run(delivery)
        except wire.WireError as error:
            delivery.failed = True  # a body that cannot be read: its sender will be told, and send it again
            self.worker.counters["malformed"] += 1
            self.report_error(error, None)
        elapsed = clock.now() - start
        meters = self.meters
        meters.cpu_seconds += clock.cpu() - cpu
        meters.busy_seconds += elapsed
        meters.executed += delivery.count
        meters.execute_latency.record(elapsed / (delivery.count or 1), delivery.count)

    def _run_each(self, delivery: Delivery) -> None:
        component = self.component
        tuples = map(Tuple, self._readable(delivery), repeat(delivery), count())
        process, tup = component.process, None
        while True:
            try:
                for tup in tuples:
                    process(tup)
                return
            except USER_ERRORS as error:
                self._user_error(error, delivery, tup)
                if delivery.failed and delivery.roots:
                    return  # the whole root comes again, so the rest of the chunk can wait for it
                process = self.component.process

    def _run_rows(self, delivery: Delivery) -> None:
        rows = self._readable(delivery)
        try:
            self.component.process_rows(rows)  # type: ignore[attr-defined]
        except USER_ERRORS as error:
            self._chunk_error(error, delivery, rows, lambda row: self.component.process_rows([row]))  # type: ignore[attr-defined]

    def _run_arrow(self, delivery: Delivery) -> None:
        rows = None if delivery.form == wire.ARROW else self._readable(delivery)
        try:
            batch = self._received_batch(delivery) if rows is None else self._as_batch(delivery, rows)
            self.component.process_arrow(batch)  # type: ignore[attr-defined]
        except wire.WireError:
            raise
        except USER_ERRORS as error:  # of the bolt, or because no column can hold these values together
            given = rows_of(batch) if rows is None else rows
            self._chunk_error(error, delivery, given, lambda row: self.component.process_arrow(  # type: ignore[attr-defined]
                self._as_batch(delivery, [row])))

    def _readable(self, delivery: Delivery) -> list[Any]:
        try:
            return self.rows(delivery)
        except wire.UNREADABLE as error:
            raise wire.WireError(f"a chunk from {delivery.component} does not fit {delivery.stream!r}: {error}") from None

    # -- errors in user code ---------------------------------------------------------------------------------------

    def _goes_back(self, error: BaseException) -> bool:
        """A sink of an exactly-once topology could not write: what it did not get may not be left out, so everything goes
        back to the last wave, for as long as it takes. Only what is wrong with a row itself makes it a dead letter."""
        if not self.commits or is_about_the_data(error):
            return False
        self.meters.failed += 1
        self.report_error(error, None)
        self._broken = f"{self.name} could not write ({describe(error)})"
        return True

    def _user_error(self, error: BaseException, delivery: Delivery, tup: Tuple | None) -> None:
        if self._goes_back(error):
            return
        self.meters.failed += 1
        self.report_error(error, tup)
        if tup is not None and self.component.auto_fail:
            self._give_up_or_fail(tup, delivery, error)
        elif not self.by_hand:
            delivery.left = -1  # neither acked nor failed: the root will time out, as the bolt asked for
        self._rebuild()

    def _rebuild(self) -> None:
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

    def _give_up_or_fail(self, tup: Tuple, delivery: Delivery, error: BaseException | str) -> None:
        """A tuple that failed too often, or that nothing would send again, becomes a dead letter; else its root fails."""
        if delivery.roots and delivery.attempt < self.max_fails:
            delivery.failed = True
            return
        self.meters.dead_letters += 1
        output = self._by_stream[DEAD_LETTERS]
        letter = self._letter(delivery.stream, tup.values, error if isinstance(error, str) else describe(error))
        self.worker.dead_letter(self, letter)
        if self.by_hand:
            self._add_group(output, letter, (tup,), None, None)
            self.verdicts.append((tup, True))
        else:
            output.rows.append(letter)

    def _letter(self, stream: str, values: Iterable[Any], text: str) -> tuple[Any, ...]:
        """A row for the dead letters. Values that cannot be encoded, which may be why it is one, are shown instead."""
        row, given = self._by_stream[DEAD_LETTERS].row, [self.name.component, self.name.index, stream]
        try:
            return row([*given, list(values), text])
        except EncodingError:
            return row([*given, [repr(value) for value in values], text])

    def _chunk_error(self, error: BaseException, delivery: Delivery, rows: list[Any], one: Callable[[Any], None]) -> None:
        """A whole-chunk call raised. If the chunk will come again, fail it; if not, find the tuples that are to blame."""
        if delivery.roots and delivery.attempt < self.max_fails:
            self._user_error(error, delivery, Tuple(rows[0], delivery))
            return
        if self._goes_back(error):
            return
        if not delivery.roots and not self.commits:  # nothing may be tried twice, so all of the chunk is given up
            self.meters.failed += len(rows)
            self.report_error(error, None)
            for index, row in enumerate(rows):
                self._give_up_or_fail(Tuple(row, delivery, index), delivery, error)
            self._rebuild()
            return
        for index, row in enumerate(rows):
            try:
                one(row)
            except USER_ERRORS as culprit:
                self._user_error(culprit, delivery, Tuple(row, delivery, index))

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
        while self.owed and self.holding < HELD_TUPLES and self.component._takes_more():
            self.worker.consumed(self, self.owed.popleft())

    def settle(self) -> None:
        opened, self.open = self.open, []
        if self.verdicts and not self.by_hand:
            self._settle_failures(opened)
        while groups := self.take_groups():  # sending may add dead letters
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
            if not any(one is delivery for one in opened) and self._let_go(delivery):
                self._close(delivery)

    def _let_go(self, delivery: Delivery) -> bool:
        """Stop holding the chunk; whether it was held."""
        if self.held.pop(delivery.key, None) is None:
            return False
        self.holding -= delivery.count
        return True

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
            self._by_stream[DEAD_LETTERS].rows.append(self._letter(output.name, row, describe(error)))

    def _anchored(self, anchors: Iterable[Tuple | str], opened: list[Delivery]) -> list[Delivery]:
        """The chunks that explicit anchors belong to."""
        found = (self._delivery_of(anchor, opened)[0] for anchor in anchors)
        return list({id(delivery): delivery for delivery in found if delivery is not None}.values())

    def _delivery_of(self, tup: Tuple | str, opened: Sequence[Delivery] = ()) -> tuple[Delivery | None, int]:
        """The chunk that a tuple, or a tuple's id, belongs to, and its place there."""
        if isinstance(tup, Tuple):
            delivery, index = tup.origin, tup.index
        else:
            key, _, place = str(tup).rpartition(":")
            delivery = self.held.get(key) or next((one for one in opened if one.key == key), None)
            index = int(place) if place.isdecimal() else -1
        known = isinstance(delivery, Delivery) and 0 <= index < delivery.count
        return (delivery if known else None), index

    def _finish(self, delivery: Delivery) -> None:
        if self.by_hand and not delivery.failed:
            if delivery.left and (delivery.roots or (self.component.acks_itself and self.component.auto_ack)):
                self.held[delivery.key] = delivery
                self.holding += delivery.count
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
            delivery, index = self._delivery_of(tup)
            if delivery is not None:
                self._settle_one(delivery, index, tup, good)

    def _settle_failures(self, opened: list[Delivery]) -> None:
        """The engine acks for this bolt, so an ack by hand says nothing new; but what it fails is failed."""
        verdicts, self.verdicts = self.verdicts, []
        for tup, good in verdicts:
            delivery, index = self._delivery_of(tup, opened)
            if delivery is not None and not good and not delivery.failed and any(one is delivery for one in opened):
                self._fail_by_hand(delivery, index, tup)

    def _fail_by_hand(self, delivery: Delivery, index: int, tup: Tuple | str) -> None:
        self.meters.failed += 1
        known = tup if isinstance(tup, Tuple) else Tuple(self.rows(delivery)[index], delivery, index)
        self._give_up_or_fail(known, delivery, "failed by the bolt")

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
            self._let_go(delivery)
            self._close(delivery)
            self._pay()

    def forget_held(self, before: float) -> None:
        """Chunks whose tuples the bolt never acked: their roots have long timed out."""
        for delivery in [delivery for delivery in self.held.values() if delivery.arrived < before]:
            self._let_go(delivery)
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
        self.on_own_thread(partial(self._guarded, calls), self._after_call)

    def _tell_broken(self) -> None:
        """On the loop: user code may have run on a thread of its own."""
        if self._broken:
            self.worker.broken(self, self._broken)
            self._broken = ""

    def _after_call(self) -> None:
        self.busy = False
        if not self.ended:
            self._tell_broken()
            self.settle()
            self._pay()  # there may be room again
            self.worker.ready(self)

    def _guarded(self, calls: list[Callable[[], None]]) -> None:
        clock = self.worker.clock
        start, cpu = clock.now(), clock.cpu()
        for call in calls:
            try:
                call()
            except USER_ERRORS as error:
                if not self._goes_back(error):
                    self.meters.failed += 1
                    self.report_error(error, None)
        self.meters.cpu_seconds += clock.cpu() - cpu
        self.meters.busy_seconds += clock.now() - start


def is_about_the_data(error: BaseException) -> bool:
    """Python's own complaints about values are; an error of a server, a disk or a library is taken for an outage, and one of
    ours for a wrong setting: both are for people to put right."""
    if isinstance(error, MillraceError):
        return isinstance(error, EncodingError)
    return isinstance(error, TypeError | ValueError | LookupError | ArithmeticError | AttributeError | AssertionError)


class _TickOrigin:
    component, stream, task = SYSTEM_COMPONENT, TICK_STREAM, -1

    def tuple_id(self, index: int) -> str:
        return "tick"


TICK_ORIGIN = _TickOrigin()
