"""The log of arrivals: the time at which each row came to a sink. Sinks write it, and all figures of the stream come from it.

It does not depend on the engine's own meters. Every start of a sink writes a file, unbuffered, so that a sink whose worker is
killed loses no more than its last chunk. A row has a key: the number of the source's tuple in the upper half, and which of that
tuple's rows it is in the lower half. A row that comes again has the same key.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Protocol

import numpy as np

from millrace.control.migrations import LEVELS

PREFIX, SUFFIX = "arrivals-", ".log"
NUMBER_SHIFT = 32
SLICE_SECONDS = 0.25  # the shortest slice in which throughput is measured
SLICE_TUPLES = 8  # of the source that a slice has, at least: with fewer, a single one that is late would look like a loss
POINTS = 400  # most in a timeline
ROUNDING = 1e-9
_HEADER = struct.Struct("<dI")


def slice_seconds(rate: float) -> float:
    """The length of a slice of the stream. `rate`: tuples per second of the source."""
    return max(SLICE_SECONDS, SLICE_TUPLES / rate)


def row_key(number: int, part: int) -> int:
    """The key of a row. `number`: of the source's tuple among those of all its tasks."""
    return number << NUMBER_SHIFT | part


class ArrivalFile:
    """The log of one start of a sink."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: BinaryIO | None = None

    def add(self, now: float, keys: Sequence[int]) -> None:
        if keys:
            file = self._file = self._file or self._open()
            file.write(_HEADER.pack(now, len(keys)) + array("Q", keys).tobytes())

    def _open(self) -> BinaryIO:
        number, _ = tempfile.mkstemp(SUFFIX, PREFIX, self._directory)
        return os.fdopen(number, "wb", buffering=0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class DueTimes(Protocol):
    """The timetable of a source. `rate`: tuples per second of all its tasks, on average."""

    @property
    def rate(self) -> float: ...

    def due_times(self, numbers: np.ndarray) -> np.ndarray:
        """The times at which tuples are due, by their numbers."""


class LoggedArrivals:
    """The rows at all sinks, each at its first arrival. `times`: rising; `latencies`: seconds since its tuple was due. `total`:
    arrivals of all rows, each as often as it came. `expected_rate`: rows per second, if all came when they are due."""

    def __init__(self, times: np.ndarray, keys: np.ndarray, timetable: DueTimes) -> None:
        order = np.argsort(times, kind="stable")
        _, first = np.unique(keys[order], return_index=True)
        kept = order[np.sort(first)]
        self.times = times[kept]
        numbers = (keys[kept] >> np.uint64(NUMBER_SHIFT)).astype(np.int64)
        self.latencies = self.times - timetable.due_times(numbers)
        self.expected_rate = timetable.rate * len(kept) / len(np.unique(numbers)) if len(kept) else 0.0
        self.total = len(times)
        self.slice = slice_seconds(timetable.rate)

    @classmethod
    def read(cls, directory: Path, timetable: DueTimes) -> LoggedArrivals:
        """All files in the directory, which sinks may still be writing."""
        chunks = [chunk for path in directory.glob(f"{PREFIX}*{SUFFIX}") for chunk in _chunks(path.read_bytes())]
        times = np.repeat(np.array([at for at, _ in chunks], np.float64), [len(keys) for _, keys in chunks])
        keys = np.concatenate([keys for _, keys in chunks]) if chunks else np.zeros(0, np.uint64)
        return cls(times, keys, timetable)

    @property
    def rows(self) -> int:
        return len(self.times)

    def rows_between(self, begin: float, end: float) -> int:
        first, last = np.searchsorted(self.times, (begin, end))
        return int(last - first)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a row that ends between these times, or has lasted until the end, in seconds."""
        first, last = np.searchsorted(self.times, (begin, end))
        before = self.times[first - 1] if first else begin
        return float(np.diff(np.concatenate(([before], self.times[first:last], [end]))).max())

    def usual_gap(self, begin: float, end: float, seconds: float) -> float:
        """The longest gap in so many seconds: the median of as many slices of that length as there are between these times, of
        which the last ends at the end."""
        return median(self.longest_gaps(begin, end, min(seconds, end - begin)))

    def longest_gaps(self, begin: float, end: float, seconds: float) -> list[float]:
        """The longest gap in each of as many slices of so many seconds as there are between these times, from the end on."""
        return [self.longest_gap(end - (number + 1) * seconds, end - number * seconds)
                for number in range(int((end - begin) / seconds + ROUNDING))]

    def worst_latency(self, begin: float, end: float) -> float | None:
        first, last = np.searchsorted(self.times, (begin, end))
        return float(self.latencies[first:last].max()) if last > first else None

    def mean_latency(self, begin: float, end: float) -> float | None:
        first, last = np.searchsorted(self.times, (begin, end))
        return float(self.latencies[first:last].mean()) if last > first else None

    def latency_percentile(self, begin: float, end: float, percent: float) -> float | None:
        first, last = np.searchsorted(self.times, (begin, end))
        return float(np.percentile(self.latencies[first:last], percent)) if last > first else None

    def rates(self, begin: float, end: float, seconds: float) -> np.ndarray:
        """Rows per second in each whole slice of so many seconds."""
        slices = int((end - begin) / seconds + ROUNDING)
        edges = begin + seconds * np.arange(slices + 1)
        return np.diff(np.searchsorted(self.times, edges)) / seconds

    def degraded(self, begin: float, end: float, usual: float) -> dict[str, float]:
        """Seconds in which so many percent of the usual rate were missing, by percent."""
        missing = 1 - self.rates(begin, end, self.slice) / usual
        return {str(level): round(float(np.count_nonzero(missing >= level / 100 - ROUNDING)) * self.slice, 2)
                for level in LEVELS}

    def capped_share(self, begin: float, end: float, usual: float) -> float:
        """The rows of a time as a share of the usual ones. A slice counts at most as usual: an open-loop source makes up for
        what it could not send, and a source at its limit cannot."""
        rates = self.rates(begin, end, self.slice)
        return float(np.minimum(rates, usual).mean() / usual) if len(rates) else 1.0

    def timeline(self, begin: float, end: float, zero: float) -> list[dict[str, Any]]:
        """Rate and latency in slices, with their beginnings in milliseconds since `zero`."""
        seconds = max(self.slice, (end - begin) / POINTS)
        edges = begin + seconds * np.arange(int((end - begin) / seconds) + 1)
        return [{"at_ms": round((edges[index] - zero) * 1000), "rows_per_s": round((last - first) / seconds, 1),
                 "mean_ms": round(float(self.latencies[first:last].mean()) * 1000, 1) if last > first else None}
                for index, (first, last) in enumerate(_pairs(np.searchsorted(self.times, edges)))]


def _pairs(places: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip(places[:-1].tolist(), places[1:].tolist())


def _chunks(data: bytes) -> Iterator[tuple[float, np.ndarray]]:
    """The chunks of a file, without one at the end that is not complete."""
    place = 0
    while place + _HEADER.size <= len(data):
        at, count = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        if place + 8 * count > len(data):
            return
        yield at, np.frombuffer(data, "<u8", count, place)
        place += 8 * count
