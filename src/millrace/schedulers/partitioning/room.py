"""Resources that tasks need and that places have, as rows of arrays: CPU in MHz, loop time in loops, and memory in MB."""

from __future__ import annotations

import numpy as np

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


def weighed_excess(problem: Problem, assignment: Ints, share: float) -> float:
    """The excess of nodes and workers beyond this share and, with a large weight, beyond all that they have; 0 if the placement
    fits."""
    return BEYOND_ALL * problem.excess(assignment) + problem.excess(assignment, share)
