"""The reading side of taps: locates them through the master and reads their rows. Blocking calls, each with a time limit."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import msgspec
import zmq

from millrace.errors import MillraceError, UnknownName, WireError
from millrace.runtime.taps.messages import (
    Commit,
    OtherReader,
    Read,
    RowsAnswer,
    Seen,
    TapAnswer,
    TapPlace,
    TapRequest,
    decode_answer,
    decode_rows,
)
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Keys, boot_id, reached_by_ipc, visit

ANSWER_SECONDS = 2.0  # a worker's loop may be in user code; ask again then


class NoAnswer(MillraceError):
    """No answer in time: the other side is gone or busy. Ask again, perhaps elsewhere."""


class HasAnotherReader(MillraceError):
    """The tap has another reader, which started later and was active some seconds ago."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it has another reader, which started later and was active {seconds:.1f} s ago")


class TapLinks:
    """Connections to workers' tap ports, made on first use. One request at a time; not thread-safe."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self._boot = keys, boot_id()
        self._context = zmq.Context()
        self._sockets: dict[TapPlace, zmq.Socket[Any]] = {}

    def look(self, place: TapPlace, upto: int = 0, reader: str = "") -> Seen | None:
        """Commit rows before `upto` for `reader` and return the range that can be read; None if the tap is gone. Raises
        NoAnswer and HasAnotherReader."""
        answer, _ = self._ask(place, Commit(place.name, upto, reader), ANSWER_SECONDS)
        if isinstance(answer, OtherReader):
            raise HasAnotherReader(answer.seconds)
        return answer if isinstance(answer, Seen) else None

    def read(self, place: TapPlace, start: int, stop: int, reader: str = "",
             seconds: float = 0.0) -> tuple[int, list[Any]] | None:
        """Read some rows from `start` on, or from the first one left; return its number and the rows; None if it is gone.
        Waits at least `seconds`. Raises NoAnswer."""
        answer, body = self._ask(place, Read(place.name, start, stop, reader), max(seconds, ANSWER_SECONDS))
        if not isinstance(answer, RowsAnswer):
            return None
        rows = decode_rows(body)
        if len(rows) != answer.count:
            raise WireError(f"a tap announced {answer.count} rows and sent {len(rows)}")
        return answer.start, rows

    def _ask(self, place: TapPlace, request: TapRequest, seconds: float) -> tuple[TapAnswer, bytes]:
        socket = self._sockets.get(place)
        if socket is None:
            socket = self._sockets[place] = self._connected(place)
        socket.send(wire.encode(request))
        if not socket.poll(int(seconds * 1000)):
            self._sockets.pop(place).close(linger=0)  # a late answer must not be mistaken for the next one
            raise NoAnswer(f"the tap at {place.ipc} does not answer within {seconds:g} s")
        frames = socket.recv_multipart()
        return decode_answer(frames[0]), frames[1] if len(frames) > 1 else b""

    def _connected(self, place: TapPlace) -> zmq.Socket[Any]:
        same_host = reached_by_ipc(self._boot, place.boot, place.ipc, place.tcp)
        if not same_host and not place.tcp:
            raise MillraceError("the tap is on another host and its worker has no tcp port: give the engine a `bind` address "
                                "that the hosts of the readers can reach")
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        if not same_host:
            visit(socket, self._keys)
        socket.connect(place.ipc if same_host else place.tcp)
        return socket

    def close(self) -> None:
        self._context.destroy(linger=0)

    def __enter__(self) -> TapLinks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def ask_places(master: str, keys: Keys, topology: str, component: str) -> dict[int, TapPlace]:
    """Ask the master for the places of a tap's tasks, by index. Works from any host. Raises NoAnswer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        visit(socket, keys)
        socket.connect(master)
        socket.send(wire.encode(wire.AskTaps(topology, component)))
        deadline = time.monotonic() + ANSWER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if socket.poll(int(left * 1000) + 1):
                answer = wire.decode_control(socket.recv())
                if isinstance(answer, wire.Taps):
                    if answer.error:
                        raise UnknownName(answer.error)
                    return {index: as_place(place) for index, place in answer.places.items()}
    raise NoAnswer(f"the Millrace master at {master} does not answer within {ANSWER_SECONDS:g} s")


def as_place(described: dict[str, str]) -> TapPlace:
    return msgspec.convert(described, TapPlace)
