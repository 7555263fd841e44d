"""The figures of `bench elastic`: windows, decisions, oscillations, the fewest instances by trial, gaps and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.bench.elastic import figures
from millrace.bench.elastic.driving import ParWatch
from millrace.bench.elastic.figures import HandChange, LoopDecision, SeenPar
from millrace.bench.elastic.loop_access import LoopGoal, loop_decisions
from millrace.bench.elastic.measured_load import LoadTimetable, MeasuredLoad, MeasuredLoadSink
from millrace.bench.elastic.others import GAPS_ELSEWHERE, gap_rows
from millrace.bench.elastic.report import ELASTIC_AIMS, elastic_summary, elastic_tables
from millrace.bench.elastic.run import ElasticLengths, _empty, faulty_parts, run_elastic
from millrace.bench.migration.arrivals import LoggedArrivals, row_key
from millrace.errors import MillraceError
from millrace.testing.components import rows, start

LOAD = MeasuredLoad.stepped(10.0, 30.0, 10.0, 20.0, 0.05, 0.025)
TIMETABLE = LoadTimetable(LOAD, 100.0)


def log_of(latency: float = 0.1) -> LoggedArrivals:
    """Every tuple comes so many seconds after it is due."""
    numbers = np.arange(LOAD.tuples)
    keys = np.array([row_key(int(number), 0) for number in numbers], np.uint64)
    return LoggedArrivals(TIMETABLE.due_times(numbers) + latency, keys, TIMETABLE)


def par(service: int, count: int) -> dict[str, int]:
    return {"service": service, "count": count}


# -- the load ----------------------------------------------------------------------------------------------------------


def test_a_load_knows_its_tuples_and_when_they_are_due():
    assert LOAD.tuples == 400 and TIMETABLE.end == 120.0 and TIMETABLE.rate == 20.0
    assert TIMETABLE.due_times(np.array([0, 100, 130])).tolist() == pytest.approx([100.0, 110.0, 111.0])
    assert LOAD.busy(100.0) == {"service": 5.0, "count": 2.5}
    assert LOAD.config == {"pattern": "step", "rate": 10.0, "peak": 30.0, "at": 10.0, "limit": 400, "service_seconds": 0.05,
                           "count_seconds": 0.025}
    assert MeasuredLoad.swinging(10.0, 20.0, 5.0, 10.0, 0, 0).tuples == MeasuredLoad.steady(10.0, 10.0, 0, 0).tuples == 100


def test_the_sink_logs_the_number_of_each_tuple(tmp_path):
    (logs := tmp_path / "logs").mkdir()
    sink = start(MeasuredLoadSink, {"path": str(tmp_path), "log": str(logs)}, clock=lambda: 111.5)
    sink.process_rows(rows("task position key due count", [(0, 130, 5, 11.0, 1)]))
    sink.close()
    log = LoggedArrivals.read(logs, TIMETABLE)
    assert log.rows == 1 and log.latencies.tolist() == pytest.approx([0.5])


# -- latency -----------------------------------------------------------------------------------------------------------


def test_windows_have_the_mean_latency():
    windows = figures.in_windows(log_of(0.1), 102.0, 107.0)
    assert [start for start, _ in windows] == [102.0, 104.0] and [ms for _, ms in windows] == pytest.approx([100, 100])
    assert figures.in_windows(log_of(), 200.0, 202.0) == [(200.0, math.inf)]


def test_latency_is_back_under_the_limit_when_several_windows_are():
    windows = [(float(at), ms) for at, ms in enumerate([50, 300, 90, 300, 90, 100, 80, 300])]
    assert figures.recovered_at(windows, 100) == 4.0
    assert figures.recovered_at(windows, 85) is None and figures.recovered_at(windows[:2], 500) is None
    assert figures.share_over(windows[4:], 100) == 0.25 and figures.share_over([], 100) is None


def test_mean_and_p99():
    assert figures.mean_ms(log_of(0.25), 102, 110) == 250.0 and figures.p99_ms(log_of(0.25), 102, 110) == 250.0
    assert figures.mean_ms(log_of(), 300, 310) is None and figures.p99_ms(log_of(), 300, 310) is None


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_steps_have_the_predicted_and_the_measured_latency():
    decisions = [LoopDecision(103.0, par(1, 1), par(2, 1), 80.4), LoopDecision(111.0, par(2, 1), par(5, 3), None)]
    assert figures.steps_of(decisions, log_of(0.1), 100.0, 120.0) == [
        {"at_s": 3.0, "decision": "service 1 → 2", "predicted_ms": 80.4, "measured_ms": 100.0, "settled_ms": None,
         "error": None, "instances": 3},
        {"at_s": 11.0, "decision": "service 2 → 5, count 1 → 3", "predicted_ms": None, "measured_ms": 100.0, "settled_ms": None,
         "error": None, "instances": 8}]


def test_the_error_of_a_prediction_is_taken_when_the_backlog_is_gone():
    """Tuples due until 104 s are late, the others take 0.1 s."""
    due = TIMETABLE.due_times(np.arange(LOAD.tuples))
    late = np.where(due < 104.0, 104.0 - due, 0.0)
    keys = np.array([row_key(number, 0) for number in range(LOAD.tuples)], np.uint64)
    [step] = figures.steps_of([LoopDecision(96.0, par(1, 1), par(2, 1), 80.0)],
                              LoggedArrivals(due + late + 0.1, keys, TIMETABLE), 100.0, 114.0)
    assert step["measured_ms"] > 400 and step["settled_ms"] == 100.0 and step["error"] == -0.2


@pytest.mark.parametrize(("latencies", "gone"), [
    ([2900, 2000, 1000, 300, 160, 150, 170], 4), ([100, 90, 110, 100], 0), ([100, 5, 5, 5], 1), ([900, 800, 4, 4], None),
    ([100, 90], None), ([], None), ([900, 100, 100, 900, 900], 0)])
def test_the_backlog_is_gone_when_the_latency_falls_no_more(latencies, gone):
    assert figures.backlog_gone(list(enumerate(latencies))) == gone


def test_only_decisions_that_were_carried_out_count():
    rows = [{"at": 1000.0 + number, "outcome": outcome, "par": {"load": 1, "service": number + 1}, "expected_ms": 5.0}
            for number, outcome in enumerate(["enacted", "advised", "refused", "infeasible", "enacted"])]
    first, second = loop_decisions(rows, -900.0, par(3, 2))
    assert (first.at, first.before, first.par) == (100.0, par(3, 2), par(1, 2))
    assert (second.at, second.before, second.par) == (104.0, par(1, 2), par(5, 2))


def test_oscillations_are_changes_that_go_back_on_an_earlier_one():
    assert figures.oscillations([]) == figures.oscillations([par(1, 1)]) == 0
    assert figures.oscillations([par(1, 1), par(4, 1), par(6, 3), par(6, 4)]) == 0
    assert figures.oscillations([par(1, 1), par(4, 2), par(3, 2), par(3, 5)]) == 1
    assert figures.oscillations([par(4, 4), par(5, 3), par(4, 4), par(5, 3)]) == 4
    assert type(figures.oscillations([par(1, 1), par(4, 2), par(3, 2)])) is int, "it is printed as JSON"


def test_the_average_parallelism_is_weighted_by_time():
    seen = [SeenPar(90.0, par(2, 2)), SeenPar(105.0, par(4, 2)), SeenPar(109.0, par(8, 3))]
    assert figures.average_par(seen, 100.0, 110.0) == pytest.approx({"service": (10 + 16 + 8) / 10, "count": 2.1})


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(1.0, 50.0), min_size=1))
def test_rounded_parallelism_has_about_the_same_sum(average: dict[str, float]):
    par = figures.rounded_par(average)
    assert sum(par.values()) == round(sum(average.values()))
    assert all(abs(par[name] - tasks) < 1 for name, tasks in average.items()) and min(par.values()) >= 1


def test_the_share_over_the_minimum():
    assert figures.over_minimum(22, 20) == 0.1 and figures.over_minimum(20, 20) == 0.0


# -- the fewest instances ----------------------------------------------------------------------------------------------


def queues(busy: Mapping[str, float], limit: float):
    """A goal that looks like that of a latency: the sum of 1 / (1 - utilisation) may not be above a limit."""
    def meets(par: Mapping[str, int]) -> bool:
        assert all(par[name] > load for name, load in busy.items()), "tasks that do not keep up must not be tried"
        return sum(1 / (1 - load / par[name]) for name, load in busy.items()) <= limit

    return meets


@given(st.floats(0.5, 12.0), st.floats(0.5, 12.0), st.floats(2.5, 8.0), st.integers(1, 20), st.integers(1, 20))
def test_the_fewest_instances_are_found(service: float, count: float, limit: float, first: int, second: int):
    busy = {"service": service, "count": count}
    meets = queues(busy, limit)
    fewest = figures.fewest_by_trial({**par(first, second), "sink": 1}, busy, meets)
    enough = [sum(each) for each in product(range(math.floor(service) + 1, 80), range(math.floor(count) + 1, 80))
              if meets(par(*each))]
    if fewest is None:
        assert 2 * max(first + second, math.floor(service) + math.floor(count) + 2) <= min(enough, default=999) + 2
    else:
        assert fewest["sink"] == 1 and meets(fewest)
        assert sum(fewest.values()) - 1 <= min(enough) + 1  # a search of neighbours may miss one that is far away


def test_no_numbers_of_tasks_are_tried_twice():
    tried: list[tuple[int, ...]] = []
    busy = {"service": 3.6, "count": 1.8}
    goal = queues(busy, 4.0)

    def meets(par: Mapping[str, int]) -> bool:
        tried.append(tuple(par.values()))
        return goal(par)

    assert figures.fewest_by_trial(par(12, 6), busy, meets) is not None
    assert len(set(tried)) == len(tried)


def test_a_goal_that_cannot_be_met_is_given_up():
    assert figures.fewest_by_trial(par(2, 2), {"service": 1.5, "count": 1.5}, lambda par: False) is None


def test_one_instance_fewer():
    busy = {"service": 3.6, "count": 1.8}
    candidates = figures.one_fewer({**par(6, 3), "sink": 1}, busy)
    assert candidates == [{**par(5, 3), "sink": 1}, {**par(6, 2), "sink": 1}, {**par(4, 4), "sink": 1}]
    assert figures.one_fewer(par(4, 2), busy) == []


# -- changes by hand ---------------------------------------------------------------------------------------------------


def test_the_figures_of_a_change():
    change = HandChange(par(2, 2), {"count": 4}, 105.0, 105.5, 64, 64)
    assert figures.change_figures(change, log_of(), 102.0) == {
        "change": "count 2 → 4", "seconds": 0.5, "key_groups_moved": 64, "key_groups_minimum": 64, "longest_gap_ms": 100,
        "usual_gap_ms": 100}


def silent_log() -> LoggedArrivals:
    """Nothing comes between 110.767 and 112 s, of 30 tuples/s from 110 s on and 10 before."""
    kept = np.delete(np.arange(LOAD.tuples), slice(120, 160))
    keys = np.array([row_key(int(number), 0) for number in kept], np.uint64)
    return LoggedArrivals(TIMETABLE.due_times(kept) + 0.1, keys, TIMETABLE)


def test_gaps_of_several_changes_and_at_the_same_rate_outside_of_them():
    spans = [(110.5, 112.5), (114.0, 115.0)]
    calm = figures.calm_between(110.0, 120.0, spans)
    assert calm == [(110.0, 110.5), (112.5, 114.0), (115.0, 120.0)]
    assert figures.gaps(silent_log(), spans, calm) == {"longest_gap_ms": pytest.approx(1367, abs=1), "usual_gap_ms": 33}
    assert figures.gaps(log_of(), [], calm) == figures.gaps(log_of(), spans, []) == {
        "longest_gap_ms": None, "usual_gap_ms": None}


def test_the_usual_gap_of_a_change_that_is_longer_than_all_calm_times():
    assert figures.gaps(log_of(), [(113.0, 118.0)], [(111.0, 113.0), (118.0, 119.0)])["usual_gap_ms"] == 33


@pytest.mark.parametrize(("spans", "calm"), [
    ([], [(10.0, 20.0)]), ([(5.0, 25.0)], []), ([(8.0, 12.0), (11.0, 13.0), (19.0, 30.0)], [(13.0, 19.0)]),
    ([(12.0, 14.0), (10.0, 11.0), (30.0, 31.0)], [(11.0, 12.0), (14.0, 20.0)]), ([(2.0, 3.0)], [(10.0, 20.0)])])
def test_calm_times_are_outside_of_all_changes(spans, calm):
    assert figures.calm_between(10.0, 20.0, spans) == calm


def test_the_times_of_changes_are_those_that_the_engine_has_recorded():
    rows = [{"strategy": "scale", "at": 1010.0, "phases_ms": {"done": 400}},
            {"strategy": "handover", "at": 1012.0, "phases_ms": {"done": 100}},
            {"strategy": "scale", "at": 1015.0, "phases_ms": {"done": 9000}}]
    assert figures.change_spans(rows, -900.0) == [(110.0, 111.4), (115.0, 125.0)]


def test_totals_and_ratios():
    assert figures.total([], "n") is None and figures.total([{"n": 2}, {"n": 3}], "n") == 5
    assert figures.ratio(1.0, 2.0) == 0.5 and figures.ratio(None, 2.0) is None and figures.ratio(1.0, 0.0) is None


def test_the_watch_notes_every_change():
    seen = iter([par(2, 2), par(2, 2), par(3, 2)])
    master = SimpleNamespace(call=lambda work: next(seen), state=None)
    now = iter([1.0, 1.5, 2.0, 2.5])
    watch = ParWatch(SimpleNamespace(master=master), clock=lambda: next(now))
    for _ in range(3):
        watch.look()
    assert watch.seen == [SeenPar(1.0, par(2, 2)), SeenPar(1.5, par(3, 2))]


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_gaps_of_other_engines_stand_beside_ours():
    ours = [{"longest_gap_ms": 30, "usual_gap_ms": 20}, {"longest_gap_ms": 90, "usual_gap_ms": 40}]
    rows = gap_rows(ours, {"gap_ms": 1800, "first_gap_ms": 2500, "usual_ms": 400})
    assert [row["gap_ms"] for row in rows] == [50, 1800, *(gap.gap_ms for gap in GAPS_ELSEWHERE)]
    assert len(gap_rows([], None)) == len(GAPS_ELSEWHERE)


def test_times_are_in_proportion_to_those_after_the_step():
    assert ElasticLengths.of(120.0) == ElasticLengths(120.0, 60.0, 24.0, 120.0, 2, 8.0)
    assert ElasticLengths.of(8.0) == ElasticLengths(8.0, 4.0, 5.0, 8.0, 2, 2.0)


def test_unknown_parts_are_refused():
    with pytest.raises(MillraceError, match="no part saw of this benchmark: there are step, sine, rescale, others"):
        run_elastic(parts=["saw", "step"])


class RecordedControl:
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def set(self, model: str, **values: Any) -> dict[str, Any]:
        self.calls.append((model, values["t_max_ms"]))
        return {}

    def off(self) -> dict[str, Any]:
        self.calls.append(("off",))
        return {}

    def history(self, limit: int = 20) -> list[dict[str, Any]]:
        return [{"at": 1.0}]


def test_the_loop_is_set_and_switched_off():
    running = SimpleNamespace(elastic=RecordedControl())
    goal = LoopGoal("erstream", 200.0)
    goal.begin(running)
    assert goal.end(running) == [{"at": 1.0}]
    assert running.elastic.calls == [("erstream", 200.0), ("off",)]


RESULT: dict[str, Any] = {
    **_empty("erstream", "predictive", 200.0, 120.0), "seconds": 600.0, "decisions": 1, "oscillations": 0, "recovered_s": 9.5,
    "share_over_t_max": 0.02, "longest_gap_ms": 150, "usual_gap_ms": 60, "instances": 22, "fewest_instances": 21,
    "instances_over_minimum": 0.048, "p99_ratio_to_fixed": 0.4, "throughput_ratio_to_fixed": 1.0, "key_groups_moved": 65,
    "key_groups_minimum": 64,
    "steps": [{"at_s": 63.5, "decision": "service 6 → 14", "predicted_ms": 170.0, "measured_ms": 781.3, "settled_ms": 181.3,
               "error": -0.062, "instances": 22}],
    "sine": {name: {"instances": 15.2, "p99_ms": p99, "mean_ms": 180.0, "tuples_per_s": 100.0, "changes": 4}
             for name, p99 in (("elastic", 600.0), ("fixed", 1500.0))},
    "rescales": [{"change": "count 2 → 4", "seconds": 0.4, "key_groups_moved": 65, "key_groups_minimum": 64,
                  "longest_gap_ms": 40, "usual_gap_ms": 25}],
    "gaps": gap_rows([], None)}


def figures_of_aims(result: Mapping[str, Any]) -> list[Any]:
    return [aim.value(dict(result)) for aim in ELASTIC_AIMS]


def test_aims():
    assert figures_of_aims(RESULT) == [1, 0, 0, 90, 0.048, 0.4, 1]
    assert all(aim.is_met(figure) for aim, figure in zip(ELASTIC_AIMS, figures_of_aims(RESULT)))
    never = {**RESULT, "decisions": None}
    assert figures_of_aims(never)[0] == math.inf and not ELASTIC_AIMS[0].is_met(math.inf)
    assert figures_of_aims(_empty("erstream", "predictive", 200.0, 120.0)) == [None, None, 0, None, None, None, None]


def test_tables_and_summary():
    text, summary = "\n".join(elastic_tables(RESULT)), "\n".join(elastic_summary(RESULT))
    for expected in ("| 63.5 | service 6 → 14 | 22 | 170 | 781.3 | 181.3 | -6% |", "| elastic | 15.2 | 600 | 180 | 100 | 4 |",
                     "| count 2 → 4 | 65 | 64 | 40 | 25 | 0.4 |", "| Storm 2.8.2 |", "21 would do",
                     "our own measurement, not a published figure"):
        assert expected in text, expected
    assert "predicted 170 ms, measured 781.3 ms, 181.3 ms without the backlog (error -6%)" in summary
    assert "0 tuples lost, 0 repeated" in summary
    bare = {**_empty("erstream", "predictive", 200.0, 120.0), "gaps": [], "seconds": 1.0, "failed": {"step": "no luck"}}
    assert "**Not measured, because they failed:** step." in "\n".join(elastic_tables(bare))
    assert elastic_summary(bare) == ["0 tuples lost, 0 repeated"]


def test_faulty_parts_are_named():
    assert faulty_parts(RESULT) == ""
    assert faulty_parts({**RESULT, "lost": 3, "failed": {"sine": "no luck"}}) == "3 tuples lost, 0 repeated; sine: no luck"
