"""The feed of a DataFrame spout's task: sockets that receive batches from Spark, read when the spout is asked for tuples.

A spout that may not emit, because of back-pressure or a pause, reads nothing: at most the unacked windows of its feeders wait.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import zmq

from millrace.api.dataframe import TaskFeed
from millrace.config import FRAME_LIMIT
from millrace.control.feeding import DONE, FEED, FEED_WINDOW, NEW, FeedAddress, Intake, Key
from millrace.errors import MillraceError, WireError
from millrace.runtime.feeds.messages import Done, FeedAnswer, Push, Refused, Returned, read_push
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import decode_batch
from millrace.runtime.wire.transport import Keys, bind_tcp, serve

log = logging.getLogger("millrace.worker")
PUSHES_PER_TURN = 64  # read in one call while none of them is new

FeedSender = tuple[zmq.Socket[Any], bytes]


class NoFeeds:
    """For a worker without sockets, as in tests: it cannot be fed."""

    def open(self, name: str, tell: Callable[[str, Any], None]) -> TaskFeed:
        raise MillraceError("a spout made by Spout.from_dataframe needs workers that Spark can reach: run its topology on a "
                            "ResidentEngine")


class SocketFeeds:
    """The feeds of one worker's spouts."""

    def __init__(self, context: zmq.Context[Any], directory: Path, bind: str, keys: Keys, boot: str,
                 counters: Counter[str], frame_limit: int = FRAME_LIMIT.default) -> None:
        self._context, self._directory, self._bind, self._keys, self._boot = context, directory, bind, keys, boot
        self._counters, self._frame_limit = counters, frame_limit
        self._open: dict[str, SocketFeed] = {}

    def open(self, name: str, tell: Callable[[str, Any], None]) -> SocketFeed:
        """Open the feed of a task and tell its address. The feed of an earlier attempt to start the task is closed."""
        if name in self._open:
            self._open.pop(name).close()
        sockets = [self._socket()]
        path = self._directory / f"f{uuid.uuid4().hex[:16]}.ipc"
        tcp = ""
        try:
            sockets[0].bind(f"ipc://{path}")
            if self._bind:
                sockets.append(self._socket())
                serve(sockets[1], self._keys)
                tcp = bind_tcp(sockets[1], self._bind)
        except (MillraceError, zmq.ZMQError):
            for socket in sockets:
                socket.close(linger=0)
            raise
        feed = self._open[name] = SocketFeed(sockets, path, self._counters)
        tell(FEED, FeedAddress(f"ipc://{path}", tcp, self._boot))
        return feed

    def _socket(self) -> zmq.Socket[Any]:
        socket = self._context.socket(zmq.ROUTER)
        socket.rcvhwm = FEED_WINDOW  # the most a feeder sends without an ack
        socket.maxmsgsize = self._frame_limit + 65536
        socket.linger = 500  # acks that still leave save a resend
        return socket


class SocketFeed:
    """The feed of one task: sockets, and what has arrived for each split of the spout. One without splits has everything as
    split 0. Used by the worker's loop alone.

    While the split is not read that a batch was sent to, the batch waits here: at most the windows of the feeders do."""

    def __init__(self, sockets: list[zmq.Socket[Any]], path: Path, counters: Counter[str]) -> None:
        self._sockets, self._path, self._counters = sockets, path, counters
        self._splits: dict[int, SplitInbox] = {}
        self._closed = False

    def whole(self) -> WholeFeed:
        """The feed of a spout without splits."""
        return WholeFeed(self, self.split(0))

    def split(self, number: int) -> SplitInbox:
        """The feed of a split that the task reads, or is about to read."""
        return self._splits.setdefault(number, SplitInbox(self, number))

    def forget(self, number: int) -> None:
        """Return batches for this split from now on: another task reads it."""
        self._splits.pop(number, None)

    def receive(self) -> SplitInbox | None:
        """Take one batch to its split; batches of splits that the task does not read are returned. None if there is none or the
        feed is closed (a task being replaced may be polled once more)."""
        while not self._closed and (received := self._receive()) is not None:
            sender, frames = received
            try:
                push, body = read_push(frames)
            except WireError as error:
                self._drop(error)
                continue
            split = self._splits.get(push.split)
            if split is not None:
                split.waiting.append((sender, push, body))
                return split
            self.answer(sender, Returned(push.sequence))
        return None

    def decode(self, body: Any) -> pa.RecordBatch | WireError:
        try:
            return decode_batch(body)
        except WireError as error:
            self._drop(error)
            return error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for socket in self._sockets:
                socket.close()
            self._path.unlink(missing_ok=True)

    def answer(self, sender: FeedSender, answer: FeedAnswer) -> None:
        """Answer a feeder. If it misses the answer, it sends the batch again."""
        socket, identity = sender
        if not self._closed:
            try:
                socket.send_multipart([identity, wire.encode(answer)], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                log.debug("an ack could not be sent: %s", error)

    def _receive(self) -> tuple[FeedSender, list[Any]] | None:
        for _ in self._sockets:
            socket = self._sockets.pop(0)  # in turn, so that none starves
            self._sockets.append(socket)
            try:
                identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                continue
            return (socket, identity), frames
        return None

    def _drop(self, error: WireError) -> None:
        self._counters["malformed"] += 1
        log.warning("dropped: %s", error)


class SplitInbox:
    """The batches of one split."""

    def __init__(self, feed: SocketFeed, number: int) -> None:
        self._feed, self._number = feed, number
        self._intake = Intake()
        self.waiting: deque[tuple[FeedSender, Push, Any]] = deque()

    def take(self) -> tuple[Key, pa.RecordBatch] | None:
        """The next new batch; None if there is none now."""
        for _ in range(PUSHES_PER_TURN):
            while not self.waiting:
                if self._feed.receive() is None:
                    return None
            sender, push, body = self.waiting.popleft()
            verdict = self._intake.offer(push.key, sender)
            if verdict == DONE:
                self._feed.answer(sender, Done(push.sequence))
            elif verdict == NEW:
                batch = self._feed.decode(body)
                if not isinstance(batch, WireError):
                    return push.key, batch
                self.refuse(push.key, str(batch))
        return None

    def done(self, key: Any) -> None:
        for sender in self._intake.done(key):
            self._feed.answer(sender, Done(key.sequence))

    def refuse(self, key: Any, reason: str) -> None:
        for sender in self._intake.refused(key):
            self._feed.answer(sender, Refused(key.sequence, reason))

    def record(self) -> list[Any]:
        return self._intake.record()

    def resume(self, record: list[Any] | None) -> None:
        for sequence, sender in self._intake.resume(record):
            self._feed.answer(sender, Returned(sequence))

    def close(self) -> None:
        self._feed.forget(self._number)
        self.resume(None)
        for sender, push, _ in self.waiting:
            self._feed.answer(sender, Returned(push.sequence))
        self.waiting.clear()


class WholeFeed:
    """The feed of a task without splits, which ends with it."""

    def __init__(self, feed: SocketFeed, only: SplitInbox) -> None:
        self._feed = feed
        self.take, self.done, self.refuse = only.take, only.done, only.refuse

    def close(self) -> None:
        self._feed.close()
