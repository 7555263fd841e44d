"""A column of every type of Spark SQL goes through a topology and back unchanged, or is refused with its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace.api.bolt import Bolt
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.connectors.tap import UNREAD_METRIC
from millrace.errors import TopologyError
from millrace.master.service import Master
from millrace.spark.dataframes.declared import resolve_dataframes
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from support.topologies.typed import (
    COLUMNS,
    DDL,
    SOURCE,
    STRUCT,
    TARGET,
    SparkToSink,
    SparkToTap,
    row,
    without_void,
)

SHARES_SPARK = True
SECONDS = 240.0
N = 6
ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """A session in another zone than the processes."""
    before = shared_spark.conf.get(ZONE)
    shared_spark.conf.set(ZONE, "America/Los_Angeles")
    yield shared_spark
    shared_spark.conf.set(ZONE, before or "UTC")


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Writes the rows to files; returns them as Spark reads them."""
    monkeypatch.setenv(SOURCE, str(tmp_path / "source"))
    monkeypatch.setenv(TARGET, str(tmp_path / "target"))
    without_void(spark.createDataFrame([row(n) for n in range(N)], DDL)).coalesce(2).write.parquet(str(tmp_path / "source"))
    return by_number(spark.read.parquet(str(tmp_path / "source")))


def by_number(dataframe: DataFrame) -> list[Any]:
    return [tuple(each) for each in without_void(dataframe).orderBy("n").collect()]


def until(master: Master, condition: Callable[[], bool]) -> None:
    assert master.wait_until(condition, SECONDS), [event["text"] for event in list(master.events)]


def state_table(spark: SparkSession, name: str, store: Path) -> list[Any]:
    state = spark.read.format("millrace-state").options(topology=name, component="keep", store=str(store))
    return by_number(state.schema(f"key int, value {STRUCT}").load().select("value.*"))


def test_on_the_resident_engine_through_a_tap_and_state(spark: SparkSession, source: list[Any], tmp_path: Path) -> None:
    assert len(source) == N
    with ResidentEngine(slots=2, spark=spark, name=f"types-{os.getpid()}", code=["support"],
                        settings={"checkpoint.store": str(tmp_path / "store"), "history.url": "none"}) as engine:
        running = engine.submit(SparkToTap, "typed")
        tap = spark.readStream.format("millrace").options(topology="typed", stream="out").schema(DDL).load()
        read = tmp_path / "read"
        writer = without_void(tap).writeStream.format("parquet").option("checkpointLocation", f"{read}.checkpoint")
        query = writer.start(str(read))
        until(engine.master, lambda: not query.isActive or (
            (read / "_spark_metadata").exists() and spark.read.schema("n int").parquet(str(read)).count() >= N))
        assert query.isActive, query.exception()
        # Spark tells the tap that a batch is done when it plans the next one; without that the topology would not drain.
        until(engine.master, lambda: not any(task.custom.get(UNREAD_METRIC) for task in running.observed().tasks.values()))
        query.stop()
        assert by_number(spark.read.parquet(str(read))) == source
        running.kill(wait=SECONDS)
        assert running.wait(SECONDS)
    assert state_table(spark, "typed", tmp_path / "store") == source


def test_on_the_microbatch_engine_through_a_sink_and_state(spark: SparkSession, source: list[Any], tmp_path: Path) -> None:
    with MicrobatchEngine(spark=spark, name=f"types-{os.getpid()}", code=["support"],
                          settings={"checkpoint.store": str(tmp_path / "store"), "history.url": "none"}) as engine:
        running = engine.submit(SparkToSink, "typed")
        until(engine.master, lambda: "typed" in engine.master.batch_logs and sum(
            record.tuples_in for record in engine.master.batch_logs["typed"].records) >= N)
        running.kill(wait=SECONDS)
        assert running.wait(SECONDS)
    assert by_number(spark.read.parquet(str(tmp_path / "target")).drop("batch")) == source
    assert state_table(spark, "typed", tmp_path / "store") == source


class Ignore(Bolt):
    def process(self, tup: Any) -> None: ...


@pytest.mark.parametrize(("expression", "column", "kind"), [
    ("make_ym_interval(1, 2)", "c", "interval year to month"), ("parse_json('1')", "c", "variant"),
    ("map(struct(1 as a), 2)", "c", "map<struct<a:int>,int>"), ("map(array(1), 2)", "c", "map<array<int>,int>"),
    ("struct(1 as a, 2 as a)", "c", "struct<a:int,a:int>"), ("array(struct(make_ym_interval(1) as b))", "c.b", "interval year"),
])
def test_a_column_that_no_tuple_can_hold_is_refused_at_submit(spark: SparkSession, expression: str, column: str,
                                                              kind: str) -> None:
    dataframe = spark.readStream.format("rate").load().selectExpr(f"{expression} as c")

    class Refused(Topology):
        typed = Spout.from_dataframe(dataframe)
        ignore = Ignore.spec(inputs=[typed])

    with pytest.raises(TopologyError) as caught:
        resolve_dataframes(spark, Refused)
    assert f"column '{column}' of the DataFrame spout 'typed' is of type {kind}" in str(caught.value)


@pytest.mark.parametrize("kind", ["interval year to month", "variant"])
@pytest.mark.parametrize("reader", ["millrace", "millrace-state"])
def test_a_type_that_no_value_has_is_refused_with_its_column(spark: SparkSession, reader: str, kind: str) -> None:
    options = {"topology": "none", "stream": "out"} if reader == "millrace" else {
        "topology": "none", "component": "keep", "store": "/nowhere"}
    with pytest.raises(PySparkException, match=f"(?s)column 'value' is declared {kind}"):
        if reader == "millrace":
            spark.readStream.format(reader).options(**options).schema(f"value {kind}").load().writeStream.format("noop") \
                .start().awaitTermination(SECONDS)
        else:
            spark.read.format(reader).options(**options).schema(f"value {kind}").load().collect()


def test_every_column_has_a_value() -> None:
    assert [name for (name, (_, _, value)) in COLUMNS.items() if value is None] == ["nothing"]
