"""Matches subgraphs to nodes at the least cost; among equal matchings, the one that moves the fewest tasks."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from millrace.schedulers.problem import Flags, Floats, Ints, Problem

GRID = 1e-6  # costs that differ by less than this are equal


def moves(problem: Problem, labels: Ints, k: int) -> Ints:
    """(nodes, k): the number of running tasks of each subgraph that would move to the node."""
    running = problem.current >= 0
    stay = np.zeros((problem.nodes, k), dtype=np.int64)
    np.add.at(stay, (problem.nodes_of(problem.current)[running], labels[running]), 1)
    return np.bincount(labels[running], minlength=k) - stay


def allowed_nodes(problem: Problem, labels: Ints, fitting: Flags) -> Flags:
    """(nodes, k): True if the subgraph may go to the node. One with a task that cannot be moved goes to that task's node and to
    no other; for the rest, `fitting` tells it."""
    allowed = fitting.copy()
    allowed[:, labels[problem.pinned]] = False
    allowed[problem.nodes_of(problem.current)[problem.pinned], labels[problem.pinned]] = True
    return allowed


def match(cost_of_node: Floats, allowed: Flags, moved: Ints, wanted: Flags) -> Ints | None:
    """The node of each wanted subgraph (others get -1), no two on one node; None if that is impossible.

    The cost is that of the nodes used. A subgraph takes the same wherever it goes, so leaving it out changes no choice,
    and equal choices get exactly equal costs. Costs are rounded to a grid, so that the number of moves decides among equals.
    """
    subgraphs = np.flatnonzero(wanted)
    if len(subgraphs) > len(cost_of_node):
        return None
    steps = np.round((cost_of_node - cost_of_node.min(initial=0.0)) / GRID)
    cost = steps[:, np.newaxis] * (moved.sum() + 1.0) + moved[:, subgraphs]
    cost = np.where(allowed[:, subgraphs], cost, np.inf)
    try:
        nodes, columns = linear_sum_assignment(cost)
    except ValueError:  # scipy: every matching uses a forbidden pair
        return None
    node_of = np.full(len(wanted), -1, dtype=np.int64)
    node_of[subgraphs[columns]] = nodes
    return node_of


def also_placed(problem: Problem) -> str:
    """The end of a reason to keep the plan: tasks that are placed nevertheless."""
    missing = int((problem.current < 0).sum())
    return f"; {missing} tasks that had no slot are placed" if missing else ""
