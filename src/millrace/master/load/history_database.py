"""The database of the history: SQLite or PostgreSQL, by a SQLAlchemy url."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from millrace.errors import BadParameter, MillraceError

CONNECT_SECONDS = 5
SILENT_SECONDS = 30  # after which a server that does not answer counts as unreachable
SQLITE_LOCK_SECONDS = 10  # maximum wait for another master's transaction
INSTALL_POSTGRES = "pip install millrace[postgres]"


def parsed(url: str) -> URL:
    try:
        made = make_url(url)
    except (exc.ArgumentError, ValueError):  # their messages may contain the url, and so the password
        raise BadParameter("the history's url is not valid: write sqlite:////absolute/path/history.db or "
                           "postgresql+psycopg://user:password@host/database") from None
    backend = made.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise BadParameter(f"the history cannot be kept in {backend!r}: write sqlite:////absolute/path/history.db or "
                           "postgresql+psycopg://user:password@host/database")
    if backend == "sqlite" and (not made.database or made.database.startswith((":memory:", "file:"))):
        raise BadParameter(f"the history outlives the master, and {shown_url(made)!r} does not name a file: write "
                           "sqlite:////absolute/path/history.db")
    return made.set(drivername="postgresql+psycopg") if made.drivername == "postgresql" else made


def secrets_in_query(url: URL) -> list[str]:
    return [str(value) for name, value in url.query.items() if "password" in name.lower()]


def shown_url(url: URL) -> str:
    """The url without any password."""
    hidden = [name for name in url.query if "password" in name.lower()]
    return url.difference_update_query(hidden).render_as_string(hide_password=True)


def engine_for(url: URL) -> Engine:
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        arguments = {"timeout": SQLITE_LOCK_SECONDS}
    elif url.get_driver_name() in ("psycopg", "psycopg2"):  # a host that vanished must not block the writer forever
        limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": SILENT_SECONDS * 1000,
                  "keepalives_idle": SILENT_SECONDS, "application_name": "millrace"}
        arguments = {name: value for name, value in limits.items() if name not in url.query}
    try:
        engine = create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)
    except ModuleNotFoundError as error:
        raise MillraceError(f"the history's database {shown_url(url)} needs the Python package {error.name!r}, which is not "
                            f"installed: {INSTALL_POSTGRES}") from error
    except exc.NoSuchModuleError:
        raise BadParameter(f"SQLAlchemy knows no driver {url.drivername!r}: write sqlite:////absolute/path/history.db or "
                           "postgresql+psycopg://user:password@host/database") from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begin)
    return engine


def _sqlite_connected(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions late, and none before a CREATE
    with contextlib.suppress(sqlite3.OperationalError):  # locked: another master is switching it on
        connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last windows, never the file


def _sqlite_begin(connection: Connection) -> None:
    # A transaction that reads first and writes later is refused if another wrote in between: take the lock at the start.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def concerns_the_data(error: Exception) -> bool:
    """True if a healthy database would refuse the same rows again."""
    if isinstance(error, exc.DBAPIError):
        return isinstance(error, exc.DataError | exc.IntegrityError)
    return isinstance(error, exc.StatementError) or not isinstance(error, exc.SQLAlchemyError | MillraceError | OSError)
