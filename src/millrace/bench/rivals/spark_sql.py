"""Spark Structured Streaming on the word count, in SQL only: split, explode, groupBy, count, update mode.

TABLE
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, lines
    from .reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result
    from .spark_common import (
        CORES,
        batches_of,
        file_stream,
        run_to_end,
        scratch_directory,
        spark_session,
        sum_of_counts,
        throughput_of,
        words_of,
        write_batches,
    )
else:
    from job import WORDS_PER_LINE, lines
    from reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result
    from spark_common import (
        CORES,
        batches_of,
        file_stream,
        run_to_end,
        scratch_directory,
        spark_session,
        sum_of_counts,
        throughput_of,
        words_of,
        write_batches,
    )

BATCH_LINES = 300_000
WARM_UP_BATCHES = 3
SHUFFLE_PARTITIONS = 1
# The compilers of the virtual machine need this long until a small batch is as fast as it gets.
SETTLE_SECONDS = 8.0
TURN_SECONDS = 0.005
DRAIN_SECONDS = 20.0
SETTING = (
    f"local[{CORES}], {SHUFFLE_PARTITIONS} shuffle partition, text files in memory, {BATCH_LINES} lines a batch; "
    "latency: socket source, batches back to back"
)


def measure_throughput(session: SparkSession, scratch: Path, request: Request) -> Throughput:
    write_batches(scratch / "lines", request.seed, request.lines, BATCH_LINES, WARM_UP_BATCHES)
    counts = words_of(file_stream(session, scratch / "lines")).groupBy("word").count()
    checkpoint = scratch / "throughput"
    query = run_to_end(counts.writeStream, checkpoint)
    counted = sum_of_counts(session, checkpoint, "value.count")
    return throughput_of(batches_of(query), WARM_UP_BATCHES, request.lines, counted)


def measure_latency(session: SparkSession, scratch: Path, request: Request) -> LatencyMeter:
    content = lines(request.seed, int(request.rate * (SETTLE_SECONDS + request.seconds)))
    checkpoint = scratch / "latency"
    with socket.create_server(("127.0.0.1", 0)) as server:
        query = _start_on_socket(session, server.getsockname()[1], checkpoint)
        connection, _ = server.accept()
        with connection:
            # Batch times are wall-clock times, so this clock is one too.
            meter = LatencyMeter(time.time(), request.rate, SETTLE_SECONDS)
            _send_when_due(connection, content, meter)
            _wait_for_lines(query, len(content))
            query.stop()
    words = 0
    for batch in batches_of(query):
        words += batch.lines * WORDS_PER_LINE
        meter.counted(words, batch.delivered)
    check(sum_of_counts(session, checkpoint, "value.count"), len(content) * WORDS_PER_LINE)
    return meter


def _start_on_socket(session: SparkSession, port: int, checkpoint: Path) -> StreamingQuery:
    stream = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
    counts = words_of(stream).groupBy("word").count()
    return counts.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint)).start()


def _send_when_due(connection: socket.socket, content: list[str], meter: LatencyMeter) -> None:
    sent = 0
    while sent < len(content):
        due = min(meter.lines_due(time.time()), len(content))
        if due > sent:
            connection.sendall(("\n".join(content[sent:due]) + "\n").encode())
            sent = due
        time.sleep(TURN_SECONDS)


def _wait_for_lines(query: StreamingQuery, count: int) -> None:
    """Wait until the query has had all lines, or too long; what is missing then is found when the counts are checked."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while sum(batch.lines for batch in batches_of(query)) < count and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    request = parse_request(__doc__ or "")
    with scratch_directory() as scratch, spark_session(SHUFFLE_PARTITIONS, scratch) as session:
        throughput = measure_throughput(session, scratch, request) if request.lines else None
        latency = measure_latency(session, scratch, request) if request.rate else None
    print_result("spark_sql", pyspark.__version__, SETTING, throughput, latency)


if __name__ == "__main__":
    main()
