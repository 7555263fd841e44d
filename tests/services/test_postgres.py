"""The history in a real PostgreSQL."""

from __future__ import annotations

import itertools
import threading

import pytest
from sqlalchemy import event

from millrace.errors import StoreUnreachable
from millrace.master.load.history import History
from support.servers.postgres import PostgresServer
from support.suites.history import DECISION, SECONDS, HistoryConformance, window, written

databases = itertools.count(1)


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """A new, empty database."""
    name = f"test_{next(databases)}"
    postgres_server.execute(f"create database {name}")
    return postgres_server.url.rpartition("/")[0] + f"/{name}"


class TestPostgres(HistoryConformance):
    pass


def test_rows_that_come_while_the_server_is_down_are_written_later(postgres_server: PostgresServer, url: str) -> None:
    history = History(url, "c", 3600.0)
    try:
        history.record_decision(DECISION)
        written(history, window(1.0))
        postgres_server.stop()
        for number in range(2, 12):
            history.record_window(window(float(number)))
            history.record_decision({**DECISION, "number": number})
        history.record_decision({"number": 1, "came_of": {"moved": 1}})
        assert not history.flush(0.0)
        with pytest.raises(StoreUnreachable, match="cannot be read"):
            history.decisions(1)
        postgres_server.start()
        assert history.flush(SECONDS), history.status()
        assert [past.at for past in history.windows(0.0)] == [float(number) for number in range(1, 12)]
        rows = history.decisions(99)
        assert [row["number"] for row in rows] == list(range(11, 0, -1)) and rows[-1]["came_of"] == {"moved": 1}
        status = history.status()
        assert status["connected"] and status["errors"] > 0 and status["windows_dropped"] == 0
        assert postgres_server.password not in str(status)
    finally:
        if postgres_server.process is None:
            postgres_server.start()
        history.close(SECONDS)


def test_a_server_that_goes_away_in_the_middle_of_a_window(postgres_server: PostgresServer, url: str) -> None:
    history = History(url, "c", 3600.0)
    stopped = threading.Event()

    def stop_once(connection, cursor, statement, *_) -> None:
        if "millrace_traffic" in statement and not stopped.is_set():  # other tables have uncommitted rows
            postgres_server.stop()
            stopped.set()

    try:
        event.listen(history._engine, "before_cursor_execute", stop_once)
        history.record_window(window(1.0))
        assert stopped.wait(SECONDS)
        postgres_server.start()
        assert history.flush(SECONDS), history.status()
        assert [past.at for past in history.windows(0.0)] == [1.0], "written once, and whole"
        assert history.status()["errors"] > 0
    finally:
        if postgres_server.process is None:
            postgres_server.start()
        history.close(SECONDS)


def test_a_wrong_password_is_reported_and_not_shown(postgres_server: PostgresServer, url: str) -> None:
    with pytest.raises(StoreUnreachable, match="password authentication failed") as caught:
        History(url.replace(postgres_server.password, "wr0ng"), "c", 1.0)
    assert "wr0ng" not in str(caught.value) and "accepts this user" in str(caught.value)
