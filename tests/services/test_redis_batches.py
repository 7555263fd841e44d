"""A Redis sink that is kept from batch to batch; each batch is an epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.redis import RedisSink
from millrace.model.graph import batched, graph_of
from millrace.testing.local_batches import AttemptFailed, LocalBatches
from support.servers.redis_server import RedisServer

pytestmark = pytest.mark.redis
N = 200
MADE: list[int] = []  # task indexes of initialized sinks


class Digits(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["digit", "n"]

    def generate(self, position: int) -> tuple[int, int]:
        n = self.ordinal(position)
        return n % 10, n


class CountedSink(RedisSink):
    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        MADE.append(self.task_index)


class ToRedis(Topology):
    digits = Digits.spec(par=2)
    sink = CountedSink.spec(inputs={digits: Grouping.SHUFFLE}, par=2)


def start(server: RedisServer, tmp_path: Path, mode: str, processes: int = 1) -> LocalBatches:
    """Start a topology whose spout tasks emit 20 tuples per batch."""
    MADE.clear()
    config = {"url": server.url, "key": "out", "mode": mode, "limit": N, "burst": 5, "topology.chunk.tuples": 5}
    return LocalBatches(batched(graph_of(ToRedis, config=config)), str(tmp_path), processes, most_tuples=20)


def seen(client: Any, mode: str) -> int | list[int]:
    """The sum or the numbers that the sink has written."""
    if mode == "counter":
        return sum(map(int, client.hvals("out")))
    rows = client.lrange("out", 0, -1) if mode == "list" else [json.dumps(entry) for _, entry in client.xrange("out")]
    return sorted(int(json.loads(row)["n"]) for row in rows)


def wanted(mode: str, numbers: int) -> int | list[int]:
    return sum(range(numbers)) if mode == "counter" else list(range(numbers))


@pytest.mark.parametrize("mode", ["list", "counter", "stream"])
def test_one_instance_over_several_batches(redis_server: RedisServer, redis_client: Any, tmp_path: Path, mode: str) -> None:
    batches = start(redis_server, tmp_path, mode)
    for number in range(1, 6):
        batches.batch()
        assert seen(redis_client, mode) == wanted(mode, 40 * number)
    batches.batch()  # the spouts have ended
    assert seen(redis_client, mode) == wanted(mode, N)
    assert sorted(MADE) == [0, 1]


def test_aborted_attempts_and_other_processes(redis_server: RedisServer, redis_client: Any, tmp_path: Path) -> None:
    batches = start(redis_server, tmp_path, "list", processes=2)
    for number in range(1, 6):
        batches.fault = lambda stage, partition: stage == 1
        with pytest.raises(AttemptFailed):
            batches.batch()
        assert seen(redis_client, "list") == wanted("list", 40 * (number - 1))
        batches.fault = lambda stage, partition: False
        batches.batch()
        assert seen(redis_client, "list") == wanted("list", 40 * number)
