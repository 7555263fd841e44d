"""Records that travel from stage to stage through Spark's shuffle: chunks for tasks, reports for the driver, sender marks."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from millrace.errors import WireError
from millrace.runtime.wire import messages as wire

CHUNK, REPORT, MARK = 0, 1, 2
_HEAD = struct.Struct(">BII")  # kind, number of the target task or of a partition, length of the chunk's header
_NUMBER = struct.Struct(">Q")


class Record(NamedTuple):
    kind: int
    target: int
    header: wire.Chunk | None
    body: memoryview
    whole: bytes  # as it arrived, to be passed on


def pack_chunk(target: int, header: bytes, body: Any) -> bytes:
    return b"".join((_HEAD.pack(CHUNK, target, len(header)), header, body))


def pack_report(report: bytes) -> bytes:
    return _HEAD.pack(REPORT, 0, 0) + report


def pack_mark(partition: int, ran: int) -> bytes:
    """Encode a sender mark. Every partition sends one to every partition of the next stage, so that no partition is empty and
    each knows its senders."""
    return _HEAD.pack(MARK, partition, 0) + _NUMBER.pack(ran)


def unpack_mark(record: Record) -> tuple[int, int]:
    """The sending partition, and the number of its run."""
    return record.target, _NUMBER.unpack(record.body)[0]


def unpack(data: bytes) -> Record:
    view = memoryview(data)
    kind, target, length = _HEAD.unpack_from(view)
    start = _HEAD.size + length
    if kind != CHUNK:
        return Record(kind, target, None, view[start:], data)
    header = wire.decode_data(view[_HEAD.size : start])
    if not isinstance(header, wire.Chunk):
        raise WireError(f"a record of the shuffle holds {type(header).__name__} and not a chunk")
    return Record(kind, target, header, view[start:], data)
