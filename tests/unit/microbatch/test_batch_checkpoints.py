"""Checkpoints of batches: only the run that began last may commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.control.batches.decisions import damaged, repaired
from millrace.errors import CheckpointMissing, NotTheAuthor
from millrace.microbatch.batch_checkpoints import BatchCheckpoints
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest, PieceRef, TaskRecord, blob_name


def run_on(tmp_path: Path, name: str) -> BatchCheckpoints:
    checkpoints = Checkpoints(DirectoryStore(tmp_path), "words")
    checkpoints.take_over(name)
    return BatchCheckpoints(checkpoints)


def piece(store: BatchCheckpoints, wave: int, index: int = 0) -> PieceRef:
    blob = blob_name("words", "count", index, wave, wave)
    store.checkpoints.save(blob, [b"..."])
    return PieceRef(blob, 0, 3, 0, True)


def manifest(wave: int, *pieces: PieceRef, epoch: int | None = None) -> Manifest:
    """One task per piece."""
    records = [TaskRecord("count", index, {index: [ref]}) for index, ref in enumerate(pieces)]
    return Manifest("words", wave, epoch or wave, 8, {"count": max(1, len(pieces))}, records, 0.0, wave)


def test_a_later_run_ends_the_one_before(tmp_path: Path) -> None:
    """The epochs of the first run do not matter."""
    first = run_on(tmp_path, "first")
    first.begin(None)
    first.commit(manifest(1))
    second = run_on(tmp_path, "second")
    second.begin(manifest(1, epoch=2))
    with pytest.raises(NotTheAuthor, match=r"is process \d+ on .* \(epoch 1001\), so this one, process .* \(epoch 1\)"):
        first.commit(manifest(2, epoch=50))
    second.commit(manifest(2, epoch=3))


def test_a_run_of_an_earlier_version_ends_it_too(tmp_path: Path) -> None:
    first = run_on(tmp_path, "first")
    first.begin(None)
    first.commit(manifest(1))
    first.checkpoints.store.write("words/author", [b"cluster/words/1234"])
    with pytest.raises(NotTheAuthor, match="is cluster/words/1234, so this one"):
        first.commit(manifest(2, epoch=50))


def test_an_emptied_store_keeps_its_author(tmp_path: Path) -> None:
    run = run_on(tmp_path, "first")
    run.begin(None)
    run.checkpoints.store.delete(run.checkpoints.store.names(""))
    run.commit(manifest(1))
    assert run.checkpoints.current_author() == run.checkpoints.author


def test_a_manifest_whose_blobs_are_gone_is_not_committed(tmp_path: Path) -> None:
    run = run_on(tmp_path, "first")
    run.begin(None)
    lost, kept = piece(run, 1), piece(run, 1, index=1)
    run.checkpoints.store.delete([lost.blob])
    whole = manifest(1, lost, kept)
    with pytest.raises(CheckpointMissing, match="count/0/"):
        run.commit(whole)
    assert run.lost(whole) == {lost.blob}
    [record] = damaged(whole, run.lost(whole))
    better = repaired(whole, [TaskRecord(*record.task, {0: [piece(run, 2)]})], 7)
    run.commit(better)
    assert (better.epoch, better.wave_epoch, better.records[1]) == (7, 1, whole.records[1])
