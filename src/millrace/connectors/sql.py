"""A sink for any database that SQLAlchemy supports."""

from __future__ import annotations

import datetime
import decimal
from typing import Any, ClassVar

from millrace.connectors.rejected_rows import REJECTS, RejectedRows
from millrace.connectors.settings import optional_module, setting
from millrace.connectors.sinks import field_names
from millrace.connectors.staged_rows import StagedRows
from millrace.connectors.staging import StagedSink
from millrace.errors import TopologyError

SQLITE_LOCK_SECONDS = 30  # wait for another writer's transaction


class SqlSink(StagedSink):
    """Inserts each row; the stream's field names are the columns. One transaction for each chunk.

    | config | meaning |
    | --- | --- |
    | `url` | SQLAlchemy's, e.g. `sqlite:////data/words.db` or `postgresql+psycopg://user:password@host/database` |
    | `table` | its name; created from the types of the first rows if it does not exist |
    | `rejects` | exactly-once: the table for rows that `table` refuses (default `millrace_rejected`), created when needed |

    `process_rows` returns when the transaction is committed. A chunk that is sent again after a failure is inserted again:
    create the table yourself, with a unique key, if that matters.

    In an exactly-once topology rows wait in the table `millrace_staged` of the same database, and the commit of a wave moves
    all rows of a task in one transaction. The target table is checked, and created, when the first rows arrive; but a row that
    it refuses (a wrong type, a duplicate key) is only noticed at the commit. It is then moved to the table of rejects, as JSON
    and with the error, in the same transaction as the other rows; the metric `rejected` counts such rows. For PostgreSQL,
    SQLite and other databases with DELETE ... RETURNING. Two topologies with the same name must not write to the same
    database: each would treat the other's staged rows as its own.
    """

    blocking: ClassVar[bool] = True
    staging: StagedRows | None = None

    def __init__(self) -> None:
        super().__init__()
        self._engine: Any = None
        self._table: Any = None
        self._table_name = ""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._sql = optional_module("sqlalchemy", "sql", self)
        url = setting(self, storm_conf, "url", str)
        self._table_name = setting(self, storm_conf, "table", str)
        try:
            parsed = self._sql.engine.make_url(url)
            waits = {"connect_args": {"timeout": SQLITE_LOCK_SECONDS}} if parsed.get_backend_name() == "sqlite" else {}
            self._engine = self._sql.create_engine(parsed, pool_pre_ping=True, hide_parameters=True, **waits)
        except (self._sql.exc.ArgumentError, ModuleNotFoundError) as error:
            raise TopologyError(f"{self.component_name}: the setting 'url' does not open a database: {error}. Set an "
                                "SQLAlchemy url, and install the driver it names.") from error
        if self.exactly_once:
            rejects = RejectedRows(self._sql, self._engine, self, setting(self, storm_conf, "rejects", str, REJECTS),
                                   self._table_name)
            self.staging = StagedRows(self._sql, self._engine, self, self._make_ready, self._insert, rejects)

    def process_rows(self, rows: list[Any]) -> None:
        if not rows:
            return
        names = field_names(rows[0])
        self._make_ready(names, rows)
        if self.staging is not None:
            self.staging.add(names, rows)
            return
        with self._engine.begin() as connection:
            self._insert(connection, names, rows)

    def close(self) -> None:
        super().close()
        if self._engine is not None:
            self._engine.dispose()

    def _make_ready(self, names: tuple[str, ...], rows: list[Any]) -> None:
        if self._table is None:
            self._table = self._find_or_make(names, rows)

    def _insert(self, connection: Any, names: tuple[str, ...], rows: list[Any]) -> None:
        connection.execute(self._table.insert(), [dict(zip(names, row, strict=True)) for row in rows])

    def _find_or_make(self, names: tuple[str, ...], rows: list[Any]) -> Any:
        if not self._exists():
            samples = [next((row[i] for row in rows if row[i] is not None), None) for i in range(len(names))]
            types = [self._column_type(name, sample) for name, sample in zip(names, samples, strict=True)]
            try:
                self._described(names, types).create(self._engine)
            except self._sql.exc.DBAPIError:
                if not self._exists():  # else another task created it
                    raise
        columns = self._sql.Table(self._table_name, self._sql.MetaData(), autoload_with=self._engine).columns
        if missing := [name for name in names if name not in columns]:
            raise TopologyError(f"{self.component_name}: table {self._table_name!r} has no column for "
                                f"{', '.join(missing)} (it has {', '.join(columns.keys())}). Add them, or name "
                                "another table.")
        return self._described(names, [columns[name].type for name in names])

    def _described(self, names: tuple[str, ...], types: list[Any]) -> Any:
        # Field names are quoted, because they may be reserved words; not if unquoted names are folded to upper case
        # (Oracle), because there a quoted one would be another column.
        quote = None if self._engine.dialect.requires_name_normalize else True
        columns = [self._sql.Column(name, kind, quote=quote) for name, kind in zip(names, types, strict=True)]
        return self._sql.Table(self._table_name, self._sql.MetaData(), *columns)

    def _exists(self) -> bool:
        return bool(self._sql.inspect(self._engine).has_table(self._table_name))

    def _column_type(self, name: str, sample: Any) -> Any:
        sql = self._sql
        kinds = ((bool, sql.Boolean), (int, sql.BigInteger), (float, sql.Double), (str, sql.Text),
                 (bytes, sql.LargeBinary), (datetime.datetime, sql.DateTime), (datetime.date, sql.Date),
                 (decimal.Decimal, sql.Numeric), (list | tuple | dict, sql.JSON), (type(None), sql.Text))
        for kind, column in kinds:  # bool is an int and datetime a date: the order matters
            if isinstance(sample, kind):
                return column()
        raise TopologyError(f"{self.component_name}: no column type for field {name!r} of type "
                            f"{type(sample).__name__}. Create table {self._table_name!r} yourself, or emit a plain "
                            "value.")
