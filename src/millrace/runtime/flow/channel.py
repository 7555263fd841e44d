"""A channel: the numbered, windowed FIFO from one task to another, inside a worker or over a link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from millrace.errors import EncodingError
from millrace.runtime.clock import Clock
from millrace.runtime.flow.handed_bytes import SAMPLED_CHUNKS, HandedBytes
from millrace.runtime.flow.pace import BOUNDLESS, CALLS
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch, encode_extended, encode_rows, has_plain_columns


class Link(Protocol):
    """A connection to another worker. `send` never blocks: the channels' windows bound its queue."""

    def send(self, frames: list[Any]) -> None: ...


class SendingWorker(Protocol):
    """The worker of a channel's sending task."""

    slot: int
    generation: int
    clock: Clock
    frame_limit: int


class SendingTopology(Protocol):
    """The topology of a channel, under the plan in force."""

    number: int
    epoch: int
    version: int


class ChannelOwner(Protocol):
    """The task that sends into a channel."""

    number: int
    incarnation: int
    blocked: int  # number of full channels
    channels: dict[int, Channel]  # by target

    @property
    def name(self) -> object: ...

    @property
    def worker(self) -> SendingWorker: ...

    @property
    def topology(self) -> SendingTopology: ...

    def unblocked(self) -> None:
        """One of its channels is not full any more."""

    def size_chunks(self) -> None:
        """One of its channels allows more or fewer tuples in flight than before."""


class Receiver(Protocol):
    """A task of the same worker that a channel ends at."""

    @property
    def deliver(self) -> Callable[[Delivery], None]: ...


class Lineage(NamedTuple):
    """The roots that a chunk descends from, how often they have failed before, and when the oldest was sent. `origin`: when a
    tuple that is replayed was sent for the first time, `RESTORED` or `REWOUND`; 0: nothing in it was sent before."""

    roots: tuple[int, ...]
    attempt: int
    birth: float
    origin: float = 0.0


UNTRACKED = Lineage((), 0, 0.0)
UNPLACED = -1  # incarnation of a target that no worker has


class Delivery:
    """A chunk that has arrived, and its progress. Serves as `origin` of its tuples."""

    __slots__ = ("arrived", "body", "component", "count", "done", "edge", "failed", "form", "inlet", "lane", "left", "lineage",
                 "local", "more", "stream", "stream_index", "task")

    def __init__(self, inlet: Inlet, stream_index: int, body: Any, count: int, form: int, local: bool, edge: int,
                 lineage: Lineage, lane: int = 0) -> None:
        self.inlet = inlet
        self.stream_index = stream_index
        self.body, self.count, self.form, self.local = body, count, form, local
        self.edge, self.lineage, self.lane = edge, lineage, lane
        self.component, self.task, self.stream = inlet.component, inlet.source, inlet.streams[stream_index]
        self.arrived = 0.0
        self.left = count  # tuples not yet acked, for bolts that ack by hand; -1: neither acked nor failed
        self.done: set[int] | None = None
        self.failed = False
        self.more = False  # another part of the same chunk follows

    @property
    def key(self) -> str:
        return f"{self.inlet.source:x}.{self.edge or id(self):x}"

    @property
    def extended(self) -> bool:
        """True if its rows may hold decimals, dates or times."""
        if self.form != wire.ARROW:
            return self.form == wire.EXTENDED_ROWS
        return not has_plain_columns(self.body.schema if self.local else pa.ipc.open_stream(self.body).schema)

    def tuple_id(self, index: int) -> str:
        return f"{self.key}:{index}"


class Inlet:
    """The receiving end of a channel: tracks the sequence number and the number of consumed chunks."""

    __slots__ = ("component", "consumed", "incarnation", "next_seq", "outlet", "source", "streams", "worker")

    def __init__(self, source: int, incarnation: int, component: str, streams: tuple[str, ...], worker: int,
                 outlet: Channel | None) -> None:
        self.source, self.incarnation, self.component, self.streams = source, incarnation, component, streams
        self.worker = worker  # slot of the sender, for credits
        self.outlet = outlet  # the sending end, if it is in the same worker
        self.next_seq = 0
        self.consumed = 0


class HeldChunk(NamedTuple):
    """An encoded chunk for a target that is not placed."""

    stream: int
    body: Any
    tuples: int
    form: int
    edge: int
    lineage: Lineage


