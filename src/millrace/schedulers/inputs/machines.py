"""The CPU of nodes whose cores belong to the same machine: what one node does not use, the others can have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.model.cluster import Cluster
from millrace.schedulers.registry import PACKING

NodeMhz = NDArray[np.float64]


def node_capacities(cluster: Cluster, nodes: Sequence[str], used: NodeMhz) -> NodeMhz:
    """The MHz that the workers of each node may use together. `used`: what they use now.

    Nodes with the same cores divide their machine, so that placements within these limits never exceed it: each has what fills
    it as far as schedulers fill nodes, or as far as the machine is filled if that is more, and the rest is divided by their own
    parts. So none of them is overloaded unless the machine is."""
    whole, parts = machine_capacities(cluster), {node.name: node for node in cluster.nodes}
    capacity = np.array([parts[name].capacity_mhz for name in nodes], dtype=np.float64)
    by_machine: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(nodes):
        if machine := parts[name].machine:
            by_machine[machine].append(number)
    for machine, own in by_machine.items():
        if whole[machine] > capacity[own].min():
            filled = used[own] / max(float(used[own].sum()) / whole[machine], PACKING)
            capacity[own] = filled + (whole[machine] - filled.sum()) * capacity[own] / capacity[own].sum()
    return capacity


def machine_capacities(cluster: Cluster) -> dict[str, float]:
    """MHz of each machine, by its name; a node that shares its cores with no other is a machine of its own name."""
    whole: defaultdict[str, float] = defaultdict(float)
    for node in cluster.nodes:
        whole[node.machine or node.name] += node.capacity_mhz
    return whole
