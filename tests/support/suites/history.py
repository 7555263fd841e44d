"""Tests that every history database passes: inherit the class and give it the `url` of an empty database."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from millrace.errors import MillraceError
from millrace.master.load import history as history_module
from millrace.master.load.history import History
from millrace.model.graph import TaskId
from millrace.model.load import Latency, Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.prediction import Prediction, StationPrediction
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad

A, B = TaskId("a", 0), TaskId("b", 1)
SECONDS = 60.0  # to wait for the writer, on a busy machine
LOAD = Load(10.0, {
    A: TaskLoad(emitted=2**40, transferred=7, acked=3, failed=2, complete_latency_ms=Latency(1.5, 9.25, 2.5),
                offered=2**41, lag=2**40, blocked_seconds=0.75),
    B: TaskLoad(executed=50, queue_length=5, queue_floor=4, execute_latency_ms=Latency(0.0, 1.0, 0.25),
                process_latency_ms=Latency(2.0, 3.0), cpu_seconds=1.25, busy_seconds=2.5, cpu_mhz=300.5, memory_mb=12.0),
}, {(A, B): 50.0, (B, B): 0.5}, (B,), traffic_bytes={(A, B): 2.0**45})
PLAN = Plan(3, {A: 0, B: 4})
WORKERS = {0: WorkerLoad("n1", 100.0, 200.0, 0), 4: WorkerLoad("n2", 300.5, 12.0, 5)}
NODES = {"n1": NodeLoad(100.0, 4800.0, 8000.0, 200.0), "n2": NodeLoad(300.5, 2400.0, 4000.0, 12.0, 600.0)}
DECISION = {"number": 1, "at": 5.0, "scheduler": "tstorm", "parameters": {"gamma": 1.5}, "trigger": "timer",
            "outcome": "new plan", "reason": "less traffic", "moved": {"t": ["b[1]"]}, "expected": {"inter_node": 5.0},
            "came_of": None}
MIGRATION = {"id": 1, "at": 5.5, "topology": "t\N{GREEK SMALL LETTER LAMDA}", "moved": [{"task": "b[1]", "pause_ms": None}],
             "degraded_s": {"20": 0.25}, "timeline": [[-50.0, 12.5, None], [0.0, 0.0, 1.25]], "lost": 0}

ELASTIC = {"number": 1, "at": 6.5, "topology": "t", "model": "erstream", "direction": "grow", "outcome": "enacted",
           "reason": "b cannot keep up", "before": {"a": 1, "b": 2}, "par": {"a": 1, "b": 4}, "expected_ms": 11.5,
           "measured_ms": None, "helped": None}

Opener = Callable[..., History]


def window(at: float, **loads: Load) -> WindowSample:
    return WindowSample(at, 10.0, loads or {"t": LOAD}, {"t": PLAN}, WORKERS, NODES)


def written(history: History, *samples: WindowSample) -> None:
    for sample in samples:
        history.record_window(sample)
    assert history.flush(SECONDS), history.status()


def rows(url: str, query: str) -> list[Any]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        engine.dispose()


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()


class HistoryConformance:
    """Inherit as `class TestX(HistoryConformance)` and give it a fixture `url`."""

    @pytest.fixture
    def open_history(self, url: str) -> Iterator[Opener]:
        opened: list[History] = []

        def open_one(cluster: str = "c", retention: float = math.inf, at: float = 1000.0) -> History:
            opened.append(History(url, cluster, retention, clock=lambda: at))
            return opened[-1]

        yield open_one
        for history in opened:
            history.close(SECONDS)

    # -- windows --

    def test_a_window_is_read_back_as_it_was(self, open_history: Opener) -> None:
        history = open_history()
        written(history, window(100.5))
        (past,) = history.windows(0.0)
        assert (past.at, past.seconds, past.loads) == (100.5, 10.0, {"t": LOAD})
        assert past.placements == {"t": {A: 0, B: 4}} and past.workers == WORKERS and past.nodes == NODES
        assert history.status()["windows_written"] == 1

    def test_windows_are_found_by_time_and_topology(self, open_history: Opener) -> None:
        history = open_history()
        other = Load(5.0, {A: TaskLoad(emitted=1)})
        written(history, window(30.0, t=LOAD, u=other), window(10.0), window(20.0), WindowSample(40.0, 10.0))
        assert [past.at for past in history.windows(20.0)] == [20.0, 30.0, 40.0]
        assert history.windows(40.0)[0].loads == {}
        assert [past.loads for past in history.windows(0.0, "u")] == [{"u": other}]
        assert [past.at for past in history.windows(0.0, "t")] == [10.0, 20.0, 30.0]
        assert history.windows(50.0) == [] == history.windows(0.0, "nobody")

    def test_many_windows_are_read(self, open_history: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history_module, "WINDOWS_AT_A_TIME", 2)
        history = open_history()
        written(history, *(window(float(number)) for number in range(5)))
        assert [(past.at, past.loads["t"]) for past in history.windows(0.0)] == [(float(n), LOAD) for n in range(5)]

    def test_rates_of_components_are_kept(self, open_history: Opener, url: str) -> None:
        written(open_history(), window(1.0))
        rates = rows(url, "select topology, component, arrival_rate, true_processing_rate from millrace_component_loads "
                          "order by component")
        assert rates == [("t", "a", 2**40 / 10, None), ("t", "b", 5.05, 20.0)]

    def test_what_is_no_number_is_kept_as_nothing(self, open_history: Opener) -> None:
        history = open_history()
        broken = Load(10.0, {A: TaskLoad(cpu_mhz=math.nan, busy_seconds=math.inf)}, {(A, B): math.nan})
        written(history, WindowSample(1.0, math.nan, {"t": broken}, {}, {0: WorkerLoad("n", math.inf)}, {"n": NodeLoad()}))
        (past,) = history.windows(0.0)
        assert past.loads == {"t": Load(10.0, {A: TaskLoad()}, {(A, B): 0.0})} and past.placements == {"t": {}}
        assert past.seconds == 0.0 and past.workers == {0: WorkerLoad("n")}

    def test_clusters_do_not_see_each_other(self, open_history: Opener) -> None:
        one, other = open_history("one"), open_history("other")
        written(one, window(1.0))
        one.record_decision(DECISION)
        other.record_decision({**DECISION, "reason": "other"})
        written(other, window(2.0))
        assert one.flush(SECONDS)
        assert [past.at for past in one.windows(0.0)] == [1.0]
        assert [decision["reason"] for decision in one.decisions(9)] == ["less traffic"]
        assert [decision["reason"] for decision in other.decisions(9)] == ["other"]

    def test_several_masters_write_at_once(self, open_history: Opener) -> None:
        gate = threading.Barrier(4)

        def master(number: int) -> None:
            gate.wait()
            history = open_history("c")  # they create the tables at the same time
            for turn in range(10):
                history.record_window(window(float(turn)))
                history.record_decision({**DECISION, "number": 10 * number + turn})
            assert history.flush(SECONDS), history.status()

        threads = [threading.Thread(target=master, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        history = open_history("c")
        assert len(history.windows(0.0)) == 40
        assert [decision["number"] for decision in history.decisions(100)] == list(range(39, -1, -1))

    # -- decisions --

    def test_decisions_are_kept_and_added_to(self, open_history: Opener) -> None:
        history = open_history()
        decision = {**DECISION, "moved": {"t": ["b[1]"]}}
        history.record_decision(decision)
        decision["moved"]["t"].append("changed later")
        history.record_decision({"number": 2, "reason": "nothing to gain"})
        assert history.flush(SECONDS)
        second, first = history.decisions(5)
        assert first == {"cluster": "c", "times": None, **DECISION}
        assert second["reason"] == "nothing to gain" and second["at"] == 1000.0 and second["moved"] is None
        history.record_decision({"number": 1, "came_of": {"inter_node": math.nan, "task": A}})
        assert history.flush(SECONDS)
        assert history.decisions(5)[1] == {**first, "came_of": {"inter_node": None, "task": ["a", 0]}}
        assert [decision["number"] for decision in history.decisions(1)] == [2]

    def test_strange_characters_in_a_reason_do_not_hold_anything_up(self, open_history: Opener) -> None:
        history = open_history()
        history.record_decision({"number": 1, "reason": "a\0b\ud800 → λ", "moved": {"\0": "\ud800"}})
        assert history.flush(SECONDS), history.status()
        assert history.decisions(1)[0]["reason"] == "a\N{REPLACEMENT CHARACTER}b? → λ"

    def test_the_history_outlives_the_master(self, open_history: Opener) -> None:
        first = open_history()
        first.record_window(window(1.0))
        first.record_decision(DECISION)
        first.close(SECONDS)
        first.close(SECONDS)
        second = open_history()
        assert [past.loads for past in second.windows(0.0)] == [{"t": LOAD}] and len(second.decisions(9)) == 1

    # -- migrations --

    def test_migrations_are_read_back_as_they_were(self, open_history: Opener) -> None:
        first = open_history()
        for number in (1, 2, 3):
            first.record_migration({**MIGRATION, "id": number})
        first.record_migration({**MIGRATION, "id": 3, "lost": 1})
        first.close(SECONDS)
        history = open_history()
        assert history.migrations(2) == [{**MIGRATION, "id": 3, "lost": 1}, {**MIGRATION, "id": 2}]
        assert open_history("other").migrations(9) == []

    # -- elasticity --

    def test_decisions_of_elastic_loops_are_read_back_as_they_were(self, open_history: Opener) -> None:
        first = open_history()
        for number in (1, 2, 3):
            first.record_elastic_decision({**ELASTIC, "number": number})
        first.record_elastic_decision({**ELASTIC, "number": 3, "helped": True})
        first.close(SECONDS)
        history = open_history()
        assert history.elastic_decisions(2) == [{**ELASTIC, "number": 3, "helped": True}, {**ELASTIC, "number": 2}]
        assert open_history("other").elastic_decisions(9) == [] and history.migrations(9) == []

    def test_predicted_and_measured_latencies_are_kept_with_the_window(self, open_history: Opener, url: str) -> None:
        history = open_history()
        component = StationPrediction("b", 2, 100.0, 80.0, 0.6, 10.0, 12.0, 15.0, 1.0, 1.5, -0.2)
        prediction = Prediction(100.0, 20.0, 24.0, None, 1.1, None, (component,))
        written(history, window(1.0), replace(window(2.0), predictions={"t": prediction}))
        without, past = history.windows(0.0)
        assert without.predictions == {}
        assert past.predictions == {"t": {"offered_rate": 100.0, "model_ms": 20.0, "predicted_ms": 24.0, "measured_ms": None,
                                          "error": None}}
        kept = rows(url, "select component, model_ms, predicted_ms, measured_ms, error from millrace_component_loads "
                         "where predicted_ms is not null")
        assert kept == [("b", 10.0, 12.0, 15.0, -0.2)]

    # -- age --

    def test_what_is_too_old_is_deleted(self, open_history: Opener, url: str) -> None:
        history = open_history(retention=100.0)
        history.record_decision({**DECISION, "number": 1, "at": 10.0})
        history.record_decision({**DECISION, "number": 2, "at": 60.0})
        history.record_migration({**MIGRATION, "id": 1, "at": 49.0})
        history.record_migration({**MIGRATION, "id": 2, "at": 51.0})
        history.record_elastic_decision({**ELASTIC, "number": 1, "at": 49.0})
        history.record_elastic_decision({**ELASTIC, "number": 2, "at": 51.0})
        written(history, *(window(float(at)) for at in (10, 20, 49, 50, 60)))
        history.prune(150.0)
        assert history.flush(SECONDS)
        assert [past.at for past in history.windows(0.0)] == [50.0, 60.0]
        assert [decision["number"] for decision in history.decisions(9)] == [2]
        assert [migration["id"] for migration in history.migrations(9)] == [2]
        assert [decision["number"] for decision in history.elastic_decisions(9)] == [2]
        for table in ("loads", "task_loads", "traffic", "component_loads", "worker_loads", "node_loads"):
            assert rows(url, f"select count(distinct window_id) from millrace_{table}") == [(2,)], table

    def test_each_cluster_has_its_own_retention_also_when_its_master_is_gone(self, open_history: Opener) -> None:
        for cluster, retention in (("short", 10.0), ("long", 1000.0), ("ever", math.inf)):
            history = open_history(cluster, retention)
            written(history, window(1.0))
            history.close(SECONDS)
        history = open_history("new", 5.0)
        history.prune(500.0)
        assert history.flush(SECONDS)
        left = {cluster: len(open_history(cluster, math.inf).windows(0.0)) for cluster in ("short", "long", "ever")}
        assert left == {"short": 0, "long": 1, "ever": 1}

    # -- the tables --

    def test_tables_of_a_newer_millrace_are_left_alone(self, open_history: Opener, url: str) -> None:
        open_history().close(SECONDS)
        change(url, "update millrace_schema set version = 99")
        with pytest.raises(MillraceError, match=r"tables of version 99.*up to version 5: update Millrace"):
            open_history()

    def test_tables_of_an_older_millrace_get_the_columns_that_they_lack(self, open_history: Opener, url: str) -> None:
        history = open_history()
        written(history, window(1.0))
        history.close(SECONDS)
        for column in ("lag", "offered", "blocked_seconds", "complete_latency_mean_ms"):
            change(url, f"alter table millrace_task_loads drop column {column}")
        change(url, "alter table millrace_traffic drop column bytes")
        change(url, "alter table millrace_traffic drop column estimated_tuples")
        change(url, "alter table millrace_node_loads drop column others_mhz")
        change(url, "update millrace_schema set version = 1")
        again = open_history()
        written(again, window(2.0))
        old, new = again.windows(0.0)
        assert new.loads == {"t": LOAD} and rows(url, "select version from millrace_schema") == [(5,)]
        assert old.loads["t"].tasks[A] == replace(LOAD.tasks[A], offered=0, lag=None, blocked_seconds=0.0,
                                                  complete_latency_ms=Latency(1.5, 9.25))
        assert old.loads["t"].traffic == LOAD.traffic and old.loads["t"].traffic_bytes == {}
        assert (old.nodes["n2"].others_mhz, new.nodes["n2"].others_mhz) == (0.0, 600.0)

    def test_tables_that_were_dropped_are_made_again(self, open_history: Opener, url: str) -> None:
        history = open_history()
        written(history, window(1.0))
        for table in history_module.TABLES.tables:
            change(url, f"drop table {table}")
        history.record_decision(DECISION)
        written(history, window(2.0))
        assert [past.at for past in history.windows(0.0)] == [2.0] and len(history.decisions(9)) == 1
        assert history.status()["errors"] > 0 and history.status()["connected"]
        assert "millrace_" in history.status()["last_error"]

    def test_a_window_that_cannot_be_kept_does_not_hold_up_the_next(self, open_history: Opener) -> None:
        history = open_history()
        written(history, window(1.0, t=Load(1.0, {A: TaskLoad(emitted=2**70)})), window(2.0))
        assert [past.at for past in history.windows(0.0)] == [2.0]
        status = history.status()
        assert (status["windows_written"], status["windows_dropped"], status["errors"]) == (1, 1, 1)

    def test_a_hundred_thousand_pairs(self, open_history: Opener) -> None:
        history = open_history()
        tasks = [TaskId("a", number) for number in range(317)]
        large = Load(10.0, {task: TaskLoad() for task in tasks}, {(one, other): 1.0 for one in tasks for other in tasks})
        written(history, window(1.0, t=large))
        assert history.windows(0.0)[0].loads["t"] == large
