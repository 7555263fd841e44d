"""What the benchmarks run. Every worker of two gets the same tasks, so that both cores have the same work."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.component import Bolt, Tuple
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.bench.rivals.job import lines
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


class WordCountBench(Topology):
    lines = BenchLines.spec(par=2)
    split = Split.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)
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
