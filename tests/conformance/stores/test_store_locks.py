"""Locks of directory stores, one per name; other stores have no lock."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from millrace.errors import StoreInUse, StoreUnreachable
from millrace.runtime.checkpoints import lock as store_lock
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.remote import RemoteStore
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import blob_name
from support.processes.children import child_that, in_child
from support.servers.redis_server import RedisServer


def test_a_lock_excludes_others_with_the_same_name(directory: DirectoryStore) -> None:
    lock = directory.lock("words")
    assert lock is not None
    other = DirectoryStore(directory.root)
    with pytest.raises(StoreInUse, match=rf"'words' cannot use the checkpoints in .*process {os.getpid()} on .*another "
                                         "--cluster, or with another checkpoint.store"):
        other.lock("words")
    with other.lock("lines") as lines:  # type: ignore[union-attr]
        assert lines is not None
    lock.close()
    lock.close()
    with other.lock("words"), pytest.raises(StoreInUse):  # type: ignore[union-attr]
        directory.lock("words")


def test_a_lock_ends_with_its_process(directory: DirectoryStore) -> None:
    def take() -> None:
        assert directory.lock("words") is not None
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(2):
        assert in_child(take) == -signal.SIGKILL
    with directory.lock("words") as lock:  # type: ignore[union-attr]
        assert lock is not None


def test_the_error_names_the_process_that_holds_the_lock(directory: DirectoryStore) -> None:
    kept: list[Any] = []
    with (child_that(lambda: kept.append(directory.lock("words"))) as child,
          pytest.raises(StoreInUse, match=f"process {child} on ")):
        directory.lock("words")
    with directory.lock("words") as lock:  # type: ignore[union-attr]
        assert lock is not None


def test_a_closed_lock_is_free_though_a_child_has_its_file_open(directory: DirectoryStore) -> None:
    lock = directory.lock("words")
    assert lock is not None
    with child_that(lambda: None):
        lock.close()
        with directory.lock("words") as again:  # type: ignore[union-attr]
            assert again is not None


@pytest.mark.parametrize("topology", ["with/slash", ".", "..", "größe-雪" * 30, "a b\n"])
def test_locks_are_not_listed_as_names(directory: DirectoryStore, topology: str) -> None:
    directory.write(blob_name(topology, "count", 0, 1, 1), [b"x"])
    with directory.lock(topology) as lock:  # type: ignore[union-attr]
        assert lock is not None
        assert directory.names("") == [blob_name(topology, "count", 0, 1, 1)]
        assert Checkpoints(directory, topology).newest() == (1, 1)


def test_a_lock_that_cannot_be_created(directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch,
                                       caplog: pytest.LogCaptureFixture) -> None:
    def refuse(number: int) -> Callable[..., None]:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))
        return flock

    monkeypatch.setattr(store_lock.fcntl, "flock", refuse(errno.ENOLCK))
    with caplog.at_level(logging.WARNING):
        assert directory.lock("words") is None
    assert "has no locks" in caplog.text
    monkeypatch.setattr(store_lock.fcntl, "flock", refuse(errno.EIO))
    with pytest.raises(StoreUnreachable, match="could not lock words"):
        directory.lock("words")


def test_other_stores_have_no_lock(redis_server: RedisServer, redis_client: Any, tmp_path: Path) -> None:
    remote: CheckpointStore = RemoteStore(fs.LocalFileSystem(), str(tmp_path), "test://")
    for store in (remote, open_store(redis_server.url)):
        assert store.lock("words") is None
        store.close()
