"""Partial sums with skewed keys that are combined before they are sent: as rows, by a bolt's merge, and as Arrow batches."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import ArrowGeneratorSpout
from support.cluster.wave_parts import FakeLedger
from support.load.skewed_parts import TALLIES, PartialSums, Totals, part_key

FIELDS = ["key", "sum", "count"]
SUMS = {"sum": "sum", "count": "sum"}
REFUSED: set[str] = set()  # keys whose tuples the tally does not accept
LETTERS: list[list[Any]] = []  # the values of dead letters


class Sums(PartialSums):
    """Those of `PartialSums`, with a clock that a test sets."""


class SumBatches(ArrowGeneratorSpout):
    """The tuples of `PartialSums` in batches."""

    outputs: ClassVar[list[str]] = FIELDS

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        numbers = range(first, first + count)
        return pa.record_batch([pa.array(map(part_key, numbers)), pa.array(numbers), pa.array([1] * count, pa.int32())],
                               names=FIELDS)


class RelayRows(Bolt):
    outputs: ClassVar[list[str]] = FIELDS

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows(rows)


class RelayBatches(Bolt):
    outputs: ClassVar[list[str]] = FIELDS

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(batch)


class PickyTotals(Totals):
    def process(self, tup: Tuple) -> None:
        if tup.values.key in REFUSED:
            raise ValueError(f"{tup.values.key} is refused")
        super().process(tup)


class TotalsOfBatches(Bolt):
    """`Totals` for Arrow batches. It insists on the types that were emitted."""

    outputs: ClassVar[list[str]] = FIELDS
    sums = CounterState()
    counts = CounterState()

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        if batch.schema.types != [pa.string(), pa.int64(), pa.int32()]:
            raise TypeError(f"the batch has other types: {batch.schema}")
        totals = []
        for key, amount, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self.sums[key] += amount
            self.counts[key] += count
            totals.append((key, self.sums[key], self.counts[key]))
        self.emit_rows(totals)


class Letters(Bolt):
    def process(self, tup: Tuple) -> None:
        LETTERS.append(tup.values.values)


class CombinedRows(Topology):
    numbers = Sums.spec(par=2)
    relay = RelayRows.spec(inputs=[numbers], par=2)
    tally = PickyTotals.spec(inputs={relay: Grouping.fields("key", combine=SUMS)}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)
    letters = Letters.spec(inputs=[tally.dead_letters])


class MergedRows(Topology):
    numbers = Sums.spec(par=2)
    relay = RelayRows.spec(inputs=[numbers], par=2)
    tally = PickyTotals.spec(inputs={relay: Grouping.fields("key", combine="merge")}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)
    letters = Letters.spec(inputs=[tally.dead_letters])


class CombinedBatches(Topology):
    config: ClassVar[dict[str, Any]] = {"batch": 20}
    numbers = SumBatches.spec(par=2)
    relay = RelayBatches.spec(inputs=[numbers], par=2)
    tally = TotalsOfBatches.spec(inputs={relay: Grouping.fields("key", combine=SUMS)}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class CombinedAtTheSource(Topology):
    """The spout itself sends to the tally, so what is combined is also what is replayed."""

    numbers = Sums.spec(par=2)
    tally = PickyTotals.spec(inputs={numbers: Grouping.fields("key", combine=SUMS)}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class CombinedWrongly(Topology):
    """The aggregate of `count` does not take numbers."""

    numbers = Sums.spec(par=2)
    tally = PickyTotals.spec(inputs={numbers: Grouping.fields("key", combine={"sum": "sum", "count": "any"})}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)
