"""A roll-back with local copies: tasks that survive read nothing from the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.state.checkpoint import task_prefix
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, start, until_wave


class ReadStore(MemoryStore):
    """Records the blobs of tasks that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.blobs_read: list[str] = []

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if not name.endswith((".manifest", "/author")):
            self.blobs_read.append(name)
        return super().read(name, offset, length)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    parts.forget()
    monkeypatch.setattr(parts.Numbers, "clock", parts.Numbers.clock)  # `start` replaces it
    return None


def prefixes(cluster: LocalCluster, slot: int) -> set[str]:
    return {task_prefix("exact", *task) for task, place in cluster.where("exact").items() if place == slot}


def owners(blobs: list[str]) -> set[str]:
    return {blob.rpartition("/")[0] for blob in blobs}


def copied(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix().partition("/")[2] for path in root.rglob("*") if path.is_file()}


def test_only_the_state_of_the_lost_worker_is_read_from_the_store(tmp_path: Path) -> None:
    store = ReadStore()
    cluster = start(store=store, copies=tmp_path)
    until_wave(cluster, 3)
    lost = prefixes(cluster, 1)
    cluster.kill(1)
    until_wave(cluster, 1)
    assert store.blobs_read and owners(store.blobs_read) <= lost
    finish(cluster)
    assert_exact()


def test_state_that_was_read_once_is_local_at_the_next_failure(tmp_path: Path) -> None:
    store = ReadStore()
    cluster = start(store=store, copies=tmp_path)
    until_wave(cluster, 3)
    keyed = [task for task, slot in cluster.where("exact").items() if task.component == "tally" and slot == 1]
    cluster.kill(1)
    cluster.run_until(lambda: cluster.master.topologies["exact"].status == "running")
    store.blobs_read.clear()
    (moved,) = {cluster.where("exact")[task] for task in keyed}
    other = 2 - moved
    lost = prefixes(cluster, other)
    cluster.kill(other)
    until_wave(cluster, 1)
    assert owners(store.blobs_read) <= lost
    finish(cluster)
    assert_exact()


def test_a_new_process_in_the_slot_uses_the_copies_of_the_last_one(tmp_path: Path) -> None:
    store = ReadStore()
    cluster = start(workers=1, store=store, copies=tmp_path)
    until_wave(cluster, 3)
    cluster.kill(0)
    cluster.start(0)
    until_wave(cluster, 1)
    assert store.blobs_read == []
    finish(cluster)
    assert_exact()


def test_damaged_copies_are_read_from_the_store(tmp_path: Path) -> None:
    store = ReadStore()
    cluster = start(workers=2, store=store, copies=tmp_path)
    until_wave(cluster, 3)
    survivors = prefixes(cluster, 0)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    cluster.kill(1)
    until_wave(cluster, 1)
    assert owners(store.blobs_read) & survivors
    finish(cluster)
    assert_exact()


def test_copies_do_not_pile_up(tmp_path: Path) -> None:
    """After a commit there are copies of just the blobs that the checkpoint needs; after the topology's end there are none."""
    cluster = start(copies=tmp_path)
    until_wave(cluster, 8)
    needed = {name for name in cluster.store.blobs if not name.endswith(".manifest")}
    assert copied(tmp_path) and copied(tmp_path) <= needed
    finish(cluster)
    assert copied(tmp_path) == set()
