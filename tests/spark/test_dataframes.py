"""Streaming DataFrames as spouts of resident topologies. Output is compared with the files that were read."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.bench.stored_counts import stored_counts
from millrace.config import CHECKPOINTS
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import TaskId, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.dataframes.declared import resolve_dataframes
from millrace.spark.dataframes.feeding import FeedingQuery
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from support.topologies.audited import SECONDS
from support.topologies.dataframe_fed import Incoming, counting, keeping, tapping, writing, written

SLOTS = 2
SHARES_SPARK = True


@pytest.fixture(scope="module")
def spark(shared_spark: SparkSession) -> SparkSession:
    return shared_spark


@pytest.fixture
def make_engine(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[], ResidentEngine]]:
    made: list[ResidentEngine] = []

    def make() -> ResidentEngine:
        engine = ResidentEngine(slots=SLOTS, spark=spark, name=f"dataframes-{os.getpid()}", code=["support"],
                                settings={CHECKPOINTS.key: str(tmp_path / "store")})
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.stop()


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    with ResidentEngine(slots=SLOTS, spark=spark, name=f"dataframes-module-{os.getpid()}", code=["support"],
                        settings={CHECKPOINTS.key: str(tmp_path_factory.mktemp("store"))}) as engine:
        yield engine


@pytest.fixture
def incoming(tmp_path: Path) -> Incoming:
    return Incoming(tmp_path / "incoming")


def lines_of(spark: SparkSession, incoming: Incoming, files: int = 2) -> DataFrame:
    """The lines of the directory, with `files` files in each micro-batch."""
    return spark.readStream.option("maxFilesPerTrigger", files).text(str(incoming.directory)).withColumnRenamed("value", "line")


def until(engine: ResidentEngine, condition: Callable[[], bool]) -> None:
    assert engine.master.wait_until(condition, SECONDS), [event["text"] for event in list(engine.master.events)]


def until_emitted(engine: ResidentEngine, running: RunningTopology, tuples: int) -> None:
    until(engine, lambda: running.observed().total("lines", "emitted") >= tuples)


def read_all(spark: SparkSession, running: RunningTopology) -> None:
    """Wait until Spark has recorded in its checkpoint that every line has been read."""
    (query,) = queries_of(spark, running)
    query.processAllAvailable()


def end(running: RunningTopology) -> None:
    running.kill(wait=5)
    assert running.wait(SECONDS)


def queries_of(spark: SparkSession, running: RunningTopology) -> list[Any]:
    return [query for query in spark.streams.active if query.name == f"millrace {running.name}/lines"]


def test_without_faults_every_line_of_arriving_files_comes_once(
        engine: ResidentEngine, spark: SparkSession, incoming: Incoming, tmp_path: Path) -> None:
    incoming.add(files=2, lines=1500)
    running = engine.submit(writing(lines_of(spark, incoming)), "files", {"path": str(tmp_path / "out")})
    until_emitted(engine, running, 3000)
    incoming.add(files=3, lines=700)
    read_all(spark, running)
    emitted = running.measured(lambda observed: {task.index: seen.total("emitted") for task, seen in observed.tasks.items()
                                                 if task.component == "lines"})
    assert set(emitted) == {0, 1} and all(emitted.values()), "both tasks are fed"
    assert queries_of(spark, running)
    end(running)
    assert not queries_of(spark, running), "it ends with the topology"
    assert written(tmp_path / "out") == Counter(incoming.lines)
    assert running.observed().errors == []


def test_a_worker_is_killed_in_the_middle(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                          tmp_path: Path) -> None:
    incoming.add(files=6, lines=10_000)
    running = engine.submit(writing(lines_of(spark, incoming)), "killed", {"path": str(tmp_path / "out")})
    until_emitted(engine, running, 4000)
    slot = engine.master.state.topologies["killed"].places[TaskId("lines", 0)].slot
    assert running.observed().total("lines", "emitted") < len(incoming.lines)
    os.kill(engine.master.connections[slot].hello.pid, signal.SIGKILL)
    read_all(spark, running)
    assert engine.master.state.topologies["killed"].losses == 1
    end(running)
    assert set(written(tmp_path / "out")) == set(incoming.lines)


def test_state_that_is_lost_with_a_worker_is_counted_again(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                                           tmp_path: Path) -> None:
    """Spark's checkpoint is never ahead of the state's, so rows that the state lost are sent again."""
    incoming.add(files=6, lines=2000)
    config = {"path": str(tmp_path / "out"), "topology.checkpoint.interval.secs": 30}
    running = engine.submit(counting(lines_of(spark, incoming, files=1)), "counted", config)
    until_emitted(engine, running, 3500)
    slot = engine.master.state.topologies["counted"].places[TaskId("count", 0)].slot
    assert running.observed().total("lines", "emitted") < len(incoming.lines)
    os.kill(engine.master.connections[slot].hello.pid, signal.SIGKILL)
    read_all(spark, running)
    end(running)
    counts = stored_counts(open_store(engine.master.checkpointing.place), "counted")
    assert set(counts) == set(incoming.lines), "nothing is counted less"
    assert set(written(tmp_path / "out")) == set(incoming.lines)


def test_a_spout_is_moved_while_it_is_fed(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                          tmp_path: Path) -> None:
    incoming.add(files=4, lines=10_000)
    running = engine.submit(writing(lines_of(spark, incoming, files=2)), "moved", {"path": str(tmp_path / "out")})
    until_emitted(engine, running, 4000)
    place = engine.master.state.topologies["moved"].places[TaskId("lines", 0)]
    running.move("lines[0]", 1 - place.slot)
    read_all(spark, running)
    assert engine.master.state.topologies["moved"].places[TaskId("lines", 0)].slot == 1 - place.slot
    end(running)
    assert set(written(tmp_path / "out")) == set(incoming.lines)


def test_a_spout_with_splits_is_scaled_while_it_is_fed(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                                       tmp_path: Path) -> None:
    incoming.add(files=12, lines=4000)
    running = engine.submit(counting(lines_of(spark, incoming, files=3), splits=8), "scaled", {"path": str(tmp_path / "out")})
    until_emitted(engine, running, 4000)
    assert running.observed().total("lines", "emitted") < len(incoming.lines)
    for tasks in (4, 1, 3):
        record = running.scale({"lines": tasks}, SECONDS)
        assert record is not None and record["outcome"] == "done", record
    read_all(spark, running)
    assert {task.index for task in engine.master.state.topologies["scaled"].places if task.component == "lines"} == {0, 1, 2}
    end(running)
    assert written(tmp_path / "out") == Counter(incoming.lines)


@pytest.mark.parametrize("explicit", [True, False])
def test_a_query_continues_from_its_checkpoint(make_engine: Callable[[], ResidentEngine], spark: SparkSession,
                                               incoming: Incoming, tmp_path: Path, explicit: bool) -> None:
    out, checkpoint = tmp_path / "out", str(tmp_path / "spark") if explicit else None
    incoming.add(files=8, lines=1000)
    first = make_engine()
    running = first.submit(writing(lines_of(spark, incoming), checkpoint=checkpoint), "restarted", {"path": str(out)})
    until_emitted(first, running, 3000)
    first.stop()
    before = written(out)
    incoming.add(files=2, lines=1000)
    second = make_engine()
    running = second.submit(writing(lines_of(spark, incoming, files=30), checkpoint=checkpoint), "restarted",
                            {"path": str(out)}, resume=None if explicit else True)
    read_all(spark, running)
    end(running)
    again = written(out) - before
    assert set(written(out)) == set(incoming.lines)
    assert set(again) < set(incoming.lines), "it does not start over"


def test_one_query_feeds_and_another_reads(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                           tmp_path: Path) -> None:
    """The feeding query waits for acks, and acks wait for the query that reads the tap. The reader must get a core although
    the feeder has enough partitions to take all cores."""
    incoming.add(files=8, lines=20)
    running = engine.submit(tapping(lines_of(spark, incoming, files=8)), "through")
    assert running.wait_running(SECONDS)
    until_emitted(engine, running, 1)
    read: Counter[str] = Counter()
    tap = spark.readStream.format("millrace").option("topology", "through").option("stream", "out")
    out = (tap.option("cluster", engine.master.name).schema("line string").load()
           .writeStream.option("checkpointLocation", str(tmp_path / "out"))
           .foreachBatch(lambda batch, number: read.update(row.line for row in batch.collect())).start())
    try:
        until(engine, lambda: set(read) == set(incoming.lines))
        read_all(spark, running)
    finally:
        out.stop()
        running.kill(wait=0)
        assert running.wait(SECONDS)


def test_state_is_resumed_with_the_positions_of_its_own_run(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                                            tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run that was killed before it saved any state leaves the positions of the earlier one alone."""
    config = {"path": str(tmp_path / "out")}
    incoming.add(files=2, lines=50)
    running = engine.submit(counting(lines_of(spark, incoming)), "again", config, resume="auto")
    read_all(spark, running)
    end(running)
    with pytest.raises(TopologyError, match=r"checkpoints of 'again', the last of wave \d+.*--resume \(.*--fresh \("):
        engine.submit(counting(lines_of(spark, incoming)), "again", config)
    with monkeypatch.context() as patch:
        patch.setattr(engine.master.checkpointing, "store", lambda manifest, claim: None)  # no wave is committed
        running = engine.submit(counting(lines_of(spark, incoming)), "again", config, resume=False)
        running.kill(wait=0)
        assert running.wait(SECONDS)
    incoming.add(files=1, lines=50)
    running = engine.submit(counting(lines_of(spark, incoming)), "again", config, resume="older")
    read_all(spark, running)
    end(running)
    assert stored_counts(open_store(engine.master.checkpointing.place), "again") == dict.fromkeys(incoming.lines, 1)


