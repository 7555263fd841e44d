"""The contract of every coordination store, and ZooKeeper's through restarts of servers and masters."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.control.assignment import Stamp
from millrace.errors import MillraceError, NotTheAuthor, StoreUnreachable
from millrace.runtime.plans import coordination
from millrace.runtime.plans.coordination import (
    PIECE,
    PLANS_KEPT,
    CoordinationStore,
    EmbeddedStore,
    ZooKeeperStore,
    _digest,
    _Published,
    open_coordination,
)
from millrace.runtime.plans.signed_parts import PartSigner
from millrace.runtime.plans.zookeeper_access import ZooKeeperAccess
from support.servers.ports import free_port
from support.servers.zookeeper import ZooKeeperServer

WAIT = 60.0  # seconds before a test that waits for an event gives up
PATIENT = 20.0  # seconds until a store takes ZooKeeper to be away: a busy one is not
SOON = 2.0  # the same where a test stops it
NODES = ["plain", "with/slash", "größe-雪", ".", "..", "", "100%+1", "a b\n"]

SECRET = b"of the run"

Open = Callable[[], CoordinationStore]


def signer(cluster: str) -> PartSigner:
    return PartSigner(SECRET, cluster)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """A cluster name for this test alone; all tests share one ZooKeeper."""
    return f"of/{request.node.name}"


@pytest.fixture(params=["embedded", "zookeeper"])
def open_another(request: pytest.FixtureRequest, cluster: str) -> Iterator[Open]:
    """Open the same store again, as another master or agent does."""
    opened: list[CoordinationStore] = []
    if request.param == "embedded":
        opened.append(EmbeddedStore())
        yield lambda: opened[0]
    else:
        server = request.getfixturevalue("zookeeper_server")

        def another() -> CoordinationStore:
            opened.append(ZooKeeperStore(ZooKeeperAccess(server.hosts), cluster, signer(cluster), PATIENT))
            return opened[-1]

        yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_another: Open) -> CoordinationStore:
    return open_another()


class TestEveryStore:
    def test_a_new_store_is_empty(self, store: CoordinationStore) -> None:
        assert store.read("node") is None
        store.claim()
        assert store.read("node") is None

    def test_claims_rise(self, open_another: Open) -> None:
        first, other = open_another(), open_another()
        claims = [first.claim(), other.claim(), first.claim(), first.claim(), other.claim()]
        assert claims == sorted(set(claims))

    def test_claims_at_the_same_time_differ(self, open_another: Open) -> None:
        stores = [open_another() for _ in range(4)]
        claims: list[int] = []
        threads = [threading.Thread(target=lambda store=store: claims.extend(store.claim() for _ in range(10)))
                   for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(claims)) == 40

    def test_each_node_reads_its_own_part(self, open_another: Open) -> None:
        master, agent = open_another(), open_another()
        author = master.claim()
        master.publish(Stamp(author, 1), {node: f"of {node}".encode() for node in NODES})
        assert [agent.read(node) for node in NODES] == [(Stamp(author, 1), f"of {node}".encode()) for node in NODES]
        assert agent.read("unknown") is None

    def test_a_node_that_is_left_out_has_no_part(self, store: CoordinationStore) -> None:
        author = store.claim()
        store.publish(Stamp(author, 1), {"a": b"1", "b": b"1"})
        store.publish(Stamp(author, 2), {"b": b"2"})
        assert store.read("a") is None
        assert store.read("b") == (Stamp(author, 2), b"2")
        store.publish(Stamp(author, 3), {})
        assert store.read("b") is None

    @pytest.mark.parametrize("size", [0, 1, PIECE, 3 * PIECE + 1])
    def test_a_part_of_any_size(self, open_another: Open, size: int) -> None:
        master, agent = open_another(), open_another()
        part = os.urandom(size)  # cannot be compressed
        stamp = Stamp(master.claim(), 1)
        master.publish(stamp, {"node": part, "next to it": b"small"})
        assert agent.read("node") == (stamp, part)
        assert agent.read("next to it") == (stamp, b"small")

    def test_the_older_of_two_masters_cannot_publish(self, open_another: Open) -> None:
        older, newer, agent = open_another(), open_another(), open_another()
        first = older.claim()
        older.publish(Stamp(first, 1), {"node": b"before"})
        second = newer.claim()
        with pytest.raises(NotTheAuthor, match=f"master number {second} writes the plans now, and this one is number {first}"):
            older.publish(Stamp(first, 2), {"node": b"too late"})
        assert agent.read("node") == newer.read("node") == (Stamp(first, 1), b"before")
        newer.publish(Stamp(second, 1), {"node": b"after"})
        with pytest.raises(NotTheAuthor):
            older.publish(Stamp(first, 3), {"node": b"too late"})
        assert agent.read("node") == (Stamp(second, 1), b"after")

    def test_publishing_without_a_claim(self, store: CoordinationStore) -> None:
        with pytest.raises(NotTheAuthor, match="nobody has claimed"):
            store.publish(Stamp(1, 1), {"node": b"part"})
        author = store.claim()
        with pytest.raises(NotTheAuthor):
            store.publish(Stamp(author + 1, 1), {"node": b"part"})
        assert store.read("node") is None

    def test_the_same_again_changes_nothing(self, store: CoordinationStore) -> None:
        stamp = Stamp(store.claim(), 7)
        store.publish(stamp, {"node": b"part"})
        store.publish(stamp, {"node": b"part"})
        assert store.read("node") == (stamp, b"part")

    @pytest.mark.parametrize(("revision", "part", "reason"), [(6, b"part", "an older revision"), (7, b"other", "same stamp")])
    def test_revisions_never_decrease(self, store: CoordinationStore, revision: int, part: bytes, reason: str) -> None:
        author = store.claim()
        store.publish(Stamp(author, 7), {"node": b"part"})
        with pytest.raises(MillraceError, match=reason):
            store.publish(Stamp(author, revision), {"node": part})
        assert store.read("node") == (Stamp(author, 7), b"part")

    def test_a_watch_is_called_for_every_change(self, open_another: Open) -> None:
        master, agent = open_another(), open_another()
        changed, seen = threading.Event(), []
        agent.watch("node", changed.set)  # before anything is published
        author = master.claim()
        for revision in range(1, 6):
            master.publish(Stamp(author, revision), {"node": b"%d" % revision})
            while not seen or seen[-1] != (Stamp(author, revision), b"%d" % revision):
                assert changed.wait(WAIT)
                changed.clear()
                seen.append(agent.read("node"))

    def test_a_watch_that_raises_does_not_block_others(self, store: CoordinationStore,
                                                       caplog: pytest.LogCaptureFixture) -> None:
        changed, author = threading.Event(), store.claim()
        store.watch("node", lambda: 1 // 0)
        store.watch("node", changed.set)
        store.publish(Stamp(author, 1), {"node": b"part"})
        assert changed.wait(WAIT)
        assert "ZeroDivisionError" in caplog.text

    def test_a_watch_may_read(self, open_another: Open) -> None:
        master, agent = open_another(), open_another()
        stamp, done, seen = Stamp(master.claim(), 1), threading.Event(), []

        def changed() -> None:
            seen.append(agent.read("node"))
            if seen[-1] is not None:
                done.set()

        agent.watch("node", changed)
        master.publish(stamp, {"node": b"part"})
        assert done.wait(WAIT)
        assert seen[-1] == (stamp, b"part")

    def test_readers_see_whole_revisions_that_rise(self, open_another: Open) -> None:
        """Read the parts of two nodes in turn while they change: each was published under its stamp."""
        master, agent = open_another(), open_another()
        author, ended, wrong, seen = master.claim(), threading.Event(), [], [Stamp(0, 0)]

        def read() -> None:
            while not ended.is_set():
                for node in ("a", "b"):
                    part = agent.read(node)
                    if part is not None:
                        if part[1] != f"{node} {part[0]}".encode() * 50 or part[0] < seen[-1]:
                            wrong.append(part)
                        seen.append(part[0])

        reader = threading.Thread(target=read)
        reader.start()
        revision = 0
        while len(set(seen)) < 20 and not wrong and reader.is_alive():
            revision += 1
            stamp = Stamp(author, revision)
            master.publish(stamp, {node: f"{node} {stamp}".encode() * 50 for node in ("a", "b")})
        ended.set()
        reader.join()
        assert not wrong
        assert len(set(seen)) >= 20


class TestZooKeeper:
    @pytest.fixture
    def open_one(self, zookeeper_server: ZooKeeperServer, cluster: str) -> Iterator[Callable[[], ZooKeeperStore]]:
        opened: list[ZooKeeperStore] = []

        def open_one(timeout: float = PATIENT) -> ZooKeeperStore:
            opened.append(ZooKeeperStore(ZooKeeperAccess(zookeeper_server.hosts), cluster, signer(cluster), timeout))
            return opened[-1]

        yield open_one
        for store in opened:
            store.close()

    def test_a_master_that_dies_before_the_flip_is_never_seen(self, open_one: Callable[[], ZooKeeperStore]) -> None:
        dying, agent, changed = open_one(), open_one(), threading.Event()
        first = dying.claim()
        dying.publish(Stamp(first, 1), {"node": b"whole"})
        agent.watch("node", changed.set)
        dying._write(Stamp(first, 2), {"node": b"never in force"})
        dying.close()
        assert agent.read("node") == (Stamp(first, 1), b"whole")
        successor = open_one()
        second = successor.claim()
        assert successor.read("node") == (Stamp(first, 1), b"whole")
        assert not changed.is_set()
        successor.publish(Stamp(second, 1), {"node": b"next"})
        assert changed.wait(WAIT)
        assert agent.read("node") == (Stamp(second, 1), b"next")

    def test_a_claim_between_the_parts_and_the_flip(self, open_one: Callable[[], ZooKeeperStore]) -> None:
        older, newer = open_one(), open_one()
        first = older.claim()
        older.publish(Stamp(first, 1), {"node": b"before"})
        author, current = older._link.get(older._author), older._link.get(older._current)
        assert author is not None and current is not None
        late = {"node": b"too late"}
        older._write(Stamp(first, 2), late)
        second = newer.claim()
        assert not older._flip(_Published(Stamp(first, 2), _digest(late)), author.version, current.version)
        assert newer.read("node") == (Stamp(first, 1), b"before")
        newer.publish(Stamp(second, 1), {"node": b"after"})
        assert newer.read("node") == (Stamp(second, 1), b"after")

    @pytest.mark.parametrize("step", ["_cut", "_flip"])
    def test_a_takeover_in_the_middle_of_a_publication(self, open_one: Callable[[], ZooKeeperStore], step: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
        """Another master claims, publishes and collects the pieces, before they are written or before the flip."""
        older, newer = open_one(), open_one()
        first = older.claim()
        older.publish(Stamp(first, 1), {"node": b"before"})
        owner = coordination if step == "_cut" else older
        original = getattr(owner, step)

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(owner, step, original)
            second = newer.claim()
            for revision in range(1, PLANS_KEPT + 1):
                newer.publish(Stamp(second, revision), {"node": b"after"})
            return original(*arguments)

        monkeypatch.setattr(owner, step, overtaken)
        with pytest.raises(NotTheAuthor):
            older.publish(Stamp(first, 2), {"node": b"too late"})
        part = newer.read("node")
        assert part is not None and part[0].author > first and part[1] == b"after"

    def test_a_half_written_plan_is_rewritten_under_its_stamp(self, open_one: Callable[[], ZooKeeperStore]) -> None:
        store = open_one()
        stamp = Stamp(store.claim(), 1)
        store._write(stamp, {"node": os.urandom(2 * PIECE), "gone": b"part"})
        store.publish(stamp, {"node": b"part"})
        assert store.read("node") == (stamp, b"part")
        assert store.read("gone") is None

    def test_old_plans_are_collected_finished_or_not(self, open_one: Callable[[], ZooKeeperStore]) -> None:
        store = open_one()
        author = store.claim()
        store._write(Stamp(author, 1), {"node": b"never in force"})
        for revision in range(2, 9):
            store.publish(Stamp(author, revision), {"node": b"part", "other": os.urandom(2 * PIECE)})
        kept = sorted(map(Stamp.parse, store._link.client.get_children(store._plans)))
        assert kept == [Stamp(author, revision) for revision in range(9 - PLANS_KEPT, 9)]

    def test_a_plan_that_is_collected_while_it_is_read(self, open_one: Callable[[], ZooKeeperStore],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
        master, agent = open_one(), open_one()
        author = master.claim()
        master.publish(Stamp(author, 1), {"node": b"part"})
        read_part = agent._read_part

        def slow(directory: str, node: str) -> bytes | None:
            monkeypatch.setattr(agent, "_read_part", read_part)
            for revision in range(2, PLANS_KEPT + 2):
                master.publish(Stamp(author, revision), {"node": b"part"})
            return read_part(directory, node)

        monkeypatch.setattr(agent, "_read_part", slow)
        assert agent.read("node") == (Stamp(author, PLANS_KEPT + 1), b"part")

    def test_clusters_do_not_see_each_other(self, zookeeper_server: ZooKeeperServer, cluster: str) -> None:
        first, other = (open_coordination(zookeeper_server.url, f"{cluster}{end}", SECRET) for end in ("/a", ".a"))
        first.publish(Stamp(first.claim(), 1), {"node": b"part"})
        assert other.read("node") is None
        first.close()
        other.close()

    def test_zookeeper_stopped_and_started_again(self, open_one: Callable[..., ZooKeeperStore],
                                                 zookeeper_server: ZooKeeperServer, caplog: pytest.LogCaptureFixture) -> None:
        master, agent, changed = open_one(SOON), open_one(SOON), threading.Event()
        author = master.claim()
        master.publish(Stamp(author, 1), {"node": b"before"})
        agent.watch("node", changed.set)
        zookeeper_server.stop()
        try:
            for store, call in [(master, lambda: master.publish(Stamp(author, 2), {"node": b"after"})),
                                (agent, lambda: agent.read("node")), (master, master.claim)]:
                with pytest.raises(StoreUnreachable, match=f"ZooKeeper at {zookeeper_server.hosts} did not answer .* check"):
                    call()
                assert not store._link.client.connected
        finally:
            zookeeper_server.start()
        assert changed.wait(WAIT)  # nothing was published: the reconnection calls the watch
        assert master._link._live.wait(WAIT)
        assert agent.read("node") == (Stamp(author, 1), b"before")
        changed.clear()
        master.publish(Stamp(author, 2), {"node": b"after"})
        assert changed.wait(WAIT)
        assert agent.read("node") == (Stamp(author, 2), b"after")
        assert not [record for record in caplog.records if record.name.startswith("kazoo") or record.name.endswith("kazoo")]

    def test_a_zookeeper_that_hangs(self, open_one: Callable[..., ZooKeeperStore], zookeeper_server: ZooKeeperServer) -> None:
        store = open_one(SOON)
        author = store.claim()
        assert zookeeper_server.process is not None
        os.kill(zookeeper_server.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnreachable, match=rf"did not answer the request .* within {SOON:g} s"):
                store.publish(Stamp(author, 1), {"node": b"part"})
        finally:
            os.kill(zookeeper_server.process.pid, signal.SIGCONT)
        assert store._link._live.wait(WAIT)
        store.publish(Stamp(author, 1), {"node": b"part"})  # the same plan: the first attempt may have arrived
        assert store.read("node") == (Stamp(author, 1), b"part")

    def test_a_session_that_expired(self, open_one: Callable[[], ZooKeeperStore]) -> None:
        from kazoo.protocol.connection import _SESSION_EXPIRED

        store, changed = open_one(), threading.Event()
        author = store.claim()
        store.watch("node", changed.set)
        store._link.client._call(_SESSION_EXPIRED, store._link.client.handler.async_result())
        assert changed.wait(WAIT)
        store.publish(Stamp(author, 1), {"node": b"part"})
        assert store.read("node") == (Stamp(author, 1), b"part")

    def test_close_ends_every_thread(self, zookeeper_server: ZooKeeperServer, cluster: str) -> None:
        before = set(threading.enumerate())
        store = ZooKeeperStore(ZooKeeperAccess(zookeeper_server.hosts), cluster, signer(cluster))
        store.watch("node", lambda: None)
        store.claim()
        store.close()
        store.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(WAIT)
        assert set(threading.enumerate()) <= before
        with pytest.raises(StoreUnreachable, match="after this store was closed"):
            store.read("node")


class TestOpening:
    def test_embedded(self) -> None:
        assert isinstance(open_coordination("embedded", "cluster", SECRET), EmbeddedStore)

    @pytest.mark.parametrize("url", ["", "Embedded", "redis://localhost", "zookeeper://", "zookeeper://,", "localhost:2181",
                                     "zookeeper://host:2181/chroot"])
    def test_an_invalid_store(self, url: str) -> None:
        with pytest.raises(MillraceError, match="names no coordination store: use 'embedded', or 'zookeeper://host:port'"):
            open_coordination(url, "cluster", SECRET)

    def test_an_invalid_port(self) -> None:
        with pytest.raises(MillraceError, match="'host:port' names no ZooKeeper"):
            open_coordination("zookeeper://host:port", "cluster", SECRET)

    def test_without_kazoo(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "kazoo.client", None)
        with pytest.raises(MillraceError, match=r"pip install millrace\[zookeeper\]"):
            open_coordination("zookeeper://127.0.0.1:1", "cluster", SECRET)

    def test_no_server(self) -> None:
        hosts, before = f"127.0.0.1:{free_port()}", set(threading.enumerate())
        with pytest.raises(StoreUnreachable, match=f"ZooKeeper at {hosts} did not answer the request to connect within "
                                                   "0.5 s: check that it is running"):
            ZooKeeperStore(ZooKeeperAccess(hosts), "cluster", signer("cluster"), timeout=0.5)
        for thread in set(threading.enumerate()) - before:
            thread.join(WAIT)
        assert set(threading.enumerate()) <= before
