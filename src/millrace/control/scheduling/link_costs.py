"""Decides which links between nodes are measured next, and what traffic costs on them by the measurements."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace.model.cluster import LINK_COST, pair_of

TRIPS_KEPT = 5  # the shortest counts: longer ones have waited behind something
SHORTEST = 100e-6  # seconds: below, sockets and loops take more time than the link
SIMILAR = 2.0  # times the best link: below, a link counts as equal
HIGHEST = 100.0
STEADY = 0.25  # a cost changes only by more than this share


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """A link between two nodes: seconds there and back, and bytes per second that it has carried when it was the limit; 0: it
    was not."""

    round_trip: float
    bandwidth: float = 0.0


class LinkCosts:
    """Measurements of links, of the present nodes. Every node measures one other at a time, in turn, so that the number of
    measurements grows with the nodes and not with their pairs."""

    def __init__(self) -> None:
        self._trips: dict[tuple[str, str], deque[float]] = {}
        self._bandwidths: dict[tuple[str, str], float] = {}
        self._costs: dict[tuple[str, str], float] = {}
        self._rounds: dict[str, int] = {}

    def next_target(self, node: str, nodes: tuple[str, ...]) -> str | None:
        """The node that this one measures next. `nodes`: all of them, in order."""
        position, others = bisect_left(nodes, node), len(nodes) - 1
        if others < 1 or nodes[position:position + 1] != (node,):
            return None
        turn = self._rounds[node] = self._rounds.get(node, -1) + 1
        return nodes[(position + 1 + turn % others) % len(nodes)]

    def add(self, one: str, other: str, link: MeasuredLink) -> None:
        """Take a measurement between two nodes."""
        pair = pair_of(one, other)
        self._trips.setdefault(pair, deque(maxlen=TRIPS_KEPT)).append(max(link.round_trip, 0.0))
        if link.bandwidth > 0:
            self._bandwidths[pair] = link.bandwidth

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget the measurements of all other nodes."""
        present = set(nodes)
        for known in (self._trips, self._bandwidths, self._costs):
            for pair in [pair for pair in known if not present.issuperset(pair)]:
                del known[pair]
        self._rounds = {node: turn for node, turn in self._rounds.items() if node in present}

    @property
    def links(self) -> dict[tuple[str, str], MeasuredLink]:
        """The best figures of each link that has been measured."""
        return {pair: MeasuredLink(min(trips), self._bandwidths.get(pair, 0.0)) for pair, trips in self._trips.items()}

    def costs(self) -> Mapping[tuple[str, str], float]:
        """The cost of each measured link in relation to the best one, by round trip or bandwidth, whichever is worse."""
        links = self.links
        nearest = max(min((link.round_trip for link in links.values()), default=0.0), SHORTEST)
        widest = max((link.bandwidth for link in links.values()), default=0.0)
        self._costs = {pair: self._steady(pair, _cost(link, nearest, widest)) for pair, link in links.items()}
        return self._costs

    def _steady(self, pair: tuple[str, str], cost: float) -> float:
        before = self._costs.get(pair, cost)
        return cost if abs(cost - before) > STEADY * before else before


def _cost(link: MeasuredLink, nearest: float, widest: float) -> float:
    farther = max(link.round_trip, SHORTEST) / nearest
    narrower = widest / link.bandwidth if link.bandwidth else 1.0
    worse = max(farther, narrower)
    return LINK_COST if worse < SIMILAR else min(worse, HIGHEST)
