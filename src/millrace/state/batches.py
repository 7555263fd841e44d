"""Adds a whole Arrow batch of keys to a keyed state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.keyed.counted import CountedState, turn_into_arrays
from millrace.api.keyed.plain import KeyedState
from millrace.state.column_types import holds_plain_keys


def add_batch(state: KeyedState, keys: Any, amounts: Any = None) -> list[pa.Array]:
    """`KeyedState.add_batch`."""
    different, sums = _sums(_as_array(keys, "keys"), None if amounts is None else _as_array(amounts, "amounts"))
    as_objects = different.to_pylist()
    if turn_into_arrays(state):
        assert isinstance(state, CountedState)
        totals = state.add_all(as_objects, sums)
        if totals is not None:
            return [different, pa.array(totals)]
    # With a ttl, or with numbers that are no integers of 64 bits.
    one_by_one = [state[key] + amount for key, amount in zip(as_objects, sums.tolist(), strict=True)]
    totals_of_any_type = pa.array(one_by_one, None if one_by_one else pa.int64())  # raises if there is none for all of them
    state.update(zip(as_objects, one_by_one, strict=True))
    return [different, totals_of_any_type]


def _as_array(values: Any, what: str) -> pa.Array:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not isinstance(array, pa.Array):
        raise TypeError(f"add_batch takes the {what} as a column of an Arrow batch, not {type(values).__name__}; for a single "
                        "key there is add")
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if what == "amounts":
        if not pa.types.is_integer(array.type) or array.null_count:
            raise TypeError(f"add_batch takes integers without nulls as amounts, not {array.type} with {array.null_count} "
                            "nulls; cast them, or add to one key at a time")
    elif not holds_plain_keys(kind):
        raise TypeError(f"add_batch takes keys of strings, bytes, integers or booleans, not {kind}; add to one key at a time")
    return array


def _sums(keys: pa.Array, amounts: pa.Array | None) -> tuple[pa.Array, np.ndarray]:
    """The different keys, and for each the number of its rows or the sum of its amounts."""
    if amounts is not None and len(amounts) != len(keys):
        raise ValueError(f"add_batch got {len(keys)} keys and {len(amounts)} amounts: it takes one amount for each key")
    if pa.types.is_dictionary(keys.type) and (keys.null_count or len(keys.dictionary) > len(keys)):
        keys = keys.dictionary_decode()
    if amounts is None and not pa.types.is_dictionary(keys.type):
        counted = keys.value_counts()
        return counted.field("values"), counted.field("counts").to_numpy()
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode(null_encoding="encode")
    different, places = encoded.dictionary, encoded.indices.to_numpy()
    once = different.dictionary_encode(null_encoding="encode")
    if len(once.dictionary) < len(different):  # a dictionary may have a value twice
        different, places = once.dictionary, once.indices.to_numpy()[places]
    rows = np.bincount(places, minlength=len(different))
    sums = rows.astype(np.int64) if amounts is None else _sums_at(places, amounts, len(different))
    if rows.all():
        return different, sums
    used = np.flatnonzero(rows)
    return different.take(pa.array(used)), sums[used]


def _sums_at(places: np.ndarray, amounts: pa.Array, size: int) -> np.ndarray:
    extremes = pc.min_max(amounts).as_py()
    if len(amounts) * max(abs(extremes["min"] or 0), abs(extremes["max"] or 0)) >= 2**63:
        raise OverflowError(f"add_batch got {len(amounts)} amounts from {extremes['min']} to {extremes['max']}: their sum may "
                            "exceed 64 bits; add to one key at a time")
    sums = np.zeros(size, np.int64)
    np.add.at(sums, places, amounts.to_numpy().astype(np.int64))
    return sums
