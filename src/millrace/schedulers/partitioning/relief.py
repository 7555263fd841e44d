"""Takes single tasks off overloaded workers and nodes, to others that have room."""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from millrace.schedulers.overload import NO_EXCESS, PER_MOVE, WHOLE, FillLimits, fallen, needs_alone, relieves, rises
from millrace.schedulers.partitioning.room import (
    CPU,
    MEMORY,
    node_room,
    task_needs,
    with_tolerance,
    worker_room,
)
from millrace.schedulers.placing import affinity, saving
from millrace.schedulers.problem import NOWHERE, ROUNDING, Figures, Flags, Floats, Ints, Problem
from millrace.schedulers.rearranging import rearranged

DIGITS = 9  # of an excess: the rest is rounding errors
MUCH = 0.9  # a plan that leaves less than this share of the cost is worth its moves whatever it relieves


def relieved(problem: Problem, assignment: Ints, limits: FillLimits) -> Ints:
    """The assignment after tasks have left overloaded workers and nodes, as far as others have room; at last two tasks change
    places. Where more is used than there is, any room will do. Tasks that cannot be moved stay."""
    for each in (limits, WHOLE):
        relief = _Relief(problem, assignment, each.overload)
        relief.move_all(each.packing)
        relief.swap_all(each.packing)
        relief.return_all(assignment)
        assignment = relief.assignment
    return assignment


def fitted(problem: Problem, assignment: Ints, limits: FillLimits) -> Ints:
    """The same as `relieved`, but where that leaves something overloaded, tasks are rearranged so that all fit if possible."""
    found = [relieved(problem, assignment, limits)]
    for each in (limits, WHOLE):
        if _may_fit(problem, each.overload) and not any(_fits(problem, slots, each.overload) for slots in found):
            rearrangements = (relieved(problem, slots, limits)
                              for slots in rearranged(problem, found[0], each.packing, few_moves=True))
            found += islice((slots for slots in rearrangements if _fits(problem, slots, each.overload)), 1)
    return min(found, key=lambda slots: (*(burden := _burden(problem, slots, limits.overload)).weighed, burden.cost))


def _may_fit(problem: Problem, share: float) -> bool:
    """True if all nodes together have what all tasks need, within this share."""
    nothing = np.full(problem.count, NOWHERE, dtype=np.int64)
    needed = problem.needs.sum(axis=1) + problem.node_used(nothing).sum(axis=1)
    memory = problem.memory.sum() + problem.node_memory_taken.sum()
    return bool((needed <= problem.node_limit.sum(axis=1) * share * ROUNDING).all()
                and memory <= problem.node_memory.sum() * ROUNDING)


def _fits(problem: Problem, assignment: Ints, share: float) -> bool:
    """True if no worker or node uses more than this share, but for a task that fits nowhere, or more memory than there is."""
    return not problem.excesses(assignment, share, avoidable=True).any()


def without_new_overload(problem: Problem, assignment: Ints, limits: FillLimits) -> Ints:
    """The assignment if it uses no more than there is, or no more than the plan in force does; else `fitted`, or that plan."""
    running = bool((problem.current >= 0).all())
    present = problem.excess(problem.current) if running else 0.0
    if problem.excess(assignment) <= present:
        return assignment
    assignment = fitted(problem, assignment, limits)
    return problem.current if running and problem.excess(assignment) > present else assignment


def relief_first(problem: Problem, assignment: Ints, limits: FillLimits) -> Ints:
    """The plan in force with the few moves that relieve its overload. `assignment` instead if it gains much traffic anyway, or
    relieves more for its moves, or if there is nothing to relieve."""
    current, share = problem.current, limits.overload
    if (current < 0).any() or not problem.excesses(current, share, avoidable=True).any():
        return assignment
    now, then = _burden(problem, current, share), _burden(problem, assignment, share)
    if (then.cost < MUCH * now.cost and then.full <= now.full
            and not rises(*(problem.excesses(each, share, avoidable=True) for each in (current, assignment)))):
        return assignment
    least = fitted(problem, current, limits)
    few = _burden(problem, least, share)
    helps = few.weighed < now.weighed and (*few.weighed, few.cost) <= (*then.weighed, then.cost)
    return least if helps and (least != assignment).any() else assignment


