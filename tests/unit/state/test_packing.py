"""Values as bytes, for the snapshots of components."""

from __future__ import annotations

from collections import Counter, OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest

from millrace.errors import CorruptCheckpoint, EncodingError
from millrace.state.packing import DEEPEST, pack_value, unpack_value


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


def nested(kind: Any, levels: int) -> Any:
    value: Any = kind()
    for _ in range(levels - 1):
        value = {1: value} if kind is dict else kind([value])
    return value


@pytest.mark.parametrize("value", [
    None, True, 0, 1.5, "", "é", b"\xff", [], (), {}, set(), frozenset(), 2**64, -(2**200), "\ud800", (1, (2, [3])),
    Decimal("1.50"), Decimal("NaN"), date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6), datetime(2026, 1, 2, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), time(1, 2, 3), timedelta(days=-1, microseconds=2),
    {date(2026, 1, 2): Decimal(1)}, {(1, date(2026, 1, 2)): {2**70: [time(1)]}}, {date(2026, 1, 2)},
    [(Decimal("0.1"), "\ud800")],
    {(1, ("a", None)): {2**70: "\udfff"}}, {1, (2, 3)}, frozenset({("a",)}), [{}, {"a": (1,)}, {3}], {1: [1.0, True]},
])
def test_values_come_back_as_they_were(value: Any) -> None:
    back = unpack_value(pack_value(value))
    assert repr(back) == repr(value)
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [
    object(), Counter(a=1), OrderedDict(), Point(1), bytearray(b"a"), Text("a"), [Text("a")], {Text("a"): 1}, {"a": Text("a")},
    {frozenset(): 1}, {(Text("a"),): 1}, {Point(1): 1}, (Point(1),), {1: [Counter()]}, 1j,
])
def test_values_that_would_be_read_back_as_something_else_are_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match=rf"a {type(value).__name__} cannot be packed: .*no subclass of these"):
        pack_value(value)


@pytest.mark.parametrize("kind", [tuple, list, dict, frozenset])
def test_values_nested_too_deep_to_be_read_back_are_refused(kind: Any) -> None:
    assert unpack_value(pack_value(nested(kind, DEEPEST))) == nested(kind, DEEPEST)
    with pytest.raises(EncodingError, match=f"more than {DEEPEST} levels"):
        pack_value(nested(kind, DEEPEST + 1))


def test_a_key_that_is_nested_too_deep_is_refused() -> None:
    value = {nested(tuple, DEEPEST - 1): 1}
    assert unpack_value(pack_value(value)) == value
    with pytest.raises(EncodingError, match="has the key"):
        pack_value({nested(tuple, DEEPEST): 1})


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(EncodingError):
        pack_value(ring)


@pytest.mark.parametrize("data", [
    b"", b"\xc1", pack_value("abc")[:-1], pack_value(1) + b"\x00", b"\xdd\xff\xff\xff\xff", b"\xa1\xff",
    *(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, b"\x91\x90")) for code in (0, 3, 5, 6, 99)),
    *(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, b"\xc1")) for code in (2, 3, 4, 6)),
])
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=f"these {len(data)} bytes are not a packed value"):
        unpack_value(data)
