"""Hashes of Arrow columns: those of the same keys in rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import stable_hash
from millrace.runtime.flow.column_hashes import can_hash, column_hashes

LENGTHS = [0, 1, 31, 32, 63, 64, 65, 127, 128, 255, 256, 65_535, 65_536]  # each side of what a header can count, and of a turn
POWERS = [sign * 2**bits + more for bits in range(64) for sign in (1, -1) for more in (-1, 0, 1)]
WHOLE = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63, pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32,
         pa.uint64(): 64}


def expected(columns: list[pa.Array]) -> list[int]:
    keys = [column.to_pylist() for column in columns]
    return list(map(stable_hash, keys[0] if len(keys) == 1 else zip(*keys, strict=True)))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("with_nulls", [False, True])
def test_texts_of_every_length_hash_as_in_a_row(kind: pa.DataType, with_nulls: bool) -> None:
    texts: list[Any] = ["x" * length for length in LENGTHS] + ["ä", "€uro", "\U0001f600", "a\0b"]
    values = [text.encode() for text in texts] if kind in (pa.binary(), pa.large_binary()) else texts
    column = pa.array(values + [None] * with_nulls, kind)
    assert can_hash([column])
    for part in (column, column.slice(3, 7), column.slice(0, 0), column.slice(0, 1), column.slice(len(column) - 1)):
        assert column_hashes([part]).tolist() == expected([part])


@pytest.mark.parametrize("kind", list(WHOLE), ids=str)
@pytest.mark.parametrize("with_nulls", [False, True])
def test_integers_of_every_size_hash_as_in_a_row(kind: pa.DataType, with_nulls: bool) -> None:
    bits = WHOLE[kind]
    least = 0 if pa.types.is_unsigned_integer(kind) else -(2**bits)
    column = pa.array([number for number in [-33, -32, *POWERS] if least <= number < 2**bits] + [None] * with_nulls, kind)
    for part in (column, column.slice(3), column.slice(0, 0)):
        assert column_hashes([part]).tolist() == expected([part])


def test_booleans_and_nulls_hash_as_in_a_row() -> None:
    for column in (pa.array([True, False, None]), pa.array([True, False]), pa.nulls(3), pa.array([None, None], pa.string())):
        assert column_hashes([column]).tolist() == expected([column])


def test_keys_of_other_types_are_not_hashed() -> None:
    assert not can_hash([pa.array([1.5])])
    assert not can_hash([pa.array(["a"]), pa.array([[1]])])
    assert not can_hash([pa.array([1])] * 16)


columns_of = {
    "text": lambda size: st.lists(st.none() | st.text(max_size=80).filter(lambda text: text.isprintable()), min_size=size,
                                  max_size=size).map(lambda values: pa.array(values, pa.string())),
    "bytes": lambda size: st.lists(st.none() | st.binary(max_size=80), min_size=size, max_size=size)
    .map(lambda values: pa.array(values, pa.binary())),
    "numbers": lambda size: st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=size, max_size=size)
    .map(lambda values: pa.array(values, pa.int64())),
    "flags": lambda size: st.lists(st.none() | st.booleans(), min_size=size, max_size=size)
    .map(lambda values: pa.array(values, pa.bool_())),
}


@given(st.data(), st.integers(0, 12), st.lists(st.sampled_from(sorted(columns_of)), min_size=1, max_size=4))
def test_any_key_hashes_as_in_a_row(data: st.DataObject, size: int, kinds: list[str]) -> None:
    columns = [data.draw(columns_of[kind](size)) for kind in kinds]
    first = data.draw(st.integers(0, size))
    for each in (columns, [column.slice(first) for column in columns]):
        assert column_hashes(each).tolist() == expected(each)
