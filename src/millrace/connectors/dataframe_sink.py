"""A sink that turns its rows into a DataFrame, batch by batch, for a user function that writes it with Spark."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.connectors.checked_column import UNFIT, column, misfit
from millrace.connectors.settings import setting
from millrace.errors import EncodingError

SCHEMA = "arrow-schema"  # key in the tasks' configuration: the schema as computed by the driver, in Base64


class DataFrameSink(Bolt):
    """Passes the rows of each batch to a function on the driver. Microbatch engine only.

    | config | meaning |
    | --- | --- |
    | `write` | `module:function`, called on the driver as (DataFrame, batch id) after each batch with rows |
    | `schema` | types of the columns, as Spark writes them: `word string, count long`; names as in the stream read |

    A row that does not fit the schema becomes a dead letter, whose error names the column and the value.

    The rows of a batch stay in the checkpoint store until they are written. After a crash the function may be called again for
    the last batch, with the same id and the same rows: writing under the batch id makes it exactly once.
    """

    outputs: ClassVar[list[str]] = []
    only_on: ClassVar[str] = "microbatch"
    named_rows: ClassVar[bool] = False
    keeps_all_or_none: ClassVar[bool] = True

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._schema = pa.ipc.read_schema(pa.py_buffer(b64decode(setting(self, storm_conf, SCHEMA, str))))
        self._batches: list[pa.RecordBatch] = []

    def process_rows(self, rows: list[Any]) -> None:
        """Keeps the rows, or none of them if one does not fit the schema."""
        columns = [self._column(values, field) for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        try:
            return column(values, field)
        except UNFIT:
            raise EncodingError(misfit(values, field, str(field.type))) from None

    def snapshot(self) -> Any:
        """The rows of this batch, for the driver."""
        batches, self._batches = self._batches, []
        if not batches:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def restore(self, snapshot: Any) -> None:
        """Does nothing: the rows of the snapshot belong to a batch that is done."""
