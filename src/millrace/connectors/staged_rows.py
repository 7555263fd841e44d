"""Stages rows in a table of the target database and moves them to their own table in one transaction."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from millrace.api.component import Component
from millrace.connectors.rejected_rows import RejectedRows
from millrace.connectors.staging import Staging, gone, staged_name
from millrace.errors import EncodingError, TopologyError
from millrace.runtime.wire.bodies import encode_rows
from millrace.state.packing import BIG_INT

TABLE = "millrace_staged"
PUBLISHED = -1  # in place of an epoch
# msgpack extension codes for types that a database has and msgpack lacks; 1 is used by the wire format
_DATETIME, _DATE, _DECIMAL, _TIME, _TIMEDELTA, _UUID, _TUPLE = range(2, 9)
_PLAIN = {bool, int, float, str, bytes, type(None)}

Insert = Callable[[Any, tuple[str, ...], list[Any]], None]  # connection, field names, rows
MakeReady = Callable[[tuple[str, ...], list[Any]], None]


class StagedRows(Staging):
    """A row of `millrace_staged` is a chunk: a *part*, numbered within its task and epoch. `wave` is null while it is open. One
    row of each task, with the epoch `PUBLISHED`, has the wave published last, and its epoch as the part.

    `make_ready` creates the target table if necessary, `insert` writes rows to it in a transaction, and `rejects` gets the
    rows that it refuses.
    """

    def __init__(self, sql: Any, engine: Any, owner: Component, make_ready: MakeReady, insert: Insert,
                 rejects: RejectedRows) -> None:
        if not engine.dialect.delete_returning:
            raise TopologyError(f"{owner.component_name}: exactly-once needs a database with DELETE ... RETURNING, such "
                                f"as PostgreSQL, SQLite 3.35 or MariaDB; this one is {engine.dialect.name}. Use another one, "
                                "or run the topology at-least-once.")
        self._sql, self._engine, self._owner, self._make_ready, self._insert = sql, engine, owner, make_ready, insert
        self._rejects = rejects
        self._sink = staged_name(owner)
        self._table = self._described()
        self._create()
        self._span: tuple[int, int] | None = None  # the first open part and the next one; None: read them first

    def add(self, names: tuple[str, ...], rows: list[Any]) -> None:
        """Stages one chunk, or nothing if it raises. A failed chunk may be in the table nevertheless: the next one replaces
        it."""
        data = encode_part(self._owner.component_name, names, rows)
        first, following = self._open_parts()
        with self._engine.begin() as connection:
            self._drop_doubtful(connection, following)
            connection.execute(self._table.insert(), [{
                "sink": self._sink, "task": self._owner.task_index, "epoch": self._owner.epoch, "part": following,
                "wave": None, "data": data}])
        self._span = first, following + 1

    def prepare(self, wave: int) -> list[str]:
        first, following = self._open_parts()
        with self._engine.begin() as connection:
            self._drop_doubtful(connection, following)
            # By number and not by wave: a failed call may have been carried out.
            mine = self._of(self._owner.task_index, self._owner.epoch) & (self._table.c.part >= first)
            marked = connection.execute(self._table.update().where(mine).values(wave=wave)).rowcount
            if marked != following - first:
                raise gone(self._owner, f"table {TABLE}")
            columns = self._table.c
            prepared = self._of(self._owner.task_index, self._owner.epoch) & columns.wave.is_not(None)
            lowest = connection.execute(self._sql.select(self._sql.func.min(columns.part)).where(prepared)).scalar_one()
        self._span = following, following
        return [] if lowest is None else [f"parts {lowest} to {following - 1}"]

    def missing(self, task: int, epoch: int, wave: int, tokens: Sequence[str]) -> list[str]:
        columns = self._table.c
        with self._engine.connect() as connection:
            note = connection.execute(self._sql.select(columns.part, columns.wave).where(self._of(task, PUBLISHED))).first()
            if note is not None and tuple(note) >= (epoch, wave):
                return []
            staged = set(connection.execute(self._sql.select(columns.part).where(self._of(task, epoch))).scalars())
        return [token for token in tokens if not staged.issuperset(_parts(token))]

    def publish(self, task: int, epoch: int, wave: int) -> None:
        table = self._table
        prepared = self._of(task, epoch) & (table.c.wave <= wave)
        with self._engine.connect() as connection:
            parts = connection.execute(self._sql.select(table.c.part).where(prepared).order_by(table.c.part)).scalars().all()
            sample = parts and connection.execute(self._sql.select(table.c.data).where(prepared & (table.c.part == parts[0])))
            sample = sample and sample.scalar_one_or_none()
        if not sample:
            return  # nothing is staged, or another incarnation has published it
        self._make_ready(*decode_part(sample))  # outside the transaction, which would block it
        try:
            self._move(task, epoch, wave, parts, self._insert)
        except Exception as error:
            if not self._rejects.refuses(error):
                raise
            self._rejects.create()  # outside the transaction as well
            refusals: list[Exception] = []
            self._move(task, epoch, wave, parts, partial(self._insert_or_reject, refusals))
            self._rejects.report(len(refusals))

    def _move(self, task: int, epoch: int, wave: int, parts: list[int], insert: Insert) -> None:
        """Move these parts to the target table, in one transaction, and note that the wave is published."""
        table = self._table
        with self._engine.begin() as connection:
            is_published = False
            for part in parts:
                taken = table.delete().where(self._of(task, epoch) & (table.c.part == part)).returning(table.c.data)
                data = connection.execute(taken).scalar_one_or_none()
                if data is not None:
                    insert(connection, *decode_part(data))
                    is_published = True
            if is_published:  # else another incarnation has published it, and noted that
                connection.execute(table.delete().where(self._of(task, PUBLISHED)))
                connection.execute(table.insert(), [{"sink": self._sink, "task": task, "epoch": PUBLISHED, "part": epoch,
                                                     "wave": wave, "data": b""}])

    def _insert_or_reject(self, refusals: list[Exception], connection: Any, names: tuple[str, ...], rows: list[Any]) -> None:
        if self._refusal(connection, names, rows) is None:
            return
        for row in rows:
            error = self._refusal(connection, names, [row])
            if error is not None:
                self._rejects.add(connection, names, row, error)
                refusals.append(error)

    def _refusal(self, connection: Any, names: tuple[str, ...], rows: list[Any]) -> Exception | None:
        """Insert the rows. If the table refuses them, insert none and return its error."""
        try:
            with connection.begin_nested():
                self._insert(connection, names, rows)
        except Exception as error:
            if not self._rejects.refuses(error):
                raise
            return error
        return None

    def discard(self, task: int, epoch: int) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._table.delete().where(self._of(task, epoch)))

    def staged(self) -> list[tuple[int, int]]:
        columns = self._table.c
        with self._engine.connect() as connection:
            mine = (columns.sink == self._sink) & (columns.epoch != PUBLISHED)
            query = self._sql.select(columns.task, columns.epoch).where(mine).distinct()
            return [(task, epoch) for task, epoch in connection.execute(query)]

    def close(self) -> None:
        """Does nothing: the sink closes the engine."""

    def _open_parts(self) -> tuple[int, int]:
        if self._span is None:
            part, mine = self._table.c.part, self._of(self._owner.task_index, self._owner.epoch)
            with self._engine.connect() as connection:
                last = connection.execute(self._sql.select(self._sql.func.max(part)).where(mine)).scalar_one()
                first = connection.execute(self._sql.select(self._sql.func.min(part)).where(
                    mine & self._table.c.wave.is_(None))).scalar_one()
            following = 0 if last is None else last + 1
            self._span = following if first is None else first, following
        return self._span

    def _drop_doubtful(self, connection: Any, following: int) -> None:
        mine = self._of(self._owner.task_index, self._owner.epoch)
        connection.execute(self._table.delete().where(mine & (self._table.c.part >= following)))

    def _of(self, task: int, epoch: int) -> Any:
        columns = self._table.c
        return (columns.sink == self._sink) & (columns.task == task) & (columns.epoch == epoch)

    def _described(self) -> Any:
        sql = self._sql
        return sql.Table(
            TABLE, sql.MetaData(),
            sql.Column("sink", sql.String(500), primary_key=True),
            sql.Column("task", sql.BigInteger, primary_key=True, autoincrement=False),
            sql.Column("epoch", sql.BigInteger, primary_key=True, autoincrement=False),
            sql.Column("part", sql.BigInteger, primary_key=True, autoincrement=False),
            sql.Column("wave", sql.BigInteger),
            sql.Column("data", sql.LargeBinary, nullable=False))

    def _create(self) -> None:
        try:
            self._table.create(self._engine, checkfirst=True)
        except self._sql.exc.DBAPIError:
            if not self._sql.inspect(self._engine).has_table(TABLE):  # else another task created it
                raise


def _parts(token: str) -> range:
    """The parts that a token of `prepare` names."""
    _, first, _, last = token.split()
    return range(int(first), int(last) + 1)


def encode_part(component: str, names: tuple[str, ...], rows: list[Any]) -> bytes:
    """Encodes field names and rows so that a database treats the decoded values like the originals. EncodingError for a value
    that cannot be encoded."""
    try:
        return encode_rows([list(names), [
            [value if type(value) in _PLAIN else _named(component, names[i], value) for i, value in enumerate(row)]
            for row in rows]])
    except UnicodeEncodeError as error:
        raise EncodingError(f"{component}: a string cannot be staged because it contains a lone surrogate, which databases do "
                            f"not accept: {error.object[error.start : error.end]!r} in {error.object[:50]!r}. Emit valid "
                            "Unicode, or bytes") from None


def decode_part(data: bytes) -> tuple[tuple[str, ...], list[Any]]:
    names, rows = _decode(data)
    return tuple(names), rows


def _named(component: str, field: str, value: Any) -> Any:
    try:
        return _wrapped(value)
    except EncodingError as error:
        raise EncodingError(f"{component}: field {field!r} cannot be staged for an exactly-once commit: {error}. Emit numbers, "
                            "strings, bytes, dates, times, UUIDs, and lists, tuples or dicts of these") from None


def _wrapped(value: Any) -> Any:
    """The value for msgpack, with an extension for each type that msgpack lacks. An instance of a subclass becomes one of its
    base type, as in a database."""
    if type(value) in _PLAIN:
        return value
    for kind, wrap in _WRAPPERS:
        if isinstance(value, kind):
            return wrap(value)
    raise EncodingError(f"it has a value of type {type(value).__name__}")


def _wrapped_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    for key in value:
        if not isinstance(key, str | int | float | None) or (isinstance(key, int) and not -(2**63) <= key < 2**64):
            raise EncodingError(f"it has a dict with the key {key!r}; use strings as keys, as in JSON")
    return {_wrapped(key): _wrapped(item) for key, item in value.items()}


def _wrapped_time(value: datetime.time) -> msgspec.msgpack.Ext:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise EncodingError(f"it has a time of day in {value.tzinfo}, which has no fixed offset")
    return _text(_TIME, value.isoformat())


def _text(code: int, text: str) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, text.encode())


_WRAPPERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (  # datetime is a date: the order matters
    (datetime.datetime, lambda value: _text(_DATETIME, value.isoformat())),
    (datetime.date, lambda value: _text(_DATE, value.isoformat())),
    (datetime.time, _wrapped_time),
    (datetime.timedelta, lambda value: _text(_TIMEDELTA, f"{value.days} {value.seconds} {value.microseconds}")),
    (decimal.Decimal, lambda value: _text(_DECIMAL, str(value))),
    (uuid.UUID, lambda value: msgspec.msgpack.Ext(_UUID, value.bytes)),
    (list, lambda value: [_wrapped(item) for item in value]),
    (tuple, lambda value: msgspec.msgpack.Ext(_TUPLE, encode_rows([_wrapped(item) for item in value]))),
    (dict, _wrapped_dict),
    (int, int.__index__),
    (float, float.__float__),
    (str, str.__str__),
    ((bytes, bytearray, memoryview), bytes),
)


def _unwrapped(code: int, data: memoryview) -> Any:
    if code == BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _TUPLE:
        return tuple(_decode(data))
    if code == _UUID:
        return uuid.UUID(bytes=bytes(data))
    text = str(data, "utf-8")
    if code == _TIMEDELTA:
        return datetime.timedelta(*map(int, text.split()))
    read = _READERS.get(code)
    if read is None:
        raise ValueError(f"unknown extension {code}")
    return read(text)


_READERS: dict[int, Callable[[str], Any]] = {
    _DATETIME: datetime.datetime.fromisoformat, _DATE: datetime.date.fromisoformat, _TIME: datetime.time.fromisoformat,
    _DECIMAL: decimal.Decimal}
_decode = msgspec.msgpack.Decoder(ext_hook=_unwrapped).decode
