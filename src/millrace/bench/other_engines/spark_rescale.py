"""Structured Streaming on the word count with another number of state partitions: stop, repartition, start again.

The number of partitions is fixed by a query's checkpoint. Since Spark 4.2 it can be changed there while the query is down, if
the last batch was committed. Everything is made easy for Spark: the query ends on its own just after a batch, so nothing is
drained or run again, the next input is there already, and the session stays up.

A gap lasts from the moment the sink had the last batch before it to the moment it had the first one after it.
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
    from .job import Corpus
    from .reporting import check_counts
    from .spark_common import (
        CORES,
        ROCKSDB,
        SQL,
        STATE_STORE,
        Batch,
        CorpusLinks,
        batches_of,
        file_stream,
        files_per_batch,
        scratch_directory,
        spark_session,
        start,
        stored_counts,
        words_of,
    )
else:
    from job import Corpus
    from reporting import check_counts
    from spark_common import (
        CORES,
        ROCKSDB,
        SQL,
        STATE_STORE,
        Batch,
        CorpusLinks,
        batches_of,
        file_stream,
        files_per_batch,
        scratch_directory,
        spark_session,
        start,
        stored_counts,
        words_of,
    )


def measure(session: SparkSession, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    corpus = Corpus.at(options.corpus)
    links, size = CorpusLinks(scratch / "lines", corpus), files_per_batch(corpus, options.batch_lines)
    checkpoint = scratch / "checkpoint"
    counts = SQL.of(words_of(file_stream(session, links.directory, size)))
    runs: list[list[Batch]] = []
    repartitioned: list[float] = []
    for turn in range(options.rounds + 1):
        if turn:
            started = time.time()
            partitions = options.partitions if turn % 2 else CORES
            session._streamingCheckpointManager.repartition(str(checkpoint), partitions)
            repartitioned.append(time.time() - started)
        links.add(options.batches * size)
        query = start(counts.writeStream, checkpoint, availableNow=True)
        query.awaitTermination()
        runs.append(batches_of(query))
    checked = check_counts(stored_counts(session, checkpoint, SQL), links.counts())
    return {**figures(runs, repartitioned), **checked}


def figures(runs: list[list[Batch]], repartitioned: list[float]) -> dict[str, Any]:
    usual = statistics.median(after.delivered - before.delivered for run in runs for before, after in pairwise(run))
    gaps = [after[0].delivered - before[-1].delivered for before, after in pairwise(runs)]
    return {"gaps_ms": [round(gap * 1e3) for gap in gaps], "usual_ms": round(usual * 1e3),
            "repartition_ms": [round(seconds * 1e3) for seconds in repartitioned]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="directory of the files to read")
    parser.add_argument("--batch-lines", type=int, required=True, help="lines in a batch")
    parser.add_argument("--batches", type=int, required=True, help="batches before each stop")
    parser.add_argument("--rounds", type=int, required=True, help="number of restarts")
    parser.add_argument("--partitions", type=int, required=True, help="state partitions after an odd number of restarts")
    options = parser.parse_args()
    with scratch_directory() as scratch, spark_session(CORES, scratch) as session:
        session.conf.set(STATE_STORE, ROCKSDB)
        result = measure(session, scratch, options)
    print(json.dumps({"engine": "spark_rescale", "version": pyspark.__version__, **result}), flush=True)


if __name__ == "__main__":
    main()
