"""The feed of a DataFrame spout's task: sockets that receive batches from Spark, read when the spout is asked for tuples.

A spout that may not emit, because of back-pressure or a pause, reads nothing: at most the unacked windows of its feeders wait.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import zmq

from millrace.api.dataframe import Feed
from millrace.config import FRAME_LIMIT
from millrace.control.feeding import DONE, FEED, FEED_WINDOW, NEW, FeedAddress, Intake, Key
from millrace.errors import MillraceError, WireError
from millrace.runtime.feeds.messages import Done, Refused, read_push
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import decode_batch
from millrace.runtime.wire.transport import Keys, bind_tcp, serve

log = logging.getLogger("millrace.worker")
PUSHES_PER_TURN = 64  # read in one call while none of them is new


class NoFeeds:
    """For a worker without sockets, as in tests: it cannot be fed."""

    def open(self, name: str, tell: Callable[[str, Any], None]) -> Feed:
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
    """The feed of one task. Used by the worker's loop alone."""

    def __init__(self, sockets: list[zmq.Socket[Any]], path: Path, counters: Counter[str]) -> None:
        self._sockets, self._path, self._counters = sockets, path, counters
        self._intake = Intake()
        self._closed = False

    def take(self) -> tuple[Key, pa.RecordBatch] | None:
        """The next new batch; None if there is none or the feed is closed (a task being replaced may be polled once more)."""
        if self._closed:
            return None
        for _ in range(PUSHES_PER_TURN):
            received = self._receive()
            if received is None:
                return None
            sender, frames = received
            try:
                push, body = read_push(frames)
            except WireError as error:
                self._counters["malformed"] += 1
                log.warning("dropped: %s", error)
                continue
            verdict = self._intake.offer(push.key, sender)
            if verdict == DONE:
                self._answer(sender, Done(push.sequence))
            elif verdict == NEW:
                try:
                    return push.key, decode_batch(body)
                except WireError as error:
                    self._counters["malformed"] += 1
                    self.refuse(push.key, str(error))
        return None

    def done(self, key: Any) -> None:
        for sender in self._intake.done(key):
            self._answer(sender, Done(key.sequence))

    def refuse(self, key: Any, reason: str) -> None:
        for sender in self._intake.refused(key):
            self._answer(sender, Refused(key.sequence, reason))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for socket in self._sockets:
                socket.close()
            self._path.unlink(missing_ok=True)

    def _receive(self) -> tuple[tuple[zmq.Socket[Any], bytes], list[Any]] | None:
        for _ in self._sockets:
            socket = self._sockets.pop(0)  # in turn, so that none starves
            self._sockets.append(socket)
            try:
                identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                continue
            return (socket, identity), frames
        return None

    def _answer(self, sender: tuple[zmq.Socket[Any], bytes], answer: Done | Refused) -> None:
        """Answer a feeder. If it misses the answer, it sends the batch again."""
        socket, identity = sender
        if not self._closed:
            try:
                socket.send_multipart([identity, wire.encode(answer)], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                log.debug("an ack could not be sent: %s", error)
