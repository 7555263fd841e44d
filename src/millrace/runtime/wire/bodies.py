"""Bodies of chunks: msgpack rows, or an Arrow IPC stream. No I/O, and no pickle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import WireError
from millrace.hotpath.steps import RowDecoder
from millrace.state.packing import BIG_INT, PAIRS, as_key
from millrace.state.time_values import EXTENDED, EXTENSIONS, extension_of, read_extension

_encoder = msgspec.msgpack.Encoder()


def encode_rows(rows: Sequence[Sequence[Any]]) -> bytes:
    """Encode rows of plain values as msgpack, integers beyond 64 bits as an extension. Decimals, dates and times become text:
    rows that may hold some need `encode_extended`."""
    try:
        return _encoder.encode(rows)
    except OverflowError:
        return encode_extended(rows)


def encode_extended(rows: Sequence[Sequence[Any]]) -> bytes:
    """Encode rows as msgpack, with extensions for values that it lacks. Slower than `encode_rows` by a call per value."""
    return _encoder.encode(_wrapped(rows))


def _wrapped(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if isinstance(value, list | tuple | set | frozenset):
        return [_wrapped(item) for item in value]
    if isinstance(value, dict):
        return _wrapped_dict(value)
    return extension_of(value) if is_extended(value) else value


def _wrapped_dict(value: dict[Any, Any]) -> Any:
    """A dict, or its items as an extension if it has keys that need one: an extension cannot be the key of a dict."""
    if not any(map(_is_wrapped_key, value)):
        return {key: _wrapped(item) for key, item in value.items()}
    return msgspec.msgpack.Ext(PAIRS, _encoder.encode([_wrapped(each) for item in value.items() for each in item]))


def _is_wrapped_key(key: Any) -> bool:
    if isinstance(key, int):
        return not -(2**63) <= key < 2**64
    return any(map(_is_wrapped_key, key)) if isinstance(key, tuple) else is_extended(key)


def is_extended(value: Any) -> bool:
    """True for a decimal, a date or a time that msgpack would turn into text. A datetime with a zone is a timestamp of msgpack,
    which comes back in UTC."""
    return type(value) in EXTENDED and not (type(value) is datetime and value.tzinfo is not None)


def holds_extended(value: Any) -> bool:
    """True if the value is extended, or a container of such values."""
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_extended, value))
    if isinstance(value, dict):
        return any(map(holds_extended, value)) or any(map(holds_extended, value.values()))
    return is_extended(value)


def _unwrap(code: int, data: memoryview) -> Any:
    if code == BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code in EXTENSIONS:
        return read_extension(code, data)
    if code != PAIRS:
        raise ValueError(f"unknown extension {code}")
    items = _value_decoder.decode(data)
    try:
        return dict(zip(map(as_key, items[::2]), items[1::2], strict=True))
    except TypeError as error:  # a dict as a key
        raise ValueError(f"extension {code} holds no dict: {error}") from None


def row_decoder(row_type: Any) -> RowDecoder:
    """A decoder of chunk bodies into lists of `row_type`: `tuple`, or the named tuple of a stream."""
    return RowDecoder(row_type, msgspec.msgpack.Decoder(list[row_type], ext_hook=_unwrap))


_value_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=_unwrap)


def through_the_wire(values: Sequence[Any], extended: bool = False) -> list[Any]:
    """Copy values as if they were sent: tuples handed over inside a worker must look the same and share nothing. `extended`:
    some may be decimals, dates or times."""
    return _value_decoder.decode((encode_extended if extended else encode_rows)(values))


def has_plain_columns(schema: pa.Schema) -> bool:
    """True if no column is of a type whose values are extended, or contain others."""
    return all((pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)) or kind in _PLAIN_COLUMNS
               for kind in schema.types)


_PLAIN_COLUMNS = (pa.null(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    batch = _without_unused(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _without_unused(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with short dictionaries: a part of a batch has the dictionary of the whole, which can be far larger."""
    long = [index for index, kind in enumerate(batch.schema.types)
            if pa.types.is_dictionary(kind) and len(batch.column(index).dictionary) > batch.num_rows]
    for index in long:
        batch = batch.set_column(index, batch.schema.field(index), _compact(batch.column(index)))
    return batch


def _compact(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used = column.indices.unique().drop_null().sort()
    indices = pc.index_in(column.indices, used).cast(column.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, column.dictionary.take(used), ordered=column.type.ordered)


def decode_batch(body: Any) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(body) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)  # 4 µs for 1,000 strings; a wrong offset would crash the process
        return batch
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise WireError(f"a body of {len(body)} bytes is not an Arrow batch: {error}") from None
