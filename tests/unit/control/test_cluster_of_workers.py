"""The cluster that schedulers see: cores that nodes share are counted once, and those of other processes not at all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.assignment import WorkerAddress
from millrace.control.events import ClusterMeasured, WorkerJoined
from millrace.control.master_state import MasterState
from millrace.control.workers import WorkerView, cluster_from
from millrace.model.cluster import LEAST_SHARE, Node

MHZ, MEMORY = 1000.0, 8000


def worker(slot: int, node: Node, boot: str = "") -> WorkerView:
    return WorkerView(WorkerAddress(slot, 1, node.name, boot, "", ""), f"executor{slot}", node)


@pytest.mark.parametrize("executors", [1, 2, 3, 5])
def test_executors_of_a_host_have_its_cores_together(executors: int) -> None:
    """Each reports all cores of the host."""
    nodes = [Node(f"host/{number}", 2, MHZ, MEMORY, "machine") for number in range(executors)]
    cluster = cluster_from({slot: worker(slot, node) for slot, node in enumerate(nodes)})
    assert sum(node.cores for node in cluster.nodes) == pytest.approx(2)
    assert sum(node.capacity_mhz for node in cluster.nodes) == pytest.approx(2 * MHZ)
    assert sum(node.memory_mb for node in cluster.nodes) == pytest.approx(MEMORY, abs=executors)


def test_containers_with_their_own_quotas_share_nothing() -> None:
    nodes = [Node(f"pod{number}", 2, MHZ, MEMORY, f"machine/{number}") for number in range(3)]
    cluster = cluster_from({slot: worker(slot, node, boot="same") for slot, node in enumerate(nodes)})
    assert [node.cores for node in cluster.nodes] == [2, 2, 2]


def test_a_node_without_a_name_for_its_machine_shares_with_those_of_its_kernel() -> None:
    nodes = [Node("a", 4, MHZ, MEMORY), Node("b", 4, MHZ, MEMORY)]
    assert [node.cores for node in cluster_from({0: worker(0, nodes[0], "k"), 1: worker(1, nodes[1], "k")}).nodes] == [2, 2]
    assert [node.cores for node in cluster_from({0: worker(0, nodes[0]), 1: worker(1, nodes[1])}).nodes] == [4, 4]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), min_size=1, max_size=12),
       st.dictionaries(st.sampled_from("ab"), st.floats(0, 8)))
def test_nodes_divide_their_machine_by_their_workers(places: list[tuple[str, int]], others: dict[str, float]) -> None:
    workers = {slot: worker(slot, Node(f"{machine}{number}", 4, MHZ, MEMORY, machine))
               for slot, (machine, number) in enumerate(places)}
    cluster = cluster_from(workers, others)
    on_node = Counter(f"{machine}{number}" for machine, number in places)
    for machine in {machine for machine, _ in places}:
        own = [node for node in cluster.nodes if node.machine == machine]
        assert sum(node.cores for node in own) == pytest.approx(4)
        assert sum(node.others_mhz for node in own) == pytest.approx(others.get(machine, 0.0) * MHZ)
        each = {round(node.cores / on_node[node.name], 9) for node in own}
        assert len(each) == 1
    for node in cluster.nodes:
        assert node.capacity_mhz == pytest.approx(max(node.cores * MHZ - node.others_mhz, LEAST_SHARE * node.cores * MHZ))


def test_what_is_measured_is_in_the_cluster_from_then_on() -> None:
    master = MasterState()
    for slot in range(2):
        master.handle(WorkerJoined(slot, slot + 1, Node(f"n{slot}", 2, MHZ, MEMORY, f"m{slot}"), f"m{slot}", "e", "", ""))
    assert [node.capacity_mhz for node in master.cluster().nodes] == [2 * MHZ, 2 * MHZ]
    assert master.handle(ClusterMeasured({"m1": 0.5}, {("n0", "n1"): 3.0})) == []
    assert [node.capacity_mhz for node in master.cluster().nodes] == [2 * MHZ, 1.5 * MHZ]
    assert master.cluster().link_cost("n1", "n0") == 3.0