def test_a_fresh_start_whose_query_fails_leaves_the_earlier_run(engine: ResidentEngine, spark: SparkSession,
                                                                incoming: Incoming, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"path": str(tmp_path / "out"), "topology.checkpoint.interval.secs": 600}
    incoming.add(files=1, lines=50)
    running = engine.submit(counting(lines_of(spark, incoming)), "left", config)
    read_all(spark, running)
    end(running)
    with monkeypatch.context() as patch:
        patch.setattr(FeedingQuery, "start", cannot_start)
        with pytest.raises(MillraceError, match="refused"):
            engine.submit(counting(lines_of(spark, incoming)), "left", config, resume=False)
    until(engine, lambda: "left" not in engine.master.state.topologies)
    for path in incoming.directory.iterdir():
        path.unlink()  # a fresh run would miss its lines
    incoming.add(files=1, lines=50)
    running = engine.submit(counting(lines_of(spark, incoming)), "left", config, resume="auto")
    read_all(spark, running)
    end(running)
    assert stored_counts(open_store(engine.master.checkpointing.place), "left") == dict.fromkeys(incoming.lines, 1)


def cannot_start(*arguments: object) -> None:
    raise MillraceError("refused")


def test_older_is_refused_without_state(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                        tmp_path: Path) -> None:
    """Spark's positions alone would be those of the last run."""
    with pytest.raises(TopologyError, match=r"'stateless' keeps no state.* without --resume older"):
        engine.submit(writing(lines_of(spark, incoming)), "stateless", {"path": str(tmp_path / "out")}, resume="older")


