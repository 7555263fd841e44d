"""Stages of a batch as RDDs whose partitions run on chosen executors, without any JVM code of our own.

A shuffle's partitions cannot be given preferred locations. So each is made into one element (`groupByKey`: everything in a
partition has its number as key), zipped with an RDD that has one element for each partition and a preferred executor for it,
and unpacked again. Python reads and writes plain bytes: nothing is pickled on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import RDD, Broadcast
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.serializers import NoOpSerializer

from millrace.microbatch.host import SEED_BYTES

if TYPE_CHECKING:
    from pyspark import SparkContext

SEEDS_KEPT = 100
ASIDE = 1 << 16  # maximum number of bytes that Spark sends in addition to a job's data
MOST_TASKS = 1000  # maximum number of tasks of a stage that are searched for running ones
LANE = "MILLRACE_LANE"
LOCAL_EXECUTOR = "driver"  # its id where driver and executor are one process
Carried = bytes | Broadcast[bytes]
Body = Callable[[int, Iterable[bytes]], Iterable[bytes]]  # (partition, input records) -> output records


@dataclass(frozen=True, slots=True)
class Executor:
    """A live executor of Spark."""

    id: str
    host: str
    cores: int
    busy: int = 0  # tasks that run on it
    added: float = 0.0  # when it came, in seconds since the epoch
    ready: bool = True  # it accepts tasks; Spark lists it before that, on a busy machine by seconds

    @property
    def location(self) -> str:
        return f"executor_{self.host}_{self.id}"


@dataclass(frozen=True, slots=True)
class SparkTotals:
    """Totals that Spark itself has counted so far, over all executors."""

    run_seconds: float = 0.0
    shuffle_bytes: int = 0

    def since(self, before: SparkTotals) -> SparkTotals:
        """The increase since `before`; never negative, although a lost executor takes its numbers with it."""
        return SparkTotals(max(self.run_seconds - before.run_seconds, 0.0), max(self.shuffle_bytes - before.shuffle_bytes, 0))


class Placement:
    """Makes RDDs on one Spark context, and answers questions about its executors, jobs and files."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        jvm: Any = context._jvm
        self._jvm = jvm
        self._scala: Any = context._jsc.sc()
        self.local = bool(self._scala.isLocal())  # driver and executor are one process
        # Every dot in a class name is a call into the JVM: done once here instead of in each batch.
        self._java_rdd, self._pair_rdd = jvm.org.apache.spark.api.java.JavaRDD, jvm.org.apache.spark.api.java.JavaPairRDD
        self._python_rdd, self._function = jvm.PythonRDD, jvm.SimplePythonFunction
        self._pairwise, self._partitioner = jvm.PairwiseRDD, jvm.PythonPartitioner
        self._to_pairs, self._to_seq = jvm.org.apache.spark.rdd.RDD.rddToPairRDDFunctions, jvm.PythonUtils.toSeq
        self._pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD
        self._tuple, self._map = jvm.scala.Tuple2, jvm.java.util.HashMap
        tags = jvm.scala.reflect.ClassTag
        self._any = tags.apply(jvm.java.lang.Class.forName("java.lang.Object"))
        self._bytes = tags.apply(jvm.java.lang.Class.forName("[B"))
        self._seeds: dict[tuple[str, ...], Any] = {}
        self._large = int(jvm.PythonUtils.getBroadcastThreshold(context._jsc)) - ASIDE
        predef = getattr(getattr(jvm.scala, "Predef$"), "MODULE$")
        self._identity = getattr(predef, "$conforms")()

    def executors(self) -> list[Executor]:
        """The live executors, ordered by id. The driver counts only if it is the executor too."""
        alive = [_executor(summary) for summary in self._summaries()]
        return sorted(alive, key=lambda executor: (len(executor.id), executor.id))

    def registered(self) -> list[Executor]:
        """The same with their running tasks, the time when they came and whether they accept tasks, which takes more calls into
        the JVM."""
        alive = [replace(_executor(summary), busy=summary.activeTasks(), added=summary.addTime().getTime() / 1000,
                         ready=self._is_ready(summary))
                 for summary in self._summaries()]
        return sorted(alive, key=lambda executor: (len(executor.id), executor.id))

    def _is_ready(self, summary: Any) -> bool:
        """False while the executor has registered, but not reported that it has started: its free cores are 0 until then."""
        if self.local or summary.activeTasks():
            return True
        free = self._scala.schedulerBackend().getExecutorAvailableCpus(summary.id())
        return bool(free.isDefined() and not free.contains(0))  # compared by Scala: py4j cannot read Spark's decimal number

    def totals(self) -> SparkTotals:
        summaries = self._summaries()
        return SparkTotals(sum(summary.totalDuration() for summary in summaries) / 1000,
                           sum(summary.totalShuffleWrite() for summary in summaries))

    def _summaries(self) -> list[Any]:
        listed = self._scala.statusStore().executorList(True)
        summaries = [listed.apply(number) for number in range(listed.size())]
        return summaries if self.local else [summary for summary in summaries if summary.id() != LOCAL_EXECUTOR]

    def ask_for_executors(self, total: int) -> bool:
        """Ask the cluster manager for so many executors in all. False if it starts and ends none on request."""
        no_hosts = getattr(getattr(self._jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        return bool(self._scala.requestTotalExecutors(total, 0, no_hosts))

    def give_back(self, executor: str, left: int) -> bool:
        """Give an executor back to the cluster manager. The number of those `left` is told too: Spark assumes that there are
        none, and would not replace one that dies later."""
        return bool(self._scala.killExecutors(self._to_seq([executor]))) and self.ask_for_executors(left)

    def running(self, group: str) -> list[tuple[int, int]]:
        """The running tasks of the group's newest job: the stage, counted from the last one at -1, and the partition."""
        tracker, store = self._context.statusTracker(), self._scala.statusStore()
        job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(group), default=-1))
        if job is None or job.status != "RUNNING":
            return []
        numbers, tasks_running = sorted(job.stageIds), []
        active = store.activeStages()
        for stage in (active.apply(number) for number in range(active.size())):
            if stage.stageId() in numbers:
                tasks = store.taskList(stage.stageId(), stage.attemptId(), MOST_TASKS)
                tasks_running += [(numbers.index(stage.stageId()) - len(numbers), task.partitionId())
                                  for task in (tasks.apply(number) for number in range(tasks.size()))
                                  if task.status() == "RUNNING"]
        return tasks_running

    def unfinished_tasks(self, groups: str) -> int:
        """The number of unfinished tasks of running jobs in groups whose names begin with `groups`."""
        store, unfinished = self._scala.statusStore(), 0
        for number in self._context.statusTracker().getActiveJobsIds():
            job = store.job(number)
            if job.jobGroup().isDefined() and str(job.jobGroup().get()).startswith(groups):
                unfinished += job.numTasks() - job.numCompletedTasks()
        return unfinished

    def seeds(self, locations: Sequence[str]) -> Any:
        """An RDD with one element for each location, which that element prefers. Reused for the same locations in later
        batches."""
        key = tuple(locations)
        rdd = self._seeds.get(key)
        if rdd is None:
            if len(self._seeds) >= SEEDS_KEPT:
                self._seeds.clear()
            pairs = [self._tuple(bytearray(SEED_BYTES), self._to_seq([location] if location else [])) for location in locations]
            rdd = self._seeds[key] = self._scala.makeRDD(self._to_seq(pairs), self._bytes)
        return rdd

    def arrow(self, dataframe: Any, most: int) -> Any:
        """A DataFrame as an RDD of Arrow batches, in at most `most` partitions."""
        batches = dataframe._jdf.toArrowBatchRdd()
        if batches.getNumPartitions() > most:
            batches = batches.coalesce(most, False, self._jvm.scala.Option.empty(), None)
        return batches

    @contextmanager
    def carried(self, data: bytes) -> Iterator[Carried]:
        """Data for every partition of a job. Of large data Spark would write files for each stage and keep them until the
        driver ends; here there is one broadcast, which lives only while the job runs."""
        if len(data) <= self._large:
            yield data
            return
        broadcast = self._context.broadcast(data)
        try:
            yield broadcast
        finally:
            broadcast.destroy()

    def python(self, rdd: Any, body: Body, lanes: Sequence[str] = ()) -> Any:
        """An RDD of the bytes that `body` makes of each partition.

        `lanes`, one for each partition: Spark runs a partition in any idle Python process of an executor that was started with
        the same environment. A partition in its own lane therefore gets the process of the last batch, with its state."""
        command = (body, None, NoOpSerializer(), NoOpSerializer())
        pickled, broadcasts, env, includes = _prepare_for_python_RDD(self._context, command)

        def made(part: Any, lane: str) -> Any:
            environment = self._map(env)
            environment.put(LANE, lane)
            function = self._function(bytearray(pickled), environment, includes, self._context.pythonExec,
                                      self._context.pythonVer, broadcasts, self._context._javaAccumulator)
            return self._python_rdd(part, function, True, False)

        if not lanes:
            return made(rdd, "")
        parts = [made(self._pruned.create(rdd, self._to_seq([number]).toSet()), lane) for number, lane in enumerate(lanes)]
        return self._scala.union(self._to_seq(parts), self._bytes)

    def shuffled(self, rdd: Any, locations: Sequence[str], shuffles: list[int]) -> Any:
        """Shuffle the output of a stage, in which partition numbers and records alternate: each record goes to its partition,
        and each partition to its location. No partition may be empty. Spark's id of the shuffle is added to `shuffles`."""
        pairs = self._pair_rdd.toRDD(self._pairwise(rdd).asJavaPairRDD())
        grouped = self._pairs(pairs).groupByKey(self._partitioner(len(locations), 0))
        shuffles.append(grouped.dependencies().head().shuffleId())
        placed = self.seeds(locations).zip(self._pairs(grouped).values(), self._any)
        return self._pairs(placed).values().flatMap(self._identity, self._bytes)

    def exists(self, place: str) -> bool:
        path, files = self._file(place)
        return bool(files.exists(path))

    def read(self, place: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        path, files = self._file(place)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def delete_beside(self, place: str, names: re.Pattern[str]) -> list[str]:
        """Delete the siblings of `place` whose names match, recursively. Returns the names of those deleted."""
        path, files = self._file(place)
        siblings = [entry.getPath() for entry in files.listStatus(path.getParent())]
        return [sibling.getName() for sibling in siblings if sibling.getName() != path.getName()
                and names.fullmatch(sibling.getName()) and files.delete(sibling, True)]

    def _file(self, place: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(place)
        return path, path.getFileSystem(self._scala.hadoopConfiguration())

    def clean(self, shuffles: Iterable[int]) -> None:
        """Delete the files of these shuffles. Spark itself would wait for a garbage collection, which can take hours in a
        driver with little to do."""
        cleaner = self._scala.cleaner()
        for shuffle in shuffles:
            if cleaner.isDefined():
                cleaner.get().doCleanupShuffle(shuffle, False)

    def union(self, rdds: Sequence[Any]) -> Any:
        whole = rdds[0]
        for rdd in rdds[1:]:
            whole = whole.union(rdd)
        return whole

    def collect(self, rdd: Any) -> list[bytes]:
        """Run the job and return its records."""
        return list(RDD(self._java_rdd(rdd, self._bytes), self._context, NoOpSerializer()).collect())

    def _pairs(self, rdd: Any) -> Any:
        return self._to_pairs(rdd, self._any, self._any, None)


def _executor(summary: Any) -> Executor:
    return Executor(summary.id(), summary.hostPort().rpartition(":")[0], summary.totalCores())
