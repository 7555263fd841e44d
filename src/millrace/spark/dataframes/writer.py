"""Hands the rows that a `DataFrameSink` kept in a batch to its function, as a DataFrame."""

from __future__ import annotations

import traceback
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from millrace.connectors.dataframe_sink import SCHEMA, DataFrameSink
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph, resolve
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.tasks.user_errors import USER_ERRORS, spare_interrupts
from millrace.spark.dataframes.map_in_arrow import map_in_arrow
from millrace.spark.dataframes.user_functions import raised
from millrace.spark.sources.columns import is_usable
from millrace.state.checkpoint import Manifest, PieceRef
from millrace.state.packing import unpack_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STACK = 4000  # maximum number of characters kept of a traceback

_refs = msgspec.msgpack.Decoder(PieceRef)


@dataclass(frozen=True, slots=True)
class SinkWriter:
    """The function that writes the rows of one sink."""

    component: str
    code: str
    write: Any
    schema: StructType


class WriteFailed(MillraceError):
    """The function of a `DataFrameSink` has raised. `stack`: its traceback."""

    def __init__(self, writer: SinkWriter, error: BaseException) -> None:
        super().__init__(f"{writer.code}, which writes the rows of the sink {writer.component!r}, raised {raised(error)}")
        self.component, self.stack = writer.component, "".join(traceback.format_exception(error))[-STACK:]


def sink_writers(graph: TopologyGraph) -> list[SinkWriter]:
    """The writers of all `DataFrameSink`s of the topology, checked."""
    return [_writer(graph, component) for component in graph.bolts if issubclass(resolve(component.code), DataFrameSink)]


def _writer(graph: TopologyGraph, component: ComponentDef) -> SinkWriter:
    label, (first, *others) = f"the sink {component.name!r}", component.inputs
    fields = graph.component(first.source).stream(first.stream).fields
    if any(graph.component(other.source).stream(other.stream).fields != fields for other in others):
        raise TopologyError(f"{label} reads streams with different fields, but a DataFrame has one schema. Use a sink for each")
    try:
        schema = cast(StructType, StructType.fromDDL(str(component.config.get("schema"))))
    except PySparkException as error:
        raise TopologyError(f"{label} has schema = {component.config.get('schema')!r}, which Spark cannot parse: write names "
                            "and types, for example word string, count long") from error
    if tuple(schema.names) != fields:
        raise TopologyError(f"{label} has the schema {', '.join(schema.names)}, but the stream that it reads has the fields "
                            f"{', '.join(fields)}: name the columns like the fields, in the same order")
    for column in schema:
        check_type(label, column)
    code = component.config.get("write")
    if not isinstance(code, str):
        raise TopologyError(f"{label} has write = {code!r}: name a function (DataFrame, batch id) as module:function")
    return SinkWriter(component.name, code, resolve(code), schema)


def check_type(label: str, column: StructField) -> None:
    """Raise `TopologyError` for a type that Spark cannot convert to a plain Arrow column."""
    if not is_usable(column):
        raise TopologyError(f"{label} has a column {column.name!r} of type {column.dataType.simpleString()}, which cannot be "
                            "made from a tuple's values: declare a string, a number, a time, or arrays, maps and structs of "
                            "them, and cast it in the function that writes")


def with_schemas(graph: TopologyGraph, writers: Iterable[SinkWriter]) -> TopologyGraph:
    """The graph with each sink's schema added to its config, for its tasks."""
    schemas = {writer.component: b64encode(to_arrow_schema(writer.schema, timezone="UTC").serialize().to_pybytes()).decode()
               for writer in writers}
    return replace(graph, components=tuple(
        replace(component, config={**component.config, SCHEMA: schemas[component.name]}) if component.name in schemas
        else component for component in graph.components))


def write_dataframes(spark: SparkSession, writers: Iterable[SinkWriter], manifest: Manifest, store: str, batch: int) -> None:
    """Call each function with the rows that its sink kept; Spark's tasks read them from the checkpoint store. `WriteFailed` if
    one raises: the functions before it have written, and are called again with the same rows."""
    for writer in writers:
        refs = [record.own for record in manifest.records if record.component == writer.component and record.own is not None]
        if refs:
            rows = [(msgspec.msgpack.encode(ref),) for ref in refs]
            kept = spark.createDataFrame(rows, "ref binary").repartition(len(refs))
            dataframe = map_in_arrow(kept, partial(_read, store, manifest.topology), writer.schema)
            try:
                writer.write(dataframe, batch)
            except USER_ERRORS as error:
                spare_interrupts(error)
                raise WriteFailed(writer, error) from error


def _read(store: str, topology: str, references: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    checkpoints = Checkpoints(open_store(store), topology)
    for batch in references:
        for encoded in batch.column(0).to_pylist():
            [piece] = checkpoints.read_chain([_refs.decode(encoded)])
            yield from pa.ipc.open_stream(unpack_value(piece))
    checkpoints.store.close()
