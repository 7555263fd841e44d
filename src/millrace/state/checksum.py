"""Combines the CRC-32s of consecutive parts into the CRC-32 of the whole, without reading the data again.

A CRC is a polynomial over GF(2) modulo P. Appending n bytes multiplies it by x^(8n); bit 31 stands for x^0, as in zlib.
"""

from __future__ import annotations

from functools import lru_cache

P = 0xEDB88320
ONE = 1 << 31
X_TO_THE_8 = 1 << 23


def appended(first: int, second: int, length: int) -> int:
    """The CRC of bytes with CRC `first` followed by `length` bytes with CRC `second`."""
    return _times(_power(length), first) ^ second


@lru_cache(maxsize=64)
def _power(length: int) -> int:
    """x^(8 length), by squaring."""
    result, square = ONE, X_TO_THE_8
    while length:
        if length & 1:
            result = _times(result, square)
        square = _times(square, square)
        length >>= 1
    return result


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (P if b & 1 else 0)
    return product
