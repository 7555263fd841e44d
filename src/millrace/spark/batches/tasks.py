"""Functions that Spark's Python workers run for a batch: the stages, the sinks' commit, the rewriting of lost blobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.serializers import pack_long

from millrace.control.batches.actions import BatchFailed
from millrace.control.batches.stages import Stages
from millrace.microbatch.host import host
from millrace.microbatch.work import BatchWork, read_work
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.spark.cluster.identity import executor_id, read_to_end
from millrace.spark.cluster.placement import Carried
from millrace.spark.session.errors import mark_missing_state


def run_stage(data: Carried, stage: int, partitions: list[int], index: int, arrived: Iterable[bytes]) -> Iterator[bytes]:
    """Run a partition. Spark's partition n is `partitions[n]` of the stage; `index` is only its number in a lane. Yields
    partitions and records alternately; in the last stage records alone."""
    context = TaskContext.get()
    assert context is not None
    _refuse_repeats(context)
    work, stages = _read(data)
    last = stage + 1 == stages.count
    try:
        for partition, record in _host(work).run_partition(stages, stage, partitions[context.partitionId()], arrived):
            if not last:
                yield pack_long(partition)
            yield record
    except Exception as error:
        mark_missing_state(error)
        raise
    read_to_end(arrived)


def run_commit(data: Carried, tasks: list[TaskId], index: int, arrived: Iterable[bytes]) -> Iterator[bytes]:
    """Publish the prepared output of a sink."""
    work, _ = _read(data)
    context = TaskContext.get()
    assert context is not None
    _host(work).commit(tasks[context.partitionId()])
    read_to_end(arrived)
    return iter(())


def run_rewrite(data: Carried, lost: frozenset[str], index: int, arrived: Iterable[bytes]) -> Iterator[bytes]:
    """Rewrite the lost blobs of a task, if its state is here. Partition n is the work's record n."""
    work, _ = _read(data)
    context = TaskContext.get()
    assert context is not None
    written = _host(work).rewrite(work.records[context.partitionId()], lost)
    read_to_end(arrived)
    return iter(() if written is None else (wire.encode(written),))


def _read(data: Carried) -> tuple[BatchWork, Stages]:
    return read_work(data if isinstance(data, bytes) else data.value)


def _host(work: BatchWork) -> Any:
    return host(work, work.slots.get(executor_id(), -1))


def _refuse_repeats(context: TaskContext) -> None:
    """Fail if Spark retries one task of a batch on its own: other tasks may have used the output of its first attempt, and the
    second may differ. The whole batch is run again instead."""
    if context.attemptNumber():
        raise BatchFailed("a task of the batch failed, or its executor was lost")