def relieves_overload(problem: Problem, old: Ints, new: Ints, overload: float) -> bool:
    """True if what is used beyond what there is falls or, if that changes nothing, the excess beyond the share `overload`: by
    enough for the moves from the plan in force, or the plan would be refused."""
    moves = int(((new != problem.current) & (problem.current >= 0)).sum())
    before, after = (problem.excesses(assignment, 1.0, avoidable=True) for assignment in (old, new))
    over, left = (problem.excesses(assignment, overload, avoidable=True) for assignment in (old, new))
    if rises(before, after):
        return False
    if fallen(before, after) > NO_EXCESS:
        return max(fallen(before, after), fallen(over, left)) >= PER_MOVE * moves
    return relieves(over, left, moves)


def relief_in_words(problem: Problem, assignment: Ints) -> str:
    """The reason for a plan by `relief_first`."""
    before, after = problem.figures(problem.current), problem.figures(assignment)
    return (f"an overload is relieved: {busiest(before)} becomes {busiest(after)}, and {problem.in_words(before.cost)} become "
            f"{after.cost:,.0f}: {after.moved} tasks move")


def busiest(figures: Figures) -> str:
    """The largest use of a node and a worker, in words."""
    worker = max(figures.largest_worker_load, figures.largest_worker_time)
    return f"{figures.largest_load:.0%} of a node and {worker:.0%} of a worker"


class _Burden(NamedTuple):
    """The excess of a placement beyond all that there is, and beyond the threshold; its moves, and the cost of its traffic."""

    full: float
    excess: float
    moves: int
    cost: float

    @property
    def weighed(self) -> tuple[float, float]:
        """The excess with what the moves must relieve."""
        return self.full, self.excess + PER_MOVE * self.moves


def _burden(problem: Problem, assignment: Ints, share: float) -> _Burden:
    moved = int(((assignment != problem.current) & (problem.current >= 0)).sum())
    full = round(problem.excess(assignment), DIGITS)
    return _Burden(full, round(problem.excess(assignment, share), DIGITS), moved, problem.cost(assignment))


