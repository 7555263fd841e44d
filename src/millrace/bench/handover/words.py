"""The word count of `bench handover`: an open-loop source, counts with a declared size of state, and sinks with a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState, State
from millrace.api.topology import Topology
from millrace.bench.handover.sink_log import SinkLogFile
from millrace.bench.handover.timetable import PRIMING, Timetable
from millrace.connectors.settings import setting
from millrace.errors import KeyNotOwned
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered

SPOUTS = SINKS = 2
NOTE_BYTES = 1000
WORDS_PER_NOTE = 100  # words after which a note is rewritten
LOOK_SECONDS = 0.05  # between two looks at the timetable


class ScheduledLines(NumberedLines):
    """Numbered lines by the timetable in the directory `log`: the priming lines at once, and the others when they are due,
    however long an incarnation was not called. With a `rate` of 0, all lines as fast as possible."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._log = Path(setting(self, storm_conf, "log", str))
        self._timetable: Timetable | None = None
        self._looked = float("-inf")

    def _due(self) -> int:
        now = self.clock()
        if (self._timetable is None or self._timetable.lines is None) and now - self._looked >= LOOK_SECONDS:
            self._looked, self._timetable = now, Timetable.read(self._log)
        return PRIMING if self._timetable is None else self._timetable.first_not_due(self.task_index, now)


class NotedTally(Bolt):
    """Counts words in keyed state; emits every word with its number. Notes of 1,000 bytes give the state its declared size: the
    first `noted_tasks` tasks have `notes` bytes of them each, and every hundredth word rewrites one."""

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word"]
    named_rows: ClassVar[bool] = False
    counts = CounterState()
    notes = State()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        noted = self.task_index < setting(self, storm_conf, "noted_tasks", int, 0, least=0)
        self._wanted = setting(self, storm_conf, "notes", int, 0, least=0) // NOTE_BYTES if noted else 0
        self._words = 0
        self._turns: Iterator[str] | None = None

    def process_rows(self, rows: list[Any]) -> None:
        counts = self.counts
        for row in rows:
            counts[row[3]] += 1
        self.emit_rows(rows)
        if self._wanted:
            self._write_notes(len(rows))

    def _write_notes(self, words: int) -> None:
        if self._turns is None:
            self._fill()
            self._turns = cycle(list(self.notes))
        before, self._words = self._words, self._words + words
        for number in range(before // WORDS_PER_NOTE, self._words // WORDS_PER_NOTE):
            if (key := next(self._turns)) in self.notes:  # its key group has not moved
                self.notes[key] = _note(number)

    def _fill(self) -> None:
        """Write all notes; an incarnation that has taken over has them already."""
        for number in count():
            if len(self.notes) >= self._wanted:
                return
            with suppress(KeyNotOwned):
                self.notes.setdefault(f"note {number}", _note(number))


def _note(number: int) -> bytes:
    return number.to_bytes(8, "little") * (NOTE_BYTES // 8)


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
