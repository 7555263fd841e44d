"""Frames: messages survive a round trip, and invalid bytes raise only WireError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.control.assignment import Assignment, Place, TopologyAssignment, WorkerAddress
from millrace.errors import WireError
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, StreamDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import decode_batch, encode_rows

LINES = ComponentDef("lines", "spout", "parts:Lines", 2, {"limit": 3}, (StreamDef("default", ("line",)),), (), False,
                     "next_tuple")
GRAPH = TopologyGraph("words", (LINES,), {"seed": 1})
CHUNK = wire.Chunk(1, 2, 3, 0, 5, 65536, 7, 131072, 9, 1, 10, 11, wire.ROWS, 2**63 - 1, [2**63, 1], 1, 0.5)
DATA = [
    CHUNK,
    wire.Credits(1, 2, [(1, 65536, 1, 131072, 1, 99, 16, 4)]),
    wire.Acks(1, 2, 3, 4, [(2**63, 5), (1, 2**63 - 1)]),
    wire.Roots(1, 2, 3, 4, (0, 65536, 1), [(7, 8)]),
    wire.Fails(1, 2, 3, 4, [2**63]),
    wire.LedgerHandover(1, 2, 3, 4, 0, [(2**63, 5, (0, 65536, 1)), (1, 2, None)], [7]),
    wire.Verdicts(1, 2, 3, 65536, 1, [1, 2], [3]),
]
CONTROL = [
    wire.Hello(0, 123, Node("host", 2, 2000.0, 4096), "boot", "driver", "ipc://x", "tcp://y"),
    wire.Welcome(3, {"worker.lease.secs": 2.5}, 1, "name"), wire.Fetch(0, 1, 1, 4), wire.Agency(True, 1, 5, b"part"),
    wire.Heartbeat(0, 1, 4), wire.Beat(1), wire.Fenced(), wire.Stop(), wire.Bye(0, 1),
    wire.Report(0, 1, 4, 0.5, [{"task": 1, "custom": {"a": [1]}}], [(1, 65536, 9)], [(1, 0)], [(1, 2)], [{"error": "x"}],
                {"gaps": 1}),
]
PART = Assignment(4, [WorkerAddress(0, 1, "host", "boot", "ipc", "tcp")], [TopologyAssignment(
    1, GRAPH, 2, True, [(TaskId("lines", 0), Place(0, 1))], {"count": (0, 1)}, [(TaskId("lines", 0), 77)], 3)], [(1, 2)], 7,
    [(1, 4), (6, 6)])
DEEP = b"\x91" * 100_000 + b"\xc0"

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()

def test_a_plan_comes_back_as_it_was() -> None:
    assert wire.decode_part(wire.encode(PART)) == PART
    with pytest.raises(wire.WireError, match="a plan of 4 bytes cannot be read"):
        wire.decode_part(b"junk")


@pytest.mark.parametrize("message", DATA, ids=lambda message: type(message).__name__)
def test_a_data_message_comes_back_the_same(message: Any) -> None:
    assert wire.decode_data(wire.encode(message)) == message


@pytest.mark.parametrize("message", CONTROL, ids=lambda message: type(message).__name__)
def test_a_control_message_comes_back_the_same(message: Any) -> None:
    assert wire.decode_control(wire.encode(message)) == message


@pytest.mark.parametrize("message", CONTROL, ids=lambda message: type(message).__name__)
def test_a_control_message_is_refused_by_the_data_port(message: Any) -> None:
    with pytest.raises(WireError, match=r"data frame of .* bytes is not a Millrace message"):
        wire.decode_data(wire.encode(message))


@pytest.mark.parametrize("message", DATA, ids=lambda message: type(message).__name__)
def test_a_data_message_is_refused_by_the_control_port(message: Any) -> None:
    with pytest.raises(WireError, match=r"control frame of .* bytes is not a Millrace message"):
        wire.decode_control(wire.encode(message))


def assert_read_or_refused(frame: bytes) -> None:
    for decode in (wire.decode_data, wire.decode_control, decode_batch):
        try:
            decode(frame)
        except WireError as error:
            assert str(len(frame)) in str(error), "the size is a first hint at who sent it"


@given(st.binary(max_size=300))
@example(b"")
@example(DEEP)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xff\xff\xff\xff\x10\x00\x00\x00")
def test_random_bytes_are_at_worst_a_wire_error(frame: bytes) -> None:
    assert_read_or_refused(frame)


@given(st.sampled_from(DATA + CONTROL), st.data())
def test_a_damaged_message_is_at_worst_a_wire_error(message: Any, data: st.DataObject) -> None:
    frame = bytearray(wire.encode(message))
    for position in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        frame[position] = data.draw(st.integers(0, 255))
    assert_read_or_refused(bytes(frame[:data.draw(st.integers(0, len(frame)))]))


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=20), max_leaves=40))
def test_msgpack_that_is_not_one_of_ours_is_refused(value: Any) -> None:
    with pytest.raises(WireError):
        wire.decode_data(encode_rows([1, value]))  # 1 is the tag of a chunk


def test_extra_elements_do_not_get_a_deep_frame_through() -> None:
    frame = wire.encode(CHUNK)
    assert frame[0] == 0xDC, "an array of more than 15"
    longer = frame[:1] + (int.from_bytes(frame[1:3]) + 1).to_bytes(2) + frame[3:] + DEEP
    with pytest.raises(WireError):
        wire.decode_data(longer)
