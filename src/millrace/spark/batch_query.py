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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.config import BATCH_INTERVAL, BATCH_SECONDS, BATCH_TUPLES, CHECKPOINTS
from millrace.control.assignment import TopologyAssignment, WorkerAddress
from millrace.control.backups import backup_shape, backups
from millrace.control.events import Say
from millrace.control.stages import Stages
from millrace.control.topology_state import PAUSED, STOPPING, WAITING, TopologyState
from millrace.errors import CheckpointMissing, CorruptCheckpoint, MillraceError, NotTheAuthor
from millrace.master.batches import BatchRecord
from millrace.microbatch import frames
from millrace.microbatch.batch_worker import BatchFailed
from millrace.microbatch.totals import Totals
from millrace.microbatch.work import BatchWork, PartitionReport, one_cut, read_report
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.runtime import wire
from millrace.runtime.checkpoints import Checkpoints
from millrace.spark.batch_source import frame_of, stream_of
from millrace.spark.batch_tasks import run_commit, run_stage
from millrace.spark.frame_writer import FrameWriter, write_frames
from millrace.spark.spark_errors import SPARK_ERRORS, lines_of
from millrace.state.checkpoint import Manifest, TaskRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.microbatch import MicrobatchEngine

log = logging.getLogger("millrace.master")
FIRST_PAUSE, LAST_PAUSE = 0.1, 30.0  # before a batch that failed is run again
LANES = 16  # of an executor at most: each is a process that forks, and those that it has forked
GOOD_KNOWN = 200  # batches after which a process that was not used meanwhile makes its components anew
LOOK_SECONDS = 0.2
IDLE_SECONDS = 0.25  # before the next batch if the last one had nothing in it
STOP_SECONDS = 30.0
_PYTHON_ERROR = re.compile(r"(?!org\.apache|java\.|py4j)[A-Za-z_][\w.]*"
                           r"(Error|Exception|Failed|Missing|Unreachable|Checkpoint)\b.*: ")


class Stopped(MillraceError):
    """The topology is being killed: the batch that has begun is not run."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a batch, put together and not run yet."""

    work: BatchWork
    stages: Stages
    graph: TopologyGraph
    slots: dict[TaskId, int]


