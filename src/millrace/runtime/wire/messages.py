"""Messages between workers and the master, and their encoding. No I/O, and no pickle.

A message is one msgpack frame. A chunk has a second frame, its body, see `bodies.py`. Decoding is typed: a frame that is not
exactly one of these messages is a `WireError` and never reaches the engine.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from millrace.control.assignment import Assignment, SplitStart
from millrace.control.feeding import FeedAddress
from millrace.control.migrations import Bucket, Flow
from millrace.control.workers import LongCall
from millrace.errors import WireError
from millrace.model.cluster import Node
from millrace.state.checkpoint import TaskRecord

ROWS, ARROW, EXTENDED_ROWS, WAVE, HANDOVER = range(5)  # forms of a chunk's body; extended: see `bodies.py`
MARKS = WAVE  # this form and those after it carry no tuples
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)  # raised for malformed and forged frames
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31)]  # a message with a larger number is forged
_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, array_like=True, tag_field="type"):
    """`worker` and `generation` identify the sender: receivers refuse messages of a fenced worker."""

    worker: int
    generation: int


class Chunk(Message, tag=1, gc=False):
    """Carries tuples from one task to another; `seq` numbers the chunks of the channel, without gaps."""

    topology: int
    epoch: int
    version: int
    source: int
    source_incarnation: int
    target: int
    target_incarnation: int
    stream: Natural
    seq: int
    count: Natural
    form: int
    edge: int
    roots: list[int]
    attempt: int
    age: float  # seconds since its oldest root was sent: clocks of different hosts cannot be compared
    lane: int = 0  # the move of the key groups that its tuples belong to, if they are being handed over
    origin_age: float = 0.0  # seconds since the origin of its lineage; 0 or below: the origin itself
    sent: float = 0.0  # seconds since 1970: a difference between hosts is as exact as their clocks


class Credits(Message, tag=2):
    """Returns credits for channels that end at the sender: (topology, source, its incarnation, target, its incarnation, total
    of chunks consumed, tuples allowed in flight, tuples of a chunk)."""

    consumed: list[tuple[int, int, int, int, int, int, int, int]]


class Acks(Message, tag=3):
    """Acks chunks: (root, XOR of chunk ids) for the ackers of one topology at the receiver. `version`: the plan by which the
    sender located these ackers."""

    topology: int
    version: int
    pairs: list[tuple[int, int]]


class Roots(Message, tag=4):
    """Announces new roots of a spout task: (root, XOR of chunk ids). `owner`: its slot, number and incarnation."""

    topology: int
    version: int
    owner: tuple[int, int, int]
    pairs: list[tuple[int, int]]


class Fails(Message, tag=5):
    """Reports roots that failed in user code."""

    topology: int
    version: int
    roots: list[int]


class Verdicts(Message, tag=6):
    """Tells a spout task which of its roots are fully processed and which failed."""

    topology: int
    owner: int
    owner_incarnation: int
    finished: list[int]
    failed: list[int]


class Probe(Message, tag=7):
    """Asks the receiver of a channel which of the `seq` chunks sent have arrived. It follows them on the same connection, so
    chunks missing by then are lost. The answer is a credit. `mark`: the last of them, if it is one of a hand-over."""

    topology: int
    source: int
    source_incarnation: int
    target: int
    target_incarnation: int
    seq: int
    mark: HandoverMark | None = None


class LedgerHandover(Message, tag=8):
    """Hands the ledger of an acker over to its new worker: (root, sum, its spout if known) and failed roots."""

    topology: int
    version: int
    acker: int
    sums: list[tuple[int, int, tuple[int, int, int] | None]]
    failed: list[int]


class StatePart(Message, tag=9):
    """A part of a task's state on its way to the task's new incarnation; the state itself is a second frame. `part` numbers
    them. `group`: a key group, or a key of its own, see `tasks/handover/departure.py`. `more`: the same piece continues."""

    topology: int
    epoch: int
    target: int
    target_incarnation: int
    move: int
    part: int
    group: int
    more: bool


DataMessage = Chunk | Credits | Acks | Roots | Fails | Verdicts | Probe | LedgerHandover | StatePart


class Hello(msgspec.Struct, array_like=True, tag=10, tag_field="type"):
    """Registers a worker."""

    slot: Natural
    pid: int
    node: Node
    boot: str  # identifies the running kernel: equal on the same machine
    executor: str
    data_ipc: Annotated[str, msgspec.Meta(pattern="^ipc://.")]
    data_tcp: Annotated[str, msgspec.Meta(pattern="^(tcp://.+)?$")]
    backup_ipc: str = ""  # of its fragment exchange
    backup_tcp: str = ""
    former: int = 0  # the generation under which this process was fenced, if it was


class Welcome(msgspec.Struct, array_like=True, tag=11, tag_field="type"):
    """Accepts a worker. `author`: the master's number. The worker ignores plans of other authors in the store."""

    generation: int
    settings: dict[str, Any]
    author: int = 0
    cluster: str = ""

    def __repr__(self) -> str:  # without the settings, whose URLs may have passwords
        return f"Welcome({self.generation}, author={self.author}, cluster={self.cluster!r})"


