"""Combines the tuples of every key before they are sent, where a subscription declares how.

The tuples of a key in a chunk become one tuple, a partial aggregate, with the same effect on the owner of the key. Nothing is
kept from one chunk to the next, so waves, roll-backs, replays and moves do not differ. Only what is left is hashed and sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pyarrow as pa

from millrace.hotpath.plain import Rows
from millrace.runtime.flow.routing import Parts, Route

JUDGED = 1000  # tuples by which it is judged whether combining is worth its while
WORTH = 1 / 8  # of them must be saved: to combine a row costs about an eighth of sending and processing it
REST = 15  # times as many tuples as were tried are then sent as they are
RowsOrBatch = TypeVar("RowsOrBatch", Rows, pa.RecordBatch)


class Combiner(Protocol):
    """Combines tuples of equal keys: by `Aggregates`, or by a bolt's own merge (`MergedKeys`)."""

    def rows(self, rows: Rows) -> Rows:
        """One row for each key, or the rows as they are."""

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with one row for each key, or as it is."""


class Combined(Route):
    """Combines the tuples of each key in a chunk, and another route sends what is left. If that saves too few tuples, because
    most keys of a chunk differ, it sends chunks as they are for a while, and then tries again."""

    def __init__(self, route: Route, combiner: Combiner, count_saved: Callable[[int], None]) -> None:
        """`count_saved` is told the number of tuples that were saved."""
        super().__init__(route.channels)
        self._route, self._combiner, self._count_saved = route, combiner, count_saved
        self._tried = self._saved = 0  # tuples since it was last judged
        self._rest = 0  # tuples that are still sent as they are

    def split(self, rows: Rows) -> Parts:
        return self._route.split(self._combined(rows, self._combiner.rows))

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        return self._route.split_batch(self._combined(batch, self._combiner.batch))

    def _combined(self, chunk: RowsOrBatch, combine: Callable[[RowsOrBatch], RowsOrBatch]) -> RowsOrBatch:
        size = len(chunk)
        if size < 2:
            return chunk
        if self._rest > 0:
            self._rest -= size
            return chunk
        combined = combine(chunk)
        saved = size - len(combined)
        self._count_saved(saved)
        self._judge(size, saved)
        return combined

    def _judge(self, tried: int, saved: int) -> None:
        self._tried += tried
        self._saved += saved
        if self._tried >= JUDGED:
            self._rest = 0 if self._saved >= WORTH * self._tried else REST * self._tried
            self._tried = self._saved = 0

    def count(self) -> None:
        self._route.count()
