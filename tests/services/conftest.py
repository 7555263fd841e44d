"""Tests connectors and the history against real servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.servers.redis_server import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # for `recording`


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[Any]:
    """A client of an empty server."""
    import redis

    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    client.flushall()
    yield client
    client.close()
