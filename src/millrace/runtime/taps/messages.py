"""Messages between a tap and its reader, as typed msgpack.

    Commit, Read                       from a reader to the tap port of a worker
    Seen, RowsAnswer, NotHere, OtherReader   the answers; RowsAnswer has a second frame, the rows as msgpack
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.errors import WireError
from millrace.runtime.wire.bodies import row_decoder
from millrace.runtime.wire.messages import UNREADABLE


class TapPlace(msgspec.Struct, frozen=True):
    """The place of one task's rows. `boot` identifies the running kernel: if it is equal, ipc reaches them."""

    name: str
    ipc: str
    tcp: str
    boot: str


class Commit(msgspec.Struct, array_like=True, tag=1, tag_field="type"):
    """Commits rows before `upto`; 0 only queries the readable range. `reader` becomes the only reader; an empty name only
    queries. Reader names sort by start time."""

    name: str
    upto: int = 0
    reader: str = ""


class Read(msgspec.Struct, array_like=True, tag=2, tag_field="type"):
    """Requests rows from `start` to `stop` - 1. Also shows that `reader` is active."""

    name: str
    start: int
    stop: int
    reader: str = ""


class Seen(msgspec.Struct, array_like=True, tag=3, tag_field="type"):
    """Answers `Commit`: the first row kept, and the first row that cannot be read yet."""

    first: int
    readable: int


class RowsAnswer(msgspec.Struct, array_like=True, tag=4, tag_field="type"):
    """Answers `Read`: `count` rows from number `start` on."""

    start: int
    count: int


class NotHere(msgspec.Struct, array_like=True, tag=5, tag_field="type"):
    """No rows of that name are in this process."""


class OtherReader(msgspec.Struct, array_like=True, tag=6, tag_field="type"):
    """Refuses `Commit`: the rows have a reader that started later and was active this many seconds ago."""

    seconds: float


TapRequest = Commit | Read
TapAnswer = Seen | RowsAnswer | NotHere | OtherReader
_request_decoder = msgspec.msgpack.Decoder(TapRequest)
_answer_decoder = msgspec.msgpack.Decoder(TapAnswer)
_rows_decoder = row_decoder(tuple)
_apart_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


def decode_request(frame: Any) -> TapRequest:
    try:
        return _request_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frame)} bytes is not a request to a tap: {error}") from None


def decode_answer(frame: Any) -> TapAnswer:
    try:
        return _answer_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frame)} bytes is not an answer of a tap: {error}") from None


def join_rows(rows: Sequence[bytes]) -> bytes:
    """Join encoded rows into a body: a msgpack array is its length and its items."""
    return b"".join((b"\xdd", len(rows).to_bytes(4, "big"), *rows))


def split_rows(body: Any) -> list[bytes]:
    """Split a body into its rows, still encoded."""
    try:
        return [bytes(row) for row in _apart_decoder.decode(body)]
    except UNREADABLE as error:
        raise WireError(f"a body of {len(body)} bytes does not hold rows of a tap: {error}") from None


def decode_rows(body: Any) -> list[Any]:
    try:
        rows: list[Any] = _rows_decoder.decode(body)
    except UNREADABLE as error:
        raise WireError(f"a body of {len(body)} bytes does not hold rows of a tap: {error}") from None
    return rows
