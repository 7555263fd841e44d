"""Steps that several schedulers share: find slots for tasks that have none, and slots within nodes that are chosen."""

from __future__ import annotations

import numpy as np

from millrace.schedulers.problem import NOWHERE, ROUNDING, Floats, Ints, Problem


def by_traffic(problem: Problem, tasks: Ints) -> Ints:
    """Those tasks, the ones that talk most first; equals in their own order."""
    return tasks[np.argsort(-problem.task_traffic[tasks], kind="stable")]


def affinity(problem: Problem, task: int, places: Ints, count: int) -> Floats:
    """Tuples a second between the task and what is at each of `count` places; `places` has the place of every task,
    NOWHERE for those that have none."""
    start, others, rates = problem.neighbours
    own = slice(start[task], start[task + 1])
    at = places[others[own]]
    placed = at >= 0
    return np.bincount(at[placed], weights=rates[own][placed], minlength=count).astype(np.float64)


def complete(problem: Problem, assignment: Ints, capacity: float = 1.0) -> Ints:
    """The assignment with a slot for every task that has none; nothing else moves. Each goes where most of its traffic
    is among the places with room, or to the least loaded if none has."""
    found = assignment.copy()
    missing = np.flatnonzero(found < 0)
    if not len(missing):
        return found
    nodes = problem.nodes_of(found)
    load, counts = problem.node_load(found), _node_counts(problem, found)
    board = SlotBoard(problem, found)
    for task in by_traffic(problem, missing):
        room = load + problem.cpu[task] <= problem.node_capacity * capacity * ROUNDING
        near = affinity(problem, int(task), nodes, problem.nodes)
        node = _best(room, near, load / np.maximum(problem.node_capacity, 1e-9), counts)
        nodes[task] = node
        load[node] += problem.cpu[task]
        counts[node] += 1
        board.put(int(task), node)
    return board.assignment


def slots_within(problem: Problem, nodes: Ints) -> Ints:
    """A slot for every task on the node that is chosen for it: the one it has if that is there, else the one that most
    of its traffic goes to among those with room, else the least loaded."""
    staying = problem.nodes_of(problem.current) == nodes
    board = SlotBoard(problem, np.where(staying & (problem.current >= 0), problem.current, NOWHERE))
    for task in by_traffic(problem, np.flatnonzero(board.assignment < 0)):
        board.put(int(task), int(nodes[task]))
    return board.assignment


class SlotBoard:
    """The slots while tasks are put on them."""

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


def _best(room: np.ndarray, near: Floats, load: Floats, counts: Ints) -> int:
    """The place with room that most traffic goes to, then the least loaded, then the one with fewest tasks, then the
    first. Without room anywhere: the least loaded."""
    if not room.any():
        return int(np.lexsort((counts, load))[0])
    best = np.flatnonzero(room & (near == near[room].max()))
    return int(best[np.lexsort((counts[best], load[best]))[0]])