class Fetch(msgspec.Struct, array_like=True, tag=12, tag_field="type"):
    """Polls the master: is this worker the agent of its node, and is there a newer plan than this one? `links`: measured since
    the last poll, as node, seconds there and back, and bytes per second."""

    slot: int
    generation: int
    author: int
    revision: int
    links: list[tuple[str, float, float]] = []


class Agency(msgspec.Struct, array_like=True, tag=19, tag_field="type"):
    """Answers `Fetch`. `part`: the node's part of a newer plan, unless the plans are in an external store. `target`: the node
    to which the link is to be measured now, if any, with the `endpoints` of its workers. `agent_poll` and `worker_poll`:
    seconds between polls from now on."""

    agent: bool
    author: int = 0
    revision: int = 0
    part: bytes = b""
    target: str = ""
    endpoints: list[str] = []
    agent_poll: float = 0.0  # 0: as it is
    worker_poll: float = 0.0


class Heartbeat(msgspec.Struct, array_like=True, tag=13, tag_field="type"):
    """Shows that a worker is alive."""

    slot: int
    generation: int
    revision: int  # of the assignment in effect
    long_calls: list[LongCall] = []


class Beat(msgspec.Struct, array_like=True, tag=14, tag_field="type"):
    """Answers a heartbeat."""

    generation: int


class Fenced(msgspec.Struct, array_like=True, tag=15, tag_field="type"):
    """Tells a worker that it was presumed dead: it must drop everything and register again. With a `reason` it was given up:
    its process must end."""

    reason: str = ""


class Stop(msgspec.Struct, array_like=True, tag=16, tag_field="type"):
    """Tells a worker to end cleanly."""


class TopologyReport(msgspec.Struct, array_like=True):
    """The meters of one topology in a worker, see `TopologyMeters`: the buckets of its sinks since the last report, by the
    worker's clock; chunks lost and repeated, and tuples replayed, since the worker joined."""

    topology: int
    buckets: list[Bucket]
    flow: Flow


class Report(msgspec.Struct, array_like=True, tag=17, tag_field="type"):
    """Reports the meters of a worker and the positions of its spouts."""

    slot: int
    generation: int
    revision: int
    at: float  # time of the report by the worker's clock
    tasks: list[dict[str, Any]]
    positions: list[tuple[int, int, int]]  # topology, number of the task or split, position
    in_flight: list[tuple[int, int]]  # topology, tuples
    starting: list[tuple[int, int]]  # topology, tasks that are not initialized yet
    errors: list[dict[str, Any]]
    counters: dict[str, int]
    cpu_seconds: float = 0.0  # of the whole process
    memory_mb: float = 0.0
    topologies: list[TopologyReport] = []
    hosted: int = 0  # tasks here, of all topologies, including those that leave or arrive
    reached: list[tuple[int, int, int]] = []  # topology, task or split, position before which it has sent everything
    ackers: list[dict[str, Any]] = []  # as `tasks`; waves do not pass them
    machine_cpu_seconds: float = 0.0  # of all processes that share its cores
    loop_seconds: float = 0.0  # in which the worker's loop was not waiting for anything to do
    turns: str = ""  # durations of the turns of the loop since the last report: a `LatencyHistogram`, encoded
    collector_pauses: str = ""  # pauses for the garbage collector, likewise

    def executed(self) -> tuple[tuple[int, int, int, bool], ...]:
        """Topology, task, tuples processed, and whether the current wave has passed the task, of every task."""
        return tuple((task["topology"], task["task"], task["executed"], bool(task.get("passed"))) for task in self.tasks)


class Bye(msgspec.Struct, array_like=True, tag=18, tag_field="type"):
    """Reports that a worker ends, with the error if it did not end cleanly."""

    slot: int
    generation: int
    error: str = ""


class WaveMark(msgspec.Struct, array_like=True, frozen=True):
    """Identifies a wave. A wave that sweeps along the edges travels as the body of a chunk without tuples, in sequence."""

    kind: str
    wave: int
    wave_epoch: int = 0  # the epoch in which the wave was prepared
    whole: bool = False  # snapshot everything: the base of deltas is gone
    overtakes: bool = False  # snapshot before queued input, and save that with the snapshot
    captures: bool = False  # process nothing after the snapshot
    dropped: int = 0  # waves up to this number are over, committed or not


class HandoverMark(msgspec.Struct, array_like=True, frozen=True):
    """Cuts a channel at a move. MOVE: the receiver, or its key groups that move, get nothing more from this sender. END: the
    sender, or its key groups that move, send nothing more. START: the sender begins to send what was another's, the task and
    incarnation named here."""

    kind: str
    move: int
    task: int = 0
    incarnation: int = 0
    slot: int = -1
    generation: int = 0


