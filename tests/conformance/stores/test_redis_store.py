"""A checkpoint store in Redis: restarts, flushes, limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.errors import CheckpointMissing, StoreUnreachable
from millrace.runtime.checkpoints import redis as redis_store
from millrace.runtime.checkpoints.directory import UNFINISHED_SECONDS
from millrace.runtime.checkpoints.redis import FIELD, NAMES_PREFIX, PREFIX, UNFINISHED_PREFIX, RedisStore
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import PieceRef
from support.servers.ports import free_port
from support.servers.redis_server import RedisServer
from support.suites.saved_waves import NEW, OLD, commit_waves, save_wave


@pytest.fixture
def redis(redis_server: RedisServer, redis_client: Any) -> Iterator[RedisStore]:
    store = RedisStore(redis_server.url)
    yield store
    store.close()


def test_no_redis_server() -> None:
    with pytest.raises(StoreUnreachable, match=r"Redis at redis://127\.0\.0\.1:\d+/0.*could not answer") as caught:
        open_store(f"redis://user:secret@127.0.0.1:{free_port()}/0")
    assert "secret" not in str(caught.value)


def test_a_redis_that_restarts_empty_is_not_trusted(redis: RedisStore, redis_server: RedisServer) -> None:
    checkpoints = Checkpoints(redis, "t")
    (first,) = commit_waves(checkpoints, 1)
    second = save_wave(checkpoints, 2, [1], first)
    redis_server.stop()
    try:
        for call in (lambda: checkpoints.commit(second), checkpoints.latest, lambda: redis.write("t/a", [NEW]),
                     lambda: redis.delete(["t/a"]), lambda: redis.read("t/a")):
            with pytest.raises(StoreUnreachable, match="Check that it runs"):
                call()
    finally:
        redis_server.start()
    with pytest.raises(CheckpointMissing, match="2 of the blobs it needs"):
        checkpoints.commit(second)
    assert checkpoints.latest() is None
    third = save_wave(checkpoints, 3)
    checkpoints.commit(third)
    assert checkpoints.latest() == third


def test_a_redis_that_is_flushed_is_not_trusted(redis: RedisStore, redis_client: Any) -> None:
    checkpoints = Checkpoints(redis, "t")
    manifest = save_wave(checkpoints, 1)
    redis_client.flushall()
    with pytest.raises(CheckpointMissing):
        checkpoints.commit(manifest)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_flush_during_a_write(redis: RedisStore, redis_client: Any, monkeypatch: pytest.MonkeyPatch,
                                at: int) -> None:
    fields = redis_store._fields

    def flushing(parts: Any) -> Iterator[dict[str, bytes]]:
        for number, some in enumerate(fields(parts)):
            yield some
            if number == at:
                redis_client.flushall()

    monkeypatch.setattr(redis_store, "FIELD", 64)
    monkeypatch.setattr(redis_store, "STEP", 2)
    monkeypatch.setattr(redis_store, "_fields", flushing)
    with pytest.raises(StoreUnreachable, match=r"lost part of .*Write it again"):
        redis.write("t/a", [bytes(5 * 64)])
    assert redis.names("") == []


def test_unfinished_writes_expire(redis: RedisStore, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.write("t/a", [OLD])
    monkeypatch.setattr(redis, "_rename", lambda *_: None)  # the writer died before it finished
    redis.write("t/a", [NEW])
    assert redis.read("t/a") == OLD and redis.names("") == ["t/a"]
    (unfinished,) = redis_client.keys(f"{UNFINISHED_PREFIX}*")
    assert 0 < redis_client.ttl(unfinished) <= UNFINISHED_SECONDS
    assert redis_client.ttl(f"{PREFIX}t/a") == -1  # no expiry


def test_a_rename_whose_reply_was_lost(redis: RedisStore, redis_client: Any) -> None:
    redis.write("t/a", [NEW])
    id = redis_client.hget(f"{PREFIX}t/a", "id").decode()
    redis._rename(UNFINISHED_PREFIX + id, "t/a", id)  # as the client does when it retries the command
    assert redis.read("t/a") == NEW
    with pytest.raises(StoreUnreachable, match="lost part of "):
        redis._rename(f"{UNFINISHED_PREFIX}other", "t/a", "other")


def test_no_value_is_large(redis: RedisStore, redis_client: Any) -> None:
    size = 70 << 20
    redis.write("t/large", [bytes(size)])
    lengths = [redis_client.hstrlen(f"{PREFIX}t/large", number) for number in range(size // FIELD)]
    assert lengths == [FIELD] * (size // FIELD)
    assert redis.read("t/large", size - 10) == bytes(10)
    redis.delete(["t/large"])
    assert redis_client.dbsize() == 0


def test_a_redis_without_room(redis: RedisStore, redis_client: Any) -> None:
    redis.write("t/a", [OLD])
    # Not relative to the memory in use: that falls by itself when Redis frees buffers of earlier tests.
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory_startup"] + (4 << 20))
    try:
        with pytest.raises(StoreUnreachable, match=r"could not write t/a.*Give it more memory"):
            redis.write("t/a", [bytes(40 << 20)])
    finally:
        redis_client.config_set("maxmemory", 0)
    assert redis.read("t/a") == OLD


def test_listing_a_topology_does_not_look_at_other_keys(redis: RedisStore, redis_client: Any) -> None:
    redis_client.mset({f"somebody else's {number}": 1 for number in range(3000)})
    for name in ("t/a/0/1", "t/b", "u/a"):
        redis.write(name, [b"x"])
    redis_client.config_resetstat()
    assert redis.names("t/") == ["t/a/0/1", "t/b"] and redis.names("t/a/") == ["t/a/0/1"] and redis.names("v/") == []
    redis.delete(["t/b"])
    assert redis.names("t/") == ["t/a/0/1"]
    used = redis_client.info("commandstats")
    assert "cmdstat_scan" not in used and "cmdstat_keys" not in used
    assert redis.names("") == ["t/a/0/1", "u/a"]


def test_a_name_is_listed_when_and_only_when_it_can_be_read(redis: RedisStore, redis_client: Any) -> None:
    """Renaming and listing are one atomic step, and so are deleting and unlisting."""
    redis.write("t/a", [OLD])
    redis.write("t/a", [NEW])
    assert redis_client.smembers(f"{NAMES_PREFIX}t") == {b"t/a"}
    with pytest.raises(StoreUnreachable, match="lost part of "):
        redis._rename(f"{UNFINISHED_PREFIX}gone", "t/b", "gone")
    assert redis.names("t/") == redis.names("t") == ["t/a"]
    redis.write("t/c", [NEW])
    redis.delete(["t/a", "t/nothing", "u/nothing"])
    assert redis.names("t/") == redis.names("t") == ["t/c"]
    redis.delete(["t/c"])
    assert redis_client.dbsize() == 0


def test_blobs_that_someone_else_deleted_are_not_listed(redis: RedisStore, redis_client: Any) -> None:
    checkpoints = Checkpoints(redis, "t")
    older, newer = commit_waves(checkpoints, 1, 2)
    (blob,) = newer.blobs()
    redis_client.delete(f"{PREFIX}{blob}")  # or evicted by Redis
    assert blob not in redis.names("t/") and checkpoints.latest() == older
    redis.write(blob, [b"again"])
    assert blob in redis.names("t/")


def test_no_room_for_a_name_keeps_the_old_blob(redis: RedisStore, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.write("t/a", [OLD])
    rename = redis._rename

    def full(*arguments: Any) -> bool:
        redis_client.config_set("maxmemory", 1)
        return rename(*arguments)

    monkeypatch.setattr(redis, "_rename", full)
    try:
        for name in ("t/a", "t/b"):
            with pytest.raises(StoreUnreachable, match="Give it more memory"):
                redis.write(name, [NEW])
            redis_client.config_set("maxmemory", 0)
    finally:
        redis_client.config_set("maxmemory", 0)
    assert redis.read("t/a") == OLD and redis.names("t/") == ["t/a"]


def test_other_keys_are_left_alone(redis: RedisStore, redis_client: Any) -> None:
    redis_client.set("t/a", "somebody else's")
    redis_client.set("millrace:other", "ours, and no checkpoint")
    redis.write("t/a", [b"x"])
    assert redis.names("") == ["t/a"]
    redis.delete(["t/a", "other"])
    assert sorted(redis_client.keys("*")) == [b"millrace:other", b"t/a"]


def test_a_reference_to_a_piece_that_does_not_exist(redis: RedisStore) -> None:
    with pytest.raises(CheckpointMissing, match="has no t/b"):
        Checkpoints(redis, "t").read_chain([PieceRef("t/b", 0, 1, 0, True)])
