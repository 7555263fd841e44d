"""The cluster: nodes and the live slots on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millrace.errors import UnknownName


class Slot(NamedTuple):
    """The place of one worker: a Spark executor on a node. The number is unique in the cluster."""

    node: str
    executor: str
    number: int


@dataclass(frozen=True, slots=True)
class Node:
    """A host and its capacity: `mhz` is the clock of one core, the most that one worker can use."""

    name: str
    cores: int
    mhz: float
    memory_mb: int

    @property
    def capacity_mhz(self) -> float:
        return self.cores * self.mhz


class _ClusterCache:
    """Caches of values derived from a cluster: not fields, so they are neither compared nor sent."""

    __slots__ = ("_node_of", "_slots_of")
    _node_of: dict[int, Node]
    _slots_of: dict[str, tuple[Slot, ...]]


@dataclass(frozen=True, slots=True)
class Cluster(_ClusterCache):
    """The nodes, and the slots that are alive now."""

    nodes: tuple[Node, ...]
    slots: tuple[Slot, ...]

    def __post_init__(self) -> None:
        names = {node.name for node in self.nodes}
        if len(names) < len(self.nodes):
            raise ValueError(f"two nodes share a name: {', '.join(sorted(node.name for node in self.nodes))}")
        numbers = [slot.number for slot in self.slots]
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"two slots share a number: {sorted(numbers)}")
        for slot in self.slots:
            if slot.node not in names:
                raise ValueError(f"slot {slot.number} is on node {slot.node!r}, which the cluster does not have; "
                                 f"its nodes are {', '.join(sorted(names)) or 'none'}")

    def slots_of(self, node: str) -> tuple[Slot, ...]:
        """The live slots of the node, by number; none if the node is unknown."""
        try:
            slots = self._slots_of
        except AttributeError:
            groups: dict[str, list[Slot]] = {}
            for slot in sorted(self.slots, key=lambda slot: slot.number):
                groups.setdefault(slot.node, []).append(slot)
            slots = {name: tuple(group) for name, group in groups.items()}
            object.__setattr__(self, "_slots_of", slots)
        return slots.get(node, ())

    def node_of(self, slot_number: int) -> Node:
        """The node of the slot."""
        try:
            node_of = self._node_of
        except AttributeError:
            nodes = {node.name: node for node in self.nodes}
            node_of = {slot.number: nodes[slot.node] for slot in self.slots}
            object.__setattr__(self, "_node_of", node_of)
        if slot_number not in node_of:
            raise UnknownName(f"slot {slot_number} is not alive; the live slots are {sorted(node_of)}")
        return node_of[slot_number]
