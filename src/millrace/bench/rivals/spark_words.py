"""Structured Streaming on the word count: native SQL, or a Python function that keeps the counts.

Setting: local[2], two shuffle partitions, text files in memory, a fixed number of lines a batch; figures are of the
batches after the first three, by Spark's own progress reports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, lines
    from .reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result
else:
    from job import WORDS_PER_LINE, lines
    from reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result

WARM_UP_BATCHES = 3
BATCHES = 6
FILES_PER_BATCH = 2
SETTLE_SECONDS = 3.0
FILE_SECONDS = 0.02


def make_session(directory: Path) -> SparkSession:
    return (SparkSession.builder.master("local[2]").appName("rival").config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2").config("spark.local.dir", str(directory))
            .config("spark.driver.memory", "2g").config("spark.log.level", "ERROR").config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
            .config("spark.sql.streaming.noDataMicroBatches.enabled", "false").getOrCreate())


def counted(source: DataFrame, mode: str) -> DataFrame:
    words = source.select(F.explode(F.split(source.value, " ")).alias("word"))
    if mode == "sql":
        return words.groupBy("word").count()
    return words.groupBy("word").applyInPandasWithState(
        count_in_python, "word string, count long", "count long", "update", GroupStateTimeout.NoTimeout)


def count_in_python(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The running count of one word, kept by Spark, counted by Python."""
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"word": [key[0]], "count": [count]})


def write_files(directory: Path, all_lines: list[str], per_file: int) -> None:
    directory.mkdir()
    past = time.time() - 100_000  # Spark takes the oldest first
    for number, start in enumerate(range(0, len(all_lines), per_file)):
        path = directory / f"{number:05d}.txt"
        path.write_text("\n".join(all_lines[start:start + per_file]) + "\n")
        os.utime(path, (past + number, past + number))


def measure_throughput(session: SparkSession, directory: Path, request: Request, mode: str) -> Throughput:
    per_batch = request.lines // BATCHES
    total = per_batch * (BATCHES + WARM_UP_BATCHES)
    write_files(directory / "in", lines(request.seed, total), per_batch // FILES_PER_BATCH)
    newest: dict[str, int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        newest.update({row.word: row["count"] for row in batch.collect()})

    source = session.readStream.schema("value string").option("maxFilesPerTrigger", FILES_PER_BATCH).text(str(directory / "in"))
    query = (counted(source, mode).writeStream.outputMode("update").foreachBatch(keep)
             .option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start())
    query.awaitTermination()
    batches = [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]
    seconds = sum(batch["durationMs"]["triggerExecution"] for batch in batches[WARM_UP_BATCHES:]) / 1000
    words = sum(batch["numInputRows"] for batch in batches[WARM_UP_BATCHES:]) * WORDS_PER_LINE
    return Throughput(words, seconds, check(sum(newest.values()), total * WORDS_PER_LINE))


def measure_latency(session: SparkSession, directory: Path, request: Request, mode: str) -> LatencyMeter:
    """Lines are written, as they are due, to small files that Spark finds; a line is done when its batch is."""
    incoming = directory / "paced"
    incoming.mkdir()
    total = int(request.rate * (SETTLE_SECONDS + request.seconds))
    newest: dict[str, int] = {}
    meter = LatencyMeter(time.perf_counter() + SETTLE_SECONDS, request.rate, SETTLE_SECONDS)

    def note(batch: DataFrame, number: int) -> None:
        newest.update({row.word: row["count"] for row in batch.collect()})
        meter.counted(sum(newest.values()), time.perf_counter())

    query = (counted(session.readStream.text(str(incoming)), mode).writeStream.outputMode("update").foreachBatch(note)
             .option("checkpointLocation", str(directory / "paced-checkpoint")).trigger(processingTime="0 seconds").start())
    feeder = threading.Thread(target=feed, args=(incoming, lines(request.seed, total), meter), daemon=True)
    feeder.start()
    feeder.join()
    query.processAllAvailable()
    query.stop()
    check(sum(newest.values()), total * WORDS_PER_LINE)
    return meter


def feed(incoming: Path, all_lines: list[str], meter: LatencyMeter) -> None:
    sent = number = 0
    while sent < len(all_lines):
        due = min(meter.lines_due(time.perf_counter()), len(all_lines))
        if due > sent:
            hidden = incoming / f".{number}"  # Spark does not look at hidden files: it sees the whole or nothing
            hidden.write_text("\n".join(all_lines[sent:due]) + "\n")
            hidden.rename(incoming / f"{number:08d}.txt")
            sent, number = due, number + 1
        time.sleep(FILE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--mode", choices=("sql", "python"), required=True)
    own, rest = parser.parse_known_args(sys.argv[1:])
    request = parse_request(__doc__ or "", rest)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="rival-", dir=memory))
    try:
        session = make_session(directory)
        throughput: Any = measure_throughput(session, directory, request, own.mode) if request.lines else None
        latency = measure_latency(session, directory, request, own.mode) if request.rate else None
        session.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    setting = "local[2], 2 shuffle partitions, files in memory"
    print_result(f"spark_{own.mode}", version("pyspark"), setting, throughput, latency)


if __name__ == "__main__":
    main()
