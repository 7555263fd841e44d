"""Rows with a column of every type of Spark SQL that a tuple can hold, and topologies that pass them on."""

from __future__ import annotations

import os
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from millrace import Bolt, Grouping, Spout, Topology
from millrace.connectors.dataframe_sink import SCHEMA, DataFrameSink
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.tap import Tap

SOURCE, TARGET = "MILLRACE_TEST_TYPED_SOURCE", "MILLRACE_TEST_TYPED_TARGET"
NOON = datetime(2026, 3, 29, 12, 30, 15, 123456)
INNER = pa.struct([("price", pa.decimal128(5, 2)), ("at", pa.struct([("moment", pa.timestamp("us", "UTC")),
                                                                   ("days", pa.list_(pa.date32()))]))])
# Name -> Spark's type, the Arrow type of the same values, and a value. All but the first are null in every third row.
COLUMNS: dict[str, tuple[str, pa.DataType, Any]] = {
    "n": ("int", pa.int32(), 0),
    "yes": ("boolean", pa.bool_(), True),
    "int8": ("tinyint", pa.int8(), -128),
    "int16": ("smallint", pa.int16(), 32767),
    "int64": ("bigint", pa.int64(), -(2**63)),
    "float32": ("float", pa.float32(), 0.25),
    "float64": ("double", pa.float64(), 0.1),
    "digit": ("decimal(1,0)", pa.decimal128(1, 0), Decimal("7")),
    "price": ("decimal(10,2)", pa.decimal128(10, 2), Decimal("12345678.90")),
    "exact": ("decimal(38,18)", pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678")),
    "text": ("string", pa.string(), "Mühle"),
    "data": ("binary", pa.binary(), b"\x00\xff"),
    "day": ("date", pa.date32(), date(1969, 12, 31)),
    "moment": ("timestamp", pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC)),
    "local": ("timestamp_ntz", pa.timestamp("us"), NOON),
    "span": ("interval day to second", pa.duration("us"), timedelta(days=-2, seconds=3, microseconds=4)),
    "nothing": ("void", pa.null(), None),
    "nested": ("struct<price:decimal(5,2),at:struct<moment:timestamp,days:array<date>>>", INNER,
               {"price": Decimal("1.50"), "at": {"moment": NOON.replace(tzinfo=UTC), "days": [date(2026, 1, 2), None]}}),
    "prices": ("array<decimal(10,3)>", pa.list_(pa.decimal128(10, 3)), [Decimal("1.000"), None]),
    "blobs": ("array<array<binary>>", pa.list_(pa.list_(pa.binary())), [[b"a", b""], []]),
    "counts": ("map<string,int>", pa.map_(pa.string(), pa.int32()), {"a": 1, "b": None}),
    "rates": ("map<date,decimal(5,1)>", pa.map_(pa.date32(), pa.decimal128(5, 1)), {date(2026, 1, 2): Decimal("0.5")}),
    "items": ("map<int,struct<price:decimal(5,2),at:struct<moment:timestamp,days:array<date>>>>",
              pa.map_(pa.int32(), INNER), {7: {"price": Decimal("2.00"), "at": None}}),
}
FIELDS = list(COLUMNS)
DDL = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
STRUCT = f"struct<{', '.join(f'{name}: {kind}' for name, (kind, _, _) in COLUMNS.items())}>"
ARROW = pa.schema([(name, kind) for name, (_, kind, _) in COLUMNS.items()])
N = 60


def row(number: int) -> tuple[Any, ...]:
    """The row of this number."""
    values = [value for _, _, value in COLUMNS.values()]
    return (number, *(values[1:] if number % 3 else [None] * (len(values) - 1)))


class Typed(GeneratorSpout):
    outputs: ClassVar[list[str]] = FIELDS

    def generate(self, position: int) -> tuple[Any, ...]:
        return row(self.ordinal(position))


