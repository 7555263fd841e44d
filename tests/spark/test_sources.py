"""A topology's stream as a streaming DataFrame, and its state as a table: real workers and queries, read back and compared."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery

from millrace.api.topology import Topology
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.wordcount import WordCount
from support.topologies import tapped
from support.topologies.audited import SECONDS
from support.topologies.tapped import WORDS, CountedTap, Tapped

SLOTS = 3
SHARES_SPARK = True
ROWS = 3000
UNREAD = 300  # rows that a task of a tap keeps for its reader


@pytest.fixture(scope="module")
def engine(shared_spark: SparkSession) -> Iterator[ResidentEngine]:
    with ResidentEngine(spark=shared_spark, slots=SLOTS, name=f"sources-{os.getpid()}", code=[tapped.__name__],
                        settings={"history.url": "none"}) as engine:
        yield engine


@pytest.fixture
def submit(engine: ResidentEngine) -> Iterator[Callable[..., RunningTopology]]:
    """Topologies that end with the test."""
    running: list[RunningTopology] = []

    def start(topology: type[Topology], name: str, **config: Any) -> RunningTopology:
        running.append(engine.submit(topology, name, {key.replace("_", "."): value for key, value in config.items()}))
        assert running[-1].wait_running(SECONDS)
        return running[-1]

    yield start
    for topology in running:
        if topology.status != "ended":
            topology.kill(wait=0)
            assert topology.wait(SECONDS)


class Reader:
    """A query that keeps its rows by batch: a batch that Spark runs again replaces its rows."""

    def __init__(self, engine: ResidentEngine, dataframe: DataFrame, checkpoint: Path) -> None:
        self._engine, self._dataframe, self._checkpoint = engine, dataframe, checkpoint
        self.batches: dict[int, list[Any]] = {}
        self.partitions: dict[int, dict[int, list[Any]]] = {}  # by batch and partition, which is one task of the tap
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            partitions: dict[int, list[Any]] = {}
            for *row, partition in batch.select("*", spark_partition_id()).collect():
                partitions.setdefault(partition, []).append(tuple(row))
            self.partitions[number] = partitions
            self.batches[number] = [row for rows in partitions.values() for row in rows]

        writer = self._dataframe.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self.query

    def rows(self) -> list[Any]:
        return [row for batch in list(self.batches.values()) for row in batch]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition while the query runs."""
        def reached() -> bool:
            return condition() or self.query is None or not self.query.isActive

        assert self._engine.master.wait_until(reached, SECONDS), f"{len(self.rows())} rows came in {SECONDS:g} s"
        assert condition(), self.query.exception() if self.query is not None else "no query"

    def stop(self) -> None:
        assert self.query is not None
        self.query.stop()


def stream(spark: SparkSession, topology: str, schema: str | None = None, tap: str = "out") -> DataFrame:
    reader = spark.readStream.format("millrace").option("topology", topology).option("stream", tap)
    return (reader.schema(schema) if schema is not None else reader).load()


