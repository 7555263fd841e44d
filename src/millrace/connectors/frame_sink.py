"""A sink whose rows become a DataFrame, batch by batch, for a function of the user's that writes it with Spark."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.tuple import DEAD_LETTERS
from millrace.connectors.checked_column import UNFIT, column
from millrace.connectors.settings import setting

SCHEMA = "arrow-schema"  # in the configuration that tasks get: the schema as the driver has worked it out, in Base64


class DataFrameSink(Bolt):
    """On the microbatch engine only.

    | config | meaning |
    | --- | --- |
    | `write` | `module:function`, called on the driver as (DataFrame, batch id) after each batch that brought rows |
    | `schema` | types of the columns, as Spark writes them: `word string, count long`; names as in the stream read |

    The rows of a batch are kept in the checkpoint store until they are written. So after a crash the function may be called
    again for the last batch, with the same id and the same rows: writing under the batch id makes it exactly once.
    """

    outputs: ClassVar[list[str]] = []
    only_on: ClassVar[str] = "microbatch"
    named_rows: ClassVar[bool] = False

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._schema = pa.ipc.read_schema(pa.py_buffer(b64decode(setting(self, storm_conf, SCHEMA, str))))
        self._batches: list[pa.RecordBatch] = []

    def process_rows(self, rows: list[Any]) -> None:
        try:
            self._batches.append(self._batch(rows))
        except UNFIT:
            for row in rows:
                self._keep(row)

    def _keep(self, row: Any) -> None:
        """One that does not fit the schema is a dead letter, and the others are written all the same."""
        try:
            self._batches.append(self._batch([row]))
        except UNFIT as error:
            self.raise_exception(error)
            self.emit([self.component_name, self.task_index, "", list(row), f"{type(error).__name__}: {error}"],
                      stream=DEAD_LETTERS)

    def _batch(self, rows: list[Any]) -> pa.RecordBatch:
        columns = [column(values, field) for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

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
        """They belong to a batch that is done."""
