"""The cluster: nodes and the live slots on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from millrace.errors import UnknownName
from millrace.model.frozen import FrozenMap

LINK_COST = 1.0  # of a unit of traffic between two nodes whose link has no cost of its own
LEAST_SHARE = 0.1  # of a node's CPU: however busy other processes are, the system gives the workers this much


class Slot(NamedTuple):
    """The place of one worker: a Spark executor on a node. The number is unique in the cluster."""

    node: str
    executor: str
    number: int


@dataclass(frozen=True, slots=True)
class Node:
    """A host, or a part of one, and its capacity: `mhz` is the clock of one core, the most that one worker can use. `machine`
    names whatever the cores belong to, if other nodes may have the same ones. `others_mhz`: used by processes that are not
    workers."""

    name: str
    cores: float
    mhz: float
    memory_mb: int
    machine: str = ""
    others_mhz: float = 0.0

    @property
    def capacity_mhz(self) -> float:
        """The CPU that other processes leave to the workers."""
        whole = self.cores * self.mhz
        return max(whole - self.others_mhz, LEAST_SHARE * whole)


class _ClusterCache:
    """Caches of values derived from a cluster: not fields, so they are neither compared nor sent."""

    __slots__ = ("_live", "_node_of", "_slots_of")
    _live: frozenset[int]
    _node_of: dict[int, Node]
    _slots_of: dict[str, tuple[Slot, ...]]


@dataclass(frozen=True, slots=True)
class Cluster(_ClusterCache):
    """The nodes, and the slots that are alive now. `links`: the cost of a unit of traffic between two nodes, in either
    direction; pairs without an entry cost 1. It may have nodes that are not in the cluster."""

    nodes: tuple[Node, ...]
    slots: tuple[Slot, ...]
    links: Mapping[tuple[str, str], float] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        if not isinstance(self.links, FrozenMap):  # else it comes from `checked_links`: there may be very many
            object.__setattr__(self, "links", checked_links(self.links))
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

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON: links as [node, node, cost]."""
        names = {node.name for node in self.nodes}
        return {"nodes": msgspec.to_builtins(self.nodes), "slots": msgspec.to_builtins(self.slots),
                "links": [[*pair, cost] for pair, cost in self.links.items() if names.issuperset(pair)]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """Reads the output of `to_json`."""
        return cls(nodes=msgspec.convert(data["nodes"], tuple[Node, ...]),
                   slots=msgspec.convert(data["slots"], tuple[Slot, ...]),
                   links={(str(one), str(other)): float(cost) for one, other, cost in data.get("links", ())})

    def link_cost(self, one: str, other: str) -> float:
        """The cost of a unit of traffic between two nodes; 0 within a node."""
        return 0.0 if one == other else self.links.get(pair_of(one, other), LINK_COST)

    @property
    def live(self) -> frozenset[int]:
        """The numbers of the slots."""
        try:
            return self._live
        except AttributeError:
            object.__setattr__(self, "_live", frozenset(slot.number for slot in self.slots))
            return self._live

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


def pair_of(one: str, other: str) -> tuple[str, str]:
    """Two nodes as a key of links, regardless of their order."""
    return (one, other) if one <= other else (other, one)


def checked_links(links: Mapping[tuple[str, str], float]) -> FrozenMap[tuple[str, str], float]:
    """The links with the names of each pair in order, so that a pair has one entry."""
    ordered: dict[tuple[str, str], float] = {}
    for (one, other), cost in links.items():
        if one == other or not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"the link from node {one!r} to {other!r} has cost {cost!r}: a link joins two nodes, and its cost "
                             "is a finite number of at least 0")
        pair = pair_of(one, other)
        if ordered.setdefault(pair, cost) != cost:
            raise ValueError(f"the link between nodes {one!r} and {other!r} has two costs, {ordered[pair]:g} and {cost:g}: "
                             "it has the same cost in both directions")
    return FrozenMap(ordered)
