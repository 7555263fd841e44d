"""What the two Spark rivals share: a session at its fastest, the input as files, and what a query reports of itself.

Input and checkpoints are kept in memory where the machine offers a directory for that: a disk's speed is not what
is compared. Nothing of a run is left behind.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, lines
    from .reporting import Throughput, WrongCount, check
else:
    from job import WORDS_PER_LINE, lines
    from reporting import Throughput, WrongCount, check

CORES = 2
# One file for each core: every core has as much to read as the others.
FILES_PER_BATCH = CORES
_IN_MEMORY = Path("/dev/shm")


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
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.shuffle.partitions", shuffle_partitions)
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
    """The lines that `write_batches` wrote, one of its batches at a time."""
    return (
        session.readStream.format("text")
        .schema("value string")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .load(str(directory))
    )


def write_batches(directory: Path, seed: int, count: int, batch_lines: int, warm_up: int) -> int:
    """Write `warm_up` batches and then `count` lines in batches of about `batch_lines`; return how many batches.

    The batches to warm up with repeat the first one. Spark takes files in the order of their time of change, so
    each gets a time of its own, long past.
    """
    directory.mkdir()
    everything = lines(seed, count)
    batches = max(1, round(count / batch_lines))
    per_file = math.ceil(count / (batches * FILES_PER_BATCH))
    files = [everything[start : start + per_file] for start in range(0, count, per_file)]
    for index, content in enumerate(files[:FILES_PER_BATCH] * warm_up + files):
        path = directory / f"{index:06d}.txt"
        path.write_text("\n".join(content) + "\n")
        os.utime(path, (index + 1, index + 1))
    return batches


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


def throughput_of(batches: Sequence[Batch], warm_up: int, count: int, counted: int) -> Throughput:
    """The speed over the batches after the first `warm_up`, once `counted`, the sum of the counts, is found right."""
    check(counted, sum(batch.lines for batch in batches) * WORDS_PER_LINE)
    measured = batches[warm_up:]
    if sum(batch.lines for batch in measured) != count:
        raise WrongCount(f"{len(measured)} batches hold {sum(b.lines for b in measured)} lines, {count} were sent")
    return Throughput(count * WORDS_PER_LINE, measured[-1].ended - measured[0].started, counted)


def sum_of_counts(session: SparkSession, checkpoint: Path, column: str) -> int:
    """The sum of all counts in the state a query left, read back from its checkpoint.

    The sink dropped the updates, so this is what there is to check; it also costs the query nothing.
    """
    state = session.read.format("statestore").load(str(checkpoint))
    total = state.agg(F.sum(column)).first()
    if total is None or total[0] is None:
        raise WrongCount("the query left no state behind")
    return int(total[0])
