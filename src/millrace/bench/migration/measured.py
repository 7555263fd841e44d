"""The workloads with sources that follow a timetable and sinks that log arrivals."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.bench.handover.words import NotedTally, ScheduledSpout
from millrace.bench.migration.arrivals import ArrivalFile, row_key
from millrace.config import CHANNEL_SECONDS, CHANNEL_WINDOW
from millrace.connectors.settings import setting
from millrace.workloads.audit import AuditSink, CountNumbered, NumberedLines, SplitNumbered
from millrace.workloads.dataflows.tasks import Events, EventSink, trail_crc
from millrace.workloads.logstream import Indexer, LogDatabase, LogLines, Rules
from millrace.workloads.logstream_audit import COUNT_TABLE, INDEX_TABLE, NumberedRuleCounter
from millrace.workloads.topn import CountNumberedWords, MergeCounts

# -- sources -----------------------------------------------------------------------------------------------------------


class MeasuredEvents(ScheduledSpout, Events):
    """Events by a timetable."""


class MeasuredLines(ScheduledSpout, NumberedLines):
    """Numbered lines by a timetable, without priming ones."""


class MeasuredRequests(ScheduledSpout, LogLines):
    """Requests by a timetable."""


# -- sinks -------------------------------------------------------------------------------------------------------------


class ArrivalLog(Bolt):
    """Base of sinks that log the arrival of each row. Stands before the class of the sink in the list of bases. A subclass
    calls `log_arrivals` for the rows that it has processed.

    | config | meaning |
    | --- | --- |
    | `log` | directory of the logs |
    | `source_tasks` | tasks of the source (default 1) |
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._arrivals = ArrivalFile(Path(setting(self, storm_conf, "log", str)))
        self._source_tasks: int = setting(self, storm_conf, "source_tasks", int, 1, least=1)

    def log_arrivals(self, keys: list[int]) -> None:
        self._arrivals.add(self.clock(), keys)

    def close(self) -> None:
        super().close()
        self._arrivals.close()


class MeasuredEventSink(ArrivalLog, EventSink):
    """The sink of the dataflows."""

    def process_rows(self, rows: list[Any]) -> None:
        super().process_rows(rows)
        tasks = self._source_tasks
        self.log_arrivals([row_key(position * tasks + task, trail_crc(trail)) for task, position, _, trail in rows])


class MeasuredWords(ArrivalLog, AuditSink):
    """The sink of numbered words."""

    def process_rows(self, rows: list[Any]) -> None:
        super().process_rows(rows)
        tasks = self._source_tasks
        self.log_arrivals([row_key(position * tasks + task, index) for task, position, index, _ in rows])


class MeasuredDatabase(ArrivalLog, LogDatabase):
    """The sinks of Log Stream. Rows of one table begin with the number of their request, those of the other with a term."""

    def process_rows(self, rows: list[Any]) -> None:
        super().process_rows(rows)
        self.log_arrivals([row_key(row[0], 0) if isinstance(row[0], int)
                           else row_key(row[1], zlib.crc32(row[0].encode()) | 1) for row in rows])


# -- topologies --------------------------------------------------------------------------------------------------------


# The papers run Storm without back-pressure: a task whose receiver is away goes on with what is for the others. With the usual
# bound of half a second of work it would wait, and one missing task would stop all.
WIDE_CHANNELS: dict[str, Any] = {CHANNEL_WINDOW.key: 4096, CHANNEL_SECONDS.key: 60.0}


class MeasuredWordCount(Topology):
    """N-Storm's Word Count: 12 tasks split, 24 tasks count. Counts are in memory only, as in the paper, so there are no waves
    and a task that ends takes no other with it: its tuples are replayed."""

    config: ClassVar[dict[str, Any]] = WIDE_CHANNELS
    lines = MeasuredLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=12)
    count = CountNumbered.spec(inputs={split: Grouping.fields("word")}, par=24)
    sink = MeasuredWords.spec(inputs={count: Grouping.SHUFFLE}, par=2)


class MeasuredTopN(Topology):
    """Sl-Stream's Top_N: 10 tasks split, 8 tasks count, one merges."""

    config: ClassVar[dict[str, Any]] = {"zipf": 1.0, **WIDE_CHANNELS}
    read = MeasuredLines.spec(par=1)
    split = SplitNumbered.spec(inputs={read: Grouping.SHUFFLE}, par=10)
    count = CountNumberedWords.spec(inputs={split: Grouping.fields("word")}, par=8)
    merge = MergeCounts.spec(inputs={count: Grouping.GLOBAL}, par=1)
    sink = MeasuredWords.spec(inputs={merge: Grouping.SHUFFLE}, par=1)


class MeasuredLogStream(Topology):
    """T-Storm's Log Stream: 5 tasks classify, 5 index, 5 count; it writes files."""

    config: ClassVar[dict[str, Any]] = {"store": "jsonl", **WIDE_CHANNELS}
    lines = MeasuredRequests.spec(par=5)
    rules = Rules.spec(inputs={lines: Grouping.SHUFFLE}, par=5)
    indexer = Indexer.spec(inputs={rules: Grouping.SHUFFLE}, par=5)
    counter = NumberedRuleCounter.spec(inputs={rules: Grouping.fields("rule")}, par=5)
    index_store = MeasuredDatabase.spec(inputs={indexer: Grouping.SHUFFLE}, par=2, config={"table": INDEX_TABLE})
    count_store = MeasuredDatabase.spec(inputs={counter: Grouping.SHUFFLE}, par=2, config={"table": COUNT_TABLE})


class MeasuredNotes(Topology):
    """Word Count with keyed state of a declared size, in the shape of Sl-Stream's Top_N: 10 tasks split, 8 tasks count."""

    lines = MeasuredLines.spec(par=1)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=10)
    count = NotedTally.spec(inputs={split: Grouping.fields("word")}, par=8)
    sink = MeasuredWords.spec(inputs={count: Grouping.SHUFFLE}, par=1)
