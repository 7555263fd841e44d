"""The log of the sinks: the arrival of each chunk and the latency of each word, written by the sinks and read at the end.

It does not depend on the engine's own meters. Every start of a sink writes a file: for each chunk the time of its arrival and
the number of words, then their latencies and their key groups.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from millrace.api.grouping import stable_hash
from millrace.bench.handover.timetable import PRIMING, Timetable
from millrace.config import KEY_GROUP_COUNT
from millrace.errors import MillraceError
from millrace.runtime.meters import LatencyHistogram

GAP_SECONDS = 0.01  # resolution of gaps
WINDOW_SECONDS = 0.25  # of a latency histogram
DIGITS = 512  # steps in which a latency's mantissa is kept: finer than the histogram
CLOSE_SECONDS = 30.0  # for the sinks to close their logs after the end of the topology
CLOSED, OPEN = ".log", ".part"
_HEADER = struct.Struct("<dI")


class GroupOfWord(dict[str, int]):
    """The key group of every word that was looked up."""

    def __missing__(self, word: str) -> int:
        group = self[word] = stable_hash(word) % KEY_GROUP_COUNT.default
        return group


class SinkLogFile:
    """The log of one start of a sink. Nothing is logged before there is a timetable, nor for the lines before it."""

    def __init__(self, directory: Path, task: int) -> None:
        self._directory, self._task = directory, task
        self._timetable: Timetable | None = None
        self._file: BinaryIO | None = None
        self._path = Path()
        self._group_of = GroupOfWord()

    def add(self, now: float, rows: Sequence[Any]) -> None:
        """Log a chunk of words: rows that begin with the spout task and the position of their line, and end with the word."""
        timetable = self._timetable = self._timetable or Timetable.read(self._directory)
        if timetable is None:
            return
        rate, tasks = timetable.rate, timetable.tasks
        age, group_of = now - timetable.due_at(0, 0), self._group_of
        logged = [row for row in rows if row[1] >= PRIMING]
        if logged:
            file = self._file or self._open()
            file.write(_HEADER.pack(now, len(logged)))
            file.write(array("f", [age - (row[1] * tasks + row[0]) / rate for row in logged]))
            file.write(array("H", [group_of[row[3]] for row in logged]))

    def _open(self) -> BinaryIO:
        number, path = tempfile.mkstemp(OPEN, f"sink-{self._task}-", self._directory)
        self._path, self._file = Path(path), os.fdopen(number, "wb")
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.replace(self._path.with_suffix(CLOSED))
            self._file = None


class SinkLog:
    """All sinks together. `times`: of the chunks, rising; `counts`: their words; `latencies`, `groups`: of all words, in
    seconds and by number, in the order of the chunks."""

    def __init__(self, times: np.ndarray, counts: np.ndarray, latencies: np.ndarray, groups: np.ndarray) -> None:
        self.times, self.latencies = times, latencies
        self._counts, self._groups = counts, groups
        self._first = np.concatenate(([0], np.cumsum(counts)))  # word of each chunk

    @classmethod
    def read(cls, directory: Path) -> SinkLog:
        """The log in all files of the directory."""
        await_closed(directory)
        chunks = sorted((chunk for path in directory.glob(f"sink-*{CLOSED}") for chunk in _chunks(path.read_bytes())),
                        key=lambda chunk: chunk[0])
        return cls(np.array([at for at, _, _ in chunks], np.float64), np.array([len(late) for _, late, _ in chunks], np.int64),
                   np.concatenate([late for _, late, _ in chunks]) if chunks else np.zeros(0, np.float32),
                   np.concatenate([groups for _, _, groups in chunks]) if chunks else np.zeros(0, np.uint16))

    def of_groups(self, groups: Iterable[int]) -> SinkLog:
        """The words of these key groups only."""
        kept = np.isin(self._groups, list(groups))
        chunk = np.repeat(np.arange(len(self.times)), self._counts)
        counts = np.bincount(chunk[kept], minlength=len(self.times))
        return SinkLog(self.times[counts > 0], counts[counts > 0], self.latencies[kept], self._groups[kept])

    @property
    def words(self) -> int:
        return len(self.latencies)

    def words_between(self, begin: float, end: float) -> int:
        return len(self._between(begin, end))

    def rate(self, begin: float, end: float, less: int = 0) -> float:
        """Words per second; `less`: words that do not count."""
        return max(0, self.words_between(begin, end) - less) / (end - begin)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a word that ends in this time, or has lasted until its end, in seconds."""
        first, last = np.searchsorted(self.times, (begin, end))
        before = self.times[first - 1] if first else begin
        buckets = np.floor(np.concatenate(([before], self.times[first:last], [end])) / GAP_SECONDS).astype(np.int64)
        return float(max(0, np.diff(buckets).max() - 1) * GAP_SECONDS)

    def histogram(self, begin: float, end: float) -> LatencyHistogram:
        histogram = LatencyHistogram()
        mantissas, exponents = np.frexp(np.maximum(self._between(begin, end).astype(np.float64), 1e-6))
        for seconds, count in zip(*np.unique(np.ldexp(np.round(mantissas * DIGITS) / DIGITS, exponents), return_counts=True)):
            histogram.record(float(seconds), int(count))
        return histogram

    def windows(self, begin: float, end: float) -> Iterator[tuple[float, LatencyHistogram]]:
        """The beginning and the latencies of each whole window of 250 ms."""
        for number in range(int((end - begin) / WINDOW_SECONDS + 1e-6)):
            start = begin + number * WINDOW_SECONDS
            yield start, self.histogram(start, start + WINDOW_SECONDS)

    def worst_ms(self, begin: float, end: float, percentile: float = 99.0) -> float | None:
        """The percentile of the latencies in the worst window; None if no word came."""
        return max((ms for _, histogram in self.windows(begin, end) if (ms := histogram.percentile_ms(percentile)) is not None),
                   default=None)

    def timeline(self, begin: float, end: float, zero: float) -> list[dict[str, Any]]:
        """Words and latencies of each window, with its beginning in milliseconds since `zero`."""
        return [{"at_ms": round((start - zero) * 1000), "words": histogram.count, "p50_ms": histogram.percentile_ms(50),
                 "p99_ms": histogram.percentile_ms(99), "max_ms": histogram.percentile_ms(100)}
                for start, histogram in self.windows(begin, end)]

    def _between(self, begin: float, end: float) -> np.ndarray:
        first, last = np.searchsorted(self.times, (begin, end))
        return self.latencies[self._first[first]:self._first[last]]


def await_closed(directory: Path) -> None:
    """Wait until all sinks have closed their logs, shortly after the end of the topology."""
    deadline = time.monotonic() + CLOSE_SECONDS
    while unfinished := list(directory.glob(f"sink-*{OPEN}")):
        if time.monotonic() > deadline:
            raise MillraceError(f"{len(unfinished)} sinks have not closed their logs within {CLOSE_SECONDS:g} s: an "
                                "incarnation of a sink was killed or still runs")
        time.sleep(0.05)


def _chunks(data: bytes) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    place = 0
    while place < len(data):
        at, count = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        yield at, np.frombuffer(data, "<f4", count, place), np.frombuffer(data, "<u2", count, place + 4 * count)
        place += 6 * count
