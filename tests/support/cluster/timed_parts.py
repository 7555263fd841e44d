"""Components of the cluster tests that act at ticks or when a batch is due."""

from __future__ import annotations

from typing import Any

from millrace.api.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from millrace.api.tuple import Tuple
from support.cluster.plain_parts import Sink
from support.cluster.records import EVENTS
from support.cluster.refusing_parts import refuse

# ---- ticks ----


class FakeTicked(Sink):
    """Records its ticks, each with the number of tuples seen before."""

    def process_tick(self, tup: Tuple) -> None:
        EVENTS.append((self.task_index, self.is_tick(tup), tup.component, tup.task, tuple(tup.values)))


class TickedBlocking(FakeTicked):
    blocking = True


class EmitsOnTick(Bolt):
    """Emits at each tick the number of tuples so far."""

    outputs = ["count"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.count = 0

    def process(self, tup: Tuple) -> None:
        self.count += 1

    def process_tick(self, tup: Tuple) -> None:
        self.emit([self.count])


# ---- batches ----


class Sums(BatchingBolt):
    """Emits the sum of each batch by parity; refuses batches that contain poison."""

    outputs = ["parity", "total"]
    ticks_between_batches = 1

    def group_key(self, tup: Tuple) -> int:
        return tup.values.n % 2

    def process_batch(self, key: int, tups: list[Tuple]) -> None:
        for tup in tups:
            refuse(self, tup.values.n)
        EVENTS.append(("batch", key, len(tups)))
        self.emit([key, sum(tup.values.n for tup in tups)])


class SumsBlocking(Sums):
    blocking = True


class TicklessSums(TicklessBatchingBolt):
    outputs = ["parity", "total"]
    secs_between_batches = 0.3

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        EVENTS.append(("batch", len(tups)))
        self.emit([0, sum(tup.values.n for tup in tups)])
