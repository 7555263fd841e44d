"""Streaming DataFrames that feed the frame spouts of resident topologies.

For each there is a Structured Streaming query. A micro-batch is a Spark job whose partitions send their rows to the spout's
tasks and end when the topology has acked them; only then does Spark note in its checkpoint that they have been read. So that
checkpoint is the replay log: what was under way when anything died comes again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import types
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from millrace.api.dataframe import check_frame, frames_of
from millrace.api.topology import Topology
from millrace.config import (
    AT_LEAST_ONCE,
    CHECKPOINTS,
    CHUNK_TUPLES,
    EXACTLY_ONCE,
    FRAME_LIMIT,
    FRAME_TIMEOUT,
    FRAME_TRIGGER,
    GUARANTEE,
)
from millrace.control.events import Killed, Say, WaveRequested
from millrace.control.submission import choice_required, when
from millrace.errors import FeedingFailed, MillraceError, TopologyError
from millrace.master.service import Master
from millrace.model.graph import ComponentDef, TopologyGraph, resolve
from millrace.runtime.checkpoints.store import local_directory
from millrace.runtime.feeds.feeder import Feeding
from millrace.runtime.tasks.user_errors import USER_ERRORS
from millrace.spark.cluster.free_cores import FEEDING, FreeCores, feeding_queries, feeding_share, leaves_none
from millrace.spark.cluster.placement import Placement
from millrace.spark.dataframes.checkpoints import Noted, Runs, claim_checkpoint, given_checkpoint, new_run
from millrace.spark.dataframes.feed_job import SENT, feed_partition
from millrace.spark.dataframes.user_functions import raised
from millrace.spark.session.errors import SPARK_ERRORS, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.status import SparkStageInfo

log = logging.getLogger("millrace.master")
LOOK_SECONDS = 1
WAVE_SECONDS = 1.0  # between requests for a wave
IDLE_SECONDS = 10.0  # without a single Spark task running for a micro-batch, before someone is told
STOP_SECONDS = 10.0  # for the micro-batch under way, when the engine stops
TASK_FAILURES = 8  # of one stage: Spark itself would go on trying, as it must for workers
NO_SOURCE = ("[DATA_SOURCE_NOT_FOUND]", "[KAFKA_DATA_SOURCE_NOT_ENABLED]")
NO_SOURCE_HINT = (". What Spark reads it with comes as a package: name it with --conf spark.jars.packages=..., in Python "
                  'spark_settings={"spark.jars.packages": ...}; for Kafka org.apache.spark:spark-sql-kafka-0-10_2.13:'
                  f"{pyspark.__version__}")
PLAIN_TYPES = (types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.FloatType,
               types.DoubleType, types.DecimalType, types.StringType, types.BinaryType, types.DateType, types.TimestampType,
               types.TimestampNTZType, types.NullType)


def resolve_frames(spark: SparkSession, topology: type[Topology]) -> dict[str, DataFrame]:
    """The streaming DataFrame of each frame spout, by the spout's name, with its columns in the order of the outputs. What is
    not streaming, or does not fit, is a `TopologyError`."""
    found: dict[str, DataFrame] = {}
    outputs = {str(spec.name): spec.outputs[0].fields for spec in topology.specs if spec.frame is not None}
    for name, frame in frames_of(topology).items():
        label = f"the frame spout {name!r}"
        if isinstance(frame, str):
            frame = resolve(frame)
        if callable(frame):
            frame = _made(label, frame, spark)
        check_frame(label, frame, outputs[name])
        for column in frame.schema:
            _check_type(label, column.name, column.dataType)
        found[name] = frame.select(*[f"`{field}`" for field in outputs[name]])
    return found


def _made(label: str, function: Callable[[SparkSession], Any], spark: SparkSession) -> Any:
    try:
        return function(spark)
    except MillraceError:
        raise
    except USER_ERRORS as error:
        hint = NO_SOURCE_HINT if any(sign in str(error) for sign in NO_SOURCE) else ""
        raise TopologyError(f"{label} reads what {getattr(function, '__qualname__', repr(function))} returns, and that raised "
                            f"{raised(error)}{hint}") from error


def _check_type(label: str, column: str, kind: types.DataType) -> None:
    if isinstance(kind, types.ArrayType):
        _check_type(label, column, kind.elementType)
    elif isinstance(kind, types.MapType):
        _check_type(label, column, kind.keyType)
        _check_type(label, column, kind.valueType)
    elif isinstance(kind, types.StructType):
        for field in kind:
            _check_type(label, f"{column}.{field.name}", field.dataType)
    elif not isinstance(kind, PLAIN_TYPES):
        raise TopologyError(f"column {column!r} of {label} is of type {kind.simpleString()}, which no tuple can hold: cast it "
                            "to a string, a number or a time in the DataFrame")


class FrameQueries:
    """The queries that feed one topology, on a cluster of which workers hold so many cores (`slots`). `run` names where Spark
    is to keep how far they have read, if the topology begins anew; empty if nothing feeds it."""

    def __init__(self, spark: SparkSession, master: Master, graph: TopologyGraph, frames: dict[str, DataFrame],
                 slots: int) -> None:
        self._master, self._graph, self.name = master, graph, graph.name
        self._queries = [FrameQuery(spark, master, graph, graph.component(name), frame, slots)
                         for name, frame in frames.items()]
        self.run = new_run() if frames else ""

    def prepare(self, resume: bool | None) -> None:
        """What can be found wrong before the topology is submitted. Without state, a run is as good as what it has read: to go
        on from or, as a checkpoint, not to be lost by leaving out a flag."""
        for query in self._queries:
            query.prepare()
        noted = [found for query in self._queries if (found := query.noted()) is not None]
        if self._graph.waves or resume is False or not noted:
            return
        last = max(noted, key=lambda found: found.number)
        if resume is None:
            raise choice_required(f"{last.place} has how far an earlier run of {self.name!r} has read: up to batch "
                                  f"{last.batch} of Spark's{when(last.at)}")
        self.run = last.run

    def start(self, resume: bool | None) -> None:
        """All of them, or none. What state is resumed from says which run's positions go with it."""
        run = self.run
        if self._graph.waves:
            run = self._master.call(lambda: self._master.state.topology(self.name).offsets)
        try:
            for query in self._queries:
                query.start(run, resume)
        except BaseException:
            self.stop(0)
            raise
        self._master.call(lambda: self._master.before_kill.update({self.name: self._before_kill}))

    def stop(self, wait: float) -> None:
        """Each after its micro-batch under way, if that ends in so many seconds; else that comes again."""
        deadline = time.monotonic() + wait
        for query in self._queries:
            query.refuse_more()
        for query in self._queries:
            query.stop(deadline)

    def _before_kill(self, event: Killed) -> None:
        """On the master's thread, which must not wait: the topology is killed when the queries have ended."""
        self._master.say(Say("what feeds it ends first", self.name))
        threading.Thread(target=self._kill, args=(event,), daemon=True, name=f"end of {self.name}").start()

    def _kill(self, event: Killed) -> None:
        try:
            self.stop(event.wait)
        finally:  # a Spark that is gone is no reason to live on
            self._master.later(lambda: self._tell_killed(event))

    def _tell_killed(self, event: Killed) -> None:
        if self.name in self._master.state.topologies:  # someone may have been impatient
            self._master.tell(Killed(event.name, event.wait, time.monotonic()))


