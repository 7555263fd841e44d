"""Checkpoints of batches: whose batches a store takes, and what is deleted without a look at all names."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import CheckpointMissing, NotTheAuthor
from millrace.microbatch.checkpoints import LISTED, BatchCheckpoints
from millrace.microbatch.repair import damaged, mended
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.state.checkpoint import Manifest, PieceRef, TaskRecord, blob_name


def run_on(tmp_path: Path, name: str) -> BatchCheckpoints:
    return BatchCheckpoints(Checkpoints(DirectoryStore(tmp_path), "words"), name)


def piece(store: BatchCheckpoints, wave: int, index: int = 0) -> PieceRef:
    blob = blob_name("words", "count", index, wave, wave)
    store.checkpoints.save(blob, [b"..."])
    return PieceRef(blob, 0, 3, 0, True)


def manifest(wave: int, *pieces: PieceRef, epoch: int | None = None) -> Manifest:
    """A task for each piece."""
    records = [TaskRecord("count", index, {index: [ref]}) for index, ref in enumerate(pieces)]
    return Manifest("words", wave, epoch or wave, 8, {"count": max(1, len(pieces))}, records, 0.0, wave)


def test_a_run_that_began_later_ends_the_one_before(tmp_path: Path) -> None:
    """However high the epochs of the first one have risen meanwhile."""
    first, second = run_on(tmp_path, "first"), run_on(tmp_path, "second")
    first.begin(None)
    first.commit(manifest(1))
    second.begin(manifest(1, epoch=2))
    with pytest.raises(NotTheAuthor, match=r"of second, and this is first"):
        first.commit(manifest(2, epoch=50))
    second.commit(manifest(2, epoch=3))


def test_a_resident_engine_that_goes_on_ends_it_too(tmp_path: Path) -> None:
    first = run_on(tmp_path, "first")
    first.begin(None)
    first.commit(manifest(1))
    first.checkpoints.claim(manifest(1, epoch=2))
    with pytest.raises(NotTheAuthor, match=r"of epoch 2, and this is first"):
        first.commit(manifest(2, epoch=50))


def test_a_store_that_was_emptied_has_the_same_author_afterwards(tmp_path: Path) -> None:
    run = run_on(tmp_path, "first")
    run.begin(None)
    run.checkpoints.store.delete(run.checkpoints.store.names(""))
    run.commit(manifest(1))
    assert run.checkpoints.store.read("words/author") == b"first"


def test_nothing_is_committed_whose_blobs_are_gone(tmp_path: Path) -> None:
    run = run_on(tmp_path, "first")
    run.begin(None)
    lost, there = piece(run, 1), piece(run, 1, index=1)
    run.checkpoints.store.delete([lost.blob])
    whole = manifest(1, lost, there)
    with pytest.raises(CheckpointMissing, match="count/0/"):
        run.commit(whole)
    assert run.lost(whole) == {lost.blob}
    [record] = damaged(whole, run.lost(whole))
    better = mended(whole, [TaskRecord(*record.task, {0: [piece(run, 2)]})], 7)
    run.commit(better)
    assert (better.epoch, better.wave_epoch, better.records[1]) == (7, 1, whole.records[1])


def test_what_is_superseded(tmp_path: Path) -> None:
    """All but what the last two need, each name once; a look at all names at first, when asked for, and now and then."""
    run = run_on(tmp_path, "first")
    run.begin(None)
    stays = piece(run, 1, index=1)
    found = []
    for wave in range(1, LISTED + 2):
        done = manifest(wave, piece(run, wave), stays)
        run.commit(done)
        unused = run.superseded(done, certain=wave != 10)
        found.append(unused is None)
        if unused is not None:
            run.checkpoints.discard(unused)
            names = run.checkpoints.store.names("words/count/")
            assert {wave, wave - 1} <= {int(name.rpartition("-")[2]) for name in names} and stays.blob in names
    assert [number + 1 for number, listed in enumerate(found) if listed] == [1, 2, 10, LISTED]
