"""CPU and memory of nodes that share a machine: what one node does not use, the others can have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.model.cluster import Cluster, Node
from millrace.schedulers.registry import PACKING

NodeAmounts = NDArray[np.float64]


def node_capacities(cluster: Cluster, nodes: Sequence[str], used: NodeAmounts) -> NodeAmounts:
    """The MHz that the workers of each node may use together. `used`: what they use now."""
    return _divided(cluster, nodes, used, lambda node: node.capacity_mhz, PACKING)


def node_memories(cluster: Cluster, nodes: Sequence[str], used: NodeAmounts) -> NodeAmounts:
    """The MB that the workers of each node may use together. `used`: what they use now."""
    return _divided(cluster, nodes, used, lambda node: float(node.memory_mb), 1.0)


def _divided(cluster: Cluster, nodes: Sequence[str], used: NodeAmounts, part: Callable[[Node], float],
             share: float) -> NodeAmounts:
    """The amount of each node. Nodes of one machine divide what it has, so that placements within these limits never exceed it:
    each gets its present use, divided by `share`, or by the machine's load if that is more. The rest is divided in proportion
    to the nodes' own parts. So none of them is overloaded unless the machine is."""
    by_name = {node.name: node for node in cluster.nodes}
    amounts = np.array([part(by_name[name]) for name in nodes], dtype=np.float64)
    whole, by_machine = defaultdict[str, float](float), defaultdict[str, list[int]](list)
    for node in cluster.nodes:
        whole[node.machine] += part(node)
    for number, name in enumerate(nodes):
        by_machine[by_name[name].machine].append(number)
    for machine, own in by_machine.items():
        if machine and whole[machine] > amounts[own].min():
            filled = used[own] / max(float(used[own].sum()) / whole[machine], share)
            amounts[own] = filled + (whole[machine] - filled.sum()) * amounts[own] / amounts[own].sum()
    return amounts


def machine_capacities(cluster: Cluster) -> dict[str, float]:
    """MHz of each machine, by its name; a node that shares its cores with no other is a machine of its own name."""
    whole: defaultdict[str, float] = defaultdict(float)
    for node in cluster.nodes:
        whole[node.machine or node.name] += node.capacity_mhz
    return whole
