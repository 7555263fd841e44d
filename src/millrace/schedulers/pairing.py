"""Pairs that talk most first, tasks into workers and then workers onto nodes: what Online and Er-Stream have in common.

Both phases are the same work on other things: items with a load and traffic between them are put into bins that have a
limit. In the first phase the items are tasks and the bins slots, in the second the items are what is together in one slot
and the bins nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millrace.config import WORKERS
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.placing import complete, fewest_moves
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Problem


class Pair(NamedTuple):
    """Two items and the tuples a second between them."""

    one: int
    other: int
    rate: float


@dataclass
class Bins:
    """The bins while items are put into them. An item belongs to a kind, and a kind may use at most so many bins: a topology
    its workers. A bin takes at most `seats` items."""

    weight: list[float]  # of each item, MHz
    kind: list[int]
    pairs: list[Pair]
    load: Floats  # of each bin, MHz: at first that of what is there anyway
    limit: Floats
    counts: Ints  # tasks there anyway, then items too: of two bins with the same load the one with fewer is preferred
    seats: Ints
    bins_of_kind: list[int]  # most bins that each kind may use

    def __post_init__(self) -> None:
        self.place = [NOWHERE] * len(self.weight)
        self.used = np.zeros((len(self.bins_of_kind), len(self.load)), dtype=np.int64)
        self.scale = 1 / np.maximum(self.limit, 1e-9)
        self.talks: list[list[tuple[int, float]]] = [[] for _ in self.weight]
        for one, other, rate in self.pairs:
            self.talks[one].append((other, rate))
            self.talks[other].append((one, rate))
        self.near: list[dict[int, float]] = [{} for _ in self.weight]  # by bin: tuples a second to and from what is there
        self.idlest: dict[int, set[int]] = {}

    # -- the two ways to go through the pairs ------------------------------------------------------------------------

    def fill(self, items: Iterable[int], pairs: Iterable[Pair], revise: bool) -> None:
        """Place both of each pair, then the items in none. `revise`: one that has a place may get another for the sake of a
        pair."""
        for pair in sorted(pairs, key=lambda pair: (-pair.rate, pair.one, pair.other)):
            placed = (self.place[pair.one] >= 0) + (self.place[pair.other] >= 0)
            if not placed:
                self._both(pair)
            elif revise:
                self._again(pair)
            elif placed == 1:
                self._one(pair.one if self.place[pair.one] < 0 else pair.other)
        for item in items:
            if self.place[item] < 0:
                self._one(item)

    def _both(self, pair: Pair) -> None:
        """Both to the least loaded bin; each for itself if none has room for the two."""
        room = self._open(pair.one, seats=2) & self._room(self.weight[pair.one] + self.weight[pair.other])
        if room.any():
            target = self._least(room)
            self._put(pair.one, target)
            self._put(pair.other, target)
        else:
            self._one(pair.one)
            self._one(pair.other)

    def _one(self, item: int) -> None:
        """To the bin with room that it talks to most, then the least loaded; without room anywhere to the least loaded."""
        seats = self._open(item)
        room = seats & self._room(self.weight[item])
        if not room.any():
            self._put(item, self._least(seats))
            return
        near = np.zeros(len(self.load))
        near[list(self.near[item])] = list(self.near[item].values())
        self._put(item, self._least(room & (near == near[room].max())))

    def _again(self, pair: Pair) -> None:
        """Of all ways to put the two into the bins that they are in and the least loaded one: the one with the least
        traffic between bins, within the limits; of equals the one that changes least, then the least loaded."""
        now = self.place[pair.one], self.place[pair.other]
        places = {place for place in now if place >= 0}
        places |= self._idlest(pair.one)
        local = {(first, second): self._local(pair, now, first, second) for first in places for second in places}
        if local.get(now) == max(local.values()):
            return
        for first, second in sorted(local, key=lambda way: (-local[way], *self._change(now, *way), way)):
            if (first, second) == now:
                return
            if self._fits(pair, now, first, second):
                self._put(pair.one, first)
                self._put(pair.other, second)
                return
        self._one(pair.one if now[0] < 0 else pair.other)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _local(self, pair: Pair, now: tuple[int, int], first: int, second: int) -> float:
        """Tuples a second within bins if the two were in these."""
        together = (first == second) - (first == now[1]) - (second == now[0])  # what is between the two counts once
        return self.near[pair.one].get(first, 0.0) + self.near[pair.other].get(second, 0.0) + together * pair.rate

    def _change(self, now: tuple[int, int], first: int, second: int) -> tuple[int, float]:
        """How many of the two would leave their place, and how full the fuller bin is."""
        changed = (first != now[0] and now[0] >= 0) + (second != now[1] and now[1] >= 0)
        return changed, max(self.load[first] * self.scale[first], self.load[second] * self.scale[second])

    def _put(self, item: int, target: int) -> None:
        """Into that bin, out of the one where it was."""
        old = self.place[item]
        if old == target:
            return
        for place, sign in ((old, -1), (target, 1)):
            if place >= 0:
                self.load[place] += sign * self.weight[item]
                self.counts[place] += sign
                self.seats[place] -= sign
                self.used[self.kind[item], place] += sign
        self.place[item] = target
        self.idlest.clear()
        for other, rate in self.talks[item]:
            near = self.near[other]
            near[target] = near.get(target, 0.0) + rate
            if old >= 0:
                near[old] = near.get(old, 0.0) - rate  # gone already if it was too little beside the others
                if near[old] <= rate * (ROUNDING - 1):  # nothing but a rounding error
                    del near[old]

    def _idlest(self, item: int) -> set[int]:
        """The least loaded of the bins that may take the item, if one may; remembered until something moves."""
        kind = self.kind[item]
        if kind not in self.idlest:
            seats = self._open(item)
            self.idlest[kind] = {self._least(seats)} if seats.any() else set()
        return self.idlest[kind]

    def _open(self, item: int, seats: int = 1) -> Flags:
        """Bins that may take it, whatever their load."""
        free: Flags = self.seats >= seats
        most = self.bins_of_kind[self.kind[item]]
        if most >= len(self.load):
            return free
        used = self.used[self.kind[item]] > 0
        return free & used if used.sum() >= most else free

    def _room(self, weight: float) -> Flags:
        room: Flags = self.load + weight <= self.limit * ROUNDING
        return room

    def _least(self, among: Flags) -> int:
        """The least loaded, then the one with fewest items, then the first."""
        share = np.where(among, self.load * self.scale, np.inf)
        least = np.flatnonzero(share == share.min())
        return int(least[self.counts[least].argmin()])

    def _fits(self, pair: Pair, now: tuple[int, int], first: int, second: int) -> bool:
        """Whether the limits allow the two to be there."""
        for target in {first, second}:
            load, seats = self.load[target], self.seats[target]
            for item, old, new in ((pair.one, now[0], first), (pair.other, now[1], second)):
                moved = int(new == target) - int(old == target)
                load, seats = load + moved * self.weight[item], seats - moved
            if load > self.limit[target] * ROUNDING or seats < 0:
                return False
        return True


def by_pairs(problem: Problem, limit: float, revise: bool, each_topology: bool) -> Ints:
    """An assignment made from nothing. `limit`: the share of a worker's core and of a node's CPU that may be used;
    `each_topology`: one topology after the other instead of all pairs in one order."""
    bins = _slots(problem, limit)
    if each_topology:
        for number in range(len(problem.graphs)):
            own = np.flatnonzero(problem.topology == number).tolist()
            bins.fill(own, [pair for pair in bins.pairs if bins.kind[pair.one] == number], revise)
    else:
        bins.fill(range(problem.count), bins.pairs, revise)
    return _onto_nodes(problem, np.array(bins.place, dtype=np.int64), limit, revise)


def decide(problem: Problem, found: Ints, limit: float, least: float, more: bool) -> SchedulingResult:
    """The assignment if it lowers the traffic between nodes by that share (`more`: by more than that) and overloads no node
    further; else the one in force, with a place for what has none."""
    stay, found = complete(problem, problem.current, limit), fewest_moves(problem, found)
    old, new = problem.figures(stay), problem.figures(found)
    change = (old.inter_node - new.inter_node) / old.inter_node if old.inter_node > 0 else 0.0
    said = f"{old.inter_node:,.0f} tuples/s between nodes could become {new.inter_node:,.0f} ({change:.1%} less)"
    missing = int((problem.current < 0).sum())
    placed = f"; {missing} tasks that had no worker are placed" if missing else ""
    if change <= ROUNDING - 1 or change < least or (more and change == least):
        return problem.answer(stay, f"{said}: {'more than' if more else 'at least'} {least:.1%} is asked for{placed}", limit)
    if new.largest_load > max(limit, old.largest_load) * ROUNDING:
        return problem.answer(stay, f"{said}, but a node would have {new.largest_load:.0%} of its CPU in use{placed}", limit)
    return problem.answer(found, f"{said}: {new.moved} tasks move{placed}", limit)


def _slots(problem: Problem, limit: float) -> Bins:
    """Bins for the first phase: tasks into slots."""
    count = len(problem.slot_numbers)
    asked = [WORKERS.of(graph.config) or count for graph in problem.graphs]
    return Bins(
        weight=problem.cpu.tolist(), kind=problem.topology.tolist(),
        load=problem.slot_taken.copy(), limit=problem.slot_capacity * limit,
        pairs=list(map(Pair, problem.left.tolist(), problem.right.tolist(), problem.rate.tolist())),
        counts=problem.slot_tasks_taken.copy(), seats=np.full(count, problem.count + 1),
        bins_of_kind=asked,
    )


def _onto_nodes(problem: Problem, place: Ints, limit: float, revise: bool) -> Ints:
    """Second phase: what is together in one slot onto nodes, each into a slot of its own there."""
    groups, group_of = np.unique(place, return_inverse=True)
    count = len(groups)
    apart = group_of[problem.left] != group_of[problem.right]
    ends = np.sort(np.stack([group_of[problem.left[apart]], group_of[problem.right[apart]]]), axis=0)
    keys, edge = np.unique(ends[0] * count + ends[1], return_inverse=True)
    rates = np.bincount(edge, weights=problem.rate[apart], minlength=len(keys))
    bins = Bins(
        weight=np.bincount(group_of, weights=problem.cpu, minlength=count).tolist(), kind=[0] * count,
        load=problem.node_taken.copy(), limit=problem.node_capacity * limit, bins_of_kind=[problem.nodes],
        pairs=list(map(Pair, (keys // max(count, 1)).tolist(), (keys % max(count, 1)).tolist(), rates.tolist())),
        counts=np.zeros(problem.nodes, dtype=np.int64), seats=np.bincount(problem.slot_node, minlength=problem.nodes),
    )
    bins.fill(range(count), bins.pairs, revise)
    return _into_slots(problem, group_of, bins)[group_of]


def _into_slots(problem: Problem, group_of: Ints, bins: Bins) -> Ints:
    """A slot of its node for each group, the heaviest first: one with room, and of those the one where most of its tasks
    are now, so that few move, then the least loaded."""
    found = np.full(len(bins.weight), NOWHERE, dtype=np.int64)
    free = np.ones(len(problem.slot_numbers), dtype=bool)
    for group in np.argsort(-np.array(bins.weight), kind="stable").tolist():
        own = np.flatnonzero(free & (problem.slot_node == bins.place[group]))
        here = problem.current[group_of == group]
        stay = np.bincount(here[here >= 0], minlength=len(free))[own]
        full = problem.slot_taken[own] + bins.weight[group] > problem.slot_capacity[own] * ROUNDING
        slot = own[np.lexsort((problem.slot_tasks_taken[own], problem.slot_taken[own], -stay, full))[0]]
        found[group], free[slot] = slot, False
    return found
