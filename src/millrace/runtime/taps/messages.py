"""What is said between a tap and its reader. Typed msgpack, as everything else that crosses a socket.

    Commit, Read                 from a reader to the port of a worker
    Seen, Rows, NotHere, Taken   the answers; Rows has a second frame, the rows as msgpack
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.errors import WireError
from millrace.runtime.wire.messages import UNREADABLE, row_decoder


class TapPlace(msgspec.Struct, frozen=True):
    """Where the rows of one task are. `boot` names the running kernel: equal means that ipc reaches it."""

    name: str
    ipc: str
    tcp: str
    boot: str


class Commit(msgspec.Struct, array_like=True, tag=1, tag_field="type"):
    """Rows before `upto` have been read for good; 0 only asks what there is. `reader` is who says so, and then the only one;
    nobody: who just looks. Of two readers the one that sorts last began last."""

    name: str
    upto: int = 0
    reader: str = ""


class Read(msgspec.Struct, array_like=True, tag=2, tag_field="type"):
    """Rows from `start` to `stop` - 1. `reader`: who is heard from by that."""

    name: str
    start: int
    stop: int
    reader: str = ""


class Seen(msgspec.Struct, array_like=True, tag=3, tag_field="type"):
    """The first row that is kept, and the first number that cannot be read yet."""

    first: int
    readable: int


class Rows(msgspec.Struct, array_like=True, tag=4, tag_field="type"):
    """`count` rows from number `start` on."""

    start: int
    count: int


class NotHere(msgspec.Struct, array_like=True, tag=5, tag_field="type"):
    """No rows of that name are kept in this process."""


class Taken(msgspec.Struct, array_like=True, tag=6, tag_field="type"):
    """The rows have a reader that began later, heard from so many seconds ago: nothing was committed."""

    seconds: float


Request = Commit | Read
Answer = Seen | Rows | NotHere | Taken
_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(Answer)
_rows_decoder = row_decoder(tuple)
_apart_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


def decode_request(frame: Any) -> Request:
    try:
        return _request_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frame)} bytes asks nothing of a tap: {error}") from None


def decode_answer(frame: Any) -> Answer:
    try:
        return _answer_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frame)} bytes is no answer of a tap: {error}") from None


def join_rows(rows: Sequence[bytes]) -> bytes:
    """Rows that are encoded, as a body: an array of msgpack is its length and what is in it."""
    return b"".join((b"\xdd", len(rows).to_bytes(4, "big"), *rows))


def split_rows(body: Any) -> list[bytes]:
    """The rows of a body, still encoded."""
    try:
        return [bytes(row) for row in _apart_decoder.decode(body)]
    except UNREADABLE as error:
        raise WireError(f"a body of {len(body)} bytes has no rows of a tap: {error}") from None


def decode_rows(body: Any) -> list[Any]:
    try:
        rows: list[Any] = _rows_decoder.decode(body)
    except UNREADABLE as error:
        raise WireError(f"a body of {len(body)} bytes has no rows of a tap: {error}") from None
    return rows
