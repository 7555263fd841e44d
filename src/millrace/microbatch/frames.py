"""What travels from stage to stage through Spark's shuffle: chunks for tasks, and reports for the driver."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from millrace.errors import WireError
from millrace.runtime import wire

CHUNK, REPORT, NOTHING = 0, 1, 2  # NOTHING: so that no partition is empty
_HEAD = struct.Struct(">BII")  # kind, number of the target task, length of the chunk's header


class Frame(NamedTuple):
    kind: int
    target: int
    header: wire.Chunk | None
    body: memoryview
    whole: bytes  # as it came, to be passed on


def pack_chunk(target: int, header: bytes, body: Any) -> bytes:
    return b"".join((_HEAD.pack(CHUNK, target, len(header)), header, body))


def pack_report(report: bytes) -> bytes:
    return _HEAD.pack(REPORT, 0, 0) + report


EMPTY = _HEAD.pack(NOTHING, 0, 0)


def unpack(data: bytes) -> Frame:
    view = memoryview(data)
    kind, target, length = _HEAD.unpack_from(view)
    start = _HEAD.size + length
    if kind != CHUNK:
        return Frame(kind, target, None, view[start:], data)
    header = wire.decode_data(view[_HEAD.size : start])
    if not isinstance(header, wire.Chunk):
        raise WireError(f"a frame of the shuffle holds {type(header).__name__} and not a chunk")
    return Frame(kind, target, header, view[start:], data)
