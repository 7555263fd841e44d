"""The tap port of a worker: sockets that the worker's loop serves, so that rows need neither lock nor thread."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import zmq

from millrace.errors import MillraceError, WireError
from millrace.runtime.taps.messages import (
    Commit,
    NotHere,
    OtherReader,
    Read,
    RowsAnswer,
    Seen,
    TapPlace,
    decode_request,
    join_rows,
)
from millrace.runtime.taps.rows import TapRows
from millrace.runtime.wire.messages import encode
from millrace.runtime.wire.transport import Keys, bind_tcp, private_directory, serve

log = logging.getLogger("millrace.worker")
ROWS_PER_ANSWER, BYTES_PER_ANSWER = 5000, 4 << 20  # takes a millisecond or two of the loop
REQUESTS_PER_TURN = 8
LONGEST_REQUEST = 4096


class TapPort:
    """Serves the taps of one worker process. Opens its sockets with the first tap: most workers have none."""

    def __init__(self, context: zmq.Context[Any], path: Path, bind: str, keys: Keys, boot: str) -> None:
        self._context, self._path, self._bind, self._keys, self._boot = context, path, bind, keys, boot
        self._sockets: list[zmq.Socket[Any]] = []
        self._tcp = ""
        self._poller: zmq.Poller | None = None
        self._taps: dict[str, TapRows] = {}
        self.malformed = 0

    def listen_with(self, poller: zmq.Poller) -> None:
        """Register with the loop's poller."""
        self._poller = poller
        for socket in self._sockets:
            poller.register(socket, zmq.POLLIN)

    def show(self, rows: TapRows) -> TapPlace:
        """Make rows readable; they replace rows of the same name."""
        if not self._sockets:
            self._open()
        self._taps[rows.name] = rows
        return TapPlace(rows.name, f"ipc://{self._path}", self._tcp, self._boot)

    def hide(self, rows: TapRows) -> None:
        if self._taps.get(rows.name) is rows:
            del self._taps[rows.name]

    def answer(self, ready: dict[Any, int]) -> None:
        """Answer requests; called in every turn of the loop with the sockets that are ready."""
        for socket in self._sockets:
            if socket in ready:
                self._answer_some(socket)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self._sockets.clear()
        self._path.unlink(missing_ok=True)

    def _open(self) -> None:
        private_directory(str(self._path.parent))
        local = self._socket()
        local.bind(f"ipc://{self._path}")
        if self._bind:
            remote = self._socket()
            serve(remote, self._keys)
            self._tcp = bind_tcp(remote, self._bind)

    def _socket(self) -> zmq.Socket[Any]:
        socket = self._context.socket(zmq.ROUTER)
        socket.maxmsgsize = LONGEST_REQUEST
        socket.linger = 0
        self._sockets.append(socket)
        if self._poller is not None:
            self._poller.register(socket, zmq.POLLIN)
        return socket

    def _answer_some(self, socket: zmq.Socket[Any]) -> None:
        for _ in range(REQUESTS_PER_TURN):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                answer = self._answer(frames[-1])
            except WireError as error:
                self.malformed += 1
                log.warning("dropped: %s", error)
                continue
            try:
                socket.send_multipart([frames[0], *answer], zmq.NOBLOCK)
            except zmq.ZMQError as error:  # the reader is gone, or will ask again
                log.debug("could not answer a reader: %s", error)

    def _answer(self, frame: bytes) -> list[bytes]:
        request = decode_request(frame)
        tap = self._taps.get(request.name)
        if tap is None:
            return [encode(NotHere())]
        if isinstance(request, Commit):
            return [encode(self._commit(tap, request))]
        assert isinstance(request, Read)
        tap.hear(request.reader, time.monotonic())
        start, rows = tap.read(request.start, request.stop, ROWS_PER_ANSWER, BYTES_PER_ANSWER)
        return [encode(RowsAnswer(start, len(rows))), join_rows(rows)]

    def _commit(self, tap: TapRows, request: Commit) -> Seen | OtherReader:
        if request.reader:
            silent = tap.claim(request.reader, time.monotonic())
            if silent is not None:
                return OtherReader(silent)
        tap.commit(request.upto)
        return Seen(tap.first, tap.readable)


# A component reaches its task through `TaskHandle`, which has no sockets. So a tap looks up the port of its process.
_here: TapPort | None = None


def open_here(port: TapPort | None) -> None:
    """Set the port of this process; None removes it."""
    global _here
    _here = port


def port_here() -> TapPort:
    if _here is None:
        raise MillraceError("a tap can only be read from a worker of the resident engine: this process is not one. Run the "
                            "topology on that engine, or write the stream with a sink")
    return _here
