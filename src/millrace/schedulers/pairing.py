"""The two-phase assignment that Online and Er-Stream share: tasks into workers, then workers onto nodes, pairs with most
traffic first.

Both phases put items with a load, and traffic between them, into bins with a limit. In the first phase the items are tasks and
the bins slots; in the second the items are the groups of tasks that share a slot, and the bins nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millrace.config import WORKERS
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.partitioning.relief import (
    busiest,
    relief_first,
    relief_in_words,
    relieves_overload,
    without_new_overload,
)
from millrace.schedulers.placing import complete, fewest_moves
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Problem
from millrace.schedulers.rearranging import with_less_overload


class Pair(NamedTuple):
    """Two items and the weight of the traffic between them."""

    one: int
    other: int
    rate: float


@dataclass
class Bins:
    """The bins while items are put into them. Every item has a kind, and `bins_of_kind` limits the bins of a kind, as
    `topology.workers` does. A bin takes at most `seats` items. Loads have CPU and loop time as rows."""

    weight: Floats  # (2, items)
    kind: list[int]
    pairs: list[Pair]
    load: Floats  # (2, bins): at first that of other topologies
    limit: Floats  # (2, bins)
    counts: Ints  # tasks of other topologies, plus items: of two bins with the same load, the one with fewer is preferred
    seats: Ints
    bins_of_kind: list[int]  # maximum number of bins that each kind may use
    fixed: Ints  # bin of each item that must be there, or NOWHERE
    distance: Floats | None = None  # (bins, bins): cost of a unit of traffic; None: 1 between any two

    def __post_init__(self) -> None:
        items = len(self.kind)
        self.place = [NOWHERE] * items
        self.used = np.zeros((len(self.bins_of_kind), len(self.seats)), dtype=np.int64)
        self.scale = 1 / np.maximum(self.limit, 1e-9)
        self.neighbours: list[list[tuple[int, float]]] = [[] for _ in self.kind]
        for one, other, rate in self.pairs:
            self.neighbours[one].append((other, rate))
            self.neighbours[other].append((one, rate))
        self.near: list[dict[int, float]] = [{} for _ in self.kind]  # by bin: traffic to and from its items
        self.idlest: dict[int, set[int]] = {}
        for item in np.flatnonzero(self.fixed >= 0).tolist():
            self._put(item, int(self.fixed[item]))

    # -- the two ways to go through the pairs ------------------------------------------------------------------------

    def fill(self, items: Iterable[int], pairs: Iterable[Pair], revise: bool) -> None:
        """Places both items of each pair, then the items in no pair. `revise`: a later pair may move an item again."""
        for pair in sorted(pairs, key=lambda pair: (-pair.rate, pair.one, pair.other)):
            placed = (self.place[pair.one] >= 0) + (self.place[pair.other] >= 0)
            if not placed:
                self._both(pair)
            elif revise:
                self._revise(pair)
            elif placed == 1:
                self._one(pair.one if self.place[pair.one] < 0 else pair.other)
        for item in items:
            if self.place[item] < 0:
                self._one(item)

    def _both(self, pair: Pair) -> None:
        """Puts both into the least loaded bin, or each separately if no bin has room for the two."""
        room = self._open(pair.one, seats=2) & self._room(self.weight[:, pair.one] + self.weight[:, pair.other])
        if room.any():
            target = self._least(room)
            self._put(pair.one, target)
            self._put(pair.other, target)
        else:
            self._one(pair.one)
            self._one(pair.other)

    def _one(self, item: int) -> None:
        """Puts the item into the bin with room where its traffic costs least, then the least loaded; if no bin has room, into
        the least loaded."""
        seats = self._open(item)
        room = seats & self._room(self.weight[:, item])
        if not room.any():
            self._put(item, self._least(seats))
            return
        near = np.zeros(len(self.seats))
        bins = list(self.near[item])
        near[bins] = list(self.near[item].values())
        if self.distance is not None:
            near = near.sum() - near[bins] @ self.distance[bins]
        self._put(item, self._least(room & (near == near[room].max())))

    def _revise(self, pair: Pair) -> None:
        """Compares all ways to put the two into their present bins and the least loaded one, and takes the one with the least
        traffic between bins within the limits; among equals the one that changes least, then the least loaded."""
        now = self.place[pair.one], self.place[pair.other]
        places = {place for place in now if place >= 0}
        places |= self._idlest(pair.one)
        ways = [{place} if self.fixed[item] >= 0 else places for item, place in zip((pair.one, pair.other), now)]
        local = {(first, second): self._local(pair, now, first, second) for first in ways[0] for second in ways[1]}
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
        """Traffic within bins if the two were in these; with distances, traffic less its cost."""
        nearness = self._nearness
        together = nearness(first, second) - nearness(first, now[1]) - nearness(second, now[0])  # it counts once
        near = sum(rate * nearness(place, first) for place, rate in self._felt(pair.one, first))
        near += sum(rate * nearness(place, second) for place, rate in self._felt(pair.other, second))
        return near + together * pair.rate

    def _felt(self, item: int, place: int) -> Iterable[tuple[int, float]]:
        """Bins whose traffic with the item depends on whether it is at this place, with the traffic."""
        near = self.near[item]
        return near.items() if self.distance is not None else [(place, near[place])] if place in near else []

    def _nearness(self, one: int, other: int) -> float:
        """1 less the cost of a unit of traffic between two bins."""
        if self.distance is None or one == other or NOWHERE in (one, other):
            return float(one == other)
        return 1.0 - float(self.distance[one, other])

    def _change(self, now: tuple[int, int], first: int, second: int) -> tuple[int, float]:
        """The number of the two that would leave their bin, and the load of the fuller bin."""
        changed = (first != now[0] and now[0] >= 0) + (second != now[1] and now[1] >= 0)
        return changed, float((self.load[:, [first, second]] * self.scale[:, [first, second]]).max())

    def _put(self, item: int, target: int) -> None:
        """Moves the item into the bin."""
        old = self.place[item]
        if old == target:
            return
        for place, sign in ((old, -1), (target, 1)):
            if place >= 0:
                self.load[:, place] += sign * self.weight[:, item]
                self.counts[place] += sign
                self.seats[place] -= sign
                self.used[self.kind[item], place] += sign
        self.place[item] = target
        self.idlest.clear()
        for other, rate in self.neighbours[item]:
            near = self.near[other]
            near[target] = near.get(target, 0.0) + rate
            if old >= 0:
                near[old] = near.get(old, 0.0) - rate  # absent if it was negligible beside the others
                if near[old] <= rate * (ROUNDING - 1):  # nothing but a rounding error
                    del near[old]

    def _idlest(self, item: int) -> set[int]:
        """The least loaded bin that may take the item, as a set of at most one; cached until an item moves."""
        kind = self.kind[item]
        if kind not in self.idlest:
            seats = self._open(item)
            self.idlest[kind] = {self._least(seats)} if seats.any() else set()
        return self.idlest[kind]

    def _open(self, item: int, seats: int = 1) -> Flags:
        """Bins that may take the item, regardless of load."""
        free: Flags = self.seats >= seats
        most = self.bins_of_kind[self.kind[item]]
        if most >= len(self.seats):
            return free
        used = self.used[self.kind[item]] > 0
        return free & used if used.sum() >= most else free

    def _room(self, weight: Floats) -> Flags:
        room: Flags = np.all(self.load + weight[:, np.newaxis] <= self.limit * ROUNDING, axis=0)
        return room

    def _least(self, among: Flags) -> int:
        """The least loaded, then the one with fewest items, then the first."""
        share = np.where(among, np.max(self.load * self.scale, axis=0), np.inf)
        least = np.flatnonzero(share == share.min())
        return int(least[self.counts[least].argmin()])

    def _fits(self, pair: Pair, now: tuple[int, int], first: int, second: int) -> bool:
        """True if the limits allow the two in these bins."""
        for target in {first, second}:
            load, seats = self.load[:, target], self.seats[target]
            for item, old, new in ((pair.one, now[0], first), (pair.other, now[1], second)):
                moved = int(new == target) - int(old == target)
                load, seats = load + moved * self.weight[:, item], seats - moved
            if (load > self.limit[:, target] * ROUNDING).any() or seats < 0:
                return False
        return True


def assign_in_two_phases(problem: Problem, limit: float, revise: bool, each_topology: bool) -> Ints:
    """Assigns all tasks from scratch. `limit`: the share of a worker's core and of a node's CPU that may be used;
    `each_topology`: one topology after the other instead of all pairs in one order."""
    bins = _slot_bins(problem, limit)
    if each_topology:
        for number in range(len(problem.graphs)):
            own = np.flatnonzero(problem.topology == number).tolist()
            bins.fill(own, [pair for pair in bins.pairs if bins.kind[pair.one] == number], revise)
    else:
        bins.fill(range(problem.count), bins.pairs, revise)
    return _onto_nodes(problem, np.array(bins.place, dtype=np.int64), limit, revise)


def move_if_better(problem: Problem, assignment: Ints, limits: PairLimits) -> SchedulingResult:
    """The assignment if it makes the traffic cheaper by enough and overloads nothing further, or if it relieves an overload;
    else the one in force, with a place for tasks that have none."""
    shares = limits.shares
    stay = complete(problem, problem.current, shares.packing)
    assignment = relief = fewest_moves(problem, assignment)
    if not any(WORKERS.of(graph.config) for graph in problem.graphs):  # with a number of workers, pairs alone decide
        assignment = with_less_overload(problem, with_less_overload(problem, assignment, shares.packing))
        assignment = without_new_overload(problem, assignment, shares)
        relief = relief_first(problem, assignment, shares)
    old, new = problem.figures(stay), problem.figures(assignment)
    change = (old.cost - new.cost) / old.cost if old.cost > 0 else 0.0
    gain = f"{problem.in_words(old.cost)} could become {new.cost:,.0f} ({change:.1%} less)"
    missing = int((problem.current < 0).sum())
    placed = f"; {missing} tasks that had no worker are placed" if missing else ""
    if relieves_overload(problem, stay, relief, shares.overload):
        return problem.answer(relief, f"{relief_in_words(problem, relief)}{placed}", shares.packing)
    if not limits.enough(change):
        return problem.answer(stay, f"{gain}: {'more than' if limits.more else 'at least'} {limits.least:.1%} is "
                                    f"required{placed}", shares.packing)
    if limits.overloads(problem, stay, assignment):
        return problem.answer(stay, f"{gain}, but a node or worker would be overloaded: {busiest(new)}{placed}", shares.packing)
    return problem.answer(assignment, f"{gain}: {new.moved} tasks move{placed}", shares.packing)


@dataclass(frozen=True)
class PairLimits:
    """Conditions for moving tasks: the traffic gets cheaper by the share `least` (`more`: by more than that), or an overload is
    relieved. `shares`: of workers and nodes."""

    shares: FillLimits
    least: float
    more: bool

    def enough(self, change: float) -> bool:
        return change > ROUNDING - 1 and (change > self.least if self.more else change >= self.least)

    def overloads(self, problem: Problem, old: Ints, new: Ints) -> bool:
        """True if more than is to be filled, or than there is, is used beyond what is now."""
        return any(problem.excess(new, share) > problem.excess(old, share) * ROUNDING for share in (self.shares.packing, 1.0))


def _slot_bins(problem: Problem, limit: float) -> Bins:
    """Bins for the first phase: tasks into slots."""
    count = len(problem.slot_numbers)
    most_workers = [WORKERS.of(graph.config) or count for graph in problem.graphs]
    return Bins(
        weight=problem.needs, kind=problem.topology.tolist(),
        load=problem.slot_used(np.full(problem.count, NOWHERE, dtype=np.int64)), limit=problem.slot_limit * limit,
        pairs=list(map(Pair, problem.left.tolist(), problem.right.tolist(), problem.rate.tolist())),
        counts=problem.slot_tasks_taken.copy(), seats=np.full(count, problem.count + 1),
        bins_of_kind=most_workers, fixed=problem.pinned_only,
    )


def _onto_nodes(problem: Problem, place: Ints, limit: float, revise: bool) -> Ints:
    """Second phase: groups of tasks that share a slot onto nodes, each group into its own slot there. Groups with a pinned
    task stay in its slot."""
    groups, group_of = np.unique(place, return_inverse=True)
    count = len(groups)
    fixed_slots = np.where(np.isin(groups, problem.current[problem.pinned]), groups, NOWHERE)
    apart = group_of[problem.left] != group_of[problem.right]
    ends = np.sort(np.stack([group_of[problem.left[apart]], group_of[problem.right[apart]]]), axis=0)
    keys, edge = np.unique(ends[0] * count + ends[1], return_inverse=True)
    rates = np.bincount(edge, weights=problem.rate[apart], minlength=len(keys))
    nowhere = np.full(problem.count, NOWHERE, dtype=np.int64)
    bins = Bins(
        weight=np.stack([np.bincount(group_of, weights=need, minlength=count) for need in problem.needs]),
        kind=[0] * count, load=problem.node_used(nowhere), limit=problem.node_limit * limit, bins_of_kind=[problem.nodes],
        pairs=list(map(Pair, (keys // max(count, 1)).tolist(), (keys % max(count, 1)).tolist(), rates.tolist())),
        counts=np.zeros(problem.nodes, dtype=np.int64), seats=np.bincount(problem.slot_node, minlength=problem.nodes),
        fixed=problem.nodes_of(fixed_slots), distance=problem.distance,
    )
    bins.fill(range(count), bins.pairs, revise)
    return _into_slots(problem, group_of, bins, fixed_slots)[group_of]


def _into_slots(problem: Problem, group_of: Ints, bins: Bins, fixed_slots: Ints) -> Ints:
    """A slot of its node for each group, heaviest first: one with room, preferably the one with most of its tasks now, so
    that few move, then the least loaded. Fixed groups keep theirs."""
    slot_of = fixed_slots.copy()
    free = np.ones(len(problem.slot_numbers), dtype=bool)
    free[slot_of[slot_of >= 0]] = False
    taken = problem.slot_used(np.full(problem.count, NOWHERE, dtype=np.int64))
    largest = np.maximum(problem.slot_limit.max(axis=1, keepdims=True, initial=0.0), 1e-9)
    heaviest = np.argsort(-(bins.weight / largest).max(axis=0), kind="stable")
    for group in heaviest[slot_of[heaviest] < 0].tolist():
        local = np.flatnonzero(free & (problem.slot_node == bins.place[group]))
        here = problem.current[group_of == group]
        stay = np.bincount(here[here >= 0], minlength=len(free))[local]
        full = np.any(taken[:, local] + bins.weight[:, group, np.newaxis] > problem.slot_limit[:, local] * ROUNDING, axis=0)
        load = (taken[:, local] / np.maximum(problem.slot_limit[:, local], 1e-9)).max(axis=0)
        slot = local[np.lexsort((problem.slot_tasks_taken[local], load, -stay, full))[0]]
        slot_of[group], free[slot] = slot, False
    return slot_of
