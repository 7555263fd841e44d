"""A second driver resumes a topology whose checkpoints are in Redis, which has no locks, while the first one runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS, HEARTBEAT_TIMEOUT
from millrace.errors import NotTheAuthor
from millrace.spark.running_topology import RunningTopology
from millrace.testing.processes import ProcessCluster
from support.processes.forked import ForkedCluster
from support.servers.redis_server import RedisServer
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact

NAME = "stateful"
RATE = 1500


@pytest.fixture
def place(redis_server: RedisServer) -> Iterator[str]:
    import redis

    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield redis_server.url
    client.close()


def cluster_on(place: str) -> ProcessCluster:
    return ForkedCluster(2, settings={HEARTBEAT_TIMEOUT.key: SECONDS, CHECKPOINTS.key: place})


@pytest.mark.parametrize("interval", [0.1, 3600.0], ids=["in the midst of waves", "no wave is due"])
def test_the_overtaken_driver_ends_and_nothing_is_lost_or_repeated(place: str, tmp_path: Path, interval: float) -> None:
    with cluster_on(place) as first, cluster_on(place) as second:
        StatefulStream(first.master, tmp_path, NAME, rate=RATE, interval=interval).wave(1)
        stream = StatefulStream(second.master, tmp_path, NAME, rate=RATE, interval=0.1, resume=True)
        with pytest.raises(NotTheAuthor, match=rf"another driver took over '{NAME}': the .*epoch \d+"):
            RunningTopology(first.master, NAME).wait(SECONDS)
        assert first.master.wait_until(lambda: not first.master.connections, SECONDS), "its workers end too"
        stream.wave(2)
        assert_all_exact(stream.finish_both())
        assert not second.master.superseded
