"""Which node each subgraph goes to: a matching of least cost, and among equals the one that moves the fewest tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from millrace.schedulers.problem import Floats, Ints, Problem

GRID = 1e-6  # costs that differ by less than this are equal


def moves(problem: Problem, labels: Ints, k: int) -> Ints:
    """(nodes, k): how many running tasks of each subgraph would come to the node from elsewhere."""
    running = problem.current >= 0
    stay = np.zeros((problem.nodes, k), dtype=np.int64)
    np.add.at(stay, (problem.nodes_of(problem.current)[running], labels[running]), 1)
    return np.bincount(labels[running], minlength=k) - stay


def match(cost_of_node: Floats, allowed: NDArray[np.bool_], moved: Ints, wanted: NDArray[np.bool_]) -> Ints | None:
    """The node of each subgraph that is wanted (others get -1), no two on one node; None if it cannot be done.

    The cost is that of the nodes used: what a subgraph itself takes is the same wherever it goes, so leaving it out
    changes no choice, and equal choices get exactly equal costs. Rounded to a grid, so that moves decide among them.
    """
    subgraphs = np.flatnonzero(wanted)
    if len(subgraphs) > len(cost_of_node):
        return None
    steps = np.round((cost_of_node - cost_of_node.min(initial=0.0)) / GRID)
    cost = steps[:, np.newaxis] * (moved.sum() + 1.0) + moved[:, subgraphs]
    cost = np.where(allowed[:, subgraphs], cost, np.inf)
    try:
        nodes, columns = linear_sum_assignment(cost)
    except ValueError:  # scipy's word for: every matching uses a forbidden pair
        return None
    found = np.full(len(wanted), -1, dtype=np.int64)
    found[subgraphs[columns]] = nodes
    return found


def placed_too(problem: Problem) -> str:
    """The end of a reason to leave the plan as it is: what is placed all the same."""
    missing = int((problem.current < 0).sum())
    return f"; {missing} tasks that had no slot are placed" if missing else ""
