"""Acceptance of a scheduler's plan: a plan is enacted only if its gain is worth the moves.

A plan is worth it if it

- gives a slot to tasks that have none, or
- relieves an overload that lasts, by enough for its moves, or
- lowers the traffic, or evens out key groups, by the minimum gain, by more than the noise of the last windows, and by more than
  its moves cost within the time in which it must pay; for the traffic the gain must be higher if tasks have moved shortly
  before and the load is the same, or
- uses fewer nodes without more traffic,

and, except for the first two, overloads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from millrace.control.moves import BY_HANDOVER
from millrace.control.scheduling.move_costs import MoveCosts
from millrace.control.scheduling.overload import memory_of, places_of_nodes
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
from millrace.schedulers.problem import Figures, Ints, Problem

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
        nodes = [places[name] for name in problem.node_names]
        names = [*(f"worker {number}" for number in problem.slot_numbers), *nodes, *map(memory_of, nodes)]
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
    `measured`: in each of the last windows."""

    what: str
    before: float
    after: float
    enough: bool
    least: float
    rate: float
    measured: Callable[[], Sequence[float]]

    def shortfall(self, thresholds: Thresholds, cost: float) -> str:
        """The reason why this does not justify the plan; empty if it does. `cost` of the moves, in tuples."""
        if self.after >= self.before:
            return f"it does not lower {self.what}"
        if not self.enough:
            return f"it lowers {self.what} by {1 - self.after / self.before:.1%}, less than the minimum gain, {self.least:.1%}"
        rates = self.measured()
        if not exceeds_noise(rates):
            return f"it lowers {self.what} by not more than noise in the last {len(rates)} windows"
        saved = (fmean(rates) if rates else self.rate) * thresholds.payback
        if thresholds.payback and saved <= cost:
            return f"it saves {saved:,.0f} tuples in {thresholds.payback:g} s, and its moves cost as much as {cost:,.0f}"
        return ""


class Reviewer:
    """Compares plans with those in force in one situation. `objective`: what the scheduler minimises, as arguments of
    `Problem.of`. The situation of a large cluster takes long to look at, so that is done once for all plans."""

    def __init__(self, situation: Situation, thresholds: Thresholds, evidence: Evidence | None = None,
                 objective: Mapping[str, Any] | None = None) -> None:
        self._situation, self._thresholds = situation, thresholds
        self._evidence, self._objective = evidence or Evidence(), objective or {}
        self._problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan, **self._objective)

    @cached_property
    def _newest(self) -> Problem:
        return with_recent_loads(self._problem, self._evidence.windows[-NEWEST:])

    @cached_property
    def _recent(self) -> Problem:
        return with_recent_loads(self._problem, self._evidence.windows)

    @cached_property
    def _lasting(self) -> Lasting:
        return self._evidence.lasting(self._problem, self._situation.cluster)

    def review(self, plans: Mapping[str, Plan]) -> Review:
        """Decide whether the plans are accepted."""
        situation, problem = self._situation, self._problem
        assignment = planned_slots(problem, plans)
        before, after = problem.figures(problem.current), problem.figures(assignment)
        skews = [skew(situation.graphs, situation.load, plan) for plan in (situation.plan, plans)]
        cost = self._evidence.costs.tuples(plans, situation.plan, situation.load, self._evidence.strategy)
        expected = {"before": {**asdict(before), "skew": skews[0]}, "after": {**asdict(after), "skew": skews[1]},
                    "moves_cost": cost}
        moved = tuple(_moves(situation, plans))
        if not moved or (problem.current < 0).any():
            return Review(moved, expected)
        relief = self._thresholds.relief_shortfall(self._newest, assignment, self._lasting)
        if not relief:
            return Review(moved, expected)
        shortfall = self._thresholds.overfilled(self._recent, assignment)
        if not shortfall and after.nodes_used < before.nodes_used and after.cost <= before.cost:
            return Review(moved, expected)
        shortfall = shortfall or self._gain_shortfall(plans, before, after, skews, cost)
        if not shortfall:
            return Review(moved, expected)
        return Review(moved, expected, f"{self._in_words(before, after, assignment)}: {_all_of(relief, shortfall)}")

    def relieving(self, answer: NewPlan) -> NewPlan | None:
        """The plans with only those moves that relieve overloads which last; None if that is all of them, or none."""
        problem, wanted = self._problem, planned_slots(self._problem, answer.plans)
        if (problem.current < 0).any() or (wanted < 0).any():
            return None
        part = relieving_part(self._newest, wanted, self._lasting, self._thresholds)
        moves = int((part != problem.current).sum())
        if not moves or (part == wanted).all():
            return None
        result = problem.answer(part, f"{answer.reason}; only the {'move' if moves == 1 else f'{moves} moves'} of these that "
                                      "relieve an overload which lasts")
        return result if isinstance(result, NewPlan) else None

    def _gain_shortfall(self, plans: Mapping[str, Plan], before: Figures, after: Figures, skews: Sequence[float],
                        cost: float) -> str:
        """The reason why neither less traffic nor even key groups justify the plan; empty if they do."""
        situation, thresholds, windows = self._situation, self._thresholds, self._evidence.windows
        weight = _weight_of_tuple(self._problem)
        least = thresholds.settled.least_gain(before.cost, after.moved)
        traffic = _Gain("the traffic", before.cost, after.cost, thresholds.gains(before.cost, after.cost, least),
                        max(least, thresholds.min_gain), (before.cost - after.cost) / weight,
                        lambda: [gain / weight for gain in traffic_gains(situation, plans, windows, self._objective)])
        balance = _Gain("the load of the fullest task", skews[0], skews[1], thresholds.gains(*skews), thresholds.min_gain,
                        sum(balance_gains(situation, plans, [situation.load])),
                        lambda: balance_gains(situation, plans, self._evidence.group_windows))
        shortfalls = [gain.shortfall(thresholds, cost) for gain in (traffic, balance)]
        return shortfalls[balance.enough and not traffic.enough] if all(shortfalls) else ""

    def _in_words(self, before: Figures, after: Figures, assignment: Ints) -> str:
        loads = self._recent.figures(self._problem.current), self._recent.figures(assignment)
        return (f"{self._problem.in_words(before.cost)} -> {after.cost:,.0f}, largest load of a node "
                f"{loads[0].largest_load:.0%} -> {loads[1].largest_load:.0%}, of a worker {_worker_load(loads[0]):.0%} -> "
                f"{_worker_load(loads[1]):.0%}")


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
        if plan is situation.plan.get(name):
            continue
        for task, slot in plan.placement.items():
            if old.get(task) != slot:
                yield f"{name}/{task}: worker {old.get(task, 'none')} -> {slot}"
        if name in situation.plan:
            changed = Plan.diff(situation.plan[name], plan)
            yield from (f"{name}/{task}: ends" for task in changed.stopped)
            shares = Counter((move.component, move.old, move.new) for move in changed.key_groups)
            for (component, source, target), groups in sorted(shares.items()):
                yield f"{name}/{component}: {groups} key groups, task {source} -> {target}"
