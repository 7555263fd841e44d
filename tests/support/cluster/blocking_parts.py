"""Components that run on threads of their own. A test may let something happen during one of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
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
