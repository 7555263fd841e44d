"""Thresholds that a plan is held against, for its gain and for the overload that it relieves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from millrace.schedulers.overload import NO_EXCESS, PER_MOVE, fallen, rises
from millrace.schedulers.problem import Flags, Floats, Ints, Problem

PAYBACK_SECONDS = 300.0
TOLERANCE = 0.02  # by which loads over several windows may exceed the estimate that a plan was made for
DAMPING = 0.3  # share of the cost that a plan must save if all tasks have moved shortly before
OTHER_LOAD = 0.2  # share by which the cost may differ from the one promised if the load is the same
PLACES_NAMED = 3
NOTHING_RELIEVED = "it relieves no overload"


@dataclass(frozen=True)
class Settled:
    """The plans shortly before: the share of all tasks that they moved, and the cost of traffic that the last one promised;
    None if there was none."""

    moved: float = 0.0
    promised: float | None = None

    def least_gain(self, cost: float, moves: int) -> float:
        """The share of the cost that a plan with so many moves must save. Noise shows a scheduler new plans all the time, and
        each may be a little better. So, while the cost is as promised, more is asked the more tasks have moved. A single move
        is exempt: it is how some schedulers work."""
        if self.promised is None or moves <= 1 or abs(cost - self.promised) > OTHER_LOAD * self.promised:
            return 0.0
        return DAMPING * min(self.moved, 1.0)


class Lasting(NamedTuple):
    """One value for each place, in the order of `Problem.excesses`: the places whose overload lasts, and those that have for
    some windows needed more than they have. A full place shows a little more than it has now and then: that is noise."""

    overloaded: Flags
    beyond: Flags


@dataclass(frozen=True)
class Thresholds:
    """Limits that a plan is held against. `overload`: share of the CPU of a node or worker, or of a worker's time, that counts
    as overload; `fills`: the share up to which a plan may fill them. `payback`: seconds within which a plan must save more than
    its moves cost. `settled`: what plans shortly before ask of this one."""

    min_gain: float = 0.0
    overload: float = 0.95
    fills: float = 0.9
    payback: float = PAYBACK_SECONDS
    settled: Settled = field(default_factory=lambda: Settled())

    def relief_shortfall(self, problem: Problem, assignment: Ints, lasting: Lasting) -> str:
        """The reason why overload does not justify the plan; empty if it relieves some of the `lasting` overloads by enough for
        its moves, and neither makes nor worsens another one. Where more is used than there is, places may be filled to the
        last; else no further than a scheduler fills them."""
        moves = int((assignment != problem.current).sum())
        before, after = excesses(problem, assignment, self.overload, lasting.overloaded)
        full, left = excesses(problem, assignment, 1.0, lasting.beyond)
        if not (less := (before > after) | (full > left)).any():
            return self._none_relieved(problem, assignment)
        if rises(full, left):
            return f"it asks more than there is of {_risen(problem, full, left)}"
        lower = problem.place_loads(assignment) <= problem.place_loads(problem.current) * (1 - self.min_gain)
        if not lower[less].any():
            return f"no overloaded place has {self.min_gain:.0%} less to do then, which is the minimum gain"
        short = fallen(full, left) > NO_EXCESS  # somewhere more is used than there is
        relief = max(fallen(full, left), fallen(before, after)) if short else fallen(before, after)
        if not short and rises(before, after):
            return f"it overloads {_risen(problem, before, after)}"
        if relief <= NO_EXCESS or relief < PER_MOVE * moves:
            return (f"it relieves {max(relief, 0.0):.1%} of a worker or node by moving {moves} "
                    f"{'task' if moves == 1 else 'tasks'}, less than {PER_MOVE:.0%} for each")
        return "" if short else self.overfilled(problem, assignment)

    def _none_relieved(self, problem: Problem, assignment: Ints) -> str:
        """The reason why no overload that lasts falls: there is none, or it may be noise."""
        before, after = (problem.excesses(slots, self.overload, avoidable=True) for slots in (problem.current, assignment))
        fallen_there = np.flatnonzero(before > after + NO_EXCESS)
        if not len(fallen_there):
            return NOTHING_RELIEVED
        return f"the overload of {_named(problem, fallen_there)} does not last: it may be noise"

    def overfilled(self, problem: Problem, assignment: Ints) -> str:
        """The nodes and workers that the plan overloads, or fills more than it may, all together, in words; empty if there are
        none. It would soon be reverted. What one task fills alone is not counted."""
        fills = min(self.fills + TOLERANCE, 1.0)
        (filled, before), (fuller, after) = ([problem.excesses(each, share, avoidable=True)
                                              for share in (fills, max(self.overload, fills))]
                                             for each in (problem.current, assignment))
        if rises(before, after):
            return f"it overloads {_risen(problem, before, after)}"
        if fallen(filled, fuller) < -NO_EXCESS:
            return f"it fills nodes and workers, all together, further beyond {fills:.0%} than they are now"
        return ""

    def gains(self, before: float, after: float, least: float = 0.0) -> bool:
        return after < before and after <= before * (1 - max(self.min_gain, least))


def excesses(problem: Problem, assignment: Ints, share: float, lasting: Flags) -> tuple[Floats, Floats]:
    """The excess of every place before and after. That of places whose overload does not last may be noise: it counts only if
    it rises."""
    before, after = (problem.excesses(each, share, avoidable=True) for each in (problem.current, assignment))
    return before, np.where(lasting, after, np.maximum(before, after))


def _risen(problem: Problem, before: Floats, after: Floats) -> str:
    return _named(problem, np.flatnonzero(after > before + NO_EXCESS * np.maximum(before, 1.0)))


def _named(problem: Problem, places: Iterable[int]) -> str:
    """Some of the places in words."""
    nodes, numbers = [f"node {name}" for name in problem.node_names], list(places)
    names = [*(f"worker {number}" for number in problem.slot_numbers), *nodes, *(f"the memory of {node}" for node in nodes)]
    more = f" and {len(numbers) - PLACES_NAMED} more" if len(numbers) > PLACES_NAMED else ""
    return ", ".join(names[place] for place in numbers[:PLACES_NAMED]) + more
