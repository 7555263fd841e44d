"""Steps that several schedulers share: slots for tasks that have none, and slots within chosen nodes."""

from __future__ import annotations

import numpy as np

from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Problem


def by_traffic(problem: Problem, tasks: Ints) -> Ints:
    """The tasks in order of their traffic, largest first; equals keep their order."""
    return tasks[np.argsort(-problem.task_traffic[tasks], kind="stable")]


def affinity(problem: Problem, task: int, places: Ints, count: int) -> Floats:
    """Tuples per second between the task and the tasks at each of `count` places; `places` has the place of every task, or
    NOWHERE."""
    start, others, rates = problem.neighbours
    own = slice(start[task], start[task + 1])
    at = places[others[own]]
    placed = at >= 0
    return np.bincount(at[placed], weights=rates[own][placed], minlength=count).astype(np.float64)


def complete(problem: Problem, assignment: Ints, capacity: float = 1.0) -> Ints:
    """The assignment with a slot for every task that has none; nothing else moves. Each goes to the node with room that
    shares most traffic with it, or to the least loaded if none has room."""
    assignment = assignment.copy()
    missing = np.flatnonzero(assignment < 0)
    if not len(missing):
        return assignment
    nodes = problem.nodes_of(assignment)
    load, counts = problem.node_load(assignment), _node_counts(problem, assignment)
    board = SlotBoard(problem, assignment)
    for task in by_traffic(problem, missing):
        room = load + problem.cpu[task] <= problem.node_capacity * capacity * ROUNDING
        near = affinity(problem, int(task), nodes, problem.nodes)
        node = _best(room, near, load / np.maximum(problem.node_capacity, 1e-9), counts)
        nodes[task] = node
        load[node] += problem.cpu[task]
        counts[node] += 1
        board.put(int(task), node)
    return board.assignment


def place_homeless(problem: Problem) -> SchedulingResult:
    """Places every task that has no slot; nothing else moves."""
    missing = int((problem.current < 0).sum())
    return problem.answer(complete(problem, problem.current), f"{missing} tasks that had no worker are placed")


def slots_within(problem: Problem, nodes: Ints) -> Ints:
    """A slot for every task on its chosen node: its present slot if that is there, else the one with room that shares most
    traffic with it, else the least loaded."""
    staying = problem.nodes_of(problem.current) == nodes
    board = SlotBoard(problem, np.where(staying & (problem.current >= 0), problem.current, NOWHERE))
    for task in by_traffic(problem, np.flatnonzero(board.assignment < 0)):
        board.put(int(task), int(nodes[task]))
    return board.assignment


class SlotBoard:
    """Load and task counts of the slots while tasks are placed on them."""

    def __init__(self, problem: Problem, assignment: Ints) -> None:
        self.problem, self.assignment = problem, assignment
        self.load = problem.slot_load(assignment)
        self.counts = problem.slot_tasks_taken + np.bincount(assignment[assignment >= 0], minlength=len(self.load))
        self.of_node = [np.flatnonzero(problem.slot_node == node) for node in range(problem.nodes)]

    def put(self, task: int, node: int) -> None:
        problem, own = self.problem, self.of_node[node]
        near = affinity(problem, task, self.assignment, len(self.load))[own]
        room = self.load[own] + problem.cpu[task] <= problem.slot_capacity[own] * ROUNDING
        slot = own[_best(room, near, self.load[own], self.counts[own])]
        self.assignment[task] = slot
        self.load[slot] += problem.cpu[task]
        self.counts[slot] += 1


def _node_counts(problem: Problem, assignment: Ints) -> Ints:
    own = np.bincount(problem.slot_node[assignment[assignment >= 0]], minlength=problem.nodes)
    others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
    return own + others.astype(np.int64)


def _best(room: Flags, near: Floats, load: Floats, counts: Ints) -> int:
    """The place with room that has most traffic, then the least loaded, then the one with fewest tasks, then the first. If no
    place has room: the least loaded."""
    if not room.any():
        return int(np.lexsort((counts, load))[0])
    best = np.flatnonzero(room & (near == near[room].max()))
    return int(best[np.lexsort((counts[best], load[best]))[0]])


def fewest_moves(problem: Problem, assignment: Ints) -> Ints:
    """The same placement with equivalent nodes, and then equivalent slots of a node, exchanged so that most tasks stay where
    they are. A scheduler that starts from scratch may find the plan in force with its nodes in another order."""
    order = np.argsort(problem.slot_node, kind="stable")
    start = np.searchsorted(problem.slot_node[order], np.arange(problem.nodes))
    position = np.empty_like(order)  # of each slot among those of its node
    position[order] = np.arange(len(order)) - start[problem.slot_node[order]]
    nodes = nearest_nodes(problem, problem.slot_node[assignment], np.zeros(problem.count, dtype=bool))
    exchanged = order[start[nodes] + position[assignment]]
    exchanged = _exchanged(exchanged, problem.current, _alike(problem.slot_node, problem.slot_taken, problem.slot_tasks_taken))
    kept, before = (exchanged == problem.current).sum(), (assignment == problem.current).sum()
    return exchanged if kept > before else assignment


def nearest_nodes(problem: Problem, nodes: Ints, fixed: Flags) -> Ints:
    """The node of each task after equivalent nodes are exchanged so that most tasks stay on theirs. Nodes with one of the
    `fixed` tasks are not exchanged."""
    slots = np.bincount(problem.slot_node, minlength=problem.nodes)
    others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
    own = np.zeros(problem.nodes)
    own[nodes[fixed]] = 1.0 + nodes[fixed]
    alike = _alike(problem.node_capacity, problem.node_mhz, problem.node_memory, problem.node_memory_taken, problem.node_taken,
                   slots, others, own)
    return _exchanged(nodes, problem.nodes_of(problem.current), alike)


def _alike(*features: np.ndarray) -> Ints:
    """The equivalence class of each place: places with equal features."""
    rows = np.stack([feature.astype(np.float64) for feature in features], axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)


def _exchanged(places: Ints, current: Ints, alike: Ints) -> Ints:
    """The place of each task after equivalent places are exchanged so that most tasks are at their current one."""
    from scipy.optimize import linear_sum_assignment  # here, because it would delay the start of every driver

    to = np.arange(len(alike))
    running = current >= 0
    for kind in np.flatnonzero(np.bincount(alike) > 1):
        own = np.flatnonzero(alike == kind)
        rank = np.full(len(alike), NOWHERE)
        rank[own] = np.arange(len(own))
        inside = running & (rank[places] >= 0)
        inside[inside] = rank[current[inside]] >= 0
        stay = np.zeros((len(own), len(own)))
        np.add.at(stay, (rank[places[inside]], rank[current[inside]]), 1)
        one, other = linear_sum_assignment(stay, maximize=True)
        to[own[one]] = own[other]
    return to[places]