MOVE, END, START = "move", "end", "start"


class Wave(msgspec.Struct, array_like=True, tag=20, tag_field="type"):
    """Requests a wave from tasks. With `sweep`, the spouts among them start it, and the others only repeat answers they have
    already given."""

    topology: int
    epoch: int
    mark: WaveMark
    sweep: bool
    tasks: list[int]


class Waved(msgspec.Struct, array_like=True, tag=21, tag_field="type"):
    """Answers a wave: a task has done its part, or reports an error."""

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
    """Reports lost chunks in an exactly-once topology."""

    slot: int
    generation: int
    topology: int
    epoch: int
    reason: str


class Armed(msgspec.Struct, array_like=True, tag=27, tag_field="type"):
    """Reports that the new incarnation of a task has the state of `wave`, or why it cannot be made. `starts`: as in
    `MoveArmed`."""

    slot: int
    generation: int
    topology: int
    epoch: int
    move: int
    wave: int
    copied_bytes: int = 0
    error: str = ""
    starts: dict[int, SplitStart] = {}


class Taken(msgspec.Struct, array_like=True, tag=28, tag_field="type"):
    """Reports that the new incarnation of a task has taken over, or why it cannot. `pause`: seconds without the time in which
    the state was on its way. `stopped_at`: time when the old one stopped, by the clock of its worker, `source`. `copied_bytes`:
    of the state of a wave, as in `Armed`; it may be copied only after the switch."""

    slot: int
    generation: int
    topology: int
    epoch: int
    move: int
    delta_bytes: int = 0
    pause: float = 0.0
    error: str = ""
    source: int = 0
    stopped_at: float = 0.0
    taken_at: float = 0.0
    copied_bytes: int = 0


class Query(msgspec.Struct, array_like=True, tag=23, tag_field="type"):
    """Asks a task for the value of a key in a state; without a state, for the number of keys in each state."""

    number: int
    topology: int
    task: int
    state: str
    key: Any


class Answer(msgspec.Struct, array_like=True, tag=24, tag_field="type"):
    """Answers a query."""

    slot: int
    generation: int
    number: int
    found: bool
    value: Any = None
    error: str = ""


class TryStore(msgspec.Struct, array_like=True, tag=25, tag_field="type"):
    """Asks a worker whether it sees the mark with this token in the checkpoint store."""

    token: str


class StoreTried(msgspec.Struct, array_like=True, tag=26, tag_field="type"):
    """Answers `TryStore`. `error`: why this worker does not share the store; empty if it does."""

    slot: int
    generation: int
    token: str
    error: str = ""


class AskTaps(msgspec.Struct, array_like=True, tag=30, tag_field="type"):
    """Asks for the places of a tap's tasks; sent by a reader on any host."""

    topology: str
    component: str


class Taps(msgspec.Struct, array_like=True, tag=31, tag_field="type"):
    """Answers `AskTaps`. By task index: name, ipc, tcp and boot. `error`: why there will never be any."""

    places: dict[int, dict[str, str]]
    error: str = ""


class AskFeeds(msgspec.Struct, array_like=True, tag=40, tag_field="type"):
    """Asks for the feeds of a DataFrame spout's tasks; sent by a feeder on any host."""

    topology: str
    component: str


class Feeds(msgspec.Struct, array_like=True, tag=41, tag_field="type"):
    """Answers `AskFeeds` with the current feeds and the topology's status; empty if it no longer runs. `owners`: if the spout
    has splits, the index of the feed of each split's owner, or -1 if there is none yet."""

    status: str
    feeds: list[FeedAddress]
    owners: list[int] = []


ControlMessage = (Hello | Welcome | Fetch | Agency | Heartbeat | Beat | Fenced | Stop | Report | Bye | Wave | Waved | Broken
                  | Armed | Taken | Query | Answer | TryStore | StoreTried | AskTaps | Taps | AskFeeds | Feeds)

_part_decoder = msgspec.msgpack.Decoder(Assignment)
_data_decoder = msgspec.msgpack.Decoder(DataMessage)
_control_decoder = msgspec.msgpack.Decoder(ControlMessage)
_mark_decoder = msgspec.msgpack.Decoder(WaveMark)
_handover_decoder = msgspec.msgpack.Decoder(HandoverMark)


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode_part(part: Any) -> Assignment:
    """Decode a node's part of the plan, as the stores keep it."""
    try:
        return _part_decoder.decode(part)
    except UNREADABLE as error:
        raise WireError(f"a plan of {len(part)} bytes cannot be read: {error}") from None


def decode_data(frame: Any) -> DataMessage:
    """Decode a message of the data port; `WireError` if it is anything else."""
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


def decode_handover(body: Any) -> HandoverMark:
    try:
        return _handover_decoder.decode(body)
    except UNREADABLE as error:
        raise WireError(f"a body of {len(body)} bytes is not a mark of a hand-over: {error}") from None
