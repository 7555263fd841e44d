"""Values that Arrow accepts and Spark cannot read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millrace.connectors.checked_column import UNFIT, column


def must(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


POINT = pa.struct([must("x", pa.int32()), pa.field("y", pa.int32())])
POINTS = pa.list_(pa.field("element", POINT))
COUNTS = pa.map_(pa.string(), must("value", pa.int64()))
TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(("kind", "values"), [
    (pa.int64(), [1, 2.0, -(2**63), None]),
    (POINT, [{"x": 1}, None, {"x": 2, "y": 3}]),
    (POINTS, [[{"x": 1}], [], None, [None]]),
    (COUNTS, [{"a": 1, "b": 1}, {}, None, {"a": 2}]),
    (pa.date32(), [date.min, date.max, None, 0]),
    (TIME, [datetime.min, datetime(2026, 1, 2, tzinfo=UTC), datetime.max, 0]),
    (pa.time64("ns"), [0, 24 * 60 * 60 * 10**9 - 1]),
    (pa.decimal128(10, 2), [Decimal("1.2"), 5, None]),
    (pa.string(), []),
])
def test_valid_values_are_accepted(kind: pa.DataType, values: list[Any]) -> None:
    assert column(values, pa.field("c", kind)).equals(pa.array(values, kind))


@pytest.mark.parametrize(("field", "value", "message"), [
    (must("c", pa.int64()), None, "c is declared not null"),
    (pa.field("c", POINT), {"y": 1}, r"c\.x is declared not null"),
    (pa.field("c", POINTS), [{"x": 1}, {"x": None}], r"an element of c\.x is declared not null"),
    (pa.field("c", COUNTS), {"a": None}, "a value of c is declared not null"),
    (pa.field("c", COUNTS), {"a": 1, b"a": 2}, "c is a map, and has a key twice: 'a'"),
    (pa.field("c", COUNTS), {None: 1}, "null"),
    (pa.field("c", pa.int64()), 1.5, "1.5 is not a whole number"),
    (pa.field("c", pa.int64()), float("nan"), "nan is not a whole number"),
    (pa.field("c", pa.date32()), 2932897, "c is a date, and 2932897 is beyond the years 1 to 9999"),
    (pa.field("c", pa.date32()), -719163, "beyond the years 1 to 9999"),
    (pa.field("c", TIME), 2**63 - 1, "c is a time, and 9223372036854775807 is beyond the years 1 to 9999"),
    (pa.field("c", pa.list_(pa.timestamp("us"))), [0, -(2**62)], "an element of c is a time"),
    (pa.field("c", pa.time64("ns")), -1, "c is a time of day, and -1 is beyond the 24 hours"),
    (pa.field("c", pa.decimal128(10, 2)), Decimal("1.234"), "data loss"),
    (pa.field("c", pa.decimal128(10, 2)), Decimal("123456789.1"), "precision"),
    (pa.field("c", pa.decimal128(10, 2)), Decimal("NaN"), "NaN"),
    (pa.field("c", pa.string()), b"\xff", "utf8"),
    (pa.field("c", pa.string()), "\ud800", "surrogates"),
])
def test_values_that_spark_cannot_read_are_refused(field: pa.Field, value: Any, message: str) -> None:
    with pytest.raises(UNFIT, match=message):
        column([value], field)
