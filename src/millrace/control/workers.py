"""The workers that a master has: what they amount to for a scheduler, and which of them is the agent of its node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.control.assignment import WorkerAddress
from millrace.model.cluster import Cluster, Node, Slot


@dataclass(slots=True)
class WorkerView:
    """A worker as the master sees it."""

    address: WorkerAddress
    executor: str
    node: Node
    revision: int = 0


def cluster_of(workers: Mapping[int, WorkerView]) -> Cluster:
    found = sorted(workers.items())
    nodes = {worker.node.name: worker for _, worker in found}
    on_machine = Counter(worker.address.boot for _, worker in found)
    on_node = Counter(worker.node.name for _, worker in found)
    shares = [_share(worker.node, on_node[name], on_machine[worker.address.boot]) for name, worker in sorted(nodes.items())]
    return Cluster(tuple(shares), tuple(Slot(worker.node.name, worker.executor, slot) for slot, worker in found))


def _share(node: Node, workers: int, all_workers: int) -> Node:
    """Nodes that are on one machine, as executors may be, share what it has by the number of their workers."""
    if workers == all_workers:
        return node
    share = workers / all_workers
    return Node(node.name, max(1, round(node.cores * share)), node.mhz, max(1, int(node.memory_mb * share)))


def agents_of(workers: Mapping[int, WorkerView], before: Mapping[str, int]) -> dict[str, int]:
    """Every node has one agent: the same as `before` as long as it lives, then the worker with the lowest slot."""
    lowest = {worker.node.name: slot for slot, worker in sorted(workers.items(), reverse=True)
              if worker.address.ipc}  # an executor has no address, and no agent
    still = {node: slot for node, slot in before.items() if slot in workers and workers[slot].node.name == node}
    return {**lowest, **still}
