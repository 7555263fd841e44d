"""Resources that tasks need and that places have, as rows of arrays: CPU in MHz, loop time in loops, and memory in MB."""

from __future__ import annotations

import numpy as np

from millrace.schedulers.overload import beyond
from millrace.schedulers.problem import ROUNDING, Floats, Ints, Problem

CPU, TIME, MEMORY = range(3)
BEYOND_ALL = 1000.0  # weight of what exceeds all that there is, where what exceeds a part of it has 1


def task_needs(problem: Problem) -> Floats:
    """(3, tasks)."""
    return np.stack([problem.cpu, problem.time, problem.memory])


def worker_room(problem: Problem, share: float = 1.0) -> Floats:
    """(3, slots): the room that other topologies leave in each worker if only this share of its core and its loop may be used.
    Memory is limited only by the node."""
    taken = np.stack([problem.slot_taken, problem.slot_time_taken])
    free = np.maximum(problem.slot_limit * share - taken, 0.0)
    return np.concatenate([free, np.full((1, len(problem.slot_numbers)), np.inf)])


def node_room(problem: Problem, share: float = 1.0) -> Floats:
    """(3, nodes): the room that other topologies leave on each node if only this share of its CPU and of its workers' loops may
    be used. A node has no more CPU than its workers have cores."""
    workers = worker_room(problem, share)
    cores, loops = (np.bincount(problem.slot_node, weights=row, minlength=problem.nodes) for row in workers[:MEMORY])
    cpu = np.minimum(problem.node_capacity * share - problem.node_taken, cores)
    room: Floats = np.maximum(np.stack([cpu, loops, problem.node_memory - problem.node_memory_taken]), 0.0)
    return room


def with_tolerance(room: Floats, whole: Floats) -> Floats:
    """The room and half of the tolerance for rounding errors that `Problem.overload` has."""
    limit: Floats = room + whole * (ROUNDING - 1) / 2
    return limit


def excess_with_memory(problem: Problem, assignment: Ints, share: float = 1.0) -> float:
    """The excess of nodes and workers beyond this share and, with a large weight, beyond all that they have, memory included;
    0 if the placement fits."""
    full = problem.excess(assignment) + excess_of_memory(problem, assignment)
    return full if share >= 1 else BEYOND_ALL * full + problem.excess(assignment, share)


def excess_of_memory(problem: Problem, assignment: Ints) -> float:
    """The excess of all nodes beyond their memory."""
    placed = assignment >= 0
    nodes = problem.slot_node[assignment[placed]]
    memory = np.bincount(nodes, weights=problem.memory[placed], minlength=problem.nodes).astype(np.float64)
    free = np.maximum(problem.node_memory - problem.node_memory_taken, 0.0) + problem.node_memory * (ROUNDING - 1)
    most = np.maximum(problem.node_memory.max(initial=0.0, keepdims=True), 1e-9)
    return float(beyond(memory[np.newaxis], free[np.newaxis], most).sum())
