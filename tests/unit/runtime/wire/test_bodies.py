"""Bodies of chunks: rows and batches survive a round trip, and invalid bytes raise only what receivers expect."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable
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

from millrace.errors import WireError
from millrace.runtime.wire.bodies import decode_batch, encode_batch, encode_extended, encode_rows, row_decoder, through_the_wire
from millrace.runtime.wire.messages import UNREADABLE, encode
from millrace.state.packing import BIG_INT, TUPLE
from millrace.state.packing import PAIRS as PAIRS_CODE
from millrace.state.time_values import DATE, DATETIME, DECIMAL, TIME, TIMEDELTA

DEEP = b"\x91" * 100_000 + b"\xc0"
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12)


class Pair(NamedTuple):
    key: Any
    value: Any


PAIRS = row_decoder(Pair)


# ---- rows ----


@given(st.lists(st.tuples(VALUES, VALUES), max_size=5))
@example([(2**64, -(2**63) - 1), (2**200, [{"deep": [-(2**100)]}])])
def test_rows_come_back_as_named_tuples_of_the_same_values(rows: list[tuple[Any, Any]]) -> None:
    decoded = PAIRS.decode(encode_rows(rows))
    assert decoded == rows
    assert all(type(row) is Pair for row in decoded)


NUMBERS = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30, 10**5000, -(10**5000)]


@pytest.mark.parametrize("number", NUMBERS,
                         ids=lambda number: f"{number.bit_length()} bits{' negative' * (number < 0)}")
def test_integers_of_any_size_travel(number: int) -> None:
    assert PAIRS.decode(encode_rows([(number, [number])])) == [(number, [number])]
    assert through_the_wire([number, {"n": number}]) == [number, {"n": number}]


@pytest.mark.parametrize("body", [
    b"", b"\xc1", b"\x91", b"\x91\x91\x01", b"\x91\x93\x01\x02\x03", encode_rows({"a": 1}),
    encode_rows([1, 2]),
    encode(msgspec.msgpack.Ext(BIG_INT, b"12")), encode([[msgspec.msgpack.Ext(99, b""), 1]]),
    b"\x91\x92\x01" + DEEP,
], ids=range(10))
def test_a_body_that_does_not_fit_its_stream_is_refused(body: bytes) -> None:
    with pytest.raises(UNREADABLE):
        PAIRS.decode(body)


@given(st.binary(max_size=200))
def test_a_random_body_raises_nothing_unforeseen(body: bytes) -> None:
    with contextlib.suppress(*UNREADABLE):
        PAIRS.decode(body)


# ---- values as they look on the other side ----


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


@given(VALUES)
def test_values_that_have_travelled_look_the_same_when_they_travel_on(value: Any) -> None:
    once = through_the_wire([value])
    assert through_the_wire(once) == once == [value]
    assert PAIRS.decode(encode_rows([(once[0], None)])) == [(once[0], None)]


@pytest.mark.parametrize(("value", "arrived"), [
    ((1, (2, 3)), [1, [2, 3]]), ({"a": (1,)}, {"a": [1]}), (frozenset({1}), [1]), (Colour.RED, "red"),
    (bytearray(b"x"), b"x"), (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Point(3), {"x": 3}), ({1: "a", None: "b"}, {1: "a", None: "b"}),
], ids=repr)
def test_other_types_are_turned_into_plain_ones_once(value: Any, arrived: Any) -> None:
    once = through_the_wire([value])
    assert once == [arrived]
    assert type(once[0]) is type(arrived)
    assert PAIRS.decode(encode_rows([(once[0], 0)]))[0].key == arrived


MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 8)
EXTENDED = [
    Decimal("1.50"), Decimal("-0E-38"), Decimal("NaN"), Decimal("Infinity"), Decimal("9" * 38), MOMENT, datetime.datetime.min,
    datetime.datetime.max, MOMENT.date(), datetime.date.min, MOMENT.time(), datetime.timedelta(days=-3, microseconds=7),
    datetime.timedelta.max, {MOMENT.date(): Decimal(1)}, {(1, MOMENT.date()): [2**70]}, {2**70: "a"}, {1: {"b": MOMENT}},
    [[{"a": Decimal("0.1")}]],
]


@pytest.mark.parametrize("value", EXTENDED, ids=repr)
def test_decimals_dates_and_times_travel_as_extensions(value: Any) -> None:
    assert repr(PAIRS.decode(encode_extended([(value, None)]))) == repr([Pair(value, None)])
    assert repr(through_the_wire([value], extended=True)) == repr([value])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=5))
def test_plain_rows_are_the_same_with_and_without_extensions(rows: list[tuple[Any, Any]]) -> None:
    assert encode_extended(rows) == encode_rows(rows)


@pytest.mark.parametrize("zone", [datetime.UTC, ZoneInfo("Asia/Tokyo"), datetime.timezone(datetime.timedelta(hours=-3))],
                         ids=str)
def test_a_time_with_a_zone_comes_back_in_utc(zone: Any) -> None:
    moment = MOMENT.replace(tzinfo=zone)
    [[back]] = through_the_wire([[moment]], extended=True)
    assert back == moment and back.tzinfo is datetime.UTC


@pytest.mark.parametrize(("code", "data"), [
    (DECIMAL, b"one"), (DECIMAL, b"\xff"), (DATE, b"2026-13-01"), (DATETIME, b"now"), (TIME, b"25:00"), (TIMEDELTA, b"1"),
    (DATETIME, b"2026-01-01T00:00:00+00:00 No/Zone"), (DATETIME, b"2026-01-01T00:00:00+00:00 ../../etc/passwd"),
    (TIMEDELTA, b"9" * 30 + b" 0 0"), (TIMEDELTA, b"1 2 3 4 5 6 7 8"), (TIMEDELTA, b""), (TUPLE, b"\x90"),
    (PAIRS_CODE, b"\x91\x01"), (PAIRS_CODE, b"\x92\x80\x01"), (PAIRS_CODE, b"\x01"),
])
def test_a_forged_extension_is_unreadable(code: int, data: bytes) -> None:
    body = encode([[msgspec.msgpack.Ext(code, data), None]])
    with pytest.raises(UNREADABLE):
        PAIRS.decode(body)


def test_not_a_number_and_the_infinities_travel() -> None:
    low, high, nan = through_the_wire([-math.inf, math.inf, math.nan])
    assert (low, high, math.isnan(nan)) == (-math.inf, math.inf, True)


def test_nothing_is_shared_with_the_sender() -> None:
    inner = [1]
    values = [inner, {"k": inner}]
    arrived = through_the_wire(values)
    inner.append(2)
    assert arrived == [[1], {"k": [1]}]


# ---- Arrow ----


def batch() -> pa.RecordBatch:
    return pa.record_batch([pa.array(["a", None, "c"] * 5), pa.array(range(15))], names=["word", "n"])


@pytest.mark.parametrize("sent", [batch(), batch().slice(1, 2), batch().slice(0, 0)], ids=["whole", "slice", "empty"])
def test_a_batch_comes_back_the_same(sent: pa.RecordBatch) -> None:
    for body in (encode_batch(sent), bytes(encode_batch(sent)), memoryview(encode_batch(sent))):
        assert decode_batch(body).equals(sent)


@given(st.integers(min_value=0))
def test_a_batch_that_was_cut_short_is_refused(length: int) -> None:
    body = bytes(encode_batch(batch()))
    body = body[:length % (len(body) - 8)]  # its last 8 bytes say that the stream ends, which the batch can do without
    with pytest.raises(WireError, match="not an Arrow batch"):
        decode_batch(body)


def test_a_dictionary_comes_back_the_same_and_bad_indices_are_refused() -> None:
    column = pa.array(["a", "b", None, "a"]).dictionary_encode()
    for sent in (pa.record_batch([column], names=["word"]), pa.record_batch([column.slice(2)], names=["word"])):
        assert decode_batch(encode_batch(sent)).equals(sent)
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(WireError, match="not an Arrow batch"):
        decode_batch(encode_batch(pa.record_batch([wrong], names=["word"])))


def test_a_batch_whose_insides_do_not_fit_is_refused() -> None:
    """Its header is right, so Arrow takes it; reading a text past the end of its buffer would take the process down."""
    body = bytes(encode_batch(batch()))
    offsets = (b"\0\0\0\0\1\0\0\0\1\0\0\0", b"\0\0\0\0\xff\xff\xff\x7f\1\0\0\0")
    assert body.count(offsets[0]) == 1
    with pytest.raises(WireError, match="not an Arrow batch"):
        decode_batch(body.replace(*offsets))


@pytest.mark.parametrize("kind", ["{:04}".format, float, lambda number: [number]], ids=["strings", "floats", "lists"])
def test_a_part_of_a_batch_takes_only_its_part_of_a_dictionary(kind: Callable[[int], Any]) -> None:
    indices = pa.array([*range(999, -1, -1), None], pa.int16())
    words = pa.DictionaryArray.from_arrays(indices, pa.array(map(kind, range(1000))))
    whole = pa.record_batch([words, pa.array(range(1001))], names=["w", "n"])
    part = whole.take(pa.array([1000, 7, 3, 7]))
    read = decode_batch(encode_batch(part))
    assert read.to_pydict() == part.to_pydict() and read.schema == part.schema
    assert len(read.column("w").dictionary) == 2
    assert len(encode_batch(part)) < len(encode_batch(whole)) / 5
    assert decode_batch(encode_batch(whole)).equals(whole)
