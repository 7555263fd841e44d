"""One running task: its inbox, its component, and what leaves it. Bolts here, spouts in spout_task.py.

Work is done in two steps. *Execute* runs user code and only fills the task's own outputs, so a task that blocks can do
it on a thread of its own. *Settle* routes and sends what was emitted and settles acks, always on the worker's loop.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, repeat
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from millrace.api.component import DEAD_LETTERS, DEFAULT_STREAM, SYSTEM_COMPONENT, TICK_STREAM, Bolt, Component, Spout, Tuple
from millrace.config import CHUNK_TUPLES, MAX_FAILS, MESSAGE_TIMEOUT, TICK_SECONDS
from millrace.errors import EmitError, EncodingError
from millrace.model.graph import ComponentDef, TaskId, resolve
from millrace.runtime import wire
from millrace.runtime.channel import Channel, Delivery, Inlet
from millrace.runtime.meters import Meters
from millrace.runtime.output import BOLT, HANDLE, SPOUT, Output, fast_emit
from millrace.runtime.routing import rows_of

if TYPE_CHECKING:
    from millrace.runtime.worker import TopologyRun, Worker

PLAIN_ROWS = wire.row_decoder(tuple)
USER_ERRORS = (Exception, SystemExit)  # what user code may raise without taking the worker down
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0  # between attempts to start a component that cannot be initialized
STALE = 1.1  # message timeouts after which a chunk is not worth working on
HELD_TUPLES = 200_000  # tuples in chunks that a bolt may hold on to before its senders have to wait
OPEN_DELIVERIES = 64  # a bolt settles after so many input chunks even if they made it emit little
CHUNK_STRETCH = 4  # tuples that were emitted together may overfill a chunk so many times before they are cut up


def describe(error: BaseException) -> str:
    """The error in one line that can be sent anywhere, whatever its author did."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as worse:
        text = f"{type(error).__name__}, whose own text raises {type(worse).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()


def _fixed(anchors: Any) -> Any:
    """Anchors as they are now: the list may be another one by the time the tuple is sent."""
    if anchors is None or isinstance(anchors, tuple):
        return anchors
    return (anchors,) if isinstance(anchors, Tuple | str) else tuple(anchors)


class Group(NamedTuple):
    """Tuples that were emitted in an unusual way and leave apart from the rest: own anchors, chosen channels, Arrow."""

    output: Output
    body: Any  # list of rows, or a RecordBatch
    anchors: Any  # None: whatever is being processed; a tuple of tuples or ids otherwise
    channels: tuple[Channel, ...] | None  # None: by the groupings
    ids: list[Any]