def test_positions_are_resumed_or_discarded_as_submitted(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                                         tmp_path: Path) -> None:
    """A topology without state has only Spark's positions to resume."""
    config = {"path": str(tmp_path / "out")}
    incoming.add(files=2, lines=50)
    running = engine.submit(writing(lines_of(spark, incoming)), "resumed", config, resume="auto")
    read_all(spark, running)
    with pytest.raises(TopologyError, match="'resumed' is running already"):
        engine.submit(writing(lines_of(spark, incoming)), "resumed", config)
    end(running)
    with pytest.raises(TopologyError, match=r"an earlier run of 'resumed' has read: up to Spark's batch 0, made 20.*"
                                            r"--resume \(resume=True\).*--fresh \(resume=False\)"):
        engine.submit(writing(lines_of(spark, incoming)), "resumed", config)
    assert "resumed" not in engine.master.state.topologies and not queries_of(spark, running)
    incoming.add(files=1, lines=50)
    running = engine.submit(writing(lines_of(spark, incoming)), "resumed", config, resume="auto")
    read_all(spark, running)
    end(running)
    assert written(tmp_path / "out") == Counter(incoming.lines), "nothing is read twice"
    running = engine.submit(writing(lines_of(spark, incoming)), "resumed", {"path": str(tmp_path / "anew")}, resume=False)
    read_all(spark, running)
    end(running)
    assert written(tmp_path / "anew") == Counter(incoming.lines), "everything is read again"


def test_a_checkpoint_that_the_settings_name_is_always_resumed(engine: ResidentEngine, spark: SparkSession,
                                                               incoming: Incoming, tmp_path: Path) -> None:
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    topology = writing(lines_of(spark, incoming), checkpoint=str(tmp_path / "spark"))
    running = engine.submit(topology, "named", {"path": str(tmp_path / "out")}, resume=False)
    until(engine, lambda: any("--fresh does not delete such checkpoints" in event["text"] for event in engine.master.events
                              if event["level"] == "warning"))
    running.kill(wait=0)
    assert running.wait(SECONDS)


