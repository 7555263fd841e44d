"""Structured Streaming at its fastest: the session, the corpus as a file stream, and the progress of a query.

Input and checkpoints are kept in memory where the machine offers a directory for that: a disk's speed is not what
is compared. They are removed at the end, unless the script is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, Corpus
    from .reporting import LatencyMeter, RunRequest, WindowMeter, check_counts
else:
    from job import WORDS_PER_LINE, Corpus
    from reporting import LatencyMeter, RunRequest, WindowMeter, check_counts

CORES = 2
BATCHES_AHEAD = 2  # batches whose files are there before they are read: the query never waits for input
LOOK_SECONDS = 0.1
TURN_SECONDS = 0.005  # between two looks at the lines that are due
# The settings of Millrace's own batches that concern speed.
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
    """One way to count words: from a DataFrame of words to one of counts. `word` and `count`: their columns in its state."""

    of: Callable[[DataFrame], DataFrame]
    count: str
    word: str = "key.word"
    options: dict[str, str] = field(default_factory=dict)  # to read the state with
    store: str = IN_HEAP  # the faster one while the state is small


SQL = Counting(lambda words: words.groupBy("word").count(), "value.count")


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of a query, in seconds since the epoch."""

    number: int
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
        delivered = ended - durations.get("commitOffsets", 0) / 1e3
        return cls(progress["batchId"], progress["numInputRows"], started, delivered, ended)


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


def file_stream(session: SparkSession, directory: Path, files_per_batch: int) -> DataFrame:
    """The lines of the files in a directory, this many files in a batch."""
    return (
        session.readStream.format("text")
        .schema("value string")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(str(directory))
    )


