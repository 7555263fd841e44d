from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from millrace.connectors.patterns import Pattern, Segment, burst, constant, held, ramp, sine, step, trace
from millrace.connectors.shifting_keys import ShiftingKeys
from millrace.errors import TopologyError


def rates(pattern: Pattern, *times: float) -> list[float]:
    return [round(pattern.rate_at(at), 3) for at in times]


def test_each_pattern_has_its_rates():
    assert rates(constant(5), 0, 100) == [5, 5]
    assert rates(step(5, 15, 10), 0, 9.9, 10, 1e6) == [5, 5, 15, 15]
    assert rates(step(5, 15, 10, 20), 10, 20, 1e6) == [15, 5, 5]
    assert rates(step(5, 15, 0), 0, 1) == [15, 15]
    assert rates(ramp(10, 30, 10, 20), 0, 10, 15, 20, 30) == [10, 10, 20, 30, 30]
    assert rates(ramp(30, 0, 0, 10), 0, 5, 10, 11) == [30, 15, 0, 0]
    assert rates(burst(1, 9, 10, 2), 0, 1.9, 2, 10, 12) == [9, 9, 1, 9, 1]
    assert rates(burst(1, 9, 10, 2, at=8), 0, 7.9, 8, 9.9, 10) == [1, 1, 9, 9, 1]
    assert rates(held([(5, 2), (10, 0)]), 0, 5, 10, 99) == [0, 2, 0, 0]


def test_the_rate_of_a_sine_is_close_to_the_function():
    pattern = sine(100, 180, 60)
    for at in range(0, 120, 7):
        assert math.isclose(pattern.rate_at(at), 100 + 80 * math.sin(2 * math.pi * at / 60), abs_tol=0.01)
    assert math.isclose(pattern.due_by(60), 6000, rel_tol=1e-9)
    assert math.isclose(pattern.due_by(30) - 3000, 80 * 60 / math.pi, rel_tol=1e-4)
    assert math.isclose(pattern.mean_rate, 100)


def test_due_times_of_a_step():
    pattern = step(10, 30, 1)
    assert [pattern.time_of(number) for number in (0, 5, 10, 13, 40)] == pytest.approx([0, 0.5, 1, 1.1, 2])
    assert [pattern.due_count(seconds) for seconds in (-1, 0, 0.05, 1, 1.01, 2)] == [0, 0, 1, 10, 11, 40]


def test_a_time_without_tuples_is_skipped():
    pattern = burst(0, 10, period=10, length=1, at=5)
    assert [pattern.time_of(number) for number in (0, 9, 10, 20)] == pytest.approx([5, 5.9, 15, 25])
    assert [pattern.due_count(seconds) for seconds in (5, 6, 14, 15.05)] == [0, 10, 10, 11]


def test_a_stream_that_ends():
    pattern = held([(0, 10), (2, 0)])
    assert pattern.total == 20 and pattern.time_of(19) == pytest.approx(1.9)
    assert pattern.time_of(20) == math.inf and pattern.due_count(1e9) == 20
    assert constant(1).total == math.inf


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: constant(0), "one of its rates must be above 0"),
    (lambda: sine(10, 21, 60), "its peak is 20 at most"),
    (lambda: burst(1, 9, 10, 11), "10 at most"),
    (lambda: burst(1, 9, 10, 3, at=8), "2 at most"),
    (lambda: burst(1, 9, 10, 0), "above 0"),
    (lambda: ramp(1, 9, 10, 10), "must begin at 0 and rise, and are 0, 10, 10"),
    (lambda: step(1, 9, 10, 5), "must begin at 0 and rise, and are 0, 10, 5"),
    (lambda: held([(0, -1), (1, 2)]), "must be 0 or more, and are -1, 2"),
    (lambda: held([(0, math.nan)]), "must be 0 or more"),
    (lambda: Pattern([Segment(0, 1, 2)]), "goes on forever"),
    (lambda: Pattern([]), "begin at 0")])
def test_impossible_patterns_are_refused(make, reason):
    with pytest.raises(TopologyError, match=reason):
        make()


def test_a_trace_from_a_file(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("seconds,rate\n0,10\n60,30.5\n\n90,0\n")
    assert rates(trace(path), 0, 59, 60, 90) == [10, 10, 30.5, 0]
    assert trace(path).total == 60 * 10 + 30 * 30.5
    assert rates(trace(path, period=100), 95, 100, 160) == [0, 10, 30.5]
    path.write_text("5,10\n")
    assert rates(trace(str(path)), 0, 5) == [0, 10]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "has no rates"), ("seconds,rate\n", "has no rates"), ("0,1\n5,x\n", "line 2 .* '5,x'"),
    ("0,1\n5\n", "line 2 .* '5'"), ("0,1\n0,2\n", "must begin at 0 and rise, and are 0, 0"), ("0,-1\n", "0 or more"),
    ("0,1\n2,inf\n", "line 2")])
def test_bad_traces_are_refused(text, reason, tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TopologyError, match=reason):
        trace(path)


def test_a_missing_trace_is_refused(tmp_path: Path):
    with pytest.raises(TopologyError, match="No such file"):
        trace(tmp_path / "trace.csv")


def test_hot_keys_move():
    keys = ShiftingKeys(100, zipf=1.2, shift=10)
    hot = [Counter(keys.key_of(number, at) for number in range(5000)).most_common(1)[0][0] for at in (0, 9.9, 10, 20, 30)]
    assert hot[0] == hot[1] == keys.hottest(0) == 0
    assert hot[2:] == [keys.hottest(10), keys.hottest(20), keys.hottest(30)] and len(set(hot)) == 4


def test_keys_without_a_shift_stay_and_depend_on_the_seed_alone():
    keys, same, other = ShiftingKeys(50, 1.0), ShiftingKeys(50, 1.0), ShiftingKeys(50, 1.0, seed=2)
    drawn = [keys.key_of(number, number * 60.0) for number in range(500)]
    assert drawn == [same.key_of(number, 0.0) for number in range(500)]
    assert drawn != [other.key_of(number, 0.0) for number in range(500)]
    assert set(drawn) <= set(range(50))
    assert {ShiftingKeys(1, 1.0, 1.0).key_of(number, number) for number in range(10)} == {0}


def test_all_keys_are_equally_frequent_without_zipf():
    keys = ShiftingKeys(4)
    counts = Counter(keys.key_of(number, 0.0) for number in range(60_000))
    assert all(abs(count - 15_000) < 1000 for count in counts.values())
