"""What the driver tells the tasks of a batch, and what they tell it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from millrace.control.assignment import TopologyAssignment, WorkerAddress
from millrace.control.batch_stages import Stages, stages_of
from millrace.model.graph import TaskId
from millrace.runtime.worker.process import WorkerSetup
from millrace.state.checkpoint import TaskRecord


class BatchWork(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at one batch. The assignment's epoch is the attempt's own; its `restore` names the wave, and the attempt,
    that the batch goes on from."""

    run: str  # of the topology: another one, of the same name, has nothing in common with it
    alive: list[str]  # all runs that have not ended: nothing of others is needed any more
    wave: int
    given: TopologyAssignment
    records: list[TaskRecord]  # what each task had at the wave that the batch goes on from
    slots: dict[str, int]  # by executor
    workers: list[WorkerAddress]  # where fragments can be kept
    setup: WorkerSetup
    most_tuples: int  # of one spout task
    most_seconds: float
    schemas: dict[str, bytes] = {}  # of DataFrames, by spout
    good: list[int] = []  # the epochs of the last attempts that were committed
    again: bool = False  # an attempt at this batch has failed before
    whole: bool = False  # write all state: the store has lost some
    holds: bool = False  # processes keep fragments for each other, now or when another executor comes

    def stages(self) -> Stages:
        return stages_of(self.given.graph, {task: place.slot for task, place in self.given.places})


class TaskReport(msgspec.Struct, array_like=True):
    """One task in one batch: its meters, what it sent to whom, and what it must be given to go on from here."""

    task: int
    meters: dict[str, Any]
    traffic: dict[int, int]
    key_groups: dict[str, list[int]]
    record: TaskRecord
    idle: bool = False  # a spout that had nothing more


class PartitionReport(msgspec.Struct, array_like=True):
    """The tasks of one partition, and the process in which they ran."""

    slot: int
    planned: int  # the slot that the plan says
    pid: int
    tasks: list[TaskReport]
    errors: list[dict[str, Any]]
    counters: dict[str, int]
    cpu_seconds: float
    memory_mb: float
    seconds: float
    stage: int
    partition: int
    ran: int  # drawn for this very run of the partition
    heard: dict[int, int]  # partition of the stage before -> the run whose output was used
    address: WorkerAddress | None = None  # where this process keeps fragments of others


_decoder = msgspec.msgpack.Decoder(BatchWork)
_report_decoder = msgspec.msgpack.Decoder(PartitionReport)


@lru_cache(2)
def read_work(data: bytes) -> tuple[BatchWork, Stages]:
    """A process runs several partitions of a batch, and each brings the same."""
    work = _decoder.decode(data)
    return work, work.stages()


def read_report(data: bytes | memoryview) -> PartitionReport:
    return _report_decoder.decode(data)


def one_cut(reports: list[PartitionReport], stages: Stages) -> str:
    """Whether every partition has used the output of the same run of each partition before it, the one whose report this is. If
    Spark ran a part of the batch again by itself, some may have used what the first run gave out and others the second: then
    what is wrong."""
    ran = {(report.stage, report.partition): report.ran for report in reports}
    if len(ran) != len(reports):
        return "a partition has reported twice"
    for report in reports:
        before = {partition: ran.get((report.stage - 1, partition)) for partition in report.heard}
        if report.heard != before or (report.stage and len(before) != sum(stage == report.stage - 1 for stage, _ in ran)):
            return f"partition {report.partition} of stage {report.stage} has not used what its sources have reported"
    missing = [stage for stage in range(1, stages.count) if sum(at == stage for at, _ in ran) != len(stages.partitions[stage])]
    return f"not every partition of stage {missing[0]} has reported" if missing else ""


def record_of(work: BatchWork, task: TaskId) -> TaskRecord | None:
    return next((record for record in work.records if record.task == task), None)
