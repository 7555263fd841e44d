"""The log of arrivals of `bench migration`, and the sinks and sources that write and fill it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.bench.handover.timetable import Timetable
from millrace.bench.migration.arrivals import ArrivalFile, LoggedArrivals, row_key
from millrace.bench.migration.cases import WORKLOADS
from millrace.bench.migration.measured import (
    MeasuredDatabase,
    MeasuredEvents,
    MeasuredEventSink,
    MeasuredLines,
    MeasuredRequests,
    MeasuredWords,
)
from millrace.testing.components import drain, start
from millrace.workloads.wordcount import WORDS_PER_LINE

TIMETABLE = Timetable(100.0, 100.0, 1, priming=0)


def steady(begin: float, end: float, rate: float = 100.0) -> list[float]:
    return [begin + number / rate for number in range(round((end - begin) * rate))]


def arrivals(times: list[float], keys: list[int] | None = None) -> LoggedArrivals:
    keys = [row_key(number, 0) for number in range(len(times))] if keys is None else keys
    return LoggedArrivals(np.array(times), np.array(keys, np.uint64), TIMETABLE)


# -- files -------------------------------------------------------------------------------------------------------------


def test_arrivals_of_all_sinks_are_read_back_in_order(tmp_path: Path) -> None:
    first, second = ArrivalFile(tmp_path), ArrivalFile(tmp_path)
    second.add(101.0, [row_key(3, 7)])
    first.add(100.5, [row_key(1, 0), row_key(2, 0)])
    second.add(102.0, [])
    first.close()
    log = LoggedArrivals.read(tmp_path, TIMETABLE)  # the second is still open
    assert log.times.tolist() == [100.5, 100.5, 101.0] and log.total == 3
    assert log.latencies.tolist() == pytest.approx([0.49, 0.48, 0.97])


def test_a_sink_that_was_killed_loses_its_last_chunk_at_most(tmp_path: Path) -> None:
    log = ArrivalFile(tmp_path)
    log.add(100.5, [row_key(1, 0)])
    log.add(100.6, [row_key(2, 0)])
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(len(whole) // 2, len(whole)):
        path.write_bytes(whole[:length])
        assert LoggedArrivals.read(tmp_path, TIMETABLE).rows == 1


def test_nothing_arrived(tmp_path: Path) -> None:
    log = LoggedArrivals.read(tmp_path, TIMETABLE)
    assert (log.rows, log.total, log.rows_between(100.0, 101.0), log.worst_latency(0.0, 1000.0)) == (0, 0, 0, None)
    assert log.longest_gap(100.0, 103.0) == 3.0


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_row_that_comes_again_counts_once() -> None:
    log = arrivals([101.0, 100.0, 102.0, 103.0], [row_key(1, 5), row_key(1, 5), row_key(1, 6), row_key(2, 5)])
    assert log.total == 4 and log.times.tolist() == [100.0, 102.0, 103.0]


def test_the_expected_rate_is_that_of_the_timetable_however_late_rows_are() -> None:
    two_each = [row_key(number, part) for number in range(50) for part in range(2)]
    assert arrivals(steady(100.0, 110.0, 10.0), two_each).expected_rate == 200.0
    assert arrivals([]).expected_rate == 0.0


def test_gaps_count_until_they_end() -> None:
    log = arrivals([100.0, 101.0, 104.0, 105.0])
    assert [log.longest_gap(*times) for times in ((100.5, 101.5), (102.0, 104.5), (105.5, 107.0))] == [1.0, 3.0, 2.0]


def test_seconds_of_degradation_by_level() -> None:
    """A second without rows, and one with half of them."""
    log = arrivals([*steady(100.0, 102.0), *steady(103.0, 104.0, 50.0), *steady(104.0, 106.0)])
    assert log.degraded(102.0, 106.0, 100.0) == {"20": 2.0, "40": 2.0, "60": 1.0, "80": 1.0, "100": 1.0}
    assert log.capped_share(102.0, 106.0, 100.0) == pytest.approx(2.5 / 4, abs=0.02)


def test_what_is_made_up_for_later_is_lost_for_a_source_at_its_limit() -> None:
    log = arrivals([*steady(100.0, 101.0), *steady(102.0, 103.0, 200.0)])
    assert log.rows_between(101.0, 103.0) == 200 and log.capped_share(101.0, 103.0, 100.0) == pytest.approx(0.5, abs=0.02)


def test_a_slice_is_long_enough_for_a_slow_stream() -> None:
    none, keys = np.zeros(0), np.zeros(0, np.uint64)
    assert [LoggedArrivals(none, keys, Timetable(0.0, rate, 1, priming=0)).slice for rate in (1000.0, 8.0)] == [0.25, 1.0]


def test_the_usual_gap_is_that_of_most_slices() -> None:
    """One of three slices has a gap of half a second."""
    log = arrivals([*steady(100.0, 104.0), *steady(104.5, 109.0)])
    assert log.usual_gap(100.0, 109.0, 3.0) == pytest.approx(0.01, abs=0.002)
    assert log.usual_gap(104.0, 109.0, 60.0) == pytest.approx(0.51, abs=0.002)


def test_a_timeline_has_rates_and_latencies() -> None:
    points = arrivals(steady(100.0, 104.0)).timeline(101.0, 103.0, 102.0)
    assert [point["at_ms"] for point in points] == list(range(-1000, 1000, 250))
    assert {round(point["rows_per_s"], -1) for point in points} == {100.0} and points[0]["mean_ms"] == pytest.approx(0, abs=1)


# -- components --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [MeasuredEvents, MeasuredLines, MeasuredRequests])
def test_sources_follow_the_timetable_whatever_happens(source: Any, tmp_path: Path) -> None:
    now = [100.0]
    spout = start(source, {"rate": 20.0, "log": str(tmp_path)}, 1, 2, clock=lambda: now[0])
    assert not drain(spout)
    timetable = Timetable(110.0, 20.0, 2, priming=0)
    timetable.write(tmp_path)
    now[0] = 111.0
    sent = drain(spout)
    assert [emitted.tup_id for emitted in sent] == list(range(10))
    spout.seek(4)
    spout.activate()
    assert drain(spout) == sent[4:]
    timetable.ending(112.0).write(tmp_path)
    now[0] = 1000.0
    assert drain(spout)[-1].tup_id == 19 and not drain(spout) and timetable.ending(112.0).positions() == {0: 20, 1: 20}


def logged(sink: Any, rows: list[Any], tmp_path: Path, rate: float = 10.0, **config: Any) -> LoggedArrivals:
    logs = tmp_path / "logs"
    logs.mkdir(parents=True)
    bolt = start(sink, {"path": str(tmp_path / "out"), "log": str(logs), **config}, clock=lambda: 102.0)
    bolt.process_rows(rows)
    bolt.process_rows(rows[:1])
    bolt.close()
    return LoggedArrivals.read(logs, Timetable(100.0, rate, 1, priming=0))


def test_the_sink_of_the_dataflows_logs_each_path(tmp_path: Path) -> None:
    log = logged(MeasuredEventSink, [(0, 5, "key", "/t1"), (0, 5, "key", "/t2"), (0, 6, "key", "/t1")], tmp_path)
    assert (log.rows, log.total) == (3, 4) and sorted(log.latencies) == pytest.approx([1.4, 1.5, 1.5])


def test_the_sink_of_words_logs_each_word_by_the_number_of_its_line(tmp_path: Path) -> None:
    log = logged(MeasuredWords, [(1, 2, 0, "mill"), (1, 2, 1, "race"), (0, 3, 0, "mill")], tmp_path, source_tasks=2)
    assert (log.rows, log.total) == (3, 4) and sorted(log.latencies) == pytest.approx([1.4, 1.5, 1.5])


def test_the_sinks_of_log_stream_log_rows_of_either_table(tmp_path: Path) -> None:
    counted, found = [(5, 1, "slow", 3), (6, 1, "slow", 4)], [("mill", 5, "slow"), ("race", 5, "slow")]
    counts = logged(MeasuredDatabase, counted, tmp_path / "counts", table="rule_counts", store="jsonl")
    terms = logged(MeasuredDatabase, found, tmp_path / "terms", table="log_index", store="jsonl")
    assert (counts.rows, counts.total, terms.rows, terms.total) == (2, 3, 2, 3)


# -- truth -------------------------------------------------------------------------------------------------------------


def test_lost_and_repeated_words_are_found(tmp_path: Path) -> None:
    """Two lines of one task, of which a word is missing and another is there twice."""
    spout = start(MeasuredLines, {"rate": 1.0, "log": str(tmp_path)})
    rows = [(0, position, index, word) for position in range(2)
            for index, word in enumerate(spout.generate(position)[2].split())]
    bolt = start(MeasuredWords, {"path": str(tmp_path / "out"), "log": str(tmp_path)})
    bolt.process_rows([*rows[:-1], rows[0]])
    bolt.close()
    found = WORKLOADS["notes"].truth(tmp_path / "out", {0: 2})
    assert (found.tuples_in, found.lost, found.repeated, found.wrong) == (2 * WORDS_PER_LINE, 1, 1, 0)


def test_both_tables_of_log_stream_count(tmp_path: Path) -> None:
    for table in ("log_index", "rule_counts"):
        (tmp_path / table).mkdir()
    (tmp_path / "rule_counts" / "part-0.jsonl").write_text(json.dumps({"number": 0, "minute": 0, "rule": "none"}) + "\n")
    found = WORKLOADS["logstream"].truth(tmp_path, dict.fromkeys(range(5), 2))
    assert found.lost == found.tuples_in >= 10 and found.wrong == 1
