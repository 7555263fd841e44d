"""Placements with less overload than a given one, where moves of single tasks to places with room do not lead to them.

Moves and exchanges that begin with it come first, then all tasks placed from scratch, the largest first: between nodes, and
then between workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from millrace.schedulers.placing import by_size, fewest_moves, slots_within
from millrace.schedulers.problem import ROUNDING, Floats, Ints, Problem
from millrace.schedulers.refining import NodeLimits, refined_nodes, used_of

WORKERS = 1_000_000  # tasks × slots: beyond it, only nodes are considered


def with_less_overload(problem: Problem, assignment: Ints, capacity: float = 1.0) -> Ints:
    """The assignment, or one with less overload if there is one to be found."""
    least = _unavoidable(problem) * ROUNDING
    found = [assignment]
    rearrangements = rearranged(problem, assignment, capacity)
    while problem.excess(found[-1], capacity) > least and (another := next(rearrangements, None)) is not None:
        found.append(another)
    return min(found, key=lambda each: (problem.excess(each, capacity), problem.cost(each)))


def rearranged(problem: Problem, assignment: Ints, capacity: float, few_moves: bool = False) -> Iterator[Ints]:
    """Placements with at most this share of what nodes and workers have, as far as possible. `few_moves`: those that begin with
    the assignment move tasks only where that relieves something, whatever their traffic."""
    limits = NodeLimits.of(problem, capacity)
    with_memory, begin = limits.with_memory(problem), _silent(problem) if few_moves else problem
    yield slots_within(problem, refined_nodes(begin, problem.nodes_of(assignment), with_memory), capacity)
    packed = refined_nodes(problem, _packed(problem, limits), with_memory)
    yield fewest_moves(problem, slots_within(problem, packed, capacity))
    if problem.count * len(problem.slot_numbers) <= WORKERS:
        workers = _workers_as_nodes(problem, assignment)
        limits, begin = NodeLimits.of(workers, capacity), _silent(workers) if few_moves else workers
        yield refined_nodes(begin, assignment, limits)
        yield fewest_moves(problem, refined_nodes(workers, _packed(workers, limits), limits))


def worker_by_worker(problem: Problem, assignment: Ints, capacity: float) -> Ints:
    """The assignment after moves and exchanges between single workers, and detours. Where a few tasks hardly fit the cores, the
    best placement on nodes may have none on workers, and this finds one that has."""
    workers = _workers_as_nodes(problem, assignment)
    return refined_nodes(workers, assignment, NodeLimits.of(workers, capacity), detours=True)


def _unavoidable(problem: Problem) -> float:
    """The least excess of any placement: that of tasks which need more than any worker has."""
    most = problem.slot_limit.max(axis=1, initial=0.0)
    return float((np.maximum(problem.needs - most[:, np.newaxis], 0.0).sum(axis=1) / np.maximum(most, 1e-9)).sum())


def _packed(problem: Problem, limits: NodeLimits) -> Ints:
    """The node of every task, all placed from scratch, the largest first, each on the node that has most room left."""
    nodes = problem.nodes_of(problem.pinned_only)
    used, scale = used_of(nodes, limits), 1 / np.maximum(limits.most, 1e-9).max(axis=1)
    for task in by_size(problem, np.flatnonzero(nodes < 0)).tolist():
        room = ((limits.most - used - limits.needs[:, task, np.newaxis]) * scale[:, np.newaxis]).min(axis=0)
        nodes[task] = room.argmax()
        used[:, nodes[task]] += limits.needs[:, task]
    return nodes


def _silent(problem: Problem) -> Problem:
    """The problem without traffic."""
    return replace(problem, rate=np.zeros_like(problem.rate))


def _workers_as_nodes(problem: Problem, assignment: Ints) -> Problem:
    """The problem in which every worker is a node of its own. The workers of a node together get no more CPU than it has: the
    last ones, by their load, less than a core or none."""
    used, count = problem.slot_load(assignment), len(problem.slot_numbers)
    capacity, left = np.zeros(count), problem.node_capacity.copy()
    for slot in np.argsort(-used, kind="stable").tolist():
        node = problem.slot_node[slot]
        capacity[slot] = min(float(problem.slot_capacity[slot]), float(left[node]))
        left[node] -= capacity[slot]
    one, other = problem.slot_node, problem.slot_node[:, np.newaxis]
    between: Floats = np.ones((count, count)) if problem.distance is None else problem.distance[one, other]
    distance = np.where(one == other, problem.between_workers, between)
    np.fill_diagonal(distance, 0.0)
    return replace(problem, slot_node=np.arange(count), node_names=tuple(f"worker {number}" for number in problem.slot_numbers),
                   node_mhz=problem.slot_capacity, node_capacity=capacity, node_memory=problem.node_memory[one],
                   node_memory_taken=problem.node_memory_taken[one], distance=distance)
