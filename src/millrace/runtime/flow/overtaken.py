"""Input of a task that a wave has overtaken: chunks sent before the wave and not processed when the task took its snapshot."""

from __future__ import annotations

import msgspec

from millrace.errors import CorruptCheckpoint, EncodingError
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.flow.channel import Delivery, Inlet, Lineage
from millrace.runtime.meters import RESTORED
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch
from millrace.state.checkpoint import InFlightStream, stream_to
from millrace.state.packing import pack_value, unpack_value


class SavedChunk(msgspec.Struct, array_like=True, frozen=True):
    """A chunk, or the rest of one, as it is saved. `packed`: rows in the format of state, because they were never encoded for
    the wire."""

    component: str  # of the task that sent it
    index: int
    stream: str
    form: int
    count: int
    packed: bool
    body: bytes


class Overtaken:
    """Collects chunks in the order in which the task would process them. They are encoded at once: the task goes on to process
    them, and may change their values. `missing`: sources whose mark of the wave has not come."""

    def __init__(self, mark: wire.WaveMark, missing: set[int], graph: TopologyGraph) -> None:
        self.mark, self.missing = mark, missing
        self._graph = graph
        self.chunks: list[SavedChunk] = []
        self.error = ""  # why a chunk could not be saved

    def arrived(self, delivery: Delivery) -> None:
        """Save a chunk that has just arrived if it was sent before the wave."""
        if delivery.inlet.source in self.missing:
            self.save(delivery)

    def save(self, delivery: Delivery) -> None:
        source = self._graph.task(delivery.inlet.source)
        packed = delivery.local and delivery.form != wire.ARROW
        try:
            body = pack_value(list(map(list, delivery.body))) if packed else _encoded(delivery)
        except EncodingError as error:
            self.error = f"a chunk from {source} cannot be saved with the wave: {error}"
            return
        self.chunks.append(SavedChunk(*source, delivery.stream, delivery.form, delivery.count, packed, body))

    def streams(self, component: str) -> list[InFlightStream]:
        """The streams of the chunks, which are input of this component."""
        read = {stream_to(self._graph, component, chunk.component, chunk.stream) for chunk in self.chunks}
        return sorted(stream for stream in read if stream is not None)

    def packed(self) -> bytes:
        return wire.encode(self.chunks)


def _encoded(delivery: Delivery) -> bytes:
    return encode_batch(delivery.body).to_pybytes() if delivery.local else bytes(delivery.body)


_decoder = msgspec.msgpack.Decoder(list[SavedChunk])


def unpacked(data: bytes, graph: TopologyGraph, target: TaskId) -> list[Delivery]:
    """The chunks of `Overtaken.packed`, to be processed by the target. No credit is owed for them: their channels are gone. The
    topology has been checked to have their streams."""
    try:
        chunks = _decoder.decode(data)
    except wire.UNREADABLE as error:
        raise CorruptCheckpoint(f"the {len(data)} bytes of tuples in flight to {target} are undamaged but cannot be read: "
                                f"{error}. Were they written by another version of Millrace?") from error
    return [_delivery(chunk, graph) for chunk in chunks]


def _delivery(chunk: SavedChunk, graph: TopologyGraph) -> Delivery:
    streams = tuple(stream.name for stream in graph.component(chunk.component).outputs)
    inlet = Inlet(graph.number(TaskId(chunk.component, chunk.index)), 0, chunk.component, streams, -1, None)
    body = list(map(tuple, unpack_value(chunk.body))) if chunk.packed else chunk.body
    delivery = Delivery(inlet, inlet.streams.index(chunk.stream), body, chunk.count, chunk.form, chunk.packed, 0,
                        Lineage((), 0, 0.0, RESTORED))
    delivery.more = True
    return delivery
