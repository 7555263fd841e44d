"""Keyed state of a checkpoint as rows, read through the calls that Spark makes, without Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from millrace import Bolt, CounterState, ListState, State, Typed
from millrace.api.grouping import stable_hash
from millrace.errors import MillraceError, StoreUnreachable, UnknownName
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.sources import state as state_source
from millrace.spark.sources.state import StateOptions, StateReader, as_text
from millrace.state.checkpoint import Manifest, TaskRecord, blob_name, pack
from millrace.state.task_state import open_states

GROUPS, TASKS = 8, 2
INT, LONG, TEXT = IntegerType(), LongType(), StringType()


def table(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


DEFAULT = table(key_group=INT, task=INT, key=TEXT, value=TEXT)


class Keeps(Bolt):
    counts = CounterState()
    pairs = State()
    passing = CounterState(ttl=60)
    typed = State(codec=Typed(set[str]))
    seen = ListState()


def write(root: Path, entries: dict[str, dict[Any, Any]], wave: int = 1, clock: float | None = None) -> None:
    """Write a checkpoint as two tasks would."""
    checkpoints = Checkpoints(open_store(str(root)), "kept")
    records = []
    for index in range(TASKS):
        bolt = Keeps()
        owned = range(index, GROUPS, TASKS)
        states = open_states(bolt, stable_hash, owned, GROUPS, f"keeps[{index}]", lambda: clock or time.time())
        assert states is not None
        for name, values in entries.items():
            for key, value in values.items():
                if stable_hash(key) % GROUPS in owned:
                    getattr(bolt, name)[key] = value
        blob = blob_name("kept", "keeps", index, 1, wave)
        parts, refs = pack(states.snapshot(), blob)
        checkpoints.save(blob, parts)
        records.append(TaskRecord("keeps", index, {group: [ref] for group, ref in refs.items()}))
    checkpoints.commit(Manifest("kept", wave, 1, GROUPS, {"lines": 1, "keeps": TASKS}, records, time.time(), 1))


def rows(root: Path, state: str, schema: StructType = DEFAULT) -> list[tuple[Any, ...]]:
    reader = StateReader(StateOptions.of({"topology": "kept", "component": "keeps", "state": state, "store": str(root)}),
                         schema)
    return [tuple(row.values()) for partition in reader.partitions() for batch in reader.read(partition)
            for row in batch.to_pylist()]


def test_every_entry_with_its_group_and_task(tmp_path: Path) -> None:
    write(tmp_path, {"counts": {f"word {number}": number for number in range(50)}})
    entries = rows(tmp_path, "counts")
    assert {(key, value) for _, _, key, value in entries} == {(f"word {number}", str(number)) for number in range(50)}
    assert all(group == stable_hash(key) % GROUPS and task == group % TASKS for group, task, key, _ in entries)
    assert len(entries) == 50


def test_values_other_than_strings_are_json(tmp_path: Path) -> None:
    write(tmp_path, {"pairs": {("a", 1): {"x": [1, None, 2.5]}, 7: (True, b"\x00"), "none": None, "big": 2**80, "text": "t"},
                     "typed": {"set": {"one"}}})
    assert {key: value for _, _, key, value in rows(tmp_path, "pairs")} == {
        '["a",1]': '{"x":[1,null,2.5]}', "7": '[true,"AA=="]', "none": None, "big": f'"{2**80}"', "text": "t"}
    assert [row[2:] for row in rows(tmp_path, "typed")] == [("set", '["one"]')], "as its codec wrote it"


def test_columns_and_types_that_the_user_declares(tmp_path: Path) -> None:
    write(tmp_path, {"counts": {"a": 1, "b": 2}, "seen": {"a": [1, 2]}, "pairs": {"a": {"x": 1, "y": "z"}, ("b", "c"): None}})
    assert sorted(rows(tmp_path, "counts", table(value=LONG, key=TEXT))) == [(1, "a"), (2, "b")]
    assert sorted(rows(tmp_path, "counts", table(value=DoubleType()))) == [(1.0,), (2.0,)]
    assert rows(tmp_path, "seen", table(value=ArrayType(INT))) == [([1, 2],)]
    assert ({"x": 1, "y": "z"},) in rows(tmp_path, "pairs", table(value=table(x=INT, y=TEXT)))


@pytest.mark.parametrize(("schema", "message"), [
    (table(key=TEXT, value=ArrayType(INT)), r"kept\.keeps\.counts: column 'value' is declared array<int>, but 5 "
     r"\(int\) does not fit"),
    (table(key=LONG), "column 'key' is declared bigint, but 'a' .str. does not fit"),
    (table(word=TEXT), "has word, but the columns of a state are key_group, task, key, value"),
    (table(key_group=TEXT), "key_group is declared string; declare it int or long"),
])
def test_a_schema_that_does_not_fit_is_refused(tmp_path: Path, schema: StructType, message: str) -> None:
    write(tmp_path, {"counts": {"a": 5}})
    with pytest.raises(MillraceError, match=message):
        rows(tmp_path, "counts", schema)


def test_expired_entries_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"passing": {"long gone": 1}}, clock=time.time() - 120)
    assert rows(tmp_path, "passing") == []
    write(tmp_path, {"passing": {"here": 1}}, wave=2)
    assert [row[2] for row in rows(tmp_path, "passing")] == ["here"]


def test_a_large_state_is_read_in_the_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"counts": {str(number): number for number in range(100)}})
    carried = rows(tmp_path, "counts")
    monkeypatch.setattr(state_source, "CARRIED_BYTES", 0)
    monkeypatch.setattr(state_source, "ROWS_PER_BATCH", 7)
    assert rows(tmp_path, "counts") == carried


def test_the_newest_checkpoint_counts(tmp_path: Path) -> None:
    write(tmp_path, {"counts": {"a": 1}})
    write(tmp_path, {"counts": {"a": 2}}, wave=2)
    assert [row[2:] for row in rows(tmp_path, "counts")] == [("a", "2")]


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, {"counts": {"a": 1}})
    with pytest.raises(UnknownName, match="no entries in a state 'cuonts'; it has counts"):
        rows(tmp_path, "cuonts")
    for options, message in [({"topology": "kpet", "component": "keeps"}, "topology 'kpet' in .*with checkpoints: kept"),
                             ({"topology": "kept", "component": "kepes"}, "no component 'kepes'; it has keeps, lines"),
                             ({"topology": "kept", "component": "lines"}, "'lines' of 'kept' has no keyed state.*: keeps")]:
        with pytest.raises(UnknownName, match=message):
            StateReader(StateOptions.of({**options, "store": str(tmp_path)}), DEFAULT).partitions()


def test_reading_creates_no_store(tmp_path: Path) -> None:
    for store in (str(tmp_path / "nowhere"), f"file://{tmp_path}/nowhere"):
        with pytest.raises(StoreUnreachable, match=r"no checkpoint store at .*nowhere"):
            StateReader(StateOptions("kept", "keeps", "state", store), DEFAULT).partitions()
    assert list(tmp_path.iterdir()) == []


def test_passwords_are_not_shown() -> None:
    assert StateOptions("t", "c", "s", "redis://me:secret@host:1/2").place == "redis://host:1/2"


def test_missing_options_are_named() -> None:
    with pytest.raises(MillraceError, match=r'needs .option."component", ...'):
        StateOptions.of({"topology": "kept"})


def test_strings_that_are_not_valid_unicode_are_escaped() -> None:
    assert as_text("a\ud800") == "a\\ud800"
    assert as_text({1: "x", None: ("y",)}) == '{"1":"x","null":["y"]}'
