"""Batches without Spark on a store that loses blobs while the topology runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace.control.batches.decisions import LISTED
from millrace.control.batches.steps import RunAttempt
from millrace.errors import CheckpointMissing
from millrace.microbatch.work import BatchWork
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.state.checkpoint import manifest_names
from millrace.testing.local_batches import LocalBatches
from support.suites.batch_words import check, run_to_the_end, words
from support.suites.kept_state import state_of


def start(tmp_path: Path, processes: int = 1, most_tuples: int = 5) -> LocalBatches:
    """Start with few words per batch, so that the next batch leaves most key groups unchanged."""
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"), processes, most_tuples=most_tuples)
    batches.choose = lambda task: batches.place(task)
    for _ in range(4):
        batches.batch()
    return batches


def lose(batches: LocalBatches, share: float = 1.0) -> None:
    """Delete blobs at random; manifests stay."""
    store = batches.checkpoints.store
    blobs = sorted(set(store.names("")) - set(manifest_names(store.names(""))))
    store.delete(blob for blob in blobs if batches.random.random() < share)


def counters(batches: LocalBatches) -> Counter[str]:
    """Run one more batch; returns its counters."""
    total: Counter[str] = Counter()
    for report in batches.batch():
        total.update(report.counters)
    return total


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("processes", [1, 3])
def test_state_in_processes_is_written_again(tmp_path: Path, processes: int, share: float) -> None:
    """The same attempt repairs the store: nothing is processed twice or read. Then the store alone suffices."""
    batches = start(tmp_path, processes)
    for _ in range(3):
        lose(batches, share)
        epoch = batches.epoch
        total = counters(batches)
        assert not total["restored"] and total["resident"] == batches.graph.component("count").par
        assert batches.committed is not None and batches.committed.wave_epoch == epoch + 1, "the first attempt was committed"
        assert not batches.checkpoints.store.missing(batches.committed.blobs())
    for process in range(processes):
        batches.kill(process)
    batches.most_tuples = 100
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


def test_attempts_that_fail_after_a_repair_restore_the_repaired_state(tmp_path: Path) -> None:
    batches = start(tmp_path)
    lose(batches)
    batches.batch()
    batches.fault = lambda stage, partition: stage == 2
    with pytest.raises(Exception, match="after partition"):
        batches.batch()
    batches.fault = lambda stage, partition: False
    batches.most_tuples = 100
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


def test_nothing_is_committed_while_state_is_missing(tmp_path: Path) -> None:
    """One of two processes is gone and the store has lost its blobs: nothing is committed until they are back."""
    batches = start(tmp_path, processes=2)
    store = batches.checkpoints.store
    saved = {name: store.read(name) for name in store.names("")}
    lose(batches)
    batches.kill(1)
    for _ in range(3):
        with pytest.raises(CheckpointMissing, match="count/1/"):
            batches.batch()
    for name, data in saved.items():
        store.write(name, [data])
    batches.most_tuples = 100
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


class ReplannedLate(LocalBatches):
    """Key groups get other owners between the decision to begin attempt 3 and the attempt, once."""

    replanned = False

    def _prepare(self, step: RunAttempt) -> BatchWork:
        if step.wave == 3 and not self.replanned:
            self.replanned = True
            self.give("count", dict.fromkeys(range(self.graph.key_groups), 0))
        return super()._prepare(step)


def test_lost_state_is_written_again_before_a_plan_that_arrives_late(tmp_path: Path) -> None:
    """The new owner of a key group reads its state from the store, which has lost it."""
    batches = ReplannedLate(words(tmp_path / "out"), str(tmp_path / "store"), processes=1)
    batches.batch()
    batches.batch()
    lose(batches)
    run_to_the_end(batches)
    assert batches.replanned
    check(batches, tmp_path / "out")


class CountingStore:
    """A store that counts calls."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store, self.calls = store, Counter[str]()

    def __getattr__(self, name: str) -> object:
        method = getattr(self._store, name)

        def counted(*arguments: object) -> object:
            self.calls[name] += 1
            return method(*arguments)

        return counted


def test_names_are_listed_rarely(tmp_path: Path) -> None:
    batches = start(tmp_path)
    store = batches.checkpoints.store = CountingStore(batches.checkpoints.store)  # type: ignore[assignment]
    for _ in range(LISTED - 5):
        batches.batch()
    assert not store.calls["names"] and store.calls["missing"] == store.calls["write_if"] == LISTED - 5
    assert not store.calls["read"] and not store.calls["write"]
    batches.batch()
    assert store.calls["names"] == 1
    check_lean(batches)


def check_lean(batches: LocalBatches, least: int = 2) -> None:
    """The store has only what the last two manifests need, or the last one if the one before is unusable."""
    names = batches.checkpoints.store.names("")
    manifests = manifest_names(names)
    needed = set().union(*(batches.checkpoints._read(name).blobs() for name in manifests))
    assert least <= len(manifests) <= 2 and set(names) == {*manifests, *needed, f"{batches.graph.name}/author"}


def test_unneeded_blobs_are_deleted_without_listing(tmp_path: Path) -> None:
    batches = start(tmp_path)
    for number in range(20):
        if number == 10:
            lose(batches, 0.5)
        batches.batch()
        check_lean(batches, least=1 if number == 10 else 2)
    assert state_of(batches.checkpoints.store, batches.graph)["count"]["counts"]
