"""Acceptance of a scheduler's plan: a plan is enacted only if its gain is worth the moves.

A plan is worth it if it

- gives a slot to tasks that have none, or
- relieves an overload that lasts, by enough for its moves, or
- frees memory of a node that has less than its tasks need, or
- lowers the traffic, or evens out key groups, by the minimum gain, by more than the noise of the last windows, and by more than
  its moves cost within the time in which it must pay; for the traffic the gain must be higher if tasks have moved shortly
  before and the load is the same, or
- uses fewer nodes without more traffic,

and, except for the first two, overloads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from millrace.control.moves import BY_HANDOVER
from millrace.control.scheduling.move_costs import MoveCosts
from millrace.control.scheduling.overload import places_of_nodes
from millrace.control.scheduling.plan_gains import (
    WindowLoads,
    balance_gains,
    exceeds_noise,
    planned_slots,
    traffic_gains,
    with_recent_loads,
)
from millrace.control.scheduling.relief_moves import relieving_part
from millrace.control.scheduling.thresholds import NOTHING_RELIEVED, Lasting, Thresholds
from millrace.model.cluster import Cluster
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.balance import skew
from millrace.schedulers.base import NewPlan
from millrace.schedulers.problem import Figures, Problem

NEWEST = 3  # windows over which an overload is averaged: few, since it may have come suddenly


@dataclass(frozen=True)
class Evidence:
    """Measurements beyond the estimated load. `windows`: the last ones as measured, the oldest first; `group_windows`: more of
    them, with the loads of key groups only. `overloaded`: the places whose overload has lasted for some windows, as
    `PlaceLoad.where` names them, and `beyond`: those that needed more than they have; None if any may be relieved. `costs` of
    moves by `strategy`. Without evidence the estimate is all there is: it is not checked against noise."""

    windows: Sequence[WindowLoads] = ()
    group_windows: Sequence[WindowLoads] = ()
    overloaded: Collection[str] | None = None
    beyond: Collection[str] | None = None
    costs: MoveCosts = field(default_factory=MoveCosts)
    strategy: str = BY_HANDOVER

    def lasting(self, problem: Problem, cluster: Cluster) -> Lasting:
        """The places whose overload lasts. An overload of a machine is one of each of its nodes."""
        places = places_of_nodes(cluster)
        names = [*(f"worker {number}" for number in problem.slot_numbers), *(places[name] for name in problem.node_names)]
        return Lasting(*(np.array([which is None or name in which for name in names], dtype=bool)
                         for which in (self.overloaded, self.beyond)))


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
    """One way in which a plan may be better. `what`: the figure that it lowers, `before` and `after`, and `least` the share by
    which it must, as the load is estimated; `enough`: it does. `rate`: tuples per second that it saves by that estimate;
    `rates`: in each of the last windows."""

    what: str
    before: float
    after: float
    enough: bool
    least: float
    rate: float
    rates: Sequence[float]

    def shortfall(self, thresholds: Thresholds, cost: float) -> str:
        """The reason why this does not justify the plan; empty if it does. `cost` of the moves, in tuples."""
        if self.after >= self.before:
            return f"it does not lower {self.what}"
        if not self.enough:
            return f"it lowers {self.what} by {1 - self.after / self.before:.1%}, less than the minimum gain, {self.least:.1%}"
        if not exceeds_noise(self.rates):
            return f"it lowers {self.what} by not more than noise in the last {len(self.rates)} windows"
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
    relief = thresholds.relief_shortfall(newest, assignment, evidence.lasting(problem, situation.cluster))
    memory = thresholds.memory_shortfall(recent, assignment)
    if not relief or not memory:
        return Review(moved, expected)
    loads = recent.figures(problem.current), recent.figures(assignment)
    figures = (f"{problem.in_words(before.cost)} -> {after.cost:,.0f}, largest load of a node {loads[0].largest_load:.0%} -> "
               f"{loads[1].largest_load:.0%}, of a worker {_worker_load(loads[0]):.0%} -> {_worker_load(loads[1]):.0%}")
    if overfilled := thresholds.overfilled(recent, assignment):
        return Review(moved, expected, f"{figures}: {_all_of(relief, memory, overfilled)}")
    if after.nodes_used < before.nodes_used and after.cost <= before.cost:
        return Review(moved, expected)
    traffic = _traffic_gain(situation, plans, thresholds, evidence, problem, objective)
    balance = _Gain("the load of the fullest task", skews[0], skews[1], thresholds.gains(*skews), thresholds.min_gain,
                    sum(balance_gains(situation, plans, [situation.load])),
                    balance_gains(situation, plans, evidence.group_windows))
    if not all(shortfalls := [gain.shortfall(thresholds, cost) for gain in (traffic, balance)]):
        return Review(moved, expected)
    return Review(moved, expected, f"{figures}: {_all_of(relief, memory, shortfalls[balance.enough and not traffic.enough])}")


def _traffic_gain(situation: Situation, plans: Mapping[str, Plan], thresholds: Thresholds, evidence: Evidence, problem: Problem,
                  objective: Mapping[str, Any]) -> _Gain:
    assignment, weight = planned_slots(problem, plans), _weight_of_tuple(problem)
    before, after = problem.cost(problem.current), problem.cost(assignment)
    moves = int(((assignment != problem.current) & (problem.current >= 0)).sum())
    least = thresholds.settled.least_gain(before, moves)
    return _Gain("the traffic", before, after, thresholds.gains(before, after, least), max(least, thresholds.min_gain),
                 (before - after) / weight,
                 [gain / weight for gain in traffic_gains(situation, plans, evidence.windows, objective)])


def relieving_plans(situation: Situation, answer: NewPlan, thresholds: Thresholds, evidence: Evidence) -> NewPlan | None:
    """The plans with only those moves that relieve overloads which last; None if that is all of them, or none."""
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    wanted = planned_slots(problem, answer.plans)
    if (problem.current < 0).any() or (wanted < 0).any():
        return None
    newest = with_recent_loads(problem, evidence.windows[-NEWEST:])
    part = relieving_part(newest, wanted, evidence.lasting(problem, situation.cluster), thresholds)
    moves = int((part != problem.current).sum())
    if not moves or (part == wanted).all():
        return None
    result = problem.answer(part, f"{answer.reason}; only the {'move' if moves == 1 else f'{moves} moves'} of these that "
                                  "relieve an overload which lasts")
    return result if isinstance(result, NewPlan) else None


def _all_of(*reasons: str) -> str:
    """The reasons against a plan, without saying that there is no overload to relieve."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason != NOTHING_RELIEVED))


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
