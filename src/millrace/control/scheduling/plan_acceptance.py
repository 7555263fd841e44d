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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

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
from millrace.model.cluster import Cluster
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.balance import skew
from millrace.schedulers.overload import NO_EXCESS, PER_MOVE, fallen, relieves, rises
from millrace.schedulers.problem import Figures, Flags, Floats, Ints, Problem

PAYBACK_SECONDS = 300.0
TOLERANCE = 0.02  # by which loads over several windows may exceed the estimate that a plan was made for
DAMPING = 0.3  # share of the cost that a plan must save if all tasks have moved shortly before
OTHER_LOAD = 0.2  # share by which the cost may differ from the one promised if the load is the same
NEWEST = 3  # windows over which an overload is averaged: few, since it may have come suddenly


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
    """(slots + nodes + nodes) each, in the order of `Problem.excesses`: the places whose overload lasts, and those that have
    for some windows needed more than they have. A full place shows a little more than it has now and then: that is noise."""

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

    def relieves(self, problem: Problem, assignment: Ints, lasting: Lasting) -> bool:
        """True if the plan relieves some of the `lasting` overloads by enough for its moves, and neither makes nor worsens
        another one. Where more is used than there is, places may be filled to the last; else no further than a scheduler fills
        them."""
        moves = int((assignment != problem.current).sum())
        before, after = _excesses(problem, assignment, self.overload, lasting.overloaded)
        full, left = _excesses(problem, assignment, 1.0, lasting.beyond)
        lower = problem.place_loads(assignment) <= problem.place_loads(problem.current) * (1 - self.min_gain)
        if rises(full, left) or not lower[(before > after) | (full > left)].any():
            return False
        if fallen(full, left) > NO_EXCESS:
            return max(fallen(full, left), fallen(before, after)) >= PER_MOVE * moves
        return relieves(before, after, moves) and not self.overfills(problem, assignment)

    def overfills(self, problem: Problem, assignment: Ints) -> bool:
        """True if the plan fills nodes and workers more than it may, all together, or overloads one of them: it would soon be
        reverted. A worker that one task fills alone is no reason to undo anything."""
        fills = min(self.fills + TOLERANCE, 1.0)
        before, after = ([problem.excesses(each, share, avoidable=True) for share in (fills, max(self.overload, fills))]
                         for each in (problem.current, assignment))
        return fallen(before[0], after[0]) < -NO_EXCESS or rises(before[1], after[1])

    def gains(self, before: float, after: float, least: float = 0.0) -> bool:
        return after < before and after <= before * (1 - max(self.min_gain, least))


def _excesses(problem: Problem, assignment: Ints, share: float, lasting: Flags) -> tuple[Floats, Floats]:
    """The excess of every place before and after. That of places whose overload does not last may be noise: it counts only if
    it rises."""
    before, after = (problem.excesses(each, share, avoidable=True) for each in (problem.current, assignment))
    return before, np.where(lasting, after, np.maximum(before, after))


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
    """One way in which a plan may be better. `enough`: by the share `least`, as the load is estimated. `rate`: tuples per
    second that it saves by that estimate; `rates`: in each of the last windows."""

    enough: bool
    least: float
    rate: float
    rates: Sequence[float]

    def shortfall(self, thresholds: Thresholds, cost: float) -> str:
        """The reason why this does not justify the plan; empty if it does. `cost` of the moves, in tuples."""
        if not self.enough:
            return f"below the minimum gain, {self.least:.0%}"
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
    if thresholds.relieves(newest, assignment, evidence.lasting(problem, situation.cluster)):
        return Review(moved, expected)
    loads = recent.figures(problem.current), recent.figures(assignment)
    figures = (f"{problem.in_words(before.cost)} -> {after.cost:,.0f}, largest load of a node {loads[0].largest_load:.0%} -> "
               f"{loads[1].largest_load:.0%}, of a worker {_worker_load(loads[0]):.0%} -> {_worker_load(loads[1]):.0%}")
    if thresholds.overfills(recent, assignment):
        return Review(moved, expected, f"{figures}: overload")
    if after.nodes_used < before.nodes_used and after.cost <= before.cost:
        return Review(moved, expected)
    weight = _weight_of_tuple(problem)
    least = thresholds.settled.least_gain(before.cost, after.moved)
    traffic = _Gain(thresholds.gains(before.cost, after.cost, least), max(least, thresholds.min_gain),
                    (before.cost - after.cost) / weight,
                    [gain / weight for gain in traffic_gains(situation, plans, evidence.windows, objective)])
    balance = _Gain(thresholds.gains(*skews), thresholds.min_gain, sum(balance_gains(situation, plans, [situation.load])),
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
