"""Requests for events and migrations."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.master_state import MasterState
from millrace.control.migrations import Migration, TaskMove
from millrace.errors import UnknownName
from millrace.master.load.migration_log import KEPT, MigrationLog
from millrace.master.requests.record import record_verbs
from millrace.model.graph import TaskId


def event(text: str, topology: str = "", *tasks: str) -> dict[str, Any]:
    return {"time": 0.0, "topology": topology, "text": text, "level": "info", "cause": "", "tasks": list(tasks)}


EVENTS = [event("worker 1 lost", "", "count[0]"), event("placed", "words", "count[0]", "count[1]"), event("up", "words"),
          event("other", "more", "count[0]")]


def migration(topology: str, ended: float) -> Migration:
    return Migration(topology, "handover", "person", "done", "", 1, 3, ended - 1, ended - 0.5, ended,
                     (TaskMove(TaskId("count", 0), 0, 1),))


def ask(verb: str, log: MigrationLog | None = None, **request: Any) -> Any:
    return record_verbs(MasterState(), log or MigrationLog(), EVENTS)[verb](request)


def test_events_of_a_topology_include_those_of_the_cluster() -> None:
    def texts(**request: Any) -> list[str]:
        return [row["text"] for row in ask("events", **request)]

    assert texts() == ["worker 1 lost", "placed", "up", "other"]
    assert texts(topology="words") == ["worker 1 lost", "placed", "up"]
    assert texts(topology="words", task="count[0]") == ["worker 1 lost", "placed"]
    assert texts(task="count[1]") == ["placed"] and texts(topology="nobody") == ["worker 1 lost"]
    with pytest.raises(UnknownName, match="'count' does not name a task"):
        texts(task="count")


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


def test_nothing_moves() -> None:
    assert ask("moves") == []
