"""What travels from stage to stage through Spark's shuffle: chunks for tasks, reports for the driver, marks of who sent it."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from millrace.errors import WireError
from millrace.runtime.wire import messages as wire

CHUNK, REPORT, MARK = 0, 1, 2
_HEAD = struct.Struct(">BII")  # kind, number of the target task or of a partition, length of the chunk's header
_NUMBER = struct.Struct(">Q")


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


def pack_mark(partition: int, ran: int) -> bytes:
    """From every partition to every one of the next stage: so that none is empty, and each knows whose output it has."""
    return _HEAD.pack(MARK, partition, 0) + _NUMBER.pack(ran)


def unpack_mark(frame: Frame) -> tuple[int, int]:
    """The partition, and the number of the run that gave out what came from it."""
    return frame.target, _NUMBER.unpack(frame.body)[0]


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
