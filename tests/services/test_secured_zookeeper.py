"""ZooKeeper with users and TLS: what strangers can read and change, and plans that they have written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from millrace.control.assignment import Stamp
from millrace.errors import ForeignPlan, StoreUnreachable
from millrace.runtime.plans.coordination import CoordinationStore, ZooKeeperStore, _cut, _Published
from millrace.runtime.plans.signed_parts import PartSigner
from millrace.runtime.plans.zookeeper_access import ZooKeeperAccess
from support.servers.certificates import Certificates, make_certificates
from support.servers.zookeeper import ZooKeeperServer, running_zookeeper

PATIENT = 20.0
SECRET = b"of the run"
EVIL = zlib.compress(b"a plan that names code to import")

Open = Callable[..., ZooKeeperStore]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "ZooKeeper with TLS")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper"), certificates) as server:
        yield server


@pytest.fixture
def open_as(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open the store of this test's cluster as a user; with "" as a stranger."""
    opened: list[CoordinationStore] = []

    def open_as(login: str, cluster: str = request.node.name, secret: bytes = SECRET, timeout: float = PATIENT,
                url: str = f"zookeeper://{{}}{server.hosts}") -> ZooKeeperStore:
        access = ZooKeeperAccess.parse(url.format(f"{login}@" if login else ""))
        store = ZooKeeperStore(access, cluster, PartSigner(secret, cluster), timeout)
        opened.append(store)
        return store

    yield open_as
    for store in opened:
        store.close()


@pytest.fixture
def stranger(server: ZooKeeperServer) -> Iterator[Any]:
    with server.stranger(PATIENT) as client:
        yield client


def test_only_its_user_can_read_and_change_a_cluster(open_as: Open, stranger: Any) -> None:
    master, agent = open_as("me:pass"), open_as("me:pass")
    stamp = Stamp(master.claim(), 1)
    master.publish(stamp, {"node": b"part"})
    assert agent.read("node") == (stamp, b"part")
    nodes = [master._author, master._current, f"{master._plans}/{stamp}/node+0"]
    for path in nodes:
        with pytest.raises(NoAuthError):
            stranger.get(path)
        with pytest.raises(NoAuthError):
            stranger.set(path, b"")
    for login in ("", "me:other", "you:pass"):
        other = open_as(login)
        for use in (other.claim, lambda other=other: other.read("node")):
            with pytest.raises(StoreUnreachable, match=r"refused to .*NoAuthError.*Check user and password"):
                use()


def test_nodes_of_an_earlier_run_without_a_user_are_closed(open_as: Open, stranger: Any) -> None:
    before = open_as("")
    before.publish(Stamp(before.claim(), 1), {"node": b"open"})
    assert stranger.get(before._current)[0]
    after = open_as("me:pass")
    after.claim()
    for path in (after._author, after._current):
        with pytest.raises(NoAuthError):
            stranger.set(path, b"")
    with pytest.raises(NoAuthError):
        stranger.create(f"{after._plans}/9-9", b"")


def test_users_share_a_server(open_as: Open) -> None:
    """The node above all clusters belongs to whoever came first, and others can add theirs."""
    stores = [open_as("me:pass", "of me"), open_as("you:pass", "of you"), open_as("", "of nobody")]
    for store in stores:
        stamp = Stamp(store.claim(), 1)
        store.publish(stamp, {"node": b"part"})
        assert store.read("node") == (stamp, b"part")


def forge(stranger: Any, store: ZooKeeperStore, stamp: Stamp, node: str, data: bytes) -> None:
    """Put a plan in force as anyone can who may write."""
    stranger.ensure_path(f"{store._plans}/{stamp}")
    for number, piece in enumerate(_cut(data)):
        stranger.create(f"{store._plans}/{stamp}/{node}+{number}", piece)
    stranger.set(store._current, _Published(stamp, "digest").encode())


@pytest.mark.parametrize("data", [b"short", EVIL, bytes(32) + EVIL,
                                  PartSigner(b"of another run", "cluster").sign(Stamp(2**60, 1), "node", EVIL)])
def test_a_plan_of_a_stranger_is_refused(open_as: Open, stranger: Any, data: bytes) -> None:
    master, agent = open_as(""), open_as("")
    master.publish(Stamp(master.claim(), 1), {"node": b"part"})
    forge(stranger, master, Stamp(2**60, 1), "node", data)
    with pytest.raises(ForeignPlan, match="this run has not signed it"):
        agent.read("node")


def test_a_signed_part_cannot_be_used_in_another_place(open_as: Open, stranger: Any) -> None:
    master = open_as("")
    stamp = Stamp(master.claim(), 1)
    master.publish(stamp, {"node": b"part", "other": b"of another"})
    signed = master._read_part(f"{master._plans}/{stamp}", "other")
    assert signed is not None
    stranger.set(f"{master._plans}/{stamp}/node+0", _cut(signed)[0])
    with pytest.raises(ForeignPlan):
        master.read("node")
    assert master.read("other") == (stamp, b"of another")


def test_tls(open_as: Open, server: ZooKeeperServer, certificates: Certificates, tmp_path: Path) -> None:
    url = f"zookeepers://{{}}{server.tls_hosts}"
    store = open_as("me:pass", url=f"{url}?ca={certificates.authority}")
    stamp = Stamp(store.claim(), 1)
    store.publish(stamp, {"node": b"part"})
    assert store.read("node") == (stamp, b"part")
    other = make_certificates(tmp_path, "ZooKeeper with TLS")
    for wrong in (f"{url}?ca={other.authority}", url, f"zookeeper://{{}}{server.tls_hosts}"):
        with pytest.raises(StoreUnreachable, match="did not answer the request to connect"):
            open_as("me:pass", url=wrong, timeout=1.0)