class Channel:
    """The sending end. `full` when `window` chunks or `allowance` tuples are unconsumed: the task then waits before it runs
    again. The receiver sets the allowance, and the tuples of a `chunk`, by its pace. While the target is not placed, chunks are
    held, so that the task can go on with what is for others."""

    __slots__ = ("_handed", "_held", "_mark", "_marked", "_sent_bytes", "_sizes", "allowance", "chunk", "consumed", "full",
                 "inlet", "link", "local", "owner", "seq", "slot", "target", "target_incarnation", "target_name", "tuples",
                 "unconsumed", "window")

    def __init__(self, owner: ChannelOwner, target: int, target_incarnation: int, target_name: Any, window: int,
                 allowance: int = BOUNDLESS) -> None:
        self.owner, self.target, self.target_incarnation, self.target_name = owner, target, target_incarnation, target_name
        self.window, self.allowance, self.chunk = window, allowance, allowance // CALLS
        self.seq = self.consumed = self.tuples = self.unconsumed = 0
        self._sizes: deque[int] = deque()  # of the unconsumed chunks
        self._mark: wire.HandoverMark | None = None  # the last one sent
        self._marked = 0  # the number of the next chunk when it was sent
        self._held: list[HeldChunk] = []
        self._sent_bytes = 0  # of chunks that were encoded
        self._handed = HandedBytes()
        self.link: Link | None = None
        self.slot: int | None = None
        self.local: Receiver | None = None
        self.inlet: Inlet | None = None
        self.full = False

    def succeed(self, moved: Channel) -> None:
        """Continue where the channel to the target's previous incarnation ended: with its traffic, what the target allows, and
        the chunks that it holds."""
        self.tuples, self.allowance, self.chunk = moved.tuples, moved.allowance, moved.chunk
        self._sent_bytes, self._handed = moved._sent_bytes, moved._handed
        self._held, moved._held = moved._held, []

    @property
    def bytes(self) -> int:
        """Bytes of the tuples sent so far, without headers; of those handed over inside the worker, an estimate."""
        return self._sent_bytes + self._handed.total()

    def credit(self, consumed: int, allowance: int, chunk: int) -> None:
        """Record that the receiver has consumed this many chunks in total, and what it allows from now on."""
        sizes = self._sizes
        while sizes and self.consumed < consumed:
            self.consumed += 1
            self.unconsumed -= sizes.popleft()
        if allowance != self.allowance or chunk != self.chunk:
            self.allowance, self.chunk = allowance, chunk
            if self._in_use():
                self.owner.size_chunks()
        if self.full and self.seq - self.consumed < self.window and self.unconsumed < allowance:
            self.full = False
            if self._in_use():
                self.owner.unblocked()

    @property
    def needed(self) -> int:
        """The least chunk that is worth a call of the receiver; more than its share only if that has fixed costs."""
        return self.chunk if self.chunk > self.allowance // CALLS else 1

    def send_rows(self, stream: int, rows: Any, edge: int, lineage: Lineage, extended: bool = False, lane: int = 0) -> None:
        """`extended`: some values may be decimals, dates or times. `lane`: see `Lane`."""
        if self.local is not None:
            self._hand_over(stream, rows, len(rows), wire.EXTENDED_ROWS if extended else wire.ROWS, edge, lineage, lane)
        elif extended:
            self._send(stream, encode_extended(rows), len(rows), wire.EXTENDED_ROWS, edge, lineage, lane)
        else:
            self._send(stream, encode_rows(rows), len(rows), wire.ROWS, edge, lineage, lane)

    def send_batch(self, stream: int, batch: pa.RecordBatch, edge: int, lineage: Lineage, lane: int = 0) -> None:
        if self.local is not None:
            self._hand_over(stream, batch, batch.num_rows, wire.ARROW, edge, lineage, lane)
        else:
            self._send(stream, encode_batch(batch), batch.num_rows, wire.ARROW, edge, lineage, lane)

    def send_held(self) -> None:
        """Send the chunks that were held while the target was not placed, if it is connected now."""
        if not self._held or (self.local is None and self.link is None):
            return
        held, self._held = self._held, []
        for chunk in held:
            self.tuples -= chunk.tuples  # they were counted when they were held
            self._sent_bytes -= len(chunk.body)
            if self.local is not None:
                self._hand_over(*chunk, local=False)
            else:
                self._send(*chunk)

    def send_mark(self, mark: wire.WaveMark | wire.HandoverMark) -> None:
        """Send a mark behind everything sent so far, even if the channel is full."""
        form = wire.WAVE if isinstance(mark, wire.WaveMark) else wire.HANDOVER
        if self.local is not None:
            self._hand_over(0, mark, 0, form, 0, UNTRACKED)
        else:
            self._send(0, wire.encode(mark), 0, form, 0, UNTRACKED)
            if isinstance(mark, wire.HandoverMark):
                self._mark, self._marked = mark, self.seq

    def probe(self) -> None:
        """Ask the receiver on another worker whether chunks were lost, if the channel is full or the receiver may not have had
        the last hand-over mark. A mark that nothing was sent after goes with it: nothing but the mark has to be sent again."""
        owner = self.owner
        if self.link is not None and (self.full or self.consumed < self._marked):
            self.link.send([wire.encode(wire.Probe(
                owner.worker.slot, owner.worker.generation, owner.topology.number, owner.number, owner.incarnation, self.target,
                self.target_incarnation, self.seq, self._mark if self._marked == self.seq else None))])

    def _hand_over(self, stream: int, body: Any, count: int, form: int, edge: int, lineage: Lineage, lane: int = 0,
                   local: bool = True) -> None:
        """Hand a chunk to a task of the same worker. `local`: its body is not encoded."""
        assert self.local is not None and self.inlet is not None
        seq = self._count(count)
        if not local:
            self._sent_bytes += len(body)
        elif count:
            self._handed.tuples += count
            if not seq % SAMPLED_CHUNKS:
                self._handed.sample(body, count, form)
        self.inlet.next_seq = self.seq
        self.local.deliver(Delivery(self.inlet, stream, body, count, form, local, edge, lineage, lane))

    def _send(self, stream: int, body: Any, count: int, form: int, edge: int, lineage: Lineage, lane: int = 0) -> None:
        owner = self.owner
        limit = owner.worker.frame_limit
        if len(body) > limit:
            raise EncodingError(f"{owner.name} emitted a chunk of {count} tuples and {len(body)} bytes to {self.target_name}; "
                                f"the limit is {limit} bytes. Emit smaller values, or set wire.frame.limit.bytes.")
        seq = self._count(count)
        if count:
            self._sent_bytes += len(body)
        if self.link is not None:
            now, origin = owner.worker.clock.now(), lineage.origin
            header = wire.Chunk(
                owner.worker.slot, owner.worker.generation, owner.topology.number, owner.topology.epoch,
                owner.topology.version, owner.number, owner.incarnation, self.target, self.target_incarnation, stream, seq,
                count, form, edge, list(lineage.roots), lineage.attempt, now - lineage.birth, lane,
                now - origin if origin > 0 else origin, owner.worker.clock.wall())
            self.link.send([wire.encode(header), body])
        elif self.target_incarnation == UNPLACED and count and not lane:  # a lane's groups may get another owner: not held
            self._held.append(HeldChunk(stream, body, count, form, edge, lineage))

    def _count(self, count: int) -> int:
        seq = self.seq
        self.seq = seq + 1
        self.tuples += count
        self.unconsumed += count
        self._sizes.append(count)
        if not self.full and (self.seq - self.consumed >= self.window or self.unconsumed >= self.allowance):
            self.full = True
            if self._in_use():
                self.owner.blocked += 1
        return seq

    def _in_use(self) -> bool:
        """False once a new plan has replaced this channel: it must no longer block its task."""
        return self.owner.channels.get(self.target) is self


class Lane:
    """A channel as key groups use it that are being handed over to its target: the receiver can hold them back alone, and gets
    everything in the order in which it was sent."""

    __slots__ = ("_channel", "_move")

    def __init__(self, channel: Channel, move: int) -> None:
        self._channel, self._move = channel, move

    @property
    def local(self) -> Receiver | None:
        return self._channel.local

    @property
    def target(self) -> int:
        return self._channel.target

    @property
    def unconsumed(self) -> int:
        return self._channel.unconsumed

    @property
    def full(self) -> bool:
        return self._channel.full

    def send_rows(self, stream: int, rows: Any, edge: int, lineage: Lineage, extended: bool = False) -> None:
        self._channel.send_rows(stream, rows, edge, lineage, extended, self._move)

    def send_batch(self, stream: int, batch: pa.RecordBatch, edge: int, lineage: Lineage) -> None:
        self._channel.send_batch(stream, batch, edge, lineage, self._move)


Outlet = Channel | Lane
