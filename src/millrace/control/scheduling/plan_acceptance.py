"""Acceptance of a scheduler's plan: a plan is enacted only if its gain is worth the moves.

A plan is worth it if it

- gives a slot to tasks that have none, or
- relieves an overload that lasts, or
- lowers the traffic, or evens out key groups, by the minimum gain, by more than the noise of the last windows, and by more than
  its moves cost within the time in which it must pay, or
- uses fewer nodes without more traffic,

and, except for the first two, overloads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from millrace.control.moves import BY_HANDOVER
from millrace.control.scheduling.move_costs import MoveCosts
from millrace.control.scheduling.plan_gains import (
    WindowLoads,
    balance_gains,
    exceeds_noise,
    planned_slots,
    traffic_gains,
    with_recent_loads,
)
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.balance import skew
from millrace.schedulers.problem import Figures, Problem

PAYBACK_SECONDS = 300.0
RELIEF_BY_MOVE = 0.01  # share by which each move must lower an overload that it does not end
RELIEF = 0.2  # and all moves together: less may be noise
TOLERANCE = 0.02  # by which loads over several windows may exceed the estimate that a plan was made for
NEWEST = 3  # windows over which an overload is averaged: few, since it may have come suddenly


@dataclass(frozen=True)
class Thresholds:
    """Limits that a plan is held against. `overload`: share of the CPU of a node or worker, or of a worker's time, that counts
    as overload; `fills`: the share up to which a plan may fill them. `payback`: seconds within which a plan must save more than
    its moves cost."""

    min_gain: float = 0.0
    overload: float = 0.95
    fills: float = 0.9
    payback: float = PAYBACK_SECONDS

    def relieves(self, before: Figures, after: Figures) -> bool:
        """True if an overload ends, or falls by enough for the number of moves, and no other one is made or worsened."""
        least = max(self.min_gain, min(RELIEF_BY_MOVE * after.moved, RELIEF))
        loads = _loads(before, after)
        ends = any(old >= self.overload and new <= max(self.fills + TOLERANCE, old * (1 - least)) and self.gains(old, new)
                   for old, new in loads)
        return ends and not any(new >= self.overload and new > old for old, new in loads)

    def overfills(self, before: Figures, after: Figures) -> bool:
        """True if the plan fills a node or worker more than it may: it would soon be reverted."""
        return any(new > self.fills + TOLERANCE and new > old for old, new in _loads(before, after))

    def gains(self, before: float, after: float) -> bool:
        return after < before and after <= before * (1 - self.min_gain)


def _loads(before: Figures, after: Figures) -> list[tuple[float, float]]:
    """Loads of the fullest node, worker and loop, before and after."""
    return [(before.largest_load, after.largest_load), (before.largest_worker_load, after.largest_worker_load),
            (before.largest_worker_time, after.largest_worker_time)]


@dataclass(frozen=True)
class Evidence:
    """Measurements beyond the estimated load. `windows`: the last ones as measured, the oldest first; `group_windows`: more of
    them, with the loads of key groups only. `overloaded`: an overload has lasted for some windows. `costs` of moves by
    `strategy`. Without evidence the estimate is all there is: it is not checked against noise."""

    windows: Sequence[WindowLoads] = ()
    group_windows: Sequence[WindowLoads] = ()
    overloaded: bool = True
    costs: MoveCosts = field(default_factory=MoveCosts)
    strategy: str = BY_HANDOVER


@dataclass(frozen=True)
class Review:
    """A plan compared with the one in force. `expected`: figures before and after, and what the moves cost in tuples.
    `shortfall`: the reason for rejecting it; empty if it is accepted."""

    moved: tuple[str, ...]
    expected: Mapping[str, Any]
    shortfall: str = ""

    @property
    def accepted(self) -> bool:
        return not self.shortfall


@dataclass(frozen=True)
class _Gain:
    """One way in which a plan may be better. `enough`: by the minimum gain, as the load is estimated. `rate`: tuples per second
    that it saves by that estimate; `rates`: in each of the last windows."""

    enough: bool
    rate: float
    rates: Sequence[float]

    def shortfall(self, thresholds: Thresholds, cost: float) -> str:
        """The reason why this does not justify the plan; empty if it does. `cost` of the moves, in tuples."""
        if not self.enough:
            return f"below the minimum gain, {thresholds.min_gain:.0%}"
        if not exceeds_noise(self.rates):
            return f"not more than noise in the last {len(self.rates)} windows"
        saved = (fmean(self.rates) if self.rates else self.rate) * thresholds.payback
        if thresholds.payback and saved <= cost:
            return f"it saves {saved:,.0f} tuples in {thresholds.payback:g} s, and its moves cost as much as {cost:,.0f}"
        return ""


def review(situation: Situation, plans: Mapping[str, Plan], thresholds: Thresholds, evidence: Evidence | None = None,
           objective: Mapping[str, Any] | None = None) -> Review:
    """Compare the plans with those in force and decide whether they are accepted. `objective`: what the scheduler minimises, as
    arguments of `Problem.of`."""
    evidence, objective = evidence or Evidence(), objective or {}
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan, **objective)
    assignment = planned_slots(problem, plans)
    before, after = problem.figures(problem.current), problem.figures(assignment)
    skews = [skew(situation.graphs, situation.load, plan) for plan in (situation.plan, plans)]
    cost = evidence.costs.tuples(plans, situation.plan, situation.load, evidence.strategy)
    moved = tuple(_moves(situation, plans))
    expected = {"before": {**asdict(before), "skew": skews[0]}, "after": {**asdict(after), "skew": skews[1]},
                "moves_cost": cost}
    if (problem.current < 0).any():
        return Review(moved, expected)
    newest, recent = (with_recent_loads(problem, windows) for windows in (evidence.windows[-NEWEST:], evidence.windows))
    if evidence.overloaded and thresholds.relieves(newest.figures(problem.current), newest.figures(assignment)):
        return Review(moved, expected)
    loads = recent.figures(problem.current), recent.figures(assignment)
    figures = (f"{problem.in_words(before.cost)} -> {after.cost:,.0f}, largest load of a node {loads[0].largest_load:.0%} -> "
               f"{loads[1].largest_load:.0%}, of a worker {_worker_load(loads[0]):.0%} -> {_worker_load(loads[1]):.0%}")
    if thresholds.overfills(*loads):
        return Review(moved, expected, f"{figures}: overload")
    if after.nodes_used < before.nodes_used and after.cost <= before.cost:
        return Review(moved, expected)
    weight = _weight_of_tuple(problem)
    traffic = _Gain(thresholds.gains(before.cost, after.cost), (before.cost - after.cost) / weight,
                    [gain / weight for gain in traffic_gains(situation, plans, evidence.windows, objective)])
    balance = _Gain(thresholds.gains(*skews), sum(balance_gains(situation, plans, [situation.load])),
                    balance_gains(situation, plans, evidence.group_windows))
    if not all(shortfalls := [gain.shortfall(thresholds, cost) for gain in (traffic, balance)]):
        return Review(moved, expected)
    return Review(moved, expected, f"{figures}: {shortfalls[balance.enough and not traffic.enough]}")


def _worker_load(figures: Figures) -> float:
    """Of the fullest worker, by its CPU or the time of its loop."""
    return max(figures.largest_worker_load, figures.largest_worker_time)


def _weight_of_tuple(problem: Problem) -> float:
    """The mean weight of a tuple in the unit that is minimised."""
    tuples, weight = float(problem.tuples.sum()), float(problem.rate.sum())
    return weight / tuples if tuples > 0 and weight > 0 else 1.0


def _moves(situation: Situation, plans: Mapping[str, Plan]) -> Iterator[str]:
    for name, plan in plans.items():
        old = situation.plan[name].placement if name in situation.plan else {}
        for task, slot in plan.placement.items():
            if old.get(task) != slot:
                yield f"{name}/{task}: worker {old.get(task, 'none')} -> {slot}"
        if name in situation.plan:
            changed = Plan.diff(situation.plan[name], plan)
            yield from (f"{name}/{task}: ends" for task in changed.stopped)
            shares = Counter((move.component, move.old, move.new) for move in changed.key_groups)
            for (component, source, target), groups in sorted(shares.items()):
                yield f"{name}/{component}: {groups} key groups, task {source} -> {target}"
