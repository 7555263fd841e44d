"""One topology as a Structured Streaming query: for each batch one Spark job, a manifest, and the sinks' commit.

An attempt at a batch is all or nothing. Whatever fails in it, an executor, a Python process, user code that cannot write, the
batch is run again as a whole, in a new epoch, from the wave before it. Nothing of the failed attempt counts: what it wrote to
the store and what its sinks staged is under its own epoch.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.config import BATCH_INTERVAL, BATCH_SECONDS, BATCH_TUPLES, CHECKPOINTS
from millrace.control.assignment import TopologyAssignment
from millrace.control.backup_placement import backup_shape, backups
from millrace.control.events import Say
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, STOPPING, WAITING
from millrace.errors import CheckpointMissing, CorruptCheckpoint, MillraceError, NotTheAuthor, TopologyError
from millrace.master.batch_log import REST, RUN_TASKS
from millrace.microbatch.checkpoints import BatchCheckpoints
from millrace.microbatch.repair import damaged, mended, mending_work
from millrace.microbatch.work import BatchWork, PartitionReport
from millrace.microbatch.worker import BatchFailed
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.checkpoints.checkpoints import Checkpoints, shown
from millrace.spark.batches.jobs import Attempt, BatchJobs
from millrace.spark.batches.long_batch import LongBatch
from millrace.spark.batches.reports import BatchReports
from millrace.spark.batches.source import frame_of, stream_of
from millrace.spark.batches.tasks import run_commit, run_rewrite
from millrace.spark.dataframes.writer import SinkWriter, WriteFailed, write_dataframes
from millrace.spark.session.errors import GONE, SPARK_ERRORS, first_words, is_gone
from millrace.state.checkpoint import Manifest, TaskRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.microbatch import MicrobatchEngine

log = logging.getLogger("millrace.master")
FIRST_PAUSE, LAST_PAUSE = 0.1, 30.0  # before a batch that failed is run again
GOOD_KNOWN = 200  # batches after which a process that was not used meanwhile makes its components anew
LOOK_SECONDS = 0.2
IDLE_SECONDS = 0.25  # before the next batch if the last one had nothing in it
STOP_SECONDS = 10.0  # that Spark is given to end a query, whose batch is broken off; user code in this process may never return
MENDS = 3  # rounds in which tasks are asked to write again what the store has lost: one may miss the process that has it
LACKING = 5  # attempts in a row that do not find a part of the state, until that is taken for lost
OFFSETS = re.compile(r"\d+-\d+")  # names of directories, as in manifests

_record = msgspec.msgpack.Decoder(TaskRecord)


class Stopped(MillraceError):
    """The topology is being killed: the batch that has begun is not run."""


class BatchQuery:
    """Runs until it is killed, or cannot go on. Spark calls `_batch` on a thread of its own."""

    def __init__(self, engine: MicrobatchEngine, graph: TopologyGraph, sources: Mapping[str, DataFrame], run: str,
                 checkpoints: Checkpoints, committed: Manifest | None, epoch: int, offsets: str, place: str,
                 writers: list[SinkWriter]) -> None:
        self._engine, self._master, self.name = engine, engine.master, graph.name
        self._jobs = BatchJobs(engine.placement, engine.executors, sources, engine.number)
        self._sources, self.run, self._store = dict(sources), run, BatchCheckpoints(checkpoints, run)
        self._committed, self._epoch, self._offsets, self._place = committed, epoch, offsets, place
        self._base = int(offsets.rpartition("-")[2])  # the wave after which its batches are counted
        self.number = -1
        self._writers = writers
        self._published = committed is None  # the sinks have made visible what was committed
        self._reports = BatchReports(graph.name, engine.master, engine.executors)
        self._attempts = self._lacking = 0  # at the batch at hand; of them in a row that missed something in the store
        self._began = 0.0, 0.0  # its first attempt: unix time, and by the clock of `time.monotonic`
        self._last: Attempt | None = None  # the one that was committed last
        self._collect_all = True
        self._good: deque[int] = deque(maxlen=GOOD_KNOWN)
        self._long = LongBatch(graph.name, engine.master, self._jobs, engine.free_cores)
        self._forgot = False  # what earlier runs have left
        self._unwritten = ""  # of what is committed: what was given up because the topology is being killed
        self._busy = threading.Lock()  # held while a batch runs
        self._ended = threading.Event()
        self._graph = graph if committed is None else with_parallelism(graph, committed.parallelism)  # as it was committed
        self._query: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"millrace batches of {graph.name}")

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """`number`: the topology's, among all that its master has run."""
        self.number = number
        self._store.begin(self._committed)
        interval = BATCH_INTERVAL.of(self._graph.config)
        stream = stream_of(self._engine.spark, self._graph, self._sources)
        writer = stream.writeStream.foreachBatch(self._batch).option("checkpointLocation", self._place)
        try:
            self._query = writer.trigger(processingTime=f"{interval:g} milliseconds").start()
        except SPARK_ERRORS as error:
            raise TopologyError(f"Spark does not begin to read for {self.name!r}: {first_words(error)}") from error
        self._thread.start()

    def _watch(self) -> None:
        """Until the query ends, or the topology is killed. The batch that is under way is finished first, unless that takes
        longer than whoever kills it wants to wait."""
        try:
            error = self._watched()
        except SPARK_ERRORS as lost:
            error = lost
        self._ended.set()
        if error is not None and is_gone(self._engine.spark):
            self._engine.lost = GONE
        if self._status() is not None:
            self._tell_end(error)

    def _watched(self) -> Exception | None:
        """How the query has ended, if by an error."""
        while self._query.isActive and not self._ended.wait(LOOK_SECONDS):
            status = self._status()
            if status is None:
                break
            self._long.look(str(self._query.runId))
            if status == STOPPING and self._busy.acquire(timeout=LOOK_SECONDS):
                self._ended.set()
                self._busy.release()
        self._ended.set()
        error: Exception | None = None if self._query.isActive else self._query.exception()
        self._query.stop()
        return error

    def _tell_end(self, error: Exception | None) -> None:
        how = "its last batch is committed"
        if self._engine.lost:
            self._say(self._engine.lost, "warning")
            how = "Spark has ended"
        elif self._unwritten:
            self._say(f"it ends before it could {self._unwritten}: that is in the checkpoint, and written when it is resumed",
                      "error")
        elif error is not None and self._status() != STOPPING:
            self._say(f"the query ended: {first_words(error)}. With --resume it goes on from the last batch", "error")
        self._master.finish(self.name, how)

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout=seconds)
        return self.over

    @property
    def over(self) -> bool:
        return self._ended.is_set() and not self._thread.is_alive()

    def _topology(self) -> TopologyState | None:
        """Ours; not another one that was given its name since."""
        topology = self._master.state.topologies.get(self.name)
        return topology if topology is not None and topology.number == self.number else None

    def _status(self) -> str | None:
        topology = self._topology()
        return topology.status if topology is not None else None

    def _check_mine(self) -> None:
        """A topology that was given up while its batch ran commits nothing."""
        if self._topology() is None:
            raise Stopped(f"{self.name!r} has ended")

    def _say(self, text: str, level: str = "info") -> None:
        self._master.call(lambda: self._master.say(Say(text, self.name, level)))

    # -- a batch -----------------------------------------------------------------------------------------------------

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Called by Spark for every batch, again for one that it does not know to be done."""
        with self._busy:
            self._publish()
            wave = self._base + number + 1
            done = self._committed.wave if self._committed is not None else self._base
            if wave == done:
                return  # all of it was done before a crash, but for Spark's own note of it
            if wave != done + 1:
                raise CorruptCheckpoint(f"Spark goes on with batch {number} of {self.name!r}, and the last one in the store is "
                                        f"batch {done - self._base - 1}: the two do not belong together. Bring back the store "
                                        "from a backup, or begin anew with --fresh")
            tuples = self._run_batch(frame, number, wave)
        if not tuples:
            self._ended.wait(IDLE_SECONDS)

    def _run_batch(self, frame: DataFrame, number: int, wave: int) -> int:
        several = len(self._sources) > 1
        if several:
            frame.persist()  # each spout looks for its own rows in it
        try:
            manifest, reports, attempt = self._committed_batch(frame, wave)
        finally:
            if several:
                frame.unpersist()
        self._master.committed(self.name, manifest)  # now: the sinks may keep the batch waiting for long
        self._publish()
        return self._reports.take(number, attempt, reports, self._attempts, self._began).tuples_in

    def _committed_batch(self, frame: DataFrame, wave: int) -> tuple[Manifest, list[PartitionReport], Attempt]:
        """The first attempt that succeeds and can be committed."""
        self._attempts, self._lacking, whole = 0, 0, False
        while True:
            try:
                topology = self._wait_for_a_plan()
                self._master.begin_batch(self.name)
                self._attempts += 1
                if self._attempts == 1:  # before that nothing of it ran: the topology may have been paused for hours
                    self._began = time.time(), time.monotonic()
                self._long.begins(wave - self._base - 1, self._attempts)
                self._mend_for(topology.version)
                attempt = self._attempt(topology, frame, wave, whole)
                reports = self._jobs.run(attempt, frame)
                self._check_mine()
                return self._commit(attempt, reports), reports, attempt
            except CheckpointMissing as error:  # not all of the state was where it was run: what is there is written whole
                whole = True
                self._failed(error)
            except (*SPARK_ERRORS, BatchFailed, OSError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._is_over() or is_gone(self._engine.spark):
            raise Stopped(f"{self.name!r} is being killed") from None  # Spark chokes on texts as long as that of the cause
        self._check_lacking(error)
        pause, said = min(FIRST_PAUSE * 2 ** (self._attempts - 1), LAST_PAUSE), first_words(error)
        self._long.failed(said)
        self._long.doing = REST
        self._say(f"attempt {self._attempts} at the batch failed, it is run again in {pause:g} s: {said}", "warning")
        self._rest(pause)

    def _is_over(self) -> bool:
        """Or will be, as soon as the batch under way is."""
        return self._ended.is_set() or self._status() in (None, STOPPING)

    def _rest(self, seconds: float) -> None:
        """Before the next attempt; not when someone waits for the end."""
        until = time.monotonic() + seconds
        while not self._is_over() and (left := until - time.monotonic()) > 0:
            self._ended.wait(min(left, LOOK_SECONDS))

    def _check_lacking(self, error: Exception) -> None:
        """State that is nowhere does not come back by itself. That it is, is known when several attempts have not found it: a
        task may be run in another process than the one that has it."""
        lacks = isinstance(error, CheckpointMissing) or CheckpointMissing.__name__ in first_words(error)
        self._lacking = self._lacking + 1 if lacks else 0
        if self._lacking < LACKING or self._committed is None:
            return
        lost = self._lost(self._committed)
        if lost:
            tasks = ", ".join(str(record.task) for record in damaged(self._committed, lost))
            raise CheckpointMissing(f"the state of {tasks} of {self.name!r} as of wave {self._committed.wave} is in no "
                                    f"process, in no fragments and not in the store, which has lost {shown(lost)}. Bring that "
                                    "back from a backup and start with --resume, or with --fresh, from nothing") from None

    def _wait_for_a_plan(self) -> TopologyState:
        """The topology as it is to be run now: it is neither paused nor without a slot."""
        while True:
            self._engine.executors.look()
            topology = self._topology()
            if self._ended.is_set() or topology is None or topology.status == STOPPING:
                raise Stopped(f"{self.name!r} is being killed")
            if topology.status not in (PAUSED, WAITING):
                return topology
            self._long.over()
            self._ended.wait(LOOK_SECONDS)

    def _attempt(self, topology: TopologyState, frame: DataFrame, wave: int, whole: bool) -> Attempt:
        self._epoch = self._engine.next_epoch()
        schemas = {name: schema_of(frame_of(frame, self._sources, name)) for name in self._sources}
        given = self._master.call(lambda: self._assignment(topology))
        work = self._work(given, wave, self._committed.records if self._committed is not None else [], schemas)
        work = msgspec.structs.replace(work, again=self._attempts > 1, whole=whole)
        return Attempt(work, work.stages(), given.graph, {task: place.slot for task, place in given.places})

    def _work(self, given: TopologyAssignment, wave: int, records: list[TaskRecord], schemas: dict[str, bytes]) -> BatchWork:
        engine, config = self._engine, given.graph.config
        return BatchWork(self.run, engine.runs(), wave, given, records, engine.executors.by_id(), self._reports.holders(),
                         engine.setup, BATCH_TUPLES.of(config), BATCH_SECONDS.of(config), schemas, list(self._good),
                         holds=engine.executors.several and backup_shape(given.graph) != (0, 0))

    def _assignment(self, topology: TopologyState) -> TopologyAssignment:
        """What is in force at this moment; on the master's thread."""
        done = self._committed
        restore = (done.wave, done.wave_epoch, done.epoch) if done is not None else (0, 0, 0)
        slots = {task: place.slot for task, place in topology.places.items()}
        nodes = {slot: worker.node.name for slot, worker in self._master.state.workers.items()}
        blocks, holders = backups(topology.graph, slots, nodes)
        return TopologyAssignment(topology.number, topology.graph, topology.version, True, sorted(topology.places.items()),
                                  dict(topology.key_groups), [], 0, self._epoch, restore, blocks, holders)

    # -- its end -----------------------------------------------------------------------------------------------------

    def _commit(self, attempt: Attempt, reports: list[PartitionReport]) -> Manifest:
        """The manifest is the commit point, as for waves."""
        records = sorted((task.record for report in reports for task in report.tasks), key=lambda record: record.task)
        epoch = attempt.work.given.epoch
        manifest = Manifest(self.name, attempt.work.wave, epoch, attempt.graph.key_groups,
                            {component.name: component.par for component in attempt.graph.components}, records, time.time(),
                            epoch, self._offsets)
        self._check_groups(manifest)
        for mend in (*[True] * MENDS, False):
            try:
                self._until_done("write the manifest", partial(self._store.commit, manifest))
                break
            except CheckpointMissing:
                if not mend:
                    raise
                manifest = self._mended(attempt, manifest)
        self._committed, self._published, self._graph, self._last = manifest, False, attempt.graph, attempt
        self._good.append(epoch)
        return manifest

    def _mend_for(self, version: int) -> None:
        """Under a new plan tasks leave the processes that they are in, and what they have there is forgotten. So what the store
        has lost must be in it again by then."""
        if self._last is None or self._committed is None or self._last.work.given.version == version:
            return
        if self._lost(self._committed):
            self._committed = self._mended(self._last, self._committed)
            self._until_done("write the manifest", partial(self._store.enter, self._committed))
            self._master.committed(self.name, self._committed)
        self._last = None  # once for each plan

    def _lost(self, manifest: Manifest) -> set[str]:
        lost: set[str] = set()
        self._until_done("look for blobs", lambda: lost.update(self._store.lost(manifest)))
        return lost

    def _mended(self, attempt: Attempt, manifest: Manifest) -> Manifest:
        """The same, as far as the tasks of the attempt could write again what the store has lost."""
        lost = self._lost(manifest)
        records, epoch = damaged(manifest, lost), self._engine.next_epoch()
        work = mending_work(attempt.work, manifest, records, epoch)
        written: list[TaskRecord] = []

        def write() -> None:
            answers = self._jobs.run_in_place(attempt.graph, attempt.slots, [record.task for record in records], work,
                                              run_rewrite, frozenset(lost))
            written[:] = map(_record.decode, answers)

        self._until_done("write again what the store has lost", write)
        self._collect_all = True  # what was written first, and is still there, is in no manifest
        self._say(f"the store has lost {shown(lost)}: {len(written)} of the {len(records)} tasks that need it have written "
                  "their state again", "warning")
        return mended(manifest, written, epoch)

    def _check_groups(self, manifest: Manifest) -> None:
        """State may be empty, but what a group had it still has, or a piece that says that it is gone."""
        for component in manifest.parallelism if self._committed is not None else ():
            lost = self._committed.chains(component).keys() - manifest.chains(component).keys()  # type: ignore[union-attr]
            if lost:
                raise CorruptCheckpoint(f"key groups {sorted(lost)} of {component!r} are missing after wave {manifest.wave} of "
                                        f"{self.name!r}, which is not committed. This is an error in Millrace")

    def _publish(self) -> None:
        """Let the sinks make visible what was committed; after a crash, what was committed before it."""
        if self._published:
            return
        tasks = [TaskId(component.name, index) for component in self._graph.components if component.commits
                 for index in range(component.par)]
        assert self._committed is not None
        self._long.is_committed(self._committed.wave - self._base - 1)
        if tasks:
            self._until_done("commit what the sinks have prepared", lambda: self._commit_sinks(tasks))
        if self._writers:
            self._until_done("write what the sinks have kept", self._write_dataframes, later=True)
        self._published = True
        self._long.over()
        self._collect()

    def _commit_sinks(self, tasks: list[TaskId]) -> None:
        topology = self._topology()
        if topology is None:
            raise Stopped(f"{self.name!r} has ended")
        self._epoch = self._engine.next_epoch()
        given = replace(self._master.call(lambda: self._assignment(topology)), graph=self._graph)
        work = self._work(given, self._committed.wave if self._committed is not None else 0, [], {})
        slots = {task: place.slot for task, place in given.places}
        self._jobs.run_in_place(self._graph, slots, tasks, work, run_commit, tasks)

    def _collect(self) -> None:
        """What the batch was the last to need. After one that did not go straight, all names must be looked at."""
        assert self._committed is not None
        unused = self._store.superseded(self._committed, self._attempts == 1 and not self._collect_all)
        self._collect_all = False
        if unused is None:
            self._master.checkpointing.collect(self.name, self._committed.epoch)
        else:
            self._master.checkpointing.discard(self.name, unused)
            self._forget_other_runs()

    def _forget_other_runs(self) -> None:
        """All checkpoints there are now are of this run, so nobody will ask how far Spark had read in others."""
        if self._forgot:
            return
        self._forgot = True
        try:
            self._engine.placement.delete_beside(self._place, OFFSETS)
        except SPARK_ERRORS as error:
            log.warning("what Spark had read in earlier runs of %s is left: %s", self.name, first_words(error))

    def _write_dataframes(self) -> None:
        assert self._committed is not None
        write_dataframes(self._engine.spark, self._writers, self._committed, str(CHECKPOINTS.of(self._master.settings)),
                     self._committed.wave - 1)

    def _until_done(self, what: str, work: Any, later: bool = False) -> None:
        """What is decided must be done, however long a store or a server is away. `later`: it can wait for a resumption, and
        does if the topology is killed."""
        attempt, told, self._long.doing = 0, "", what
        while True:
            try:
                work()
                self._long.doing = RUN_TASKS
                return
            except (NotTheAuthor, CheckpointMissing):
                raise
            except Stopped:
                raise
            except Exception as error:  # of a store, of Spark, or of a function of the user's
                if isinstance(error, WriteFailed) and str(error) != told:
                    told = str(error)
                    self._note_error(error)
                if self._ended.is_set() or is_gone(self._engine.spark) or (later and self._is_over()):
                    self._unwritten = what if later else ""
                    raise Stopped(f"{self.name!r} is being killed") from None
                attempt += 1
                pause = min(FIRST_PAUSE * 2**attempt, LAST_PAUSE)
                said = str(error) if isinstance(error, WriteFailed) else first_words(error)
                self._long.failed(said)
                self._say(f"cannot {what}, and tries again in {pause:g} s: {said}", "warning")
                self._rest(pause) if later else self._ended.wait(pause)

    def _note_error(self, error: WriteFailed) -> None:
        self._master.call(lambda: self._master.batching.note_error(self.name, error.component, str(error), error.stack))


def with_parallelism(graph: TopologyGraph, par: Mapping[str, int]) -> TopologyGraph:
    return replace(graph, components=tuple(replace(component, par=par[component.name]) for component in graph.components))


def schema_of(frame: DataFrame) -> bytes:
    """As Arrow has it: the batches come without."""
    conf = frame.sparkSession.conf
    large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    zone = conf.get("spark.sql.session.timeZone")
    schema: pa.Schema = to_arrow_schema(frame.schema, timezone=zone, prefers_large_types=large)
    return schema.serialize().to_pybytes()


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Py4J logs, with a stack trace, whatever the function that Spark calls raises: also that a topology was killed, or that
    there is no JVM any more."""
    return not (record.exc_info and isinstance(record.exc_info[1], (Stopped, Py4JNetworkError, ConnectionError)))


logging.getLogger("py4j.clientserver").addFilter(_keep_quiet)
