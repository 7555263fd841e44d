"""Topologies of the benchmarks. Each of two workers gets the same tasks, so that both cores have the same work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.bench.other_engines.job import Corpus
from millrace.config import CHUNK_TUPLES
from millrace.connectors.files import lines_of
from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout
from millrace.connectors.settings import setting
from millrace.connectors.sinks import Drop, DropArrow
from millrace.errors import MillraceError
from millrace.runtime.meters import LatencyHistogram
from millrace.workloads.wordcount import (
    Count,
    Lines,
    Split,
    SplitArrow,
    SplitOnes,
    SplitOnesArrow,
    TallyArrow,
    Total,
    TotalArrow,
)

BENCH_SEED = 1


def write_report(component: Component, conf: dict[str, Any], report: dict[str, Any]) -> None:
    """Write a task's final report to the directory `report` of the topology's config, if that is set. The benchmark compares
    the reports with independently computed counts."""
    directory = setting(component, conf, "report", str, "")
    if directory:
        path = Path(directory) / f"{type(component).__name__}-{component.task_index}.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(report))
        unfinished.replace(path)


class CorpusLines(GeneratorSpout):
    """Lines of the files in the directory `corpus`, read as the other engines read them. Config: that of GeneratorSpout."""

    outputs: ClassVar[list[str]] = ["line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._conf = storm_conf
        self._corpus = Corpus.at(Path(setting(self, storm_conf, "corpus", str)))
        self._lines: Iterator[str] = iter(())
        self._read: int | None = None  # the position that comes next in `_lines`
        self._started = 0.0

    def generate(self, position: int) -> tuple[Any, ...]:
        if position != self._read:
            self._lines = self._corpus.lines(self.task_index, self.parallelism, position)
            self._started = time.monotonic()
        self._read = position + 1
        return (next(self._lines),)

    def close(self) -> None:
        super().close()
        write_report(self, self._conf, {"lines": self._read or 0, "started": self._started})


class DueLines(CorpusLines):
    """The lines of `CorpusLines` by a timetable on the wall clock that begins at `start`. On the microbatch engine a task may
    run in another process with every batch; a timetable that begins with the first call there would leave out the time before.
    """

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._start = setting(self, storm_conf, "start", float)

    def _due(self) -> int:
        return max(0, int((time.time() - self._start) * self._rate - self.task_index / self.parallelism + 1))


class CorpusLinesArrow(ArrowGeneratorSpout):
    """The lines of `CorpusLines` in Arrow batches. `batch` must divide the number of lines in a file."""

    outputs: ClassVar[list[str]] = ["line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._conf = storm_conf
        self._corpus = Corpus.at(Path(setting(self, storm_conf, "corpus", str)))
        if self._corpus.lines_per_file % self.batch:
            raise MillraceError(f"batch is {self.batch}: it must divide the {self._corpus.lines_per_file} lines of a file")
        self._file: tuple[int, pa.Array] = (-1, pa.array([], pa.string()))
        self._sent = 0

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        line = first // self.parallelism // self.batch * self.batch  # of this task
        file, offset = divmod(line, self._corpus.lines_per_file)
        if file != self._file[0]:
            self._file = file, lines_of(self._corpus.file(self.task_index + file * self.parallelism).read_bytes())
        self._sent = line + count
        return pa.record_batch([self._file[1].slice(offset, count)], names=["line"])

    def close(self) -> None:
        super().close()
        write_report(self, self._conf, {"lines": self._sent})


class ReportingBolt(Bolt):
    """A bolt with counts in keyed state, which it reports at its end."""

    counts = CounterState()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._conf = storm_conf

    def close(self) -> None:
        super().close()
        write_report(self, self._conf, {"counts": dict(self.counts.items())})


class BenchSplit(Split):
    named_rows: ClassVar[bool] = False  # it reads the line by its place, not by its name


class BenchCount(ReportingBolt, Count):
    named_rows: ClassVar[bool] = False


class WordsByTuple(Topology):
    """Tuple by tuple: `process` and `emit` for every word, every update passed on."""

    lines = CorpusLines.spec(par=2)
    split = BenchSplit.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = BenchCount.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class SplitRows(Bolt):
    """Chunks of lines to chunks of words."""

    outputs: ClassVar[list[str]] = ["word"]
    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows([(word,) for (line,) in rows for word in line.split()])


class CountRows(ReportingBolt):
    """Counts words in keyed state, a chunk at a time; emits every update."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Any]) -> None:
        counts, updates = self.counts, []
        for (word,) in rows:
            counts[word] = count = counts[word] + 1
            updates.append((word, count))
        self.emit_rows(updates)


