"""The history in SQLite, and its database-independent behaviour: waiting, dropping, URLs, messages."""

from __future__ import annotations

import logging
import sqlite3
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from millrace.errors import BadParameter, MillraceError, StoreUnreachable
from millrace.master.load import history as history_module
from millrace.master.load.history import History, default_history_url
from millrace.model.load import Load, TaskLoad
from support.suites.history import DECISION, SECONDS, HistoryConformance, window


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "history.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


class TestSqlite(HistoryConformance):
    pass


@pytest.fixture
def history(url: str) -> Iterator[History]:
    made = History(url, "c", 3600.0, clock=lambda: 1000.0)
    yield made
    made.close(SECONDS)


class Stuck:
    """Holds the database's write lock, so that the writer waits. `tried` is set when it has begun to."""

    def __init__(self, history: History, path: Path) -> None:
        self.tried = threading.Event()
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("BEGIN IMMEDIATE")
        event.listen(history._engine, "checkout", self._trying)

    def _trying(self, connection: sqlite3.Connection, *_: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 60000")
        self.tried.set()

    def release(self) -> None:
        self.connection.close()


# -- what the next master takes over --


def test_the_last_choice_is_kept_and_replaced(history: History) -> None:
    assert history.choice() is None
    for name in ("otd", "tstorm"):
        history.record_choice({"scheduler": name, "parameters": {"gamma": 2.0}, "policy": {"period": 5.0}, "estimator": None})
    history.prune(1e12)
    assert history.flush(SECONDS)
    last = history.choice()
    assert last is not None and (last["scheduler"], last["policy"]) == ("tstorm", {"period": 5.0})


def test_the_newest_windows_of_a_topology_have_its_smoothed_load(history: History) -> None:
    for number in range(5):
        sample = window(float(number))
        [name] = sample.loads
        tasks = {task: TaskLoad(cpu_mhz=10.0 + number, memory_mb=3.0, busy_seconds=0.5) for task in sample.loads[name].tasks}
        estimate = Load(1.0, tasks, dict.fromkeys(sample.loads[name].traffic, 7.0))
        history.record_window(replace(sample, estimates={name: estimate}))
    assert history.flush(SECONDS)
    past = history.newest_windows(name, 2)
    assert [each.at for each in past] == [3.0, 4.0]
    assert {seen.cpu_mhz for seen in past[-1].estimates[name].tasks.values()} == {14.0}
    assert past[-1].estimates[name].traffic == dict.fromkeys(sample.loads[name].traffic, 7.0)
    assert past[-1].loads[name].traffic == sample.loads[name].traffic, "the measured load is as before"
    assert history.newest_windows("other", 2) == []


# -- waiting --


def test_a_slow_database_costs_the_oldest_windows_and_no_decision(history: History, path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "WINDOWS_WAITING", 3)
    stuck = Stuck(history, path)
    history.record_window(window(0.0))
    assert stuck.tried.wait(SECONDS)  # the writer holds the first
    for number in range(1, 11):
        history.record_window(window(float(number)))
        history.record_decision({**DECISION, "number": number})
    status = history.status()
    assert (status["windows_waiting"], status["windows_dropped"], status["decisions_waiting"]) == (3, 7, 10)
    assert not history.flush(0.0)
    stuck.release()
    assert history.flush(SECONDS), history.status()
    assert [past.at for past in history.windows(0.0)] == [0.0, 8.0, 9.0, 10.0]
    assert len(history.decisions(20)) == 10


def test_large_windows_wait_in_smaller_number(history: History, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "ROWS_WAITING", 10)  # a window of ours has 2 tasks and 2 pairs
    stuck = Stuck(history, path)
    history.record_window(window(0.0))
    assert stuck.tried.wait(SECONDS)
    for number in range(1, 5):
        history.record_window(window(float(number)))
    assert (history.status()["windows_waiting"], history.status()["windows_dropped"]) == (2, 2)
    stuck.release()
    assert history.flush(SECONDS)
    assert [past.at for past in history.windows(0.0)] == [0.0, 3.0, 4.0]


def test_a_locked_database_is_tried_again_and_again(history: History, path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()
    describe = history._describe

    def noticed(error: Exception) -> str:
        failed.set()
        return describe(error)

    monkeypatch.setattr(history, "_describe", noticed)
    stuck = Stuck(history, path)
    event.listen(history._engine, "checkout", lambda connection, *_: connection.execute("PRAGMA busy_timeout = 1"))
    with caplog.at_level(logging.INFO, "millrace.history"):
        history.record_window(window(1.0))
        history.record_decision(DECISION)
        assert failed.wait(SECONDS)
        stuck.release()
        assert history.flush(SECONDS), history.status()
    assert [past.at for past in history.windows(0.0)] == [1.0] and len(history.decisions(9)) == 1
    status = history.status()
    assert status["connected"] and status["errors"] >= 1 and "database is locked" in status["last_error"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], "said once, and once that it is over"


def test_a_decision_that_is_refused_holds_up_nothing_and_is_kept(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    put, refuse = history._put, [True]

    def picky(connection: Any, table: Any, number: int, values: Any) -> None:
        if number == 1 and refuse:
            raise ValueError("not this one")
        put(connection, table, number, values)

    monkeypatch.setattr(history, "_put", picky)
    for number in (1, 2):
        history.record_decision({**DECISION, "number": number})
    refused = threading.Event()
    event.listen(history._engine, "commit", lambda connection: refused.set())
    history.record_window(window(1.0))
    assert refused.wait(SECONDS)
    refuse.clear()
    assert history.flush(SECONDS), history.status()
    assert [decision["number"] for decision in history.decisions(9)] == [2, 1] and len(history.windows(0.0)) == 1
    assert history.status()["windows_dropped"] == 0


def test_an_outcome_recorded_during_the_write_is_not_lost(history: History,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    put = history._put

    def interrupted(connection: Any, table: Any, number: int, values: Any) -> None:
        put(connection, table, number, values)
        if "came_of" not in values:
            history.record_decision({"number": number, "came_of": {"moved": 3}})

    monkeypatch.setattr(history, "_put", interrupted)
    history.record_decision({"number": 1, "reason": "why"})
    assert history.flush(SECONDS)
    (decision,) = history.decisions(9)
    assert (decision["reason"], decision["came_of"]) == ("why", {"moved": 3})


def test_old_rows_are_deleted_periodically(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "PRUNE_SECONDS", 0.01)
    pruned = threading.Event()

    def seen(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE FROM millrace_windows"):
            pruned.set()

    history = History(url, "c", 100.0, clock=lambda: 1000.0)
    try:
        event.listen(history._engine, "before_cursor_execute", seen)
        history.record_window(window(950.0))
        history.record_window(window(10.0))
        assert pruned.wait(SECONDS) and history.flush(SECONDS)
        assert [past.at for past in history.windows(0.0)] == [950.0]
    finally:
        history.close(SECONDS)


# -- the end --


def test_closing_writes_what_waits(url: str) -> None:
    history = History(url, "c", 3600.0)
    for number in range(20):
        history.record_window(window(float(number)))
    history.record_decision(DECISION)
    history.close(SECONDS)
    assert history.status()["windows_written"] == 20
    history.record_window(window(99.0))
    history.record_decision({**DECISION, "number": 2})
    assert history.status()["windows_dropped"] == 1 and history.status()["decisions_waiting"] == 0


def test_closing_does_not_wait_for_a_database_that_is_stuck(url: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(url, "c", 3600.0)
    stuck = Stuck(history, path)
    history.record_decision(DECISION)
    assert stuck.tried.wait(SECONDS)
    history.close(timeout=0.01)
    assert "0 windows, 1 decisions, 0 migrations and 0 elastic decisions not written" in caplog.text
    stuck.release()
    history._thread.join(SECONDS)


# -- urls and files --


def test_the_file_and_its_directory_are_the_owners_alone(history: History, path: Path) -> None:
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_default_is_a_file_in_the_users_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_history_url() == f"sqlite:///{tmp_path}/millrace/history.db"
    monkeypatch.setenv("HOME", "/home/someone")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert default_history_url() == "sqlite:////home/someone/.local/state/millrace/history.db"


@pytest.mark.parametrize(("url", "message"), [
    ("no url with s3cret", "is not valid: write sqlite"),
    ("postgresql://u:s3cret@host:port/db", "is not valid: write sqlite"),
    ("mysql://u:s3cret@host/db", "cannot be kept in 'mysql'"),
    ("postgresql+nothing://u:s3cret@host/db", "knows no driver 'postgresql.nothing'"),
    ("sqlite://", "does not name a file"),
    ("sqlite:///:memory:", "does not name a file"),
])
def test_invalid_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(BadParameter, match=message) as caught:
        History(url, "c", 1.0)
    assert "s3cret" not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize("retention", [0.0, -1.0, float("nan")])
def test_an_invalid_retention_is_refused(url: str, retention: float) -> None:
    with pytest.raises(BadParameter, match="must be above 0"):
        History(url, "c", retention)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MillraceError, match=r"pip install millrace\[postgres\]") as caught:
        History("postgresql://u:s3cret@host/db", "c", 1.0)
    assert "s3cret" not in str(caught.value)


def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(StoreUnreachable, match=r"cannot be used: OperationalError.*Check that the server runs") as caught:
        History("postgresql://u:s3cret@127.0.0.1:1/db?sslpassword=s3cret", "c", 1.0)
    assert "s3cret" not in str(caught.value) and "u:***@127.0.0.1:1/db" in str(caught.value)


def test_a_file_that_is_not_a_database_is_refused(path: Path, url: str) -> None:
    path.parent.mkdir()
    path.write_text("something else, and long enough that it cannot be taken for an empty file" * 10)
    with pytest.raises(StoreUnreachable, match=r"file is not a database.*name another file"):
        History(url, "c", 1.0)


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnreachable, match="Check that its directory can be written to"):
        History(f"sqlite:///{tmp_path}/file/history.db", "c", 1.0)


@pytest.mark.parametrize("decision", [{}, {"number": "1"}, {"number": True}, {"number": -1}, {"number": 1 << 63},
                                      {"number": 1, "why": "?"}, {"number": 1, "moved": {("a", 0): 1}}])
def test_an_invalid_decision_is_refused(history: History, decision: dict[str, Any]) -> None:
    with pytest.raises(BadParameter, match="decision"):
        history.record_decision(decision)


def test_the_password_is_never_shown(history: History) -> None:
    history._url = history_module.parsed("postgresql://u:s3cret@h/db?password=hidden")
    message = history._describe(RuntimeError("connection of u with s3cret and hidden refused\nhint"))
    assert message == "RuntimeError: connection of u with *** and *** refused hint"
    assert history.status()["url"] == "postgresql+psycopg://u:***@h/db"
