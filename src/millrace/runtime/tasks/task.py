"""One running task: its component from the first attempt to start it, its part in waves, and what it sends. What only bolts
or only spouts do is in bolt_task.py and spout_task.py.

Work is done in two steps. *Execute* runs user code and only fills the task's own outbox, so a task that blocks can do
it on a thread of its own. *Settle* routes and sends what was emitted and settles acks, always on the worker's loop.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.spout import Spout
from millrace.api.tuple import DEFAULT_STREAM, Tuple
from millrace.config import CHUNK_TUPLES, MAX_FAILS
from millrace.control.waves import INIT, PREPARE, ROLLBACK
from millrace.errors import EmitError, EncodingError, StateNotKept
from millrace.model.graph import ComponentDef, TaskId, resolve
from millrace.runtime.flow.channel import Channel, Delivery
from millrace.runtime.flow.routing import rows_of
from millrace.runtime.meters import Meters
from millrace.runtime.tasks.outbox import Group, Outbox
from millrace.runtime.tasks.output import BOLT, HANDLE, SPOUT, Output, fast_emit
from millrace.runtime.tasks.snapshots import Keeper, Snapshot
from millrace.runtime.tasks.user_errors import USER_ERRORS, describe, error_of
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.worker.topology_run import TopologyRun
    from millrace.runtime.worker.worker import Worker

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0  # between attempts to start a component that cannot be initialized
CHUNK_STRETCH = 4  # tuples that were emitted together may overfill a chunk so many times before they are cut up


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
        self.warned = False  # that it keeps state which nothing saves
        self.retiring: float | None = None  # time before which a task that moved away does not end
        self.random = Random()
        self.chunk_tuples: int = CHUNK_TUPLES.of(topology.graph.config)
        self.max_fails: int = MAX_FAILS.of(topology.graph.config)
        self.outbox = Outbox(name, self.definition)
        # For each tuple, or each chunk, a call less than methods of the same names would cost.
        self.emit, self.emit_rows, self.emit_arrow = self.outbox.emit, self.outbox.emit_rows, self.outbox.emit_arrow
        self.waiting = self.outbox.waiting
        self.component: Any = None
        self.commits = self.definition.commits and topology.graph.exactly_once
        self.keeper = Keeper(self)
        self._waves: deque[wire.WaveMark] = deque()  # asked for, and waiting until the task is free
        self._snapshot: Snapshot | None = None  # the one being taken
        self._wave_error: BaseException | None = None
        self._may_take_up = self._loaded_early = False  # a sink throws nothing away before the master says INIT
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
        self._start_error = error_of(self._build_component)

    def _build_component(self) -> None:
        self.component = self._make(anew=True)
        self.initialize()
        for name in self.keeper.replaced():
            text = (f"initialize of {self.name} puts something else in the place of self.{name}, which is keyed state: what is "
                    "kept there is lost with the worker. Use it as it is, or give the attribute another name")
            self.report_error(StateNotKept(text), None)

    def _built(self) -> None:
        self.busy = False
        if self.ended:
            return
        if self._start_error is not None:
            self._start_again()
        elif self.topology.graph.waves:
            self.keeper.load(self._loaded)
        else:
            self._start()

    def _loaded(self, error: BaseException | None) -> None:
        if self.ended:
            return
        self._start_error = error
        if error is not None:
            self._start_again()
        elif self.commits and not self._may_take_up:
            self._loaded_early = True
        else:
            self.on_own_thread(self._take_up, self._taken_up)

    def _take_up(self) -> None:
        self._start_error = error_of(self.keeper.take_up)

    def _taken_up(self) -> None:
        self.busy = False
        if self.ended:
            return
        if self._start_error is not None:
            self._start_again()
        else:
            self.keeper.initialized()
            self._start()

    def _start(self) -> None:
        self.started = True
        self.on_start()
        self.worker.ready(self)

    def _start_again(self) -> None:
        assert self._start_error is not None
        self.worker.errors.start_failed(self, self._start_error)
        if self.topology.graph.waves:
            self.keeper.initialized(describe(self._start_error))
        self.worker.timers.at(self.worker.clock.now() + self._retry_seconds, self.begin)
        self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    def on_start(self) -> None:
        """The component is ready: the rest of the task's own set-up, on the loop."""

    def _make(self, anew: bool) -> Component:
        """A new instance, attached to this task; `anew`: with nothing of what the one before it had."""
        component: Component = resolve(self.definition.code)()
        conf = {"topology.name": self.topology.graph.name, **self.topology.graph.config, **self.definition.config}
        component.topology_name, component.component_name = self.topology.graph.name, self.name.component
        component.task_id, component.task_index, component.parallelism = self.number, self.name.index, self.definition.par
        component.debug, component.storm_conf = bool(conf.get("topology.debug")), conf
        component.context = self.topology.context(self.name)
        component.logger = logging.getLogger(f"millrace.{self.topology.graph.name}.{self.name}")
        component.tracked = self.topology.tracked
        component.exactly_once, component.epoch = self.topology.graph.exactly_once, self.topology.epoch
        component._commits = self.commits
        component._handle = self
        self.keeper.attach(component, anew)
        self._attach_emit(component)
        return component

    def _attach_emit(self, component: Component) -> None:
        """The fast path: as the component's own `emit`, unless its class has another one, and in its handle."""
        default = self.outbox.by_stream.get(DEFAULT_STREAM)
        if default is None or not default.width or default.direct:
            return
        spout = self.definition.kind == "spout"
        default.rebinds.clear()
        self.emit = fast_emit(default, self.outbox.emit, HANDLE, track=spout)
        if type(component).emit in (Bolt.emit, Spout.emit):  # type: ignore[attr-defined]
            vars(component)["emit"] = fast_emit(default, self.outbox.emit, SPOUT if spout else BOLT, track=spout)

    def initialize(self) -> None:
        self.component.initialize(self.component.storm_conf, self.component.context)

    def close(self) -> None:
        if self.started:
            try:
                self.component.close()
            except USER_ERRORS as error:
                self.report_error(error, None)

    # -- what the component calls (TaskHandle) --------------------------------------------------------------------

    def report_metric(self, name: str, value: Any) -> None:
        try:
            wire.encode({name: value})
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self.name} reported a {type(value).__name__} as metric {name!r}, which cannot be encoded "
                                f"({error}). Report a number.") from None
        self.meters.custom[name] = value

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        self.worker.errors.add(self, error, traceback.format_exception(error), tup)

    def ack(self, tup: Tuple | str) -> None:
        raise TypeError("only bolts ack tuples")

    def fail(self, tup: Tuple | str) -> None:
        raise TypeError("only bolts fail tuples")

    # -- waves -----------------------------------------------------------------------------------------------------

    def asked(self, mark: wire.WaveMark, sweep: bool) -> None:
        """The master's word. What has been done is answered again; what is under way, or comes along the edges, is not
        begun twice."""
        if self.keeper.answers_again(mark):
            return
        if mark.kind == INIT:
            self._may_take_up = True
            if self.started:  # others take up what they had at that wave; this one has gone on from there
                self.keeper.answer(mark)
            elif self._loaded_early:
                self._loaded_early = False
                self.on_own_thread(self._take_up, self._taken_up)
        elif mark.kind == ROLLBACK:
            self.give_up_wave(mark.wave)
            self.keeper.answer(mark)
        elif not sweep or self.begins_waves:
            if self.keeper.begins(mark):
                self._waves.append(mark)
                self.worker.ready(self)
        else:  # it comes along the edges; what is held back for an earlier one, which a failure ended, would hold it up
            self.give_up_wave(mark.wave - 1)

    begins_waves = False  # True for spouts: they have no input to wait for

    def give_up_wave(self, wave: int) -> None:
        """The wave is not committed: what was prepared goes with the next one."""
        self._waves = deque(mark for mark in self._waves if mark.wave != wave)

    def take_waves(self) -> bool:
        """Do what was asked for; whether there was anything. The task is neither in user code nor in the midst of a chunk."""
        if not self._waves or not self.started or self.busy:
            return False
        mark = self._waves.popleft()
        if mark.kind == PREPARE:
            self.prepare_wave(mark)
        elif self.commits:
            self.on_own_thread(partial(self._commit, mark), partial(self._committed, mark))
        else:
            self.keeper.committed(mark)
            self.worker.ready(self)
        return True

    def prepare_wave(self, mark: wire.WaveMark) -> None:
        """Everything before the wave has been worked off: snapshot, then pass it on behind what was emitted."""
        if self.topology.broken:
            self.keeper.answer(mark, error=self.topology.broken)
            return
        spoiled = self.keeper.spoiled()
        self.on_own_thread(partial(self._prepare, mark, spoiled), partial(self._prepared, mark, spoiled))

    def _prepare(self, mark: wire.WaveMark, spoiled: set[int]) -> None:
        def prepare() -> None:
            self._snapshot = self.keeper.snapshot(mark, spoiled)

        self.before_wave()
        self._wave_error = error_of(prepare)

    def before_wave(self) -> None:
        """Where the task runs: what the component has kept for later is due now."""

    def _prepared(self, mark: wire.WaveMark, spoiled: set[int]) -> None:
        self.busy = False
        if self.ended:
            return
        self.send_waiting()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            assert self._wave_error is not None
            self.report_error(self._wave_error, None)
            self.keeper.failed(mark, spoiled, describe(self._wave_error))
        else:
            for channel in self.channels.values():
                channel.send_mark(mark)
            self.keeper.save(mark, snapshot)
        self.worker.ready(self)

    def _commit(self, mark: wire.WaveMark) -> None:
        self._wave_error = error_of(lambda: self.component.commit(mark.wave))

    def _committed(self, mark: wire.WaveMark) -> None:
        self.busy = False
        if self.ended:
            return
        if self._wave_error is None:
            self.keeper.committed(mark)
        else:  # the master asks again, and the sink tries again
            self.report_error(self._wave_error, None)
            self.keeper.answer(mark, error=describe(self._wave_error))
        self.worker.ready(self)

    def send_waiting(self) -> None:
        """Send all that has been emitted."""
        raise NotImplementedError

    # -- sending ---------------------------------------------------------------------------------------------------

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