class FrameQuery:
    """One query. Spark calls `_push` with each micro-batch; it returns when that need not be sent again."""

    def __init__(self, spark: SparkSession, master: Master, graph: TopologyGraph, component: ComponentDef,
                 frame: DataFrame, slots: int) -> None:
        self._spark, self._master, self._graph, self._component, self._frame = spark, master, graph, component, frame
        self._conf = {**graph.config, **component.config}
        self._label = f"the query that feeds {component.name!r}"
        self._query: StreamingQuery | None = None
        self._cores = FreeCores(spark.sparkContext, slots)
        self._id = self._place = self._run = ""
        self._runs: Runs | None = None  # None: the settings name a checkpoint, or older runs are forgotten already
        self._state = threading.Condition()
        self._pushing = self._refusing = self._refused = self._stopped = False
        self._failure = ""
        self._idle_since: float | None = None
        self._told_idle = self._told_tight = False
        self._watcher = threading.Thread(target=self._watch, daemon=True, name=f"query of {component.name}")

    # -- from outside ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._place = given_checkpoint(self._graph, self._component)
        directory = local_directory(self._place) if "://" in self._place or self._files_are_local() else None
        if self._place and directory is not None:
            claim_checkpoint(directory, self._graph.name, self._component.name)
            self._place = directory.absolute().as_uri()
        if not self._place:
            self._runs = Runs(str(CHECKPOINTS.of(self._master.settings)), self._graph.name, self._component.name)

    def noted(self) -> Noted | None:
        """How far the last run has read, below the checkpoint store: a checkpoint that the settings name is never left."""
        return self._runs.last() if self._runs is not None else None

    def start(self, run: str, resume: bool | None) -> None:
        """Not before the topology has its name for itself: the last run's checkpoint must not be touched while it runs."""
        place = self._place or self._place_of(run, bool(resume))
        writer = (self._frame.writeStream.queryName(f"{FEEDING}{self._graph.name}/{self._component.name}")
                  .option("checkpointLocation", place).foreachBatch(self._push))
        seconds = FRAME_TRIGGER.of(self._conf)
        if seconds:
            writer = writer.trigger(processingTime=f"{int(seconds * 1000)} milliseconds")
        try:
            self._warn_of_what_goes_on(resume)
            with self._state:  # the first micro-batch may come before `start` returns
                self._query = writer.start()
                self._id = str(self._query.id)
        except SPARK_ERRORS as error:
            raise MillraceError(f"{self._label} of {self._graph.name!r} cannot start: {first_line(error)}. Its checkpoint is "
                                f"{place}; does that belong to this DataFrame?") from error
        self._watcher.start()

    def _place_of(self, run: str, resume: bool) -> str:
        """Below the checkpoint store."""
        assert self._runs is not None
        self._run = run
        place = self._runs.place(run)
        if resume and self._graph.waves and not place.exists():
            self._warn(f"{self._label} begins with the beginning of its DataFrame, on top of the state that is resumed: how "
                       f"far that run had read is not in {place}")
        return place.as_uri()

    def _warn_of_what_goes_on(self, resume: bool | None) -> None:
        """A checkpoint that the settings name is gone on from, always."""
        begins_anew = not resume if self._graph.waves else resume is False
        if not self._place or not begins_anew or not Placement(self._spark.sparkContext).exists(f"{self._place}/offsets"):
            return
        if self._graph.waves:
            self._warn(f"{self._label} goes on from its checkpoint {self._place}, and the state of the topology begins empty: "
                       "what was read before is not in it. With --resume state goes on too; with another checkpoint everything "
                       "is read again")
        else:
            self._warn(f"{self._label} goes on from its checkpoint {self._place}, as always: the settings name it, and --fresh "
                       "deletes none of those. With another checkpoint everything is read again")

    def _warn(self, text: str) -> None:
        self._master.later(lambda: self._master.say(Say(text, self._graph.name, "warning")))

    def _files_are_local(self) -> bool:
        """Whether a path without a scheme is one of this host, and not of the cluster's own file system."""
        conf = self._spark.sparkContext._jsc.hadoopConfiguration()
        return str(conf.get("fs.defaultFS", "file:///")).startswith("file:")

    def refuse_more(self) -> None:
        """No micro-batch after the one under way."""
        with self._state:
            self._refusing = True

    def stop(self, deadline: float) -> None:
        """Waits until then for the micro-batch under way."""
        if self._query is None:
            return
        try:
            with self._state:
                while self._under_way() and (left := deadline - time.monotonic()) > 0:
                    self._state.wait(min(left, 0.05))  # that Spark has written its commit is not announced
                self._stopped = True
            self._query.stop()
        except SPARK_ERRORS as error:
            log.warning("%s did not stop in time: %s", self._label, first_line(error))
        self._watcher.join(timeout=STOP_SECONDS)

    def _under_way(self) -> bool:
        assert self._query is not None
        if self._refused or not self._query.isActive:
            return False
        return self._pushing or bool(self._query.status["isTriggerActive"])

    # -- called by Spark ---------------------------------------------------------------------------------------------

    def _push(self, frame: DataFrame, batch: int) -> None:
        with self._state:
            if self._refusing:  # the one before is committed, or this would not have come
                self._refused = True
                raise FeedingFailed(f"{self._label} ends")
            self._pushing = True
        try:
            while not self._pushed(frame, batch):
                log.info("%s sends batch %d again: the topology has gone back meanwhile", self._label, batch)
            self._forget_other_runs()
        except Exception as error:  # Spark's own account of it is a stack trace of two languages
            self._failure = first_line(error)
            raise
        finally:
            with self._state:
                self._pushing = False

    def _pushed(self, frame: DataFrame, batch: int) -> bool:
        """Whether the micro-batch is through, and will not be missed whatever happens."""
        version = self._version()
        feeding = Feeding(self._master.endpoint, self._master.keys, self._graph.name, self._component.name, self._id, batch,
                          CHUNK_TUPLES.of(self._conf), FRAME_TIMEOUT.of(self._conf), FRAME_LIMIT.of(self._master.settings))
        narrow = frame.coalesce(self._partitions())
        for sent in map_in_arrow(narrow, partial(feed_partition, feeding), SENT).collect():
            if sent.error:
                raise FeedingFailed(sent.error)
        keeps_up = self._graph.waves and GUARANTEE.of(self._graph.config) == AT_LEAST_ONCE
        return not keeps_up or self._saved(version)

    def _partitions(self) -> int:
        """How many may be sent at the same time, now."""
        free, feeders = self._cores.count(), max(self._master.call(self._feeders), feeding_queries(self._spark))
        if leaves_none(free, feeders) and not self._told_tight:
            self._told_tight = True
            self._warn(f"{self._label} takes the last core that workers leave free: a query that reads a tap of this cluster "
                       "would wait for one, and nothing be acked. For that, give the Spark cluster one more core")
        return feeding_share(free, feeders)

    def _feeders(self) -> int:
        """Queries like this one, of all topologies, also of those that are just being started: they share what is free."""
        return max(1, sum(component.frame for topology in self._master.state.topologies.values()
                          for component in topology.graph.components))

    def _forget_other_runs(self) -> None:
        """When a resumption would take this one: without state that is at once, else with the first wave."""
        if self._runs is not None and (not self._graph.waves or self._master.call(self._saved_run) == self._run):
            self._runs.forget_others(self._run)
            self._runs = None

    def _saved_run(self) -> str:
        topology = self._master.state.topologies.get(self._graph.name)
        return topology.checkpoint.offsets if topology is not None and topology.checkpoint is not None else ""

    def _version(self) -> int:
        """It rises each time that tasks go back to a wave."""
        found: int = self._master.call(lambda: self._master.state.topology(self._graph.name).version)
        return found

    def _saved(self, version: int) -> bool:
        """What came of the micro-batch is in the state of tasks, and Spark would not send it again: wait until a wave that
        began after it is committed. False if tasks have gone back since: then some may have forgotten it."""
        wave = self._master.call(self._ask_for_wave) + 1
        while not self._master.wait_until(lambda: self._committed() >= wave or self._version() != version, WAVE_SECONDS):
            if self._stopped:  # nobody waits for this any more
                raise FeedingFailed(f"{self._label} ends")
            self._master.call(self._ask_for_wave)
        return self._version() == version

    def _ask_for_wave(self) -> int:
        """One is due; returns the number of the last one that has begun."""
        self._master.tell(WaveRequested(self._graph.name))
        waves = self._master.state.topology(self._graph.name).waves
        assert waves is not None
        return waves.wave

    def _committed(self) -> int:
        waves = self._master.state.topology(self._graph.name).waves
        assert waves is not None
        return waves.committed

    # -- the watch ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        assert self._query is not None
        try:
            while not self._query.awaitTermination(LOOK_SECONDS):
                stages = self._stages()
                self._look_for_cores(stages)
                for stage in stages:
                    if stage.numFailedTasks >= TASK_FAILURES:
                        self._give_up(stage)
                        return
            self._tell_end("was stopped by someone else")
        except SPARK_ERRORS as error:
            self._tell_end(f"failed: {self._failure or first_line(error)}")

    def _stages(self) -> list[SparkStageInfo]:
        """Those of the micro-batch under way."""
        assert self._query is not None
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(self._query.runId))]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None and job.status == "RUNNING"
                  for stage in job.stageIds]
        return [stage for stage in stages if stage is not None]

    def _look_for_cores(self, stages: list[SparkStageInfo]) -> None:
        """Workers hold theirs for good. If they hold all, Spark waits without a word."""
        now = time.monotonic()
        if not stages or any(stage.numActiveTasks for stage in stages):
            self._idle_since = None
            return
        self._idle_since = self._idle_since or now
        if now - self._idle_since > IDLE_SECONDS and not self._told_idle:
            self._told_idle = True
            self._warn(f"{self._label} waits for a core: give the Spark cluster more of them than it has workers")

    def _give_up(self, stage: SparkStageInfo) -> None:
        """Spark tries a task that fails again and again, a million times if need be, and says nothing: what user code in the
        DataFrame raises would never be heard of."""
        assert self._query is not None
        reason = self._reason(stage.stageId, stage.currentAttemptId)
        self._tell_end(f"is ended after {stage.numFailedTasks} failed Spark tasks of one stage: {reason}")
        with self._state:
            self._stopped = True
        self._query.stop()

    def _reason(self, stage: int, attempt: int) -> str:
        """What the last failed task of the stage said."""
        store = self._spark.sparkContext._jsc.sc().statusStore()
        tasks = store.taskList(stage, attempt, 1000)
        said = [tasks.apply(i).errorMessage() for i in range(tasks.size())]
        texts = [message.get() for message in said if message.isDefined()]
        lines = [line.strip() for line in (texts[-1] if texts else "").splitlines() if line.strip()]
        named = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "..."))]
        return " ".join(named[:1] + named[-1:])[:500] if len(named) > 1 else " ".join(named) or "Spark does not say why"

    def _tell_end(self, how: str) -> None:
        with self._state:
            if self._stopped or self._refusing:
                return
        text = f"{self._label} {how}. What is not acked comes again when the topology is submitted with the same checkpoint"
        name = self._graph.name

        def tell() -> None:
            self._master.say(Say(text, name, "error"))
            observed = self._master.observed.get(name)
            if observed is not None:
                observed.note_error({"topology": name, "task": self._component.name, "error": text, "traceback": ""})

        self._master.later(tell)


def map_in_arrow(frame: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
                 schema: str | types.StructType) -> DataFrame:
    """As `frame.mapInArrow`, which asks for pandas though nothing of it is used."""
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = udf(*[frame[f"`{name}`"] for name in frame.columns])
    return type(frame)(frame._jdf.mapInArrow(columns._jc, False, None), frame.sparkSession)


def check_frames(graph: TopologyGraph, frames: dict[str, Any]) -> None:
    """`TopologyError` for frame spouts that the resident engine cannot feed as the topology asks."""
    fed = [component.name for component in graph.components if component.frame]
    if fed and graph.exactly_once:
        raise TopologyError(f"{graph.name!r} asks for {EXACTLY_ONCE}, and {', '.join(fed)} is fed by a DataFrame, which the "
                            f"resident engine does at least once: run it with --engine microbatch (MicrobatchEngine), or set "
                            f"{GUARANTEE.key} to {AT_LEAST_ONCE}")
    if missing := [name for name in fed if name not in frames]:
        raise TopologyError(f"{', '.join(missing)} of {graph.name!r} is fed by a DataFrame, which a graph does not hold: "
                            "submit the topology's class instead")
