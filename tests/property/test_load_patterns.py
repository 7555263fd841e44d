"""Load patterns: the number of tuples due by a time and the time of each tuple are inverse to each other and never fall."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from millrace.connectors.patterns import Pattern, Segment, burst, constant, held, ramp, sine, step

RATES = st.floats(0.0, 5000.0) | st.just(0.0)
ABOVE_ZERO = st.floats(0.1, 5000.0)
LENGTHS = st.floats(0.1, 600.0)
SECONDS = st.floats(0.0, 3600.0)
NUMBERS = st.integers(0, 200_000)


@st.composite
def chains(draw: st.DrawFn) -> Pattern:
    """Any chain of segments, of which one at least has a rate above 0."""
    begin, segments = 0.0, []
    for first, last, length in draw(st.lists(st.tuples(RATES, RATES, LENGTHS), max_size=6)):
        segments.append(Segment(begin, first, last))
        begin += length
    end = draw(ABOVE_ZERO)
    return Pattern([*segments, Segment(begin, end, end)], draw(st.none() | LENGTHS.map(lambda length: begin + length)))


@st.composite
def named(draw: st.DrawFn) -> Pattern:
    rate, peak, at, length = draw(ABOVE_ZERO), draw(ABOVE_ZERO), draw(LENGTHS), draw(LENGTHS)
    return draw(st.sampled_from([
        constant(rate), step(rate, peak, at), step(rate, peak, at, at + length), ramp(rate, peak, at, at + length),
        sine(rate, rate + min(rate, peak), length), burst(rate, peak, at + length, length, at),
        burst(0.0, peak, at + length, at), held([(at, rate), (at + length, peak)])]))


PATTERNS = chains() | named()


@given(PATTERNS, NUMBERS)
def test_a_tuple_is_due_when_the_integral_reaches_its_number(pattern: Pattern, number: int) -> None:
    due = pattern.time_of(number)
    assert math.isclose(pattern.due_by(due), number, rel_tol=1e-9, abs_tol=1e-5)
    assert abs(pattern.due_count(due) - number) <= 1


@given(PATTERNS, SECONDS)
def test_the_tuples_due_by_a_time_are_those_whose_time_has_come(pattern: Pattern, seconds: float) -> None:
    due = pattern.due_count(seconds)
    least = 1e-6 * (1 + seconds)
    assert pattern.time_of(due + 1) >= seconds - least
    assert due < 2 or pattern.time_of(due - 2) <= seconds + least


@given(PATTERNS, SECONDS, SECONDS)
def test_what_is_due_never_falls(pattern: Pattern, one: float, other: float) -> None:
    first, last = sorted((one, other))
    assert pattern.due_by(first) <= pattern.due_by(last) + 1e-6
    assert pattern.due_count(first) <= pattern.due_count(last) or pattern.due_by(first) - pattern.due_by(last) < 1e-6


@given(PATTERNS, st.lists(NUMBERS, min_size=2, max_size=10))
def test_later_tuples_are_not_due_earlier(pattern: Pattern, numbers: list[int]) -> None:
    times = [pattern.time_of(number) for number in sorted(numbers)]
    assert all(before <= after + 1e-9 * (1 + after) for before, after in pairwise(times))


@given(PATTERNS, SECONDS, st.floats(0.0, 0.2))
def test_what_is_due_is_the_integral_of_the_rate(pattern: Pattern, begin: float, length: float) -> None:
    area, uncertainty = quad(pattern.rate_at, begin, begin + length, limit=200)
    assert math.isclose(pattern.due_by(begin + length) - pattern.due_by(begin), area, rel_tol=1e-6,
                        abs_tol=1e-5 + 10 * uncertainty + 1e-9 * pattern.due_by(begin))
