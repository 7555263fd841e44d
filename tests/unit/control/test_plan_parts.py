"""The size of a node's part of the plan: it does not grow with the cluster while the neighbours of its tasks stay the same."""

from __future__ import annotations

import pytest

from millrace.control.assignment import Assignment
from millrace.control.events import Distribute, Submitted, WorkerJoined, WorkerLost
from millrace.control.master_state import MasterState
from millrace.model.cluster import Node
from millrace.model.graph import graph_of
from millrace.runtime.wire import messages as wire
from millrace.workloads.wordcount import WordCount

NODES_EACH = 4  # of a topology
KERNEL = "0f3c8f4e-7f0f-4f0c-9a55-8a3f60a1b2c3"


class Quiet(MasterState):
    """A master that sends out nothing by itself: a thousand workers join one by one."""

    def distribute(self) -> Distribute:
        self.revision += 1
        return Distribute(Assignment(self.revision))


def join(master: MasterState, slot: int, generation: int) -> None:
    host, home = f"10.0.{slot >> 8}.{slot & 255}", "ipc:///tmp/millrace-1000/0123456789ab"
    master.handle(WorkerJoined(slot, generation, Node(host, 4, 2400.0, 16384), KERNEL, f"executor{slot}", f"{home}/data-{slot}",
                               f"tcp://{host}:40123", f"{home}/backup-{slot}", f"tcp://{host}:40124"))


def cluster(nodes: int, topologies: int, guarantee: str) -> MasterState:
    """A cluster with one worker on each node, and topologies for four of them each."""
    master = Quiet(author=5)
    for slot in range(nodes):
        join(master, slot, slot + 1)
    config = {"topology.workers": NODES_EACH, "topology.guarantee": guarantee}
    for number in range(topologies):
        master.handle(Submitted(graph_of(WordCount, name=f"words-{number:03}", config=config)))
    return master


def sizes(master: MasterState) -> list[int]:
    return [len(wire.encode(part)) for part in master.distribution().parts.values()]


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
def test_a_part_is_as_large_with_a_thousand_nodes_as_with_a_hundred(guarantee: str) -> None:
    hundred, thousand = (sizes(cluster(nodes, nodes // NODES_EACH, guarantee)) for nodes in (100, 1000))
    assert max(thousand) <= 1.05 * max(hundred), "names and numbers have more digits"
    assert max(thousand) < 5_000


def test_a_worker_that_was_replaced_costs_each_part_a_few_bytes() -> None:
    """Nine workers without tasks are lost and come back: the generations have nine gaps."""
    master = cluster(40, 1, "at-least-once")
    before = sizes(master)
    for slot in range(20, 38, 2):
        master.handle(WorkerLost(slot, slot + 1, "killed"))
        join(master, slot, 100 + slot)
    assert all(after - size <= 9 * 8 for size, after in zip(before, sizes(master), strict=True))
