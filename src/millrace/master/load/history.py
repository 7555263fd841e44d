"""The history: what was measured and decided, in a database that outlives the master.

The master hands a window or a decision over and goes on; a thread of its own writes. A database that is slow or gone costs
windows (the oldest first, and they are counted), never a decision, and never the master's time.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, delete, event, exc, func, insert, make_url, select, update
from sqlalchemy.schema import CreateIndex, CreateTable

from millrace.errors import BadParameter, MillraceError, StoreUnreachable
from millrace.master.load.history_tables import (
    OF_WINDOW,
    SCHEMA_VERSION,
    TABLES,
    PastWindow,
    clusters,
    decision_values,
    decisions,
    insert_window,
    read_windows,
    schema,
    windows,
)
from millrace.master.state_home import state_home
from millrace.model.sample import WindowSample

log = logging.getLogger("millrace.history")

WINDOWS_WAITING = 100  # most windows that wait for the database
ROWS_WAITING = 1_000_000  # and most rows in them, since a large topology's windows are large
PRUNE_SECONDS = 60.0  # between two looks for what is too old
RETRY_SECONDS = (0.1, 5.0)  # the pause after a failure, doubled up to the second
CONNECT_SECONDS = 5
SILENT_SECONDS = 30  # after which a server that does not answer is given up
SQLITE_LOCK_SECONDS = 10  # how long a writer waits for another master's transaction
CLOSE_SECONDS = 5.0
WINDOWS_AT_A_TIME = 50  # when reading
INSTALL_POSTGRES = "pip install millrace[postgres]"
SCHEMA_LOCK = 0x6D696C6C  # PostgreSQL's advisory lock that two masters take turns with when they make the tables


def default_history_url() -> str:
    """A file of the user's own."""
    return URL.create("sqlite", database=str(state_home() / "history.db")).render_as_string()


