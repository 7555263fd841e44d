"""Empty checkpoint stores of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.remote import RemoteStore
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from support.servers.redis_server import RedisServer
from support.suites.saved_waves import Open


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[Any]:
    """A client of an empty server."""
    import redis

    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(params=["directory", "remote", "redis"])
def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open the same store again, as another process does."""
    opened: list[CheckpointStore] = []
    if request.param == "redis":
        request.getfixturevalue("redis_client")
        url = request.getfixturevalue("redis_server").url
    makers: dict[str, Open] = {
        "directory": lambda: open_store(str(tmp_path / "store")),
        "remote": lambda: RemoteStore(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "in/it", "test://in/it"),
        "redis": lambda: open_store(url),
    }

    def another() -> CheckpointStore:
        opened.append(makers[request.param]())
        return opened[-1]

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_another: Open) -> CheckpointStore:
    return open_another()


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")
