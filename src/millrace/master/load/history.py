"""The history of measurements, decisions and migrations, in a database that outlives the master.

The master hands a window, a decision or a migration over without waiting; a writer thread stores it. If the database is slow
or gone, windows are dropped (the oldest first) and counted; decisions and migrations are never dropped, and the master never
waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Table,
    delete,
    exc,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from millrace.errors import BadParameter, MillraceError, StoreUnreachable
from millrace.master.load.history_database import concerns_the_data, engine_for, parsed, secrets_in_query, shown_url
from millrace.master.load.history_tables import (
    OF_WINDOW,
    SCHEMA_VERSION,
    TABLES,
    PastWindow,
    add_missing_columns,
    clusters,
    decision_values,
    decisions,
    elastic_decisions,
    insert_window,
    loads,
    migrations,
    read_windows,
    record_values,
    scheduler_choices,
    schema,
    windows,
)
from millrace.master.state_home import state_home
from millrace.model.sample import WindowSample

log = logging.getLogger("millrace.history")

WINDOWS_WAITING = 100  # maximum of windows that wait for the database
ROWS_WAITING = 1_000_000  # and of rows in them, since windows of a large topology are large
PRUNE_SECONDS = 60.0  # between two searches for outdated rows
RETRY_SECONDS = (0.1, 5.0)  # pause after a failure: doubled from the first value up to the second
CLOSE_SECONDS = 5.0
WINDOWS_AT_A_TIME = 50  # when reading
SCHEMA_LOCK = 0x6D696C6C  # PostgreSQL advisory lock held while tables are created


def default_history_url() -> str:
    """A SQLite file in the user's state home."""
    return URL.create("sqlite", database=str(state_home() / "history.db")).render_as_string()


def recorded_windows(where: str, cluster: str | None = None) -> list[PastWindow]:
    """All windows of a cluster in a history that some master has written, oldest first. `where`: a SQLite file, or a url. The
    name of the cluster may be left out if there is only one. Changes nothing."""
    url = parsed(where if "://" in where else URL.create("sqlite", database=str(Path(where).absolute())).render_as_string())
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise StoreUnreachable(f"there is no history in {url.database}: name the file that a run wrote, with "
                               "`--set history.url=sqlite:////absolute/path/history.db`")
    engine = engine_for(url)
    try:
        with engine.connect() as connection:
            names = list(connection.scalars(select(windows.c.cluster).distinct().order_by(windows.c.cluster)))
            if cluster not in names and (cluster is not None or len(names) != 1):
                missing = f"no windows of cluster {cluster!r}" if cluster else "not exactly one cluster"
                raise BadParameter(f"the history in {shown_url(url)} has {missing}: name one of its clusters with --cluster. "
                                   f"It has {', '.join(names) or 'none'}")
            rows = connection.execute(select(windows).where(windows.c.cluster == (cluster or names[0]))
                                      .order_by(windows.c.at, windows.c.id)).all()
            return [past for start in range(0, len(rows), WINDOWS_AT_A_TIME)
                    for past in read_windows(connection, rows[start:start + WINDOWS_AT_A_TIME], None)]
    except exc.SQLAlchemyError as error:
        line = " ".join(str(getattr(error, "orig", None) or error).split())[:200]
        raise StoreUnreachable(f"the history in {shown_url(url)} cannot be read: {line}. Name a history that this version of "
                               "Millrace has written") from None
    finally:
        engine.dispose()


