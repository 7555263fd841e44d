"""The types of Arrow columns whose values are plain keys."""

from __future__ import annotations

import pyarrow as pa


def holds_plain_keys(kind: pa.DataType) -> bool:
    """True for strings, bytes, integers, booleans and nulls: equal values in a column are equal in Python, too."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
                or pa.types.is_large_binary(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
                or pa.types.is_null(kind))
