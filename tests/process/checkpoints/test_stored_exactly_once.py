"""Exactly once into PostgreSQL and into Redis: workers die by kill -9 between waves, while their sinks prepare and while they
commit, and the content is compared with rows computed independently."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millrace.connectors.staged_rows import TABLE as STAGED
from support.processes.ending import kill_and_wait
from support.processes.forked import ForkedCluster
from support.servers.postgres import PostgresServer
from support.servers.redis_server import RedisServer
from support.topologies.audited import SECONDS
from support.topologies.stored import COUNTER, LIST, TABLE, StoredStream, true_rows

SLOTS = 3
RATE = 150  # lines per second and spout task, ten words each
LINES = 20  # per spout task, between two kills


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[sa.Engine]:
    engine = sa.create_engine(postgres_server.url)
    with engine.begin() as connection:
        for table in (TABLE, STAGED):
            connection.execute(sa.text(f"drop table if exists {table}"))
    yield engine
    engine.dispose()


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[Any]:
    import redis

    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    client.flushall()
    yield client
    client.close()


def slot_of(stream: StoredStream, component: str) -> int:
    return next(place.slot for task, place in stream.state.places.items() if task.component == component)


def kill(cluster: ForkedCluster, stream: StoredStream, phase: str, component: str) -> None:
    """Kill a worker of this component, in this phase of a wave, and start it again."""
    slot, losses = slot_of(stream, component), stream.state.losses
    pid = cluster.processes[slot].pid
    if phase == "idle":
        kill_and_wait(pid)
    else:
        stream.in_phase(phase, partial(kill_and_wait, pid), slot, component)
    cluster.kill(slot)  # already dead: reaps the process
    stream.until(lambda: stream.state.losses > losses)
    cluster.start(slot)
    cluster.master.wait_for_workers(SLOTS, SECONDS)
    stream.wave(1)


def test_killed_workers_leave_every_row_once(database: sa.Engine, redis_client: Any, redis_server: RedisServer,
                                             postgres_server: PostgresServer, tmp_path: Path) -> None:
    with ForkedCluster(SLOTS, nodes=SLOTS) as cluster:
        stream = StoredStream(cluster.master, tmp_path / "output", postgres_server.url, redis_server.url, rate=RATE,
                              interval=0.2)
        stream.wave(2)
        for phase, component in (("idle", "rows"), ("prepare", "listed"), ("commit", "rows"), ("commit", "added")):
            stream.advance(LINES)
            kill(cluster, stream, phase, component)
        stream.drain()
        truth = true_rows(stream.positions())
        with database.connect() as connection:
            rows = Counter(map(tuple, connection.execute(sa.text(f'select task, position, "index", word from {TABLE}'))))
            staged = connection.execute(sa.text(f"select count(*) from {STAGED} where epoch >= 0")).scalar()
        entries = [json.loads(text) for text in redis_client.lrange(LIST, 0, -1)]
        counts = {word: int(count) for word, count in redis_client.hgetall(COUNTER).items()}
        stream.end()
    assert rows == truth
    assert Counter((row["task"], row["position"], row["index"], row["word"]) for row in entries) == truth
    words: Counter[str] = Counter()
    for (*_, word), times in truth.items():
        words[word] += times
    assert counts == dict(words)
    assert len(truth) >= 4 * 2 * LINES * 10 and staged == 0