class History:
    """The history of one cluster. Several masters, of the same or of other clusters, may share a database.

    url: a SQLAlchemy url for SQLite (a file) or PostgreSQL. Any master that writes deletes rows older than their cluster's
    retention, including those of clusters whose master is gone. Raises `StoreUnreachable` if the database cannot be used at
    the start; later, the history waits until it is available again.
    """

    def __init__(self, url: str, cluster: str, retention_seconds: float, clock: Callable[[], float] = time.time) -> None:
        if not retention_seconds > 0:
            raise BadParameter(f"the history's retention is {retention_seconds!r} seconds: it must be above 0")
        self._cluster, self._retention, self._clock = cluster, float(retention_seconds), clock
        self._url = parsed(url)
        self._engine = engine_for(self._url)
        self._writes = self._engine.execution_options(writes=True)
        self._changed = threading.Condition()  # guards all fields below
        self._waiting: deque[WindowSample] = deque()
        self._rows_waiting = 0
        self._decisions: dict[int, dict[str, Any]] = {}
        self._records: dict[Table, dict[int, dict[str, Any]]] = {migrations: {}, elastic_decisions: {}, scheduler_choices: {}}
        self._prune_as_of: float | None = None
        self._next_prune = time.monotonic() + PRUNE_SECONDS
        self._working = self._closing = False
        self._connected = True
        self._written = self._dropped = self._errors = 0
        self._last_error: str | None = None
        self._first_contact()
        self._thread = threading.Thread(target=self._run, daemon=True, name="millrace history")
        self._thread.start()

    # -- called by the master; none of these waits for the database --

    def record_window(self, sample: WindowSample) -> None:
        """Store a window. If too many are waiting, the oldest is dropped and counted."""
        with self._changed:
            if self._closing:
                self._dropped += 1
                return
            self._waiting.append(sample)
            self._rows_waiting += _size(sample)
            self._drop_oldest()
            self._changed.notify_all()

    def record_decision(self, decision: Mapping[str, Any]) -> None:
        """Store a decision, or update the one with this `number`: fields that are omitted stay. Never dropped."""
        number, values = decision_values(decision)
        with self._changed:
            if self._closing:
                log.warning("decision %s came after the history was closed and is not stored", number)
                return
            self._decisions[number] = {**self._decisions.get(number, {}), **values}
            self._changed.notify_all()

    def record_migration(self, row: Mapping[str, Any]) -> None:
        """Store a migration under its `id`. Never dropped."""
        self._record(migrations, row["id"], row)

    def record_elastic_decision(self, row: Mapping[str, Any]) -> None:
        """Store a decision of an elastic loop under its `number`, or replace the one with it. Never dropped."""
        self._record(elastic_decisions, row["number"], row)

    def record_choice(self, choice: Mapping[str, Any]) -> None:
        """Store the scheduler in use with its settings, in place of the last one. Never dropped, and kept."""
        self._record(scheduler_choices, 0, {"at": self._clock(), "topology": "", **choice})

    def _record(self, table: Table, number: int, row: Mapping[str, Any]) -> None:
        with self._changed:
            if self._closing:
                log.warning("row %s of %s came after the history was closed and is not stored", number, table.name)
                return
            self._records[table][number] = record_values(row)
            self._changed.notify_all()

    def prune(self, now: float) -> None:
        """Let the writer delete, bit by bit, rows that are older than their cluster's retention at that time."""
        with self._changed:
            self._prune_as_of = now
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        with self._changed:
            return {"url": shown_url(self._url), "cluster": self._cluster, "connected": self._connected,
                    "windows_written": self._written, "windows_dropped": self._dropped,
                    "windows_waiting": len(self._waiting), "decisions_waiting": len(self._decisions),
                    "errors": self._errors, "last_error": self._last_error}

    # -- these wait for the database --

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is left to write or to prune; False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._working or self._has_work()), timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write the waiting rows, if the database is reachable, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            left = len(self._waiting), len(self._decisions), *map(len, self._records.values())
        if any(left):
            log.warning("the history in %s was closed with %d windows, %d decisions, %d migrations and %d elastic decisions "
                        "not written; last error: %s", shown_url(self._url), *left[:4], self._last_error)
        self._engine.dispose()

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The newest decisions of this cluster, newest first."""
        query = (select(decisions).where(decisions.c.cluster == self._cluster)
                 .order_by(decisions.c.number.desc()).limit(limit))
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def migrations(self, limit: int) -> list[dict[str, Any]]:
        """The newest migrations of this cluster, newest first."""
        return self._newest(migrations, limit)

    def elastic_decisions(self, limit: int) -> list[dict[str, Any]]:
        """The newest decisions of elastic loops of this cluster, newest first."""
        return self._newest(elastic_decisions, limit)

    def choice(self) -> dict[str, Any] | None:
        """The scheduler that the last master of this cluster used, with its settings."""
        return next(iter(self._newest(scheduler_choices, 1)), None)

    def newest_windows(self, topology: str, limit: int) -> list[PastWindow]:
        """The newest windows of a topology, oldest first."""
        query = (select(windows).join(loads, loads.c.window_id == windows.c.id)
                 .where(windows.c.cluster == self._cluster, loads.c.topology == topology)
                 .order_by(windows.c.at.desc(), windows.c.id.desc()).limit(limit))
        with self._reading() as connection:
            return read_windows(connection, reversed(connection.execute(query).all()), topology)

    def _newest(self, table: Table, limit: int) -> list[dict[str, Any]]:
        query = (select(table.c.record).where(table.c.cluster == self._cluster).order_by(table.c.number.desc()).limit(limit))
        with self._reading() as connection:
            return [dict(record) for record in connection.execute(query).scalars()]

    def windows(self, since: float, topology: str | None = None) -> list[PastWindow]:
        """This cluster's windows that ended at that time or later, oldest first; of one topology only, if it is named."""
        query = (select(windows).where(windows.c.cluster == self._cluster, windows.c.at >= since)
                 .order_by(windows.c.at, windows.c.id))
        with self._reading() as connection:
            rows = connection.execute(query).all()
            return [past for start in range(0, len(rows), WINDOWS_AT_A_TIME)
                    for past in read_windows(connection, rows[start:start + WINDOWS_AT_A_TIME], topology)]

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
                    return  # the rest stays unwritten: the database does not accept it
                self._working = False
                self._changed.wait_for(lambda: self._closing, pause)  # if closing: one last attempt
            pause = min(2 * pause, RETRY_SECONDS[1])

    def _next_work(self) -> bool:
        """Wait for work. False if there is none and the history is closing."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or self._has_work(), max(0.0, self._next_prune - time.monotonic()))
            if time.monotonic() >= self._next_prune:
                self._next_prune = time.monotonic() + PRUNE_SECONDS
                self.prune(self._clock())
            if self._closing:
                self._prune_as_of = None  # left to another master, or the next one
            self._working = not self._closing or self._has_work()
            return self._working

    def _has_work(self) -> bool:
        return bool(self._waiting or self._decisions or any(self._records.values())) or self._prune_as_of is not None

    def _turn(self) -> bool:
        """Do a bit of each job, so that none waits long for the others. True if all succeeded."""
        if not self._connected and not self._attempt(self._prepare):
            return False
        with self._changed:
            if not self._connected:
                log.info("the history's database %s answers again", shown_url(self._url))
            self._connected = True
        jobs = (self._write_decisions, self._write_records, self._write_window, self._prune_some)
        return all([self._connected and self._attempt(job) for job in jobs])

    def _attempt(self, job: Callable[[], None]) -> bool:
        try:
            job()
        except Exception as error:  # the writer lives on, and status() reports it
            text = self._describe(error)
            with self._changed:
                if self._connected:  # otherwise it is reported already
                    log.warning("writing the history to %s failed: %s", shown_url(self._url), text)
                self._errors += 1
                self._last_error = text
                self._connected = self._connected and concerns_the_data(error)
            return False
        return True

    def _write_decisions(self) -> None:
        self._write_numbered(decisions, self._decisions)

    def _write_records(self) -> None:
        for table, waiting in self._records.items():
            self._write_numbered(table, waiting)

    def _write_numbered(self, table: Table, waiting: dict[int, dict[str, Any]]) -> None:
        """Write each row in its own transaction: one that is refused stays, and does not hold up the others."""
        with self._changed:
            todo = dict(waiting)
        refused: Exception | None = None
        for number, values in todo.items():
            try:
                with self._writes.begin() as connection:
                    self._put(connection, table, number, values)
            except Exception as error:
                if not concerns_the_data(error):
                    raise
                refused = error
                continue
            with self._changed:  # keep it if it was updated meanwhile
                if waiting[number] is values:
                    del waiting[number]
        if refused is not None:
            raise refused

    def _put(self, connection: Connection, table: Table, number: int, values: Mapping[str, Any]) -> None:
        this = (table.c.cluster == self._cluster, table.c.number == number)
        row = connection.execute(select(table.c.number).where(*this)).first()
        if row is None:
            values = {"at": self._clock(), **values}
            connection.execute(insert(table).values(cluster=self._cluster, number=number, **values))
        elif values:
            connection.execute(update(table).where(*this).values(**values))

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
                if concerns_the_data(error):  # it would fail again and hold up the others
                    self._dropped += 1
                else:
                    self._waiting.appendleft(sample)
                    self._rows_waiting += _size(sample)
                    self._drop_oldest()
            raise
        with self._changed:
            self._written += 1

    def _drop_oldest(self) -> None:
        """Drop the oldest windows beyond the limits; the newest always stays."""
        while len(self._waiting) > 1 and (len(self._waiting) > WINDOWS_WAITING or self._rows_waiting > ROWS_WAITING):
            self._rows_waiting -= _size(self._waiting.popleft())
            self._dropped += 1

    def _prune_some(self) -> None:
        """Delete one window in one short transaction, so that no other master waits long; all decisions and migrations at the
        end."""
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
            for table in (decisions, migrations, elastic_decisions):
                kept = select(clusters.c.retention_seconds).where(clusters.c.cluster == table.c.cluster).scalar_subquery()
                connection.execute(delete(table).where(table.c.at < now - kept))
        with self._changed:
            if self._prune_as_of == now:  # otherwise `prune` was called again meanwhile
                self._prune_as_of = None

    # -- the database --

    def _first_contact(self) -> None:
        try:
            self._create_file()
            self._prepare()
        except (exc.SQLAlchemyError, OSError) as error:
            self._engine.dispose()
            raise self._unreachable("cannot be used", error) from None
        except MillraceError:
            self._engine.dispose()
            raise

    def _create_file(self) -> None:
        """Create SQLite's file readable by its owner only: loads and reasons reveal what a business does."""
        if self._url.get_backend_name() == "sqlite":
            path = Path(self._url.database or "")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)

    def _prepare(self) -> None:
        """Create missing tables, and record this cluster and its retention."""
        with self._writes.begin() as connection:
            if connection.dialect.name == "postgresql":  # concurrent creation of a table would fail
                connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))
            connection.execute(CreateTable(schema, if_not_exists=True))
            version = self._check_version(connection)
            for table in TABLES.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(CreateIndex(index, if_not_exists=True))
            if version < SCHEMA_VERSION:
                add_missing_columns(connection)
                connection.execute(update(schema).values(version=SCHEMA_VERSION))
            connection.execute(delete(clusters).where(clusters.c.cluster == self._cluster))
            connection.execute(insert(clusters).values(cluster=self._cluster, retention_seconds=self._retention))

    def _check_version(self, connection: Connection) -> int:
        """The version of the tables that are there; that of new ones if there are none."""
        version: int | None = connection.scalar(select(schema.c.version))
        if version is None:
            connection.execute(insert(schema).values(version=SCHEMA_VERSION))
            return SCHEMA_VERSION
        if version > SCHEMA_VERSION:
            raise MillraceError(f"the history in {shown_url(self._url)} has tables of version {version}, and this Millrace "
                                f"supports up to version {SCHEMA_VERSION}: update Millrace, or name another database")
        return version

    def _unreachable(self, what: str, error: Exception) -> StoreUnreachable:
        if self._url.get_backend_name() == "sqlite":
            advice = "Check that its directory can be written to, or name another file"
        else:
            advice = "Check that the server runs there and accepts this user, or name another database"
        return StoreUnreachable(f"the history's database {shown_url(self._url)} {what}: {self._describe(error)}. {advice}")

    def _describe(self, error: Exception) -> str:
        """The error in one line, without the SQL statement, and without the password in case the driver repeats it."""
        cause = getattr(error, "orig", None) or error
        line = " ".join(str(cause).split())[:500]
        for secret in filter(None, (self._url.password, *secrets_in_query(self._url))):
            line = line.replace(str(secret), "***")
        return f"{type(cause).__name__}: {line}"


def _size(sample: WindowSample) -> int:
    return sum(len(load.tasks) + len(load.traffic) for load in sample.loads.values())
