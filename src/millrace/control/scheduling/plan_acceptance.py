"""Acceptance of a scheduler's plan: a plan is enacted only if its gain is worth the moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.balance import skew
from millrace.schedulers.problem import Figures, Problem


@dataclass(frozen=True)
class Thresholds:
    """Limits that a plan is held against. `min_gain` None: the scheduler has its own threshold, and any plan that it
    proposes is accepted. `crowding`: factor by which workers are busier than their CPU time shows."""

    min_gain: float | None
    overload: float
    crowding: float = 1.0

    def accept(self, before: Figures, after: Figures, unplaced: bool) -> bool:
        """Accept less traffic between nodes, relief of an overload, or fewer nodes at no cost. A plan that overloads a node
        or worker is no gain, because it would be reverted. `unplaced`: some tasks have no slot yet, so any plan helps."""
        loads = [(before.largest_load, after.largest_load),
                 (before.largest_worker_load * self.crowding, after.largest_worker_load * self.crowding)]
        relieves = any(old >= self.overload and self.gains(old, new) for old, new in loads)
        overloads = any(new >= self.overload and new > old for old, new in loads)
        cheaper = self.gains(before.inter_node, after.inter_node)
        fewer = after.nodes_used < before.nodes_used and after.inter_node <= before.inter_node
        return unplaced or self.min_gain is None or relieves or ((cheaper or fewer) and not overloads)

    def gains(self, before: float, after: float) -> bool:
        return after < before and after <= before * (1 - (self.min_gain or 0.0))


@dataclass(frozen=True)
class Review:
    """A plan compared with the one in force. `expected`: figures before and after. `shortfall`: the reason for rejecting it;
    empty if it is accepted."""

    accepted: bool
    moved: tuple[str, ...]
    expected: Mapping[str, Any]
    shortfall: str = ""


def review(situation: Situation, plans: Mapping[str, Plan], thresholds: Thresholds) -> Review:
    """Compare the plans with those in force and decide whether they are accepted."""
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    before, after = problem.figures(problem.current), figures_of(problem, plans)
    old_skew, new_skew = (skew(situation.graphs, situation.load, plan) for plan in (situation.plan, plans))
    expected = {"before": {**asdict(before), "skew": old_skew}, "after": {**asdict(after), "skew": new_skew}}
    moved = tuple(_moves(situation, plans))
    unplaced = bool((problem.current < 0).any())
    if thresholds.accept(before, after, unplaced) or thresholds.gains(old_skew, new_skew):
        return Review(True, moved, expected)
    shortfall = (f"between nodes {before.inter_node:,.0f} -> {after.inter_node:,.0f} tuples/s, largest load of a node "
                 f"{before.largest_load:.0%} -> {after.largest_load:.0%}, of a worker {before.largest_worker_load:.0%} "
                 f"-> {after.largest_worker_load:.0%}: below the minimum gain, {thresholds.min_gain:.0%}, or overload")
    return Review(False, moved, expected, shortfall)


def figures_of(problem: Problem, plans: Mapping[str, Plan]) -> Figures:
    position = {int(number): index for index, number in enumerate(problem.slot_numbers)}
    slots = [position.get(plans[name].placement.get(task, -1), -1) for name, task in problem.tasks]
    return problem.figures(np.array(slots, dtype=np.int64))


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
