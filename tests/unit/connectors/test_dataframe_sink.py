"""A DataFrame sink keeps valid rows for the driver and sends the others to the dead letters."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pyarrow as pa
from recording import attach, rows

from millrace.api.tuple import DEAD_LETTERS
from millrace.connectors import frame_sink
from millrace.connectors.dataframe_sink import SCHEMA, DataFrameSink

TYPES = pa.schema([pa.field("word", pa.string()), pa.field("count", pa.int64(), nullable=False)])


def opened() -> tuple[DataFrameSink, Any]:
    return attach(DataFrameSink, {SCHEMA: b64encode(TYPES.serialize().to_pybytes()).decode()})


def kept(sink: DataFrameSink) -> list[tuple[Any, ...]]:
    table = pa.ipc.open_stream(sink.snapshot()).read_all()
    assert table.schema == TYPES
    return [tuple(row.values()) for row in table.to_pylist()]


def test_rows_that_do_not_fit_are_dead_letters_and_the_others_are_kept() -> None:
    sink, handle = opened()
    sink.process_rows(rows("word count", [["a", 1], ["b", None], ["c", 2.5], ["d", "many"], [None, 2]]))
    sink.process_rows(rows("word count", [["e", 3]]))
    assert kept(sink) == [("a", 1), (None, 2), ("e", 3)]
    assert sink.snapshot() is None, "they belong to a batch that is done"
    letters = [emitted.values for emitted in handle.emits if emitted.stream == DEAD_LETTERS]
    assert [letter[3] for letter in letters] == [["b", None], ["c", 2.5], ["d", "many"]]
    assert letters[0][4] == "ValueError: count is declared not null, and has no value"


def test_the_former_import_path_still_works() -> None:
    assert frame_sink.DataFrameSink is DataFrameSink
