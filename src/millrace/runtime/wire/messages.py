"""Frames <-> messages, without any I/O. Everything that crosses a socket is listed here; none of it is pickle.

A message is one msgpack frame; a chunk has a second frame, its body: msgpack rows or an Arrow IPC stream. Decoding is
typed, so a frame that is not exactly one of these messages is a `WireError` and never reaches the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from millrace.control.assignment import Assignment
from millrace.control.feeding import FeedAddress
from millrace.errors import WireError
from millrace.model.cluster import Node
from millrace.state.checkpoint import TaskRecord

ROWS, ARROW, WAVE = 0, 1, 2
BIG_INT = 1  # msgpack extension code: an integer beyond 64 bits, as signed big-endian bytes
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)  # what a frame that someone made up can raise
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, array_like=True, tag_field="type"):
    """`worker` and `generation` say who sent it: a receiver refuses those of a worker that has been given up."""

    worker: int
    generation: int


class Chunk(Message, tag=1, gc=False):
    """Tuples from one task to another; `seq` numbers the chunks of the channel, without gaps."""

    topology: int
    epoch: int
    version: int
    source: int
    source_incarnation: int
    target: int
    target_incarnation: int
    stream: Count
    seq: int
    count: Count
    form: int
    edge: int
    roots: list[int]
    attempt: int
    age: float  # seconds since the oldest of its roots was sent; a time would have to be by everyone's clock


class Credits(Message, tag=2):
    """(topology, source, its incarnation, target, its incarnation, chunks consumed in all) for channels that end at the
    sender."""

    consumed: list[tuple[int, int, int, int, int, int]]


class Acks(Message, tag=3):
    """(root, XOR of chunk ids) pairs for the ackers of one topology at the receiver. `version`: the plan by which the
    sender takes them to be there."""

    topology: int
    version: int
    pairs: list[tuple[int, int]]


class Roots(Message, tag=4):
    """(root, XOR of chunk ids) pairs that a spout task has just sent. Owner: its slot, number and incarnation."""

    topology: int
    version: int
    owner: tuple[int, int, int]
    pairs: list[tuple[int, int]]


class Fails(Message, tag=5):
    """Roots of which a part has failed in user code."""

    topology: int
    version: int
    roots: list[int]


class Verdicts(Message, tag=6):
    """What became of roots, told to the spout task that sent them."""

    topology: int
    owner: int
    owner_incarnation: int
    finished: list[int]
    failed: list[int]


class Probe(Message, tag=7):
    """The channel is full: what of the `seq` chunks sent has arrived? It follows them on the same way, so what is not
    there by now was lost, as when a connection broke. The answer is a credit."""

    topology: int
    source: int
    source_incarnation: int
    target: int
    target_incarnation: int
    seq: int


class Handover(Message, tag=8):
    """The ledger of an acker that has moved to the receiver: (root, sum, its spout if that is known) and failed roots."""

    topology: int
    version: int
    acker: int
    sums: list[tuple[int, int, tuple[int, int, int] | None]]
    failed: list[int]


DataMessage = Chunk | Credits | Acks | Roots | Fails | Verdicts | Probe | Handover


class Hello(msgspec.Struct, array_like=True, tag=10, tag_field="type"):
    """A worker is up. `nonce` tells two processes on one slot apart."""

    slot: Count
    nonce: str
    pid: int
    node: Node
    boot: str  # names the running kernel: equal means the same machine
    executor: str
    data_ipc: Annotated[str, msgspec.Meta(pattern="^ipc://.")]
    data_tcp: Annotated[str, msgspec.Meta(pattern="^(tcp://.+)?$")]
    backup_ipc: str = ""  # where it keeps others' fragments
    backup_tcp: str = ""
    former: int = 0  # generation as which this very process was given up, if it was


class Welcome(msgspec.Struct, array_like=True, tag=11, tag_field="type"):
    """`author`: the master's number. Plans of other authors, which a store may hold, are not for this worker."""

    generation: int
    settings: dict[str, Any]
    author: int = 0
    cluster: str = ""


class Fetch(msgspec.Struct, array_like=True, tag=12, tag_field="type"):
    """A worker's agent asks: is this worker to be the agent of its node, and is there a newer plan than this one?"""

    slot: int
    generation: int
    author: int
    revision: int


class Agency(msgspec.Struct, array_like=True, tag=19, tag_field="type"):
    """You are the agent of your node, or not; and the node's part of the plan, if there is a newer one and it is not to
    be read from a store."""

    agent: bool
    author: int = 0
    revision: int = 0
    part: bytes = b""


class Heartbeat(msgspec.Struct, array_like=True, tag=13, tag_field="type"):
    slot: int
    generation: int
    revision: int  # of the assignment that it has carried out


class Beat(msgspec.Struct, array_like=True, tag=14, tag_field="type"):
    """The master's answer to a heartbeat."""

    generation: int


class Fenced(msgspec.Struct, array_like=True, tag=15, tag_field="type"):
    """You have been given up: drop everything and say hello again."""


class Stop(msgspec.Struct, array_like=True, tag=16, tag_field="type"):
    """End in good order."""


class Report(msgspec.Struct, array_like=True, tag=17, tag_field="type"):
    """Meters of a worker since its last report, and what its spouts have fully processed."""

    slot: int
    generation: int
    revision: int
    at: float  # when it was taken, by the worker's clock
    tasks: list[dict[str, Any]]
    positions: list[tuple[int, int, int]]  # topology, task, position
    in_flight: list[tuple[int, int]]  # topology, tuples
    starting: list[tuple[int, int]]  # topology, tasks that are not initialized yet
    errors: list[dict[str, Any]]
    counters: dict[str, int]
    cpu_seconds: float = 0.0  # of the whole process
    memory_mb: float = 0.0


