"""What the store has lost is written again by the processes that still have it.

A delta is worth nothing without the pieces before it. So the key groups that a lost blob was a part of are written whole, by
the tasks that ran the batch, as they are now: nothing is processed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from millrace.microbatch.work import BatchWork
from millrace.state.checkpoint import Manifest, TaskRecord


def damaged(manifest: Manifest, lost: Collection[str]) -> list[TaskRecord]:
    """Records of tasks that need something which is lost."""
    return [record for record in manifest.records if any(piece.blob in lost for piece in record.pieces())]


def mending_work(work: BatchWork, manifest: Manifest, records: list[TaskRecord], epoch: int) -> BatchWork:
    """For those tasks of the attempt whose manifest this is; what they write is of an epoch of its own."""
    given = replace(work.given, epoch=epoch, restore=(manifest.wave, manifest.wave_epoch, manifest.epoch))
    return msgspec.structs.replace(work, given=given, wave=manifest.wave, records=records, again=False, whole=False)


def mended(manifest: Manifest, written: Iterable[TaskRecord], epoch: int) -> Manifest:
    """With what was written instead of what is lost. Tasks that did not answer are as they were."""
    by_task = {record.task: record for record in written}
    return msgspec.structs.replace(manifest, epoch=epoch,
                                   records=[by_task.get(record.task, record) for record in manifest.records])
