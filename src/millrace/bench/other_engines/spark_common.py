"""What the Spark rivals share: a session at its fastest, the input as files, and what a query reports of itself.

Input and checkpoints are kept in memory where the machine offers a directory for that: a disk's speed is not what
is compared. They are removed at the end, unless the script is killed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, lines
    from .reporting import Request, Throughput, WrongCount, check
else:
    from job import WORDS_PER_LINE, lines
    from reporting import Request, Throughput, WrongCount, check

CORES = 2
# One file for each core: every core has as much to read as the others.
FILES_PER_BATCH = CORES
# What Millrace's own batches run with, as far as it concerns speed.
FASTEST = {
    "spark.driver.memory": "2g",
    "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC -Xlog:disable",
    "spark.shuffle.compress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
IN_HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Counting:
    """One way to count words: from a DataFrame of words to one of counts, and where in its state they are."""

    of: Callable[[DataFrame], DataFrame]
    column: str
    options: dict[str, str] = field(default_factory=dict)  # to read the state with
    store: str = IN_HEAP  # the faster one while the state is small


SQL = Counting(lambda words: words.groupBy("word").count(), "value.count")


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of a query, in seconds since the epoch."""

    lines: int
    started: float
    # When the sink had all of it; the query's own note that the batch is done comes after.
    delivered: float
    ended: float

    @classmethod
    def of(cls, progress: Any) -> Batch:
        started = datetime.fromisoformat(progress["timestamp"]).timestamp()
        durations = progress["durationMs"]
        ended = started + durations["triggerExecution"] / 1e3
        return cls(progress["numInputRows"], started, ended - durations.get("commitOffsets", 0) / 1e3, ended)


def batches_of(query: StreamingQuery) -> list[Batch]:
    """The micro-batches of the query that had any input."""
    return [Batch.of(progress) for progress in query.recentProgress if progress["numInputRows"]]


@contextmanager
def spark_session(shuffle_partitions: int, scratch: Path) -> Iterator[SparkSession]:
    """A local session with nothing in it that a benchmark does not need."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("word count")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.shuffle.partitions", shuffle_partitions)
        .config(map=dict(FASTEST))
        # Every batch of a run is looked at afterwards; the default forgets all but the last hundred.
        .config("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory for the run, in memory if there is such a place, removed at the end."""
    in_memory = _IN_MEMORY if _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="millrace-bench-", dir=in_memory))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def words_of(stream: DataFrame) -> DataFrame:
    """The words of a stream of lines, split by Spark itself."""
    return stream.select(F.explode(F.split(stream.value, " ")).alias("word"))


def file_stream(session: SparkSession, directory: Path) -> DataFrame:
    """The lines of `LinkedFiles`, one of its batches at a time."""
    return (
        session.readStream.format("text")
        .schema("value string")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .load(str(directory))
    )


class LinkedFiles:
    """Batches that all have the same lines: one file is written, and what Spark reads are links to it, as many as wanted."""

    def __init__(self, directory: Path, seed: int, batch_lines: int) -> None:
        self.directory = directory
        self._file = directory.with_suffix(".txt")
        self._links = 0
        directory.mkdir()
        self._file.write_text("\n".join(lines(seed, batch_lines // FILES_PER_BATCH)) + "\n")

    def add(self, batches: int) -> None:
        for _ in range(batches * FILES_PER_BATCH):
            os.link(self._file, self.directory / f"{self._links:06d}.txt")
            self._links += 1


def run_to_end(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a query over all the files there are, batch after batch, into a sink that drops."""
    query = (
        writer.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def best_throughput(
    session: SparkSession, scratch: Path, request: Request, sizes: Sequence[int], counting: Counting
) -> tuple[Throughput, list[dict[str, object]]]:
    """The fastest of some sizes of a batch, in lines, and what each of them gave. The first is run once before, uncounted:
    the compilers of the virtual machine need some seconds until a batch is as fast as it gets."""
    scratch.mkdir(exist_ok=True)
    runs = [
        measured_run(session, scratch / f"run-{number}", request, size, counting)
        for number, size in enumerate([sizes[0], *sizes])
    ][1:]
    trials = [{"batch_lines": size, **run.as_fields()} for size, run in zip(sizes, runs, strict=True)]
    return max(runs, key=lambda run: run.words_per_s), trials


def measured_run(session: SparkSession, directory: Path, request: Request, size: int, counting: Counting) -> Throughput:
    """The speed of `request.lines` lines, at least, in batches of `size`; the first batch is not measured."""
    directory.mkdir()
    given = LinkedFiles(directory / "lines", request.seed, size)
    given.add(1 + max(1, round(request.lines / size)))
    checkpoint = directory / "checkpoint"
    session.conf.set(STATE_STORE, counting.store)
    query = run_to_end(counting.of(words_of(file_stream(session, given.directory))).writeStream, checkpoint)
    batches = batches_of(query)
    counted = sum_of_counts(session, checkpoint, counting)
    check(counted, sum(batch.lines for batch in batches) * WORDS_PER_LINE)
    measured = batches[1:]
    words = sum(batch.lines for batch in measured) * WORDS_PER_LINE
    return Throughput(words, measured[-1].ended - measured[0].started, counted)


def sum_of_counts(session: SparkSession, checkpoint: Path, counting: Counting) -> int:
    """The sum of all counts in the state a query left, read back from its checkpoint.

    The sink dropped the updates, so this is what there is to check; it also costs the query nothing.
    """
    state = session.read.format("statestore").options(**counting.options).load(str(checkpoint))
    total = state.agg(F.sum(counting.column)).first()
    if total is None or total[0] is None:
        raise WrongCount("the query left no state behind")
    return int(total[0])
