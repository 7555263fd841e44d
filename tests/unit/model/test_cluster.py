"""The cluster as a value."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from millrace.model.cluster import Cluster, Node, Slot

N1, N2 = Node("n1", 4, 2400.0, 8192), Node("n2", 2, 2400.0, 4096)
CLUSTER = Cluster((N1, N2), (Slot("n2", "e2", 3), Slot("n1", "e1", 2), Slot("n1", "e0", 0)))


def test_slots_and_nodes_find_each_other() -> None:
    assert CLUSTER.slots_of("n1") == (Slot("n1", "e0", 0), Slot("n1", "e1", 2))
    assert CLUSTER.slots_of("n3") == ()
    assert CLUSTER.node_of(3) == N2
    with pytest.raises(KeyError, match=r"slot 1 is not alive; the live slots are \[0, 2, 3\]"):
        CLUSTER.node_of(1)


def test_a_cluster_survives_the_wire_and_pickle() -> None:
    CLUSTER.node_of(0)  # cached values are not sent
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(CLUSTER), type=Cluster)
    assert arrived == CLUSTER and hash(arrived) == hash(CLUSTER)
    assert arrived.slots_of("n2") == (Slot("n2", "e2", 3),)
    assert pickle.loads(pickle.dumps(CLUSTER)) == CLUSTER


@pytest.mark.parametrize(("nodes", "slots", "message"), [
    ((N1, N1), (), "two nodes share a name: n1, n1"),
    ((N1,), (Slot("n1", "a", 1), Slot("n1", "b", 1)), "two slots share a number"),
    ((N1,), (Slot("n2", "a", 1),), "slot 1 is on node 'n2', which the cluster does not have; its nodes are n1"),
])
def test_an_invalid_cluster_is_refused(nodes: tuple[Node, ...], slots: tuple[Slot, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster(nodes, slots)


def test_links_cost_the_same_in_both_directions_and_1_without_an_entry() -> None:
    linked = Cluster((N1, N2, Node("n3", 1, 1.0, 1)), (), {("n2", "n1"): 0.25})
    assert linked.links == {("n1", "n2"): 0.25}
    assert (linked.link_cost("n1", "n2"), linked.link_cost("n2", "n1")) == (0.25, 0.25)
    assert (linked.link_cost("n1", "n3"), linked.link_cost("n1", "n1")) == (1.0, 0.0)
    assert Cluster.from_json(linked.to_json()) == linked
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(linked), type=Cluster)
    assert arrived == linked and hash(arrived) == hash(linked)


def test_a_cluster_written_before_there_were_links_is_read() -> None:
    written = CLUSTER.to_json()
    del written["links"]
    assert Cluster.from_json(written) == CLUSTER


@pytest.mark.parametrize(("links", "message"), [
    ({("n1", "n1"): 1.0}, "a link joins two nodes"), ({("n1", "n2"): -1.0}, "at least 0"),
    ({("n1", "n2"): float("nan")}, "a finite number"), ({("n1", "n2"): 1.0, ("n2", "n1"): 2.0}, "two costs, 1 and 2"),
])
def test_impossible_links_are_refused(links: dict[tuple[str, str], float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster((N1, N2), (), links)
