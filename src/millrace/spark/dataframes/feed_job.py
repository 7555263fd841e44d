"""The Spark task that feeds a DataFrame spout.

It has its own module because every Python process of Spark imports it, and the driver's side imports several times as much.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from millrace.errors import MillraceError
from millrace.runtime.feeds.feeder import Feeder, Feeding

SENT = "partition int, rows bigint, error string"


def feed_partition(feeding: Feeding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of one Spark task. An error is returned, not raised: Spark should not retry the task."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    rows, error = 0, None
    try:
        with Feeder(feeding, partition) as feeder:
            rows = feeder.send(batches)
    except MillraceError as failed:
        error = str(failed)
    schema = pa.schema([("partition", pa.int32()), ("rows", pa.int64()), ("error", pa.string())])
    yield pa.record_batch([[partition], [rows], [error]], schema=schema)