def state(spark: SparkSession, topology: str, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("millrace-state").option("topology", topology).options(**options)
    return (reader.schema(schema) if schema is not None else reader).load()


def unread(topology: RunningTopology) -> dict[int, int]:
    """The rows that each task of the tap keeps for its reader, as last reported."""
    return topology.measured(lambda observed: {task.index: seen.custom.get("unread", 0)
                                               for task, seen in observed.tasks.items() if task.component == "out"})


def kill_worker_of(engine: ResidentEngine, topology: str, component: str) -> None:
    places = engine.master.state.topologies[topology].places
    slot = next(place.slot for task, place in places.items() if task.component == component)
    os.kill(engine.master.connections[slot].hello.pid, signal.SIGKILL)


def numbers(rows: list[Any]) -> Counter[int]:
    return Counter(row[0] for row in rows)


def test_at_least_once_nothing_is_lost(engine: ResidentEngine, submit: Callable[..., RunningTopology], tmp_path: Path) -> None:
    """Types are inferred from the rows; the reader restarts from its checkpoint; a worker with a task of the tap is killed."""
    running = submit(Tapped, "tapped", limit=ROWS, rate=1500.0, tap_rows=UNREAD, topology_chunk_tuples=10,
                     topology_channel_window=1)
    assert engine.master.wait_until(lambda: any(unread(running).values()), SECONDS)
    dataframe = stream(engine.spark, "tapped")
    assert dataframe.schema.simpleString() == "struct<number:bigint,word:string>"
    reader = Reader(engine, dataframe, tmp_path)
    assert reader.start(availableNow=True).awaitTermination(SECONDS)
    assert 0 < len(reader.rows()) < ROWS, "the worker dies in the middle: an unread tap blocks the topology"
    kill_worker_of(engine, "tapped", "out")
    reader.start()
    reader.until(lambda: sum(running.positions().values()) == ROWS)  # everything committed is acked
    assert engine.master.state.topologies["tapped"].losses == 1, "the kill hit a worker"
    reader.stop()
    assert numbers(reader.rows()).keys() == set(range(ROWS))
    assert {row for row in reader.rows()} == {(number, WORDS[number % len(WORDS)]) for number in range(ROWS)}


def test_exactly_once_through_a_killed_worker(engine: ResidentEngine, submit: Callable[..., RunningTopology],
                                              tmp_path: Path) -> None:
    """The state of the same run is read as a table too."""
    running = submit(CountedTap, "counted", limit=ROWS, rate=600.0, tap_rows=UNREAD, topology_guarantee="exactly-once",
                     topology_checkpoint_interval_secs=0.3)
    reader = Reader(engine, stream(engine.spark, "counted", "count long, number long, word string"), tmp_path)
    reader.start()
    killed: list[int] = []

    def kill_in_the_middle() -> bool:  # on the master's thread, as soon as there are rows
        if not killed and len(reader.rows()) > 100:
            killed.append(len(reader.rows()))
            kill_worker_of(engine, "counted", "out")
        return bool(killed)

    reader.until(kill_in_the_middle)
    reader.until(lambda: engine.master.state.topologies["counted"].losses == 1)
    reader.until(lambda: len(reader.rows()) > ROWS // 2)
    reader.stop()
    reader.start()
    reader.until(lambda: len(reader.rows()) >= ROWS)
    reader.stop()
    rows = reader.rows()
    assert Counter(number for _, number, _ in rows) == Counter(range(ROWS))
    in_order = [[count for count, _, word in part if word == chosen]
                for batch in reader.partitions.values() for part in batch.values() for chosen in WORDS]
    assert all(counts == sorted(counts) for counts in in_order) and max(map(len, in_order)) > 1
    each = ROWS // len(WORDS)
    assert {word: sorted(count for count, _, counted in rows if counted == word) for word in WORDS} == {
        word: list(range(1, each + 1)) for word in WORDS}

    spark = engine.spark
    typed = state(spark, "counted", "key string, value long", component="count", state="counts")
    assert {row.key: row.value for row in typed.collect()} == dict.fromkeys(WORDS, each), "while waves replace the checkpoint"
    running.kill(wait=10)
    assert running.wait(SECONDS)
    table = state(spark, "counted", component="count", state="counts")
    assert table.schema.simpleString() == "struct<key_group:int,task:int,key:string,value:string>"
    assert {row.key: row.value for row in table.collect()} == {word: str(each) for word in WORDS}
    pairs = {row.key: row.value for row in state(spark, "counted", component="count", state="pairs").collect()}
    assert pairs.keys() == set(WORDS) and pairs["mill"].startswith("[") and pairs["mill"].endswith(',"mill"]')
    for options, schema, message in [
        ({"component": "count", "staet": "pairs"}, None, "no option 'staet'; did you mean 'state'. It has topology, component"),
        ({"component": "cuont"}, None, "no component 'cuont'.*count, numbers, out"),
        ({"component": "count", "state": "pairs"}, "key string, value long", "column 'value' is declared bigint.*does not fit"),
        ({"component": "count", "store": str(tmp_path / "nowhere")}, None, "no checkpoint store at .*nowhere.*Name it with"),
    ]:
        with pytest.raises(PySparkException, match=f"(?s){message}"):
            state(spark, "counted", schema, **options).collect()


def test_an_unread_tap_blocks_the_topology(engine: ResidentEngine, submit: Callable[..., RunningTopology],
                                           tmp_path: Path) -> None:
    limit, chunk, window = 500, 100, 4
    running = submit(Tapped, "unread", tap_rows=limit, topology_chunk_tuples=chunk, topology_channel_window=window)
    assert engine.master.wait_until(lambda: len(unread(running)) == 2 and min(unread(running).values()) >= limit, SECONDS)
    beside = submit(WordCount, "beside", rate=500)
    assert engine.master.wait_until(lambda: sum(beside.positions().values()) > 500, SECONDS), "the workers work on"
    kept = unread(running)
    spouts, stretch = 2, 4
    assert max(kept.values()) <= limit + spouts * window * chunk * stretch
    reader = Reader(engine, stream(engine.spark, "unread", "number long"), tmp_path)
    assert reader.start(availableNow=True).awaitTermination(SECONDS)
    assert set(numbers(reader.rows()).values()) == {1} and len(reader.rows()) == sum(kept.values())
    assert engine.master.wait_until(lambda: sum(running.positions().values()) > 0, SECONDS), "what was read is acked"


def test_a_second_reader_takes_over(engine: ResidentEngine, submit: Callable[..., RunningTopology], tmp_path: Path) -> None:
    """The first reader fails with a message."""
    submit(Tapped, "shared", limit=ROWS, rate=1000.0)
    dataframe = stream(engine.spark, "shared", "number long")
    first, second = (Reader(engine, dataframe, tmp_path / name) for name in ("first", "second"))
    first.start()
    first.until(lambda: len(first.rows()) > 100)
    second.start()
    with pytest.raises(PySparkException, match=r"(?s)shared\.out cannot be read: it has another reader.*its own Tap"):
        first.query.awaitTermination(SECONDS)
    second.until(lambda: len(numbers(first.rows() + second.rows())) == ROWS)
    second.stop()


def test_a_stream_that_cannot_be_read(engine: ResidentEngine, submit: Callable[..., RunningTopology], tmp_path: Path) -> None:
    spark = engine.spark
    submit(Tapped, "idle", limit=0)
    for name, tap, message in [("idel", "out", "idel"), ("", "out", "needs .option.\"topology\""),
                               ("idle", "numbers", "no tap 'numbers'.*it has out"),
                               ("idle", "out", "type of column 'number' cannot be inferred: there is no row yet.*Declare it")]:
        with pytest.raises(PySparkException, match=f"(?s){message}"):
            stream(spark, name, tap=tap)
    with pytest.raises(PySparkException, match=r"(?s)no option 'maxrowspertrigger'. It has topology, stream, cluster"):
        spark.readStream.format("millrace").options(topology="idle", stream="out", maxRowsPerTrigger=5).load()
    submit(Tapped, "talking", limit=10)
    for name, schema, message in [("talking", "numbre long", "asks for numbre, but the stream has number, word"),
                                  ("talking", "word long", "column 'word' is declared bigint, but '.*' .str. does not fit")]:
        query = Reader(engine, stream(spark, name, schema), tmp_path / schema.split()[0]).start()
        with pytest.raises(PySparkException, match=f"(?s){message}"):
            query.awaitTermination(SECONDS)
