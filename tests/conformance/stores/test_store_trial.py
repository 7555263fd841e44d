"""The trial of a store: those who share it see each other's marks, others say why not, and no mark is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.errors import StoreNotShared, StoreUnreachable
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.checkpoints.trial import (
    MASTER,
    abandon_trial,
    begin_trial,
    end_trial,
    join_trial,
    mark_name,
    raise_if_not_shared,
)
from millrace.testing.local_cluster import MemoryStore
from support.suites.saved_waves import Open


class ReadOnly(MemoryStore):
    """A store that this worker may not write to."""

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        raise StoreUnreachable(f"{name} is refused: let this user write")


def test_those_who_share_a_store_see_each_other(open_another: Open) -> None:
    master, worker, other = open_another(), open_another(), open_another()
    begin_trial(master, "t0")
    assert join_trial(worker, "t0", "0") == join_trial(other, "t0", "1") == ""
    assert Checkpoints(worker, "t").latest() is None, "marks are no checkpoints"
    assert end_trial(master, "t0", ["0", "1"]) == set()
    assert master.names("") == []


def test_a_mark_that_the_master_does_not_see_is_reported(store: CheckpointStore) -> None:
    begin_trial(store, "t0")
    join_trial(store, "t0", "0")
    assert end_trial(store, "t0", ["0", "1"]) == {"1"}
    assert store.names("") == []


def test_without_answers_all_marks_of_the_trial_are_deleted(store: CheckpointStore) -> None:
    for token in ("t0", "t1"):
        begin_trial(store, token)
        join_trial(store, token, "0")
    abandon_trial(store, "t0")
    assert store.names("") == sorted([mark_name("t1", "0"), mark_name("t1", MASTER)])


def test_a_directory_of_its_own(tmp_path: Path) -> None:
    here, there = DirectoryStore(tmp_path / "here"), DirectoryStore(tmp_path / "there")
    begin_trial(here, "t0")
    assert join_trial(there, "t0", "0") == "the driver's test file is not there: another directory or server"
    there.write(mark_name("t0", MASTER), [b"t1"])
    assert join_trial(there, "t0", "0") == "the driver's test file has other content"


def test_a_store_that_cannot_be_written() -> None:
    store = ReadOnly()
    store.blobs[mark_name("t0", MASTER)] = b"t0"
    assert join_trial(store, "t0", "0") == "StoreUnreachable: .trial-t0-0 is refused: let this user write"


def test_the_refusal_names_everyone_and_no_password() -> None:
    raise_if_not_shared("/store", {})
    with pytest.raises(StoreNotShared) as refused:
        raise_if_not_shared("redis://:secret@localhost:6379", {"worker 1 on b": "it has none", "worker 0 on a": "no answer"})
    assert "redis://localhost:6379" in str(refused.value) and "secret" not in str(refused.value)
    assert "(worker 0 on a: no answer; worker 1 on b: it has none)" in str(refused.value)
