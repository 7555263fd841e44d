"""Decides which links between nodes are measured next, and what traffic costs on them by the measurements."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from millrace.model.cluster import LINK_COST, pair_of

TRIPS_KEPT = 5  # the shortest counts: longer ones have waited behind something
SHORTEST = 100e-6  # seconds: below, sockets and loops take more time than the link
SIMILAR = 2.0  # times the best link: below, a link counts as equal
HIGHEST = 100.0
STEADY = 0.25  # a cost changes only by more than this share

NodePair = tuple[str, str]
LinkValues = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """A link between two nodes: seconds there and back, and bytes per second that it has carried when it was the limit; 0: it
    was not."""

    round_trip: float
    bandwidth: float = 0.0


class LinkCosts:
    """Measurements of links, of the present nodes. Every node measures one other at a time, in turn, so that the number of
    measurements grows with the nodes and not with their pairs. So does the work: only links that were measured since, or all
    of them if the best link has changed, get a new cost."""

    def __init__(self) -> None:
        self._trips: dict[NodePair, deque[float]] = {}
        self._shortest, self._bandwidths = _Figures(min), _Figures(max)
        self._costs: dict[NodePair, float] = {}
        self._rounds: dict[str, int] = {}
        self._measured: set[NodePair] = set()  # since costs were found last
        self._best = MeasuredLink(0.0)  # in relation to which they were found

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
        trips = self._trips.setdefault(pair, deque(maxlen=TRIPS_KEPT))
        trips.append(max(link.round_trip, 0.0))
        self._shortest.set(pair, min(trips))
        if link.bandwidth > 0:
            self._bandwidths.set(pair, link.bandwidth)
        self._measured.add(pair)

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget the measurements of all other nodes."""
        present = set(nodes)
        for pair in [pair for pair in self._trips if not present.issuperset(pair)]:
            del self._trips[pair]
            self._shortest.discard(pair)
            self._bandwidths.discard(pair)
            self._measured.discard(pair)
            self._costs.pop(pair, None)
        self._rounds = {node: turn for node, turn in self._rounds.items() if node in present}

    @property
    def links(self) -> dict[NodePair, MeasuredLink]:
        """The best figures of each link that has been measured."""
        bandwidths = self._bandwidths.each
        return {pair: MeasuredLink(trip, bandwidths.get(pair, 0.0)) for pair, trip in self._shortest.each.items()}

    @property
    def costs(self) -> Mapping[NodePair, float]:
        """The cost of each measured link in relation to the best one, by round trip or bandwidth, whichever is worse, as of the
        last `update`. Links of cost 1 are left out."""
        return self._costs

    def update(self) -> bool:
        """Find the costs by the measurements since the last call. True if one has changed."""
        best = MeasuredLink(max(self._shortest.best, SHORTEST), self._bandwidths.best)
        pairs = list(self._measured if best == self._best else self._trips)
        found = _costs(self._shortest.of(pairs, SHORTEST), self._bandwidths.of(pairs, math.inf), best)
        before = np.fromiter(map(self._costs.get, pairs, repeat(LINK_COST)), np.float64)
        changed = np.flatnonzero(np.abs(found - before) > STEADY * before)
        for place, cost in zip(changed.tolist(), found[changed].tolist()):
            if cost == LINK_COST:
                del self._costs[pairs[place]]
            else:
                self._costs[pairs[place]] = cost
        self._best = best
        self._measured.clear()
        return len(changed) > 0


class _Figures:
    """A figure of each link, and the best of them: found anew only when that has become worse."""

    def __init__(self, better: Callable[[Iterable[float]], float]) -> None:
        self.each: dict[NodePair, float] = {}
        self._better = better
        self._best: float | None = None

    def set(self, pair: NodePair, figure: float) -> None:
        before = self.each.get(pair)
        self.each[pair] = figure
        if self._best is not None and self._better((self._best, figure)) == figure:
            self._best = figure
        elif before == self._best:
            self._best = None

    def discard(self, pair: NodePair) -> None:
        if self.each.pop(pair, None) == self._best:
            self._best = None

    def of(self, pairs: Iterable[NodePair], unknown: float) -> LinkValues:
        """The figures of these links."""
        return np.fromiter(map(self.each.get, pairs, repeat(unknown)), np.float64)

    @property
    def best(self) -> float:
        """0 if there is none."""
        if self._best is None and self.each:
            self._best = self._better(self.each.values())
        return 0.0 if self._best is None else self._best


def _costs(round_trips: LinkValues, bandwidths: LinkValues, best: MeasuredLink) -> LinkValues:
    """The costs of links in relation to the best one."""
    worse = np.maximum(np.maximum(round_trips, SHORTEST) / best.round_trip, best.bandwidth / bandwidths)
    return np.where(worse < SIMILAR, LINK_COST, np.minimum(worse, HIGHEST))
