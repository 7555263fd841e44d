"""Steps that several schedulers share: slots for tasks that have none, and slots within chosen nodes."""

from __future__ import annotations

import math

import numpy as np

from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.overload import NO_EXCESS, excess_of_places
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Problem


def by_traffic(problem: Problem, tasks: Ints) -> Ints:
    """The tasks in order of their traffic, largest first; equals keep their order."""
    return tasks[np.argsort(-problem.task_traffic[tasks], kind="stable")]


def by_size(problem: Problem, tasks: Ints) -> Ints:
    """The tasks in order of what they need of a worker, largest first; equals keep their order."""
    core = max(float(problem.slot_capacity.max(initial=0.0)), 1e-9)
    return tasks[np.argsort(-np.maximum(problem.cpu[tasks] / core, problem.time[tasks]), kind="stable")]


def affinity(problem: Problem, task: int, places: Ints, count: int) -> Floats:
    """Weight of the traffic between the task and the tasks at each of `count` places; `places` has the place of every task, or
    NOWHERE."""
    start, others, rates = problem.neighbours
    own = slice(start[task], start[task + 1])
    at = places[others[own]]
    placed = at >= 0
    return np.bincount(at[placed], weights=rates[own][placed], minlength=count).astype(np.float64)


def saving(problem: Problem, task: int, nodes: Ints) -> Floats:
    """The saving from putting the task on each node, compared with links of cost 1 to all tasks that it communicates with.
    `nodes` has the node of every task, or NOWHERE. Without distances it is the traffic with the tasks there."""
    near = affinity(problem, task, nodes, problem.nodes)
    if problem.distance is None:
        return near
    used = np.flatnonzero(near)
    saved: Floats = near.sum() - near[used] @ problem.distance[used]
    return saved


def slot_saving(problem: Problem, task: int, assignment: Ints, slots: Ints) -> Floats:
    """The saving from putting the task on each of these slots, compared with links of cost 1 to all tasks that it communicates
    with: the difference of two slots is that of `problem.cost`."""
    nodes = problem.nodes_of(assignment)
    saved = saving(problem, task, nodes)[problem.slot_node[slots]]
    if problem.between_workers:
        on_node = affinity(problem, task, nodes, problem.nodes)[problem.slot_node[slots]]
        on_slot = affinity(problem, task, assignment, len(problem.slot_numbers))[slots]
        saved = saved - problem.between_workers * (on_node - on_slot)
    return saved


def complete(problem: Problem, assignment: Ints, capacity: float = 1.0) -> Ints:
    """The assignment with a slot for every task that has none; nothing else moves. Each goes to the node with room, on the node
    and in one of its workers, where its traffic costs least; if only nodes have room, to one of these; else to the least
    loaded. `capacity`: the share of a node and of a worker up to which it has room."""
    assignment = assignment.copy()
    missing = np.flatnonzero(assignment < 0)
    if not len(missing):
        return assignment
    nodes = problem.nodes_of(assignment)
    used, counts = problem.node_used(assignment), _node_counts(problem, assignment)
    limit = problem.node_limit * capacity * ROUNDING
    board = SlotBoard(problem, assignment, capacity)
    for task in by_traffic(problem, missing).tolist():
        need = problem.needs[:, task, np.newaxis]
        room: Flags = np.all(used + need <= limit, axis=0)
        in_worker = room & (np.bincount(problem.slot_node, weights=board.room(task), minlength=problem.nodes) > 0)
        room = in_worker if in_worker.any() else room
        node = _best(room, saving(problem, task, nodes), _share(used, problem.node_limit), counts)
        nodes[task] = node
        used[:, node] += need[:, 0]
        counts[node] += 1
        board.put(task, node)
    return board.assignment


def place_homeless(problem: Problem, capacity: float = 1.0) -> SchedulingResult:
    """Places every task that has no slot; nothing else moves. `capacity`: as in `complete`."""
    missing = int((problem.current < 0).sum())
    return problem.answer(complete(problem, problem.current, capacity), f"{missing} tasks that had no worker are placed")


def slots_within(problem: Problem, nodes: Ints, capacity: float) -> Ints:
    """A slot for every task on its chosen node: its present slot if that is there and has room, else the one with room that
    shares most traffic with it, else the least loaded. Where a worker would be fuller than `capacity`, the tasks of the node
    are packed again, the largest first, if that helps. Pinned tasks keep their slots; `nodes` must have theirs."""
    staying = (problem.nodes_of(problem.current) == nodes) & (problem.current >= 0)
    board = SlotBoard(problem, np.where(staying, problem.current, NOWHERE), capacity)
    for slot in np.flatnonzero(board.overloaded()):
        board.evict(int(slot))
    for task in by_traffic(problem, np.flatnonzero(board.assignment < 0)).tolist():
        board.put(task, int(nodes[task]))
    for node in np.unique(problem.slot_node[board.overloaded()]):
        board.repack(np.flatnonzero((nodes == node) & ~problem.pinned), int(node))
    return board.assignment


