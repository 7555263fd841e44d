"""The size of tuples that are handed over inside a worker, where nothing is encoded: an estimate from a sample."""

from __future__ import annotations

from typing import Any

from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch, encode_extended, encode_rows

SAMPLED_CHUNKS = 61  # of which one is sampled; a prime, so that few streams repeat themselves in step with it
SAMPLED_ROWS = 16
REMEMBERED_CHUNKS = 32  # sampled; older ones count for less and less


class HandedBytes:
    """Tuples handed over, and their bytes as if they had been sent. The owner adds to `tuples` and calls `sample` for one chunk
    in `SAMPLED_CHUNKS`, so that a chunk costs an addition and a comparison."""

    __slots__ = ("_bytes", "_chunks", "_counted", "_sampled", "_total", "tuples")

    def __init__(self) -> None:
        self.tuples = 0
        self._counted = 0  # tuples whose bytes are in `_total`
        self._total = 0.0
        self._sampled = self._bytes = 0.0  # tuples of the sampled chunks, and their bytes
        self._chunks = 0

    def sample(self, body: Any, count: int, form: int) -> None:
        """Encode some rows of a chunk, or its Arrow batch. Values that cannot be encoded may be handed over all the same; such
        a chunk tells nothing."""
        try:
            size = _size(body, count, form)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return
        if self._chunks == REMEMBERED_CHUNKS:
            self._sampled, self._bytes, self._chunks = self._sampled / 2, self._bytes / 2, REMEMBERED_CHUNKS // 2
        self._sampled += count
        self._bytes += size
        self._chunks += 1

    def total(self) -> int:
        """The bytes of all tuples so far. What was counted before stays as it was, so this never falls."""
        if self._sampled:
            self._total += (self.tuples - self._counted) * self._bytes / self._sampled
            self._counted = self.tuples
        return round(self._total)


def _size(body: Any, count: int, form: int) -> float:
    if form == wire.ARROW:
        return len(encode_batch(body))
    rows = body[::-(-count // SAMPLED_ROWS)]
    return len((encode_extended if form == wire.EXTENDED_ROWS else encode_rows)(rows)) * count / len(rows)