class Bye(msgspec.Struct, array_like=True, tag=18, tag_field="type"):
    """A worker ended in good order."""

    slot: int
    generation: int


class WaveMark(msgspec.Struct, array_like=True, frozen=True):
    """A wave on its way. Swept along the edges it is the body of a chunk without tuples, in line with the others."""

    kind: str
    wave: int
    wave_epoch: int = 0  # the epoch in which that wave was prepared
    whole: bool = False  # snapshot everything: what deltas would build upon is gone


class Wave(msgspec.Struct, array_like=True, tag=20, tag_field="type"):
    """The master asks these tasks; if it is swept, the spouts among them begin, and the others only say what they have
    done already."""

    topology: int
    epoch: int
    mark: WaveMark
    sweep: bool
    tasks: list[int]


class Waved(msgspec.Struct, array_like=True, tag=21, tag_field="type"):
    """A task has done what a wave asked of it, or says why it cannot."""

    slot: int
    generation: int
    topology: int
    epoch: int
    kind: str
    wave: int
    task: int
    incarnation: int
    record: TaskRecord | None = None
    error: str = ""


class Broken(msgspec.Struct, array_like=True, tag=22, tag_field="type"):
    """Chunks of a channel are missing where none may be."""

    slot: int
    generation: int
    topology: int
    epoch: int
    reason: str


class Query(msgspec.Struct, array_like=True, tag=23, tag_field="type"):
    """What has this task under this key of that state? Without a state: how many keys has it, in each group, in all?"""

    number: int
    topology: int
    task: int
    state: str
    key: Any


class Answer(msgspec.Struct, array_like=True, tag=24, tag_field="type"):
    slot: int
    generation: int
    number: int
    found: bool
    value: Any = None
    error: str = ""


class AskTaps(msgspec.Struct, array_like=True, tag=30, tag_field="type"):
    """A reader of a tap, which may be on any host, asks where its tasks are now."""

    topology: str
    component: str


class Taps(msgspec.Struct, array_like=True, tag=31, tag_field="type"):
    """By task index: name, ipc, tcp and boot of those that can be read. `error`: why there will never be any."""

    places: dict[int, dict[str, str]]
    error: str = ""


class AskFeeds(msgspec.Struct, array_like=True, tag=40, tag_field="type"):
    """A feeder, which may be on any host, asks where the tasks of a DataFrame spout take batches in."""

    topology: str
    component: str


class Feeds(msgspec.Struct, array_like=True, tag=41, tag_field="type"):
    """Those that there are now, and the topology's status; empty if it is not running any more."""

    status: str
    feeds: list[FeedAddress]


ControlMessage = (Hello | Welcome | Fetch | Agency | Heartbeat | Beat | Fenced | Stop | Report | Bye | Wave | Waved | Broken
                  | Query | Answer | AskTaps | Taps | AskFeeds | Feeds)

_part_decoder = msgspec.msgpack.Decoder(Assignment)
_data_decoder = msgspec.msgpack.Decoder(DataMessage)
_control_decoder = msgspec.msgpack.Decoder(ControlMessage)
_mark_decoder = msgspec.msgpack.Decoder(WaveMark)


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode_part(part: Any) -> Assignment:
    """A node's part of the plan, as it is kept in the stores."""
    try:
        return _part_decoder.decode(part)
    except UNREADABLE as error:
        raise WireError(f"a plan of {len(part)} bytes cannot be read: {error}") from None


def decode_data(frame: Any) -> DataMessage:
    """A message of the data port; `WireError` if it is anything else."""
    try:
        return _data_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a data frame of {len(frame)} bytes is not a Millrace message: {error}") from None


def decode_control(frame: Any) -> ControlMessage:
    try:
        return _control_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a control frame of {len(frame)} bytes is not a Millrace message: {error}") from None


def decode_mark(body: Any) -> WaveMark:
    try:
        return _mark_decoder.decode(body)
    except UNREADABLE as error:
        raise WireError(f"a body of {len(body)} bytes is not a wave: {error}") from None


def encode_rows(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows as msgpack. Integers of any size travel: those beyond 64 bits as an extension."""
    try:
        return _encoder.encode(rows)
    except OverflowError:
        return _encoder.encode(_wrap_big(rows))


def _wrap_big(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if isinstance(value, list | tuple):
        return [_wrap_big(item) for item in value]
    if isinstance(value, dict):
        return {_wrap_big(key): _wrap_big(item) for key, item in value.items()}
    return value


def _unwrap(code: int, data: memoryview) -> Any:
    if code != BIG_INT:
        raise ValueError(f"unknown extension {code}")
    return int.from_bytes(data, "big", signed=True)


def row_decoder(row_type: Any) -> msgspec.msgpack.Decoder[Any]:
    """Decodes the body of a chunk into a list of `row_type`, the named tuple of its stream."""
    return msgspec.msgpack.Decoder(list[row_type], ext_hook=_unwrap)


_value_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=_unwrap)


def through_the_wire(values: Sequence[Any]) -> list[Any]:
    """Values as they look on the other side: what is handed over inside a worker must not differ, nor be shared."""
    return _value_decoder.decode(encode_rows(values))


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_batch(body: Any) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(body) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)  # 4 µs for 1,000 texts; a wrong offset in it would take the whole process down
        return batch
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise WireError(f"a body of {len(body)} bytes is not an Arrow batch: {error}") from None
