"""Rows that a table refuses, kept in another table of the same database."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

from millrace.api.component import Component

REJECTS = "millrace_rejected"
# Dialects whose drivers raise a ProgrammingError without an SQLSTATE only for a value that they cannot send.
_CHECKED_BY_DRIVER = ("sqlite", "postgresql")


class RejectedRows:
    """The table of rejects: the row as JSON, the error of the database, and the time. Created when it is needed first."""

    def __init__(self, sql: Any, engine: Any, owner: Component, name: str, target: str) -> None:
        self._sql, self._engine, self._owner, self.name, self._target = sql, engine, owner, name, target
        self.count = 0  # rejected by this instance
        self._table = sql.Table(
            name, sql.MetaData(),
            sql.Column("topology", sql.String(500), nullable=False), sql.Column("sink", sql.String(500), nullable=False),
            sql.Column("task", sql.BigInteger, nullable=False), sql.Column("target", sql.String(500), nullable=False),
            sql.Column("data", sql.Text, nullable=False), sql.Column("error", sql.Text, nullable=False),
            sql.Column("at", sql.DateTime(timezone=True), nullable=False))

    def create(self) -> None:
        try:
            self._table.create(self._engine, checkfirst=True)
        except self._sql.exc.DBAPIError:
            if not self._sql.inspect(self._engine).has_table(self.name):  # else another task created it
                raise

    def refuses(self, error: BaseException) -> bool:
        """True if the error is about the values of a row: trying again cannot help. An error of the server, of the connection
        or of a table that is missing is not."""
        exc = self._sql.exc
        if not isinstance(error, exc.DBAPIError):
            return isinstance(error, exc.StatementError | TypeError | ValueError | OverflowError)
        if error.connection_invalidated:
            return False
        if isinstance(error, exc.ProgrammingError | exc.InterfaceError):
            return self._engine.dialect.name in _CHECKED_BY_DRIVER and not _sqlstate(error.orig)
        return isinstance(error, exc.IntegrityError | exc.DataError)

    def add(self, connection: Any, names: tuple[str, ...], row: Any, error: BaseException) -> None:
        """Write a row into the table, in the transaction that publishes the others."""
        owner = self._owner
        connection.execute(self._table.insert(), [{
            "topology": owner.topology_name, "sink": owner.component_name, "task": owner.task_index, "target": self._target,
            "data": json.dumps(dict(zip(names, row, strict=True)), default=_plain),
            "error": str(getattr(error, "orig", None) or error).replace("\0", "\\0"),
            "at": datetime.datetime.now(datetime.UTC)}])

    def report(self, count: int) -> None:
        """Tell users of rows that were just rejected, after the commit."""
        if not count:  # another incarnation has published the same rows
            return
        self.count += count
        self._owner.report_metric("rejected", self.count)
        self._owner.logger.warning("table %s has refused %d rows: they are in table %s, with the errors", self._target, count,
                                   self.name)


def _sqlstate(error: Any) -> str | None:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
