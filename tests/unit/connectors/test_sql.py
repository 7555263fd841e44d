from __future__ import annotations

import datetime
import decimal
import enum
import json
import sqlite3
import sys
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import attach, rows

from millrace.connectors.sql import SqlSink
from millrace.connectors.staged_rows import decode_part, encode_part
from millrace.errors import EncodingError, TopologyError
from support.examples import examples


@pytest.fixture
def database(tmp_path):
    return tmp_path / "test.db"


def sink(database, table="words", **kwargs):
    return attach(SqlSink, {"url": f"sqlite:///{database}", "table": table}, **kwargs)[0]


def read(database, query="select * from words"):
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_makes_the_table_and_commits_each_chunk(database):
    bolt = sink(database)
    bolt.process_rows(rows("word count", [["tea", 1], ["fish", 2]]))
    assert read(database) == [("tea", 1), ("fish", 2)]
    bolt.process_rows([])
    bolt.process_rows(rows("word count", [["tea", 2**40]]))
    bolt.close()
    assert read(database)[-1] == ("tea", 2**40)


def test_column_types_come_from_the_first_value_that_is_not_none(database):
    bolt = sink(database)
    values = [True, 1, 1.5, "x", b"y", datetime.datetime(2024, 1, 2), datetime.date(2024, 1, 2), decimal.Decimal("1.5"),
              [1, {"a": 2}], None]
    names = "b i f s y dt d n j nothing"
    bolt.process_rows(rows(names, [[None] * 10, values]))
    types = {name: kind for _, name, kind, *_ in read(database, "pragma table_info(words)")}
    assert types == {"b": "BOOLEAN", "i": "BIGINT", "f": "DOUBLE", "s": "TEXT", "y": "BLOB", "dt": "DATETIME",
                     "d": "DATE", "n": "NUMERIC", "j": "JSON", "nothing": "TEXT"}
    assert read(database, "select i, s, y, \"nothing\" from words") == [(None, None, None, None), (1, "x", b"y", None)]


def test_two_tasks_write_to_one_table(database):
    first, second = sink(database), sink(database, task_index=1)
    first.process_rows(rows("word", [["a"]]))
    second.process_rows(rows("word", [["b"]]))
    first.process_rows(rows("word", [["c"]]))
    assert read(database) == [("a",), ("b",), ("c",)]


def test_another_task_may_make_the_table_first(database, monkeypatch):
    second = sink(database)
    looks = iter([False, True])
    sink(database).process_rows(rows("word", [["a"]]))
    monkeypatch.setattr(second, "_exists", lambda: next(looks))
    second.process_rows(rows("word", [["b"]]))
    assert read(database) == [("a",), ("b",)]


def test_a_chunk_that_fails_leaves_nothing(database):
    connection = sqlite3.connect(database)
    connection.execute("create table words (word text unique)")
    connection.close()
    bolt = sink(database)
    with pytest.raises(Exception, match="UNIQUE"):
        bolt.process_rows(rows("word", [["a"], ["a"]]))
    assert read(database) == []
    bolt.process_rows(rows("word", [["a"]]))
    assert read(database) == [("a",)]


def test_a_table_that_does_not_fit_is_named(database):
    connection = sqlite3.connect(database)
    connection.execute("create table words (word text)")
    connection.close()
    with pytest.raises(TopologyError, match=r"'words' has no column for count \(it has word\)"):
        sink(database).process_rows(rows("word count", [["a", 1]]))


def test_clear_errors(database, monkeypatch):
    with pytest.raises(TopologyError, match="needs the setting 'table'"):
        attach(SqlSink, {"url": f"sqlite:///{database}"})
    with pytest.raises(TopologyError, match="does not open a database"):
        attach(SqlSink, {"url": "what is this", "table": "t"})
    with pytest.raises(TopologyError, match="no column type for field 'word' of type complex"):
        sink(database).process_rows(rows("word", [[1j]]))
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(TopologyError, match=r"pip install millrace\[sql\]"):
        sink(database)


# ---- exactly once; what all two-phase sinks keep is in tests/conformance ----


