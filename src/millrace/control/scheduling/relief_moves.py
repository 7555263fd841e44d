"""The moves of a plan that relieve overloads which last, without its other moves.

A scheduler sees one estimate, in which some places of a large cluster are a little too full by chance. It relieves them all,
and so many moves for nothing would have the few that matter refused.
"""

from __future__ import annotations

import numpy as np

from millrace.control.scheduling.thresholds import Lasting, Thresholds
from millrace.schedulers.overload import NO_EXCESS, PER_MOVE
from millrace.schedulers.problem import Flags, Floats, Ints, Problem

ROUNDS = 10  # of making room; each adds a move, so there are rarely more than two


def relieving_part(problem: Problem, assignment: Ints, lasting: Lasting, thresholds: Thresholds) -> Ints:
    """The assignment with only those moves that take load off a place whose overload lasts, by enough for each of them, and
    those that make room for these."""
    share = thresholds.overload
    before = problem.excesses(problem.current, share, avoidable=True)
    overloaded = lasting.overloaded & (before > NO_EXCESS)
    kept = _moves_from(problem, assignment, overloaded)
    kept &= _worth_it(problem, before - _excesses_of(problem, assignment, kept, share), kept)
    for _ in range(ROUNDS):
        crowded = _excesses_of(problem, assignment, kept, share) > before + NO_EXCESS
        making_room = _moves_from(problem, assignment, crowded) & ~kept
        if not making_room.any():
            break
        kept |= making_room
    return np.where(kept, assignment, problem.current)


def _moves_from(problem: Problem, assignment: Ints, places: Flags) -> Flags:
    """The tasks that the assignment takes away from one of these workers or nodes."""
    slots = len(problem.slot_numbers)
    of_nodes: Flags = np.any(places[slots:].reshape(-1, problem.nodes), axis=0)  # whatever is counted there
    old, new = problem.nodes_of(problem.current), problem.nodes_of(assignment)
    from_slot = places[:slots][problem.current] & (assignment != problem.current)
    from_node = of_nodes[old] & (old != new)
    moved: Flags = (problem.current >= 0) & (from_slot | from_node)
    return moved


def _excesses_of(problem: Problem, assignment: Ints, kept: Flags, share: float) -> Floats:
    return problem.excesses(np.where(kept, assignment, problem.current), share, avoidable=True)


def _worth_it(problem: Problem, less: Floats, moves: Flags) -> Flags:
    """The tasks on nodes that are relieved, with their workers, by enough for the number of moves from there. `less`: by how
    much the excess of each place falls."""
    slots, nodes = len(problem.slot_numbers), problem.nodes_of(problem.current)
    of_workers = np.bincount(problem.slot_node, weights=less[:slots], minlength=problem.nodes)
    of_node = of_workers + less[slots:].reshape(-1, problem.nodes).sum(axis=0)
    count = np.bincount(nodes[moves], minlength=problem.nodes)
    enough: Flags = (of_node >= PER_MOVE * count)[nodes]
    return enough
