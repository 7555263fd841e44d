"""Packs values as msgpack without losing types: a type that msgpack would change, or cannot hold, becomes an extension."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.api.keyed.keys import ATOMS
from millrace.errors import CorruptCheckpoint, EncodingError
from millrace.state.time_values import EXTENDED, EXTENSIONS, extension_of, read_extension

DEEPEST = 100  # levels of nested containers; reading takes more stack than writing

# msgpack extension codes
BIG_INT, TUPLE, SET, FROZENSET, LONE_SURROGATES, PAIRS = 1, 2, 3, 4, 5, 6
_KINDS: dict[int, type] = {TUPLE: tuple, SET: set, FROZENSET: frozenset}
_CODES = {kind: code for code, kind in _KINDS.items()}

UNREADABLE_VALUE = (msgspec.DecodeError, ValueError, TypeError, RecursionError)  # raised by invalid bytes
TOO_ODD = (OverflowError, UnicodeEncodeError)  # a number beyond 64 bits, or text that is not UTF-8: rare, so tried without
encode_msgpack = msgspec.msgpack.Encoder().encode


def pack_value(value: Any) -> bytes:
    """Packs any value that keyed state can hold without a codec: str, int, float, bool, None, bytes, Decimal, dates and times,
    and lists, tuples, sets, frozensets and dicts of them."""
    try:
        return _packed(plain_value(value))
    except (TypeError, RecursionError) as error:
        raise EncodingError(f"a {type(value).__name__} cannot be packed: {error}. Use str, int, float, bool, None, bytes, "
                            "Decimal, dates and times, and lists, tuples, sets, frozensets and dicts of them, and no "
                            "subclass of these") from None


def unpack_value(data: bytes) -> Any:
    """Unpacks the output of `pack_value`."""
    try:
        return _decoder.decode(data)
    except UNREADABLE_VALUE as error:
        raise CorruptCheckpoint(f"these {len(data)} bytes are not a packed value: {error}. Resume from an earlier wave, if one "
                                "is kept") from None


def plain_value(value: Any, levels: int = DEEPEST) -> Any:
    """The value in types that msgpack preserves; TypeError for a type that cannot be packed."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind in EXTENDED:
        return extension_of(value)
    if not levels:
        raise TypeError(f"its containers are nested more than {DEEPEST} levels deep")
    if kind is list:
        return value if ATOMS.issuperset(map(type, value)) else [plain_value(item, levels - 1) for item in value]
    if kind is dict:
        return _plain_dict(value, levels - 1)
    if kind in _CODES:
        return msgspec.msgpack.Ext(_CODES[kind], _packed([plain_value(item, levels - 1) for item in value]))
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not a supported type")


def _plain_dict(value: dict[Any, Any], levels: int) -> Any:
    if not ATOMS.issuperset(map(type, value)):
        for key in value:
            if not _is_preserved(key, levels):
                raise TypeError(f"a dict in it has the key {key!r} ({type(key).__name__})")
        if any(map(_is_extended_key, value)):
            items = [each for key, item in value.items() for each in (plain_key(key), plain_value(item, levels))]
            return msgspec.msgpack.Ext(PAIRS, _packed(items))
    if ATOMS.issuperset(map(type, value.values())):
        return value
    return {key: plain_value(item, levels) for key, item in value.items()}


def _is_preserved(key: Any, levels: int) -> bool:
    """True if packing preserves the key of a dict. A named tuple would become a tuple, which only keys of a state allow."""
    return type(key) in ATOMS or type(key) in EXTENDED or (
        type(key) is tuple and levels > 0 and all(_is_preserved(item, levels - 1) for item in key))


def _is_extended_key(key: Any) -> bool:
    return type(key) in EXTENDED or (isinstance(key, tuple) and any(map(_is_extended_key, key)))


def plain_key(key: Any) -> Any:
    """The key of a dict or a state in types that msgpack preserves, except that a tuple becomes a list; TypeError if it cannot
    be a key."""
    if type(key) in ATOMS:
        return key
    if type(key) in EXTENDED:
        return extension_of(key)
    if isinstance(key, tuple):
        return [plain_key(item) for item in key]
    raise TypeError(f"{key!r} ({type(key).__name__}) cannot be a key")


def _packed(plain: Any) -> bytes:
    try:
        return encode_msgpack(plain)
    except TOO_ODD:
        return encode_msgpack(wrapped(plain))


def wrapped(value: Any) -> Any:
    """The value with extensions for numbers beyond 64 bits and for text that is not UTF-8."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if isinstance(value, str) and not value.isascii():
        data = value.encode("utf-8", "surrogatepass")
        return value if data.decode("utf-8", "replace") == value else msgspec.msgpack.Ext(LONE_SURROGATES, data)
    if isinstance(value, list | tuple):
        return list(map(wrapped, value))
    if isinstance(value, dict):  # an extension cannot be a key of a dict that is to be encoded
        return msgspec.msgpack.Ext(PAIRS, encode_msgpack([wrapped(each) for item in value.items() for each in item]))
    return value


def unwrap(code: int, data: memoryview) -> Any:
    """The value of an extension; the hook of a decoder."""
    if code == BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == LONE_SURROGATES:
        return bytes(data).decode("utf-8", "surrogatepass")
    if code in EXTENSIONS:
        return read_extension(code, data)
    if code != PAIRS and code not in _KINDS:
        raise ValueError(f"unknown extension {code}")
    items = _list_decoder.decode(data)
    return dict(zip(map(as_key, items[::2]), items[1::2], strict=True)) if code == PAIRS else _KINDS[code](items)


def as_key(key: Any) -> Any:
    """Turns lists back into tuples: a key is never a list."""
    return tuple(map(as_key, key)) if isinstance(key, list) else key


_list_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=unwrap)
_decoder = msgspec.msgpack.Decoder(ext_hook=unwrap)
