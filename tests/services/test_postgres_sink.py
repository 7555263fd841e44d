"""The SQL sink in a real PostgreSQL: staged rows have the same values as rows written directly."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import sqlalchemy as sa
from recording import attach, rows

from millrace.connectors.sql import SqlSink
from support.servers.postgres import PostgresServer

COLUMNS = {
    "b": "boolean", "i": "bigint", "n": "numeric", "s": "text", "y": "bytea", "d": "date", "t": "time", "tz": "timetz",
    "ts": "timestamp", "tstz": "timestamptz", "span": "interval", "id": "uuid", "js": "jsonb", "ints": "bigint[]",
    "days": "date[]", "words": "text[]"}
UTC = datetime.UTC
VALUES: list[Any] = [
    True, 2**40, decimal.Decimal("1.50"), "x", b"y\xff\x00", datetime.date(2024, 1, 2), datetime.time(3, 4, 5, 6),
    datetime.time(3, 4, 5, tzinfo=UTC), datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.datetime(2024, 1, 2, tzinfo=UTC),
    datetime.timedelta(-1, 5, 7), uuid.UUID(int=2**100 + 7), {"a": (1, 2), "b": [None]}, [1, 2], [datetime.date(2024, 1, 2)],
    ("a", "b")]


def test_staged_values_are_written_as_direct_ones(postgres_server: PostgresServer) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    for table in ("direct", "staged"):
        postgres_server.execute(f"drop table if exists {table}")
        postgres_server.execute(f"create table {table} ({columns})")
        sink, _ = attach(SqlSink, {"url": postgres_server.url, "table": table}, exactly_once=table == "staged", epoch=1)
        sink.process_rows(rows(" ".join(COLUMNS), [VALUES, [None] * len(VALUES)]))
        if table == "staged":
            sink.prepare(1)
            sink.commit(1)
        sink.close()
    engine = sa.create_engine(postgres_server.url)
    with engine.connect() as connection:
        direct, staged = (connection.execute(sa.text(f"select t::text from {table} t")).all() for table in ("direct", "staged"))
    engine.dispose()
    assert len(staged) == 2 and staged == direct
