"""What the benchmarks run. Every worker of two gets the same tasks, so that both cores have the same work."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.bench.other_engines.job import lines
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import Drop, DropArrow
from millrace.runtime.meters import LatencyHistogram
from millrace.workloads.wordcount import TABLE_LINES, Count, CountArrow, Lines, LinesArrow, Split, SplitArrow

SEED = 1


class BenchLines(Lines):
    """The lines that the other engines get, over and over."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._table = [(line,) for line in lines(SEED, TABLE_LINES)]


class BenchLinesArrow(LinesArrow):
    """The same in Arrow batches."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._lines = pa.concat_arrays([pa.array(lines(SEED, TABLE_LINES))] * (1 + -(-self.batch // TABLE_LINES)))


class BenchSplit(Split):
    named_rows: ClassVar[bool] = False  # it reads the line by its place, not by its name


class BenchCount(Count):
    named_rows: ClassVar[bool] = False


class WordCountBench(Topology):
    """Tuple by tuple: `process` and `emit` for every word, every update passed on."""

    lines = BenchLines.spec(par=2)
    split = BenchSplit.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = BenchCount.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class SplitRows(Bolt):
    """Chunks of lines to chunks of words."""

    outputs: ClassVar[list[str]] = ["word"]
    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows([(word,) for (line,) in rows for word in line.split()])


class CountRows(Bolt):
    """How often each word came, a chunk at a time; emits every update."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    named_rows: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def process_rows(self, rows: list[Any]) -> None:
        counts, updates = self.counts, []
        for (word,) in rows:
            counts[word] = count = counts.get(word, 0) + 1
            updates.append((word, count))
        self.emit_rows(updates)


class WordCountRowsBench(Topology):
    """Chunk by chunk: `process_rows` and `emit_rows`; still every update passed on."""

    lines = BenchLines.spec(par=2)
    split = SplitRows.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = CountRows.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class WordCountArrowBench(Topology):
    lines = BenchLinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = CountArrow.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class Stamps(GeneratorSpout):
    """Tuples that say when they were emitted."""

    outputs: ClassVar[list[str]] = ["at"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (time.monotonic(),)


class HopMeter(Bolt):
    """How long each tuple was on its way; reported as metrics in microseconds."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._latency = LatencyHistogram()

    def process(self, tup: Tuple) -> None:
        self._latency.record(time.monotonic() - tup.values[0])
        if self._latency.count % 100 == 0:
            for percentile in (50, 99):
                found = self._latency.percentile_ms(percentile)
                self.report_metric(f"hop_p{percentile}_us", round((found or 0.0) * 1000, 1))


class LocalHop(Topology):
    """One spout and a bolt task on each of two workers: the tuples go to the one beside the spout."""

    stamps = Stamps.spec()
    meter = HopMeter.spec(inputs={stamps: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class RemoteHop(Topology):
    """The same, to the bolt task on the other worker: the even scheduler puts task 0 there."""

    stamps = Stamps.spec()
    meter = HopMeter.spec(inputs={stamps: Grouping.GLOBAL}, par=2)


class Slow(Bolt):
    """Takes a millisecond for each tuple."""

    def process(self, tup: Tuple) -> None:
        time.sleep(0.001)


class SlowBolt(Topology):
    """A spout that could do a hundred thousand a second before a bolt that does one thousand."""

    lines = BenchLines.spec()
    slow = Slow.spec(inputs=[lines])
