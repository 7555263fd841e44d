"""Load patterns: rates that change over time, and the time at which each tuple of such a stream is due.

A pattern is a chain of segments in which the rate rises or falls in a straight line. So the number of tuples that are due by a
time, which is the integral of the rate, and the time at which tuple n is due have closed forms, each the inverse of the other.
Tuple n is due when the integral exceeds n: tuple 0 when the rate is first above 0.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from millrace.errors import TopologyError

SINE_SEGMENTS = 360  # in a period: the rate differs from the sine by less than 0.004 % of the amplitude


@dataclass(frozen=True, slots=True)
class Segment:
    """From `begin` on, in seconds, the rate goes in a straight line from `first` to `last`, in tuples per second."""

    begin: float
    first: float
    last: float


class Pattern:
    """The rate of a stream over time. Without a `period` the last segment goes on forever, with one rate; with it, the segments
    are repeated every so many seconds."""

    def __init__(self, segments: Sequence[Segment], period: float | None = None) -> None:
        self.segments, self.period = tuple(segments), period
        self._check()
        self._begins = [segment.begin for segment in segments]
        self._lengths = [after - before for before, after in pairwise([*self._begins, math.inf if period is None else period])]
        areas = [_area(segment, length) for segment, length in zip(self.segments, self._lengths)]
        self._totals = list(accumulate(areas[:-1], initial=0.0))  # tuples due before each segment
        self._cycle = self._totals[-1] + areas[-1]  # tuples of a period, or of all time
        if not self._cycle:
            raise TopologyError("a load pattern has the rate 0 at all times: one of its rates must be above 0")

    def _check(self) -> None:
        segments, period = self.segments, self.period
        times = [segment.begin for segment in segments] + ([] if period is None else [period])
        if not segments or times[0] != 0.0 or any(not before < after for before, after in pairwise(times)):
            raise TopologyError(f"the times of a load pattern must begin at 0 and rise, and are {_shown(times)}")
        if any(not (0.0 <= rate < math.inf) for segment in segments for rate in (segment.first, segment.last)):
            raise TopologyError("the rates of a load pattern must be 0 or more, and are "
                                f"{_shown([segment.first for segment in segments])}")
        if period is None and segments[-1].first != segments[-1].last:
            raise TopologyError("the last rate of a load pattern without a period goes on forever, so it cannot change")

    @property
    def total(self) -> float:
        """Tuples of all time; infinite unless the rate ends at 0."""
        return math.inf if self.period is not None else self._cycle

    @property
    def mean_rate(self) -> float:
        """The average rate of a period; without one, the rate that goes on forever."""
        return self.segments[-1].last if self.period is None else self._cycle / self.period

    def rate_at(self, seconds: float) -> float:
        """Tuples per second at a time."""
        _, seconds = self._in_cycle(seconds)
        number = bisect_right(self._begins, seconds) - 1
        segment, length = self.segments[number], self._lengths[number]
        share = (seconds - segment.begin) / length
        return segment.first + (segment.last - segment.first) * share

    def due_by(self, seconds: float) -> float:
        """The integral of the rate from 0 to a time."""
        if seconds <= 0.0:
            return 0.0
        cycles, seconds = self._in_cycle(seconds)
        number = bisect_right(self._begins, seconds) - 1
        segment, length = self.segments[number], self._lengths[number]
        passed = min(seconds - segment.begin, length)
        slope = (segment.last - segment.first) / length
        before = cycles * self._cycle if cycles else 0.0  # without a period the cycle may be infinite
        return before + self._totals[number] + passed * (segment.first + slope * passed / 2)

    def due_count(self, seconds: float) -> int:
        """The number of tuples that are due by a time: the first that is not has this number."""
        return math.ceil(self.due_by(seconds))

    def time_of(self, number: float) -> float:
        """The time at which a tuple is due; infinite if the stream ends before it."""
        if number >= self.total:
            return math.inf
        cycles, rest = divmod(number, self._cycle) if self.period is not None else (0.0, number)
        place = bisect_right(self._totals, rest) - 1  # the last one: those before it with the same total have the rate 0
        segment, length = self.segments[place], self._lengths[place]
        area, slope = rest - self._totals[place], (segment.last - segment.first) / length
        if not area:
            passed = 0.0
        else:
            passed = 2 * area / (segment.first + math.sqrt(max(0.0, segment.first**2 + 2 * slope * area)))
        return cycles * (self.period or 0.0) + segment.begin + min(passed, length)

    def _in_cycle(self, seconds: float) -> tuple[float, float]:
        """The periods that are over, and the time in the current one."""
        return divmod(seconds, self.period) if self.period is not None else (0.0, seconds)


def _area(segment: Segment, length: float) -> float:
    height = (segment.first + segment.last) / 2
    return height * length if height else 0.0


def _shown(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers[:10]) + (", ..." if len(numbers) > 10 else "")


def constant(rate: float) -> Pattern:
    return Pattern([Segment(0.0, rate, rate)])


def step(rate: float, peak: float, at: float, until: float | None = None) -> Pattern:
    """`rate`, then `peak` from the time `at`, and `rate` again from `until` on."""
    steps = [(0.0, rate), (at, peak)] if at else [(0.0, peak)]
    return held(steps if until is None else [*steps, (until, rate)])


def ramp(rate: float, peak: float, at: float, until: float) -> Pattern:
    """From `rate` at the time `at`, in a straight line, to `peak` at the time `until` and after it."""
    before = [Segment(0.0, rate, rate)] if at else []
    return Pattern([*before, Segment(at, rate, peak), Segment(until, peak, peak)])


def sine(rate: float, peak: float, period: float) -> Pattern:
    """`rate` on average, `peak` at a quarter of each period, and as far below after three quarters."""
    amplitude = peak - rate
    if amplitude > rate:
        raise TopologyError(f"a sine of {rate:g} tuples/s on average and {peak:g} at most would fall below 0: its peak is "
                            f"{2 * rate:g} at most")
    turns = [number / SINE_SEGMENTS for number in range(SINE_SEGMENTS + 1)]
    rates = [max(0.0, rate + amplitude * math.sin(2 * math.pi * turn)) for turn in turns]
    return Pattern([Segment(period * turn, first, last) for turn, (first, last) in zip(turns, pairwise(rates))], period)


def burst(rate: float, peak: float, period: float, length: float, at: float = 0.0) -> Pattern:
    """`rate`, and in each period, from its time `at` on, `peak` for `length` seconds."""
    if not (length > 0 and at + length <= period):
        raise TopologyError(f"a burst of {length:g} s from {at:g} s on does not fit into a period of {period:g} s: its length "
                            f"is above 0, and {max(0.0, period - at):g} at most")
    before = [(0.0, rate)] if at else []
    after = [(at + length, rate)] if at + length < period else []
    return held([*before, (at, peak), *after], period)


def held(steps: Sequence[tuple[float, float]], period: float | None = None) -> Pattern:
    """Each rate from its time until the next one; 0 before the first."""
    before = [(0.0, 0.0)] if steps and steps[0][0] > 0 else []
    return Pattern([Segment(float(at), float(rate), float(rate)) for at, rate in [*before, *steps]], period)


def trace(path: str | Path, period: float | None = None) -> Pattern:
    """The rates of a CSV file with the columns seconds and rate: each holds until the time of the next. A first line that has
    no numbers is a header."""
    steps: list[tuple[float, float]] = []
    try:
        with open(path, newline="") as file:
            for line, row in enumerate(csv.reader(file), 1):
                if row and (line > 1 or _is_number(row[0])):
                    steps.append(_trace_row(path, line, row))
    except OSError as error:
        raise TopologyError(f"the trace {path} cannot be read: {error.strerror}. It must be a CSV file, at the same path on "
                            "every host, with the columns seconds and rate") from error
    if not steps:
        raise TopologyError(f"the trace {path} has no rates: its lines must be like 60,100.5, seconds and tuples per second")
    try:
        return held(steps, period)
    except TopologyError as error:
        raise TopologyError(f"the trace {path} is no load pattern: {error}") from error


def _trace_row(path: str | Path, line: int, row: Sequence[str]) -> tuple[float, float]:
    if len(row) != 2 or not all(map(_is_number, row)):
        raise TopologyError(f"line {line} of the trace {path} is {','.join(row)!r}: it must have two numbers, seconds and "
                            "tuples per second")
    return float(row[0]), float(row[1])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
