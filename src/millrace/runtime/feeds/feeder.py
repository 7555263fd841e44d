"""Sends one partition of a micro-batch to the tasks of a DataFrame spout, and waits until the topology has acked it.

It runs where Spark runs the partition. The tasks may move or die meanwhile: the feeder asks the master for their places and
resends unacked batches there. Every wait has a time limit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
import zmq

from millrace.config import FRAME_LIMIT
from millrace.control.feeding import FEED_WINDOW, FeedAddress, Receivers, SendWindow
from millrace.control.topology_status import PAUSED, STARTING, STOPPING, WAITING
from millrace.errors import FeedingFailed, WireError
from millrace.runtime.feeds.messages import Push, Refused, Returned, read_feed_answer
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch
from millrace.runtime.wire.transport import Keys, boot_id, reached_by_ipc, visit

ASK_SECONDS = 0.5  # between requests to the master while nothing is acked
RETURNED_SECONDS = 0.02  # the same while a task has returned a batch: its split is with another one
RESEND_SECONDS = 10.0  # until a batch is resent to the same task: a connection may have lost it or its ack
MASTER_SECONDS = 20.0  # without an answer of the master until an error
TURN_SECONDS = 0.1
HOLDS = (WAITING, STARTING, PAUSED)  # statuses of the topology in which the timeout does not run
ENDS = ("", STOPPING)


@dataclass(frozen=True, slots=True)
class Feeding:
    """Parameters shared by all partitions of a micro-batch. Shipped with the Spark job."""

    master: str
    keys: Keys = field(repr=False)
    topology: str
    component: str
    query: str
    batch: int
    rows: int  # the most that are sent together
    timeout: float  # seconds without any ack until an error
    frame_limit: int = FRAME_LIMIT.default
    splits: int = 0  # of the spout


class Feeder:
    """Feeds one partition: `with Feeder(...) as feeder: feeder.send(batches)`."""

    def __init__(self, feeding: Feeding, partition: int) -> None:
        self._feeding, self._partition = feeding, partition
        self._outbox = SendWindow(FEED_WINDOW)
        self._boot = boot_id()
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._links: dict[str, zmq.Socket[Any]] = {}  # by the feed's ipc address
        self._receivers = Receivers()
        self._stuck = False  # a batch waits for a feed that is not known yet
        self._status = WAITING
        self._master = self._connect(feeding.master, with_keys=True)
        self._asked = float("-inf")  # when the last request to the master was sent
        self._waits_since: float | None = None  # since when an answer of the master is due
        self._acked = time.monotonic()  # of the last ack, or when nothing was unacked

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._context.destroy(linger=0)

    def send(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send all batches; return the number of rows once all are acked. Raises `FeedingFailed`."""
        rows = 0
        for piece, body in self._pieces(batches):
            while self._outbox.full:
                self._turn(TURN_SECONDS)
            digest = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")
            sequence = self._outbox.next_sequence
            split = self._turn_of(sequence) % self._feeding.splits if self._feeding.splits else 0
            push = Push(self._feeding.query, self._feeding.batch, self._partition, sequence, digest, split)
            if self._outbox.empty:
                self._acked = time.monotonic()
            self._outbox.put([wire.encode(push), body])
            rows += piece.num_rows
            self._turn(0)
        while not self._outbox.empty:
            self._turn(TURN_SECONDS)
        return rows

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        """Cut batches to the size of chunks: a batch is one root in the topology, replayed and timed out as a whole."""
        for batch in batches:
            for start in range(0, batch.num_rows, self._feeding.rows):
                yield from self._encoded(batch.slice(start, self._feeding.rows))

    def _encoded(self, piece: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        body = encode_batch(piece)
        if body.size <= self._feeding.frame_limit:
            yield piece, body
        elif piece.num_rows > 1:
            half = piece.num_rows // 2
            yield from self._encoded(piece.slice(0, half))
            yield from self._encoded(piece.slice(half))
        else:
            raise FeedingFailed(f"a row for {self._feeding.component!r} has {body.size} bytes; the limit of a message is "
                                f"{self._feeding.frame_limit}: raise {FRAME_LIMIT.key}, or split the row")

    # -- turns -------------------------------------------------------------------------------------------------------

    def _turn(self, seconds: float) -> None:
        """Send batches for which there is a feed, and handle answers; wait up to `seconds` for one."""
        now = time.monotonic()
        since = now - self._asked
        if ((since >= ASK_SECONDS and (self._stuck or not self._receivers.feeds or self._outbox.silent(now - ASK_SECONDS)))
                or (since >= RETURNED_SECONDS and self._outbox.homeless)):
            self._asked = now
            self._waits_since = self._waits_since or now
            self._master.send(wire.encode(wire.AskFeeds(self._feeding.topology, self._feeding.component)), zmq.NOBLOCK)
        self._send_out(now)
        for socket, _ in self._poller.poll(int(seconds * 1000)):
            self._listen(socket)
        self._check(time.monotonic())

    def _send_out(self, now: float) -> None:
        self._stuck = False
        for sending in self._outbox.unsent():
            feed = self._receivers.feed(self._turn_of(sending.sequence), self._boot)
            if feed is None:
                self._stuck = True
                continue
            try:
                self._link(feed).send_multipart(sending.payload, zmq.NOBLOCK)
            except zmq.Again:  # its queue is full: retry in the next turn
                continue
            sending.target, sending.at = feed.ipc, now

    def _turn_of(self, sequence: int) -> int:
        """The number by which a batch is dealt to a task or a split: the same whenever it is sent."""
        return self._partition + sequence

    def _link(self, feed: FeedAddress) -> zmq.Socket[Any]:
        if feed.ipc not in self._links:
            near = reached_by_ipc(self._boot, feed.boot, feed.ipc, feed.tcp)
            self._links[feed.ipc] = self._connect(feed.ipc if near else feed.tcp, with_keys=not near)
        return self._links[feed.ipc]

    def _connect(self, endpoint: str, with_keys: bool) -> zmq.Socket[Any]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        if with_keys:
            visit(socket, self._feeding.keys)
        socket.connect(endpoint)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _listen(self, socket: zmq.Socket[Any]) -> None:
        while not socket.closed:  # the link to a task that moved is closed
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if socket is self._master:
                    self._located(wire.decode_control(frame))
                else:
                    self._answered(socket, read_feed_answer(frame))
            except WireError:  # not an answer to us
                continue

    def _located(self, message: Any) -> None:
        if not isinstance(message, wire.Feeds):
            return
        now, self._waits_since = time.monotonic(), None
        receivers = self._receivers = Receivers(message.feeds, message.owners)
        self._status = message.status
        if self._status in HOLDS:
            self._acked = now
        self._outbox.look_again(lambda ipc, sequence: receivers.receives(ipc, self._turn_of(sequence)), now - RESEND_SECONDS)
        for ipc in self._links.keys() - {feed.ipc for feed in receivers.feeds}:
            link = self._links.pop(ipc)
            self._poller.unregister(link)
            link.close(linger=0)

    def _answered(self, link: zmq.Socket[Any], answer: Any) -> None:
        if isinstance(answer, Returned):
            for ipc, each in self._links.items():
                if each is link:
                    self._outbox.give_back(answer.sequence, ipc)
            return
        if isinstance(answer, Refused):
            raise FeedingFailed(f"{self._feeding.component!r} cannot emit batch {answer.sequence} of partition "
                                f"{self._partition}: {answer.reason}")
        if self._outbox.acked(answer.sequence):
            self._acked = time.monotonic()

    def _check(self, now: float) -> None:
        feeding = self._feeding
        if self._status in ENDS:
            raise FeedingFailed(f"the topology {feeding.topology!r} has ended, and not all of batch {feeding.batch} is "
                                "processed: it is replayed when the query is restarted")
        if now - self._acked > feeding.timeout and not self._outbox.empty:
            raise FeedingFailed(f"no row of batch {feeding.batch} sent to {feeding.component!r} has been acked for "
                                f"{feeding.timeout:g} s: a bolt may be stuck, or every tuple fails. See the errors in "
                                "`millrace status`")
        if self._waits_since is not None and now - self._waits_since > MASTER_SECONDS:
            raise FeedingFailed(f"the Millrace master at {feeding.master} has not answered for {MASTER_SECONDS:g} s: it "
                                "is not reachable from this host, or has ended")
