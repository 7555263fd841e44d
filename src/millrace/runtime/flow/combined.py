"""Combines the tuples of every key before they are sent, where a subscription declares how.

The tuples of a key in a chunk become one tuple, a partial aggregate, with the same effect on the owner of the key. Nothing is
kept from one chunk to the next, so waves, roll-backs, replays and moves do not differ. Only what is left is hashed and sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from millrace.runtime.flow.routing import Parts, Route
from millrace.runtime.hotpath.plain import Rows


class Combiner(Protocol):
    """Combines tuples of equal keys: by `Aggregates`, or by a bolt's own merge (`MergedKeys`)."""

    def rows(self, rows: Rows) -> Rows:
        """One row for each key, or the rows as they are."""

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with one row for each key, or as it is."""


class Combined(Route):
    """Another route, for what is left when the tuples of each key in a chunk are combined."""

    def __init__(self, route: Route, combiner: Combiner, count_saved: Callable[[int], None]) -> None:
        """`count_saved` is told the number of tuples that were saved."""
        super().__init__(route.channels)
        self._route, self._combiner, self._count_saved = route, combiner, count_saved

    def split(self, rows: Rows) -> Parts:
        combined = self._combiner.rows(rows) if len(rows) > 1 else rows
        self._count_saved(len(rows) - len(combined))
        return self._route.split(combined)

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        combined = self._combiner.batch(batch) if batch.num_rows > 1 else batch
        self._count_saved(batch.num_rows - combined.num_rows)
        return self._route.split_batch(combined)

    def count(self) -> None:
        self._route.count()
