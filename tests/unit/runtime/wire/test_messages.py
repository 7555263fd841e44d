"""Frames: messages survive a round trip, and invalid bytes raise only WireError."""

from __future__ import annotations

import contextlib
import datetime
import math
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.control.assignment import Assignment, Place, TopologyAssignment, WorkerAddress
from millrace.errors import WireError
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, StreamDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.state.packing import PAIRS as PAIRS_CODE
from millrace.state.packing import TUPLE
from millrace.state.time_values import DATE, DATETIME, DECIMAL, TIME, TIMEDELTA

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
    1, GRAPH, 2, True, [(TaskId("lines", 0), Place(0, 1))], {"count": (0, 1)}, [(TaskId("lines", 0), 77)], 3)], [1, 2], 7)
DEEP = b"\x91" * 100_000 + b"\xc0"

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12)


class Pair(NamedTuple):
    key: Any
    value: Any


PAIRS = wire.row_decoder(Pair)


# ---- messages ----


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
    for decode in (wire.decode_data, wire.decode_control, wire.decode_batch):
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
        wire.decode_data(wire.encode_rows([1, value]))  # 1 is the tag of a chunk


def test_extra_elements_do_not_get_a_deep_frame_through() -> None:
    frame = wire.encode(CHUNK)
    assert frame[0] == 0xDC, "an array of more than 15"
    longer = frame[:1] + (int.from_bytes(frame[1:3]) + 1).to_bytes(2) + frame[3:] + DEEP
    with pytest.raises(WireError):
        wire.decode_data(longer)


# ---- rows ----


@given(st.lists(st.tuples(VALUES, VALUES), max_size=5))
@example([(2**64, -(2**63) - 1), (2**200, [{"deep": [-(2**100)]}])])
def test_rows_come_back_as_named_tuples_of_the_same_values(rows: list[tuple[Any, Any]]) -> None:
    decoded = PAIRS.decode(wire.encode_rows(rows))
    assert decoded == rows
    assert all(type(row) is Pair for row in decoded)


NUMBERS = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30, 10**5000, -(10**5000)]


@pytest.mark.parametrize("number", NUMBERS,
                         ids=lambda number: f"{number.bit_length()} bits{' negative' * (number < 0)}")
def test_integers_of_any_size_travel(number: int) -> None:
    assert PAIRS.decode(wire.encode_rows([(number, [number])])) == [(number, [number])]
    assert wire.through_the_wire([number, {"n": number}]) == [number, {"n": number}]


@pytest.mark.parametrize("body", [
    b"", b"\xc1", b"\x91", b"\x91\x91\x01", b"\x91\x93\x01\x02\x03", wire.encode_rows({"a": 1}),
    wire.encode_rows([1, 2]),
    wire.encode(msgspec.msgpack.Ext(wire.BIG_INT, b"12")), wire.encode([[msgspec.msgpack.Ext(99, b""), 1]]),
    b"\x91\x92\x01" + DEEP,
], ids=range(10))
def test_a_body_that_does_not_fit_its_stream_is_refused(body: bytes) -> None:
    with pytest.raises(wire.UNREADABLE):
        PAIRS.decode(body)


@given(st.binary(max_size=200))
def test_a_random_body_raises_nothing_unforeseen(body: bytes) -> None:
    with contextlib.suppress(*wire.UNREADABLE):
        PAIRS.decode(body)


# ---- values as they look on the other side ----


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


@given(VALUES)
def test_values_that_have_travelled_look_the_same_when_they_travel_on(value: Any) -> None:
    once = wire.through_the_wire([value])
    assert wire.through_the_wire(once) == once == [value]
    assert PAIRS.decode(wire.encode_rows([(once[0], None)])) == [(once[0], None)]


@pytest.mark.parametrize(("value", "arrived"), [
    ((1, (2, 3)), [1, [2, 3]]), ({"a": (1,)}, {"a": [1]}), (frozenset({1}), [1]), (Colour.RED, "red"),
    (bytearray(b"x"), b"x"), (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Point(3), {"x": 3}), ({1: "a", None: "b"}, {1: "a", None: "b"}),
], ids=repr)
def test_other_types_are_turned_into_plain_ones_once(value: Any, arrived: Any) -> None:
    once = wire.through_the_wire([value])
    assert once == [arrived]
    assert type(once[0]) is type(arrived)
    assert PAIRS.decode(wire.encode_rows([(once[0], 0)]))[0].key == arrived


MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 8)
EXTENDED = [
    Decimal("1.50"), Decimal("-0E-38"), Decimal("NaN"), Decimal("Infinity"), Decimal("9" * 38), MOMENT, datetime.datetime.min,
    datetime.datetime.max, MOMENT.date(), datetime.date.min, MOMENT.time(), datetime.timedelta(days=-3, microseconds=7),
    datetime.timedelta.max, {MOMENT.date(): Decimal(1)}, {(1, MOMENT.date()): [2**70]}, {2**70: "a"}, {1: {"b": MOMENT}},
    [[{"a": Decimal("0.1")}]],
]


@pytest.mark.parametrize("value", EXTENDED, ids=repr)
def test_decimals_dates_and_times_travel_as_extensions(value: Any) -> None:
    assert repr(PAIRS.decode(wire.encode_extended([(value, None)]))) == repr([Pair(value, None)])
    assert repr(wire.through_the_wire([value], extended=True)) == repr([value])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=5))
def test_plain_rows_are_the_same_with_and_without_extensions(rows: list[tuple[Any, Any]]) -> None:
    assert wire.encode_extended(rows) == wire.encode_rows(rows)


@pytest.mark.parametrize("zone", [datetime.UTC, ZoneInfo("Asia/Tokyo"), datetime.timezone(datetime.timedelta(hours=-3))],
                         ids=str)
def test_a_time_with_a_zone_comes_back_in_utc(zone: Any) -> None:
    moment = MOMENT.replace(tzinfo=zone)
    [[back]] = wire.through_the_wire([[moment]], extended=True)
    assert back == moment and back.tzinfo is datetime.UTC


@pytest.mark.parametrize(("code", "data"), [
    (DECIMAL, b"one"), (DECIMAL, b"\xff"), (DATE, b"2026-13-01"), (DATETIME, b"now"), (TIME, b"25:00"), (TIMEDELTA, b"1"),
    (DATETIME, b"2026-01-01T00:00:00+00:00 No/Zone"), (DATETIME, b"2026-01-01T00:00:00+00:00 ../../etc/passwd"),
    (TIMEDELTA, b"9" * 30 + b" 0 0"), (TIMEDELTA, b"1 2 3 4 5 6 7 8"), (TIMEDELTA, b""), (TUPLE, b"\x90"),
    (PAIRS_CODE, b"\x91\x01"), (PAIRS_CODE, b"\x92\x80\x01"), (PAIRS_CODE, b"\x01"),
])
def test_a_forged_extension_is_unreadable(code: int, data: bytes) -> None:
    body = wire.encode([[msgspec.msgpack.Ext(code, data), None]])
    with pytest.raises(wire.UNREADABLE):
        PAIRS.decode(body)


def test_not_a_number_and_the_infinities_travel() -> None:
    low, high, nan = wire.through_the_wire([-math.inf, math.inf, math.nan])
    assert (low, high, math.isnan(nan)) == (-math.inf, math.inf, True)


def test_nothing_is_shared_with_the_sender() -> None:
    inner = [1]
    values = [inner, {"k": inner}]
    arrived = wire.through_the_wire(values)
    inner.append(2)
    assert arrived == [[1], {"k": [1]}]


# ---- Arrow ----


def batch() -> pa.RecordBatch:
    return pa.record_batch([pa.array(["a", None, "c"] * 5), pa.array(range(15))], names=["word", "n"])


@pytest.mark.parametrize("sent", [batch(), batch().slice(1, 2), batch().slice(0, 0)], ids=["whole", "slice", "empty"])
def test_a_batch_comes_back_the_same(sent: pa.RecordBatch) -> None:
    for body in (wire.encode_batch(sent), bytes(wire.encode_batch(sent)), memoryview(wire.encode_batch(sent))):
        assert wire.decode_batch(body).equals(sent)


@given(st.integers(min_value=0))
def test_a_batch_that_was_cut_short_is_refused(length: int) -> None:
    body = bytes(wire.encode_batch(batch()))
    body = body[:length % (len(body) - 8)]  # its last 8 bytes say that the stream ends, which the batch can do without
    with pytest.raises(WireError, match="not an Arrow batch"):
        wire.decode_batch(body)


def test_a_batch_whose_insides_do_not_fit_is_refused() -> None:
    """Its header is right, so Arrow takes it; reading a text past the end of its buffer would take the process down."""
    body = bytes(wire.encode_batch(batch()))
    offsets = (b"\0\0\0\0\1\0\0\0\1\0\0\0", b"\0\0\0\0\xff\xff\xff\x7f\1\0\0\0")
    assert body.count(offsets[0]) == 1
    with pytest.raises(WireError, match="not an Arrow batch"):
        wire.decode_batch(body.replace(*offsets))
