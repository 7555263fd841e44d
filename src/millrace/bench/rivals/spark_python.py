"""Spark Structured Streaming on the word count, the counting in Python: `applyInPandasWithState`.

TABLE
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

if TYPE_CHECKING or __package__:
    from .reporting import Request, Throughput, parse_request, print_result
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
    from reporting import Request, Throughput, parse_request, print_result
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

BATCH_LINES = 200_000
WARM_UP_BATCHES = 1
SHUFFLE_PARTITIONS = CORES
SETTING = f"local[{CORES}], applyInPandasWithState, text files in memory, {BATCH_LINES} lines a batch, one update a batch"


def _count(key: tuple[str], occurrences: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count one word: Spark calls this once for each word of a batch."""
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in occurrences)
    state.update((count,))
    yield pd.DataFrame({"word": [key[0]], "count": [count]})


def measure_throughput(session: SparkSession, scratch: Path, request: Request) -> Throughput:
    write_batches(scratch / "lines", request.seed, request.lines, BATCH_LINES, WARM_UP_BATCHES)
    words = words_of(file_stream(session, scratch / "lines"))
    counts = words.groupBy("word").applyInPandasWithState(
        _count, "word string, count long", "count long", "update", GroupStateTimeout.NoTimeout
    )
    checkpoint = scratch / "throughput"
    query = run_to_end(counts.writeStream, checkpoint)
    counted = sum_of_counts(session, checkpoint, "value.groupState.count")
    return throughput_of(batches_of(query), WARM_UP_BATCHES, request.lines, counted)


def main() -> None:
    request = parse_request(__doc__ or "")
    if not request.lines:
        raise SystemExit("this engine has no latency run: give --lines")
    with scratch_directory() as scratch, spark_session(SHUFFLE_PARTITIONS, scratch) as session:
        throughput = measure_throughput(session, scratch, request)
    print_result("spark_python", pyspark.__version__, SETTING, throughput, latency=None)


if __name__ == "__main__":
    main()
