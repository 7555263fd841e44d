"""Input of a bolt: chunks that wait, the inlets they came through, wave alignment, and credits owed to senders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from millrace.runtime.flow.channel import UNTRACKED, Delivery, Inlet
from millrace.runtime.flow.overtaken import Overtaken
from millrace.runtime.tasks.checkpointing.alignment import Alignment
from millrace.runtime.tasks.handover.succession import Incarnation, Succession
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask

HELD_BYTES = 64 << 20  # that a bolt may get before it has taken over, until its senders have to wait
HELD_TUPLES = 200_000  # tuples a bolt may leave unacked, or get before it has taken over, until its senders have to wait
MEASURED_ROWS = 8  # of a chunk, about
NOWHERE = Inlet(-1, 0, "", ("",), -1, None)


class Cut(Delivery):
    """Takes the place of a chunk in the queue: when it is its turn, the state of key groups that move is complete."""

    def __init__(self, move: int) -> None:
        super().__init__(NOWHERE, 0, move, 0, wire.HANDOVER, True, 0, UNTRACKED)


class Inbox:
    """Queues the chunks for one bolt. A wave mark takes its place in the queue when it has come on every channel: behind all
    chunks sent before it and ahead of those held back. A wave that overtakes does not queue: chunks sent before it are saved,
    those that wait and those that still arrive before its mark."""

    def __init__(self, task: BoltTask) -> None:
        graph = task.topology.graph
        self._task, self._worker = task, task.worker
        self.waiting: deque[Delivery] = deque()
        self.inlets: dict[tuple[int, int], Inlet] = {}  # by source task and its incarnation
        self.alignment = Alignment(map(graph.number, graph.upstream(task.name.component)))
        self._owed: deque[Inlet] = deque()  # credits withheld while too many tuples are unacked
        self.succession = Succession()
        self.moved: dict[int, set[Incarnation]] = {}  # by move: senders that send nothing more of what moves
        self.taken_lanes: set[int] = set()  # moves of key groups that this task has taken over
        self._past = 0  # moves with a lower number have ended
        self._lanes: dict[int, deque[Delivery]] = {}  # input for key groups whose state has not come yet, by move
        self.early = False  # the task has not taken over yet: input waits, and is credited all the same
        self._early_tuples = self._early_bytes = 0
        self._lane_bytes: Counter[int] = Counter()  # by move

    def deliver(self, delivery: Delivery) -> None:
        task = self._task
        if task.ended:
            return
        delivery.arrived = self._worker.clock.now()
        if self.succession.held and self.succession.holds(delivery):
            return
        if delivery.lane and delivery.lane not in self.taken_lanes and delivery.lane >= self._past:
            self._lanes.setdefault(delivery.lane, deque()).append(delivery)
            self._lane_bytes[delivery.lane] += self._credit_early(delivery)
            return
        if delivery.form >= wire.MARKS:
            if delivery.form == wire.WAVE:
                self._on_mark(delivery)
            else:
                self._on_handover(delivery)
            return
        if self.alignment.mark is not None and self.alignment.holds(delivery.inlet.source):
            self.alignment.ahead.append(delivery)
            return
        if task.waves.overtaken is not None:
            task.waves.overtaken.arrived(delivery)
        self.waiting.append(delivery)
        if self.early:
            self._credit_early(delivery)
        if not task.queued:
            self._worker.ready(task)

    def take(self, most: int) -> Delivery:
        """The next chunk, or a part of it if it has more than `most` tuples. A tracked chunk is acked whole, so it stays whole:
        its spout bounds it."""
        delivery = self.waiting.popleft()
        if delivery.count <= most or delivery.lineage.roots:
            return delivery
        try:
            part, rest = self._task.reader.cut(delivery, most)
        except wire.WireError:
            return delivery  # its execution reports what is wrong
        self.waiting.appendleft(rest)
        return part

    def put_back(self, chunks: Sequence[Delivery]) -> None:
        """Queue chunks that the wave just restored had overtaken: all others were sent after them."""
        for delivery in chunks:
            delivery.arrived = self._worker.clock.now()
        self.waiting.extendleft(reversed(chunks))

    # -- waves ---------------------------------------------------------------------------------------------------------

    def _on_mark(self, delivery: Delivery) -> None:
        alignment = self.alignment
        self._worker.consumed(self._task, delivery.inlet)
        try:
            mark = delivery.body if delivery.local else wire.decode_mark(delivery.body)
        except wire.WireError as error:
            self._unreadable_mark(error)
            return
        if self._task.waves.passes(mark, delivery.inlet.source):
            return
        if alignment.is_late(mark):
            return
        if alignment.is_other(mark):
            self._release()
        if alignment.passes(mark, delivery.inlet.source):
            delivery.body = mark
            self.waiting.append(delivery)
            self._release()

    def take_senders(self) -> None:
        """Expect waves from the senders of the current graph. One that has retired has sent everything, so a wave that waits
        for it alone passes now."""
        graph, alignment, waves = self._task.topology.graph, self.alignment, self._task.waves
        alignment.sources = frozenset(map(graph.number, graph.upstream(self._task.name.component)))
        self.inlets = {key: inlet for key, inlet in self.inlets.items() if graph.find(key[0]) is not None}
        if alignment.complete:
            assert alignment.mark is not None
            self.waiting.append(Delivery(NOWHERE, 0, alignment.mark, 0, wire.WAVE, True, 0, UNTRACKED))
            self._release()
        waves.await_only(alignment.sources)

    def _unreadable_mark(self, error: wire.WireError) -> None:
        self._worker.counters["malformed"] += 1
        if self._task.topology.graph.exactly_once:  # a chunk that came as a mark is missing
            self._worker.broken(self._task, f"{self._task.name} could not read its input ({error})")

    def _release(self) -> None:
        """Queue the chunks that alignment held back."""
        for delivery in self.alignment.release():
            self.deliver(delivery)
        self._worker.ready(self._task)

    def overtake(self, mark: wire.WaveMark) -> Overtaken | None:
        """Let the wave pass the chunks that wait, and save them; None if it has passed here already, or was abandoned."""
        queued = next((delivery for delivery in self.waiting
                       if delivery.form == wire.WAVE and delivery.body.wave == mark.wave), None)
        if queued is None and self.alignment.is_late(mark):
            return None
        missing = self.alignment.overtake(mark) if queued is None else set()
        overtaken = Overtaken(mark, missing, self._task.topology.graph)
        for delivery in takewhile(lambda delivery: delivery is not queued, self.waiting):
            overtaken.save(delivery)
        if queued is None:
            self._release()
        else:  # it has come on every channel, and nothing is held back
            self.waiting.remove(queued)
        return overtaken

    def abandon_wave(self, wave: int) -> None:
        """Drop the marks of this wave and of earlier ones."""
        if self.alignment.mark is not None and self.alignment.mark.wave <= wave:
            self._release()
        self.alignment.abandon(wave)
        self.waiting = deque(delivery for delivery in self.waiting
                             if delivery.form != wire.WAVE or delivery.body.wave > wave)

    # -- hand-over -----------------------------------------------------------------------------------------------------

    def _on_handover(self, delivery: Delivery) -> None:
        inlet = delivery.inlet
        self._worker.consumed(self._task, inlet)
        try:
            mark = delivery.body if delivery.local else wire.decode_handover(delivery.body)
        except wire.WireError as error:
            self._unreadable_mark(error)
            return
        if mark.kind == wire.START:
            self.succession.start(inlet, mark)
            self.end_lost()
        elif mark.kind == wire.END:
            self.end(inlet, mark.move)
        else:
            if mark.move >= self._past:
                self.moved.setdefault(mark.move, set()).add((inlet.source, inlet.incarnation))
            if (departure := self._task.group_departures.get(mark.move)) is not None:
                departure.check()
        self._worker.ready(self._task)

    def end(self, inlet: Inlet, move: int) -> None:
        """The sender will send nothing more of what moves: what its successor has sent is due."""
        self._deliver_all(self.succession.end(inlet, move, self._past))

    def forget_moves(self, past: int) -> None:
        """Forget moves with a lower number, which have ended: their lanes, if any, were taken over."""
        self._past = past
        self.taken_lanes = {move for move in self.taken_lanes if move >= past}
        self.moved = {move: senders for move, senders in self.moved.items() if move >= past}

    def cut(self, move: int) -> None:
        """Queue the cut of key groups behind all input."""
        self.waiting.append(Cut(move))
        self._worker.ready(self._task)

    def take_lane(self, move: int) -> None:
        """Queue the input for key groups that the task has taken over."""
        self.taken_lanes.add(move)
        lane = self._lanes.pop(move, deque())
        self._early_tuples -= sum(delivery.count for delivery in lane)
        self._early_bytes -= self._lane_bytes.pop(move, 0)
        self._deliver_all(lane)

    def end_of(self, inlet: Inlet) -> None:
        """Wait no longer for any end of this sender: it may be among chunks that were lost."""
        if self.succession.held:
            self._deliver_all(chain.from_iterable(self.succession.end_of((inlet.source, inlet.incarnation))))

    def end_lost(self) -> None:
        """Wait no longer for senders that were lost before their end had come: some of their last chunks may be missing."""
        if self.succession.held and (released := self.succession.end_lost(self._worker.is_lost)):
            if self._task.topology.graph.exactly_once:
                self._worker.broken(self._task, "a worker was lost that had handed over a sender of "
                                    f"{self._task.name}, whose last chunks had not come")
            self._deliver_all(chain.from_iterable(released))

    def _deliver_all(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.deliver(delivery)

    def taken_over(self) -> None:
        """Credit input when it is processed from now on. What came before does not count when key groups move here later."""
        self.early = False
        self._early_tuples = self._early_bytes = 0

    def _credit_early(self, delivery: Delivery) -> int:
        """Credit a chunk on arrival, or else a full channel would stop its sender, which has other receivers, too. Returns its
        size in bytes."""
        size = _size(delivery)
        self._early_tuples += delivery.count
        self._early_bytes += size
        if self._early_tuples <= HELD_TUPLES and self._early_bytes <= HELD_BYTES:
            delivery.more = True  # no credit is due when it is processed
            self._worker.consumed(self._task, delivery.inlet)
        return size

    def forgotten(self, source: int, incarnation: int) -> bool:
        """True if the task has no inlet for this incarnation of a sender, has some for later ones, and does not wait for its
        end."""
        return (source, incarnation) not in self.inlets and not self.succession.awaits((source, incarnation)) and any(
            number == source and later > incarnation for number, later in self.inlets)

    # -- credits -------------------------------------------------------------------------------------------------------

    def owe(self, inlet: Inlet) -> None:
        """A chunk of this inlet has been processed."""
        self._owed.append(inlet)
        self.pay()

    def pay(self) -> None:
        """Return credits, unless the bolt has too many unacked tuples or no room: then its senders wait."""
        owed = self._owed
        while owed and self._task.acks.unacked.tuples < HELD_TUPLES and self._task.component._takes_more():
            self._worker.consumed(self._task, owed.popleft())

    def allowance(self) -> tuple[int, int]:
        """The tuples that one sender may have in flight to this bolt, and in a chunk: its share of what the bolt can take."""
        return self._task.pace.share(len(self.inlets) or 1, self._task.needed, self._waiting_tuples)

    def _waiting_tuples(self) -> int:
        return sum(delivery.count for delivery in self.waiting)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.alignment.ahead or self.succession.held or self._lanes)

    @property
    def tuples(self) -> int:
        return (self._waiting_tuples() + sum(delivery.count for delivery in self.alignment.ahead)
                + self.succession.tuples + sum(delivery.count for lane in self._lanes.values() for delivery in lane))

    def clear(self) -> None:
        self.waiting.clear()
        self.alignment.release()


def _size(delivery: Delivery) -> int:
    """Bytes of a chunk as it came from another worker, or in memory if it came from this one.

    Some rows stand for many, because measuring a row takes longer than processing it.
    """
    body = delivery.body
    if not delivery.local:
        return len(body)
    if delivery.form == wire.ARROW:
        return int(body.nbytes)
    some = body[::len(body) // MEASURED_ROWS | 1]  # an odd step, so that rows which take turns are both measured
    return _memory(some) * len(body) // len(some)


def _memory(values: Iterable[Any]) -> int:
    """Bytes of values and of everything in them."""
    size = 0
    for value in values:
        size += getsizeof(value)
        if isinstance(value, list | tuple | set | frozenset):
            size += _memory(value)
        elif isinstance(value, dict):
            size += _memory(chain(value, value.values()))
    return size
