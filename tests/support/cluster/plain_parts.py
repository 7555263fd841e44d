"""Well-behaved components of the cluster tests: spouts of numbers, bolts that pass tuples on, and sinks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.bolt import Bolt
from millrace.api.spout import ReliableSpout, Spout
from millrace.api.tuple import Tuple
from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout
from support.cluster.records import EVENTS, QUEUE, SEEN

# ---- spouts ----


class Numbers(GeneratorSpout):
    """Emits 0, 1, 2 … `limit` - 1 with any parallelism. Survives the loss of its worker."""

    outputs = ["n"]

    def generate(self, position: int) -> tuple[int]:
        return (self.ordinal(position),)


class NumbersArrow(ArrowGeneratorSpout):
    outputs = ["n"]

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(first, first + count), pa.int64())], names=["n"])


class NumbersBlocking(Numbers):
    blocking = True


class Switched(Numbers):
    """Records when it is activated and deactivated."""

    def activate(self) -> None:
        super().activate()
        EVENTS.append(("activate", self.task_index))

    def deactivate(self) -> None:
        EVENTS.append(("deactivate", self.task_index))


class AllAtOnce(Numbers):
    """Emits all its numbers in one call of next_tuple."""

    def next_tuple(self) -> None:
        while not self.exhausted:
            super().next_tuple()


class Counting(Spout):
    """Emits 0 … `limit` - 1 with the id `#n`; records acks and fails, and replays nothing."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next, self.limit = 0, storm_conf.get("limit", 10)

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=f"#{self.next - 1}")

    def ack(self, tup_id: Any) -> None:
        EVENTS.append(("ack", tup_id))

    def fail(self, tup_id: Any) -> None:
        EVENTS.append((self.fail_cause, tup_id))


class WithoutIds(Counting):
    """Emits odd numbers without an id."""

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=None if self.next % 2 == 0 else self.next - 1)


class Reliable(ReliableSpout):
    """Emits 0 … `limit` - 1, replays failed numbers, and records acks and fails."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next, self.limit = 0, storm_conf.get("limit", 10)

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=self.next - 1)

    def ack(self, tup_id: Any) -> None:
        EVENTS.append(("ack", tup_id))
        super().ack(tup_id)

    def fail(self, tup_id: Any) -> None:
        EVENTS.append((self.fail_cause, tup_id))
        super().fail(tup_id)


class FromQueue(ReliableSpout):
    """Takes numbers from QUEUE, which other tasks use too; only this task has the numbers in flight."""

    outputs = ["n"]

    def next_tuple(self) -> None:
        if QUEUE:
            number = QUEUE.popleft()
            self.emit([number], tup_id=number)


# ---- bolts that pass tuples on ----


class Pass(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n])


class PassBlocking(Pass):
    blocking = True


class PassRows(Bolt):
    outputs = ["n"]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            self.emit((row.n,))


class PassArrow(Bolt):
    outputs = ["n"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(batch)


class Doubled(Bolt):
    """Doubles Arrow columns."""

    outputs = ["n"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(pa.record_batch([pc.multiply(batch.column(0), 2)], names=["n"]))


class Burst(Bolt):
    """Emits a hundred tuples for each input."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        for k in range(100):
            self.emit([tup.values.n * 100 + k])


# ---- sinks ----


class Sink(Bolt):
    """Keeps its input under its component's name; a tuple of one value as that value."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values[0] if len(tup.values) == 1 else tuple(tup.values))


class SinkRows(Bolt):
    def process_rows(self, rows: list[Any]) -> None:
        SEEN[self.component_name] += [row.n for row in rows]


class SinkArrow(Bolt):
    def process_arrow(self, batch: pa.RecordBatch) -> None:
        SEEN[self.component_name] += batch.column("n").to_pylist()


class SinkBlocking(Sink):
    blocking = True


class SinkByTask(Bolt):
    """Keeps (task index, value or values)."""

    def process(self, tup: Tuple) -> None:
        values = tup.values[0] if len(tup.values) == 1 else tuple(tup.values)
        SEEN[self.component_name].append((self.task_index, values))


class Never(Bolt):
    """Never acks."""

    auto_ack = False

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values.n)


class Lives(Sink):
    """Records its start and end, and any input after that. Other incarnations of the task may still run then."""

    closed = False

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        EVENTS.append(("initialize", self.component_name, self.task_index))

    def process(self, tup: Tuple) -> None:
        super().process(tup)
        if self.closed:
            EVENTS.append(("process after close",))

    def close(self) -> None:
        self.closed = True
        EVENTS.append(("close", self.component_name, self.task_index))
