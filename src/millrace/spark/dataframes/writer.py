"""Rows that a `DataFrameSink` kept in a batch, as a DataFrame for its function."""

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

from millrace.connectors.frame_sink import SCHEMA, DataFrameSink
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph, resolve
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.tasks.user_errors import USER_ERRORS
from millrace.spark.dataframes.feeding import map_in_arrow
from millrace.spark.dataframes.user_functions import raised
from millrace.state.checkpoint import Manifest, PieceRef
from millrace.state.packing import unpack_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN_BYTES = {b"variant", b"geometry", b"geography"}  # how Spark marks a part of such a struct

STACK = 4000  # characters of it that are kept

_refs = msgspec.msgpack.Decoder(PieceRef)


@dataclass(frozen=True, slots=True)
class SinkWriter:
    """One sink of a topology: where its rows go."""

    component: str
    code: str
    write: Any
    schema: StructType


class WriteFailed(MillraceError):
    """The function of a `DataFrameSink` has raised. `stack`: where, as Python shows it."""

    def __init__(self, writer: SinkWriter, error: BaseException) -> None:
        super().__init__(f"{writer.code}, which writes what the sink {writer.component!r} keeps, raised {raised(error)}")
        self.component, self.stack = writer.component, "".join(traceback.format_exception(error))[-STACK:]


def sink_writers(graph: TopologyGraph) -> list[SinkWriter]:
    """Of all such sinks, checked."""
    return [_writer(graph, component) for component in graph.bolts if issubclass(resolve(component.code), DataFrameSink)]


def _writer(graph: TopologyGraph, component: ComponentDef) -> SinkWriter:
    label, (given, *more) = f"the sink {component.name!r}", component.inputs
    fields = graph.component(given.source).stream(given.stream).fields
    if any(graph.component(one.source).stream(one.stream).fields != fields for one in more):
        raise TopologyError(f"{label} reads streams with different fields: a DataFrame has one schema. Use a sink for each")
    try:
        schema = cast(StructType, StructType.fromDDL(str(component.config.get("schema"))))
    except PySparkException as error:
        raise TopologyError(f"{label} has schema = {component.config.get('schema')!r}, which Spark does not understand: write "
                            "names and types, for example word string, count long") from error
    if tuple(schema.names) != fields:
        raise TopologyError(f"{label} has a schema of {', '.join(schema.names)}, and the stream that it reads has the fields "
                            f"{', '.join(fields)}: name the columns as the fields, in their order")
    for column in schema:
        check_type(label, column)
    code = component.config.get("write")
    if not isinstance(code, str):
        raise TopologyError(f"{label} has write = {code!r}: name a function (DataFrame, batch id) as module:function")
    return SinkWriter(component.name, code, resolve(code), schema)


def check_type(label: str, column: StructField) -> None:
    """Of some types Spark makes no Arrow column, of others one of its own bytes, which no tuple has."""
    try:
        marked = _is_marked(to_arrow_schema(StructType([column]), timezone="UTC").field(0))
    except PySparkException:
        marked = True
    if marked:
        raise TopologyError(f"{label} has a column {column.name!r} of type {column.dataType.simpleString()}, which cannot be "
                            "made of a tuple's values: declare a string, a number, a time, or arrays, maps and structs of "
                            "them, and cast it in the function that writes")


def _is_marked(field: pa.Field) -> bool:
    """Whether it, or a field inside of it, is a struct that stands for something else: variant, geometry, geography."""
    inner = [field.type.field(index) for index in range(field.type.num_fields)]
    return any((each.metadata or {}).keys() & OWN_BYTES or _is_marked(each) for each in inner)


def with_schemas(graph: TopologyGraph, writers: Iterable[SinkWriter]) -> TopologyGraph:
    """The graph with what the sinks' tasks must know of the schema."""
    schemas = {writer.component: b64encode(to_arrow_schema(writer.schema, timezone="UTC").serialize().to_pybytes()).decode()
               for writer in writers}
    return replace(graph, components=tuple(
        replace(component, config={**component.config, SCHEMA: schemas[component.name]}) if component.name in schemas
        else component for component in graph.components))


def write_dataframes(spark: SparkSession, writers: Iterable[SinkWriter], manifest: Manifest, store: str, batch: int) -> None:
    """Call each function with what its sink has kept. The rows are read where Spark writes them. `WriteFailed` if one raises:
    those before it have written, and are called again with the same rows."""
    for writer in writers:
        refs = [record.own for record in manifest.records if record.component == writer.component and record.own is not None]
        if refs:
            rows = [(msgspec.msgpack.encode(ref),) for ref in refs]
            kept = spark.createDataFrame(rows, "ref binary").repartition(len(refs))
            dataframe = map_in_arrow(kept, partial(_read, store, manifest.topology), writer.schema)
            try:
                writer.write(dataframe, batch)
            except USER_ERRORS as error:
                raise WriteFailed(writer, error) from error


def _read(store: str, topology: str, given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    checkpoints = Checkpoints(open_store(store), topology)
    for batch in given:
        for encoded in batch.column(0).to_pylist():
            [piece] = checkpoints.read_chain([_refs.decode(encoded)])
            yield from pa.ipc.open_stream(unpack_value(piece))
    checkpoints.store.close()
