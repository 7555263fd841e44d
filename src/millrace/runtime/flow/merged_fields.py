"""Merges tuples before they are sent, for bolts that declare how: so every sender does a part of the work. Hot keys are found
from a sample; a subscription may ask for all keys instead.

The tuples of a key in a chunk become one tuple, a partial aggregate, which the owner of the key merges into its state as it
does with any other. Nothing is kept from one chunk to the next, so waves, roll-backs, replays and moves do not differ, and it
does not matter for the result which keys are chosen, or where a chunk begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.api.grouping import stable_hash
from millrace.errors import EmitError
from millrace.hotpath.plain import Rows
from millrace.model.graph import resolve
from millrace.runtime.flow.heavy_keys import HeavyKeys
from millrace.runtime.flow.routing import ByFields, BySampledFields, CountedKey, KeyMemory, KeySample

MERGED_SHARE = 1 / 16  # of a sender's tuples from which on those of a key are merged

KeyedRow = tuple[Any, ...]


class Merge:
    """The `merge` of a bolt class, as its senders call it. After an error, which is reported, nothing is merged any more."""

    def __init__(self, code: str, checked: Callable[[Any], KeyedRow], report: Callable[[BaseException], None]) -> None:
        """`checked` makes a row of the stream from values."""
        self._code, self._checked, self._report = code, checked, report
        self._call: Callable[[KeyedRow, KeyedRow], Any] | None = None
        self._failed = False

    def __call__(self, rows: list[KeyedRow], key: Callable[[KeyedRow], Any]) -> list[KeyedRow]:
        """One row for all of them, or the rows themselves if that fails."""
        if len(rows) < 2 or self._failed:
            return rows
        try:
            if self._call is None:
                self._call = resolve(self._code).merge
            merged = self._checked(reduce(self._call, rows))
            if key(merged) not in (key(rows[0]),):  # not by `!=`: a NaN that is kept is the same
                raise EmitError(f"merge of {self._code} made {merged!r:.200} of rows with the key {key(rows[0])!r:.200}: it "
                                "must keep the values of the fields that its input is grouped by")
        except BaseException as error:  # user code may raise anything; a Ctrl-C is raised again by `report`
            self._failed = True
            self._report(error)
            return rows
        return [merged]


class MergedKeys:
    """Merges the tuples of every key."""

    def __init__(self, positions: Sequence[int], merge: Merge) -> None:
        """`positions`: of the key."""
        self._key, self._merge = itemgetter(*positions), merge

    def rows(self, rows: Rows) -> Rows:
        """One row for each key, in the order of their first rows, or the rows as they are."""
        key, of_key = self._key, dict[Any, list[KeyedRow]]()
        try:
            for row in rows:
                of_key.setdefault(key(row), []).append(row)
        except TypeError:  # a list or dict as key: it has a stable hash but is not hashable
            return rows
        return [row for same in of_key.values() for row in self._merge(same, key)]

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as it is: a merge takes rows."""
        return batch


class ByMergedFields(BySampledFields):
    """Also merges the tuples of the keys that are hot by the sample. They have buckets of their own, so a tuple of another key
    costs nothing more. What they become comes after the other tuples of the chunk."""

    def __init__(self, route: ByFields, counts: np.ndarray, heavy: HeavyKeys, merge: Merge,
                 count_saved: Callable[[int], None]) -> None:
        """`count_saved` is told the number of tuples that were saved."""
        super().__init__(route, counts, heavy)
        self._merge, self._count_saved = merge, count_saved
        self._hot = dict[Any, int]()  # by key: its bucket, after those of the channels
        self._memory = KeyMemory(self._bucket_of)
        self._batch_sample = KeySample(len(route.owners), heavy, super()._note)  # batches are sent as they are
        self._choose()

    def _choose(self) -> None:
        """Choose the hot keys."""
        for key in self._hot:
            self._memory.pop(key, None)
        self._hot = {key: len(self.channels) + number for number, key in enumerate(self._heavy.above(MERGED_SHARE))}
        self._memory.update(self._hot)

    def _bucket_of(self, key: Any) -> int:
        bucket = self._hot.get(key)
        return self._task_of(key) if bucket is None else bucket

    def count(self) -> None:
        super().count()
        self._batch_sample.count()

    def _note(self, counted: Sequence[CountedKey]) -> None:
        """Tuples of hot keys are counted when they are merged."""
        self._choose()
        super()._note([(key, group, count) for key, group, count in counted if key not in self._hot])

    def _buckets(self, rows: Rows) -> list[list[KeyedRow]]:
        key, tasks = itemgetter(*self.positions), len(self.channels)
        buckets: list[list[KeyedRow]] = [[] for _ in range(tasks + len(self._hot))]
        for row, bucket in zip(rows, map(self._memory.__getitem__, map(key, rows)), strict=True):
            buckets[bucket].append(row)
        for hot, bucket in self._hot.items():
            if buckets[bucket]:
                merged = self._merge(buckets[bucket], key)
                self._count_saved(len(buckets[bucket]) - len(merged))
                buckets[self._task_of(hot)] += merged
                self._counts[stable_hash(hot) % len(self.owners)] += len(merged)
        return buckets[:tasks]
