"""Runs one topology as a Structured Streaming query.

For each batch that Spark offers, `millrace.control.batches.decisions` decides the steps: attempts, the commit point,
publishing, collecting, repair. This module carries them out, with Spark jobs, the checkpoint store and the master.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.config import BATCH_INTERVAL, BATCH_SECONDS, BATCH_TUPLES, CHECKPOINTS
from millrace.control.assignment import TopologyAssignment
from millrace.control.backup_placement import backup_shape, backups
from millrace.control.batches.actions import BatchFailed, run_steps
from millrace.control.batches.decisions import Batches, Start
from millrace.control.batches.steps import (
    RETRIED,
    Announce,
    AwaitPlan,
    BatchStep,
    Collect,
    CommitPoint,
    CommitSinks,
    Life,
    Rest,
    Rewrite,
    RunAttempt,
    StopBatches,
    WriteRows,
)
from millrace.control.events import Say
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, STOPPING, WAITING
from millrace.control.wording import shown
from millrace.errors import CheckpointMissing, MillraceError, NotTheAuthor, TopologyError
from millrace.master.batch_log import REST, RUN_TASKS
from millrace.microbatch.batch_checkpoints import BatchCheckpoints
from millrace.microbatch.driver import BatchDriver
from millrace.microbatch.work import Attempt, BatchWork, PartitionReport
from millrace.model.graph import TopologyGraph
from millrace.runtime.checkpoints.topology_checkpoints import KEPT, Checkpoints
from millrace.spark.batches.jobs import BatchJobs
from millrace.spark.batches.long_batch import LongBatch
from millrace.spark.batches.offsets import SparkOffsets
from millrace.spark.batches.ports import BatchEnginePort
from millrace.spark.batches.reports import BatchReports
from millrace.spark.batches.source import rows_of, stream_of
from millrace.spark.batches.tasks import run_commit, run_rewrite
from millrace.spark.dataframes.writer import SinkWriter, WriteFailed, write_dataframes
from millrace.spark.session.errors import SPARK_ERRORS, first_words, is_gone, reports_missing_state
from millrace.state.checkpoint import TaskRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("millrace.master")
LOOK_SECONDS = 0.2
IDLE_SECONDS = 0.25  # before the next batch if the last one was empty
STOP_SECONDS = 10.0  # for Spark to end a query whose batch is aborted; user code in this process may never return
OFFSETS = re.compile(r"\d+-\d+")  # names of directories, as in manifests

_record = msgspec.msgpack.Decoder(TaskRecord)


class Stopped(MillraceError):
    """The topology is being killed; the current batch is abandoned."""


class BatchQuery(BatchDriver):
    """One run of a topology. Spark calls `on_batch` on its own thread; another thread watches the query."""

    transport_errors: tuple[type[Exception], ...] = SPARK_ERRORS

    def __init__(self, engine: BatchEnginePort, graph: TopologyGraph, sources: Mapping[str, DataFrame], run: str,
                 checkpoints: Checkpoints, start: Start, place: str, writers: list[SinkWriter],
                 jobs: BatchJobs | None = None) -> None:
        super().__init__(BatchCheckpoints(checkpoints),
                         Batches(graph, start, engine.next_epoch, keep=KEPT, writes_rows=bool(writers)))
        self._engine, self._master, self.name, self._graph = engine, engine.master, graph.name, graph
        self._jobs = jobs or BatchJobs(engine.placement, engine.executors, sources, engine.number)
        self._sources, self.run, self._place, self._writers = dict(sources), run, place, writers
        self._offsets = SparkOffsets(engine.placement, place)
        self.number = -1
        self._reports = BatchReports(graph.name, engine.master, engine.executors)
        self._long = LongBatch(graph.name, engine.master, self._jobs, engine.free_cores)
        self._began = 0.0, 0.0  # the first attempt at the batch: unix time, and by the clock of `time.monotonic`
        self._dataframe: Any = None  # the batch that Spark has offered
        self._is_cached = False
        self._error = ""  # of the step of the current batch that failed last
        self._noted = ""  # the last error of a sink's function reported to the master
        self._unwritten = ""  # the step left to the resumed run because the topology is being killed
        self._unfinished = False  # a batch has begun and is not published yet
        self._stopped = False  # the error that ended the query is `Stopped`
        self._busy = threading.Lock()  # held while a batch runs
        self._ended = threading.Event()
        self._query: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"millrace batches of {graph.name}")

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start the query. `number`: the topology's, among all that its master has run."""
        self.number = number
        self._store.begin(self.decider.committed)
        self._offsets.make()
        interval = BATCH_INTERVAL.of(self._graph.config)
        stream = stream_of(self._engine.spark, self._graph, self._sources)
        writer = stream.writeStream.foreachBatch(self.on_batch).option("checkpointLocation", self._place)
        try:
            self._query = writer.trigger(processingTime=f"{interval:g} milliseconds").start()
        except SPARK_ERRORS as error:
            raise TopologyError(f"Spark could not start the query of {self.name!r}: {first_words(error)}") from error
        self._thread.start()

    def _watch(self) -> None:
        """Wait until the query ends or the topology is killed. The current batch is finished first, unless that takes longer
        than the kill allows."""
        try:
            error = self._watch_query()
        except SPARK_ERRORS as lost:
            error = lost
        self._ended.set()
        if error is not None and is_gone(self._engine.spark.sparkContext):
            self._engine.spark_is_gone()
        if self._status() is not None:
            self._report_end(error)

    def _watch_query(self) -> Exception | None:
        """Returns the error that ended the query, if one did."""
        while self._query.isActive and not self._ended.wait(LOOK_SECONDS):
            status = self._status()
            if status is None or self._master.superseded:
                break
            self._long.look(str(self._query.runId))
            if status == STOPPING and self._busy.acquire(timeout=LOOK_SECONDS):
                self._ended.set()
                self._busy.release()
        self._ended.set()
        error: Exception | None = None if self._query.isActive else self._query.exception()
        self._query.stop()
        return error

    def _report_end(self, error: Exception | None) -> None:
        how, uncommitted = self._outcome(error)
        if uncommitted:
            self._say(uncommitted, "error")
        self._master.batching.finish(self.name, how, uncommitted)

    def _outcome(self, error: Exception | None) -> tuple[str, str]:
        """The way in which the query has ended, and what was not committed or published by it, with the reason."""
        if self._master.superseded:
            return "another driver took over", self._master.superseded
        if self._engine.lost:
            return "Spark has ended", self._engine.lost
        if self._unwritten:
            return "its last batch is committed, but not written", (
                f"it ended before it could {self._unwritten}; the rows are in the checkpoint, and --resume writes them")
        if error is not None and not self._stopped:
            return "its query has failed", (
                f"the query ended: {first_words(error)}. --resume continues from the last committed batch")
        if self._unfinished:
            because = f": {self._error}" if self._error else ""
            return "its last batch is not finished", (
                f"it ended before its last batch was committed and published{because}. --resume continues from the last "
                "committed batch")
        return "its last batch is committed", ""

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Wait for the end; returns False if it has not come within `seconds`."""
        self._thread.join(timeout=seconds)
        return self.over

    @property
    def over(self) -> bool:
        return self._ended.is_set() and not self._thread.is_alive()

    def _topology(self) -> TopologyState | None:
        """This run's topology; not a later one of the same name."""
        topology = self._master.state.topologies.get(self.name)
        return topology if topology is not None and topology.number == self.number else None

    def _status(self) -> str | None:
        topology = self._topology()
        return topology.status if topology is not None else None

    def life(self) -> Life:
        status = self._status()
        if status is None:
            return Life.GONE
        if self._ended.is_set():
            return Life.ENDED
        return Life.STOPPING if status == STOPPING else Life.RUNNING

    def _say(self, text: str, level: str = "info") -> None:
        self._master.call(lambda: self._master.say(Say(text, self.name, level)))

    # -- a batch -----------------------------------------------------------------------------------------------------

    def on_batch(self, dataframe: DataFrame, number: int) -> None:
        """Called by Spark for every batch, and again for one that Spark has not recorded as done."""
        with self._busy:
            self._dataframe = dataframe
            try:
                is_empty = self._run_batch(number)
            except NotTheAuthor as error:
                superseded = error
                self._master.call(lambda: self._master.give_way(superseded))
                raise
            finally:
                self._free_rows()
                self._dataframe = None
        if is_empty:
            self._ended.wait(IDLE_SECONDS)

    def _free_rows(self) -> None:
        """Free the memory that the rows of the batch take."""
        if self._is_cached:
            self._is_cached = False
            try:
                self._dataframe.unpersist()
            except SPARK_ERRORS as error:
                log.warning("the rows of a batch of %s stay cached: %s", self.name, first_words(error))

    def _run_batch(self, number: int) -> bool:
        """Returns True if the batch has run and had no tuples."""
        decider, self._error = self.decider, ""
        step = decider.offered(number, self._offsets.digest(number))
        if decider.committed is not None and isinstance(step, CommitSinks | WriteRows):  # of an earlier run
            self._long.is_committed(decider.batch_of(decider.committed.wave))
        end = run_steps(step, decider, self)
        if isinstance(end, StopBatches):
            self._unwritten, self._stopped = end.unwritten, True
            raise Stopped(f"{self.name!r} is being killed")
        if not end.ran:
            return False
        return self._reports.take(number, *self._committed(), decider.attempts, self._began).tuples_in == 0

    def entering(self, step: BatchStep) -> None:
        if not isinstance(step, AwaitPlan):  # it may follow a pause, which is shown until the batch begins
            self._long.doing = step.doing if isinstance(step, RETRIED) else RUN_TASKS
            self._unfinished = not isinstance(step, Collect)

    def note_failure(self, error: Exception) -> Life:
        self._error = str(error) if isinstance(error, WriteFailed) else first_words(error)
        self._long.failed(self._error)
        if isinstance(error, WriteFailed) and self._error != self._noted:
            self._noted = self._error
            self._master.batching.note_error(self.name, error.component, str(error), error.stack)
        return Life.ENDED if is_gone(self._engine.spark.sparkContext) else self.life()

    def rest(self, step: Rest) -> None:
        """Pause, unless the topology is ending."""
        if isinstance(step.step, AwaitPlan):
            self._long.doing = REST
        self._say(f"{step.failed}; retrying in {step.seconds:g} s: {self._error}", "warning")
        until = time.monotonic() + step.seconds
        while (left := until - time.monotonic()) > 0:
            life = self.life()
            if life in (Life.ENDED, Life.GONE) or (life is Life.STOPPING and not step.patient):
                return
            self._ended.wait(min(left, LOOK_SECONDS))

    # -- attempts ----------------------------------------------------------------------------------------------------

    def await_plan(self) -> int:
        while True:
            self._engine.executors.look()
            topology = self._topology()
            if topology is None or self.life() is not Life.RUNNING:
                return 0
            if topology.status not in (PAUSED, WAITING):
                break
            self._long.over()
            self._ended.wait(LOOK_SECONDS)
        self._master.batching.began(self.name)
        if not self.decider.attempts:  # nothing of the batch ran while the topology was paused, which may be hours
            self._began = time.time(), time.monotonic()
        self._long.begins(self.decider.batch, self.decider.attempts + 1)
        return topology.version

    def _prepare(self, step: RunAttempt) -> BatchWork:
        topology, dataframe = self._topology(), self._dataframe
        if topology is None:
            raise BatchFailed(f"topology {self.name!r} no longer exists")
        if len(self._sources) > 1 and not self._is_cached:
            dataframe.persist()  # each spout selects its own rows
            self._is_cached = True
        schemas = {name: schema_of(rows_of(dataframe, self._sources, name)) for name in self._sources}
        assignment = self._master.call(lambda: self._assignment(topology, step.epoch, topology.graph))
        records = self.decider.committed.records if self.decider.committed is not None else []
        return self._work(assignment, step.wave, records, schemas)

    def _run(self, attempt: Attempt) -> list[PartitionReport]:
        try:
            return self._jobs.run(attempt, self._dataframe)
        except SPARK_ERRORS as error:
            if not reports_missing_state(error):
                raise
            text = first_words(error)
        raise CheckpointMissing(text)

    def _work(self, assignment: TopologyAssignment, wave: int, records: list[TaskRecord],
              schemas: dict[str, bytes]) -> BatchWork:
        engine, config = self._engine, assignment.graph.config
        return BatchWork(self.run, engine.runs(), wave, assignment, records, engine.executors.by_id(), self._reports.holders(),
                         engine.setup, BATCH_TUPLES.of(config), BATCH_SECONDS.of(config), schemas,
                         holds=engine.executors.several and backup_shape(assignment.graph) != (0, 0))

    def _assignment(self, topology: TopologyState, epoch: int, graph: TopologyGraph) -> TopologyAssignment:
        """The current plan; called on the master's thread."""
        slots = {task: place.slot for task, place in topology.places.items()}
        nodes = {slot: worker.node.name for slot, worker in self._master.state.workers.items()}
        blocks, holders = backups(topology.graph, slots, nodes)
        return TopologyAssignment(topology.number, graph, topology.version, True, sorted(topology.places.items()),
                                  dict(topology.key_groups), [], 0, epoch, self.decider.restore, blocks, holders,
                                  topology.earlier)

    # -- repair ------------------------------------------------------------------------------------------------------

    def _rewrite(self, attempt: Attempt, work: BatchWork, step: Rewrite) -> list[TaskRecord]:
        answers = self._jobs.run_in_place(attempt.graph, attempt.slots, [record.task for record in step.records], work,
                                          run_rewrite, step.lost)
        self._say(f"the store has lost {shown(step.lost)}: {len(answers)} of {len(step.records)} affected tasks have "
                  "rewritten their state", "warning")
        return [_record.decode(answer) for answer in answers]

    # -- the commit point --------------------------------------------------------------------------------------------

    def commit(self, step: CommitPoint) -> None:
        # Spark might plan another batch of this number after a power cut, if its notes on this one were not on the disk.
        self._offsets.sync(self.decider.batch, step.manifest.offsets_digest)
        super().commit(step)

    # -- after the commit point --------------------------------------------------------------------------------------

    def announce(self, step: Announce) -> None:
        super().announce(step)
        manifest = step.manifest
        self._master.batching.committed(self.name, manifest)
        batch = self.decider.batch_of(manifest.wave)
        if batch == self.decider.batch:
            self._long.is_committed(batch)
            self._free_rows()  # sinks may take minutes to publish

    def commit_sinks(self, step: CommitSinks) -> None:
        topology = self._topology()
        if topology is None:
            raise BatchFailed(f"topology {self.name!r} no longer exists")
        assignment = self._master.call(lambda: self._assignment(topology, step.epoch, step.graph))
        done = self.decider.committed
        prepared = [TaskRecord(*record.task, prepared=record.prepared) for record in (done.records if done else [])]
        work = self._work(assignment, self.decider.restore[0], prepared, {})
        slots = {task: place.slot for task, place in assignment.places}
        tasks = list(step.tasks)
        self._jobs.run_in_place(step.graph, slots, tasks, work, run_commit, tasks)

    def write_rows(self, step: WriteRows) -> None:
        write_dataframes(self._engine.spark, self._writers, step.manifest, str(CHECKPOINTS.of(self._master.settings)),
                         step.manifest.wave - 1)
        self._noted = ""

    def collect(self, step: Collect) -> None:
        self._long.over()
        if step.names is None:
            self._master.checkpointing.collect(self.name, step.epoch)
        else:
            self._master.checkpointing.discard(self.name, list(step.names))
        if step.forget_runs:
            self._forget_other_runs()

    def _forget_other_runs(self) -> None:
        """Delete Spark's offsets of earlier runs, whose checkpoints are gone."""
        try:
            self._engine.placement.delete_beside(self._place, OFFSETS)
        except SPARK_ERRORS as error:
            log.warning("Spark's offsets of earlier runs of %s are not deleted: %s", self.name, first_words(error))


def schema_of(dataframe: DataFrame) -> bytes:
    """The Arrow schema of the DataFrame: its record batches come without one."""
    conf = dataframe.sparkSession.conf
    large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    zone = conf.get("spark.sql.session.timeZone")
    schema: pa.Schema = to_arrow_schema(dataframe.schema, timezone=zone, prefers_large_types=large)
    return schema.serialize().to_pybytes()


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Filter Py4J's log, which has a stack trace of every exception of the function that Spark calls, even if the topology was
    killed or the JVM has ended."""
    return not (record.exc_info and isinstance(record.exc_info[1], (Stopped, Py4JNetworkError, ConnectionError)))


logging.getLogger("py4j.clientserver").addFilter(_keep_quiet)