class SlotBoard:
    """Load and task counts of the slots while tasks are placed on them. `capacity`: the share of a worker that may be used."""

    def __init__(self, problem: Problem, assignment: Ints, capacity: float) -> None:
        self.problem, self.assignment, self.capacity = problem, assignment, capacity
        self.used = problem.slot_used(assignment)
        self.most = problem.slot_limit * capacity * ROUNDING
        self.counts = problem.slot_tasks_taken + np.bincount(assignment[assignment >= 0], minlength=len(self.most[0]))
        order = np.argsort(problem.slot_node, kind="stable")
        first = np.searchsorted(problem.slot_node[order], np.arange(problem.nodes + 1))
        self.of_node = [order[first[node]:first[node + 1]] for node in range(problem.nodes)]
        self.position = np.empty(len(order), dtype=np.int64)  # of each slot among those of its node
        self.position[order] = np.arange(len(order)) - first[problem.slot_node[order]]

    def room(self, task: int, slots: Ints | slice = slice(None)) -> Flags:
        """Slots that have room for the task."""
        fits = self.used[:, slots] + self.problem.needs[:, task, np.newaxis] <= self.most[:, slots]
        room: Flags = fits[0] & fits[1]
        return room

    def overloaded(self) -> Flags:
        """Slots that are fuller than they may be."""
        over: Flags = np.any(self.used > self.most, axis=0)
        return over

    def put(self, task: int, node: int) -> None:
        own = self.of_node[node]
        share = _share(self.used[:, own], self.problem.slot_limit[:, own])
        self.add(task, int(own[_best(self.room(task, own), self._traffic(task, node), share, self.counts[own])]))

    def put_all(self, tasks: Ints, node: int) -> None:
        """The same as `put` for one of these tasks after the other. It works on lists: for many tasks and few slots, arrays
        take several times as long."""
        own, problem = self.of_node[node], self.problem
        used, most = self.used[:, own].tolist(), self.most[:, own].tolist()
        limit, counts = np.maximum(problem.slot_limit[:, own], 1e-9).tolist(), self.counts[own].tolist()
        start, others, rates = problem.neighbour_lists
        here = np.flatnonzero(problem.nodes_of(self.assignment) == node)
        place = dict(zip(here.tolist(), self.position[self.assignment[here]].tolist()))
        for task, (cpu, time) in zip(tasks.tolist(), problem.needs[:, tasks].T.tolist()):
            near, between = [0.0] * len(own), slice(start[task], start[task + 1])
            for other, rate in zip(others[between], rates[between]):
                if other in place:
                    near[place[other]] += rate
            best = (True, 0.0, math.inf, 0, NOWHERE)  # full, less traffic, load, tasks, slot: the least is the best
            for slot in range(len(own)):
                full = used[0][slot] + cpu > most[0][slot] or used[1][slot] + time > most[1][slot]
                load = max(used[0][slot] / limit[0][slot], used[1][slot] / limit[1][slot])
                best = min(best, (full, 0.0 if full else -near[slot], load, counts[slot], slot))
            slot = place[task] = best[-1]
            used[0][slot] += cpu
            used[1][slot] += time
            counts[slot] += 1
        self.assignment[tasks] = own[[place[task] for task in tasks.tolist()]]
        self.used[:, own], self.counts[own] = used, counts

    def add(self, task: int, slot: int) -> None:
        """Puts the task on the slot."""
        self.assignment[task] = slot
        self.used[:, slot] += self.problem.needs[:, task]
        self.counts[slot] += 1

    def remove(self, tasks: Ints) -> None:
        """Takes tasks off their slots."""
        slots = self.assignment[tasks]
        for row, need in zip(self.used, self.problem.needs[:, tasks]):
            np.subtract.at(row, slots, need)
        np.subtract.at(self.counts, slots, 1)
        self.assignment[tasks] = NOWHERE

    def evict(self, slot: int) -> None:
        """Takes tasks off an overloaded slot, those with least traffic first, until it has room for the others. A task that is
        too large for it and alone there stays: no other slot has more room."""
        own = np.flatnonzero((self.assignment == slot) & ~self.problem.pinned & (self.problem.needs > 0).any(axis=0))
        shared = (self.used[:, slot] > self.problem.needs[:, own].sum(axis=1) + NO_EXCESS).any()
        for left, task in zip(range(len(own), 0, -1), by_traffic(self.problem, own)[::-1]):
            if (self.used[:, slot] <= self.most[:, slot]).all() or (left == 1 and not shared):
                return
            self.remove(np.array([task]))

    def repack(self, tasks: Ints, node: int) -> None:
        """Places these tasks of the node again, the largest first, each on the least loaded slot, if that lowers the
        overload."""
        before, own = self.assignment[tasks].copy(), self.of_node[node]
        overload = self._excess(own)
        self.remove(tasks)
        for task in by_size(self.problem, tasks).tolist():
            share = _share(self.used[:, own] + self.problem.needs[:, task, np.newaxis], self.problem.slot_limit[:, own])
            self.add(task, int(own[np.lexsort((own != self.problem.current[task], share))[0]]))
        if self._excess(own) * ROUNDING >= overload:
            self.remove(tasks)
            for task, slot in zip(tasks.tolist(), before.tolist()):
                self.add(task, slot)

    def _excess(self, slots: Ints) -> float:
        return float(excess_of_places(self.used[:, slots], self.problem.slot_limit[:, slots], self.capacity).sum())

    def _traffic(self, task: int, node: int) -> Floats:
        """Weight of the task's traffic with each slot of the node."""
        start, others, rates = self.problem.neighbours
        own = slice(start[task], start[task + 1])
        at = self.assignment[others[own]]
        local = (at >= 0) & (self.problem.slot_node[at] == node)
        traffic = np.bincount(self.position[at[local]], weights=rates[own][local], minlength=len(self.of_node[node]))
        return traffic.astype(np.float64, copy=False)


