"""Accepted and refused arguments of `emit`, and the immutability of emitted values."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import EmitError, EncodingError
from millrace.hotpath.plain import BOLT, HANDLE, SPOUT
from millrace.model.graph import StreamDef, TaskId
from millrace.runtime.tasks.output import Output

WIDTHS = range(1, 9)
SCALARS = ["text", 7, 2**70, 1.5, True, b"bytes", None, ""]


def output(width: int = 1, direct: bool = False) -> Output:
    return Output(TaskId("split", 3), 0, StreamDef("default", tuple("abcdefgh"[:width]), direct))


class Slow:
    """The slow path behind the fast one: records its calls."""

    def __init__(self, to: Output) -> None:
        self.to = to
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, values: Any, *rest: Any) -> str:
        self.calls.append((values, *rest))
        self.to.rows.append(self.to.row(values))
        return "from the slow path"


Emitter = Callable[..., tuple[Output, Slow, Any]]


@pytest.fixture(scope="module")
def emitter(steps: ModuleType) -> Emitter:
    """Makes the `emit` of a stream of this width, in one of its forms, with the output and the slow path behind it."""
    def made(width: int = 1, form: str = BOLT) -> tuple[Output, Slow, Any]:
        to = output(width)
        slow = Slow(to)
        return to, slow, steps.fast_emit(to, slow, form, track=form == SPOUT)

    return made


# ---- the fast path ----


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [list, tuple])
def test_scalars_in_a_list_or_tuple_become_one_row(width: int, make: Any, emitter: Emitter) -> None:
    to, slow, emit = emitter(width)
    assert emit(make(SCALARS[:width])) is None
    assert to.rows == [tuple(SCALARS[:width])]
    assert type(to.rows[0]) is tuple
    assert slow.calls == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_number_of_values_is_refused(width: int, wrong: int, emitter: Emitter) -> None:
    to, _, emit = emitter(width)
    with pytest.raises(EmitError, match=rf"split\[3\] emitted {width + wrong} values on .*, which has {width} "):
        emit(list(range(width + wrong)))
    assert to.rows == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", ["abcdefgh".__getitem__, lambda cut: b"abcdefgh"[cut], lambda cut: set(range(8)[cut]),
                                  lambda cut: dict.fromkeys(range(8)[cut]), lambda cut: iter(range(8)[cut]),
                                  lambda cut: range(8)[cut]], ids=["str", "bytes", "set", "dict", "iterator", "range"])
def test_anything_but_a_list_or_tuple_is_refused_even_of_the_right_length(width: int, make: Any, emitter: Emitter) -> None:
    to, _, emit = emitter(width)
    with pytest.raises(TypeError, match=r"split\[3\] emitted .* on stream 'default': emit takes a list or tuple"):
        emit(make(slice(width)))
    assert to.rows == []


def test_named_tuples_and_lists_of_ones_own_are_taken(emitter: Emitter) -> None:
    class MyList(list):
        pass

    to, _, emit = emitter(2)
    emit(namedtuple("Pair", "x y")(1, 2))
    emit(MyList([3, 4]))
    assert to.rows == [(1, 2), (3, 4)]
    assert {type(row) for row in to.rows} == {tuple}


def test_unusual_calls_go_to_the_slow_path_with_all_arguments(emitter: Emitter) -> None:
    _, slow, emit = emitter()
    assert emit([1], "other") == "from the slow path"
    emit([2], anchors=["t"])
    emit([3], anchors=[])
    emit([4], direct_task=7)
    emit([5], need_task_ids=True)
    emit([[6]])
    assert slow.calls == [([1], None, "other", None, None, False), ([2], None, None, ["t"], None, False),
                          ([3], None, None, [], None, False), ([4], None, None, None, 7, False),
                          ([5], None, None, None, None, True), ([[6]], None, None, None, None, False)]


def test_the_spouts_form_keeps_the_ids_beside_the_rows(emitter: Emitter) -> None:
    to, slow, emit = emitter(2, SPOUT)
    emit([1, 2], 7)
    emit((3, 4), tup_id="x")
    emit([5, 6])
    assert to.take() == ([(1, 2), (3, 4), (5, 6)], [7, "x", None])
    emit([7, 8], 9, "other", 1)
    assert slow.calls == [([7, 8], 9, "other", None, 1, False)]


def test_the_handles_form_takes_everything_by_position(emitter: Emitter) -> None:
    to, slow, emit = emitter(1, HANDLE)
    emit([1], 5, None, None, None, False)
    emit([2], 6, None, ["anchor"], None, False)
    assert to.rows == [(1,), (2,)]
    assert slow.calls == [([2], 6, None, ["anchor"], None, False)]


def test_rows_taken_are_out_of_reach_of_what_is_emitted_later(emitter: Emitter, steps: ModuleType) -> None:
    to, _, emit = emitter(1, SPOUT)
    second = steps.fast_emit(to, Slow(to), SPOUT, track=True)
    emit([1], 1)
    rows, ids = to.take()
    emit([2], 2)
    second([3], 3)
    assert (rows, ids) == ([(1,)], [1])
    assert to.take() == ([(2,), (3,)], [2, 3])
    assert to.take() == ([], [])


# ---- many at once ----


@pytest.mark.parametrize("make", [list, tuple, iter, lambda rows: (row for row in rows)],
                         ids=["list", "tuple", "iterator", "generator"])
@pytest.mark.parametrize("rows", [[], [(1, 2)], [[1, 2], (3, 4)], [(1, [2]), (3, (4,))]], ids=repr)
def test_many_rows_at_once_are_the_same_as_one_by_one(rows: list[Any], make: Any) -> None:
    at_once, one_by_one = output(2), output(2)
    at_once.extend(make(rows))
    one_by_one.rows += [one_by_one.row(row) for row in rows]
    assert at_once.rows == one_by_one.rows
    assert {type(row) for row in at_once.rows} <= {tuple}


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3), "ab", 7, (1, object())],
                         ids=["short", "long", "text", "number", "object"])
def test_one_wrong_row_among_many_is_refused_and_none_is_sent(wrong: Any) -> None:
    to = output(2)
    with pytest.raises((TypeError, EmitError)):
        to.extend([(1, 2), wrong, (3, 4)])
    assert to.rows == []


def test_many_rows_that_are_changed_afterwards_change_nothing() -> None:
    to, row, nested = output(2), [1, 2], [3]
    rows = [row, (4, nested)]
    to.extend(rows)
    row[0], rows[1] = 99, (0, 0)
    nested.append(99)
    assert to.rows == [(1, 2), (4, [3])]


# ---- emitted values are immutable ----


def test_a_list_that_is_changed_after_emit_changes_nothing(emitter: Emitter) -> None:
    to, _, emit = emitter(2)
    values: list[Any] = [1, 2]
    emit(values)
    values[0] = 99
    values.append(3)
    assert to.rows == [(1, 2)]


@pytest.mark.parametrize("nested", [[1, [2]], {"k": [1]}, bytearray(b"ab")], ids=["list", "dict", "bytearray"])
def test_nested_values_that_are_changed_after_emit_change_nothing(nested: Any, emitter: Emitter) -> None:
    to, _, emit = emitter(2)
    emit(["key", nested])
    before = repr(to.rows)
    if isinstance(nested, dict):
        nested["k"].append(2)
    else:
        nested.append(9)
    assert repr(to.rows) == before


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_nested_values_look_as_they_will_on_the_other_side(value: Any) -> None:
    def travelled(nested: Any) -> Any:
        return [travelled(item) for item in nested] if isinstance(nested, list | tuple) else nested

    to = output()
    assert to.row([value]) == (travelled(value),)


# ---- values that cannot be encoded ----


@dataclass
class Plain:
    x: Any


class Strange:
    pass


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(("value", "kind"), [
    (Strange(), "Strange"), (1j, "complex"), (object, "type"), (len, "builtin_function_or_method"), (CYCLE, "list"),
    ([1, {"k": Strange()}], "list"), (Plain(2**70), "Plain"), (["\ud800"], "list"),
], ids=["object", "complex", "class", "function", "cycle", "inside", "big int in a dataclass",
        "surrogate"])
def test_a_value_that_cannot_be_encoded_is_named_by_component_stream_field_and_type(value: Any, kind: str,
                                                                                    emitter: Emitter) -> None:
    to, _, emit = emitter(3)
    with pytest.raises(EncodingError) as caught:
        emit(["fine", value, 1])
    assert f"split[3] emitted a {kind} in field 'b' of stream 'default', which cannot be encoded" in str(caught.value)
    assert to.rows == []


# ---- Arrow ----


def test_a_batch_with_the_streams_columns_is_taken() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array(["x"])], names=["a", "b"])
    assert output(2).batch(batch) is batch


@pytest.mark.parametrize("names", [["b", "a"], ["a"], ["a", "b", "c"], ["a", "A"]])
def test_a_batch_with_other_columns_is_refused(names: list[str]) -> None:
    batch = pa.record_batch([pa.array([1])] * len(names), names=names)
    with pytest.raises(EmitError, match=r"split\[3\] emitted a batch with columns .* whose fields are \['a', 'b'\]"):
        output(2).batch(batch)


@pytest.mark.parametrize("other", [pa.table({"a": [1]}), [1], {"a": [1]}], ids=["table", "list", "dict"])
def test_anything_but_a_record_batch_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match=r"split\[3\] emitted \w+ on stream 'default': emit_arrow takes a pyarrow"):
        output().batch(other)


# ---- decimals, dates and times ----

TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize("value", [
    Decimal("1.50"), date(2026, 1, 2), datetime(2026, 1, 2, 3), time(4, 5), timedelta(days=-1), [Decimal("1.50")],
    {"a": [date(2026, 1, 2)]}, {date(2026, 1, 2): 1}, {(1, Decimal(2)): 1},
], ids=repr)
def test_decimals_dates_and_times_stay_what_they_are(value: Any, emitter: Emitter) -> None:
    to, _, emit = emitter(2)
    emit([1, value])
    assert repr(to.rows) == repr([(1, value)])
    assert to.extended, "its chunks are encoded with extensions from now on"


@pytest.mark.parametrize("value", [[1, "a"], {"a": [1.5]}, (1, (2,)), [float("nan")], {1: None}, frozenset({1})], ids=repr)
def test_other_nested_values_need_no_extension(value: Any, emitter: Emitter) -> None:
    to, _, emit = emitter(2)
    emit([1, value])
    assert not to.extended


def test_a_time_with_a_zone_arrives_in_utc(emitter: Emitter) -> None:
    to, _, emit = emitter(2)
    there = datetime(2026, 1, 2, 3, tzinfo=TOKYO)
    emit([there, [there]])
    here = there.astimezone(UTC)
    assert repr(to.rows) == repr([(here, [here])])
    assert not to.extended, "msgpack has timestamps"
