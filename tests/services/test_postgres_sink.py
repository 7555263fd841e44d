"""The SQL sink in a real PostgreSQL: staged rows have the same values as rows written directly."""

from __future__ import annotations

import datetime
import decimal
import json
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


def test_refused_rows_are_rejected_in_the_transaction_that_publishes_the_others(postgres_server: PostgresServer) -> None:
    for table in ("strict", "strict_rejects"):
        postgres_server.execute(f"drop table if exists {table}")
    postgres_server.execute("create table strict (id bigint primary key, word varchar(3) not null)")
    config = {"url": postgres_server.url, "table": "strict", "rejects": "strict_rejects"}
    sink, _ = attach(SqlSink, config, exactly_once=True, epoch=1)
    sink.process_rows(rows("id word", [[1, "a"], [2, "long"], [3, None], [1, "b"], [2**63, "c"], [4, "d"], [5, {"no": 1}],
                                       [6, "\0"]]))
    sink.prepare(1)
    sink.commit(1)
    sink.close()
    engine = sa.create_engine(postgres_server.url)
    with engine.connect() as connection:
        written = connection.execute(sa.text("select id, word from strict order by id")).all()
        rejected = connection.execute(sa.text("select data, error from strict_rejects")).all()
    engine.dispose()
    assert written == [(1, "a"), (4, "d")]
    assert [json.loads(data) for data, _ in rejected] == [
        {"id": 2, "word": "long"}, {"id": 3, "word": None}, {"id": 1, "word": "b"}, {"id": 2**63, "word": "c"},
        {"id": 5, "word": {"no": 1}}, {"id": 6, "word": "\0"}]
    assert all(error for _, error in rejected)
