"""Components for edge cases of waves."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import Exact, FakeLedger, Numbers, Pass

RESTORED: list[Any] = []


class Sometimes(Bolt):
    """Returns a snapshot only sometimes."""

    outputs: ClassVar[list[str]] = ["key", "number"]
    pending: Any = ["not flushed yet"]

    def process(self, tup: Tuple) -> None:
        self.emit(tup.values)

    def snapshot(self) -> Any:
        return Sometimes.pending

    def restore(self, snapshot: Any) -> None:
        RESTORED.append(snapshot)


class Forgetful(Topology):
    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2)
    sometimes = Sometimes.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)
    ledger = FakeLedger.spec(inputs={sometimes: Grouping.SHUFFLE}, par=2)


class BatchLedger(BatchingBolt, FakeLedger):
    """Writes batches at waves."""

    process_rows: ClassVar[Any] = None

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        FakeLedger.process_rows(self, [tuple(tup.values) for tup in tups])


class BatchedSink(Topology):
    config: ClassVar[dict[str, Any]] = {**Exact.config, "topology.tick.tuple.freq.secs": 0.05}
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    ledger = BatchLedger.spec(inputs={one: Grouping.SHUFFLE}, par=2)


class BlockingLedger(FakeLedger):
    """Runs on its own thread."""

    blocking = True


class ToBlocking(Topology):
    """Waves are taken only at the test's request."""

    config: ClassVar[dict[str, Any]] = {**Exact.config, "topology.checkpoint.interval.secs": 1000.0}
    numbers = Numbers.spec()
    ledger = BlockingLedger.spec(inputs={numbers: Grouping.SHUFFLE})


def forget() -> None:
    parts.forget()
    RESTORED.clear()
    Sometimes.pending = ["not flushed yet"]
