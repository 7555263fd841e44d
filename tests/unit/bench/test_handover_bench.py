"""The parts of `bench handover` that need no Spark: timetable, log of the sinks, figures and tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from millrace.bench.handover import run, sink_log
from millrace.bench.handover.figures import (
    COLUMNS,
    SHORT,
    Case,
    Periods,
    cells,
    pause_to_rollback,
    run_figures,
    runs_table,
    targets,
)
from millrace.bench.handover.run import faulty_runs, lengths_for, run_handover
from millrace.bench.handover.sink_log import WINDOW_SECONDS, GroupOfWord, SinkLog, SinkLogFile
from millrace.bench.handover.timetable import PRIMING, Timetable
from millrace.bench.handover.watched import WatchedMove
from millrace.bench.handover.words import NotedTally, ScheduledLines
from millrace.cli.main import app
from millrace.errors import MillraceError
from millrace.model.graph import TaskId
from millrace.testing.components import drain, start
from millrace.workloads.audit import AuditResult
from millrace.workloads.notes import NOTE_BYTES, TUPLES_PER_NOTE

RUN = {"strategy": "handover", "moved_tasks": 1, "moved_groups": 0, "state_mb": 100, "guarantee": "exactly-once", "lost": 0,
       "repeated": 0, "replayed": 0, "longest_gap_ms": 30, "usual_gap_ms": 20, "pause_ms": 12.5, "throughput_ratio": 0.98,
       "p99_before_ms": 9.0, "p99_during_ms": 40.0, "precopied_bytes": 100_000_000, "delta_bytes": 5000,
       "staying_groups": None}


class SetClock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# -- timetable ---------------------------------------------------------------------------------------------------------


@given(start=st.integers(0, 10**6), rate=st.integers(1, 10**6), tasks=st.integers(1, 4), after=st.integers(0, 10**6),
       data=st.data())
def test_a_line_is_sent_when_it_is_due_and_not_before(start: int, rate: int, tasks: int, after: int,
                                                      data: st.DataObject) -> None:
    timetable, task = Timetable(float(start), float(rate), tasks), data.draw(st.integers(0, tasks - 1))
    now = start + after / 1000
    position, rounding = timetable.first_not_due(task, now), 1e-6
    assert timetable.due_at(task, position) > now - rounding
    assert position == PRIMING or timetable.due_at(task, position - 1) <= now + rounding


def test_spout_tasks_take_turns() -> None:
    timetable = Timetable(10.0, 4.0, 2)
    due = sorted((timetable.due_at(task, PRIMING + line), task) for task in range(2) for line in range(3))
    assert due == [(10.0, 0), (10.25, 1), (10.5, 0), (10.75, 1), (11.0, 0), (11.25, 1)]


def test_nothing_but_the_priming_lines_is_due_before_the_start() -> None:
    assert Timetable(10.0, 4.0, 2).first_not_due(0, 3.0) == PRIMING


def test_the_end_of_a_timetable() -> None:
    timetable = Timetable(10.0, 100.0, 2)
    with pytest.raises(ValueError, match="no end"):
        timetable.positions()
    ended = timetable.ending(12.0)
    assert ended.positions() == {0: PRIMING + 100, 1: PRIMING + 100}
    assert ended.first_not_due(1, 1e9) == PRIMING + 100 and timetable.first_not_due(1, 1e9) > PRIMING + 100


def test_a_timetable_is_read_back(tmp_path: Path) -> None:
    assert Timetable.read(tmp_path) is None
    for timetable in (Timetable(1.5, 2.5, 2), Timetable(1.5, 2.5, 2, 7)):
        timetable.write(tmp_path)
        assert Timetable.read(tmp_path) == timetable


def test_lines_are_not_delayed_by_silence_and_the_same_after_a_return(tmp_path: Path) -> None:
    clock = SetClock(100.0)
    spout = start(ScheduledLines, {"rate": 20.0, "log": str(tmp_path)}, 1, 2, clock=clock)
    assert len(drain(spout)) == PRIMING and not drain(spout)
    timetable = Timetable(110.0, 20.0, 2)
    timetable.write(tmp_path)
    clock.now = 109.9
    assert not drain(spout)
    clock.now = 113.0  # 60 lines, of which this task has half
    late = drain(spout)
    assert [emitted.tup_id for emitted in late] == list(range(PRIMING, PRIMING + 30))
    clock.now = 114.0
    spout.seek(PRIMING + 10)
    assert drain(spout)[:20] == late[10:]
    timetable.ending(115.0).write(tmp_path)
    clock.now = 1000.0
    assert drain(spout)[-1].tup_id == PRIMING + 49 and not drain(spout)


def test_without_a_rate_there_is_no_timetable(tmp_path: Path) -> None:
    spout = start(ScheduledLines, {"rate": 0.0, "log": str(tmp_path), "burst": 1000})
    spout.next_tuple()
    assert len(spout.emitted) == 1000


# -- state -------------------------------------------------------------------------------------------------------------


def rows(number: int) -> list[Any]:
    return [(0, position, 0, f"word{position % 7}") for position in range(number)]


def test_notes_have_the_declared_size_and_are_rewritten() -> None:
    bolt = start(NotedTally, {"notes": 20 * NOTE_BYTES, "noted_tasks": 1})
    bolt.process_rows(rows(TUPLES_PER_NOTE - 1))
    before = dict(bolt.notes)
    assert len(before) == 20 and {len(note) for note in before.values()} == {NOTE_BYTES}
    bolt.process_rows(rows(1 + 2 * TUPLES_PER_NOTE))
    assert bolt.notes.keys() == before.keys() and sum(len(note) for note in bolt.notes.values()) == 20 * NOTE_BYTES
    assert sum(bolt.notes[key] is not note for key, note in before.items()) == 3
    assert sum(bolt.counts.values()) == len(bolt.emitted) == 3 * TUPLES_PER_NOTE


def test_other_tasks_have_no_notes() -> None:
    bolt = start(NotedTally, {"notes": 20 * NOTE_BYTES, "noted_tasks": 1}, 1, 2)
    bolt.process_rows(rows(5 * TUPLES_PER_NOTE))
    assert not bolt.notes and sum(bolt.counts.values()) == 5 * TUPLES_PER_NOTE


# -- log of the sinks --------------------------------------------------------------------------------------------------


def test_latency_counts_from_the_time_that_a_line_is_due(tmp_path: Path) -> None:
    Timetable(100.0, 10.0, 2).write(tmp_path)
    first, second = SinkLogFile(tmp_path, 0), SinkLogFile(tmp_path, 1)
    first.add(100.5, [(0, PRIMING, 0, "a"), (1, PRIMING, 3, "b"), (0, PRIMING - 1, 0, "primes")])
    second.add(100.25, [(0, PRIMING + 1, 0, "c")])
    first.add(101.0, [(1, PRIMING + 2, 0, "d")])
    first.close()
    second.close()
    log = SinkLog.read(tmp_path)
    assert log.words == 4 and log.times.tolist() == [100.25, 100.5, 101.0]
    assert log.latencies.tolist() == pytest.approx([0.05, 0.5, 0.4, 0.5], abs=1e-5)


def test_nothing_is_logged_without_a_timetable(tmp_path: Path) -> None:
    file = SinkLogFile(tmp_path, 0)
    file.add(1.0, [(0, PRIMING, 0, "a")])
    file.close()
    assert not list(tmp_path.iterdir()) and SinkLog.read(tmp_path).words == 0


def test_a_log_that_is_not_closed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_log, "CLOSE_SECONDS", -1.0)
    Timetable(0.0, 1.0, 1).write(tmp_path)
    file = SinkLogFile(tmp_path, 0)
    file.add(1.0, [(0, PRIMING, 0, "a")])
    with pytest.raises(MillraceError, match="1 sinks have not closed their logs"):
        SinkLog.read(tmp_path)
    file.close()


def log_of(times: list[float], latencies: list[list[float]] | None = None, groups: list[int] | None = None) -> SinkLog:
    latencies = latencies or [[0.001]] * len(times)
    flat = [each for late in latencies for each in late]
    return SinkLog(np.array(times), np.array(list(map(len, latencies)), np.int64), np.array(flat, np.float32),
                   np.array(groups or [0] * len(flat), np.uint16))


@pytest.mark.parametrize(("begin", "end", "expected"), [
    (10.001, 10.025, 0.0), (10.0, 10.085, 0.04), (10.055, 10.065, 0.03), (10.0, 11.505, 0.96), (10.9, 11.05, 0.96),
    (10.055, 10.905, 0.82), (11.04, 11.065, 0.96), (11.05, 11.065, 0.0)])
def test_gaps_count_in_buckets_where_they_end_or_as_far_as_they_have_lasted(begin: float, end: float, expected: float) -> None:
    log = log_of([10.001, 10.002, 10.011, 10.021, 10.075, 11.045, 11.055])
    assert log.longest_gap(begin, end) == pytest.approx(expected)


def test_a_time_without_words_is_a_gap() -> None:
    assert log_of([]).longest_gap(1.005, 3.005) == log_of([9.0]).longest_gap(1.005, 3.005) == pytest.approx(1.99)


def test_rates_count_words_but_not_those_that_came_again() -> None:
    log = log_of([1.0, 1.5, 2.0], [[0.1] * 10, [0.1] * 20, [0.1] * 40])
    assert log.words_between(1.0, 2.0) == 30 and log.rate(1.0, 2.0) == 30.0 and log.rate(1.0, 3.0, less=50) == 10.0


@given(st.lists(st.floats(1e-5, 100.0), min_size=1, max_size=200))
def test_a_histogram_has_the_percentiles_to_a_percent_or_two(latencies: list[float]) -> None:
    histogram = log_of([1.0], [latencies]).histogram(0.0, 2.0)
    highest = histogram.percentile_ms(100)
    assert histogram.count == len(latencies) and highest is not None
    assert highest == pytest.approx(max(latencies) * 1000, rel=0.02, abs=0.002)


def test_latencies_go_into_a_histogram_every_250_ms_and_the_worst_counts() -> None:
    log = log_of([0.1, 0.3, 0.6], [[0.010] * 100, [0.010] * 95 + [0.5] * 5, [0.020] * 100])
    windows = list(log.windows(0.0, 1.0))
    assert [start for start, _ in windows] == [0.0, 0.25, 0.5, 0.75] and WINDOW_SECONDS == 0.25
    assert [histogram.count for _, histogram in windows] == [100, 100, 100, 0]
    assert log.worst_ms(0.0, 1.0) == pytest.approx(500, rel=0.01) and log.worst_ms(0.5, 1.0) == pytest.approx(20, rel=0.01)
    assert log.worst_ms(0.75, 1.0) is None
    timeline = log.timeline(0.0, 1.0, zero=0.5)
    assert [(each["at_ms"], each["words"]) for each in timeline] == [(-500, 100), (-250, 100), (0, 100), (250, 0)]
    assert timeline[1]["p50_ms"] == pytest.approx(10, rel=0.01) and timeline[3]["max_ms"] is None


def test_the_words_of_some_key_groups(tmp_path: Path) -> None:
    Timetable(100.0, 10.0, 1).write(tmp_path)
    file, group_of = SinkLogFile(tmp_path, 0), GroupOfWord()
    words = ["a", "b", "c", "d"]
    assert len({group_of[word] for word in words}) == 4 and all(0 <= group_of[word] < 128 for word in words)
    file.add(101.0, [(0, PRIMING, 0, "a"), (0, PRIMING + 1, 0, "b"), (0, PRIMING + 2, 0, "a")])
    file.add(102.0, [(0, PRIMING + 3, 0, "c")])
    file.add(103.0, [(0, PRIMING + 4, 0, "d"), (0, PRIMING + 5, 0, "a")])
    file.close()
    some = SinkLog.read(tmp_path).of_groups({group_of["a"], group_of["d"]})
    assert some.times.tolist() == [101.0, 103.0] and some.words == 4 and some.words_between(100.0, 102.5) == 2
    assert some.latencies.tolist() == pytest.approx([1.0, 0.8, 2.6, 2.5], abs=1e-4)


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_run() -> None:
    times = [0.005 + tenth / 10 for tenth in range(100, 200)]  # with a gap in the move
    log = log_of([at for at in times if not 15.1 < at < 15.5], [[0.005] * 10] * 96)
    move = cast(WatchedMove, SimpleNamespace(pause=0.0125, copied_bytes=7, delta_bytes=3))
    audited = AuditResult(tuples_in=1000, tuples_out=940, lost=100, repeated=40, wrong=0, beyond=1)
    figures = run_figures(Case("handover", 16, 10), Periods(10.0, 15.0, 17.0), log, audited, 60, move, [0, 1])
    assert figures == {"strategy": "handover", "moved_tasks": 16, "moved_groups": 0, "state_mb": 10,
                       "guarantee": "exactly-once", "lost": 100, "repeated": 41, "replayed": 20, "longest_gap_ms": 490,
                       "usual_gap_ms": 90, "pause_ms": 12.5, "throughput_ratio": 0.7,
                       "p99_before_ms": pytest.approx(5, rel=0.02), "p99_during_ms": pytest.approx(5, rel=0.02),
                       "precopied_bytes": 7, "delta_bytes": 3, "staying_groups": None}
    assert figures.keys() == RUN.keys()


def test_the_key_groups_that_stay_have_figures_of_their_own() -> None:
    times = [0.005 + tenth / 10 for tenth in range(100, 200)]  # the words of group 2 wait from 15.1 to 15.5 s
    latencies = [[0.005, 0.4 if 15.1 < at < 15.5 else 0.005, 0.005] for at in times]
    log = log_of(times, latencies, [0, 2, 1] * 100)
    audited = AuditResult(tuples_in=300, tuples_out=300, lost=0, repeated=0, wrong=0, beyond=0)
    move = cast(WatchedMove, SimpleNamespace(pause=0.1, copied_bytes=7, delta_bytes=3))
    case = Case("handover", 0, 10, groups=1)
    assert case.moved_groups([1, 1, 0, 0]) == {2: 1} and case.noted_tasks == 1
    figures = run_figures(case, Periods(10.0, 15.0, 17.0), log, audited, 0, move, [0, 1, 0])
    assert figures["moved_groups"] == 1 and figures["moved_tasks"] == 0 and figures["p99_during_ms"] > 300
    moved = case.moved_groups([0, 1, 0])
    assert moved == {0: 1}  # so group 2 stays, and waits
    assert figures["staying_groups"] == {"longest_gap_ms": 90, "usual_gap_ms": 90, "p99_before_ms": pytest.approx(5, rel=0.02),
                                         "p99_during_ms": pytest.approx(400, rel=0.02)}


def test_a_case_moves_tasks_with_or_without_state() -> None:
    assert Case("handover", 2, 0).moved() == [TaskId("split", 0), TaskId("split", 1)]
    assert Case("rollback", 1, 10).moved() == [TaskId("count", 0)]
    assert Case("handover", 1, 0).parallelism == {"split": 2, "count": 2}
    assert Case("handover", 16, 0).parallelism == {"split": 16, "count": 16}
    assert str(Case("handover", 0, 10, 8)) == "handover, 8 key groups of a task with 10 MB"
    assert str(Case("rollback", 1, 0)) == "rollback, 1 task stateless"
    assert str(Case("handover", 16, 100)) == "handover, 16 tasks with 100 MB"


def test_tasks_move_to_the_next_slot() -> None:
    first, second, third = (TaskId("count", index) for index in range(3))
    places = {first: 2, second: 5, third: 7}
    assert targets(places, [first, third], [7, 2, 5]) == {first: 5, third: 2}


def test_the_pause_is_compared_with_that_of_a_roll_back_at_the_largest_state() -> None:
    rollback = {**RUN, "strategy": "rollback", "pause_ms": 500.0}
    smaller = {**rollback, "state_mb": 1, "pause_ms": 20.0}
    assert pause_to_rollback([RUN, rollback, smaller, {**RUN, "moved_tasks": 16, "pause_ms": 400.0}]) == 0.025
    assert pause_to_rollback([RUN, smaller]) is None and pause_to_rollback([]) is None


def test_the_table_has_a_row_for_each_run() -> None:
    assert cells({**RUN, "throughput_ratio": None, "precopied_bytes": 1234567}) == [
        "handover", "1", "0", "100", "0", "0", "0", "30", "20", "12.5", "", "9", "40", "1,234,567", "5,000"]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(runs_table([RUN, {**RUN, "strategy": "rollback", "longest_gap_ms": 12_345, "pause_ms": 12_345.6,
                                    "p99_before_ms": 1234.5, "p99_during_ms": 12_345.6, "throughput_ratio": 0.123}]))
    text = console.export_text()
    assert all(header in text for header in SHORT.values()) and "rollback" in text and "12,346" in text and "…" not in text
    assert SHORT.keys() <= COLUMNS.keys() <= RUN.keys()


def test_runs_that_lost_something_or_failed_are_named() -> None:
    assert not faulty_runs({"runs": [RUN], "failed": {}})
    assert faulty_runs({"runs": [RUN, {**RUN, "lost": 3}], "failed": {"rollback, 1 task stateless": "no wave"}}) == \
        "handover of 1 tasks with 100 MB: 3 lost, 0 repeated; rollback, 1 task stateless: no wave"


def test_a_quick_run_is_short() -> None:
    assert lengths_for(9.0, quick=False).before == 9.0
    quick, usual = lengths_for(9.0, quick=True), lengths_for(9.0, quick=False)
    assert quick.before < usual.before and quick.warm_up < usual.warm_up
    assert quick.saturation.seconds < usual.saturation.seconds


@pytest.mark.parametrize(("tasks", "state", "message"), [([0], [1], "--tasks 0: at least one"), ([1], [-1], "--state-mb -1")])
def test_sizes_are_checked_before_anything_starts(tasks: list[int], state: list[int], message: str) -> None:
    with pytest.raises(MillraceError, match=message):
        run_handover(1.0, tasks, state, live=False)


def test_the_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def fake(*arguments: Any, **options: Any) -> dict[str, Any]:
        calls.append((*arguments, options))
        return {"runs": [RUN], "failed": {}}

    monkeypatch.setattr(run, "run_handover", fake)
    answer = CliRunner().invoke(app, ["bench", "handover", "--json", "--tasks", "3", "--tasks", "4", "--state-mb", "7"])
    assert answer.exit_code == 0 and json.loads(answer.stdout)["runs"] == [RUN]
    CliRunner().invoke(app, ["bench", "handover", "--quick"])
    CliRunner().invoke(app, ["bench", "handover", "--seconds", "2"])
    assert calls == [(5.0, [3, 4], [7], {"live": False, "quick": False}), (5.0, (1, 4), (0, 1), {"live": True, "quick": True}),
                     (2.0, (1, 16), (0, 1, 10, 100), {"live": True, "quick": False})]