class CorpusLinks:
    """The files of a corpus in a directory that Spark watches, repeated as often as needed through links."""

    def __init__(self, directory: Path, corpus: Corpus) -> None:
        self.directory = directory
        self.files = 0
        self._corpus = corpus
        directory.mkdir()

    def add(self, files: int) -> None:
        for _ in range(files):
            os.link(self._corpus.file(self.files), self.directory / f"{self.files:06d}.txt")
            self.files += 1

    def keep_ahead(self, files_read: int, files_per_batch: int) -> None:
        """Add the files of the next batches, if they are not there yet."""
        self.add(max(0, files_read + BATCHES_AHEAD * files_per_batch - self.files))

    def counts(self) -> Counter[str]:
        """The right counts when all files have been read."""
        return self._corpus.counts_in(range(self.files))

    def counts_after(self, lines: int, checkpoint: Path) -> Counter[str]:
        """The right counts when a query with this checkpoint has read so many lines, all of them in whole batches.

        Spark reads files in the order of their modification times, and all links to a file have the same. So its own log
        tells which files it has read.
        """
        read = files_read(checkpoint)[: lines // self._corpus.lines_per_file]
        return self._corpus.counts_in(int(Path(path).stem) for path in read)


def files_read(checkpoint: Path) -> list[str]:
    """The files that the queries with a checkpoint below this directory have planned to read, batch by batch."""
    batches: dict[str, int] = {}
    for log in checkpoint.rglob("sources/*/*"):
        if not log.name.startswith("."):  # a checksum
            for line in log.read_text().splitlines():
                if line.startswith('{"path"'):
                    entry = json.loads(line)
                    batches[entry["path"]] = entry["batchId"]
    return sorted(batches, key=lambda path: (batches[path], path))


def files_per_batch(corpus: Corpus, batch_lines: int) -> int:
    files, rest = divmod(batch_lines, corpus.lines_per_file)
    if not files or rest:
        raise SystemExit(f"--batch-lines {batch_lines}: Spark reads whole files, so give a multiple of {corpus.lines_per_file}")
    return files


def start(writer: DataStreamWriter, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query into a sink that drops."""
    query = writer.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint))
    return query.trigger(**trigger).start() if trigger else query.start()


def measure(session: SparkSession, scratch: Path, request: RunRequest, counting: Counting) -> list[dict[str, Any]]:
    """Carry out the request. Returns the figures and the result of the check."""
    return (measure_latency if request.rate else measure_throughput)(session, scratch, request, counting)


def source_of(request: RunRequest) -> str:
    """The source of a run in words, for its setting."""
    return "socket source, batches back to back" if request.rate else f"{request.batch_lines:,} lines a batch"


def measure_throughput(session: SparkSession, scratch: Path, request: RunRequest, counting: Counting) -> list[dict[str, Any]]:
    """Run batches back to back until every window is measured."""
    corpus = Corpus.at(request.corpus)
    links, size = CorpusLinks(scratch / "lines", corpus), files_per_batch(corpus, request.batch_lines)
    checkpoint = scratch / "checkpoint"
    session.conf.set(STATE_STORE, counting.store)
    links.keep_ahead(0, size)
    query = start(counting.of(words_of(file_stream(session, links.directory, size))).writeStream, checkpoint)
    meter: WindowMeter | None = None
    noted = 0
    while meter is None or not meter.done:
        time.sleep(LOOK_SECONDS)
        check_alive(query)
        batches = batches_of(query)
        if batches and meter is None:
            meter = WindowMeter(request.rule, batches[0].started)
        if meter is not None and len(batches) > noted:
            for number in range(noted, len(batches)):
                meter.note(sum(batch.lines for batch in batches[: number + 1]) * WORDS_PER_LINE, batches[number].delivered)
            noted = len(batches)
        links.keep_ahead(noted * size, size)
    query.stop()
    # The state as of the last batch that was reported: the query was stopped in the middle of another one.
    counted = batches_of(query)
    counts = stored_counts(session, checkpoint, counting, counted[-1].number)
    return [meter.as_fields(), check_counts(counts, links.counts_after(sum(batch.lines for batch in counted), checkpoint))]


def measure_latency(session: SparkSession, scratch: Path, request: RunRequest, counting: Counting) -> list[dict[str, Any]]:
    """Send each line through Spark's socket source, the fastest, when it is due; batches follow each other without a pause."""
    corpus = Corpus.at(request.corpus)
    checkpoint = scratch / "latency"
    session.conf.set(STATE_STORE, counting.store)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stream = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        query = start(counting.of(words_of(stream)).writeStream, checkpoint)
        connection, _ = server.accept()
        with connection:
            # Batch times are wall-clock times, so this clock is one too.
            meter = LatencyMeter(time.time(), request.rate, request.rule.warm_up)
            _send_when_due(connection, corpus, request, meter)
            while sum(batch.lines for batch in batches_of(query)) < request.paced_lines:
                check_alive(query)
                time.sleep(LOOK_SECONDS)
            query.stop()
    words = 0
    for batch in batches_of(query):
        words += batch.lines * WORDS_PER_LINE
        meter.counted(words, batch.delivered)
    return [meter.as_fields(),
            check_counts(stored_counts(session, checkpoint, counting), corpus.counts([request.paced_lines]))]


def _send_when_due(connection: socket.socket, corpus: Corpus, request: RunRequest, meter: LatencyMeter) -> None:
    lines, sent = corpus.lines(), 0
    while sent < request.paced_lines:
        due = min(meter.lines_due(time.time()), request.paced_lines)
        if due > sent:
            connection.sendall("".join(f"{line}\n" for line in islice(lines, due - sent)).encode())
            sent = due
        time.sleep(TURN_SECONDS)


def check_alive(query: StreamingQuery) -> None:
    if not query.isActive:
        raise SystemExit(f"the query has ended: {query.exception()}")


def stored_counts(session: SparkSession, checkpoint: Path, counting: Counting, batch: int | None = None) -> dict[str, int]:
    """The counts in the state that a query left after a batch (None: the last one), read from its checkpoint. The sink drops
    the updates, so the state is the result; reading it afterwards costs the query nothing."""
    options = counting.options if batch is None else {**counting.options, "batchId": str(batch)}
    state = session.read.format("statestore").options(**options).load(str(checkpoint))
    return {row["word"]: row["count"] for row in state.select(
        F.col(counting.word).alias("word"), F.col(counting.count).alias("count")).collect()}
