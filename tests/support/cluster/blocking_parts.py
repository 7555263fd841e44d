"""Components that run on threads of their own. A test may let something happen during one of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from support.cluster.wave_parts import Exact, FakeLedger, Numbers, Pass, PassRows, Tally

DURING: dict[str, Callable[[], None]] = {}  # by method: called once, the next time that the method is


def happen(method: str) -> None:
    if method in DURING:
        DURING.pop(method)()


class BlockingNumbers(Numbers):
    blocking = True

    def deactivate(self) -> None:
        happen("deactivate")


class BlockingPass(Pass):
    blocking = True


class BlockingTally(Tally):
    blocking = True

    def snapshot(self) -> Any:
        happen("snapshot")
        return super().snapshot()


class BlockingLedger(FakeLedger):
    blocking = True


class Blocking(Topology):
    """`Exact`, with a blocking spout, blocking bolts and a blocking sink."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = BlockingNumbers.spec(par=2)
    one = BlockingPass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = BlockingTally.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = BlockingLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class ArrowPass(Bolt):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(batch)


class BlockingPicky(Bolt):
    """Refuses every seventh number."""

    outputs: ClassVar[list[str]] = ["key", "number"]
    blocking = True

    def process(self, tup: Tuple) -> None:
        if tup.values[1] % 7 == 0:
            raise ValueError("not to my taste")
        self.emit(tup.values)


class Letters(Bolt):
    """Emits what another bolt has refused."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def process(self, tup: Tuple) -> None:
        self.emit(tup.values[3])


class AllKinds(Topology):
    """Blocking tasks, Arrow chunks, and dead letters that are processed after all."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = BlockingNumbers.spec(par=2)
    one = ArrowPass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    picky = BlockingPicky.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    letters = Letters.spec(inputs={picky.dead_letters: Grouping.SHUFFLE}, par=2)
    tally = BlockingTally.spec(inputs={picky: Grouping.fields("key"), letters: Grouping.fields("key")}, par=3)
    ledger = BlockingLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)
