"""Costs of traffic between nodes: from a file, or measured by the nodes' agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from millrace.config import LINKS_FILE, LINKS_PERIOD
from millrace.control.scheduling.link_costs import LinkCosts, MeasuredLink
from millrace.control.workers import WorkerView
from millrace.model.cluster import LINK_COST
from millrace.model.frozen import FrozenMap
from millrace.model.link_table import LinkTable

PairCosts = Mapping[tuple[str, str], float]
NO_COSTS: PairCosts = FrozenMap()


class ClusterLinks:
    """Learns of nodes that come and go at the end of each window. What the file says comes before measurements."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        path = LINKS_FILE.of(settings)
        self._table = LinkTable.read(path) if path is not None else LinkTable()
        self._period: float = LINKS_PERIOD.of(settings)
        self._measured = LinkCosts()
        self._endpoints: dict[str, list[str]] = {}  # of the workers of a node, on tcp
        self._reachable: tuple[str, ...] = ()
        self._nodes: frozenset[str] = frozenset()
        self._given: PairCosts | None = {}  # None: not read for these nodes yet
        self._costs: PairCosts | None = NO_COSTS  # None: something has changed
        self._asked: dict[str, float] = {}  # when a node was told last to measure

    def end_window(self, workers: Mapping[int, WorkerView]) -> None:
        """Take the nodes of these workers, and what has been measured in the window."""
        endpoints: defaultdict[str, list[str]] = defaultdict(list)
        for _, worker in sorted(workers.items()):
            if worker.address.tcp:
                endpoints[worker.node.name].append(worker.address.tcp)
        self._endpoints, self._reachable = dict(endpoints), tuple(sorted(endpoints))
        nodes = frozenset(worker.node.name for worker in workers.values())
        if nodes != self._nodes:
            if not nodes.issuperset(self._nodes):
                self._measured.keep(nodes)
            self._nodes, self._given, self._costs = nodes, None, None
            self._asked = {node: at for node, at in self._asked.items() if node in nodes}
        if self._measured.update():
            self._costs = None

    @property
    def costs(self) -> PairCosts:
        """The costs of the links between the nodes, without those of cost 1; the same value as long as nothing changes. There
        may be one for each pair of nodes, so they are gathered only for those who need them."""
        if self._costs is None:
            each = {**self._measured.costs, **self._from_file()}  # both have their pairs in order
            self._costs = FrozenMap((pair, cost) for pair, cost in each.items() if cost != LINK_COST)
        return self._costs

    def _from_file(self) -> PairCosts:
        if self._given is None:
            self._given = self._table.costs(self._nodes)
        return self._given

    def to_measure(self, node: str, now: float) -> tuple[str, list[str]]:
        """The node to which this one measures its link now, and the endpoints there; empty if it is not time."""
        if not self._period or now - self._asked.get(node, -inf) < self._period:
            return "", []
        target = self._measured.next_target(node, self._reachable)
        if target is None:
            return "", []
        self._asked[node] = now
        return target, self._endpoints[target]

    def take(self, node: str, measured: Iterable[tuple[str, float, float]]) -> None:
        """Take what the agent of a node has measured. One of the nodes may be gone meanwhile."""
        for target, round_trip, bandwidth in measured:
            if node in self._nodes and target in self._nodes and node != target:
                self._measured.add(node, target, MeasuredLink(round_trip, bandwidth))

    def to_json(self) -> list[dict[str, Any]]:
        """Every link of which something is known, as `load` prints it. Unknown figures are None."""
        known, given = self._measured.links, self._from_file()
        return [{"nodes": list(pair), "cost": self.costs.get(pair, LINK_COST), "given": pair in given,
                 "round_trip_ms": known[pair].round_trip * 1000 if pair in known else None,
                 "bandwidth_mbps": known[pair].bandwidth * 8 / 1e6 or None if pair in known else None}
                for pair in sorted({*known, *given})]