class BatchQuery:
    """Runs until it is killed, or cannot go on. Spark calls `_batch` on a thread of its own."""

    def __init__(self, engine: MicrobatchEngine, graph: TopologyGraph, sources: Mapping[str, DataFrame], run: str,
                 checkpoints: Checkpoints, committed: Manifest | None, epoch: int, offsets: str, place: str,
                 writers: list[FrameWriter]) -> None:
        self._engine, self._master, self.name = engine, engine.master, graph.name
        self._sources, self.run, self._checkpoints = dict(sources), run, checkpoints
        self._committed, self._epoch, self._offsets, self._place = committed, epoch, offsets, place
        self._base = int(offsets.rpartition("-")[2])  # the wave after which its batches are counted
        self.number = -1
        self._writers = writers
        self._published = committed is None  # the sinks have made visible what was committed
        self._totals = Totals()
        self._addresses: dict[int, WorkerAddress] = {}  # by slot: where fragments are kept
        self._attempts = 0  # at the batch at hand
        self._good: deque[int] = deque(maxlen=GOOD_KNOWN)
        self._seen = engine.executors.totals()
        self._busy = threading.Lock()  # held while a batch runs
        self._ended = threading.Event()
        self._graph = graph if committed is None else with_parallelism(graph, committed.parallelism)  # as it was committed
        self._query: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"millrace batches of {graph.name}")

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """`number`: the topology's, among all that its master has run."""
        self.number = number
        if self._committed is not None:
            self._checkpoints.claim(self._committed)  # whoever else runs it can commit nothing from now on
        interval = BATCH_INTERVAL.of(self._graph.config)
        stream = stream_of(self._engine.spark, self._graph, self._sources)
        writer = stream.writeStream.foreachBatch(self._batch).option("checkpointLocation", self._place)
        self._query = writer.trigger(processingTime=f"{interval:g} milliseconds").start()
        self._thread.start()

    def _watch(self) -> None:
        """Until the query ends, or the topology is killed. The batch that is under way is finished first, unless that takes
        longer than whoever kills it wants to wait."""
        while self._query.isActive and not self._ended.wait(LOOK_SECONDS):
            status = self._status()
            if status is None:
                break
            if status == STOPPING and self._busy.acquire(timeout=LOOK_SECONDS):
                self._ended.set()
                self._busy.release()
        self._ended.set()
        error = None if self._query.isActive else self._query.exception()
        self._query.stop()
        if self._status() is not None:
            if error is not None and self._status() != STOPPING:
                self._say(f"the query ended: {first_words(error)}. With --resume it goes on from the last batch", "error")
            self._master.finish(self.name)

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
                                        "from a backup, or start without --resume")
            tuples = self._run_batch(frame, number, wave)
        if not tuples:
            self._ended.wait(IDLE_SECONDS)

    def _run_batch(self, frame: DataFrame, number: int, wave: int) -> int:
        started, began = time.time(), time.monotonic()
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
        record = self._record(number, attempt, reports, started, time.monotonic() - began)
        self._tell(attempt, reports, record)
        return record.tuples_in

    def _committed_batch(self, frame: DataFrame, wave: int) -> tuple[Manifest, list[PartitionReport], Attempt]:
        """The first attempt that succeeds and can be committed."""
        self._attempts, whole = 0, False
        while True:
            topology = self._wait_for_a_plan()
            self._master.begin_batch(self.name)
            self._attempts += 1
            try:
                attempt = self._attempt(topology, frame, wave, whole)
                reports = self._run_attempt(attempt, frame)
                self._check_mine()
                return self._commit(attempt, reports), reports, attempt
            except CheckpointMissing as error:  # blobs that were safe are gone: what is still in memory is written again
                whole = True
                self._failed(error)
            except (*SPARK_ERRORS, BatchFailed, OSError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._ended.is_set() or self._status() in (None, STOPPING):
            raise Stopped(f"{self.name!r} is being killed") from None  # Spark chokes on texts as long as that of the cause
        pause = min(FIRST_PAUSE * 2 ** (self._attempts - 1), LAST_PAUSE)
        self._say(f"attempt {self._attempts} at the batch failed, it is run again in {pause:g} s: {first_words(error)}",
                  "warning")
        self._ended.wait(pause)

    def _wait_for_a_plan(self) -> TopologyState:
        """The topology as it is to be run now: it is neither paused nor without a slot."""
        while True:
            self._engine.executors.look()
            topology = self._topology()
            if self._ended.is_set() or topology is None or topology.status == STOPPING:
                raise Stopped(f"{self.name!r} is being killed")
            if topology.status not in (PAUSED, WAITING):
                return topology
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
        return BatchWork(self.run, engine.runs(), wave, given, records, engine.executors.by_id(), self._holders(), engine.setup,
                         BATCH_TUPLES.of(config), BATCH_SECONDS.of(config), schemas, list(self._good),
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

    def _holders(self) -> list[WorkerAddress]:
        """Processes that keep fragments, of executors that are alive."""
        alive = set(self._engine.executors.by_id().values())
        self._addresses = {slot: address for slot, address in self._addresses.items() if slot in alive}
        return list(self._addresses.values())

    def _run_attempt(self, attempt: Attempt, frame: DataFrame) -> list[PartitionReport]:
        placement, data = self._engine.placement, wire.encode(attempt.work)
        first, partitions = self._first_stage(attempt, frame)
        heads = [attempt.stages.partitions[0][number] for number in partitions]
        rdd = placement.python(first, partial(run_stage, data, 0, partitions), self._lanes(attempt.graph, heads))
        shuffles: list[int] = []
        try:
            for stage in range(1, attempt.stages.count):
                tasks = attempt.stages.partitions[stage]
                shuffled = placement.shuffled(rdd, [self._location(attempt, each[0]) for each in tasks], shuffles)
                rdd = placement.python(shuffled, partial(run_stage, data, stage, list(range(len(tasks)))),
                                       self._lanes(attempt.graph, tasks))
            found = map(frames.unpack, placement.collect(rdd))
            reports = [read_report(frame.body) for frame in found if frame.kind == frames.REPORT]
        finally:
            placement.clean(shuffles)
        wrong = one_cut(reports, attempt.stages)
        if wrong:
            raise BatchFailed(f"Spark has run a part of the batch again: {wrong}")
        return reports

    def _lanes(self, graph: TopologyGraph, tasks: Sequence[Sequence[TaskId]]) -> list[str]:
        """Where an executor has several Python processes, tasks that keep something come back to the one that has it. So do
        spouts: one that was made anew has lost its pace, or its connection."""
        if not self._engine.executors.wide:
            return []
        kept = [any(keeps(graph.component(task.component)) for task in each) for each in tasks]
        lanes = [str(each[0].index % LANES) if stays else "" for each, stays in zip(tasks, kept, strict=True)]
        return lanes if any(kept) else []

    def _first_stage(self, attempt: Attempt, frame: DataFrame) -> tuple[Any, list[int]]:
        """What the spouts begin with, and which partition of the stage each of its partitions is. A DataFrame may have fewer
        than its spout has tasks, but one in any case: bolts run also in a batch that brings nothing."""
        placement, rdds, partitions = self._engine.placement, [], []
        heads = [tasks[0] for tasks in attempt.stages.partitions[0]]
        for spout in attempt.graph.spouts:
            own = [number for number, head in enumerate(heads) if head.component == spout.name]
            if spout.frame:
                rdd = placement.arrow(frame_of(frame, self._sources, spout.name), spout.par)
                own = own[:rdd.getNumPartitions()]
            if not spout.frame or not own:
                own = own or [heads.index(TaskId(spout.name, 0))]
                rdd = placement.seeds([self._location(attempt, heads[number]) for number in own])
            rdds.append(rdd)
            partitions += own
        return placement.union(rdds), partitions

    def _location(self, attempt: Attempt, task: TaskId) -> str:
        return self._engine.executors.location(attempt.slots[task])

    # -- its end -----------------------------------------------------------------------------------------------------

    def _commit(self, attempt: Attempt, reports: list[PartitionReport]) -> Manifest:
        """The manifest is the commit point, as for waves."""
        records = sorted((task.record for report in reports for task in report.tasks), key=lambda record: record.task)
        manifest = Manifest(self.name, attempt.work.wave, self._epoch, attempt.graph.key_groups,
                            {component.name: component.par for component in attempt.graph.components}, records, time.time(),
                            self._epoch, self._offsets)
        self._check_groups(manifest)
        self._until_done("write the manifest", lambda: self._checkpoints.commit(manifest))
        self._committed, self._published, self._graph = manifest, False, attempt.graph
        self._good.append(self._epoch)
        return manifest

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
        if tasks:
            self._until_done("commit what the sinks have prepared", lambda: self._commit_sinks(tasks))
        if self._writers:
            self._until_done("write what the sinks have kept", self._write_frames)
        self._published = True
        self._master.checkpointing.collect(self.name, self._epoch)

    def _commit_sinks(self, tasks: list[TaskId]) -> None:
        topology = self._topology()
        if topology is None:
            raise Stopped(f"{self.name!r} has ended")
        self._epoch = self._engine.next_epoch()
        given = replace(self._master.call(lambda: self._assignment(topology)), graph=self._graph)
        work = self._work(given, self._committed.wave if self._committed is not None else 0, [], {})
        places = dict(given.places)
        locations = [self._engine.executors.location(places[task].slot) if task in places else "" for task in tasks]
        placement = self._engine.placement
        lanes = self._lanes(self._graph, [[task] for task in tasks])
        placement.collect(placement.python(placement.seeds(locations), partial(run_commit, wire.encode(work), tasks), lanes))

    def _write_frames(self) -> None:
        assert self._committed is not None
        write_frames(self._engine.spark, self._writers, self._committed, str(CHECKPOINTS.of(self._master.settings)),
                     self._committed.wave - 1)

    def _until_done(self, what: str, work: Any) -> None:
        """What is decided must be done, however long a store or a server is away."""
        attempt = 0
        while True:
            try:
                work()
                return
            except (NotTheAuthor, CheckpointMissing):
                raise
            except Stopped:
                raise
            except Exception as error:  # of a store, of Spark, or of a function of the user's
                if self._ended.is_set():
                    raise Stopped(f"{self.name!r} is being killed") from None
                attempt += 1
                pause = min(FIRST_PAUSE * 2**attempt, LAST_PAUSE)
                self._say(f"cannot {what}, and tries again in {pause:g} s: {first_words(error)}", "warning")
                self._ended.wait(pause)

    # -- telling -----------------------------------------------------------------------------------------------------

    def _record(self, number: int, attempt: Attempt, reports: list[PartitionReport], started: float,
                seconds: float) -> BatchRecord:
        spouts = {attempt.graph.number(task) for task in attempt.graph.tasks()
                  if attempt.graph.component(task.component).kind == "spout"}
        tasks = [task for report in reports for task in report.tasks]
        now = self._engine.executors.totals()
        spark, self._seen = now.since(self._seen), now
        return BatchRecord(
            batch=number, wave=attempt.work.wave, plan_version=attempt.work.given.version, started=started, seconds=seconds,
            attempts=self._attempts, tuples_in=sum(task.meters["emitted"] for task in tasks if task.task in spouts),
            tuples_processed=sum(task.meters["executed"] for task in tasks), stages=attempt.stages.count, tasks=len(tasks),
            misplaced=sum(len(report.tasks) for report in reports if self._is_misplaced(attempt, report)),
            resident=sum(report.counters.get("resident", 0) for report in reports),
            restored=sum(report.counters.get("restored", 0) for report in reports),
            spark_run_seconds=spark.run_seconds, spark_shuffle_bytes=spark.shuffle_bytes,
            own_busy_seconds=sum(report.seconds for report in reports))

    def _is_misplaced(self, attempt: Attempt, report: PartitionReport) -> bool:
        """It ran elsewhere than the plan says; what Spark reads itself has no place in a plan."""
        head = attempt.graph.task(report.tasks[0].task)
        return report.slot != report.planned and not attempt.graph.component(head.component).frame

    def _tell(self, attempt: Attempt, reports: list[PartitionReport], record: BatchRecord) -> None:
        told = self._totals.take(attempt.work.given, reports, time.monotonic())
        self._note_holders(reports)
        for report in told:
            self._master.take_report(report)
        self._master.note_batch(self.name, record)

    def _note_holders(self, reports: list[PartitionReport]) -> None:
        """One process of each slot: the same for as long as it is there, since it has the fragments."""
        here = [report.address for report in reports if report.address is not None]
        for address in here:
            known = self._addresses.get(address.slot)
            if known is None or known not in here:
                self._addresses[address.slot] = address


def keeps(component: ComponentDef) -> bool:
    """Whether a task of it has something from one batch to the next."""
    return component.stateful or component.commits or (component.kind == "spout" and not component.frame)


def with_parallelism(graph: TopologyGraph, par: Mapping[str, int]) -> TopologyGraph:
    return replace(graph, components=tuple(replace(component, par=par[component.name]) for component in graph.components))


def schema_of(frame: DataFrame) -> bytes:
    """As Arrow has it: the batches come without."""
    conf = frame.sparkSession.conf
    large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    zone = conf.get("spark.sql.session.timeZone")
    schema: pa.Schema = to_arrow_schema(frame.schema, timezone=zone, prefers_large_types=large)
    return schema.serialize().to_pybytes()


def first_words(error: BaseException) -> str:
    """What it says of itself, without the stacks: the last line of the Python error in it, if there is one."""
    lines = lines_of(error)
    python = [line for line in lines if _PYTHON_ERROR.match(line)]
    return (python[-1] if python else lines[0])[:300]


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Py4J logs, with a stack trace, whatever the function that Spark calls raises: also that a topology was killed."""
    return not (record.exc_info and isinstance(record.exc_info[1], Stopped))


logging.getLogger("py4j.clientserver").addFilter(_keep_quiet)
