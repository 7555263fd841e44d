"""Spark Structured Streaming on the word count with another number of state partitions: stop, repartition, start again.

The number of partitions is fixed by a query's checkpoint. Since Spark 4.2 it can be changed there while the query is down, if
the last batch was committed. Everything is made easy for Spark: the query ends by itself just after a batch, so nothing is
drained or run again, the next input is there already, and the session stays up.

The gap is from the moment the sink had the last batch before to the moment it had the first one after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE
    from .reporting import check
    from .spark_common import (
        CORES,
        ROCKSDB,
        SQL,
        STATE_STORE,
        Batch,
        LinkedFiles,
        batches_of,
        file_stream,
        run_to_end,
        scratch_directory,
        spark_session,
        sum_of_counts,
        words_of,
    )
else:
    from job import WORDS_PER_LINE
    from reporting import check
    from spark_common import (
        CORES,
        ROCKSDB,
        SQL,
        STATE_STORE,
        Batch,
        LinkedFiles,
        batches_of,
        file_stream,
        run_to_end,
        scratch_directory,
        spark_session,
        sum_of_counts,
        words_of,
    )


def measure(session: SparkSession, scratch: Path, request: argparse.Namespace) -> dict[str, Any]:
    given = LinkedFiles(scratch / "lines", request.seed, request.batch_lines)
    checkpoint = scratch / "checkpoint"
    counts = SQL.of(words_of(file_stream(session, given.directory)))
    runs: list[list[Batch]] = []
    repartitioned: list[float] = []
    for turn in range(request.rounds + 1):
        if turn:
            started = time.time()
            partitions = request.partitions if turn % 2 else CORES
            session._streamingCheckpointManager.repartition(str(checkpoint), partitions)
            repartitioned.append(time.time() - started)
        given.add(request.batches)
        query = run_to_end(counts.writeStream, checkpoint)
        runs.append(batches_of(query))
    sent = sum(batch.lines for run in runs for batch in run) * WORDS_PER_LINE
    check(sum_of_counts(session, checkpoint, SQL), sent)
    return figures(runs, repartitioned)


def figures(runs: list[list[Batch]], repartitioned: list[float]) -> dict[str, Any]:
    usual = statistics.median(after.delivered - before.delivered for run in runs for before, after in pairwise(run))
    gaps = [after[0].delivered - before[-1].delivered for before, after in pairwise(runs)]
    return {"gaps_ms": [round(gap * 1e3) for gap in gaps], "usual_ms": round(usual * 1e3),
            "repartition_ms": [round(seconds * 1e3) for seconds in repartitioned]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, required=True, help="seed of the input")
    parser.add_argument("--batch-lines", type=int, required=True, help="lines in a batch")
    parser.add_argument("--batches", type=int, required=True, help="batches before each stop")
    parser.add_argument("--rounds", type=int, required=True, help="how often it is stopped and started again")
    parser.add_argument("--partitions", type=int, required=True, help="state partitions after an odd number of restarts")
    request = parser.parse_args()
    with scratch_directory() as scratch, spark_session(CORES, scratch) as session:
        session.conf.set(STATE_STORE, ROCKSDB)
        found = measure(session, scratch, request)
    print(json.dumps({"engine": "spark_rescale", "version": pyspark.__version__, **found}), flush=True)


if __name__ == "__main__":
    main()