def _share(used: Floats, limit: Floats) -> Floats:
    """The load of each place: the larger of its shares of CPU and of loop time."""
    shares = used / np.maximum(limit, 1e-9)
    share: Floats = np.maximum(shares[0], shares[1])
    return share


def _node_counts(problem: Problem, assignment: Ints) -> Ints:
    own = np.bincount(problem.slot_node[assignment[assignment >= 0]], minlength=problem.nodes)
    others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
    return own + others.astype(np.int64)


def _best(room: Flags, near: Floats, load: Floats, counts: Ints) -> int:
    """The place with room that saves most, then the least loaded, then the one with fewest tasks, then the first. If no place
    has room: the least loaded."""
    if not room.any():
        return int(np.lexsort((counts, load))[0])
    best = (room & (near == near[room].max())).nonzero()[0]
    return int(best[0]) if len(best) == 1 else int(best[np.lexsort((counts[best], load[best]))[0]])


def fewest_moves(problem: Problem, assignment: Ints, fixed: Flags | None = None) -> Ints:
    """The same placement with equivalent nodes, and then equivalent slots of a node, exchanged so that most tasks stay where
    they are. A scheduler that starts from scratch may find the plan in force with its nodes in another order. Pinned and
    `fixed` tasks keep the slots that they have in the assignment."""
    fixed = problem.pinned if fixed is None else fixed | problem.pinned
    order = np.argsort(problem.slot_node, kind="stable")
    start = np.searchsorted(problem.slot_node[order], np.arange(problem.nodes))
    position = np.empty_like(order)  # of each slot among those of its node
    position[order] = np.arange(len(order)) - start[problem.slot_node[order]]
    nodes = nearest_nodes(problem, problem.slot_node[assignment], fixed)
    exchanged = order[start[nodes] + position[assignment]]
    alike = _alike(problem.slot_node, problem.slot_taken, problem.slot_time_taken, problem.slot_tasks_taken,
                   _own_kind(len(order), exchanged[fixed]))
    exchanged = _exchanged(exchanged, problem.current, alike)
    kept, before = (exchanged == problem.current).sum(), (assignment == problem.current).sum()
    return exchanged if kept > before else assignment


def nearest_nodes(problem: Problem, nodes: Ints, fixed: Flags) -> Ints:
    """The node of each task after equivalent nodes are exchanged so that most tasks stay on theirs. Nodes with one of the
    `fixed` tasks are not exchanged, and none are if links differ."""
    if problem.distance is not None:
        return nodes
    slots = np.bincount(problem.slot_node, minlength=problem.nodes)
    others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
    time_taken = np.bincount(problem.slot_node, weights=problem.slot_time_taken, minlength=problem.nodes)
    alike = _alike(problem.node_capacity, problem.node_mhz, problem.node_memory, problem.node_memory_taken, problem.node_taken,
                   time_taken, slots, others, _own_kind(problem.nodes, nodes[fixed]))
    return _exchanged(nodes, problem.nodes_of(problem.current), alike)


def _own_kind(count: int, fixed: Ints) -> Floats:
    """A feature in which places with fixed tasks differ from all others."""
    feature = np.zeros(count)
    feature[fixed] = 1.0 + fixed
    return feature


def _alike(*features: np.ndarray) -> Ints:
    """The equivalence class of each place: places with equal features."""
    rows = np.stack([feature.astype(np.float64) for feature in features], axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)


def _exchanged(places: Ints, current: Ints, alike: Ints) -> Ints:
    """The place of each task after equivalent places are exchanged so that most tasks are at their current one."""
    to = np.arange(len(alike))
    running = current >= 0
    for kind in np.flatnonzero(np.bincount(alike) > 1):
        own = np.flatnonzero(alike == kind)
        rank = np.full(len(alike), NOWHERE)
        rank[own] = np.arange(len(own))
        inside = running & (rank[places] >= 0)
        inside[inside] = rank[current[inside]] >= 0
        if inside.any():
            one, other = _most_staying(rank[places[inside]], rank[current[inside]], len(own))
            to[own[one]] = own[other]
    return to[places]


def _most_staying(places: Ints, current: Ints, count: int) -> tuple[Ints, Ints]:
    """The exchange of `count` places after which most of these tasks are at their current one."""
    from scipy.optimize import linear_sum_assignment  # here, because it would delay the start of every driver

    stay = np.zeros((count, count))
    np.add.at(stay, (places, current), 1)
    one, other = linear_sum_assignment(stay, maximize=True)
    return one, other