class History:
    """What is remembered of one cluster. Several masters, of the same or of other clusters, may share a database.

    url: SQLAlchemy's, for SQLite (a file) or PostgreSQL. Rows older than `retention_seconds` are deleted, those of a
    cluster whose master is gone too, by whichever master writes. `StoreUnreachable` if the database cannot be used now;
    once it could, the history waits for it to come back.
    """

    def __init__(self, url: str, cluster: str, retention_seconds: float, clock: Callable[[], float] = time.time) -> None:
        if not retention_seconds > 0:
            raise BadParameter(f"the history's retention is {retention_seconds!r} seconds: it must be above 0")
        self._cluster, self._retention, self._clock = cluster, float(retention_seconds), clock
        self._url = _parsed(url)
        self._engine = _engine_for(self._url)
        self._writes = self._engine.execution_options(writes=True)
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: deque[WindowSample] = deque()
        self._rows_waiting = 0
        self._decisions: dict[int, dict[str, Any]] = {}
        self._prune_as_of: float | None = None
        self._next_prune = time.monotonic() + PRUNE_SECONDS
        self._working = self._closing = False
        self._connected = True
        self._written = self._dropped = self._errors = 0
        self._last_error: str | None = None
        self._first_contact()
        self._thread = threading.Thread(target=self._run, daemon=True, name="millrace history")
        self._thread.start()

    # -- for the master: none of these waits for the database --

    def record_window(self, sample: WindowSample) -> None:
        """Keep a window. If too many wait already, the oldest of them is dropped and counted."""
        with self._changed:
            if self._closing:
                self._dropped += 1
                return
            self._waiting.append(sample)
            self._rows_waiting += _size(sample)
            self._drop_oldest()
            self._changed.notify_all()

    def record_decision(self, decision: Mapping[str, Any]) -> None:
        """Keep a decision, or add to the one that has this `number`: only what is given is changed. Never dropped."""
        number, values = decision_values(decision)
        with self._changed:
            if self._closing:
                log.warning("decision %s came after the history was closed: it is not kept", number)
                return
            self._decisions[number] = {**self._decisions.get(number, {}), **values}
            self._changed.notify_all()

    def prune(self, now: float) -> None:
        """Delete what is older than its cluster's retention at that time; done by the writer, bit by bit."""
        with self._changed:
            self._prune_as_of = now
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        with self._changed:
            return {"url": _shown(self._url), "cluster": self._cluster, "connected": self._connected,
                    "windows_written": self._written, "windows_dropped": self._dropped,
                    "windows_waiting": len(self._waiting), "decisions_waiting": len(self._decisions),
                    "errors": self._errors, "last_error": self._last_error}

    # -- for those who can wait --

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is left to write or to prune; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._working or self._has_work()), timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what waits if the database takes it, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            left = len(self._waiting), len(self._decisions)
        if any(left):
            log.warning("the history in %s was closed with %d windows and %d decisions not written; last error: %s",
                        _shown(self._url), *left, self._last_error)
        self._engine.dispose()

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The newest decisions of this cluster, newest first."""
        query = (select(decisions).where(decisions.c.cluster == self._cluster)
                 .order_by(decisions.c.number.desc()).limit(limit))
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def windows(self, since: float, topology: str | None = None) -> list[PastWindow]:
        """This cluster's windows that ended at that time or later, oldest first; of one topology only, if it is named."""
        query = (select(windows).where(windows.c.cluster == self._cluster, windows.c.at >= since)
                 .order_by(windows.c.at, windows.c.id))
        with self._reading() as connection:
            found = connection.execute(query).all()
            return [past for start in range(0, len(found), WINDOWS_AT_A_TIME)
                    for past in read_windows(connection, found[start:start + WINDOWS_AT_A_TIME], topology)]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            raise self._unreachable("cannot be read", error) from None

    # -- the writer's thread --

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        while self._next_work():
            if self._turn():
                pause = RETRY_SECONDS[0]
                continue
            with self._changed:
                if self._closing:
                    return  # what is left is left: the database does not take it
                self._working = False
                self._changed.wait_for(lambda: self._closing, pause)  # then one last attempt
            pause = min(2 * pause, RETRY_SECONDS[1])

    def _next_work(self) -> bool:
        """Wait until there is something to do. False: there is nothing, and nothing more will come."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or self._has_work(), max(0.0, self._next_prune - time.monotonic()))
            if time.monotonic() >= self._next_prune:
                self._next_prune = time.monotonic() + PRUNE_SECONDS
                self._prune_as_of = self._clock()
            if self._closing:
                self._prune_as_of = None  # another master, or the next one, will do it
            self._working = not self._closing or self._has_work()
            return self._working

    def _has_work(self) -> bool:
        return bool(self._waiting or self._decisions) or self._prune_as_of is not None

    def _turn(self) -> bool:
        """A bit of everything that is to be done, so that nothing waits for long behind the rest. True if all went well."""
        if not self._connected and not self._attempt(self._prepare):
            return False
        with self._changed:
            if not self._connected:
                log.info("the history's database %s answers again", _shown(self._url))
            self._connected = True
        jobs = (self._write_decisions, self._write_window, self._prune_some)
        return all([self._connected and self._attempt(job) for job in jobs])

    def _attempt(self, job: Callable[[], None]) -> bool:
        try:
            job()
        except Exception as error:  # whatever it is: the writer lives on, and status() tells of it
            said = self._said(error)
            with self._changed:
                if self._connected:  # else it has been said
                    log.warning("writing the history to %s failed: %s", _shown(self._url), said)
                self._errors += 1
                self._last_error = said
                self._connected = self._connected and _is_about_the_data(error)
            return False
        return True

    def _write_decisions(self) -> None:
        """Each in a transaction of its own: one that is refused stays, and those behind it are written all the same."""
        with self._changed:
            todo = dict(self._decisions)
        refused: Exception | None = None
        for number, values in todo.items():
            try:
                with self._writes.begin() as connection:
                    self._put_decision(connection, number, values)
            except Exception as error:
                if not _is_about_the_data(error):
                    raise
                refused = error
                continue
            with self._changed:  # what was added to it meanwhile stays to be written
                if self._decisions[number] is values:
                    del self._decisions[number]
        if refused is not None:
            raise refused

    def _put_decision(self, connection: Connection, number: int, values: Mapping[str, Any]) -> None:
        this = (decisions.c.cluster == self._cluster, decisions.c.number == number)
        found = connection.execute(select(decisions.c.number).where(*this)).first()
        if found is None:
            values = {"at": self._clock(), **values}
            connection.execute(insert(decisions).values(cluster=self._cluster, number=number, **values))
        elif values:
            connection.execute(update(decisions).where(*this).values(**values))

    def _write_window(self) -> None:
        with self._changed:
            if not self._waiting:
                return
            sample = self._waiting.popleft()
            self._rows_waiting -= _size(sample)
        try:
            with self._writes.begin() as connection:
                insert_window(connection, self._cluster, sample)
        except Exception as error:
            with self._changed:
                if _is_about_the_data(error):  # it would fail again, and hold up those behind it
                    self._dropped += 1
                else:
                    self._waiting.appendleft(sample)
                    self._rows_waiting += _size(sample)
                    self._drop_oldest()
            raise
        with self._changed:
            self._written += 1

    def _drop_oldest(self) -> None:
        """Make room: the newest window always has a place."""
        while len(self._waiting) > 1 and (len(self._waiting) > WINDOWS_WAITING or self._rows_waiting > ROWS_WAITING):
            self._rows_waiting -= _size(self._waiting.popleft())
            self._dropped += 1

    def _prune_some(self) -> None:
        """One window in one short transaction: no other master waits long for its turn. Decisions are few: all at last."""
        now = self._prune_as_of
        if now is None:
            return
        with self._writes.begin() as connection:
            oldest = connection.scalar(select(windows.c.id).join(clusters, clusters.c.cluster == windows.c.cluster)
                                       .where(windows.c.at < now - clusters.c.retention_seconds)
                                       .order_by(windows.c.at).limit(1))
            if oldest is not None:
                for table in OF_WINDOW:
                    connection.execute(delete(table).where(table.c.window_id == oldest))
                connection.execute(delete(windows).where(windows.c.id == oldest))
                return
            kept = select(clusters.c.retention_seconds).where(clusters.c.cluster == decisions.c.cluster).scalar_subquery()
            connection.execute(delete(decisions).where(decisions.c.at < now - kept))
        with self._changed:
            if self._prune_as_of == now:  # else it was asked for anew
                self._prune_as_of = None

    # -- the database --

    def _first_contact(self) -> None:
        try:
            self._make_room()
            self._prepare()
        except (exc.SQLAlchemyError, OSError) as error:
            self._engine.dispose()
            raise self._unreachable("cannot be used", error) from None
        except MillraceError:
            self._engine.dispose()
            raise

    def _make_room(self) -> None:
        """SQLite's file, for its owner's eyes only if it is new: loads and reasons tell what a business does."""
        if self._url.get_backend_name() == "sqlite":
            path = Path(self._url.database or "")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)

    def _prepare(self) -> None:
        """Make what tables are missing, and say which cluster this is and how long its rows are kept."""
        with self._writes.begin() as connection:
            if connection.dialect.name == "postgresql":  # two that make the same table at once would get in each other's way
                connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))
            connection.execute(CreateTable(schema, if_not_exists=True))
            self._check_version(connection)
            for table in TABLES.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(CreateIndex(index, if_not_exists=True))
            connection.execute(delete(clusters).where(clusters.c.cluster == self._cluster))
            connection.execute(insert(clusters).values(cluster=self._cluster, retention_seconds=self._retention))

    def _check_version(self, connection: Connection) -> None:
        version = connection.scalar(select(schema.c.version))
        if version is None:
            connection.execute(insert(schema).values(version=SCHEMA_VERSION))
        elif version > SCHEMA_VERSION:
            raise MillraceError(f"the history in {_shown(self._url)} has tables of version {version}, and this Millrace "
                                f"knows those up to version {SCHEMA_VERSION}: update Millrace, or name another database")

    def _unreachable(self, what: str, error: Exception) -> StoreUnreachable:
        if self._url.get_backend_name() == "sqlite":
            advice = "See that its directory can be written to, or name another file"
        else:
            advice = "See that the server runs there and lets this user in, or name another database"
        return StoreUnreachable(f"the history's database {_shown(self._url)} {what}: {self._said(error)}. {advice}")

    def _said(self, error: Exception) -> str:
        """The error in one line, without the statement, and without the password should the driver repeat it."""
        said = getattr(error, "orig", None) or error
        line = " ".join(str(said).split())[:500]
        for secret in filter(None, (self._url.password, *_secrets_in_query(self._url))):
            line = line.replace(str(secret), "***")
        return f"{type(said).__name__}: {line}"


# -- urls and engines -----------------------------------------------------------------------------------------------------


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):  # their messages may hold the whole url, and so the password
        raise BadParameter("the history's url is not one: write sqlite:////absolute/path/history.db or "
                           "postgresql+psycopg://user:password@host/database") from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise BadParameter(f"the history cannot be kept in {backend!r}: write sqlite:////absolute/path/history.db or "
                           "postgresql+psycopg://user:password@host/database")
    if backend == "sqlite" and (not parsed.database or parsed.database.startswith((":memory:", "file:"))):
        raise BadParameter(f"the history outlives the master, and {_shown(parsed)!r} does not name a file: write "
                           "sqlite:////absolute/path/history.db")
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _secrets_in_query(url: URL) -> list[str]:
    return [str(value) for name, value in url.query.items() if "password" in name.lower()]


def _shown(url: URL) -> str:
    """For people: without any password."""
    hidden = [name for name in url.query if "password" in name.lower()]
    return url.difference_update_query(hidden).render_as_string(hide_password=True)


def _engine_for(url: URL) -> Engine:
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        arguments = {"timeout": SQLITE_LOCK_SECONDS}
    elif url.get_driver_name() in ("psycopg", "psycopg2"):  # a host that vanished must not hold the writer for ever
        limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": SILENT_SECONDS * 1000,
                  "keepalives_idle": SILENT_SECONDS, "application_name": "millrace"}
        arguments = {name: value for name, value in limits.items() if name not in url.query}
    try:
        engine = create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)
    except ModuleNotFoundError as error:
        raise MillraceError(f"the history's database {_shown(url)} needs the Python package {error.name!r}, which is not "
                            f"installed: {INSTALL_POSTGRES}") from error
    except exc.NoSuchModuleError:
        raise BadParameter(f"SQLAlchemy knows no driver {url.drivername!r}: write sqlite:////absolute/path/history.db or "
                           "postgresql+psycopg://user:password@host/database") from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begin)
    return engine


def _sqlite_connected(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions late, and not at all before a CREATE
    with contextlib.suppress(sqlite3.OperationalError):  # locked: another master is at the same switch
        connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last windows, never the file


def _sqlite_begin(connection: Connection) -> None:
    # A transaction that reads first and writes later is refused if another wrote in between: take the lock at once.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_about_the_data(error: Exception) -> bool:
    """Whether the same rows would be refused again by a database that is well."""
    if isinstance(error, exc.DBAPIError):
        return isinstance(error, exc.DataError | exc.IntegrityError)
    return isinstance(error, exc.StatementError) or not isinstance(error, exc.SQLAlchemyError | MillraceError | OSError)


def _size(sample: WindowSample) -> int:
    return sum(len(load.tasks) + len(load.traffic) for load in sample.loads.values())