class Task:
    """Common to bolts and spouts. `step` does one chunk's worth of work."""

    def __init__(self, worker: Worker, topology: TopologyRun, name: TaskId, incarnation: int) -> None:
        self.worker, self.topology, self.name, self.incarnation = worker, topology, name, incarnation
        self.definition: ComponentDef = topology.graph.component(name.component)
        self.number = topology.graph.number(name)
        self.meters = Meters()
        self.channels: dict[int, Channel] = {}
        self.blocked = 0  # channels that are full
        self.busy = False  # a thread of its own is in user code
        self.queued = False  # in the worker's ready list
        self.started = False  # its component is initialized
        self.ended = False
        self.retiring: float | None = None  # time before which a task that moved away does not end
        self.groups: list[Group] = []
        self.random = Random()
        self.chunk_tuples: int = CHUNK_TUPLES.of(topology.graph.config)
        self.max_fails: int = MAX_FAILS.of(topology.graph.config)
        self.outputs = [Output(name, i, stream) for i, stream in enumerate(self.definition.outputs)]
        self._by_stream = {output.name: output for output in self.outputs}
        self.component: Any = None
        self._start_error: BaseException | None = None
        self._retry_seconds = FIRST_RETRY_SECONDS

    # -- the component -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make and initialize the component; again after a while if that fails. What comes meanwhile waits."""
        if not self.ended:
            self.on_own_thread(self._build, self._built)

    def on_own_thread(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """User code of a component that blocks runs on the task's thread, always; what follows it on the loop."""
        if self.definition.blocking:
            self.busy = True
            self.worker.in_thread(self, work, done)
        else:
            work()
            done()

    def _build(self) -> None:
        try:
            self.component = self._make()
            self.initialize()
            self._start_error = None
        except USER_ERRORS as error:
            self._start_error = error

    def _built(self) -> None:
        self.busy = False
        if self.ended:
            return
        if self._start_error is None:
            self.started = True
            self.on_start()
            self.worker.ready(self)
        else:
            self.worker.start_failed(self, self._start_error)
            self.worker.at(self.worker.clock.now() + self._retry_seconds, self.begin)
            self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    def on_start(self) -> None:
        """The component is ready: the rest of the task's own set-up, on the loop."""

    def _make(self) -> Component:
        """A new instance, attached to this task."""
        component: Component = resolve(self.definition.code)()
        conf = {"topology.name": self.topology.graph.name, **self.topology.graph.config, **self.definition.config}
        component.topology_name, component.component_name = self.topology.graph.name, self.name.component
        component.task_id, component.task_index, component.parallelism = self.number, self.name.index, self.definition.par
        component.debug, component.storm_conf = bool(conf.get("topology.debug")), conf
        component.context = self.topology.context(self.name)
        component.logger = logging.getLogger(f"millrace.{self.topology.graph.name}.{self.name}")
        component.tracked = self.topology.tracked
        component._handle = self
        self._attach_emit(component)
        return component

    def _attach_emit(self, component: Component) -> None:
        """The fast path: as the component's own `emit`, unless its class has another one, and in its handle."""
        default = self._by_stream.get(DEFAULT_STREAM)
        if default is None or not default.width or default.direct:
            return
        spout = self.definition.kind == "spout"
        default.rebinds.clear()
        vars(self)["emit"] = fast_emit(default, self._emit, HANDLE, track=spout)
        if type(component).emit in (Bolt.emit, Spout.emit):  # type: ignore[attr-defined]
            vars(component)["emit"] = fast_emit(default, self._emit, SPOUT if spout else BOLT, track=spout)

    def initialize(self) -> None:
        self.component.initialize(self.component.storm_conf, self.component.context)

    def close(self) -> None:
        if self.started:
            try:
                self.component.close()
            except USER_ERRORS as error:
                self.report_error(error, None)

    # -- what the component calls (TaskHandle) --------------------------------------------------------------------

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None,
             need_task_ids: bool) -> list[int] | None:
        return self._emit(values, tup_id, stream, anchors, direct_task, need_task_ids)

    def _emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None,
              need_task_ids: bool) -> list[int] | None:
        """Every case that the fast path leaves: other streams, anchors, direct tasks, nested values, mistakes."""
        output = self._output(stream)
        row = output.row(values)
        anchors = _fixed(anchors)
        if anchors is None and direct_task is None and not need_task_ids and not output.direct:
            output.rows.append(row)
            if self.definition.kind == "spout":
                output.ids.append(tup_id)
            return None
        channels = self._chosen(output, row, direct_task, need_task_ids)
        self._add_group(output, row, anchors, channels, tup_id)
        return [channel.target for channel in channels] if need_task_ids and channels is not None else None

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None:
        output = self._output(stream)
        if output.direct:
            raise EmitError(f"{self.name}, stream {output.name!r}: a direct stream needs emit with direct_task=")
        output.extend(rows)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None:
        output = self._output(stream)
        checked = output.batch(batch)
        channels = self._chosen(output, None, direct_task, False)
        self._keep_order(output)
        self.groups.append(Group(output, checked, _fixed(anchors), channels, [tup_id]))

    def report_metric(self, name: str, value: Any) -> None:
        try:
            wire.encode({name: value})
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self.name} reported a {type(value).__name__} as metric {name!r}, which cannot be encoded "
                                f"({error}). Report a number.") from None
        self.meters.custom[name] = value

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        self.worker.report_error(self, error, traceback.format_exception(error), tup)

    def ack(self, tup: Tuple | str) -> None:
        raise TypeError("only bolts ack tuples")

    def fail(self, tup: Tuple | str) -> None:
        raise TypeError("only bolts fail tuples")

    def _output(self, stream: str | None) -> Output:
        output = self._by_stream.get(stream or DEFAULT_STREAM)
        if output is None:
            names = ", ".join(repr(name) for name in self._by_stream) or "none"
            raise EmitError(f"{self.name} emitted on stream {stream or DEFAULT_STREAM!r}, which it does not declare; "
                            f"it has {names}. Add it to `outputs`.")
        return output

    def _chosen(self, output: Output, row: Any, direct_task: int | None, need_task_ids: bool) -> tuple[Channel, ...] | None:
        if output.direct != (direct_task is not None):
            raise EmitError(f"{self.name}, stream {output.name!r}: " + (
                "a direct stream needs direct_task=" if output.direct else
                f"direct_task={direct_task} was given, but the stream is not direct. Declare it with direct=True."))
        if direct_task is not None:
            channel = self.channels.get(direct_task) if direct_task in output.targets else None
            if channel is None:
                raise EmitError(f"{self.name} emitted to task {direct_task} on stream {output.name!r}; "
                                f"its targets are {sorted(output.targets)}")
            return (channel,)
        if need_task_ids:
            return tuple(channel for route in output.routes for channel, _ in route.split([row]))
        return None

    def _keep_order(self, output: Output) -> None:
        """Rows that wait already were emitted before what comes now: they go first."""
        if output.rows:
            rows, ids = output.take()
            self.groups.append(Group(output, rows, None, None, ids))

    def _add_group(self, output: Output, row: tuple[Any, ...], anchors: Any, channels: Any, tup_id: Any) -> None:
        self._keep_order(output)
        last = self.groups[-1] if self.groups else None
        if last and last.output is output and (last.anchors is anchors or last.anchors == anchors) \
                and last.channels == channels and isinstance(last.body, list):
            last.body.append(row)
            last.ids.append(tup_id)
        else:
            self.groups.append(Group(output, [row], anchors, channels, [tup_id]))

    # -- sending ---------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """Tuples emitted and not yet sent."""
        total = 0
        for output in self.outputs:
            total += len(output.rows)
        for group in self.groups:
            total += len(group.body)
        return total

    def take_groups(self) -> list[Group]:
        """Everything emitted since the last time, in order of emission within each stream."""
        for output in self.outputs:
            if output.rows:
                rows, ids = output.take()
                self.groups.append(Group(output, rows, None, None, ids))
        groups, self.groups = self.groups, []
        return groups

    def send(self, group: Group, roots: tuple[int, ...], attempt: int, birth: float) -> int:
        """Send a group down its channels. Returns the XOR of the chunks' ids (0 if untracked). Raises what a custom
        grouping raises, and then nothing has been sent."""
        output, body = group.output, group.body
        size = len(body) if isinstance(body, list) else body.num_rows
        if not size:
            return 0
        parts = self._routed(group)
        self.meters.emitted += size
        return self._send_parts(output, parts, roots, attempt, birth)

    def _routed(self, group: Group) -> list[tuple[Channel, Any]]:
        output, body = group.output, group.body
        rows = isinstance(body, list)
        if group.channels is not None:
            return [(channel, body[:] if rows else body) for channel in group.channels]
        if not rows:
            return [part for route in output.routes for part in route.split_batch(body)]
        several = len(output.routes) > 1  # no two receivers get the same list
        return [part for route in output.routes for part in route.split(list(body) if several else body)]

    def unsendable(self, output: Output, row: Any, error: BaseException) -> None:
        """An emitted tuple that no attempt will get through: it is counted, shown and given up."""
        self.meters.dead_letters += 1
        self.report_error(error, None)

    def _send_parts(self, output: Output, parts: Iterable[tuple[Channel, Any]], roots: tuple[int, ...], attempt: int,
                    birth: float) -> int:
        edges, limit = 0, self.chunk_tuples * CHUNK_STRETCH
        for channel, part in parts:
            rows = isinstance(part, list)
            pieces = [part[i:i + limit] for i in range(0, len(part), limit)] if rows and len(part) > limit else [part]
            for piece in pieces:
                edges ^= self._send_piece(output, channel, piece, rows, roots, attempt, birth)
        return edges

    def _send_piece(self, output: Output, channel: Channel, piece: Any, rows: bool, roots: tuple[int, ...], attempt: int,
                    birth: float) -> int:
        size = len(piece) if rows else piece.num_rows
        edge = self.random.getrandbits(63) if roots else 0
        if rows and channel.local is not None and output.shared():
            piece = [tuple(row) for row in wire.through_the_wire(piece)]
        try:
            (channel.send_rows if rows else channel.send_batch)(output.index, piece, edge, roots, attempt, birth)
        except (TypeError, ValueError, OverflowError) as error:  # too long for a frame, or not to be encoded at all
            if size == 1:
                self.unsendable(output, piece[0] if rows else rows_of(piece)[0], error)
                return 0
            half = size // 2
            halves = (piece[:half], piece[half:]) if rows else (piece.slice(0, half), piece.slice(half))
            return self._send_piece(output, channel, halves[0], rows, roots, attempt, birth) \
                ^ self._send_piece(output, channel, halves[1], rows, roots, attempt, birth)
        self.meters.transferred += size
        return edge

    # -- the worker's side -----------------------------------------------------------------------------------------

    def unblocked(self) -> None:
        self.blocked -= 1
        if not self.blocked:
            self.worker.ready(self)

    def rewire(self, channels: dict[int, Channel]) -> None:
        """A new plan: other channels to send by."""
        self.channels = channels
        self.blocked = sum(channel.full for channel in channels.values())

    def deliver(self, delivery: Delivery) -> None:
        raise EmitError(f"{self.name} takes no input")

    def step(self, now: float) -> None:
        raise NotImplementedError

    def idle(self) -> bool:
        """Nothing is left to do for a task that moved away."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The task ends: whatever still waits in it is not to be worked off after `close`."""

    @property
    def queue_length(self) -> int:
        return 0


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
        self.inbox.append(delivery)
        if not self.queued:
            self.worker.ready(self)

    @property
    def queue_length(self) -> int:
        return sum(delivery.count for delivery in self.inbox)

    def idle(self) -> bool:
        return not (self.inbox or self.busy or self.open or self.held or self.verdicts or self.due)

    def abandon(self) -> None:
        self.inbox.clear()

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
        if self.due and self.started and not self.busy and not self.blocked:
            self._run_due()
        if not self.started or self.busy or self.blocked or not self.inbox:
            return
        delivery = self.inbox.popleft()
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

    def _user_error(self, error: BaseException, delivery: Delivery, tup: Tuple | None) -> None:
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
            self.component = self._make()  # type: ignore[assignment]
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
        if not delivery.roots:  # at most once: nothing may be tried twice, so all of the chunk is given up
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
        self.open.append(delivery)
        if not self.inbox or len(self.open) >= OPEN_DELIVERIES or self.waiting() >= self.chunk_tuples:
            self.settle()
        self.owed.append(delivery.inlet)
        self._pay()
        if self.inbox or self.due:
            self.worker.ready(self)

    def _pay(self) -> None:
        """Give credits back, unless the bolt holds on to more chunks than it should: then its senders wait."""
        while self.owed and self.holding < HELD_TUPLES:
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

    def _after_call(self) -> None:
        self.busy = False
        if not self.ended:
            self.settle()
            self.worker.ready(self)

    def _guarded(self, calls: list[Callable[[], None]]) -> None:
        clock = self.worker.clock
        start, cpu = clock.now(), clock.cpu()
        for call in calls:
            try:
                call()
            except USER_ERRORS as error:
                self.meters.failed += 1
                self.report_error(error, None)
        self.meters.cpu_seconds += clock.cpu() - cpu
        self.meters.busy_seconds += clock.now() - start


class _TickOrigin:
    component, stream, task = SYSTEM_COMPONENT, TICK_STREAM, -1

    def tuple_id(self, index: int) -> str:
        return "tick"


TICK_ORIGIN = _TickOrigin()
