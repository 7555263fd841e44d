"""Schedulers held against each other on the same situations, and against the optimum where that is known.

How they are counted: the ratio is the traffic between nodes over the least that there can be within the nodes' CPU. It
means something only where that least is above 0; the situations where it is 0 are counted apart, with how many of them
a scheduler solved (0 too). A plan that gives a node more CPU than it has may go below the least, so it has no ratio: it
is counted as overloaded and left out of the mean. So the means of two schedulers may be over different situations; the
common ratio is over those in which every scheduler has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Scheduler
from millrace.schedulers.optimal import Least, fits
from millrace.schedulers.problem import Figures, Ints, Problem

NOTHING = 1e-6  # tuples a second: less is no traffic

Clock = Callable[[], float]  # seconds


@dataclass(frozen=True)
class Outcome:
    """What one scheduler made of one situation. `after` is None if it gave no plan: `error` says why."""

    before: Figures
    after: Figures | None
    overloaded: bool
    seconds: float
    reason: str
    optimum: float | None = None  # tuples a second; None if it is not known
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        """Traffic between nodes over the optimum; None where that is no fair comparison."""
        if self.after is None or self.overloaded or self.optimum is None or self.optimum <= NOTHING:
            return None
        return self.after.inter_node / self.optimum

    @property
    def solved_zero(self) -> bool:
        """True if there need not be any traffic between nodes, and there is none."""
        return (self.optimum is not None and self.optimum <= NOTHING and self.after is not None and not self.overloaded
                and self.after.inter_node <= NOTHING)


def outcome(scheduler: Scheduler, situation: Situation, clock: Clock, least: Least | None = None) -> Outcome:
    """Ask one scheduler. Whatever it raises is part of the comparison and does not end it."""
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    before = problem.figures(problem.current)
    optimum = least.value if least is not None and least.proven else None
    started = clock()
    try:
        result = scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)
    except Exception as error:  # a scheduler may be anybody's
        return Outcome(before, None, False, clock() - started, "", optimum, f"{type(error).__name__}: {error}")
    seconds = clock() - started
    match result:
        case NewPlan(plans=plans, reason=reason):
            assignment = assignment_of(problem, situation, {**situation.plan, **plans})
        case NoChange(reason=reason):
            assignment = problem.current
        case CannotPlace(reason=reason):
            return Outcome(before, None, False, seconds, reason, optimum, reason)
    if (assignment < 0).any():
        return Outcome(before, None, False, seconds, reason, optimum, f"{int((assignment < 0).sum())} tasks have no slot that "
                                                                      f"is alive: {reason}")
    return Outcome(before, problem.figures(assignment), not fits(problem, assignment), seconds, reason, optimum)


def assignment_of(problem: Problem, situation: Situation, plans: Mapping[str, Any]) -> Ints:
    """The slots that these plans give the problem's tasks."""
    return Problem.of(situation.graphs, situation.cluster, {}, plans).current


def in_common(outcomes: Mapping[str, Sequence[Outcome]]) -> set[int]:
    """The situations in which every scheduler has a ratio."""
    count = max(map(len, outcomes.values()), default=0)
    return {number for number in range(count) if all(found[number].ratio is not None for found in outcomes.values())}


def summary(outcomes: Sequence[Outcome], common: set[int] | None = None) -> dict[str, Any]:
    """One scheduler over many situations: means, and in how many there was something to hold against it. `common`: the
    situations for the common ratio."""
    ratios = [found.ratio for found in outcomes if found.ratio is not None]
    shared = [found.ratio for number, found in enumerate(outcomes) if found.ratio is not None and number in (common or ())]
    fair = [(found.after.inter_node, found.optimum) for found in outcomes
            if found.ratio is not None and found.after is not None and found.optimum is not None]
    placed = [found.after for found in outcomes if found.after is not None]
    return {
        "mean_ratio": _mean(ratios), "worst_ratio": max(ratios, default=None), "compared": len(ratios),
        "ratio_of_sums": sum(sent for sent, _ in fair) / sum(least for _, least in fair) if fair else None,
        "common_ratio": _mean(shared),
        "zero_solved": sum(found.solved_zero for found in outcomes),
        "overloaded": sum(found.overloaded for found in outcomes),
        "failed": sum(found.error is not None for found in outcomes),
        "nodes_used": _mean([figures.nodes_used for figures in placed]),
        "moved": _mean([figures.moved for figures in placed]),
        "inter_node": _mean([figures.inter_node for figures in placed]),
        "inter_process": _mean([figures.inter_process for figures in placed]),
        "largest_load": _mean([figures.largest_load for figures in placed]),
        "plan_ms": _mean([found.seconds * 1000 for found in outcomes]),
        "error": next((found.error for found in outcomes if found.error is not None), None),
    }


def details(found: Outcome) -> dict[str, Any]:
    """One scheduler on one situation, for people and programs."""
    after = found.after
    return {
        "inter_node": after and after.inter_node, "inter_process": after and after.inter_process,
        "nodes_used": after and after.nodes_used, "largest_load": after and after.largest_load,
        "moved": after and after.moved, "plan_ms": found.seconds * 1000, "ratio": found.ratio,
        "overloaded": found.overloaded, "reason": found.reason, "error": found.error,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
