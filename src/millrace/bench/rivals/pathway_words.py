"""Pathway on the word count: split in Python, its native groupby and count, a subscriber that drops the updates.

Setting: two worker threads in one process, rows of 100 lines, a commit every 30,000 lines, two commits under way.

TABLE
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

WORKERS = 2
# Pathway reads this when it is imported.
os.environ["PATHWAY_THREADS"] = str(WORKERS)

import pathway as pw  # noqa: E402

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, lines
    from .reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result
else:
    from job import WORDS_PER_LINE, lines
    from reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result

LINES_PER_ROW = 100
LINES_PER_COMMIT = 30_000
COMMITS_UNDER_WAY = 2
WARM_UP_LINES = 2 * LINES_PER_COMMIT
SETTLE_SECONDS = 1.0
# Lines that have come due are committed together this often when the latency is measured.
TURN_SECONDS = float(os.environ.get("TURN", "0.005"))
SETTING = (
    f"{WORKERS} threads, rows of {LINES_PER_ROW} lines, a commit every {LINES_PER_COMMIT} lines; "
    f"latency: rows of 1 line, a commit every {TURN_SECONDS * 1e3:g} ms"
)


@dataclass
class _Totals:
    """The sum of all counts as the subscriber sees them, and who waits for it to grow.

    Pathway takes an old count back before it sends the new one, so the sum is kept by adding and taking away.
    """

    words: int = 0
    at: float = 0.0
    # Words counted before the latency run began, and its meter once it did.
    base: int = 0
    meter: LatencyMeter | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def on_change(self, key: pw.Pointer, row: dict[str, Any], time: int, is_addition: bool) -> None:
        self.words += row["count"] if is_addition else -row["count"]

    def on_time_end(self, commit: int) -> None:
        with self.changed:
            self.at = time.perf_counter()
            if self.meter is not None:
                self.meter.counted(self.words - self.base, self.at)
            self.changed.notify_all()

    def wait_for(self, words: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.words >= words)


class _Feeder(pw.io.python.ConnectorSubject):
    """Sends the lines: first at full speed, then, if asked to, each when it is due.

    At full speed it waits for the counts rather than for room in a queue: left alone, Pathway reads all of the
    input before it computes, and gets slower the more is waiting.
    """

    def __init__(self, request: Request, totals: _Totals) -> None:
        super().__init__()
        self._request = request
        self._totals = totals
        self.throughput: Throughput | None = None

    def run(self) -> None:
        if self._request.lines:
            self._at_full_speed()
        if self._request.rate:
            self._at_steady_rate()

    def _at_full_speed(self) -> None:
        everything = lines(self._request.seed, WARM_UP_LINES + self._request.lines)
        self._send(everything[:WARM_UP_LINES], sent_before=0)
        started = time.perf_counter()
        self._send(everything[WARM_UP_LINES:], sent_before=WARM_UP_LINES)
        checksum = check(self._totals.words, len(everything) * WORDS_PER_LINE)
        self.throughput = Throughput(self._request.lines * WORDS_PER_LINE, self._totals.at - started, checksum)

    def _send(self, batch: list[str], sent_before: int) -> None:
        """Send the lines and wait until all are counted."""
        for start in range(0, len(batch), LINES_PER_COMMIT):
            self._totals.wait_for((sent_before + start - COMMITS_UNDER_WAY * LINES_PER_COMMIT) * WORDS_PER_LINE)
            commit = batch[start : start + LINES_PER_COMMIT]
            for row in range(0, len(commit), LINES_PER_ROW):
                self.next(line="\n".join(commit[row : row + LINES_PER_ROW]))
            self.commit()
        self._totals.wait_for((sent_before + len(batch)) * WORDS_PER_LINE)

    def _at_steady_rate(self) -> None:
        totals, rate = self._totals, self._request.rate
        batch = lines(self._request.seed, int(rate * (SETTLE_SECONDS + self._request.seconds)))
        totals.base = totals.words
        totals.meter = LatencyMeter(time.perf_counter(), rate, SETTLE_SECONDS)
        sent = 0
        while sent < len(batch):
            due = totals.meter.lines_due(time.perf_counter())
            for line in batch[sent:due]:
                self.next(line=line)
            self.commit()
            sent = min(due, len(batch))
            time.sleep(TURN_SECONDS)
        totals.wait_for(totals.base + len(batch) * WORDS_PER_LINE)
        check(totals.words - totals.base, len(batch) * WORDS_PER_LINE)


class _Row(pw.Schema):
    line: str


@pw.udf(deterministic=True)
def _split(line: str) -> list[str]:
    return line.split()


def main() -> None:
    request = parse_request(__doc__ or "")
    totals = _Totals()
    feeder = _Feeder(request, totals)
    rows = pw.io.python.read(feeder, schema=_Row, autocommit_duration_ms=None)
    words = rows.select(word=_split(rows.line)).flatten(pw.this.word)
    counts = words.groupby(words.word).reduce(words.word, count=pw.reducers.count())
    pw.io.subscribe(counts, on_change=totals.on_change, on_time_end=totals.on_time_end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    print_result("pathway", pw.__version__, SETTING, feeder.throughput, totals.meter)


if __name__ == "__main__":
    main()
