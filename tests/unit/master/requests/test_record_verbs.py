"""Requests for events and migrations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.control.events import Submitted
from millrace.control.master_state import MasterState
from millrace.control.migrations import BUCKET_SECONDS, Bucket, Flow, Migration, TaskMove
from millrace.errors import UnknownName, UnknownTopology
from millrace.master.load.migration_log import KEPT, MigrationLog
from millrace.master.requests.record import record_verbs
from millrace.model.graph import ComponentDef, StreamDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire


def event(text: str, topology: str = "", *tasks: str) -> dict[str, Any]:
    return {"time": 0.0, "topology": topology, "text": text, "level": "info", "cause": "", "tasks": list(tasks)}


EVENTS = [event("worker 1 lost", "", "count[0]"), event("placed", "words", "count[0]", "count[1]"), event("up", "words"),
          event("other", "more", "count[0]")]
SPOUT = ComponentDef("lines", "spout", "m:C", 2, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple")


def migration(topology: str, ended: float) -> Migration:
    return Migration(topology, "handover", "person", "done", "", 1, 3, ended - 1, ended - 0.5, ended,
                     (TaskMove(TaskId("count", 0), 0, 1),))


def ask(verb: str, log: MigrationLog | None = None, **request: Any) -> Any:
    state = MasterState()
    state.handle(Submitted(TopologyGraph("idle", (SPOUT,), {"topology.guarantee": "at-most-once"})))
    return record_verbs(state, log or MigrationLog(), EVENTS, ["quiet"])[verb](request)


def test_events_of_a_topology_include_those_of_the_cluster() -> None:
    def texts(**request: Any) -> list[str]:
        return [row["text"] for row in ask("events", **request)]

    assert texts() == ["worker 1 lost", "placed", "up", "other"]
    assert texts(topology="words") == ["worker 1 lost", "placed", "up"]
    assert texts(topology="words", task="count[0]") == ["worker 1 lost", "placed", "up"]
    assert texts(task="count[0]") == ["worker 1 lost", "placed", "up", "other"]
    assert texts(task="count[1]") == ["placed", "up"], "an event without tasks concerns all of its topology"
    for past_or_running in ("quiet", "idle"):
        assert texts(topology=past_or_running) == ["worker 1 lost"]
    assert texts(task="lines[1]") == texts(topology="idle", task="lines[1]") == [], "it runs, and nothing has happened to it"
    with pytest.raises(UnknownName, match="'count' does not name a task"):
        texts(task="count")


def test_unknown_names_are_refused_and_known_ones_listed() -> None:
    log = MigrationLog()
    log.remember([{"id": 7, "topology": "older", "moved": [{"task": "sink[3]"}]}])
    known = "no topology named 'ghost' is running or on record; running: idle; on record: more, older, quiet, words"
    for verb in ("events", "migrations"):
        with pytest.raises(UnknownTopology, match=known):
            ask(verb, log, topology="ghost")
    assert ask("events", log, task="sink[3]") == ask("events", log, topology="older", task="sink[3]") == []
    for request, says in [
        ({"task": "ghost[0]"}, "no task ghost[0] is running or on record; known: count[0..1], lines[0..1], sink[0..3]"),
        ({"task": "lines[0]", "topology": "words"}, "no task lines[0] of 'words' is running or on record; known: count[0..1]"),
        ({"task": "count[0]", "topology": "idle"}, "no task count[0] of 'idle' is running or on record; known: lines[0..1]"),
        ({"task": "count[0]", "topology": "ghost"}, known),
    ]:
        with pytest.raises((UnknownName, UnknownTopology)) as refused:
            ask("events", log, **request)
        assert str(refused.value) == says


def test_migrations_of_a_topology_that_had_none() -> None:
    assert [ask("migrations", topology=name) for name in ("idle", "quiet", "words")] == [[], [], []]


def test_migrations_are_numbered_after_those_of_earlier_masters() -> None:
    log = MigrationLog()
    first = {"id": 7, "topology": "words", "timeline": [[0.0, 1.0, None]]}
    log.remember([first])
    assert log.add(migration("words", 11.0), 11.0, 1011.0) == 8 and log.add(migration("more", 12.0), 12.0, 1012.0) == 9
    rows = ask("migrations", log)
    assert [(row["id"], row["topology"]) for row in rows] == [(7, "words"), (8, "words"), (9, "more")]
    assert "timeline" not in rows[0] and rows[1]["at"] == 1010.0
    assert [row["id"] for row in ask("migrations", log, topology="more")] == [9]
    assert ask("migrations", log, id=7) == [first] and ask("migrations", log, id=8)[0]["timeline"] == []
    assert ask("migrations", log, id=7, topology="words") == [first]
    with pytest.raises(UnknownName, match="migration 7 is not of 'more' but of 'words'"):
        ask("migrations", log, id=7, topology="more")
    with pytest.raises(UnknownName, match="there is no migration 3; the newest are 7 to 9"):
        ask("migrations", log, id=3)
    with pytest.raises(UnknownName, match="there is no migration 3; there has been none"):
        ask("migrations", id=3)


def test_figures_are_final_after_a_while_and_old_records_are_dropped() -> None:
    log = MigrationLog()
    for number in range(KEPT + 5):
        log.add(migration("words", float(number)), float(number), 0.0)
    assert [row["id"] for row in log.settle(1.0)] == []
    assert [row["id"] for row in log.settle(3.5)] == [1, 2]
    assert not any(row["final"] for row in log.past()[2:]) and all(row["final"] for row in log.past()[:2])
    assert len(log.settle(1e6)) == KEPT + 3 and len(log.past()) == KEPT


def report(log: MigrationLog, at: float, tuples: int, replayed: int = 0) -> None:
    """The last quarter of a second of a sink; `replayed`: how many tuples were replayed until then."""
    buckets = [Bucket(round((at - 0.25) / BUCKET_SECONDS) + number, tuples, entered=at) for number in range(5) if tuples]
    flow = wire.TopologyReport(3, buckets, Flow(0, 0, replayed))
    log.take(wire.Report(0, 1, 1, at, [], [], [], [], [], {}, topologies=[flow]), {3: "words"}, at)


def run(log: MigrationLog, until: float, tuples: int, since: float, replayed: int = 0) -> list[dict[str, Any]]:
    """Report until that time; returns the rows that have become final or complete, as they were then."""
    rows = []
    for number in range(round(since * 4) + 1, round(until * 4) + 1):
        report(log, number / 4, tuples, replayed)
        rows += [dict(row) for row in log.settle(number / 4)]
    return rows


def rebalanced(topology: str = "words", component: str = "count", outcome: str = "done") -> Migration:
    return Migration(topology, "dcr", "person", outcome, "", 1, 3, 20.0, 21.0, 22.0, (TaskMove(TaskId(component, 0), 0, 1),),
                     steps=(("hold", 0.0), ("checkpoint", 1.0), ("replace", 1.0)), rebalanced=(21.0, 22.0), restarted=(1,))


def test_metrics_are_complete_when_the_stream_is_stable_and_no_tuple_can_be_replayed_any_more() -> None:
    log = MigrationLog(stable_seconds=4.0, watch_seconds=60.0)
    run(log, 21.0, 5, 0.0)
    run(log, 22.0, 0, 21.0)
    log.add(rebalanced(), 22.0, 1022.0, [4711], timeout=10.0)
    (final,) = run(log, 30.0, 5, 22.0)
    assert (final["final"], final["complete"], final["stabilise_ms"]) == (True, False, None)
    assert (final["drain_ms"], final["rebalance_ms"], final["new_pids"]) == (1000.0, 1000.0, [4711])
    assert log.past()[0]["stabilise_ms"] > 0 and not log.past()[0]["complete"], "it is known, and others may still change"
    (complete,) = run(log, 40.0, 5, 30.0, replayed=7)
    assert (complete["final"], complete["complete"], complete["replayed"]) == (True, True, 7)
    assert complete["at"] == 1020.0 and 1000.0 <= complete["stabilise_ms"] <= 2000.0
    assert len(complete["timeline"]) >= len(final["timeline"])
    assert run(log, 100.0, 5, 40.0) == [] and log.past() == [
        {name: value for name, value in complete.items() if name != "timeline"}], "nothing changes any more"


@pytest.mark.parametrize(("component", "outcome", "watched"), [("count", "done", False), ("count", "cancelled", True),
                                                               ("__acker", "done", True)])
def test_a_migration_is_watched_until_another_disturbs_the_stream(component: str, outcome: str, watched: bool) -> None:
    log = MigrationLog(stable_seconds=5.0, watch_seconds=60.0)
    run(log, 22.0, 5, 0.0)
    log.add(rebalanced(), 22.0, 1022.0)
    run(log, 23.0, 5, 22.0)
    log.add(replace(rebalanced(component=component, outcome=outcome), began=22.5, rebalanced=None, ended=23.0), 23.0, 1023.0)
    run(log, 40.0, 5, 23.0)
    assert all(row["complete"] for row in log.past()) and (log.past()[0]["stabilise_ms"] is not None) == watched


def test_nobody_watches_a_migration_of_an_earlier_master() -> None:
    log = MigrationLog()
    log.remember([{"id": 7, "topology": "words", "stabilise_ms": None, "complete": False}])
    assert log.past() == [{"id": 7, "topology": "words", "stabilise_ms": None, "complete": True}]


def test_a_stream_that_does_not_return_to_its_rate_is_not_watched_for_ever() -> None:
    log = MigrationLog(stable_seconds=2.0, watch_seconds=10.0)
    run(log, 21.0, 5, 0.0)
    run(log, 22.0, 2, 21.0)
    log.add(rebalanced(), 22.0, 1022.0)
    rows = run(log, 40.0, 2, 22.0)
    assert [(row["complete"], row["stabilise_ms"]) for row in rows] == [(False, None), (True, None)]


def test_metrics_of_a_topology_that_ends_are_complete() -> None:
    log = MigrationLog()
    log.add(rebalanced(), 22.0, 1022.0)
    assert [row["complete"] for row in log.forget("words")] == [True] and log.settle(1e6) == []


def test_nothing_moves() -> None:
    assert ask("moves") == []