def test_staged_values_keep_their_types(database):
    values = [True, 2**40, 1.5, "x", b"y\xff\x00", datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.date(2024, 1, 2),
              decimal.Decimal("1.50"), (1, {"a": (2, 3)}), None]
    names = "b i f s y dt d n j nothing"
    direct, staged = sink(database, "direct"), sink(database, "staged", exactly_once=True)
    for bolt in (direct, staged):
        bolt.process_rows(rows(names, [[None] * 10, values]))
    assert read(database, "select * from staged") == []
    staged.prepare(1)
    staged.commit(1)
    assert read(database, "select * from staged") == read(database, "select * from direct")
    assert read(database, "select task, epoch, part, wave from millrace_staged") == [(0, -1, 0, 1)]  # the wave published last
    assert read(database, "pragma table_info(staged)") == read(database, "pragma table_info(direct)")


SUMMER = datetime.timezone(datetime.timedelta(hours=2))


plain = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False), st.binary(), st.dates(),
                  st.datetimes(), st.datetimes(timezones=st.just(SUMMER)), st.decimals(allow_nan=False), st.times(),
                  st.times(timezones=st.just(SUMMER)), st.timedeltas(), st.uuids())
keys = st.text() | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.none()
anything = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
                        | st.dictionaries(keys, inner, max_size=3), max_leaves=6)


