"""Components that take virtual time for every row: they advance the cluster's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.sink import TwoPhaseSink
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from support.cluster.wave_parts import FakeLedger, Numbers, Pass, Tally

SECONDS = [0.0, 0.0]  # of a call, and of each row in it
ADVANCE: list[Callable[[float], None]] = []  # of the cluster's clock


def spend(rows: int) -> None:
    ADVANCE[0](SECONDS[0] + rows * SECONDS[1])


class SlowLedger(FakeLedger):
    """Takes whole chunks."""

    def process_rows(self, rows: list[Any]) -> None:
        spend(len(rows))
        super().process_rows(rows)


class SlowOneByOne(TwoPhaseSink):
    """Takes single tuples."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._ledger = FakeLedger()
        self._ledger.task_index, self._ledger.epoch, self._ledger.exactly_once = self.task_index, self.epoch, True

    def process(self, tup: Tuple) -> None:
        spend(1)
        self._ledger.process_rows([tuple(tup.values)])

    def prepare(self, wave: int) -> None:
        self._ledger.prepare(wave)

    def commit(self, wave: int) -> None:
        self._ledger.commit(wave)

    def recover(self, wave: int, epoch: int) -> None:
        self._ledger.recover(wave, epoch)


class SlowPass(Bolt):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def process(self, tup: Tuple) -> None:
        spend(1)
        self.emit(tup.values)


class ToSlow(Topology):
    """Everything before the sink is fast."""

    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=2)
    tally = Tally.spec(inputs={through: Grouping.fields("key")}, par=2)
    ledger = SlowLedger.spec(inputs=[tally])


class ToSlowOneByOne(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=2)
    tally = Tally.spec(inputs={through: Grouping.fields("key")}, par=2)
    ledger = SlowOneByOne.spec(inputs=[tally])


class ThroughSlow(Topology):
    """A bolt in the middle is slow."""

    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    numbers = Numbers.spec(par=2)
    slow = SlowPass.spec(inputs=[numbers])
    tally = Tally.spec(inputs={slow: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs=[tally])


FAN = 40


class Burst(Bolt):
    """Makes many rows from one."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def process(self, tup: Tuple) -> None:
        key, number = tup.values
        self.emit_rows([(key, number * FAN + offset) for offset in range(FAN)])


class SlowTally(Tally):
    """Takes long for every row."""

    def process(self, tup: Tuple) -> None:
        spend(1)
        super().process(tup)


class SlowBlockingTally(SlowTally):
    """Runs on its own thread."""

    blocking = True


class Bursts(Topology):
    """Rows of a key keep the order in which one spout has emitted them."""

    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    numbers = Numbers.spec(par=2)
    burst = Burst.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = SlowTally.spec(inputs={burst: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class BlockingBursts(Topology):
    config: ClassVar[dict[str, Any]] = Bursts.config
    numbers = Numbers.spec(par=2)
    burst = Burst.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = SlowBlockingTally.spec(inputs={burst: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class RegroupedBursts(Topology):
    """`Bursts` with another grouping of the tally."""

    config: ClassVar[dict[str, Any]] = Bursts.config
    numbers = Numbers.spec(par=2)
    burst = Burst.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = SlowTally.spec(inputs={burst: Grouping.fields("key", "number")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)