def test_a_warning_if_state_starts_empty_but_spark_resumes(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                                           tmp_path: Path) -> None:
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    topology = counting(lines_of(spark, incoming), checkpoint=str(tmp_path / "spark"))
    running = engine.submit(topology, "emptied", {"path": str(tmp_path / "out")})
    until(engine, lambda: any("the state of the topology starts empty" in event["text"] for event in engine.master.events
                              if event["level"] == "warning"))
    running.kill(wait=0)
    assert running.wait(SECONDS)


def test_a_query_that_fails_is_reported(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                        tmp_path: Path) -> None:
    incoming.add(files=1, lines=10)
    wrong = lines_of(spark, incoming).select(F.raise_error(F.concat(F.lit("no good: "), "line")).cast("string").alias("line"))
    running = engine.submit(writing(wrong), "failing", {"path": str(tmp_path / "out")})
    until(engine, lambda: bool(running.observed().errors))
    (error,) = running.observed().errors
    assert error["task"] == "lines" and "no good: line 0" in error["error"], error
    errors = [event for event in engine.status()["events"] if event["level"] == "error"]
    assert "the query that feeds 'lines'" in errors[-1]["text"]
    assert running.status == "running"
    end(running)


def test_the_query_fails_if_the_topology_acks_nothing(engine: ResidentEngine, spark: SparkSession, incoming: Incoming) -> None:
    incoming.add(files=1, lines=10)
    running = engine.submit(keeping(lines_of(spark, incoming)), "keeping", {"topology.dataframe.ack.timeout.secs": 1})
    until(engine, lambda: bool(running.observed().errors))
    assert "no row of batch 0 sent to 'lines' has been acked for 1 s" in running.observed().errors[0]["error"]
    running.kill(wait=0)
    assert running.wait(SECONDS)


# -- refused --


def test_a_dataframe_that_is_not_streaming(spark: SparkSession) -> None:
    with pytest.raises(TopologyError, match=r"is not streaming: make it with spark\.readStream"):
        writing(spark.range(3))
    still = writing(lambda session: session.range(3), outputs=["id"])
    with pytest.raises(TopologyError, match=r"'lines' needs a streaming DataFrame.*\(id\) is not streaming"):
        resolve_dataframes(spark, still)


def test_columns_that_are_not_the_outputs(engine: ResidentEngine, spark: SparkSession) -> None:
    with pytest.raises(TopologyError, match=r"has the outputs line, and its DataFrame the columns timestamp, value"):
        engine.submit(writing(lambda session: session.readStream.format("rate").load(), outputs=["line"]), "unfit")
    assert "unfit" not in engine.master.state.topologies


def test_columns_are_put_in_the_order_of_the_outputs(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    assert resolve_dataframes(spark, writing(rate, outputs=["value", "timestamp"]))["lines"].columns == ["value", "timestamp"]


def test_a_type_that_no_tuple_can_hold(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("value", "struct(make_interval(0, 1) as gap) as span")
    with pytest.raises(TopologyError, match=r"column 'span\.gap' of the DataFrame spout 'lines' is of type interval.*cast it"):
        resolve_dataframes(spark, writing(rate))


def test_exactly_once_needs_the_other_engine(engine: ResidentEngine, spark: SparkSession, incoming: Incoming) -> None:
    topology = writing(lines_of(spark, incoming))
    with pytest.raises(TopologyError, match=r"asks for exactly-once, but lines is fed by a DataFrame.*microbatch"):
        engine.submit(topology, "exact", {"topology.guarantee": "exactly-once"})


def test_a_graph_has_no_dataframes(engine: ResidentEngine, spark: SparkSession, incoming: Incoming) -> None:
    with pytest.raises(TopologyError, match="submit the topology's class"):
        engine.submit(graph_of(writing(lines_of(spark, incoming))))


def test_a_checkpoint_that_cannot_be_used(engine: ResidentEngine, spark: SparkSession, incoming: Incoming,
                                          tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    topology = writing(lines_of(spark, incoming), checkpoint=str(tmp_path / "file" / "below"))
    with pytest.raises(MillraceError, match=r"cannot be the checkpoint of 'lines' of 'nowhere'"):
        engine.submit(topology, "nowhere", {"path": str(tmp_path / "out")})
    assert "nowhere" not in engine.master.state.topologies
    with pytest.raises(MillraceError, match=r"the query that feeds 'lines' of 'nowhere' cannot start"):
        engine.submit(writing(lines_of(spark, incoming), checkpoint="nofs://here"), "nowhere", {"path": str(tmp_path / "out")})
    until(engine, lambda: "nowhere" not in engine.master.state.topologies)
