"""Messages between the driver and the tasks of a batch: the work to do, and the reports of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from millrace.control.assignment import TopologyAssignment, WorkerAddress
from millrace.control.batches.stages import Stages, stages_of
from millrace.control.batches.steps import RunAttempt
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.worker.process import WorkerSetup
from millrace.state.checkpoint import Manifest, TaskRecord


class BatchWork(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at one batch. The assignment's epoch belongs to the attempt alone; its `restore` names the wave that the
    batch continues from and the epoch that prepared it."""

    run: str  # of the topology; distinguishes it from other runs under the same name
    alive: list[str]  # all runs that have not ended: processes drop the others
    wave: int
    assignment: TopologyAssignment
    records: list[TaskRecord]  # of each task at the wave that the batch continues from
    slots: dict[str, int]  # by executor
    workers: list[WorkerAddress]  # of processes that hold fragments
    setup: WorkerSetup
    most_tuples: int  # maximum for one spout task
    most_seconds: float
    schemas: dict[str, bytes] = {}  # of DataFrames, by spout
    good: list[int] = []  # the epochs of the last committed attempts
    again: bool = False  # an earlier attempt at this batch failed
    whole: bool = False  # write all state: the store has lost some
    holds: bool = False  # processes hold fragments for each other, now or when another executor comes

    def stages(self) -> Stages:
        return stages_of(self.assignment.graph, {task: place.slot for task, place in self.assignment.places})

    def for_attempt(self, step: RunAttempt) -> BatchWork:
        """A copy of this work for the attempt of the step."""
        return msgspec.structs.replace(self, good=list(step.good), again=step.attempt > 1, whole=step.whole)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a batch, prepared to run."""

    work: BatchWork
    stages: Stages
    graph: TopologyGraph
    slots: dict[TaskId, int]

    @classmethod
    def of(cls, work: BatchWork) -> Attempt:
        return cls(work, work.stages(), work.assignment.graph, {task: place.slot for task, place in work.assignment.places})


class TaskReport(msgspec.Struct, array_like=True):
    """One task in one batch: its meters, the tuples and bytes it sent to each task, and the record to restore it from."""

    task: int
    meters: dict[str, Any]
    traffic: dict[int, int]
    key_groups: dict[str, list[int]]
    record: TaskRecord
    traffic_bytes: dict[int, int] = {}


class PartitionReport(msgspec.Struct, array_like=True):
    """The tasks of one partition, and the process in which they ran."""

    slot: int
    planned: int  # the slot in the plan
    pid: int
    tasks: list[TaskReport]
    errors: list[dict[str, Any]]
    counters: dict[str, int]
    cpu_seconds: float
    memory_mb: float
    seconds: float
    stage: int
    partition: int
    ran: int  # a random number that identifies this run of the partition
    marks: dict[int, int]  # partition of the previous stage -> the run whose output was used
    address: WorkerAddress | None = None  # of this process, if it holds fragments of others


_decoder = msgspec.msgpack.Decoder(BatchWork)
_report_decoder = msgspec.msgpack.Decoder(PartitionReport)


@lru_cache(2)
def read_work(data: bytes) -> tuple[BatchWork, Stages]:
    """Decode the work once per process, though each of its partitions brings the same bytes."""
    work = _decoder.decode(data)
    return work, work.stages()


def read_report(data: bytes | memoryview) -> PartitionReport:
    return _report_decoder.decode(data)


def check_single_run(reports: list[PartitionReport], stages: Stages) -> str:
    """Check that every partition has used the output of the same run of each partition before it: the run that reported. If
    Spark has rerun a part of the batch on its own, some partitions may have used the first output and others the second.
    Returns an error, or an empty string."""
    ran = {(report.stage, report.partition): report.ran for report in reports}
    if len(ran) != len(reports):
        return "a partition has reported twice"
    for report in reports:
        before = {partition: ran.get((report.stage - 1, partition)) for partition in report.marks}
        if report.marks != before or (report.stage and len(before) != sum(stage == report.stage - 1 for stage, _ in ran)):
            return f"partition {report.partition} of stage {report.stage} used output of another run than its sources reported"
    missing = [stage for stage in range(1, stages.count) if sum(at == stage for at, _ in ran) != len(stages.partitions[stage])]
    return f"not every partition of stage {missing[0]} has reported" if missing else ""


def repair_work(work: BatchWork, manifest: Manifest, records: Sequence[TaskRecord], epoch: int) -> BatchWork:
    """Work for the tasks of an attempt that are to rewrite lost blobs of its manifest, in a new epoch. A delta is useless
    without the pieces before it, so tasks write the damaged key groups whole, as they are after the batch."""
    assignment = replace(work.assignment, epoch=epoch, restore=(manifest.wave, manifest.wave_epoch, manifest.epoch))
    return msgspec.structs.replace(work, assignment=assignment, wave=manifest.wave, records=list(records), again=False,
                                   whole=False)
