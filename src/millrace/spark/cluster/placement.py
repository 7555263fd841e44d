"""Stages of a batch as RDDs whose partitions run on chosen executors, without any JVM code of our own.

A shuffle's partitions have no preferred place that could be chosen. So each is made into one element (`groupByKey`: all that is
in a partition has its number as key), zipped with an RDD that has one element for each partition and a preferred executor
for it, and taken apart again. What Python writes and reads are bytes as they are: nothing is pickled on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import RDD, Broadcast
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.serializers import NoOpSerializer

from millrace.microbatch.host import SEED

if TYPE_CHECKING:
    from pyspark import SparkContext

SEEDS_KEPT = 100
ASIDE = 1 << 16  # bytes that Spark is sent beside what a job carries, at most
MOST_TASKS = 1000  # of a stage, to look for those that run
LANE = "MILLRACE_LANE"
LOCAL_EXECUTOR = "driver"  # its id where driver and executor are one process
Carried = bytes | Broadcast[bytes]
Body = Callable[[int, Iterable[bytes]], Iterable[bytes]]  # (partition, what comes in) -> what goes out


@dataclass(frozen=True, slots=True)
class Executor:
    """One of Spark's executors that are alive."""

    id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        return f"executor_{self.host}_{self.id}"


@dataclass(frozen=True, slots=True)
class SparkTotals:
    """What Spark itself has counted so far, over all executors."""

    run_seconds: float = 0.0
    shuffle_bytes: int = 0

    def since(self, before: SparkTotals) -> SparkTotals:
        """What has been added; an executor that is gone takes its numbers with it."""
        return SparkTotals(max(self.run_seconds - before.run_seconds, 0.0), max(self.shuffle_bytes - before.shuffle_bytes, 0))


class Placement:
    """Makes RDDs on one Spark context."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        jvm: Any = context._jvm
        self._jvm = jvm
        self._scala: Any = context._jsc.sc()
        self.local = bool(self._scala.isLocal())  # driver and executor are one
        # Every dot in the name of a class is a call of the JVM: here once, instead of in each batch.
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
        """Those that are alive now, by id. The driver counts only if it is the executor too."""
        found = [Executor(summary.id(), summary.hostPort().rpartition(":")[0], summary.totalCores())
                 for summary in self._summaries()]
        return sorted(found, key=lambda executor: (len(executor.id), executor.id))

    def totals(self) -> SparkTotals:
        summaries = self._summaries()
        return SparkTotals(sum(summary.totalDuration() for summary in summaries) / 1000,
                           sum(summary.totalShuffleWrite() for summary in summaries))

    def _summaries(self) -> list[Any]:
        listed = self._scala.statusStore().executorList(True)
        found = [listed.apply(number) for number in range(listed.size())]
        return found if self.local else [summary for summary in found if summary.id() != LOCAL_EXECUTOR]

    def running(self, group: str) -> list[tuple[int, int]]:
        """Of the group's newest job, what runs now: stages counted from the end, which is -1, and partitions."""
        tracker, store = self._context.statusTracker(), self._scala.statusStore()
        job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(group), default=-1))
        if job is None or job.status != "RUNNING":
            return []
        numbers, found = sorted(job.stageIds), []
        active = store.activeStages()
        for stage in (active.apply(number) for number in range(active.size())):
            if stage.stageId() in numbers:
                tasks = store.taskList(stage.stageId(), stage.attemptId(), MOST_TASKS)
                found += [(numbers.index(stage.stageId()) - len(numbers), task.partitionId())
                          for task in (tasks.apply(number) for number in range(tasks.size())) if task.status() == "RUNNING"]
        return found

    def unfinished_tasks(self, groups: str) -> int:
        """Of the jobs that run now, in groups whose names begin so."""
        store, found = self._scala.statusStore(), 0
        for number in self._context.statusTracker().getActiveJobsIds():
            job = store.job(number)
            if job.jobGroup().isDefined() and str(job.jobGroup().get()).startswith(groups):
                found += job.numTasks() - job.numCompletedTasks()
        return found

    def seeds(self, locations: Sequence[str]) -> Any:
        """An RDD with one element for each location, which is where it likes to be. The same for the same locations, batch
        after batch."""
        key = tuple(locations)
        found = self._seeds.get(key)
        if found is None:
            if len(self._seeds) >= SEEDS_KEPT:
                self._seeds.clear()
            pairs = [self._tuple(bytearray(SEED), self._to_seq([location] if location else [])) for location in locations]
            found = self._seeds[key] = self._scala.makeRDD(self._to_seq(pairs), self._bytes)
        return found

    def arrow(self, dataframe: Any, most: int) -> Any:
        """A DataFrame as an RDD of Arrow batches, in at most so many partitions."""
        batches = dataframe._jdf.toArrowBatchRdd()
        if batches.getNumPartitions() > most:
            batches = batches.coalesce(most, False, self._jvm.scala.Option.empty(), None)
        return batches

    @contextmanager
    def carried(self, data: bytes) -> Iterator[Carried]:
        """What goes with every partition of a job. If it is large, Spark would write it to files of its own for each stage, and
        keep them until the driver ends: here there is one, and only while the job runs."""
        if len(data) <= self._large:
            yield data
            return
        broadcast = self._context.broadcast(data)
        try:
            yield broadcast
        finally:
            broadcast.destroy()

    def python(self, rdd: Any, body: Body, lanes: Sequence[str] = ()) -> Any:
        """An RDD of what `body` makes of each partition, all of it bytes.

        `lanes`, one for each partition: Spark takes any idle Python process of an executor for a partition, but only of those
        that were started with the same environment. So partitions in a lane of their own find the process that they had in the
        last batch, and their state in it."""
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
        """What a stage gave out, a partition's number and a frame by turns, each frame in its partition and that where it
        should be. No partition may be empty. `shuffles` gets the number by which Spark knows it."""
        pairs = self._pair_rdd.toRDD(self._pairwise(rdd).asJavaPairRDD())
        grouped = self._pairs(pairs).groupByKey(self._partitioner(len(locations), 0))
        shuffles.append(grouped.dependencies().head().shuffleId())
        placed = self.seeds(locations).zip(self._pairs(grouped).values(), self._any)
        return self._pairs(placed).values().flatMap(self._identity, self._bytes)

    def exists(self, place: str) -> bool:
        path, files = self._file(place)
        return bool(files.exists(path))

    def delete_beside(self, place: str, names: re.Pattern[str]) -> list[str]:
        """What is in the same directory as the place and has such a name, with all that is in it."""
        path, files = self._file(place)
        found = [each.getPath() for each in files.listStatus(path.getParent()) if each.getPath().getName() != path.getName()]
        return [each.getName() for each in found if names.fullmatch(each.getName()) and files.delete(each, True)]

    def _file(self, place: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(place)
        return path, path.getFileSystem(self._scala.hadoopConfiguration())

    def clean(self, shuffles: Iterable[int]) -> None:
        """Their files are not needed any more. Spark by itself would wait until the JVM collects its garbage, which in a driver
        with little to do can take hours."""
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
        """Run the job."""
        return list(RDD(self._java_rdd(rdd, self._bytes), self._context, NoOpSerializer()).collect())

    def _pairs(self, rdd: Any) -> Any:
        return self._to_pairs(rdd, self._any, self._any, None)
