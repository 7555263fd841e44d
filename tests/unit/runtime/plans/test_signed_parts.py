"""Signatures of plans, and the access to ZooKeeper that a URL gives."""

from __future__ import annotations

import pytest

from millrace.control.assignment import Stamp
from millrace.errors import ForeignPlan, MillraceError
from millrace.runtime.plans.signed_parts import PartSigner
from millrace.runtime.plans.zookeeper_access import ZooKeeperAccess

STAMP = Stamp(7, 2)


def test_a_part_that_this_run_has_signed() -> None:
    for part in (b"", b"part", bytes(1000)):
        assert PartSigner(b"secret", "c").check(STAMP, "node", PartSigner(b"secret", "c").sign(STAMP, "node", part)) == part


@pytest.mark.parametrize(("secret", "cluster", "stamp", "node"), [
    (b"other", "c", STAMP, "node"), (b"secret", "d", STAMP, "node"), (b"secret", "c", Stamp(7, 3), "node"),
    (b"secret", "c", Stamp(8, 2), "node"), (b"secret", "c", STAMP, "node2"),
])
def test_a_part_of_another_run_or_place_is_refused(secret: bytes, cluster: str, stamp: Stamp, node: str) -> None:
    signed = PartSigner(secret, cluster).sign(stamp, node, b"part")
    with pytest.raises(ForeignPlan, match=r"plan .* of node 'node' .* is refused: this run has not signed it") as refused:
        PartSigner(b"secret", "c").check(STAMP, "node", signed)
    assert refused.value.author == STAMP.author


@pytest.mark.parametrize("change", [lambda signed: signed[:-1], lambda signed: signed + b"!", lambda signed: signed[32:],
                                    lambda signed: bytes([signed[0] ^ 1]) + signed[1:], lambda signed: b""])
def test_a_changed_part_is_refused(change) -> None:
    with pytest.raises(ForeignPlan):
        PartSigner(b"secret", "c").check(STAMP, "node", change(PartSigner(b"secret", "c").sign(STAMP, "node", b"part")))


@pytest.mark.parametrize(("url", "access"), [
    ("zookeeper://one:2181,two:2182", ZooKeeperAccess("one:2181,two:2182")),
    ("zookeeper://me:p%40ss%3A@one:2181", ZooKeeperAccess("one:2181", "me", "p@ss:")),
    ("zookeepers://one:2281", ZooKeeperAccess("one:2281", tls={})),
    ("zookeepers://me:pass@one:2281?ca=/ca.pem&cert=/c.pem&key=/k.pem",
     ZooKeeperAccess("one:2281", "me", "pass", {"ca": "/ca.pem", "certfile": "/c.pem", "keyfile": "/k.pem"})),
])
def test_urls_of_zookeeper(url: str, access: ZooKeeperAccess) -> None:
    assert ZooKeeperAccess.parse(url) == access
    assert "p@ss" not in repr(access) and "'pass'" not in repr(access)


@pytest.mark.parametrize("url", ["zookeeper://", "zookeeper://one/path", "zookeeper://me@one:2181", "zookeeper://:hunter2@one",
                                 "zookeeper://one?ca=/ca.pem", "zookeepers://one?cafile=/ca.pem", "redis://one"])
def test_urls_that_name_no_zookeeper(url: str) -> None:
    with pytest.raises(MillraceError, match="names no coordination store") as refused:
        ZooKeeperAccess.parse(url)
    assert "hunter2" not in str(refused.value)