class _Relief:
    """An assignment while it is relieved of what exceeds a share, with the use of all workers and nodes."""

    def __init__(self, problem: Problem, assignment: Ints, share: float) -> None:
        self.problem, self.assignment = problem, assignment.copy()
        self.share, self.needs = share, task_needs(problem)
        most = np.minimum(problem.slot_limit.max(axis=1, initial=0.0), problem.node_limit.max(axis=1, initial=0.0))
        self.large = (problem.needs > most[:, np.newaxis] * share * ROUNDING).any(axis=0)
        self.note_large()
        self.workers = self.used(assignment, len(problem.slot_numbers))
        self.nodes = self.used(problem.slot_node[assignment], problem.nodes)
        # All that there is where nothing runs: a task for which there is no room beside others may have such a place to itself.
        taken = np.stack([problem.slot_taken, problem.slot_time_taken, np.zeros_like(problem.slot_taken)])
        self.empty_workers = np.where(taken > 0, 0.0, self.limits_of_workers(1.0))
        taken = np.stack([np.bincount(problem.slot_node, weights=row, minlength=problem.nodes) for row in taken])
        self.empty_nodes = np.where(taken > 0, 0.0, self.limits_of_nodes(1.0))
        # A place that others fill alone cannot be relieved by moving its tasks of no need.
        self.movable = ~problem.pinned & (self.needs > 0).any(axis=0)

    def note_large(self) -> None:
        """Finds what fills a place: the share or, where one task needs more, that task. Only what is beside it has to leave."""
        problem, slots = self.problem, self.assignment
        self.worker_full, self.node_full = self.limits_of_workers(self.share), self.limits_of_nodes(self.share)
        if self.large.any():
            alone = needs_alone(problem.needs, slots, problem.slot_limit, self.share)
            alone -= np.stack([problem.slot_taken, problem.slot_time_taken])
            self.worker_full[:MEMORY] = np.maximum(self.worker_full[:MEMORY], with_tolerance(alone, problem.slot_limit))
            cpu = needs_alone(problem.needs[:1], problem.slot_node[slots], problem.node_limit[:1], self.share)[0]
            cpu = with_tolerance(cpu - problem.node_taken, problem.node_capacity)
            self.node_full[CPU] = np.maximum(self.node_full[CPU], cpu)

    def used(self, places: Ints, count: int) -> Floats:
        """(3, places): what the tasks need at each place."""
        return np.stack([np.bincount(places, weights=need, minlength=count) for need in self.needs]).astype(np.float64)

    def limits_of_nodes(self, share: float) -> Floats:
        whole = np.stack([self.problem.node_capacity, self.problem.node_limit[1], self.problem.node_memory])
        return with_tolerance(node_room(self.problem, share), whole)

    def limits_of_workers(self, share: float) -> Floats:
        room = worker_room(self.problem, share)
        room[:MEMORY] = with_tolerance(room[:MEMORY], self.problem.slot_limit)
        return room

    def overloaded(self) -> Flags:
        """The slots that are overloaded, or whose node is. The loops and cores of a node are those of its workers, so of a
        node only CPU and memory count."""
        node: Flags = np.any((self.nodes > self.node_full)[[CPU, MEMORY]], axis=0)
        worker: Flags = np.any(self.workers > self.worker_full, axis=0)
        return worker | node[self.problem.slot_node]

    def move_all(self, share: float) -> None:
        """Moves tasks from overloaded places to the ones with room where their traffic costs least."""
        over = self.overloaded()
        if not over.any():
            return
        node_limit, worker_limit = self.limits_of_nodes(share), self.limits_of_workers(share)
        for task in self.candidates(over):
            if not self.overloaded_at(int(self.assignment[task])):
                continue
            place = self.best_place(int(task), node_limit, worker_limit)
            if place is not None:
                self.put(int(task), place)

    def candidates(self, over: Flags) -> Ints:
        """The tasks of overloaded places, those first that need much for the traffic that they have there."""
        problem = self.problem
        tasks = np.flatnonzero(over[self.assignment] & self.movable)
        nodes = problem.slot_node[self.assignment]
        within = nodes[problem.left] == nodes[problem.right]
        ends = np.concatenate([problem.left[within], problem.right[within]])
        traffic = np.bincount(ends, weights=np.tile(problem.rate[within], 2), minlength=problem.count)
        size = (self.needs[:, tasks] / np.maximum(self.needs.max(axis=1, initial=0.0), 1e-9)[:, np.newaxis]).max(axis=0)
        return tasks[np.argsort(traffic[tasks] / np.maximum(size, 1e-9), kind="stable")]

    def overloaded_at(self, slot: int) -> bool:
        node = int(self.problem.slot_node[slot])
        return bool((self.workers[:, slot] > self.worker_full[:, slot]).any()) or self.node_overloaded(node)

    def node_overloaded(self, node: int) -> bool:
        used, full = self.nodes[:, node], self.node_full[:, node]
        return bool(used[CPU] > full[CPU] or used[MEMORY] > full[MEMORY])

    def best_place(self, task: int, node_limit: Floats, worker_limit: Floats) -> int | None:
        """The slot with room, on a node with room, where the task's traffic costs least; of equal ones that of the nearest
        tasks, then the least loaded. Without distances the cheapest nodes are those of the tasks that it communicates with, so
        the others are looked at only if none of these has room."""
        problem, node = self.problem, int(self.problem.slot_node[self.assignment[task]])
        if problem.distance is None:
            start, others, _ = problem.neighbours
            near = problem.slot_node[self.assignment[others[start[task]:start[task + 1]]]]
            place = self.best_of(task, np.unique(np.append(near, node)), node_limit, worker_limit)
            if place is not None:
                return place
        return self.best_of(task, np.arange(problem.nodes), node_limit, worker_limit)

    def best_of(self, task: int, nodes: Ints, node_limit: Floats, worker_limit: Floats) -> int | None:
        """The best slot of these nodes."""
        problem, slot = self.problem, int(self.assignment[task])
        node, need = int(problem.slot_node[slot]), self.needs[:, task, np.newaxis]
        room = _has_room(self.nodes[:, nodes], need, node_limit[:, nodes], self.empty_nodes[:, nodes])
        room[nodes == node] = not self.node_overloaded(node)
        nodes = nodes[room]
        places = np.concatenate([self.slots_of[at] for at in nodes]) if len(nodes) else np.zeros(0, dtype=np.int64)
        places = places[places != slot]
        places = places[_has_room(self.workers[:, places], need, worker_limit[:, places], self.empty_workers[:, places])]
        if not len(places):
            return None
        use = (self.workers[:MEMORY, places] / np.maximum(self.worker_full[:MEMORY, places], 1e-9)).max(axis=0)
        return int(places[np.lexsort((use, self.costs(task)[places]))[0]])

    @cached_property
    def slots_of(self) -> list[Ints]:
        order = np.argsort(self.problem.slot_node, kind="stable")
        return np.split(order, np.searchsorted(self.problem.slot_node[order], np.arange(1, self.problem.nodes)))

    def costs(self, task: int) -> Floats:
        """(slots): the cost of the task's traffic on each slot. Traffic between workers of a node counts a little in any case,
        so that of equal nodes the nearest worker is chosen."""
        problem = self.problem
        saved = saving(problem, task, problem.slot_node[self.assignment])[problem.slot_node]
        beside = affinity(problem, task, self.assignment, len(problem.slot_numbers))
        costs: Floats = -saved - max(problem.between_workers, 1e-6) * beside
        return costs

    def swap_all(self, share: float) -> None:
        """Lets tasks of overloaded places change places with smaller ones elsewhere, if then both places fit, and the other one
        within this share."""
        over = self.overloaded()
        limits = self.limits_of_nodes(share), self.limits_of_workers(share)
        for task in self.candidates(over) if over.any() else ():
            if self.overloaded_at(int(self.assignment[task])):
                other = self.partner(int(task), *limits)
                if other is not None:
                    here, there = int(self.assignment[task]), int(self.assignment[other])
                    self.put(int(task), there)
                    self.put(other, here)

    def partner(self, task: int, node_limit: Floats, worker_limit: Floats) -> int | None:
        """The task to change places with: the smallest change that makes the place fit and overloads no other."""
        problem, slot = self.problem, int(self.assignment[task])
        node = int(problem.slot_node[slot])
        theirs = self.assignment
        their_nodes = problem.slot_node[theirs]
        more = self.needs - self.needs[:, task, np.newaxis]  # what comes here less what leaves
        here = (self.workers[:, slot, np.newaxis] + more <= self.worker_full[:, slot, np.newaxis]).all(axis=0)
        there = (self.workers[:, theirs] - more <= worker_limit[:, theirs]).all(axis=0)
        apart = their_nodes != node
        nodes = (self.nodes[:, node, np.newaxis] + more <= self.node_full[:, node, np.newaxis]).all(axis=0) & (
            self.nodes[:, their_nodes] - more <= node_limit[:, their_nodes]).all(axis=0)
        fits = np.flatnonzero(here & there & (theirs != slot) & ~problem.pinned
                              & np.where(apart, nodes, not self.node_overloaded(node)))
        if not len(fits):
            return None
        share = np.abs(more[:, fits]) / np.maximum(self.needs.max(axis=1), 1e-9)[:, np.newaxis]
        return int(fits[np.argmin(share.sum(axis=0))])

    def return_all(self, start: Ints) -> None:
        """Returns the tasks that need not have left, because others did, to the slots where they started."""
        for task in np.flatnonzero(self.assignment != start)[::-1].tolist():
            here, slot = int(self.assignment[task]), int(start[task])
            if not self.overloaded_at(slot):
                self.put(task, slot)
                if self.overloaded_at(slot):
                    self.put(task, here)

    def put(self, task: int, slot: int) -> None:
        old, need, node = self.assignment[task], self.needs[:, task], self.problem.slot_node
        self.workers[:, old] -= need
        self.nodes[:, node[old]] -= need
        self.workers[:, slot] += need
        self.nodes[:, node[slot]] += need
        self.assignment[task] = slot
        if self.large[task]:
            self.note_large()


def _has_room(used: Floats, need: Floats, limit: Floats, empty: Floats) -> Flags:
    """Places that can take a task with this need: within their limit or, where nothing is used, within what is there then."""
    most = np.where(used <= NO_EXCESS * empty, np.maximum(limit, empty), limit)
    room: Flags = np.all(used + need <= most, axis=0)
    return room
