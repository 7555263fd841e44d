"""The word count of `bench handover`: an open-loop source, counts with a declared size of state, and sinks with a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.bench.handover.sink_log import SinkLogFile
from millrace.bench.handover.timetable import PRIMING, Timetable
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered
from millrace.workloads.notes import NotedBolt

SPOUTS = SINKS = 2
LOOK_SECONDS = 0.05  # between two looks at the timetable


class ScheduledSpout(GeneratorSpout):
    """Base of spouts that follow the timetable in the directory `log`: the priming tuples come at once, and the others when
    they are due, however long an incarnation was not called. With a `rate` of 0, all come as fast as possible."""

    priming: ClassVar[int] = 0

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._log = Path(setting(self, storm_conf, "log", str))
        self._timetable: Timetable | None = None
        self._looked = float("-inf")

    def _due(self) -> int:
        now = self.clock()
        if (self._timetable is None or self._timetable.lines is None) and now - self._looked >= LOOK_SECONDS:
            self._looked, self._timetable = now, Timetable.read(self._log)
        return self.priming if self._timetable is None else self._timetable.first_not_due(self.task_index, now)


class ScheduledLines(ScheduledSpout, NumberedLines):
    """Numbered lines by a timetable."""

    priming: ClassVar[int] = PRIMING


class NotedTally(NotedBolt):
    """Counts words in keyed state; emits every word with its number. Notes give the state its declared size."""

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word"]
    named_rows: ClassVar[bool] = False
    counts = CounterState()

    def process_rows(self, rows: list[Any]) -> None:
        counts = self.counts
        for row in rows:
            counts[row[3]] += 1
        self.emit_rows(rows)
        if self.noted:
            self.write_notes(len(rows))


class LoggedSink(AuditSink):
    """Writes words, and logs in the directory `log` when they came."""

    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._log = SinkLogFile(Path(setting(self, storm_conf, "log", str)), self.task_index)

    def process_rows(self, rows: list[Any]) -> None:
        super().process_rows(rows)
        self._log.add(self.clock(), rows)

    def close(self) -> None:
        super().close()
        self._log.close()


class WordsHandedOver(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    lines = ScheduledLines.spec(par=SPOUTS)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
    count = NotedTally.spec(inputs={split: Grouping.fields("word")}, par=2)
    sink = LoggedSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=SINKS)
