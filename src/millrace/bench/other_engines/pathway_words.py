"""Pathway on the word count: split in Python, its native groupby and count, a subscriber that drops the updates.

Two worker threads in one process, rows of 100 lines (a line a row is half as fast), two commits in progress. With
`--checkpoint-seconds` its persistence is used, which writes the input to a log.

In a latency run every line is a row and a commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

WORKERS = 2
# Pathway reads this when it is imported.
os.environ["PATHWAY_THREADS"] = str(WORKERS)

import pathway as pw  # noqa: E402

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, Corpus
    from .reporting import LatencyMeter, RunRequest, WindowMeter, check_counts, parse_request, print_result
else:
    from job import WORDS_PER_LINE, Corpus
    from reporting import LatencyMeter, RunRequest, WindowMeter, check_counts, parse_request, print_result

LINES_PER_ROW = 100
COMMITS_UNDER_WAY = 2


@dataclass
class _SeenCounts:
    """The counts as the subscriber sees them. Pathway takes an old count back before it sends the new one."""

    counts: dict[str, int] = field(default_factory=dict)
    words: int = 0
    meter: WindowMeter | LatencyMeter | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def on_change(self, key: pw.Pointer, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            self.counts[row["word"]] = row["count"]
            self.words += row["count"]
        else:
            self.words -= row["count"]

    def on_time_end(self, commit: int) -> None:
        with self.changed:
            now = time.perf_counter()
            if isinstance(self.meter, WindowMeter):
                self.meter.note(self.words, now)
            elif self.meter is not None:
                self.meter.counted(self.words, now)
            self.changed.notify_all()

    def wait_for(self, words: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.words >= words)


class _Feeder(pw.io.python.ConnectorSubject):
    """Sends the lines, at full speed or each when it is due.

    At full speed it waits for the counts rather than for room in a queue: left alone, Pathway reads all of the
    input before it computes, and gets slower the more is waiting.
    """

    def __init__(self, request: RunRequest, seen: _SeenCounts) -> None:
        super().__init__()
        self._request, self._seen = request, seen
        self._lines: Iterator[str] = Corpus.at(request.corpus).lines()
        self.lines_sent = 0

    def run(self) -> None:
        if self._request.rate:
            self._send_when_due()
        else:
            self._send_at_full_speed()
        self._wait_until_under_way(0)

    def _send_at_full_speed(self) -> None:
        meter = self._seen.meter = WindowMeter(self._request.rule, time.perf_counter())
        size = self._request.batch_lines
        while not meter.done:
            self._wait_until_under_way(COMMITS_UNDER_WAY * size)
            for first in range(0, size, LINES_PER_ROW):
                self.next(line="\n".join(islice(self._lines, min(LINES_PER_ROW, size - first))))
            self.commit()
            self.lines_sent += size

    def _send_when_due(self) -> None:
        meter = self._seen.meter = LatencyMeter(time.perf_counter(), self._request.rate, self._request.rule.warm_up)
        while self.lines_sent < self._request.paced_lines:
            due = min(meter.lines_due(time.perf_counter()), self._request.paced_lines)
            for line in islice(self._lines, due - self.lines_sent):
                self.next(line=line)
                self.commit()
            self.lines_sent = due
            time.sleep(max(0.0, meter.due(due) - time.perf_counter()))

    def _wait_until_under_way(self, most: int) -> None:
        """Wait until no more than `most` lines are sent and not yet counted."""
        self._seen.wait_for((self.lines_sent - most) * WORDS_PER_LINE)


class _Row(pw.Schema):
    line: str


@pw.udf(deterministic=True)
def _split(line: str) -> list[str]:
    return line.split()


def _persistence(request: RunRequest, directory: Path) -> pw.persistence.Config | None:
    if not request.checkpoint_seconds:
        return None
    backend = pw.persistence.Backend.filesystem(directory)
    return pw.persistence.Config(backend, snapshot_interval_ms=round(request.checkpoint_seconds * 1000))


def main() -> None:
    request = parse_request(__doc__ or "")
    seen = _SeenCounts()
    feeder = _Feeder(request, seen)
    rows = pw.io.python.read(feeder, schema=_Row, autocommit_duration_ms=None, name="lines")
    words = rows.select(word=_split(rows.line)).flatten(pw.this.word)
    counts = words.groupby(words.word).reduce(words.word, count=pw.reducers.count())
    pw.io.subscribe(counts, on_change=seen.on_change, on_time_end=seen.on_time_end)
    with TemporaryDirectory(prefix="persisted-", dir=request.corpus.parent) as directory:
        pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=_persistence(request, Path(directory)))
    assert seen.meter is not None, "the run has ended, so the source was read"
    checked = check_counts(seen.counts, Corpus.at(request.corpus).counts([feeder.lines_sent]))
    setting = f"{WORKERS} threads, rows of {LINES_PER_ROW} lines, a commit every {request.batch_lines:,} lines"
    print_result("pathway", pw.__version__, setting, seen.meter.as_fields(), checked)


if __name__ == "__main__":
    main()