def typed(value):
    """Return the value with its types, which == ignores."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    return type(value), value


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(anything, plain), max_size=4))
def test_parts_come_back_as_they_were(values):
    names, decoded = decode_part(encode_part("sink", ("a", "b"), values))
    assert names == ("a", "b")
    assert typed(decoded) == typed([list(row) for row in values])


class Text(str):
    __slots__ = ()


class Weekday(enum.IntEnum):
    MONDAY = 1


@pytest.mark.parametrize("value, expected", [(Text("x"), "x"), (Weekday.MONDAY, 1), (bytearray(b"x"), b"x"),
                                          (memoryview(b"x"), b"x"), (rows("a b", [[1, 2]])[0], (1, 2))])
def test_values_that_a_database_treats_as_plain_come_back_plain(value, expected):
    [[came]] = decode_part(encode_part("sink", ("a",), [[value]]))[1]
    assert typed(came) == typed(expected)


@pytest.mark.parametrize("value, what", [
    ({1}, "a value of type set"), ([{"a": {1}}], "a value of type set"), (1j, "a value of type complex"),
    (({b"a": 1},), "a dict with the key b'a'"), ({2**70: 1}, "a dict with the key"),
    (datetime.time(1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), "a time of day in Europe/Berlin"),
    ("half \ud83d", "lone surrogate"), (["half \ud83d"], "lone surrogate"),
    (("half \ud83d",), "lone surrogate")])
def test_a_row_that_cannot_be_staged_is_refused_before_staging(database, value, what):
    """The engine then passes each row alone, and valid rows are staged once."""
    connection = sqlite3.connect(database)
    connection.execute("create table words (word text, more text)")
    connection.close()
    bolt = sink(database, exactly_once=True)
    with pytest.raises(EncodingError, match=rf"under-test: .*{what}.*\. Emit "):
        bolt.process_rows(rows("word more", [["a", "b"], ["c", value], ["d", "e"]]))
    assert read(database, "select * from millrace_staged") == []
    bolt.process_rows(rows("word more", [["a", "b"]]))
    bolt.prepare(1)
    bolt.commit(1)
    assert read(database) == [("a", "b")]


def create(database, statement):
    connection = sqlite3.connect(database)
    connection.execute(statement)
    connection.close()


def test_rows_that_the_table_refuses_go_to_the_table_of_rejects_and_the_others_are_committed(database):
    create(database, "create table words (word text unique, day date, count bigint check (count > 0))")
    bolt = sink(database, exactly_once=True)
    day = datetime.date(2024, 1, 2)
    bolt.process_rows(rows("word day count", [["a", day, 1]]))
    bolt.process_rows(rows("word day count", [["b", day, 1], ["a", None, 2], ["c", "someday", 1],
                                              ["d", day, -1], ["e", day, 2**70], ["f", day, 1],
                                              ["g", day, decimal.Decimal(2)]]))
    bolt.prepare(1)
    bolt.commit(1)
    bolt.commit(1)
    assert read(database, "select word from words") == [("a",), ("b",), ("f",)]
    rejected = read(database, "select topology, sink, task, target, data, error from millrace_rejected")
    assert {row[:4] for row in rejected} == {("test", "under-test", 0, "words")}
    assert [json.loads(row[4]) for row in rejected] == [
        {"word": "a", "day": None, "count": 2}, {"word": "c", "day": "someday", "count": 1},
        {"word": "d", "day": "2024-01-02", "count": -1}, {"word": "e", "day": "2024-01-02", "count": 2**70},
        {"word": "g", "day": "2024-01-02", "count": "2"}]
    expectations = ["UNIQUE", "only accepts Python date", "CHECK", "too large", "not supported"]
    for (*_, error), expected in zip(rejected, expectations, strict=True):
        assert expected in error
    assert bolt.metrics == [("rejected", 5)]
    assert read(database, "select count(*) from millrace_staged where epoch >= 0") == [(0,)]


def test_the_table_of_rejects_may_have_another_name(database):
    create(database, "create table words (word text unique)")
    url = f"sqlite:///{database}"
    bolt, _ = attach(SqlSink, {"url": url, "table": "words", "rejects": "bad words"}, exactly_once=True)
    bolt.process_rows(rows("word", [["a"], ["a"]]))
    bolt.prepare(1)
    bolt.commit(1)
    assert len(read(database)) == len(read(database, 'select * from "bad words"')) == 1


def test_rejects_are_committed_with_the_other_rows_or_not_at_all(database, monkeypatch):
    create(database, "create table words (word text unique)")
    bolt = sink(database, exactly_once=True)
    bolt.process_rows(rows("word", [["a"], ["a"], ["b"]]))
    bolt.prepare(1)
    rejects = bolt.staging._rejects
    add = rejects.add

    def add_and_fail(*arguments):
        add(*arguments)
        raise OSError("the connection breaks")

    with monkeypatch.context() as patch:
        patch.setattr(rejects, "add", add_and_fail)
        with pytest.raises(OSError, match="breaks"):
            bolt.commit(1)
    assert read(database) == read(database, "select * from millrace_rejected") == [] and bolt.metrics == []
    bolt.commit(1)
    assert read(database) == [("a",), ("b",)]
    assert len(read(database, "select * from millrace_rejected")) == 1 and bolt.metrics == [("rejected", 1)]


def test_a_table_that_is_gone_is_no_reason_to_reject_rows(database):
    bolt = sink(database, exactly_once=True)
    bolt.process_rows(rows("word", [["a"]]))
    bolt.prepare(1)
    create(database, "drop table words")
    with pytest.raises(Exception, match="no such table"):
        bolt.commit(1)
    assert len(read(database, "select * from millrace_staged")) == 1
    create(database, "create table words (word text)")
    bolt.commit(1)
    assert read(database) == [("a",)]


def test_errors_do_not_show_the_rows(database):
    create(database, "create table words (word text check (length(word) < 3))")
    bolt = sink(database)
    with pytest.raises(Exception, match="CHECK") as caught:
        bolt.process_rows(rows("word", [["secret"]]))
    assert "secret" not in str(caught.value)


def test_a_table_that_does_not_fit_is_named_before_anything_is_staged(database):
    connection = sqlite3.connect(database)
    connection.execute("create table words (word text)")
    connection.close()
    bolt = sink(database, exactly_once=True)
    with pytest.raises(TopologyError, match="has no column for count"):
        bolt.process_rows(rows("word count", [["a", 1]]))
    assert read(database, "select * from millrace_staged") == []


def test_a_database_without_returning_is_refused(database, monkeypatch):
    from sqlalchemy.dialects.sqlite.base import SQLiteDialect

    monkeypatch.setattr(SQLiteDialect, "delete_returning", False)
    with pytest.raises(TopologyError, match=r"exactly-once needs a database with DELETE \.\.\. RETURNING.*is sqlite"):
        sink(database, exactly_once=True)
    sink(database)
