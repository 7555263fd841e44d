"""Redis with TLS and a password: checkpoints, spouts and sinks. Errors name the server and not the password."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from recording import attach, drain, rows

from millrace.connectors.redis import RedisListSpout, RedisSink, RedisStreamSpout
from millrace.connectors.redis_log import RedisLogSpout
from millrace.errors import MillraceError, StoreUnreachable
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.tasks.user_errors import describe
from support.servers.redis_server import TlsRedisServer, running_tls_redis

pytestmark = pytest.mark.redis
PASSWORD = "hunter2-and-more"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRedisServer]:
    with running_tls_redis(tmp_path_factory.mktemp("redis"), PASSWORD) as server:
        yield server


def wrong_urls(server: TlsRedisServer) -> list[str]:
    """No trust in the certificate, no TLS, a wrong password, none, and a file that does not exist."""
    return [server.url.partition("?")[0], server.url.replace("rediss", "redis").partition("?")[0],
            server.url.replace(PASSWORD, f"not-{PASSWORD}"), server.url.replace(f":{PASSWORD}@", ""),
            f"{server.url}.nowhere"]


def test_checkpoints(server: TlsRedisServer) -> None:
    store = open_store(server.url)
    try:
        store.write("topology/wave", [b"some ", b"state"])
        assert store.read("topology/wave") == b"some state"
        assert store.names("topology/") == ["topology/wave"]
    finally:
        store.close()


def test_checkpoints_of_a_server_that_is_not_trusted(server: TlsRedisServer) -> None:
    for url in wrong_urls(server):
        with pytest.raises(StoreUnreachable, match=f"Redis at rediss?://127.0.0.1:{server.port}/0 could not answer") as refused:
            open_store(url)
        assert PASSWORD not in "".join(traceback.format_exception(refused.value))


def test_spouts_and_sinks(server: TlsRedisServer) -> None:
    sink, _ = attach(RedisSink, {"url": server.url, "key": "list", "mode": "list"})
    sink.process_rows(rows(["word"], [("a",), ("b",)]))
    sink.close()
    spout, recorder = attach(RedisListSpout, {"url": server.url, "key": "list"})
    assert [emitted.values[0] for emitted in drain(spout, recorder)] == ['{"word":"a"}', '{"word":"b"}']
    spout.close()
    sink, _ = attach(RedisSink, {"url": server.url, "key": "stream", "mode": "stream"})
    sink.process_rows(rows(["word"], [("a",), ("b",)]))
    sink.close()
    for kind, config in ((RedisStreamSpout, {"group": "g"}), (RedisLogSpout, {})):
        spout, recorder = attach(kind, {"url": server.url, "key": "stream", **config})
        assert [emitted.values[1] for emitted in drain(spout, recorder)] == [{"word": "a"}, {"word": "b"}]
        spout.close()


def test_connectors_of_a_server_that_is_not_trusted(server: TlsRedisServer) -> None:
    for url in wrong_urls(server):
        with pytest.raises(MillraceError, match=f"no Redis answers at rediss?://127.0.0.1:{server.port}/0") as refused:
            attach(RedisSink, {"url": url, "key": "list", "mode": "list"})
        assert PASSWORD not in describe(refused.value) + "".join(traceback.format_exception(refused.value))
