"""`stable_hash` for the columns of an Arrow batch: the same numbers as for rows, without a Python object for each value."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.state.column_types import holds_plain_keys

# The bytes that msgpack puts before a value: by the most that a value of the kind may be, or the longest that it may be.
_STRINGS = ((31, 0xA0, 0), (0xFF, 0xD9, 1), (0xFFFF, 0xDA, 2), (0xFFFFFFFF, 0xDB, 4))
_BYTES = ((0xFF, 0xC4, 1), (0xFFFF, 0xC5, 2), (0xFFFFFFFF, 0xC6, 4))
_POSITIVE = ((0x7F, 0x00, 0), (0xFF, 0xCC, 1), (0xFFFF, 0xCD, 2), (0xFFFFFFFF, 0xCE, 4), (2**64 - 1, 0xCF, 8))
_NEGATIVE = ((32, 0x00, 0), (2**7, 0xD0, 1), (2**15, 0xD1, 2), (2**31, 0xD2, 4), (2**63, 0xD3, 8))  # by the absolute value
_NIL, _ARRAY = 0xC0, 0x90
_MOST_FIELDS = 15  # that msgpack counts in one byte
_TOGETHER = 64  # bytes of a value that are taken in turn for all values; the rest of a long one is taken at once

_TEXT = (pa.string(), pa.large_string())
_BINARY = (pa.binary(), pa.large_binary())
_LONG_OFFSETS = (pa.large_string(), pa.large_binary())


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_CRC = _table()


def can_hash(columns: Sequence[pa.Array]) -> bool:
    """True if all columns are of strings, bytes, integers, booleans or nulls; others need `stable_hash` for each value."""
    return len(columns) <= _MOST_FIELDS and all(holds_plain_keys(column.type) for column in columns)


def column_hashes(columns: Sequence[pa.Array]) -> np.ndarray:
    """`stable_hash` of the key in each row: of a value if there is one column, else of the tuple of values."""
    hashes = _Hashes(len(columns[0]))
    if len(columns) > 1:
        hashes.add_byte(None, _ARRAY | len(columns))
    for column in columns:
        hashes.add_column(column)
    return hashes.result()


class _Hashes:
    """The CRC-32 of what was added for each row."""

    def __init__(self, rows: int) -> None:
        self._state = np.full(rows, 0xFFFFFFFF, np.uint32)

    def result(self) -> np.ndarray:
        return ~self._state

    def add_byte(self, rows: np.ndarray | None, byte: np.ndarray | int) -> None:
        """Add a byte to each of these rows; None: to all."""
        if rows is None:
            self._state = _next(self._state, byte)
        else:
            self._state[rows] = _next(self._state[rows], byte)

    def add_column(self, column: pa.Array) -> None:
        kind, rows = column.type, None
        if column.null_count:
            there = pc.is_valid(column).to_numpy(zero_copy_only=False)
            self.add_byte(np.flatnonzero(~there), _NIL)
            rows = np.flatnonzero(there)
        if pa.types.is_null(kind):
            return
        if kind in _TEXT or kind in _BINARY:
            self._add_texts(rows, column)
            return
        if column.null_count:
            column = column.drop_null()
        if pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        self._add_numbers(rows, column.to_numpy())

    def _add_numbers(self, rows: np.ndarray | None, numbers: np.ndarray) -> None:
        rows = np.arange(len(numbers)) if rows is None else rows
        if numbers.dtype.kind == "u":
            self._add_headed(rows, numbers.astype(np.uint64), _POSITIVE)
            return
        negative = numbers < 0
        if negative.any():
            below = numbers[negative].astype(np.int64).view(np.uint64)
            self._add_headed(rows[negative], below, _NEGATIVE, -below)
            rows, numbers = rows[~negative], numbers[~negative]
        self._add_headed(rows, numbers.astype(np.uint64), _POSITIVE)

    def _add_headed(self, rows: np.ndarray, numbers: np.ndarray, headers: Sequence[tuple[int, int, int]],
                    sizes: np.ndarray | None = None) -> None:
        """Add numbers, each with as many bytes as its size needs; `sizes`: the numbers themselves, if not given."""
        sizes = numbers if sizes is None else sizes
        if not len(sizes):
            return
        largest = int(sizes.max())
        for most, header, width in headers:
            fits = sizes <= np.uint64(most)
            if largest <= most and fits.all():
                self._add_number(rows, numbers, header, width)
                return
            if fits.any():
                self._add_number(rows[fits], numbers[fits], header, width)
            rows, numbers, sizes = rows[~fits], numbers[~fits], sizes[~fits]

    def _add_number(self, rows: np.ndarray, numbers: np.ndarray, header: int, width: int) -> None:
        state = self._state[rows]
        if not width:
            state = _next(state, (numbers & np.uint64(0xFF)).astype(np.uint8) | np.uint8(header))
        else:
            state = _next(state, header)
            for shift in range(8 * width - 8, -1, -8):
                state = _next(state, ((numbers >> np.uint64(shift)) & np.uint64(0xFF)).astype(np.uint8))
        self._state[rows] = state

    def _add_texts(self, rows: np.ndarray | None, column: pa.Array) -> None:
        offset_type = np.int64 if column.type in _LONG_OFFSETS else np.int32
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, offset_type)[column.offset:column.offset + len(column) + 1]
        starts, lengths = bounds[:-1], np.diff(bounds)
        if rows is None:
            rows = np.arange(len(column))
        else:
            starts, lengths = starts[rows], lengths[rows]
        self._add_headed(rows, lengths.astype(np.uint64), _STRINGS if column.type in _TEXT else _BYTES)
        if data is not None:
            self._add_contents(rows, np.frombuffer(data, np.uint8), starts, lengths)

    def _add_contents(self, rows: np.ndarray, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Add `lengths` bytes of `data` from `starts` on: the first byte of all values, then the second of those that have one,
        and so on."""
        order = np.argsort(np.minimum(lengths, _TOGETHER + 1).astype(np.uint8), kind="stable")[::-1]
        rows, starts, lengths = rows[order], starts[order], lengths[order]
        state = self._state[rows]
        longer = len(lengths) - np.cumsum(np.bincount(np.minimum(lengths, _TOGETHER + 1), minlength=_TOGETHER + 2))
        for place in range(_TOGETHER):
            count = longer[place]
            if not count:
                break
            state[:count] = _next(state[:count], data[starts[:count] + place])
        for number in range(longer[_TOGETHER]):
            rest = data[starts[number] + _TOGETHER:starts[number] + lengths[number]]
            state[number] = zlib.crc32(rest.tobytes(), int(state[number]) ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
        self._state[rows] = state


def _next(state: np.ndarray, byte: np.ndarray | int) -> np.ndarray:
    """The states of a CRC-32 after one more byte."""
    return _CRC[(state ^ byte).astype(np.uint8)] ^ (state >> np.uint32(8))
