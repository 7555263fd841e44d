"""A DataFrame sink keeps valid rows for the driver and refuses the others."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from recording import attach, rows

from millrace.connectors import frame_sink
from millrace.connectors.dataframe_sink import SCHEMA, DataFrameSink
from millrace.errors import EncodingError

TYPES = pa.schema([pa.field("word", pa.string()), pa.field("count", pa.int64(), nullable=False)])


def opened() -> tuple[DataFrameSink, Any]:
    return attach(DataFrameSink, {SCHEMA: b64encode(TYPES.serialize().to_pybytes()).decode()})


def kept(sink: DataFrameSink) -> list[tuple[Any, ...]]:
    table = pa.ipc.open_stream(sink.snapshot()).read_all()
    assert table.schema == TYPES
    return [tuple(row.values()) for row in table.to_pylist()]


def test_a_row_that_does_not_fit_is_refused_with_its_column_and_nothing_is_kept() -> None:
    sink, _ = opened()
    sink.process_rows(rows("word count", [["a", 1], [None, 2]]))
    for value, message in [(None, "None .NoneType. does not fit: count is declared not null, and has no value"),
                           (2.5, "2.5 .float. does not fit"), ("many" * 100, r"'manymany.{0,100} .str. does not fit")]:
        with pytest.raises(EncodingError, match=f"column 'count' is declared int64, but {message}") as caught:
            sink.process_rows(rows("word count", [["kept secret", 3], ["b", value]]))
        assert "secret" not in str(caught.value)
    sink.process_rows(rows("word count", [["e", 3]]))
    assert kept(sink) == [("a", 1), (None, 2), ("e", 3)]
    assert sink.snapshot() is None, "they belong to a batch that is done"


def test_the_former_import_path_still_works() -> None:
    assert frame_sink.DataFrameSink is DataFrameSink
