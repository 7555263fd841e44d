"""Pathway on the word count: split in Python, its native groupby and count, a subscriber that drops the updates.

Setting: two worker threads in one process, rows of 100 lines, a commit every 30,000 lines, two commits under way.
With a line a row it has half as many words a second.
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
SETTING = (
    f"{WORKERS} threads, rows of {LINES_PER_ROW} lines, a commit every {LINES_PER_COMMIT} lines; "
    "latency: a row and a commit for each line"
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

    def measure_with(self, meter: LatencyMeter) -> None:
        """Begin the latency run. Nothing is under way at this moment."""
        with self.changed:
            self.base, self.meter = self.words, meter

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
        self.lines_sent = 0
        # When the run at full speed began and ended; None until it has.
        self.full_speed: tuple[float, float] | None = None

    def run(self) -> None:
        if self._request.lines:
            self._send(lines(self._request.seed, WARM_UP_LINES))
            content = lines(self._request.seed, self._request.lines)
            started = time.perf_counter()
            self._send(content)
            self.full_speed = started, self._totals.at
        if self._request.rate:
            self._send_when_due()

    def _send(self, content: list[str]) -> None:
        """Send the lines at full speed and wait until all are counted."""
        for start in range(0, len(content), LINES_PER_COMMIT):
            self._wait_until_under_way(COMMITS_UNDER_WAY * LINES_PER_COMMIT)
            commit = content[start : start + LINES_PER_COMMIT]
            for row in range(0, len(commit), LINES_PER_ROW):
                self.next(line="\n".join(commit[row : row + LINES_PER_ROW]))
            self.commit()
            self.lines_sent += len(commit)
        self._wait_until_under_way(0)

    def _send_when_due(self) -> None:
        rate = self._request.rate
        content = lines(self._request.seed, int(rate * (SETTLE_SECONDS + self._request.seconds)))
        meter = LatencyMeter(time.perf_counter(), rate, SETTLE_SECONDS)
        self._totals.measure_with(meter)
        sent = 0
        while sent < len(content):
            for line in content[sent : meter.lines_due(time.perf_counter())]:
                self.next(line=line)
                self.commit()
                sent += 1
            time.sleep(max(0.0, meter.due(sent) - time.perf_counter()))
        self.lines_sent += sent
        self._wait_until_under_way(0)

    def _wait_until_under_way(self, most: int) -> None:
        """Wait until no more than `most` lines are sent and not yet counted."""
        self._totals.wait_for((self.lines_sent - most) * WORDS_PER_LINE)


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
    checksum = check(totals.words, feeder.lines_sent * WORDS_PER_LINE)
    throughput = None
    if feeder.full_speed is not None:
        started, ended = feeder.full_speed
        throughput = Throughput(request.lines * WORDS_PER_LINE, ended - started, checksum)
    print_result("pathway", pw.__version__, SETTING, throughput, totals.meter)


if __name__ == "__main__":
    main()