class TypedBatches(Spout):
    """Emits Arrow batches with times in another zone, as Spark does if the session has one."""

    outputs: ClassVar[list[str]] = FIELDS

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.left = [list(range(start, start + 6)) for start in range(N, 2 * N, 6)]

    def next_tuple(self) -> None:
        if self.left:
            batch = pa.RecordBatch.from_pylist([dict(zip(FIELDS, row(n), strict=True)) for n in self.left.pop()], ARROW)
            moment = FIELDS.index("moment")
            elsewhere = batch.column("moment").cast(pa.timestamp("us", "Asia/Tokyo"))
            self.emit_arrow(batch.set_column(moment, "moment", elsewhere))


class KeepRow(Bolt):
    """Keeps each row in state, by its number, and passes it on."""

    outputs: ClassVar[list[str]] = FIELDS

    def process(self, tup: Any) -> None:
        self.state[tup.values[0]] = dict(zip(FIELDS, tup.values, strict=True))
        self.emit(tup.values)


class PassRow(Bolt):
    outputs: ClassVar[list[str]] = FIELDS

    def process(self, tup: Any) -> None:
        self.emit(tup.values)


class KeepByTime(Bolt):
    """Keeps numbers under keys that are dates, times and decimals."""

    def process(self, tup: Any) -> None:
        key = tup.values.price, tup.values.day, tup.values.local
        self.state[key] = [*self.state.get(key, []), tup.values.n]


def by_number(values: Any, tasks: int) -> list[int]:
    return [values[0] % tasks]


class TypedTap(Topology):
    typed = Typed.spec(par=2)
    keep = KeepRow.spec(inputs={typed: Grouping.fields("n")}, par=3)
    by_time = KeepByTime.spec(inputs={keep: Grouping.fields("price", "day", "local")}, par=2)
    out = Tap.spec(inputs={keep: Grouping.SHUFFLE}, par=3)


class TypedBatchesTap(Topology):
    typed = TypedBatches.spec(par=1)
    keep = KeepRow.spec(inputs={typed: Grouping.fields("n")}, par=3)
    passed = PassRow.spec(inputs={typed: Grouping.custom(by_number)}, par=3)
    out = Tap.spec(inputs={keep: Grouping.SHUFFLE, passed: Grouping.SHUFFLE, typed: Grouping.SHUFFLE}, par=3)


class TypedSink(Topology):
    typed = Typed.spec(par=2)
    keep = KeepRow.spec(inputs={typed: Grouping.fields("n")}, par=3)
    table = DataFrameSink.spec(inputs={keep: Grouping.SHUFFLE}, par=2,
                               config={SCHEMA: b64encode(ARROW.serialize().to_pybytes()).decode()})


# ---- with Spark at both ends ----


def without_void(dataframe: Any) -> Any:
    """Files have no columns of type void."""
    return dataframe.drop("nothing")


def typed_rows(spark: Any) -> Any:
    """The rows of files that arrive in a directory."""
    stored = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items() if kind != "void")
    return spark.readStream.schema(stored).parquet(os.environ[SOURCE]).selectExpr(
        *[name if kind != "void" else f"null as {name}" for name, (kind, _, _) in COLUMNS.items()])


def write(dataframe: Any, batch: int) -> None:
    without_void(dataframe).write.mode("overwrite").parquet(str(Path(os.environ[TARGET]) / f"batch={batch}"))


class SparkToTap(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.checkpoint.interval.secs": 0.2}
    typed = Spout.from_dataframe(typed_rows, outputs=FIELDS, par=2)
    keep = KeepRow.spec(inputs={typed: Grouping.fields("n")}, par=2)
    out = Tap.spec(inputs={keep: Grouping.SHUFFLE}, par=1)


class SparkToSink(Topology):
    typed = Spout.from_dataframe(typed_rows, outputs=FIELDS, par=2)
    keep = KeepRow.spec(inputs={typed: Grouping.fields("n")}, par=2)
    table = DataFrameSink.spec(inputs={keep: Grouping.SHUFFLE}, par=1, config={"schema": DDL, "write": f"{__name__}:write"})
