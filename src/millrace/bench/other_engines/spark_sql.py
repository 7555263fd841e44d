"""Structured Streaming on the word count, in SQL only: split, explode, groupBy, count, update mode.

One shuffle partition: it is faster than two, as a batch has few counts. In a latency run the lines come through Spark's socket
source, and batches follow each other without a pause.
"""

from __future__ import annotations

import socket
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, Corpus
    from .reporting import LatencyMeter, RunRequest, check_counts, parse_request, print_result
    from .spark_common import (
        CORES,
        SQL,
        batches_of,
        check_alive,
        measure_throughput,
        scratch_directory,
        spark_session,
        start,
        stored_counts,
        words_of,
    )
else:
    from job import WORDS_PER_LINE, Corpus
    from reporting import LatencyMeter, RunRequest, check_counts, parse_request, print_result
    from spark_common import (
        CORES,
        SQL,
        batches_of,
        check_alive,
        measure_throughput,
        scratch_directory,
        spark_session,
        start,
        stored_counts,
        words_of,
    )

SHUFFLE_PARTITIONS = 1
TURN_SECONDS = 0.005


def measure_latency(session: SparkSession, scratch: Path, request: RunRequest) -> list[dict[str, Any]]:
    corpus = Corpus.at(request.corpus)
    checkpoint = scratch / "latency"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stream = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        query = start(SQL.of(words_of(stream)).writeStream, checkpoint)
        connection, _ = server.accept()
        with connection:
            # Batch times are wall-clock times, so this clock is one too.
            meter = LatencyMeter(time.time(), request.rate, request.rule.warm_up)
            _send_when_due(connection, corpus, request, meter)
            while sum(batch.lines for batch in batches_of(query)) < request.paced_lines:
                check_alive(query)
                time.sleep(0.1)
            query.stop()
    words = 0
    for batch in batches_of(query):
        words += batch.lines * WORDS_PER_LINE
        meter.counted(words, batch.delivered)
    return [meter.as_fields(), check_counts(stored_counts(session, checkpoint, SQL), corpus.counts([request.paced_lines]))]


def _send_when_due(connection: socket.socket, corpus: Corpus, request: RunRequest, meter: LatencyMeter) -> None:
    lines, sent = corpus.lines(), 0
    while sent < request.paced_lines:
        due = min(meter.lines_due(time.time()), request.paced_lines)
        if due > sent:
            connection.sendall("".join(f"{line}\n" for line in islice(lines, due - sent)).encode())
            sent = due
        time.sleep(TURN_SECONDS)


def main() -> None:
    request = parse_request(__doc__ or "")
    with scratch_directory() as scratch, spark_session(SHUFFLE_PARTITIONS, scratch) as session:
        if request.rate:
            results = measure_latency(session, scratch, request)
        else:
            results = measure_throughput(session, scratch, request, SQL)
    source = "socket source, batches back to back" if request.rate else f"{request.batch_lines:,} lines a batch"
    setting = f"local[{CORES}], {SHUFFLE_PARTITIONS} shuffle partition, {source}"
    print_result("spark_sql", pyspark.__version__, setting, *results)


if __name__ == "__main__":
    main()
