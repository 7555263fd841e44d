"""Spark Structured Streaming on the word count, in SQL only: split, explode, groupBy, count, update mode.

The best of some sizes of a batch; one shuffle partition is faster than two, as the counts of a batch are few.
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
    from .reporting import LatencyMeter, Request, check, parse_request, print_result
    from .spark_common import (
        CORES,
        SQL,
        batches_of,
        best_throughput,
        scratch_directory,
        spark_session,
        sum_of_counts,
        words_of,
    )
else:
    from job import WORDS_PER_LINE, lines
    from reporting import LatencyMeter, Request, check, parse_request, print_result
    from spark_common import (
        CORES,
        SQL,
        batches_of,
        best_throughput,
        scratch_directory,
        spark_session,
        sum_of_counts,
        words_of,
    )

BATCH_LINES = (150_000, 300_000, 600_000, 1_200_000)
SHUFFLE_PARTITIONS = 1
# The compilers of the virtual machine need this long until a small batch is as fast as it gets.
SETTLE_SECONDS = 8.0
TURN_SECONDS = 0.005
DRAIN_SECONDS = 20.0
SETTING = (
    f"local[{CORES}], {SHUFFLE_PARTITIONS} shuffle partition, text files in memory, the best of some sizes of a batch; "
    "latency: socket source, batches back to back"
)


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
    check(sum_of_counts(session, checkpoint, SQL), len(content) * WORDS_PER_LINE)
    return meter


def _start_on_socket(session: SparkSession, port: int, checkpoint: Path) -> StreamingQuery:
    stream = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
    counts = SQL.of(words_of(stream))
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
        throughput = None
        trials: list[dict[str, object]] = []
        if request.lines:
            throughput, trials = best_throughput(session, scratch, request, request.batch_lines or BATCH_LINES, SQL)
        latency = measure_latency(session, scratch, request) if request.rate else None
    print_result("spark_sql", pyspark.__version__, SETTING, throughput, latency, trials)


if __name__ == "__main__":
    main()