class WordsByChunk(Topology):
    """Chunk by chunk: `process_rows` and `emit_rows`; still every update passed on."""

    lines = CorpusLines.spec(par=2)
    split = SplitRows.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = CountRows.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class SplitEncoded(Bolt):
    """Batches of lines to batches of words, dictionary-encoded: what follows hashes each different word once."""

    outputs: ClassVar[list[str]] = ["word"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        words = pc.list_flatten(pc.split_pattern(batch.column(0), " "))
        self.emit_arrow(pa.record_batch([words.dictionary_encode()], names=["word"]))


class CountArrowBatch(ReportingBolt, TallyArrow):
    """Counts Arrow batches of words in keyed state; one update for each word and batch."""


class WordsByArrow(Topology):
    """Arrow batch by Arrow batch; every word is sent to the task that counts it."""

    lines = CorpusLinesArrow.spec(par=2)
    split = SplitEncoded.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = CountArrowBatch.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class WordsRescaled(Topology):
    """`WordsByArrow` without a sink, so that the rescaled component stays the last stage."""

    lines = CorpusLinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = CountArrowBatch.spec(inputs={split: Grouping.fields("word")}, par=2)


class BenchSplitOnes(SplitOnes):
    named_rows: ClassVar[bool] = False


class BenchTotal(ReportingBolt, Total):
    named_rows: ClassVar[bool] = False


class WordsCombinedByTuple(Topology):
    """`WordsByTuple`, but each sender combines the words of a chunk before it sends them, as SQL does. Larger chunks have more
    words in common."""

    config: ClassVar[dict[str, Any]] = {CHUNK_TUPLES.key: 10_000}
    lines = CorpusLines.spec(par=2)
    split = BenchSplitOnes.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = BenchTotal.spec(inputs={split: Grouping.fields("word", combine={"count": "sum"})}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class TotalArrowBatch(ReportingBolt, TotalArrow):
    """Adds up Arrow batches with numbers of words in keyed state; one update for each word and batch."""


class WordsCombined(Topology):
    """Arrow batch by Arrow batch; each sender combines the words of a batch before it sends them."""

    lines = CorpusLinesArrow.spec(par=2)
    split = SplitOnesArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = TotalArrowBatch.spec(inputs={split: Grouping.fields("word", combine={"count": "sum"})}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


def words_of_dataframe(lines_of_files: Any) -> type[Topology]:
    """`WordsCombined` on a streaming DataFrame of lines: Spark reads the input as it does for its own queries."""

    class WordsOfDataFrame(Topology):
        lines = Spout.from_dataframe(lines_of_files, par=2)
        split = SplitOnesArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
        count = TotalArrowBatch.spec(inputs={split: Grouping.fields("word", combine={"count": "sum"})}, par=2)
        drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)

    return WordsOfDataFrame


class TimedDrop(Drop):
    """Drops rows and reports when they came."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._conf = storm_conf
        self._arrivals: list[tuple[float, int]] = []

    def process_rows(self, rows: list[Any]) -> None:
        super().process_rows(rows)
        self._arrivals.append((time.monotonic(), len(rows)))

    def close(self) -> None:
        super().close()
        write_report(self, self._conf, {"arrivals": self._arrivals})


class WordsTimed(Topology):
    """Word count tuple by tuple, with a sink that reports when each update came."""

    lines = CorpusLines.spec(par=2)
    split = BenchSplit.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = BenchCount.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = TimedDrop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class WordsDue(Topology):
    """Word count tuple by tuple, with lines by the wall clock."""

    lines = DueLines.spec(par=2)
    split = BenchSplit.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = BenchCount.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class Stamps(GeneratorSpout):
    """Tuples with the time at which they were emitted."""

    outputs: ClassVar[list[str]] = ["at"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (time.monotonic(),)


class HopMeter(Bolt):
    """Measures how long each tuple took to arrive; reported as metrics in microseconds."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._latency = LatencyHistogram()

    def process(self, tup: Tuple) -> None:
        self._latency.record(time.monotonic() - tup.values[0])
        if self._latency.count % 100 == 0:
            for percentile in (50, 99):
                milliseconds = self._latency.percentile_ms(percentile)
                self.report_metric(f"hop_p{percentile}_us", round((milliseconds or 0.0) * 1000, 1))


class LocalHop(Topology):
    """One spout and a bolt task on each of two workers: the tuples go to the one beside the spout."""

    stamps = Stamps.spec()
    meter = HopMeter.spec(inputs={stamps: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class RemoteHop(Topology):
    """`LocalHop`, but the tuples go to the bolt task on the other worker: the even scheduler puts task 0 there."""

    stamps = Stamps.spec()
    meter = HopMeter.spec(inputs={stamps: Grouping.GLOBAL}, par=2)


class SlowWork(Bolt):
    """Takes a millisecond for each tuple."""

    def process(self, tup: Tuple) -> None:
        time.sleep(0.001)


class SlowBolt(Topology):
    """A spout that can emit 100,000 lines per second feeds a bolt that processes 1,000."""

    lines = Lines.spec()
    slow = SlowWork.spec(inputs=[lines])
