"""Spouts that generate their tuples: seeded, paced, and reproducible from any position."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.api.spout import ReplayableSpout
from millrace.connectors.settings import setting

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_BURST = 32


class GeneratorSpout(ReplayableSpout):
    """Emits `generate(0)`, `generate(1)`, ... in each task; the position is the tuple's id.

    | config | meaning |
    | --- | --- |
    | `rate` | tuples per second of the whole component, shared evenly by its tasks; 0 or absent: as fast as possible |
    | `limit` | number of tuples, shared by its tasks; absent: endless |
    | `burst` | maximum number of tuples emitted in one call of `next_tuple` (default 32) |

    Tuple number `position` of task `task_index` is number `ordinal(position)` of the component. A `generate` that depends only
    on the ordinal and the seed therefore yields, with a `limit` of n, the numbers 0 to n - 1 for any parallelism. With `splits`
    (see ReplayableSpout) that also holds if the parallelism changes midway; without, a new start with another parallelism
    redistributes the numbers.

    With a `rate`, tuple k is due k / rate seconds after the first call. All due tuples are emitted, however long the engine did
    not call (a spout that is held up sends the backlog afterwards, it does not lower its rate); `behind` is the number of
    tuples that are due and not sent, and is reported as a metric. `seek` and `activate` restart the timetable: the
    time before them is not made up. A task or a split that moves keeps it, with its backlog.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests
    wall_clock: Callable[[], float] = staticmethod(time.time)  # the same on every host; replaced in tests

    def __init__(self) -> None:
        super().__init__()
        self.exhausted = False
        self.behind = 0
        self._paced = False  # True: tuples are emitted when they are due
        self._rate = 0.0  # of this task
        self._end: int | None = None  # the first position that is not emitted
        self._burst = DEFAULT_BURST
        self._pace_start: float | None = None
        self._pace_base = 0
        self._inactive = self._taken_over = False
        self._reported_at = 0.0

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._rate = setting(self, storm_conf, "rate", float, 0.0, least=0) / self.parallelism
        self._paced = self._rate > 0
        self._burst = setting(self, storm_conf, "burst", int, DEFAULT_BURST, least=1)
        limit = setting(self, storm_conf, "limit", int, None, least=0)
        self._end = None if limit is None else self.share(limit)
        self.exhausted = self._end == 0

    def generate(self, position: int) -> list[Any] | tuple[Any, ...]:
        """Returns the values at `position`. Must be cheap, and depend only on seed, task_index, parallelism and position.

        It is called again for the same position after a crash, and must return the same. Compute anything expensive or random
        once, into a table in `initialize`, and index that.
        """
        raise NotImplementedError(f"{type(self).__name__} must define generate(position)")

    def ordinal(self, position: int) -> int:
        """The number of this task's tuple among the tuples of all tasks of the component."""
        return position * self.parallelism + self.task_index

    def share(self, total: int) -> int:
        """This task's share of `total` tuples of the component."""
        return total // self.parallelism + (self.task_index < total % self.parallelism)

    def seek(self, position: int) -> None:
        self.unacked_tuples.clear()
        self.failed_tuples.clear()
        self._next_position = position
        self._pace_start = None
        self.exhausted = self._end is not None and position >= self._end

    def activate(self) -> None:
        if not self._taken_over:  # the first call after `take_over` is not the end of a pause
            self._pace_start = None
        self._inactive = self._taken_over = False

    def deactivate(self) -> None:
        self._inactive, self._taken_over = True, False

    def hand_over(self) -> Any:
        """The timetable: the time of day when it began, and the position that was due then."""
        if self._pace_start is None or self._inactive:
            return None
        return self.wall_clock() - (self.clock() - self._pace_start), self._pace_base

    def take_over(self, left: Any) -> None:
        self._taken_over = True
        began, self._pace_base = left
        self._pace_start = self.clock() - (self.wall_clock() - began)

    def next_tuple(self) -> None:
        start = self._next_position
        stop = start + min(self._burst, self._handle.chunk_tuples)
        if self._paced:
            stop = min(stop, self._due())
        if self._end is not None:
            stop = min(stop, self._end)
        if start < stop:
            self._emit_range(start, stop)
            self.exhausted = stop == self._end

    def lag(self) -> int | None:
        """The tuples that are due and not emitted; None without a `rate`."""
        return max(0, self._due() - self._next_position) if self._paced else None

    def due_in(self) -> float | None:
        if self.exhausted:
            return math.inf
        if not self._paced or self._pace_start is None:
            return None
        return self._due_at(self._next_position) - self.clock()

    def _due_at(self, position: int) -> float:
        """The time at which a position is due, by the timetable, which has begun."""
        assert self._pace_start is not None
        return self._pace_start + (position - self._pace_base + self._shift()) / self._rate

    def _shift(self) -> float:
        """The part of an interval by which this instance is later than the first one: splits of a task take turns."""
        return self.task_index / self.parallelism if self.splits else 0.0

    def _due(self) -> int:
        """The first position that is not due yet."""
        now = self.clock()
        if self._pace_start is None:
            self._pace_start, self._pace_base = now, self._next_position
        due = self._pace_base + int((now - self._pace_start) * self._rate + 1 - self._shift())
        if self._end is not None:
            due = min(due, self._end)
        self._report_behind(now, due)
        return due

    def _report_behind(self, now: float, due: int) -> None:
        self.behind = max(0, due - self._next_position - self._burst)
        if now - self._reported_at >= 1.0:
            self._reported_at = now
            self.report_metric("behind", self.behind)

    def _emit_range(self, start: int, stop: int) -> None:
        # Same as ReplayableSpout.emit, without its three calls for each tuple.
        generate, emit, tracked, unacked = self.generate, self._handle.emit, self.tracked, self.unacked_tuples
        for position in range(start, stop):
            values = generate(position)
            self._next_position = position + 1  # before emit: a tuple that cannot be emitted is reported and skipped
            emit(values, position, None, None, None, False)
            if tracked:
                unacked[position] = (values, None, None, False)


class ArrowGeneratorSpout(GeneratorSpout):
    """Emits whole Arrow batches, made by `generate_arrow(first, count)`; each batch has one position and one tup_id.

    | config | meaning |
    | --- | --- |
    | `rate`, `limit` | as for GeneratorSpout, counted in tuples (rows), not in batches |
    | `batch` | rows in a batch (default 1,000); the last batch of a `limit` may be shorter |
    | `burst` | maximum number of batches emitted in one call of `next_tuple` (default 1) |

    Batch g of the component has its tuples g * batch to (g + 1) * batch - 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batch = 1000
        self._limit: int | None = None

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.batch = setting(self, storm_conf, "batch", int, self.batch, least=1)
        self._limit = setting(self, storm_conf, "limit", int, None, least=0)
        batches = None if self._limit is None else -(-self._limit // self.batch)
        super().initialize({**storm_conf, "limit": batches, "burst": storm_conf.get("burst") or 1}, context)
        self._rate /= self.batch

    def lag(self) -> int | None:
        batches = super().lag()
        return None if batches is None else batches * self.batch

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        """Returns tuples `first` to `first + count - 1` of the component, one column for each field."""
        raise NotImplementedError(f"{type(self).__name__} must define generate_arrow(first, count)")

    def _emit_range(self, start: int, stop: int) -> None:
        for position in range(start, stop):
            first = self.ordinal(position) * self.batch
            count = self.batch if self._limit is None else min(self.batch, self._limit - first)
            self.emit_arrow(self.generate_arrow(first, count), position)
