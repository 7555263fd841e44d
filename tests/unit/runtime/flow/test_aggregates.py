"""Combining of tuples by the aggregates of a subscription: rows and Arrow batches, against a truth computed key by key."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf, isnan, nan
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import AGGREGATES
from millrace.runtime.flow.aggregates import Aggregates
from millrace.runtime.flow.routing import rows_of_batch

FIELDS = ("total", "key", "low", "part", "high", "begin", "end", "every", "some")
KEYS = [1, 3]
HOW = {"total": "sum", "low": "min", "high": "max", "begin": "first", "end": "last", "every": "all", "some": "any"}
TYPES = [pa.int64(), pa.string(), pa.int16(), pa.int8(), pa.string(), pa.list_(pa.int64()), pa.timestamp("us", "UTC"),
         pa.bool_(), pa.bool_()]
SCHEMA = pa.schema(list(zip(FIELDS, TYPES, strict=True)), metadata={"made": "by hand"})
NUMBERS = st.integers(-2**31, 2**31)
WIDE_ROWS = st.lists(st.tuples(
    NUMBERS, st.sampled_from(["a", "b", None, ""]), st.integers(-2**15, 2**15 - 1), st.integers(0, 2), st.text(max_size=3),
    st.none() | st.lists(st.integers(0, 9), max_size=2), st.none() | st.datetimes(timezones=st.just(UTC)), st.booleans(),
    st.booleans()), min_size=1, max_size=40)
Row = tuple[Any, ...]


def aggregates(fields: Sequence[str] = FIELDS, keys: Sequence[int] = KEYS,
               how: dict[str, str] | None = None) -> tuple[Aggregates, list[BaseException]]:
    errors = list[BaseException]()
    return Aggregates(fields, keys, tuple((how or HOW).items()), errors.append), errors


def one(how: str) -> tuple[Aggregates, list[BaseException]]:
    return aggregates(("key", "value"), [0], {"value": how})


TRUTH: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda values: sum(values[1:], values[0]), "min": lambda values: sorted(values)[0],
    "max": lambda values: sorted(values)[-1], "first": lambda values: values[0], "last": lambda values: values[-1],
    "all": lambda values: False not in values, "any": lambda values: True in values}


def truth(rows: Sequence[Row]) -> list[Row]:
    """The aggregates of the rows of each key, in the order of the first rows of the keys."""
    of_key = defaultdict[Row, list[Row]](list)
    for row in rows:
        of_key[row[1], row[3]].append(row)
    return [tuple(TRUTH[HOW[field]]([row[place] for row in same]) if field in HOW else same[0][place]
                  for place, field in enumerate(FIELDS)) for same in of_key.values()]


def as_batch(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types,
                                                                                     strict=True)], schema=schema)


def pair_batch(keys: Any, values: Any) -> pa.RecordBatch:
    return pa.record_batch([keys if isinstance(keys, pa.Array) else pa.array(keys), values], names=["key", "value"])


def test_there_is_a_truth_for_every_aggregate() -> None:
    assert TRUTH.keys() == set(AGGREGATES) == set(HOW.values())


@given(WIDE_ROWS)
def test_rows_become_the_aggregates_of_their_keys(rows: list[Row]) -> None:
    combiner, errors = aggregates()
    before = list(rows)
    combined = list(combiner.rows(rows))
    assert combined == truth(rows) and rows == before and not errors
    assert [list(map(type, row)) for row in combined] == [list(map(type, row)) for row in truth(rows)]


@given(WIDE_ROWS)
def test_batches_become_the_same_as_rows_with_the_schema_that_they_had(rows: list[Row]) -> None:
    combiner, errors = aggregates()
    batch = as_batch(rows)
    combined = combiner.batch(batch)
    combined.validate(full=True)
    assert rows_of_batch(combined) == truth(rows) and not errors
    assert combined.schema.equals(SCHEMA, check_metadata=True)


@given(WIDE_ROWS, st.data())
def test_any_split_into_chunks_comes_to_the_same(rows: list[Row], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    chunks = [rows[start:end] for start, end in itertools.pairwise([0, *cuts, len(rows)]) if start < end]
    combiner, errors = aggregates()
    parts = [row for chunk in chunks for row in combiner.rows(chunk)]
    assert truth(parts) == truth(rows) == list(combiner.rows(parts))
    batches = [combiner.batch(as_batch(chunk)) for chunk in chunks]
    assert rows_of_batch(combiner.batch(pa.concat_batches(batches))) == truth(rows) and not errors


@pytest.mark.parametrize("kind", ["rows", "batch"])
def test_what_has_no_two_rows_of_a_key_is_the_same_object(kind: str) -> None:
    combiner, _ = one("sum")
    rows = [("a", 1), ("b", 2)]
    if kind == "rows":
        assert combiner.rows(rows) is rows
    else:
        batch = pair_batch(["a", "b"], pa.array([1, 2]))
        assert combiner.batch(batch) is batch


# -- values that are not combined ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "value", "result"), [("sum", None, 5), ("min", None, 2), ("max", nan, 3)])
def test_rows_with_none_or_nan_are_set_aside(how: str, value: Any, result: Any) -> None:
    combiner, errors = one(how)
    rows = [("a", 2), ("a", value), ("b", 1), ("a", 3), ("b", value)]
    *combined, of_a, of_b = combiner.rows(rows)
    assert combined == [("a", result), ("b", 1)] and (of_a, of_b) == (rows[1], rows[4]) and not errors
    batch = pair_batch([key for key, _ in rows], pa.array([value for _, value in rows], pa.float64()))
    *combined, of_a, of_b = rows_of_batch(combiner.batch(batch))
    assert combined == [("a", result), ("b", 1)] and (of_a[0], of_b[0]) == ("a", "b") and not errors
    assert all(each is None or isnan(each) for each in (of_a[1], of_b[1]))
    assert list(combiner.rows([("a", value)] * 3)) == [("a", value)] * 3


def test_a_sum_may_be_no_number() -> None:
    combiner, _ = one("sum")
    ((_, of_rows),) = combiner.rows([("a", nan), ("a", 1.0)])
    ((_, of_batch),) = rows_of_batch(combiner.batch(pair_batch(["a", "a"], pa.array([nan, 1.0]))))
    assert isnan(of_rows) and isnan(of_batch)


def test_where_the_order_matters_a_chunk_with_none_stays_whole() -> None:
    """The rows that are set aside would come behind later ones of their key."""
    combiner, errors = aggregates(("key", "value", "at"), [0], {"value": "sum", "at": "last"})
    rows = [("a", None, 1), ("a", 2, 2), ("a", 3, 3)]
    assert combiner.rows(rows) is rows
    batch = as_batch(rows, pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.int64())]))
    assert combiner.batch(batch) is batch and not errors


@pytest.mark.parametrize(("kind", "values"), [
    (pa.int8(), [100, 100]), (pa.int32(), [2**31 - 1, 1]), (pa.int64(), [2**63 - 1, 1]), (pa.int64(), [-2**63, -1]),
    (pa.uint64(), [2**64 - 1, 1]), (pa.decimal128(3, 2), [Decimal("9.99"), Decimal("0.02")]),
    (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(1)]), (pa.decimal256(76, 3), [Decimal("9" * 73), Decimal("9" * 73)])])
def test_a_sum_that_its_column_cannot_hold_is_left_to_the_receiver(kind: pa.DataType, values: list[Any]) -> None:
    combiner, errors = one("sum")
    batch = pair_batch(["a", "a"], pa.array(values, kind))
    assert combiner.batch(batch) is batch and not errors


@pytest.mark.parametrize(("kind", "values", "result"), [
    (pa.int8(), [100, 27], 127), (pa.int32(), [2**31 - 2, 1], 2**31 - 1), (pa.int64(), [2**61, 2**61], 2**62),
    (pa.int64(), [-2**61, -2**61], -2**62), (pa.uint64(), [2**62, 2**62], 2**63), (pa.float32(), [1.5, 2.25], 3.75),
    (pa.float64(), [inf, 1.0], inf), (pa.decimal128(3, 2), [Decimal("1.50"), Decimal("2.25")], Decimal("3.75")),
    (pa.decimal256(50, 3), [Decimal("1.5"), Decimal("2.25")], Decimal("3.750"))])
def test_sums_keep_the_type_of_their_column(kind: pa.DataType, values: list[Any], result: Any) -> None:
    combiner, errors = one("sum")
    combined = combiner.batch(pair_batch(["a", "a"], pa.array(values, kind)))
    assert combined.schema.field("value").type == kind and rows_of_batch(combined) == [("a", result)] and not errors


def test_integers_of_rows_have_any_size() -> None:
    combiner, _ = one("sum")
    assert list(combiner.rows([("a", 2**63), ("a", 2**64)])) == [("a", 2**63 + 2**64)]


@pytest.mark.parametrize(("values", "result"), [
    ([1, 2.5], 3.5), ([Decimal("1.5"), 2], Decimal("3.5")), ([timedelta(1), timedelta(2)], timedelta(3))])
def test_numbers_and_durations_are_added_up(values: list[Any], result: Any) -> None:
    combiner, errors = one("sum")
    assert list(combiner.rows([("a", value) for value in values])) == [("a", result)] and not errors


@pytest.mark.parametrize("value", ["b", b"b", date(2026, 1, 2), datetime(2026, 1, 2), Decimal("2.5"), 2, 2.5, True])
def test_values_that_have_an_order_are_compared(value: Any) -> None:
    less = type(value)(0) if isinstance(value, int | float | Decimal) else {
        "b": "a", b"b": b"a"}[value] if isinstance(value, str | bytes) else value - timedelta(1)
    for how, kept in (("min", less), ("max", value)):
        combiner, errors = one(how)
        rows = [("k", value), ("k", less), ("k", value)]
        batch = pair_batch(["k"] * 3, pa.array([each for _, each in rows]))
        assert list(combiner.rows(rows)) == rows_of_batch(combiner.batch(batch)) == [("k", kept)] and not errors


@pytest.mark.parametrize(("how", "values", "message"), [
    ("sum", ["x", "y"], "sum takes numbers or durations, not str"), ("sum", [True, True], "not bool"),
    ("sum", [1, "y"], "not int and str"), ("all", [1, 0], "all takes bool, not int"), ("any", ["x", "y"], "any takes bool"),
    ("min", [1, "y"], "'<' not supported"), ("max", [{"a": 1}, {"b": 2}], "'>' not supported"),
    ("max", [Decimal(1), Decimal("NaN")], "InvalidOperation")])
def test_rows_that_an_aggregate_does_not_take_are_reported_once(how: str, values: list[Any], message: str) -> None:
    combiner, errors = one(how)
    rows = [("a", value) for value in values]
    for _ in range(2):
        assert combiner.rows(rows) is rows
    (error,) = errors
    assert message in str(error) and "('a', " in str(error) and f"{how} of value" in str(error)
    assert list(combiner.rows([("a", None)] * 2)) == [("a", None)] * 2, "other rows are not given up"


@pytest.mark.parametrize(("how", "values"), [
    ("sum", pa.array(["x", "y"])), ("sum", pa.array([True, True])), ("all", pa.array([1, 0])), ("min", pa.array([[1], [2]])),
    ("sum", pa.array([timedelta(1), timedelta(2)])), ("sum", pa.array(["x", "y"]).dictionary_encode())])
def test_batches_that_arrow_cannot_aggregate_are_reported_once(how: str, values: pa.Array) -> None:
    combiner, errors = one(how)
    batch = pair_batch(["a", "a"], values)
    for _ in range(2):
        assert combiner.batch(batch) is batch
    (error,) = errors
    assert f"batches of key string, value {values.type} cannot be combined by {how} of value" in str(error)


def test_keys_that_are_lists_are_reported_and_sent_as_they_are() -> None:
    combiner, errors = one("sum")
    rows: list[Row] = [(["a"], 1), (["a"], 2)]
    assert combiner.rows(rows) is rows and "unhashable type: 'list'" in str(errors.pop())
    combiner, errors = one("sum")
    batch = pair_batch([["a"], ["a"]], pa.array([1, 2]))
    assert combiner.batch(batch) is batch and "Keys of type list" in str(errors.pop())


@pytest.mark.parametrize("keys", [
    pa.array(["a", "b", "a", None, None]).dictionary_encode(), pa.array([1, 2, 1, None, None]),
    pa.array([1.5, -0.5, 1.5, None, None]),
    pa.array([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1), None, None]), pa.array([True, False, True, None, None]),
    pa.array([b"a", b"b", b"a", None, None], pa.large_binary()),
    pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("1.5"), None, None])])
def test_keys_of_a_batch_are_of_any_type(keys: pa.Array) -> None:
    combiner, errors = one("sum")
    combined = combiner.batch(pair_batch(keys, pa.array([1, 2, 3, 4, 5])))
    combined.validate(full=True)
    different = keys.to_pylist()
    assert rows_of_batch(combined) == [(different[0], 4), (different[1], 2), (None, 9)] and not errors
    assert combined.schema.field("key").type == keys.type


def test_equal_keys_of_rows_are_one_whatever_their_type() -> None:
    """They have one key group, and one value in keyed state."""
    combiner, _ = one("sum")
    assert list(combiner.rows([(1, 1), (1.0, 2), (True, 4), ("1", 8)])) == [(1, 7), ("1", 8)]
